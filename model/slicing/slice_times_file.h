#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "model/slicing/slice_times.h"

namespace sluice::model {

// A table of slice times (schema sluice.slice_times/1, docs/formats.md): one row per context, one entry per length, in
// seconds.
struct SliceTimesTable {
  SliceTimes forward;
  std::optional<SliceTimes> backward;
};

// Throws InputError naming the file and the location in it.
SliceTimesTable read_slice_times(const std::string& path);
SliceTimesTable parse_slice_times(std::string_view text, const std::string& source);

}  // namespace sluice::model

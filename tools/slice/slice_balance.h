#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/slice/slice_cut.h"

namespace sluice::tools {

// Simulates the documents of a scenario in every packing and order of microbatches, and returns the fastest batch that
// fits in memory. The best order is searched for the microbatches as loaded and for the fastest other packing alone.
// Throws InputError if there are no documents, or if none of all can be simulated.
SliceCut balance_batch(const SliceRequest& request, nlohmann::json document);

// Returns the content of a file for --lengths: a line, or in JSON a list, for each microbatch.
std::string batch_lengths_text(const std::vector<Documents>& batch, bool json);

}  // namespace sluice::tools

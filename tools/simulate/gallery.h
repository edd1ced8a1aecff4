#pragma once

#include <string>

#include "model/namespaces.h"

namespace sluice::tools {

// Writes an HTML page with the timelines of all schedule families on one time axis, for 4 ranks and 8 microbatches (4
// where a family needs as many as ranks), 2 slices where it has slices, 2 batches without a flush, and F = I = W = 1 s.
// `command_line` is shown. Throws InputError naming `path`.
void write_gallery(const std::string& path, const std::string& command_line);

}  // namespace sluice::tools

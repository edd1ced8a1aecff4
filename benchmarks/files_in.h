#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::bench {

// Returns the files in `paths`, with each folder replaced by its files with `extension`, sorted. Throws InputError for
// a folder without such files.
std::vector<std::string> files_in(const std::vector<std::string>& paths, std::string_view extension);

}  // namespace sluice::bench

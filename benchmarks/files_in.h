#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::bench {

// The files among `paths` as they are, and of each folder those that end in `extension`, sorted. Throws InputError for
// a folder that has none.
std::vector<std::string> files_in(const std::vector<std::string>& paths, std::string_view extension);

}  // namespace sluice::bench

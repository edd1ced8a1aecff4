#include "benchmarks/files_in.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "model/errors.h"

namespace sluice::bench {

std::vector<std::string> files_in(const std::vector<std::string>& paths, std::string_view extension) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == extension) inside.push_back(entry.path().string());
    }
    if (inside.empty())
      throw InputError(fmt::format("{}: expected at least one {} file in this folder", path, extension));
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

}  // namespace sluice::bench

#include "exec/device/dynamic_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace sluice::exec {
namespace {

std::string path_of(void* handle, const std::string& asked) {
  // The address of any of its symbols tells where it was loaded from; RTLD_DI_ORIGIN tells the folder alone.
  std::vector<char> folder(4096);
  if (dlinfo(handle, RTLD_DI_ORIGIN, folder.data()) != 0) return asked;
  const std::size_t slash = asked.find_last_of('/');
  return std::string(folder.data()) + "/" + (slash == std::string::npos ? asked : asked.substr(slash + 1));
}

}  // namespace

DynamicLibrary::DynamicLibrary(std::string what, std::span<const char* const> names,
                               std::span<const std::string> folders)
    : what_(std::move(what)) {
  std::vector<std::string> tries(names.begin(), names.end());
  for (const std::string& folder : folders) {
    for (const char* const name : names) tries.push_back(folder + "/" + name);
  }
  std::string first_error;
  for (const std::string& each : tries) {
    handle_ = dlopen(each.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = path_of(handle_, each);
      return;
    }
    // What stands in no folder is told of the first alone; a library that is there and does not load matters more.
    const char* const error = dlerror();
    const std::string text = error == nullptr ? each : error;
    const bool missing = text.find("No such file") != std::string::npos;
    if (first_error.empty() || !missing) first_error = text;
    if (!missing) break;
  }
  throw DeviceError(fmt::format("{} is not found: {}", what_, first_error));
}

void* DynamicLibrary::address_if_there(const char* symbol) const { return dlsym(handle_, symbol); }

void* DynamicLibrary::address(const char* symbol) const {
  void* const found = address_if_there(symbol);
  if (found == nullptr) throw DeviceError(fmt::format("{} has no {}: {}", what_, symbol, path_));
  return found;
}

std::span<const std::string> cuda_library_folders() {
  static const std::vector<std::string> folders = [] {
    std::vector<std::string> found;
    for (const char* const variable : {"CUDA_HOME", "CUDA_PATH"}) {
      if (const char* const home = std::getenv(variable); home != nullptr && *home != '\0') {
        found.push_back(std::string(home) + "/lib64");
        found.push_back(std::string(home) + "/lib");
      }
    }
#ifdef SLUICE_CUDA_LIBRARIES
    std::istringstream configured(SLUICE_CUDA_LIBRARIES);
    for (std::string folder; std::getline(configured, folder, ':');) found.push_back(folder);
#endif
    found.emplace_back("/usr/local/cuda/lib64");
    return found;
  }();
  return folders;
}

}  // namespace sluice::exec

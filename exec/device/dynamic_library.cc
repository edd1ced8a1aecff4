#include "exec/device/dynamic_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace sluice::exec {
namespace {

std::string path_of(void* handle, const std::string& asked) {
  // RTLD_DI_ORIGIN returns the folder from which it was loaded.
  std::vector<char> folder(4096);
  if (dlinfo(handle, RTLD_DI_ORIGIN, folder.data()) != 0) return asked;
  const std::size_t slash = asked.find_last_of('/');
  return std::string(folder.data()) + "/" + (slash == std::string::npos ? asked : asked.substr(slash + 1));
}

// The folder that an environment variable names; empty if it is not absolute: the current folder is not to be trusted.
std::filesystem::path absolute_folder(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value == '/' ? value : "";
}

// The prefix of the first python3 on PATH: /usr of /usr/bin/python3.
std::filesystem::path python_prefix() {
  const char* const value = std::getenv("PATH");
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    const std::filesystem::path folder = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (folder.is_absolute() && access((folder / "python3").c_str(), X_OK) == 0) return folder.parent_path();
  }
  return {};
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
    // Report the error of the first name, unless a library exists and fails to load.
    const char* const error = dlerror();
    const std::string text = error == nullptr ? each : error;
    const bool missing = text.find("No such file") != std::string::npos;
    if (first_error.empty() || !missing) first_error = text;
    if (!missing) break;
  }
  throw DeviceError(fmt::format("{} not found: {}", what_, first_error));
}

void* DynamicLibrary::address_if_there(const char* symbol) const { return dlsym(handle_, symbol); }

void* DynamicLibrary::address(const char* symbol) const {
  void* const found = address_if_there(symbol);
  if (found == nullptr) throw DeviceError(fmt::format("{} has no symbol {}: {}", what_, symbol, path_));
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
    for (std::string& folder : python_library_folders()) found.push_back(std::move(folder));
#ifdef SLUICE_CUDA_LIBRARIES
    std::istringstream configured(SLUICE_CUDA_LIBRARIES);
    for (std::string folder; std::getline(configured, folder, ':');) found.push_back(folder);
#endif
    found.emplace_back("/usr/local/cuda/lib64");
    return found;
  }();
  return folders;
}

std::vector<std::string> python_library_folders() {
  std::vector<std::string> folders;
  const std::filesystem::path conda = absolute_folder("CONDA_PREFIX");
  const std::filesystem::path python = python_prefix();
  // Debian's pip installs for all users under /usr/local.
  for (const std::filesystem::path& prefix :
       {absolute_folder("VIRTUAL_ENV"), conda, python, python == "/usr" ? std::filesystem::path("/usr/local") : "",
        absolute_folder("HOME") / ".local"}) {
    if (!prefix.is_absolute()) continue;
    std::string pattern;
    for (const char c : prefix.string()) {
      if (std::string_view("*?[]\\").find(c) != std::string_view::npos) pattern += '\\';
      pattern += c;
    }
    pattern += "/lib*/python3*/*-packages/nvidia/*/lib";
    glob_t matches{};
    if (glob(pattern.c_str(), 0, nullptr, &matches) == 0) {
      folders.insert(folders.end(), matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    }
    globfree(&matches);
  }
  if (!conda.empty()) folders.push_back((conda / "lib").string());  // where packages of conda itself are
  return folders;
}

}  // namespace sluice::exec

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

// The absolute folders of an environment variable with a list of them.
std::vector<std::filesystem::path> absolute_folders(const char* variable) {
  const char* const value = std::getenv(variable);
  std::istringstream list(value == nullptr ? "" : value);
  std::vector<std::filesystem::path> folders;
  for (std::string folder; std::getline(list, folder, ':');) {
    if (std::filesystem::path(folder).is_absolute()) folders.emplace_back(folder);
  }
  return folders;
}

// The prefixes of the first python3 on PATH and of the files that it is a link to: /usr of /usr/bin/python3.
std::vector<std::filesystem::path> python_prefixes() {
  std::vector<std::filesystem::path> prefixes;
  for (const std::filesystem::path& folder : absolute_folders("PATH")) {
    std::filesystem::path program = folder / "python3";
    if (access(program.c_str(), X_OK) != 0) continue;
    std::error_code error;
    for (int links = 0; links < 8 && !error; ++links) {
      prefixes.push_back(program.parent_path().parent_path());
      program = (program.parent_path() / std::filesystem::read_symlink(program, error)).lexically_normal();
    }
    break;
  }
  return prefixes;
}

// Appends the folders that match `prefix`, taken literally, followed by a pattern.
void append_matches(const std::filesystem::path& prefix, const char* pattern, std::vector<std::string>& folders) {
  std::string whole;
  for (const char c : prefix.string()) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) whole += '\\';
    whole += c;
  }
  glob_t matches{};
  if (glob((whole + pattern).c_str(), 0, nullptr, &matches) == 0) {
    for (std::size_t i = 0; i < matches.gl_pathc; ++i) {
      const char* const folder = matches.gl_pathv[i];
      // lib64 is often a link to lib.
      const auto same = [&](const std::string& other) {
        std::error_code error;
        return std::filesystem::equivalent(folder, other, error);
      };
      if (std::none_of(folders.begin(), folders.end(), same)) folders.emplace_back(folder);
    }
  }
  globfree(&matches);
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
      const std::filesystem::path home = absolute_folder(variable);
      if (home.empty()) continue;
      found.push_back((home / "lib64").string());
      found.push_back((home / "lib").string());
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
  for (const std::filesystem::path& folder : absolute_folders("PYTHONPATH")) {
    append_matches(folder, "/nvidia/*/lib", folders);
  }
  const std::filesystem::path conda = absolute_folder("CONDA_PREFIX");
  std::vector<std::filesystem::path> prefixes = {absolute_folder("VIRTUAL_ENV"), conda};
  for (const std::filesystem::path& prefix : python_prefixes()) {
    prefixes.push_back(prefix);
    // Debian's pip installs for all users under /usr/local.
    if (prefix == "/usr") prefixes.emplace_back("/usr/local");
  }
  prefixes.push_back(absolute_folder("HOME") / ".local");
  for (const std::filesystem::path& prefix : prefixes) {
    if (prefix.is_absolute()) append_matches(prefix, "/lib*/python3*/*-packages/nvidia/*/lib", folders);
  }
  if (!conda.empty()) folders.push_back((conda / "lib").string());  // where packages of conda itself are
  return folders;
}

}  // namespace sluice::exec

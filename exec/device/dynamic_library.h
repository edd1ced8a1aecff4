#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::exec {

// A shared library that is loaded when it is first needed, so that a program starts without it. It stays loaded.
class DynamicLibrary {
 public:
  // Tries `names` in order: in the default search path of the loader, then in `folders`. Throws DeviceError if none is
  // found, with the name `what` ("cuBLAS") and the error of the loader.
  DynamicLibrary(std::string what, std::span<const char* const> names, std::span<const std::string> folders);

  // Throws DeviceError if the symbol is missing: the library is too old, or another one.
  template <class Function>
  void find(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address(symbol));
  }
  // Sets `function` to null if the symbol is missing.
  template <class Function>
  void find_if_there(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address_if_there(symbol));
  }
  const std::string& path() const { return path_; }

 private:
  void* address(const char* symbol) const;
  void* address_if_there(const char* symbol) const;

  std::string what_;
  std::string path_;
  void* handle_ = nullptr;
};

// Returns folders of CUDA libraries besides those that the loader searches: those of CUDA_HOME and CUDA_PATH, of Python
// environments (below), of the toolkit or the Python packages found when this was configured, and /usr/local/cuda.
std::span<const std::string> cuda_library_folders();

// Folders of the libraries in the Python packages nvidia-* (cuBLAS, cuDNN and NCCL are there as PyTorch's
// dependencies): of PYTHONPATH, of the active environment (VIRTUAL_ENV, CONDA_PREFIX), of the python3 on PATH and of
// what it is a link to, and of the user (~/.local). No Python is run.
std::vector<std::string> python_library_folders();

}  // namespace sluice::exec

#include "exec/device/cudnn.h"

#include <fmt/format.h>

#include <array>

#include "exec/device/dynamic_library.h"
#include "kernels/device.h"

namespace sluice::exec {

Cudnn load_cudnn(std::span<const std::string> folders) {
  constexpr std::array<const char*, 1> kNames = {"libcudnn.so.9"};
  const DynamicLibrary library("cuDNN", kNames, folders);
  Cudnn found{};
  library.find(found.get_version, "cudnnGetVersion");
  found.version = static_cast<int>(found.get_version());
  found.text = fmt::format("{}.{}.{}", found.version / 10000, found.version / 100 % 100, found.version % 100);
  found.path = library.path();
  if (found.version < kLeastCudnn) {
    throw DeviceError(
        fmt::format("cuDNN is too old: {} is version {}, expected 9.10.2 or later", found.path, found.text));
  }
  // Engines load these by name, and a missing cuBLASLt ends the process: they are searched here, where more folders are
  // known, and stay loaded.
  std::size_t (*get_cuda_version)() = nullptr;
  library.find(get_cuda_version, "cudnnGetCudartVersion");
  const std::size_t cuda = get_cuda_version() / 1000;
  const std::string blas = fmt::format("libcublasLt.so.{}", cuda);
  const std::string compiler = fmt::format("libnvrtc.so.{}", cuda);
  const DynamicLibrary of_engines("cuBLASLt for cuDNN", std::array{blas.c_str()}, folders);
  const DynamicLibrary of_kernels("NVRTC for cuDNN", std::array{compiler.c_str()}, folders);
  library.find(found.create, "cudnnCreate");
  library.find(found.destroy, "cudnnDestroy");
  library.find(found.set_stream, "cudnnSetStream");
  library.find(found.status_text, "cudnnGetErrorString");
  library.find(found.last_error, "cudnnGetLastErrorString");
  library.find(found.create_descriptor, "cudnnBackendCreateDescriptor");
  library.find(found.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  library.find(found.finalize, "cudnnBackendFinalize");
  library.find(found.set_attribute, "cudnnBackendSetAttribute");
  library.find(found.get_attribute, "cudnnBackendGetAttribute");
  library.find(found.execute, "cudnnBackendExecute");
  return found;
}

const Cudnn& cudnn() {
  static const Cudnn table = load_cudnn(cuda_library_folders());  // retried at the next call if it throws
  return table;
}

}  // namespace sluice::exec

// GPUs, their partitions and their streams, opened with the CUDA runtime.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include "exec/device/cublas.h"
#include "exec/device/green_contexts.h"
#include "exec/device/provider.h"
#include "kernels/cuda/check.h"
#include "model/errors.h"

namespace sluice::exec {
namespace {

std::string version_text(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

// Number of visible GPUs, and the reason if there are none.
struct Visible {
  int count = 0;
  std::string why;
};

Visible look() {
  // One connection per stream, as far as possible: work of one stream must not queue after that of another. Read by the
  // driver when it starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  Visible visible;
  const cudaError_t error = cudaGetDeviceCount(&visible.count);
  if (error == cudaSuccess && visible.count > 0) return visible;
  (void)cudaGetLastError();
  visible.count = 0;
  int driver = 0;
  const bool asked = cudaDriverGetVersion(&driver) == cudaSuccess;
  const std::string runtime = version_text(CUDART_VERSION);
  if (!asked || driver == 0) {
    visible.why = "there is no CUDA driver on this machine";
  } else if (error == cudaErrorInsufficientDriver) {
    visible.why = fmt::format("the driver is too old: it supports CUDA {}, and this build needs CUDA {}",
                              version_text(driver), runtime);
  } else if (error == cudaErrorNoDevice || error == cudaSuccess) {
    const char* const hidden = std::getenv("CUDA_VISIBLE_DEVICES");
    visible.why = hidden == nullptr ? "there is a CUDA driver, but no GPU"
                                    : fmt::format("no GPU is visible (CUDA_VISIBLE_DEVICES is '{}')", hidden);
  } else {
    visible.why = fmt::format("cudaGetDeviceCount: {} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
  }
  return visible;
}

std::string gpu_name_of(int ordinal) {
  cudaDeviceProp properties{};
  SLUICE_CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
  return properties.name;
}

int attribute_or_0(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, ordinal) == cudaSuccess) return value;
  (void)cudaGetLastError();
  return 0;
}

// Enables direct copies between two GPUs if their link supports them; otherwise copies go through the host.
void enable_peer_copies(int from, int to) {
  int can = 0;
  if (from == to || cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || can == 0) return;
  SLUICE_CUDA_CHECK(cudaSetDevice(from));
  if (cudaDeviceEnablePeerAccess(to, 0) != cudaSuccess) (void)cudaGetLastError();  // already enabled
}

class CudaDevices final : public DeviceProvider {
 public:
  std::string name() const override { return "cuda"; }
  std::string architectures() const override { return SLUICE_CUDA_ARCHITECTURES; }
  std::string why_none() const override { return look().why; }
  int num_devices() const override { return look().count; }

  std::vector<std::unique_ptr<Device>> open(const DeviceRequest& request,
                                            std::span<const int> ordinals) const override {
    const Visible visible = look();
    if (visible.count == 0) throw InputError("devices: " + visible.why);
    std::vector<int> gpus(ordinals.begin(), ordinals.end());
    if (gpus.empty()) {
      gpus.resize(visible.count);
      std::iota(gpus.begin(), gpus.end(), 0);
    }
    for (const int gpu : gpus) {
      if (gpu < 0 || gpu >= visible.count) {
        throw InputError(fmt::format("devices: there is no GPU {}, only 0 to {}", gpu, visible.count - 1));
      }
    }
    return request.kind == DeviceRequest::gpu ? open_whole(request, gpus) : open_parts(request, gpus.front());
  }

  std::vector<DeviceFacts> devices() const override {
    std::vector<DeviceFacts> all;
    const int count = look().count;
    for (int i = 0; i < count; ++i) all.push_back(facts_of(i));
    return all;
  }

  std::vector<SoftwareFacts> software() const override {
    std::vector<SoftwareFacts> all;
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
      (void)cudaGetLastError();
      all.push_back({"CUDA driver", "", "not found on this machine"});
    } else {
      all.push_back({"CUDA driver", version_text(driver), "newest CUDA version supported"});
    }
    all.push_back({"CUDA runtime", version_text(CUDART_VERSION), "part of this program"});
    try {
      const Cublas& found = cublas();
      all.push_back({"cuBLAS", found.version, found.path});
    } catch (const DeviceError& error) {
      all.push_back({"cuBLAS", "", error.what()});
    }
    return all;
  }

 private:
  static std::vector<std::unique_ptr<Device>> open_whole(const DeviceRequest& request, const std::vector<int>& gpus) {
    const std::size_t count = request.count == 0 ? gpus.size() : static_cast<std::size_t>(request.count);
    if (count > gpus.size()) {
      throw InputError(fmt::format("devices: {} GPUs requested, but there {} {}", count,
                                   gpus.size() == 1 ? "is" : "are", gpus.size()));
    }
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < count; ++j) enable_peer_copies(gpus[i], gpus[j]);
    }
    std::vector<std::unique_ptr<Device>> devices;
    for (std::size_t i = 0; i < count; ++i) {
      devices.push_back(
          make_cuda_device(gpus[i], fmt::format("{} (GPU {})", gpu_name_of(gpus[i]), gpus[i]), std::nullopt));
    }
    return devices;
  }

  static std::vector<std::unique_ptr<Device>> open_parts(const DeviceRequest& request, int gpu) {
    const std::string gpu_name = gpu_name_of(gpu);
    const int all = attribute_or_0(cudaDevAttrMultiProcessorCount, gpu);
    std::vector<std::unique_ptr<Device>> devices;
    if (request.kind == DeviceRequest::stream) {
      for (int i = 0; i < request.count; ++i) {
        devices.push_back(make_cuda_device(
            gpu, fmt::format("{} (GPU {}, stream {} of {})", gpu_name, gpu, i, request.count), std::nullopt));
      }
      return devices;
    }
    for (GreenPartition& partition : split_in_green_contexts(gpu, request.count)) {
      std::string name = fmt::format("{} (GPU {}, green partition {} of {}: {} of {} SMs)", gpu_name, gpu,
                                     devices.size(), request.count, partition.multiprocessors(), all);
      devices.push_back(make_cuda_device(gpu, std::move(name), std::move(partition)));
    }
    return devices;
  }

  static DeviceFacts facts_of(int ordinal) {
    cudaDeviceProp properties{};
    SLUICE_CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
    DeviceFacts facts{.name = properties.name,
                      .ordinal = ordinal,
                      .multiprocessors = properties.multiProcessorCount,
                      .compute_capability = 10 * properties.major + properties.minor,
                      .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                      .clock_hz = 1e3 * attribute_or_0(cudaDevAttrClockRate, ordinal),
                      .memory_clock_hz = 1e3 * attribute_or_0(cudaDevAttrMemoryClockRate, ordinal),
                      .bus = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID,
                                         properties.pciDeviceID),
                      .bfloat16 = properties.major >= 8};
    std::size_t free = 0;
    std::size_t all = 0;
    SLUICE_CUDA_CHECK(cudaSetDevice(ordinal));
    SLUICE_CUDA_CHECK(cudaMemGetInfo(&free, &all));
    facts.free_bytes = static_cast<std::int64_t>(free);
    try {
      facts.most_partitions = most_green_contexts(ordinal);
    } catch (const std::exception& error) {
      facts.why_no_partitions = error.what();
    }
    return facts;
  }
};

}  // namespace

const DeviceProvider* device_provider() {
  static const CudaDevices provider;
  return &provider;
}

}  // namespace sluice::exec

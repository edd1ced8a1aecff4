#include "exec/device/green_contexts.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "kernels/cuda/check.h"
#include "model/errors.h"

namespace sluice::exec {

#if CUDA_VERSION >= 12050

namespace {

// The driver is not linked: the program has to start without it.
struct Driver {
  PFN_cuGetErrorString_v6000 error_text;
  PFN_cuDeviceGet_v2000 device_get;
  PFN_cuDeviceGetDevResource_v12040 device_resource;
  PFN_cuDevSmResourceSplitByCount_v12040 split;
  PFN_cuDevResourceGenerateDesc_v12040 describe;
  PFN_cuGreenCtxCreate_v12040 create;
  PFN_cuGreenCtxDestroy_v12040 destroy;
  PFN_cuGreenCtxStreamCreate_v12050 stream_create;
};

template <class Function>
void find(Function& function, const char* symbol, unsigned version) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(symbol, &address, version, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || address == nullptr) {
    (void)cudaGetLastError();
    throw DeviceError(
        fmt::format("the driver has no {}: green contexts need the driver of CUDA 12.5 or later", symbol));
  }
  function = reinterpret_cast<Function>(address);
}

const Driver& driver() {
  static const Driver table = [] {
    Driver found{};
    find(found.error_text, "cuGetErrorString", 6000);
    find(found.device_get, "cuDeviceGet", 2000);
    find(found.device_resource, "cuDeviceGetDevResource", 12040);
    find(found.split, "cuDevSmResourceSplitByCount", 12040);
    find(found.describe, "cuDevResourceGenerateDesc", 12040);
    find(found.create, "cuGreenCtxCreate", 12040);
    find(found.destroy, "cuGreenCtxDestroy", 12040);
    find(found.stream_create, "cuGreenCtxStreamCreate", 12050);
    return found;
  }();
  return table;
}

void check(CUresult result, const char* call, int ordinal) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (driver().error_text(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  throw DeviceError(fmt::format("{} on GPU {}: {}", call, ordinal, text));
}

// Minimum size of a partition that keeps the thread blocks of a cluster together, and the unit of sizes (documentation
// of the driver, 12.x: by architecture; 13 reports both).
struct Granularity {
  unsigned least;
  unsigned step;
};

Granularity granularity_of(const CUdevResource& whole, int ordinal) {
#if CUDA_VERSION >= 13000
  (void)ordinal;
  if (whole.sm.minSmPartitionSize > 0 && whole.sm.smCoscheduledAlignment > 0) {
    return {whole.sm.minSmPartitionSize, whole.sm.smCoscheduledAlignment};
  }
  return {8, 8};
#else
  (void)whole;
  int major = 0;
  SLUICE_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
  if (major >= 9) return {8, 8};
  return major == 8 ? Granularity{4, 2} : Granularity{2, 2};
#endif
}

CUdevResource all_multiprocessors(int ordinal, CUdevice& device) {
  // Creates the primary context, which green contexts belong to.
  SLUICE_CUDA_CHECK(cudaSetDevice(ordinal));
  SLUICE_CUDA_CHECK(cudaFree(nullptr));
  check(driver().device_get(&device, ordinal), "cuDeviceGet", ordinal);
  CUdevResource whole{};
  check(driver().device_resource(device, &whole, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource", ordinal);
  return whole;
}

// Returns the number of partitions of at least `size` multiprocessors.
unsigned parts_of(const CUdevResource& whole, unsigned size) {
  unsigned groups = 0;
  return driver().split(nullptr, &groups, &whole, nullptr, 0, size) == CUDA_SUCCESS ? groups : 0;
}

}  // namespace

GreenPartition::GreenPartition(GreenPartition&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)),
      ordinal_(other.ordinal_),
      multiprocessors_(other.multiprocessors_) {}

GreenPartition::~GreenPartition() {
  if (context_ != nullptr) driver().destroy(context_);
}

CUstream_st* GreenPartition::make_stream(int priority) const {
  CUstream stream = nullptr;
  check(driver().stream_create(&stream, context_, CU_STREAM_NON_BLOCKING, priority), "cuGreenCtxStreamCreate",
        ordinal_);
  return stream;
}

std::vector<GreenPartition> split_in_green_contexts(int ordinal, int count) {
  CUdevice device = 0;
  const CUdevResource whole = all_multiprocessors(ordinal, device);
  const Granularity granularity = granularity_of(whole, ordinal);
  const auto wanted = static_cast<unsigned>(count);
  // A split may give fewer partitions than a division: some multiprocessors do not belong to a whole cluster.
  unsigned size = whole.sm.smCount / wanted / granularity.step * granularity.step;
  while (size >= granularity.least && parts_of(whole, size) < wanted) size -= granularity.step;
  if (size < granularity.least || size == 0) {
    throw InputError(fmt::format("devices: green:{}: the {} multiprocessors of GPU {} support at most {} partitions",
                                 count, whole.sm.smCount, ordinal, parts_of(whole, granularity.least)));
  }
  // In one call: partitions of separate calls overlap.
  std::vector<CUdevResource> parts(wanted);
  unsigned made = wanted;
  check(driver().split(parts.data(), &made, &whole, nullptr, 0, size), "cuDevSmResourceSplitByCount", ordinal);
  if (made < wanted) {
    throw DeviceError(
        fmt::format("cuDevSmResourceSplitByCount on GPU {0}: expected {2} partitions, got {1}", ordinal, made, count));
  }
  std::vector<GreenPartition> partitions;
  partitions.reserve(wanted);
  for (CUdevResource& part : parts) {
    CUdevResourceDesc description = nullptr;
    check(driver().describe(&description, &part, 1), "cuDevResourceGenerateDesc", ordinal);
    CUgreenCtx context = nullptr;
    check(driver().create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate", ordinal);
    partitions.emplace_back(context, ordinal, static_cast<int>(part.sm.smCount));
  }
  return partitions;
}

int most_green_contexts(int ordinal) {
  CUdevice device = 0;
  const CUdevResource whole = all_multiprocessors(ordinal, device);
  const unsigned most = parts_of(whole, granularity_of(whole, ordinal).least);
  if (most == 0) throw DeviceError(fmt::format("GPU {} cannot be split", ordinal));
  split_in_green_contexts(ordinal, static_cast<int>(most));  // check that they can be created
  return static_cast<int>(most);
}

#else

GreenPartition::GreenPartition(GreenPartition&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)),
      ordinal_(other.ordinal_),
      multiprocessors_(other.multiprocessors_) {}
GreenPartition::~GreenPartition() = default;
CUstream_st* GreenPartition::make_stream(int) const { return nullptr; }

std::vector<GreenPartition> split_in_green_contexts(int ordinal, int) {
  throw DeviceError(fmt::format("GPU {}: this build uses CUDA {}.{}, green contexts need 12.5 or later", ordinal,
                                CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10));
}

int most_green_contexts(int ordinal) { return static_cast<int>(split_in_green_contexts(ordinal, 1).size()); }

#endif

}  // namespace sluice::exec

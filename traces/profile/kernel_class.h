#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::traces {

// What a kernel of a GPU computes, by its name.
enum class GpuKernelClass : std::uint8_t { gemm, attention, elementwise, other, communication, copy };
inline constexpr int kNumKernelClasses = 6;
std::string_view name_of(GpuKernelClass kind);

constexpr bool is_compute(GpuKernelClass kind) { return kind <= GpuKernelClass::other; }

// The class of an event of PyTorch's profiler with this category (kernel, gpu_memcpy or gpu_memset) and name.
// Communication is what NCCL, RCCL, NVSHMEM, DeepEP and PyTorch's symmetric memory name. Elementwise includes
// reductions, normalizations, and Triton kernels without a name of another class.
GpuKernelClass kernel_class(std::string_view category, std::string_view name);

// The collective that a kernel name ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)") or the name in the args of an
// event ("_allgather_base") denotes: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce",
// "send", "receive", "send/receive", "dispatch", "combine", "barrier"; empty for others.
std::string_view collective_name(std::string_view name);

// The name without namespaces, template arguments, arguments and return type.
std::string short_kernel_name(std::string_view name);

}  // namespace sluice::traces

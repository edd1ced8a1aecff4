#pragma once

#include "kernels/cuda/lanes.h"
#include "kernels/device.h"

#ifdef __CUDACC__
#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"
#else
#include <span>
#include <typeinfo>

#include "kernels/emulation/device.h"
#endif

namespace sluice::kernels::cuda {

struct Grid {
  int blocks_x = 1;
  int blocks_y = 1;
  int blocks_z = 1;
  int threads = 1;
  int shared_bytes = 0;
};

#ifdef __CUDACC__

// Returns Kernel::kBlocks, the minimum number of resident blocks per multiprocessor, or 1 by default.
template <class Kernel>
constexpr int blocks_per_multiprocessor() {
  if constexpr (requires { Kernel::kBlocks; }) {
    return Kernel::kBlocks;
  } else {
    return 1;
  }
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, blocks_per_multiprocessor<Kernel>())
    run_kernel(const Kernel kernel) {
  kernel();
}

// Enqueues a kernel on a stream; see lanes.h. Throws DeviceError if the launch fails.
template <class Kernel>
void launch(Stream& stream, const Grid& grid, const Kernel& kernel) {
  static_assert(sizeof(Kernel) <= 4096);
  constexpr int kDefaultSharedBytes = 48 * 1024;
  if (grid.shared_bytes > kDefaultSharedBytes) {
    SLUICE_CUDA_CHECK(
        cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes));
  }
  const dim3 blocks(static_cast<unsigned>(grid.blocks_x), static_cast<unsigned>(grid.blocks_y),
                    static_cast<unsigned>(grid.blocks_z));
  run_kernel<Kernel><<<blocks, static_cast<unsigned>(grid.threads), static_cast<unsigned>(grid.shared_bytes),
                       static_cast<cudaStream_t>(stream.native())>>>(kernel);
  SLUICE_CUDA_CHECK(cudaGetLastError());
  stream.launched();
}

#else

template <class Kernel>
void launch(Stream& stream, const Grid& grid, const Kernel& kernel) {
  static_assert(sizeof(Kernel) <= 4096);
  if (grid.threads > Kernel::kThreads)
    throw std::logic_error("the grid has more threads per block than the kernel allows");
  const auto run = [grid, kernel] {
    emulation::run_grid({grid.blocks_x, grid.blocks_y, grid.blocks_z}, grid.threads, grid.shared_bytes,
                        [&kernel] { kernel(); });
  };
  emulation::launch(stream, run, std::as_bytes(std::span(&kernel, 1)), typeid(Kernel).name());
}

#endif

}  // namespace sluice::kernels::cuda

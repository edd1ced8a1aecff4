#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"

struct CUgreenCtx_st;
struct CUstream_st;

namespace sluice::exec {

// A set of multiprocessors of one GPU, disjoint from the other sets created with it. Its streams run only there.
// Everything else (memory, events, cuBLAS) belongs to the primary context of the GPU, which stays current: a green
// context may be current to one thread at a time, and work runs where its stream is.
class GreenPartition {
 public:
  GreenPartition(CUgreenCtx_st* context, int ordinal, int multiprocessors)
      : context_(context), ordinal_(ordinal), multiprocessors_(multiprocessors) {}
  ~GreenPartition();
  GreenPartition(GreenPartition&& other) noexcept;
  GreenPartition& operator=(GreenPartition&&) = delete;
  GreenPartition(const GreenPartition&) = delete;
  GreenPartition& operator=(const GreenPartition&) = delete;

  int multiprocessors() const { return multiprocessors_; }
  // Lower numbers have higher priority. Throws DeviceError. Destroyed by cudaStreamDestroy, before the partition.
  CUstream_st* make_stream(int priority) const;

 private:
  CUgreenCtx_st* context_;
  int ordinal_;
  int multiprocessors_;
};

// Splits a GPU into `count` partitions with the largest equal number of multiprocessors. Throws InputError if the GPU
// has too few, DeviceError if the driver does not support green contexts.
std::vector<GreenPartition> split_in_green_contexts(int ordinal, int count);

// Returns the number of partitions of minimum size that the GPU supports. Throws DeviceError if it supports none.
int most_green_contexts(int ordinal);

// Opens a GPU, or a partition of one; see Device. GEMMs of all streams share one workspace: those of one stream run
// after those of another. Throws DeviceError, also if cuBLAS is not found.
std::unique_ptr<Device> make_cuda_device(int ordinal, std::string name, std::optional<GreenPartition> partition);

}  // namespace sluice::exec

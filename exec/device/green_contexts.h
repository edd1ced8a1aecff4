#pragma once

#include <string>
#include <vector>

#include "model/namespaces.h"

struct CUgreenCtx_st;
struct CUstream_st;

namespace sluice::exec {

// A set of multiprocessors of one GPU, disjoint from the others that were made with it. Its streams run there and
// nowhere else. All else (memory, events, cuBLAS) belongs to the GPU's primary context, which stays the current one: a
// green context may be current to one thread at a time, and work is where its stream is.
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
  // Lower numbers go first. Throws DeviceError. To be destroyed by cudaStreamDestroy, before the partition.
  CUstream_st* make_stream(int priority) const;

 private:
  CUgreenCtx_st* context_;
  int ordinal_;
  int multiprocessors_;
};

// As many multiprocessors in each as `count` equal parts can have. Throws InputError if the GPU has too few;
// DeviceError if the driver does not know green contexts.
std::vector<GreenPartition> split_in_green_contexts(int ordinal, int count);

// How many parts of the least size the GPU can be split into. Throws DeviceError if it cannot.
int most_green_contexts(int ordinal);

}  // namespace sluice::exec

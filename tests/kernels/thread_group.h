#pragma once

#include <algorithm>
#include <barrier>
#include <vector>

#include "kernels/collective.h"

namespace sluice::test {

// State that the members of a group of threads share.
struct ThreadGroupBoard {
  explicit ThreadGroupBoard(int size) : barrier(size), data(static_cast<std::size_t>(size)) {}
  std::barrier<> barrier;
  std::vector<void*> data;
};

// One member. Each member reduces copies of all contributions in the order of the ranks.
class ThreadGroup final : public TensorGroup {
 public:
  ThreadGroup(ThreadGroupBoard& board, int rank) : board_(board), rank_(rank) {}
  int size() const override { return static_cast<int>(board_.data.size()); }
  int rank() const override { return rank_; }
  void all_reduce_sum(float* data, std::int64_t count) override {
    combine(data, count, [](float a, float b) { return a + b; });
  }
  void all_reduce_sum(double* data, std::int64_t count) override {
    combine(data, count, [](double a, double b) { return a + b; });
  }
  void all_reduce_max(float* data, std::int64_t count) override {
    combine(data, count, [](float a, float b) { return std::max(a, b); });
  }
  void all_reduce_max(double* data, std::int64_t count) override {
    combine(data, count, [](double a, double b) { return std::max(a, b); });
  }

 private:
  template <class T, class Combine>
  void combine(T* data, std::int64_t count, const Combine& combined) {
    board_.data[rank_] = data;
    board_.barrier.arrive_and_wait();
    const T* const first = static_cast<const T*>(board_.data.front());
    std::vector<T> result(first, first + count);
    for (std::size_t rank = 1; rank < board_.data.size(); ++rank) {
      const T* const other = static_cast<const T*>(board_.data[rank]);
      for (std::size_t i = 0; i < result.size(); ++i) result[i] = combined(result[i], other[i]);
    }
    board_.barrier.arrive_and_wait();
    std::copy(result.begin(), result.end(), data);
  }

  ThreadGroupBoard& board_;
  int rank_;
};

}  // namespace sluice::test

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/errors.h"
#include "model/slicing/terapipe.h"

namespace sluice::model {

using Nanoseconds = std::int64_t;

// Larger than every sum that matters. Two of them can be added.
template <typename T>
constexpr T kFarTime = sizeof(T) == 4 ? static_cast<T>((1 << 30) - 1) : static_cast<T>(std::int64_t{1} << 53);

// The times of all slices that an optimum could have. A slice of c = f + x makes any plan that contains it take at
// least K c, so slices above the latency of a known plan are omitted: what remains of the triangle of all slices is the
// shorter ones. T is a 32-bit integer if the known plan takes less than 2^30 ns, and otherwise a double, which is exact
// below 2^53 and whose minimum, unlike that of 64-bit integers, is vectorized on every processor.
template <typename T>
class SliceWindow {
 public:
  SliceWindow(const SlicingProblem& problem, Nanoseconds longest) : granules_(problem.forward.granules()) {
    rows_.resize(granules_);
    for (std::int64_t begin = 0; begin < granules_; ++begin) add_row(problem, begin, longest);
  }

  struct Row {
    const T* both = nullptr;     // f + x, of 1, 2, ... granules
    const T* forward = nullptr;  // f; the same as `both` without a backward
    std::int64_t size = 0;
  };
  const Row& row(std::int64_t begin) const { return rows_[begin]; }
  std::int64_t granules() const { return granules_; }
  bool grows() const { return grows_; }  // f and x, both, in every row

  // Removes the longer slices at the end of every row.
  void shorten(Nanoseconds longest) {
    for (Row& row : rows_) {
      while (row.size > 0 && row.both[row.size - 1] > static_cast<T>(longest)) --row.size;
    }
  }

 private:
  static constexpr std::int64_t kBlock = std::int64_t{1} << 18;
  static constexpr std::int64_t kMostSlices = std::int64_t{1} << 29;

  void add_row(const SlicingProblem& problem, std::int64_t begin, Nanoseconds longest) {
    const std::int64_t all = granules_ - begin;
    const bool known = problem.forward.grows && (!problem.backward || problem.backward->grows);
    const std::int64_t context = begin * problem.forward.granularity;
    // Reads, of rows that are known to increase, some more entries than the last row had, until they exceed what
    // matters.
    std::int64_t read = known ? std::min(all, begin == 0 ? 64 : row(begin - 1).size + 8) : all;
    while (true) {
      read_row(problem.forward, context, read, forward_);
      if (problem.backward) read_row(*problem.backward, context, read, backward_);
      if (!known || read == all || sum_at(problem, read - 1) > longest) break;
      read = std::min(all, 2 * read);
    }
    std::int64_t size = read;
    while (size > 0 && sum_at(problem, size - 1) > longest) --size;
    store(problem, begin, size, longest);
  }

  static void read_row(const SliceTimes& times, std::int64_t context, std::int64_t size, std::vector<Duration>& out) {
    out.resize(size);
    times.row(context, out);
  }

  Nanoseconds sum_at(const SlicingProblem& problem, std::int64_t n) const {
    const auto at = static_cast<std::size_t>(n);
    return forward_[at].count() + (problem.backward ? backward_[at].count() : 0);
  }

  void store(const SlicingProblem& problem, std::int64_t begin, std::int64_t size, Nanoseconds longest) {
    entries_ += size;
    if (entries_ > kMostSlices) {
      throw InputError(
          fmt::format("{} tokens at granularity {} have more than 2^29 slices that could be in the best cut: "
                      "expected a coarser granularity",
                      problem.forward.tokens, problem.forward.granularity));
    }
    Row& row = rows_[begin];
    row.size = size;
    T* both = place(size);
    T* forward = problem.backward ? place(size) : both;
    row.both = both;
    row.forward = forward;
    for (std::int64_t n = 0; n < size; ++n) {
      // A longer slice between shorter ones, where times do not increase: excluded from any minimum.
      const Nanoseconds sum = sum_at(problem, n);
      forward[n] = static_cast<T>(std::min(forward_[n].count(), longest));
      both[n] = sum > longest ? kFarTime<T> : static_cast<T>(sum);
    }
    for (std::int64_t n = 1; n < size && grows_; ++n) {
      grows_ =
          forward[n] >= forward[n - 1] && both[n] - forward[n] >= both[n - 1] - forward[n - 1] && both[n] < kFarTime<T>;
    }
  }

  // Memory for `size` more entries, at a stable address.
  T* place(std::int64_t size) {
    if (size > left_) {
      left_ = std::max(size, kBlock);
      blocks_.push_back(std::unique_ptr<T[]>(new T[left_]));
      free_ = blocks_.back().get();
    }
    T* out = free_;
    free_ += size;
    left_ -= size;
    return out;
  }

  std::int64_t granules_;
  std::vector<Row> rows_;
  bool grows_ = true;
  std::vector<std::unique_ptr<T[]>> blocks_;
  T* free_ = nullptr;
  std::int64_t left_ = 0;
  std::int64_t entries_ = 0;
  std::vector<Duration> forward_, backward_;
};

}  // namespace sluice::model

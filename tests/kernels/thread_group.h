#pragma once

#include <algorithm>
#include <barrier>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <stdexcept>
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

// Messages between the members of a group of threads, by sender and receiver.
struct ThreadMail {
  explicit ThreadMail(int members) : size(members), boxes(static_cast<std::size_t>(members * members)) {}
  struct Letter {
    const std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };
  int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Letter>> boxes;
};

// One member. Receives are completed by `finish`, which returns when its own letters have been read.
class ThreadExpertGroup final : public ExpertGroup {
 public:
  ThreadExpertGroup(ThreadMail& mail, int rank) : mail_(mail), rank_(rank) {}
  int size() const override { return mail_.size; }
  int rank() const override { return rank_; }
  void send(int rank, const std::byte* data, std::int64_t bytes) override {
    const std::lock_guard lock(mail_.mutex);
    box(rank_, rank).push_back({data, bytes});
    mail_.changed.notify_all();
  }
  void receive(int rank, std::byte* data, std::int64_t bytes) override { expected_.push_back({rank, data, bytes}); }
  void finish() override {
    std::unique_lock lock(mail_.mutex);
    for (const Expected& message : expected_) {
      auto& letters = box(message.rank, rank_);
      mail_.changed.wait(lock, [&] { return !letters.empty(); });
      if (letters.front().bytes != message.bytes) throw std::logic_error("a send and its receive differ in size");
      std::copy_n(letters.front().data, message.bytes, message.data);
      letters.pop_front();
      mail_.changed.notify_all();
    }
    expected_.clear();
    mail_.changed.wait(lock, [&] {
      for (int to = 0; to < mail_.size; ++to) {
        if (!box(rank_, to).empty()) return false;
      }
      return true;
    });
  }

 private:
  struct Expected {
    int rank = 0;
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };
  std::deque<ThreadMail::Letter>& box(int from, int to) { return mail_.boxes[from * mail_.size + to]; }

  ThreadMail& mail_;
  int rank_;
  std::vector<Expected> expected_;
};

}  // namespace sluice::test

#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/part_log.h"
#include "kernels/stage.h"

namespace sluice::exec {

// The communication lane of a worker: a thread that runs the dispatch and combine parts of a woven block one after
// another, in the order in which they are started, while the thread of the worker computes. All ranks of an expert
// group run the same blocks in the same weave, and so start the same exchanges in the same order: an exchange waits
// only for earlier ones of its lane and for computations that do not wait for later ones. Does not allocate after
// construction.
class ExchangeLane {
 public:
  struct Exchange {
    const Stage* stage = nullptr;
    const SliceCall* call = nullptr;  // unchanged until the exchange is done
    StagePart part;
    int layer = 0;  // as PartTime::layer
  };

  // A block has at most `most` exchanges.
  explicit ExchangeLane(std::size_t most);
  // Precondition: no exchange is under way.
  ~ExchangeLane();
  ExchangeLane(const ExchangeLane&) = delete;
  ExchangeLane& operator=(const ExchangeLane&) = delete;

  // Begins a block: exchanges are numbered from 0. Precondition: those of the previous block are done.
  void begin_block();
  // Enqueues the next exchange and returns.
  void start(const Exchange& exchange);
  // Returns whether exchange `number` is done.
  bool is_done(int number) const;
  // Waits for it. Throws what an exchange of the block has thrown.
  void wait(int number);
  // Waits until no exchange is under way, without an exception. Exchanges that have not begun are dropped.
  void abandon();
  // When the exchanges of the block ran. Precondition: they are done.
  std::span<const PartTime> times() const { return times_; }

 private:
  void loop();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Exchange> exchanges_;  // of the block
  std::vector<PartTime> times_;
  std::size_t done_ = 0;  // of `exchanges_`
  std::exception_ptr error_;
  bool dropping_ = false;
  bool leaving_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace sluice::exec

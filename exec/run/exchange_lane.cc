#include "exec/run/exchange_lane.h"

#include "exec/steady_clock.h"

namespace sluice::exec {

ExchangeLane::ExchangeLane(std::size_t most) {
  exchanges_.reserve(most);
  times_.reserve(most);
  thread_ = std::thread([this] { loop(); });
}

ExchangeLane::~ExchangeLane() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ExchangeLane::begin_block() {
  const std::lock_guard lock(mutex_);
  exchanges_.clear();
  times_.clear();
  done_ = 0;
}

void ExchangeLane::start(const Exchange& exchange) {
  {
    const std::lock_guard lock(mutex_);
    exchanges_.push_back(exchange);
  }
  changed_.notify_all();
}

bool ExchangeLane::is_done(int number) const {
  const std::lock_guard lock(mutex_);
  return done_ > static_cast<std::size_t>(number);
}

void ExchangeLane::wait(int number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ > static_cast<std::size_t>(number); });
  if (error_) std::rethrow_exception(error_);
}

void ExchangeLane::abandon() {
  std::unique_lock lock(mutex_);
  dropping_ = true;
  changed_.wait(lock, [&] { return done_ == exchanges_.size(); });
}

void ExchangeLane::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return leaving_ || done_ < exchanges_.size(); });
    if (done_ == exchanges_.size()) return;
    const Exchange next = exchanges_[done_];
    const bool runs = !error_ && !dropping_;
    lock.unlock();
    PartTime time{.part = next.part.part, .pass = next.part.pass, .layer = next.layer, .start_ns = now_ns()};
    std::exception_ptr error;
    try {
      if (runs) next.stage->run_part(*next.call, next.part);
    } catch (...) {
      error = std::current_exception();
    }
    time.end_ns = now_ns();
    lock.lock();
    times_.push_back(time);
    if (error) error_ = error;
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace sluice::exec

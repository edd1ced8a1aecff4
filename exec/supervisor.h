#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "exec/recorder.h"
#include "exec/training_run.h"
#include "exec/watchdog.h"

namespace sluice::exec {

// What the workers of one process share besides messages: their recorders, the watchdog, and who failed first.
class Supervisor {
 public:
  // `owners` of all workers by world rank, of which those of this process are `here`. `stop` ends all waiting of the
  // workers here; `stop_asked` is set by an interrupt.
  Supervisor(const RunPlan& plan, const TrainingOptions& options, std::vector<RecorderOwner> owners,
             const std::vector<int>& here, std::function<void()> stop);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  Recorder* recorder(int world_rank);
  // To be called once all recorders of the run are there: the watchdog begins.
  void watch();
  // What a worker took for its vertices in the run of the graph that it has ended: what is expected of the next.
  void expect(const Worker& worker);
  bool stop_asked() const { return stop_asked_.load(); }

  // A worker has ended because of `error`: the first one is the run's. Others are told.
  void fail(std::exception_ptr error);
  // All workers of this process have ended. Throws the run's failure, if there was one.
  void end();

 private:
  void alarm(const Alarm& alarm);

  const RunPlan& plan_;
  const Supervision& supervision_;
  std::vector<RecorderOwner> owners_;
  std::function<void()> stop_;
  std::vector<std::unique_ptr<Recorder>> recorders_;  // by world rank; null where they are not here
  std::vector<std::atomic<std::int64_t>> expected_;   // by vertex, ns
  std::atomic<bool> stop_asked_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
  bool ended_ = false;
  std::unique_ptr<Watchdog> watchdog_;  // last: its thread uses all of the above
};

// "rank 3": what failures and reports call a worker.
std::vector<RecorderOwner> owners_of(const RunLayout& layout, std::int64_t process, const std::string& host);

}  // namespace sluice::exec

#include "sim/engine/parallel.h"

#if defined(SLUICE_HAVE_TBB)
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#elif !defined(SLUICE_NO_THREADS)
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>
#endif

namespace sluice::sim {

#if defined(SLUICE_HAVE_TBB)

void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  // One index per task: each is a simulation.
  tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, count, 1), [&](const tbb::blocked_range<std::int64_t>& range) {
    for (std::int64_t i = range.begin(); i != range.end(); ++i) body(i);
  });
}

int num_threads() { return tbb::this_task_arena::max_concurrency(); }

#elif defined(SLUICE_NO_THREADS)

int num_threads() { return 1; }

void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

#else

int num_threads() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  // A loop inside another one runs on the thread that reaches it: the outer loop already uses all cores.
  thread_local bool inside = false;
  const std::int64_t threads_used = inside ? 1 : std::min<std::int64_t>(count, num_threads());
  if (threads_used <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::once_flag failed;
  std::exception_ptr error;
  const auto work = [&] {
    inside = true;
    try {
      for (std::int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      next = count;
      std::call_once(failed, [&] { error = std::current_exception(); });
    }
    inside = false;
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(threads_used) - 1);
    for (std::int64_t i = 1; i < threads_used; ++i) threads.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

#endif

}  // namespace sluice::sim

#include "exec/transport/on_threads.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "exec/transport/threads.h"

namespace sluice::exec {

void on_threads(int workers, const std::function<void(Transport&)>& work) {
  ThreadFabric fabric(workers);
  std::mutex mutex;
  std::exception_ptr failure;
  const auto body = [&](int rank) {
    try {
      work(fabric.worker(rank));
    } catch (const Stopped&) {  // another worker has failed
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      fabric.worker(rank).stop();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < workers; ++rank) threads.emplace_back(body, rank);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sluice::exec

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "exec/transport/transport.h"

namespace sluice::exec {

// Calls `work` on one thread per worker, with its transport. If a worker fails, stops the others and throws its
// exception after all threads have ended.
void on_threads(int workers, const std::function<void(Transport&)>& work);

// Connects workers that are threads of one process: the later of the two ends of a message copies it. Stopping one
// worker stops all.
class ThreadFabric {
 public:
  explicit ThreadFabric(int workers);
  ~ThreadFabric();
  ThreadFabric(const ThreadFabric&) = delete;
  ThreadFabric& operator=(const ThreadFabric&) = delete;

  Transport& worker(int rank);

 private:
  struct Shared;
  class Worker;
  std::unique_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace sluice::exec

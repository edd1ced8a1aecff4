#include "exec/plan/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "model/errors.h"
#include "model/timeline/memory.h"

namespace sluice::exec {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

std::int64_t number_in_file(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = kNoLimit;
  if (!(file >> value)) return kNoLimit;
  return value;
}

std::int64_t available_of_meminfo() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  std::string rest;
  while (file >> key >> kib && std::getline(file, rest)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kNoLimit;
}

}  // namespace

std::int64_t available_memory_bytes() {
  std::int64_t available = available_of_meminfo();
  const std::int64_t limit = number_in_file("/sys/fs/cgroup/memory.max");
  const std::int64_t used = number_in_file("/sys/fs/cgroup/memory.current");
  if (limit != kNoLimit && used != kNoLimit) available = std::min(available, std::max<std::int64_t>(0, limit - used));
  return available;
}

void check_memory(const RunPlan& plan, std::span<const int> workers_here, std::int64_t available_bytes) {
  double needed = 0;
  int workers = 0;
  std::size_t most = 0;
  // Which replicas are here is not known: all count as the largest one.
  const auto largest = [&](std::size_t rank) -> const ArenaPlan& {
    const ArenaPlan* out = &plan.arena(static_cast<int>(rank));
    for (int replica = 1; replica < plan.layout().data; ++replica) {
      const ArenaPlan& other = plan.of_replica(replica).arena(static_cast<int>(rank));
      if (other.total_bytes > out->total_bytes) out = &other;
    }
    return *out;
  };
  for (std::size_t rank = 0; rank < workers_here.size(); ++rank) {
    needed += static_cast<double>(largest(rank).total_bytes) * workers_here[rank];
    workers += workers_here[rank];
    if (largest(rank).total_bytes > largest(most).total_bytes) most = rank;
  }
  if (needed <= static_cast<double>(available_bytes)) return;
  const ArenaPlan& arena = largest(most);
  throw DoesNotFit(fmt::format(
      "{} workers on this host need {:.2f} GiB, but {:.2f} GiB are available; the largest is pipeline rank {} with "
      "{:.2f} GiB of weights, gradients, optimizer states and scratch and {:.2f} GiB of activations",
      workers, needed / kGiB, static_cast<double>(available_bytes) / kGiB, most,
      static_cast<double>(arena.standing_bytes) / kGiB,
      static_cast<double>(arena.total_bytes - arena.standing_bytes) / kGiB));
}

}  // namespace sluice::exec

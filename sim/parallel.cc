#include "sim/parallel.h"

#ifdef SLUICE_HAVE_TBB
#include <tbb/parallel_for.h>
#endif

namespace sluice::sim {

void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) {
#ifdef SLUICE_HAVE_TBB
  // One index a task: each is a simulation.
  tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, count, 1), [&](const tbb::blocked_range<std::int64_t>& range) {
    for (std::int64_t i = range.begin(); i != range.end(); ++i) body(i);
  });
#else
  for (std::int64_t i = 0; i < count; ++i) body(i);
#endif
}

}  // namespace sluice::sim

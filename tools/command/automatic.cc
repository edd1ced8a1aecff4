#include "tools/command/automatic.h"

#include <cstdint>

#include "tools/command/messages.h"

namespace sluice::tools {

PlannedSetup planned_with_progress(const Scenario& scenario, const std::atomic<bool>* stop) {
  // Counts tenths of a second, so that short searches show progress.
  Progress progress("searching, tenths of a second", static_cast<std::int64_t>(scenario.automatic.seconds * 10));
  return planned_setup(
      scenario, [&](double seconds, Duration /*best*/) { progress.done(static_cast<std::int64_t>(seconds * 10)); },
      stop);
}

}  // namespace sluice::tools

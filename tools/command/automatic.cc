#include "tools/command/automatic.h"

#include <cstdint>
#include <optional>

#include "tools/command/interrupt.h"
#include "tools/command/progress.h"

namespace sluice::tools {

PlannedSetup planned_with_progress(const Scenario& scenario) {
  // Counts tenths of a second, so that short searches show progress.
  Progress progress("searching, tenths of a second", static_cast<std::int64_t>(scenario.automatic.seconds * 10));
  std::optional<Interrupt> interrupt;
  if (scenario.schedule == kAutomatic) interrupt.emplace();
  return planned_setup(
      scenario, [&](double seconds, Duration /*best*/) { progress.done(static_cast<std::int64_t>(seconds * 10)); },
      interrupt ? interrupt->flag() : nullptr);
}

int interrupted_or(int exit_code, const PlannedSetup& planned) {
  const bool interrupted = planned.automatic && planned.automatic->ended_by == AutoEnd::interrupt;
  return interrupted ? Interrupt::exit_code() : exit_code;
}

}  // namespace sluice::tools

#include "tools/command/interrupt.h"

#include <csignal>
#include <optional>

#include "tools/command/automatic.h"
#include "tools/command/exit_codes.h"

namespace sluice::tools {
namespace {

std::atomic<bool> received{false};  // signal handlers can only reach globals
std::atomic<int> last_signal{SIGINT};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

extern "C" void note_interrupt(int signal) {
  last_signal = signal;
  received = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

Interrupt::Interrupt() {
  received = false;
  interrupted_ = std::signal(SIGINT, note_interrupt);
  terminated_ = std::signal(SIGTERM, note_interrupt);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, interrupted_);
  std::signal(SIGTERM, terminated_);
}

const std::atomic<bool>* Interrupt::flag() const { return &received; }

int Interrupt::exit_code() { return last_signal == SIGTERM ? kTerminated : kInterrupted; }

PlannedSetup planned_until_interrupted(const Scenario& scenario) {
  std::optional<Interrupt> interrupt;
  if (scenario.schedule == kAutomatic) interrupt.emplace();
  return planned_with_progress(scenario, interrupt ? interrupt->flag() : nullptr);
}

int interrupted_or(int exit_code, const PlannedSetup& planned) {
  const bool interrupted = planned.automatic && planned.automatic->ended_by == AutoEnd::interrupt;
  return interrupted ? Interrupt::exit_code() : exit_code;
}

}  // namespace sluice::tools

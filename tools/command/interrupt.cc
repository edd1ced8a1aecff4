#include "tools/command/interrupt.h"

#include <csignal>

namespace sluice::tools {
namespace {

std::atomic<bool> came_in{false};  // a signal handler reaches nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void note_interrupt(int signal) {
  came_in = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

Interrupt::Interrupt() {
  came_in = false;
  interrupted_ = std::signal(SIGINT, note_interrupt);
  terminated_ = std::signal(SIGTERM, note_interrupt);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, interrupted_);
  std::signal(SIGTERM, terminated_);
}

const std::atomic<bool>* Interrupt::flag() const { return &came_in; }

}  // namespace sluice::tools

#pragma once

#include <atomic>

#include "model/namespaces.h"

namespace sluice::tools {

// While it lives, an interrupt (SIGINT, SIGTERM) asks the work to stop instead of ending the process; a second one ends
// it. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>* flag() const;
  bool came() const { return *flag(); }

 private:
  void (*interrupted_)(int);
  void (*terminated_)(int);
};

}  // namespace sluice::tools

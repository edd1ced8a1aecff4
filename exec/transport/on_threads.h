#pragma once

#include <functional>

#include "exec/transport/transport.h"

namespace sluice::exec {

// Calls `work` on a thread for each of `workers`, with its transport. Throws what the first one threw that failed,
// after all have ended; the others are stopped.
void on_threads(int workers, const std::function<void(Transport&)>& work);

}  // namespace sluice::exec

#pragma once

#include <functional>

#include "exec/transport/transport.h"

namespace sluice::exec {

// Calls `work` on one thread per worker, with its transport. If a worker fails, stops the others and throws its
// exception after all threads have ended.
void on_threads(int workers, const std::function<void(Transport&)>& work);

}  // namespace sluice::exec

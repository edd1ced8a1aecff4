#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <functional>

#include "model/namespaces.h"

namespace sluice::python {

using namespace model;
using namespace sim;
using namespace imports;
using namespace traces;
using namespace tools;

// Each adds the classes and functions of one file to the extension.
void bind_scenario(nanobind::module_& module);
void bind_schedule(nanobind::module_& module);
void bind_result(nanobind::module_& module);
void bind_requests(nanobind::module_& module);
void bind_measured(nanobind::module_& module);

// Runs `work` on another thread, without Python's global lock, while this one watches for signals. After Ctrl-C, sets
// the flag that `work` gets, waits for its end and raises KeyboardInterrupt. Rethrows what `work` throws.
void interruptible(const std::function<void(const std::atomic<bool>& stop)>& work);

// Thrown by callbacks of a calculation that has no other way to stop.
struct Stopped {};

}  // namespace sluice::python

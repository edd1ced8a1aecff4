#include <chrono>
#include <exception>
#include <future>

#include "model/errors.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace sluice::python {

void interruptible(const std::function<void(const std::atomic<bool>& stop)>& work) {
  std::atomic<bool> stop = false;
  std::future<void> result;
  bool interrupted = false;
  {
    const nb::gil_scoped_release release;
    result = std::async(std::launch::async, [&] { work(stop); });
    while (result.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
      if (interrupted) continue;
      const nb::gil_scoped_acquire acquire;
      interrupted = PyErr_CheckSignals() != 0;
      stop = interrupted;
    }
  }
  if (interrupted) throw nb::python_error();
  result.get();
}

}  // namespace sluice::python

NB_MODULE(_core, module) {
  using namespace sluice;
  module.doc() = "The extension of the package sluice, which has the documented interface.";
  module.attr("version") = SLUICE_VERSION;
  nb::exception<model::InputError> input_error(module, "InputError", PyExc_ValueError);
  nb::exception<model::DoesNotFit>(module, "DoesNotFit", input_error.ptr());
  nb::exception<model::ScheduleError>(module, "ScheduleError", PyExc_ValueError);
  python::bind_scenario(module);
  python::bind_schedule(module);
  python::bind_result(module);
  python::bind_requests(module);
  python::bind_measured(module);
}

#include "tools/run/run_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/device.h"
#include "model/errors.h"
#include "tools/command/exit_codes.h"
#include "tools/command/messages.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"

namespace sluice::tools {
namespace {

int exit_code_of(FailureKind kind) {
  switch (kind) {
    case FailureKind::lost: return kWorkerLost;
    case FailureKind::stuck: return kRunStuck;
    case FailureKind::non_finite: return kNotFinite;
    case FailureKind::elsewhere: return kStoppedByAnother;
  }
  return kInternalError;
}

}  // namespace

void WatchFlags::add_to(CLI::App& command) {
  command
      .add_option("--recorder", recorders,
                  "Folder for the flight recorders, of this run only (default: a temporary folder)")
      ->type_name(kReadFile)
      ->group(kFailures);
  command
      .add_option("--deadline", deadline,
                  "Minimum time limit in seconds per op and for a suspended process, 0.01 to 1000000; the limit per op "
                  "is at least 20 times its previous time (default 30)")
      ->check(number_from(0.01, 1e6))
      ->group(kFailures);
  command
      .add_option("--start-timeout", start_timeout,
                  "Time limit in seconds for all processes of the launcher to start, 1 to 1000000 (default 600)")
      ->check(number_from(1, 1e6))
      ->group(kFailures);
}

RunWatch::RunWatch(const WatchFlags& flags, const RunPlace& place, const MpiRanks& ranks)
    : place_(place),
      recorders_(flags.recorders, place, ranks),
      deadline_(flags.deadline),
      start_timeout_(flags.start_timeout) {}

Supervision RunWatch::supervision() {
  Supervision out{.folder = recorders_.path()};
  out.limits.floor_ns = static_cast<std::int64_t>(deadline_ * 1e9);
  out.limits.start_ns = static_cast<std::int64_t>(start_timeout_ * 1e9);
  out.signals = true;
  out.end_now = [this](int signal, bool in_step) {
    recorders_.leave();
    if (in_step) print_message("a second signal: ended in the middle of a step");
    std::fflush(nullptr);
    std::_Exit(128 + signal);
  };
  out.give_up = [this](const RunFailure& failure) {
    print(failure);
    std::_Exit(exit_code_of(failure.kind()));
  };
  return out;
}

int RunWatch::run(const std::function<void()>& work, const std::function<void()>& after_failure) {
  try {
    work();
    return kDone;
  } catch (const RunFailure& failure) {
    if (after_failure) after_failure();
    return report(failure, exit_code_of(failure.kind()));
  } catch (const DeviceError& failure) {
    return report(failure, kInternalError);
  }
}

void RunWatch::end_alone(const std::exception& failure) const {
  print_message(fmt::format("rank {}: {}", place_.transport()->rank(), failure.what()));
  std::fflush(nullptr);
  std::_Exit(dynamic_cast<const InputError*>(&failure) != nullptr ? kWrongInput : kInternalError);
}

int RunWatch::report(const std::exception& failure, int code) {
  print(failure);
  if (place_.processes()) std::_Exit(code);
  return code;
}

// Prints why the run failed in the last line, and keeps its flight recorders.
void RunWatch::print(const std::exception& failure) {
  if (recorders_.keep()) {
    print_message(
        fmt::format("the last events of each rank are in {0} (sluice run --post-mortem {0})", recorders_.path()));
  }
  print_message(failure.what());
  std::fflush(nullptr);
}

}  // namespace sluice::tools

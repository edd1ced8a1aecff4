#include <functional>

#include "model/graph/host_program.h"
#include "model/graph/lowering.h"
#include "model/schedule/pytorch_csv.h"
#include "model/schedule/schedule_file.h"
#include "model/schedule/with_communication.h"
#include "tests/fuzz/targets.h"

namespace sluice::test::fuzz {
namespace {

// Schedules that deadlock are rejected here.
void lower_in_full(const Schedule& schedule) {
  accepts([&] { lower(schedule); });
  accepts([&] {
    lower(schedule, {.data_parallel = 2,
                     .overlap_grad_reduce = true,
                     .gather_parameters = true,
                     .tied_embedding = true,
                     .global_norm = schedule.weight_policy() == WeightPolicy::flush,
                     .recompute = true});
  });
}

// Schedules may deadlock with their own communication, but not with communication where PyTorch places it.
void exchange_in_full(const Schedule& schedule) {
  accepts([&] {
    const bool own = schedule.has_communication();
    const Schedule communicating = own ? schedule : with_communication(schedule);
    for (const bool batched : {false, true}) {
      const HostProgram program = host_program(communicating, batched);
      for (const CommunicatorMapping& mapping : communicator_mappings()) {
        const CommunicatorVerdict verdict =
            check_communicators(program, {.communicator = mapping.communicator, .wait = HostWait::host});
        require(own || verdict.passes(), "communication as in PyTorch hangs: " + to_string(verdict.cycle));
      }
    }
  });
  accepts([&] { with_receives_just_in_time(schedule); });
  accepts([&] { with_merged_backwards(schedule); });
}

// Writing and reading must return the same schedule, and writing again the same text.
void require_round_trip(const Schedule& schedule, const std::function<std::string(const Schedule&)>& write,
                        const std::function<Schedule(std::string_view, const std::string&)>& read) {
  const std::string text = write(schedule);
  const Schedule back = read(text, "written");
  require(back.parts().orders == schedule.parts().orders, "ops changed in the round trip through " + text);
  require(back.parts().communication == schedule.parts().communication,
          "communication changed in the round trip through " + text);
  require(back.routes() == schedule.routes(), "the placement changed in the round trip through " + text);
  require(write(back) == text, "second output differs: " + text);
}

}  // namespace

void try_schedule_json(std::string_view text) {
  accepts([&] {
    const Schedule schedule = schedule_from_json(text, "input");
    try {
      require_round_trip(schedule, schedule_to_json, schedule_from_json);
    } catch (const InputError& error) {
      require(false, error.what());
    }
    lower_in_full(schedule);
    exchange_in_full(schedule);
  });
}

void try_schedule_csv(std::string_view text) {
  accepts([&] {
    const Schedule schedule = schedule_from_csv(text, "input");
    try {
      require_round_trip(
          schedule, [](const Schedule& written) { return schedule_to_csv(written, true); }, schedule_from_csv);
    } catch (const InputError& error) {
      require(false, error.what());
    }
    lower_in_full(schedule);
    exchange_in_full(schedule);
  });
}

}  // namespace sluice::test::fuzz

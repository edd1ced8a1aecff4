#include "model/scenario/setup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "model/batches/batch.h"
#include "model/errors.h"
#include "model/graph/host_program.h"
#include "model/input/files.h"
#include "model/scenario/automatic.h"
#include "model/scenario/schedule_sizes.h"
#include "model/schedule/encoder_stages.h"
#include "model/schedule/family.h"
#include "model/schedule/forward_only.h"
#include "model/schedule/pytorch_csv.h"
#include "model/schedule/schedule_file.h"
#include "model/slicing/balanced.h"

namespace sluice::model {
namespace {

constexpr const char* kMemoryLimit = "SLUICE_MEMORY_LIMIT";

void agree(const Scenario& scenario, const char* field, std::int64_t asked, std::int64_t has) {
  if (asked == 0 || asked == has) return;
  throw InputError(fmt::format("{}: {}: expected {}, as the schedule {} has it, got {}", scenario.source, field, has,
                               scenario.schedule, asked));
}

// Memory that a simulation may take: a quarter of the machine's, or what the environment says.
std::int64_t memory_limit() {
  const char* const given = std::getenv(kMemoryLimit);
  if (given != nullptr) return parse_bytes(given, kMemoryLimit);
#ifdef __EMSCRIPTEN__
  return std::numeric_limits<std::int64_t>::max();  // a live page has a limit of its own
#else
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE) / 4;
#endif
}

void check_memory(const Scenario& scenario, double ops) {
  constexpr double kBytesPerOp = 140;  // of schedule, graph, times and memory changes, as measured
  if (ops < 5e6 || ops > static_cast<double>(kMaxOps)) return;  // the latter is refused as such
  const double needed = ops * kBytesPerOp;
  const auto limit = static_cast<double>(memory_limit());
  if (needed <= limit) return;
  throw InputError(fmt::format(
      "{}: the schedule has {:.0f} million ops, which take about {:.1f} GiB of memory, more than the limit of "
      "{:.1f} GiB: reduce the number of microbatches, slices or chunks, or set {} (default: a quarter of "
      "the memory)",
      scenario.source, ops / 1e6, needed / 0x1p30, limit / 0x1p30, kMemoryLimit));
}

// Whether the schedule was written without a sequence length, so that its lengths are relative.
bool without_sizes(const Schedule& schedule) {
  const auto units = [](const MicrobatchShape& shape) {
    return shape.sequences == 1 && shape.tokens() == shape.num_slices();
  };
  return std::all_of(schedule.shapes().begin(), schedule.shapes().end(), units);
}

}  // namespace

void set_sizes(const Scenario& scenario, Schedule& schedule) {
  const std::int64_t sequence = scenario.training.sequence_length;
  if (sequence >= schedule.max_slices() && without_sizes(schedule)) {
    std::vector<MicrobatchShape> shapes(schedule.shapes().begin(), schedule.shapes().end());
    for (MicrobatchShape& shape : shapes) {
      const bool alike = shape.num_slices() == scenario.shape.num_slices();
      shape = {.sequences = scenario.shape.sequences,
               .slice_lengths = alike ? scenario.shape.slice_lengths : even_slices(sequence, shape.num_slices()),
               .forward_only = shape.forward_only};
    }
    schedule.resize(std::move(shapes));
  }
  for (const MicrobatchShape& shape : schedule.shapes()) {
    agree(scenario, "/batch/sequence_length", sequence, shape.tokens());
    if (scenario.shape.sequences > 1) agree(scenario, "/batch/micro_batch", scenario.shape.sequences, shape.sequences);
  }
}

Schedule parse_schedule(const Scenario& scenario, std::string_view text) {
  const bool csv = scenario.schedule.ends_with(".csv");
  Schedule schedule = csv ? schedule_from_csv(text, scenario.schedule) : schedule_from_json(text, scenario.schedule);
  agree(scenario, "/parallelism/pp", scenario.training.pp, schedule.num_ranks());
  agree(scenario, "/parallelism/vpp", scenario.chunks, schedule.num_chunks());
  agree(scenario, "/batch/microbatches", scenario.microbatches, schedule.num_microbatches());
  agree(scenario, "/schedule/batches", scenario.batches, schedule.num_batches());
  if (scenario.shape.num_slices() > 1)
    agree(scenario, "/schedule/slices", scenario.shape.num_slices(), schedule.max_slices());
  set_sizes(scenario, schedule);
  return schedule;
}

OpGraph lower_named(const Schedule& schedule, const LoweringOptions& options, const std::string& name) {
  try {
    return lower(schedule, options);
  } catch (const ScheduleError& error) {
    if (!names_file(name)) throw;
    throw ScheduleError(name + ": " + error.what());
  }
}

namespace {

Schedule of_equal_microbatches(const Scenario& scenario) {
  const bool apart = scenario.encoder.apart();
  if (names_file(scenario.schedule)) {
    if (!apart) return parse_schedule(scenario, read_file(scenario.schedule));
    throw InputError(fmt::format("{}: /parallelism/encoder_placement: the schedule {} has the placement of all stages",
                                 scenario.source, scenario.schedule));
  }
  const Family& family = find_family(scenario.schedule, scenario.source + ": /schedule/name");
  const FamilyParams params = family_params(scenario);
  check_memory(scenario, num_ops(family, params));
  return apart ? with_encoder(make_schedule(family, params), scenario.encoder) : make_schedule(family, params);
}

}  // namespace

Schedule make_schedule(const Scenario& scenario) {
  Schedule schedule = of_equal_microbatches(scenario);
  if (scenario.training.forward_only() && !schedule.forward_only()) {
    if (names_file(scenario.schedule)) {
      throw InputError(
          fmt::format("{}: /schedule/forward_only: the schedule {} has backwards", scenario.source, scenario.schedule));
    }
    schedule = without_backward(schedule);
  }
  if (!scenario.documents) return schedule;
  return with_microbatches(schedule, *scenario.documents, scenario.documents->replicas.front());
}

namespace {

// PyTorch's interleaved schedules have as many groups as there are whole multiples of p microbatches, at least one.
int group_of(const Scenario& scenario) {
  if (scenario.group > 0 || !scenario.training.torch_pipelining || scenario.schedule == kAutomatic) {
    return scenario.group;
  }
  const Family& family = find_family(scenario.schedule);
  if (!family.grouped || family.sliced || family.for_expert_parallelism) return 0;
  const int groups = std::max(1, scenario.microbatches / scenario.training.pp);
  return scenario.microbatches % groups == 0 ? scenario.microbatches / groups : 0;
}

}  // namespace

FamilyParams family_params(const Scenario& scenario) {
  if (scenario.training.pp == 0) {
    throw InputError(
        fmt::format("{}: /parallelism/pp: required: the number of pipeline ranks (--pp)", scenario.source));
  }
  const int own_ranks = scenario.encoder.own_ranks();
  if (own_ranks >= scenario.training.pp) {
    throw InputError(fmt::format("{}: /parallelism/pp: expected more than the encoder's {}, got {}", scenario.source,
                                 own_ranks, scenario.training.pp));
  }
  FamilyParams params{.ranks = scenario.training.pp - own_ranks,
                      .chunks = scenario.chunks,
                      .microbatches = scenario.microbatches,
                      .batches = scenario.batches,
                      .group = group_of(scenario),
                      .shape = scenario.shape};
  if (params.microbatches == 0) {
    throw InputError(
        fmt::format("{}: /batch: required: microbatches (--microbatches), or global_batch (--gbs)", scenario.source));
  }
  return params;
}

void report_out_of_memory(const Scenario& scenario) {
  constexpr double kManyOps = 1e6;
  const double ops = 2.0 * scenario.training.pp * std::max(1, scenario.chunks) * scenario.microbatches *
                     scenario.shape.num_slices() * std::max(1, scenario.batches);
  if (ops < kManyOps) return;
  throw InputError(
      fmt::format("{}: out of memory for a schedule of about {:.0f} million ops: reduce the number of microbatches, "
                  "slices or chunks",
                  scenario.source, ops / 1e6));
}

Setup::Setup(const Scenario& scenario) try : Setup(scenario, make_schedule(scenario)) {
} catch (const std::bad_alloc&) {
  report_out_of_memory(scenario);
  throw;
}

namespace {

Schedule with_queues(const Scenario& scenario, Schedule schedule) {
  if (!scenario.communicators || schedule.has_communication()) return schedule;
  if (schedule.frozen_stages() > 0) {
    throw InputError(scenario.source +
                     ": /parallelism/encoder_placement: a frozen encoder is not modeled with queues of communicators");
  }
  return with_receives(schedule, scenario.communicators->receives);
}

OpGraph lowered(const Schedule& schedule, const ScenarioCosts& costs) {
  const Scenario& scenario = costs.scenario();
  LoweringOptions options = costs.lowering_options(schedule.weight_policy());
  if (scenario.communicators) options.queues = &*scenario.communicators;
  return lower_named(schedule, options, scenario.schedule);
}

}  // namespace

Setup::Setup(const Scenario& scenario, Schedule schedule)
    : schedule_(with_queues(scenario, std::move(schedule))),
      costs_(scenario, schedule_),
      graph_(lowered(schedule_, costs_)) {}

Setup::Setup(const Scenario& scenario, Schedule part, int microbatches)
    : schedule_(std::move(part)), costs_(scenario, schedule_, microbatches), graph_(lowered(schedule_, costs_)) {}

}  // namespace sluice::model

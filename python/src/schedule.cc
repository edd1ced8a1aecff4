#include "model/schedule/schedule.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/graph/op_graph.h"
#include "model/input/printable.h"
#include "model/scenario/setup.h"
#include "model/schedule/op_text.h"
#include "model/schedule/pytorch_csv.h"
#include "model/schedule/schedule_file.h"
#include "model/schedule/with_communication.h"
#include "model/timeline/metrics.h"
#include "model/to_size.h"
#include "python/src/bindings.h"
#include "python/src/scenario.h"
#include "tools/command/document.h"
#include "tools/simulate/schedule_check.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sluice::python {
namespace {

// Kind, microbatch, stage, slice, and whether it forms a joint block with the next op.
using OpTuple = std::tuple<std::string, std::int32_t, std::int16_t, std::int16_t, bool>;

OpKind kind_of(const std::string& letter_of_kind) {
  const std::size_t kind = letter_of_kind.size() == 1 ? kOpLetters.find(letter_of_kind) : std::string_view::npos;
  if (kind != std::string_view::npos) return static_cast<OpKind>(kind);
  throw InputError(fmt::format("expected an op F, B, I, W, S or T, got '{}'", printable(letter_of_kind, true)));
}

// Checks that the ops are complete and that the schedule does not deadlock. Throws ScheduleError.
Schedule from_ops(const std::string& name, const std::vector<std::vector<OpTuple>>& orders, std::vector<int> placement,
                  int microbatches, int slices) {
  if (placement.empty()) throw InputError("expected at least one stage");
  if (slices < 1 || slices > kMaxSlices) {
    throw InputError(fmt::format("slices: expected 1 to {}, got {}", kMaxSlices, slices));
  }
  ScheduleParts parts;
  parts.family = "custom";
  parts.num_ranks = static_cast<int>(orders.size());
  parts.num_stages = static_cast<int>(placement.size());
  parts.num_microbatches = microbatches;
  parts.routes = {std::move(placement)};
  parts.shapes = {MicrobatchShape{.slice_lengths = std::vector<std::int64_t>(to_size(slices), 1)}};
  for (const auto& order : orders) {
    std::vector<Op>& ops = parts.orders.emplace_back();
    for (const auto& [kind, microbatch, stage, slice, joined] : order) {
      ops.push_back(
          {.microbatch = microbatch, .stage = stage, .slice = slice, .kind = kind_of(kind), .joined = joined});
    }
  }
  Schedule schedule(std::move(parts));
  static_cast<void>(lower_named(schedule, {}, name));
  return schedule;
}

std::vector<OpTuple> ops_of(const Schedule& schedule, int rank) {
  if (rank < 0 || rank >= schedule.num_ranks()) {
    throw InputError(fmt::format("rank: expected 0 to {}, got {}", schedule.num_ranks() - 1, rank));
  }
  std::vector<OpTuple> out;
  for (const Op& op : schedule.ops(rank)) {
    out.emplace_back(std::string(1, letter(op.kind)), op.microbatch, op.stage, op.slice, op.joined);
  }
  return out;
}

// The document of `schedule --check --json`; `communicators` and `wait` are the values of its flags.
std::string checks_of(const Schedule& schedule, const std::string& communicators, const std::string& wait) {
  static constexpr std::string_view kWaits[] = {"device", "stream", "host"};  // by HostWait
  CheckOptions options;
  const auto* const found = std::find(std::begin(kWaits), std::end(kWaits), wait);
  if (found == std::end(kWaits)) {
    throw InputError(fmt::format("wait: expected device, stream or host, got '{}'", printable(wait, true)));
  }
  options.wait = static_cast<HostWait>(found - std::begin(kWaits));
  if (!communicators.empty()) options.read(communicators);
  std::vector<ScheduleCheck> verdicts;
  check_further(schedule, schedule.family(), options, verdicts);
  return json_text(checks_document(verdicts));
}

}  // namespace

void bind_schedule(nb::module_& module) {
  nb::class_<Schedule>(module, "Schedule")
      .def_static("from_ops", &from_ops, "name"_a, "orders"_a, "placement"_a, "microbatches"_a, "slices"_a)
      .def_static(
          "of_scenario", [](const ScenarioDocument& scenario) { return make_schedule(scenario.read()); }, "scenario"_a)
      .def_static("from_csv", &schedule_from_csv, "text"_a, "source"_a)
      .def_static("from_json", &schedule_from_json, "text"_a, "source"_a)
      .def("csv", &schedule_to_csv, "communication"_a)
      .def("json", &schedule_to_json)
      .def("ops", &ops_of, "rank"_a)
      .def("with_communication", [](const Schedule& schedule) { return with_communication(schedule); })
      .def("with_merged_backwards", &with_merged_backwards)
      .def("checks", &checks_of, "communicators"_a, "wait"_a)
      .def("peak_in_flight", &peak_in_flight, "rank"_a)
      .def_prop_ro("family", &Schedule::family)
      .def_prop_ro("num_ranks", &Schedule::num_ranks)
      .def_prop_ro("num_stages", &Schedule::num_stages)
      .def_prop_ro("num_microbatches", &Schedule::num_microbatches)
      .def_prop_ro("num_batches", &Schedule::num_batches)
      .def_prop_ro("num_slices", &Schedule::max_slices)
      .def_prop_ro("slice_lengths", [](const Schedule& self) { return self.shape(0).slice_lengths; })
      .def_prop_ro("num_sequences", [](const Schedule& self) { return self.shape(0).sequences; })
      .def_prop_ro("num_ops", &Schedule::num_ops)
      .def_prop_ro("has_communication", &Schedule::has_communication)
      .def_prop_ro("split_backward", &Schedule::split_backward)
      .def_prop_ro("routes", [](const Schedule& self) { return self.routes(); });
}

}  // namespace sluice::python

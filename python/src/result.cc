#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <tuple>
#include <type_traits>
#include <utility>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/scenario/error_classes.h"
#include "model/scenario/schedule_sizes.h"
#include "model/schedule/family.h"
#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "model/to_size.h"
#include "python/src/bindings.h"
#include "python/src/scenario.h"
#include "sim/engine/fit_advice.h"
#include "sim/engine/predict.h"
#include "sim/planner/auto_setup.h"
#include "sim/planner/terapipe_cut.h"
#include "tools/command/assumptions.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/document.h"
#include "tools/simulate/simulation_output.h"
#include "tools/simulate/simulation_report.h"
#include "traces/chrome/chrome_trace.h"
#include "traces/figure/figure.h"
#include "traces/report/report.h"
#include "traces/rows/part_rows.h"
#include "traces/text/gantt.h"
#include "traces/text/op_table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sluice::python {
namespace {

// A prediction with everything that its graph refers to.
struct Simulated {
  PlannedSetup planned;
  Prediction prediction;
  std::string scenario;  // JSON

  const OpGraph& graph() const { return planned.setup->graph(); }
};

template <typename T>
using Array = nb::ndarray<nb::numpy, const T, nb::ndim<1>, nb::device::cpu>;
template <typename T>
using Table = nb::ndarray<nb::numpy, const T, nb::ndim<2>, nb::device::cpu>;

static_assert(sizeof(Duration) == sizeof(std::int64_t));
static_assert(sizeof(VertexKind) == 1 && sizeof(OpKind) == 1 && sizeof(LaneKind) == 1);

// A view of one integer field of the elements of `items`, which `owner` keeps alive.
template <typename T, typename Item, typename Field>
Array<T> view_of(std::span<const Item> items, Field Item::*field, nb::handle owner) {
  static_assert(sizeof(Field) == sizeof(T) && sizeof(Item) % sizeof(T) == 0);
  const void* const data = items.empty() ? nullptr : static_cast<const void*>(&(items[0].*field));
  return Array<T>(data, {items.size()}, owner, {static_cast<std::int64_t>(sizeof(Item) / sizeof(T))});
}

Array<std::int64_t> view_of(const std::vector<Duration>& times, nb::handle owner) {
  return Array<std::int64_t>(times.data(), {times.size()}, owner);
}

// An array that owns its elements.
template <typename T>
Array<T> owned(std::vector<T> values) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  const std::vector<T>& data = *kept;
  const nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array<T>(data.data(), {data.size()}, owner);
}

// Whether simulating a scenario with its schedule, or another one, takes long enough to be interrupted.
bool takes_long(const Scenario& scenario, const Schedule* schedule) {
  constexpr double kManyOps = 1e5;  // some tenths of a second
  if (schedule != nullptr) return static_cast<double>(schedule->num_ops()) > kManyOps;
  if (scenario.schedule == kAutomatic || names_file(scenario.schedule)) return true;
  return num_ops(find_family(scenario.schedule), family_params(scenario)) > kManyOps;
}

std::shared_ptr<Simulated> simulate(const ScenarioDocument& document, const Schedule* schedule, bool keep_memory) {
  auto out = std::make_shared<Simulated>();
  out->scenario = document.complete().dump();
  const Scenario scenario = document.read();
  const auto work = [&](const std::atomic<bool>* stop) {
    const auto stop_if_asked = [stop] {
      if (stop != nullptr && *stop) throw Stopped();
    };
    if (schedule != nullptr) {
      Schedule own = *schedule;
      set_sizes(scenario, own);
      if (scenario.documents) throw InputError("lengths: not supported with a schedule of your own");
      out->planned.setup = std::make_unique<Setup>(scenario, std::move(own));
    } else {
      out->planned = planned_setup(scenario, [&](double, Duration) { stop_if_asked(); });
    }
    stop_if_asked();
    out->prediction = predict(*out->planned.setup, {.keep_memory = keep_memory,
                                                    .trial_progress = [&](std::int64_t) { stop_if_asked(); },
                                                    .step_done = stop_if_asked});
    if (out->planned.batch) fit_all_replicas(scenario, *out->planned.batch, out->prediction);
  };
  // A thread for each of thousands of small simulations would take longer than they do.
  const bool long_running = scenario.perturbation.trials > 0 || takes_long(scenario, schedule);
  try {
    if (long_running) {
      interruptible([&](const std::atomic<bool>& stop) { work(&stop); });
    } else {
      const nb::gil_scoped_release release;
      work(nullptr);
    }
  } catch (const DoesNotFit& error) {
    throw DoesNotFit(document.naming(error.what()));
  } catch (const InputError& error) {
    throw InputError(document.naming(error.what()));
  }
  return out;
}

// Start, end, rank, the rank that is waited for, and cause of every idle interval.
auto idle_table(const Simulated& self) {
  const std::vector<IdleInterval> all = idle_intervals(self.graph(), self.prediction.timeline);
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> end;
  std::vector<std::int32_t> rank;
  std::vector<std::int32_t> from_rank;
  std::vector<std::uint8_t> cause;
  for (const IdleInterval& each : all) {
    start.push_back(each.start.count());
    end.push_back(each.end.count());
    rank.push_back(each.rank);
    from_rank.push_back(each.from_rank);
    cause.push_back(static_cast<std::uint8_t>(each.cause));
  }
  return std::make_tuple(owned(std::move(start)), owned(std::move(end)), owned(std::move(rank)),
                         owned(std::move(from_rank)), owned(std::move(cause)));
}

std::string json_of(const Simulated& self) {
  std::vector<Remedy> remedies;
  const Prediction& prediction = self.prediction;
  if (prediction.fit && !prediction.fit->fits && fit_advice_is_quick(*self.planned.setup)) {
    remedies = what_would_fit(*self.planned.setup);
  }
  const AutoResult* const automatic = self.planned.automatic ? &*self.planned.automatic : nullptr;
  OrderedJson results = simulation_json(*self.planned.setup, prediction, {}, {}, remedies, automatic);
  const nlohmann::json document = nlohmann::json::parse(self.scenario);
  add_assumptions(
      results, {self.planned.setup->scenario(), document, kSimulate, has_joint_blocks(self.planned.setup->schedule())});
  return json_text(std::move(results));
}

std::string report_of(const Simulated& self, bool embedded) {
  Report report = simulation_report(*self.planned.setup, self.prediction, self.scenario, {}, "");
  report.embedded = embedded;
  std::string out;
  write_report([&](std::string_view text) { out += text; }, report);
  return out;
}

std::string svg_of(const Simulated& self, double width, bool memory, bool transfers) {
  const DrawnRun run = drawn_run(*self.planned.setup, self.prediction);
  return svg_figure({&run, 1}, {.width = width, .transfers = transfers, .memory = memory});
}

std::string gantt_of(const Simulated& self, int width) {
  GanttOptions gantt;
  gantt.width = width;
  gantt.parts = part_rows(self.graph(), self.planned.setup->cost(), self.prediction.timeline);
  return text_gantt(self.graph(), self.prediction.timeline, self.prediction.metrics, gantt);
}

void write_trace(const Simulated& self, const std::string& path, bool idle) {
  const TraceOptions trace{.scenario = self.scenario,
                           .parts = part_rows(self.graph(), self.planned.setup->cost(), self.prediction.timeline),
                           .idle = idle};
  write_trace_file(path, self.graph(), self.prediction.timeline, self.prediction.memory, trace);
}

const RankMemory& memory_of(const Simulated& self, int rank) {
  if (rank < 0 || rank >= std::ssize(self.prediction.memory)) {
    throw InputError(fmt::format("rank: expected 0 to {}, got {}", self.prediction.memory.size() - 1, rank));
  }
  return self.prediction.memory[to_size(rank)];
}

// The times of the changes, and the bytes by class from each of them on.
auto memory_curve(nb::handle_t<Simulated> self, int rank) {
  static_assert(sizeof(MemorySample) == (1 + kNumMemoryClasses) * sizeof(std::int64_t));
  constexpr std::int64_t kRow = 1 + kNumMemoryClasses;
  const std::vector<MemorySample>& samples = memory_of(nb::cast<const Simulated&>(self), rank).samples;
  const std::span<const MemorySample> all(samples);
  const void* const bytes = samples.empty() ? nullptr : static_cast<const void*>(samples[0].bytes.data());
  return std::make_tuple(view_of<std::int64_t>(all, &MemorySample::time, self),
                         Table<std::int64_t>(bytes, {samples.size(), to_size(kNumMemoryClasses)}, self, {kRow, 1}));
}

// The bytes by class at each rank's peak.
std::vector<std::vector<std::int64_t>> memory_at_peak(const Simulated& self) {
  std::vector<std::vector<std::int64_t>> out;
  for (const RankMemory& rank : self.prediction.memory) out.emplace_back(rank.at_peak.begin(), rank.at_peak.end());
  return out;
}

std::optional<std::int64_t> needed_bytes(const Simulated& self) {
  if (!self.prediction.fit) return std::nullopt;
  return self.prediction.fit->needed_bytes;
}

// Seconds of one op, with the recomputation before a backward.
double op_s(const Simulated& self, const std::string& kind, int stage, int slice) {
  const Schedule& schedule = self.planned.setup->schedule();
  const MicrobatchShape& shape = schedule.shape(0);
  const auto check = [](int value, int count, const char* what) {
    if (value >= 0 && value < count) return;
    throw InputError(fmt::format("op: expected one of {} {}, counted from 0, got {}", count, what, value));
  };
  check(stage, schedule.num_stages(), "stages");
  check(slice, shape.num_slices(), "slices");
  if (kind != "F" && kind != "B") throw InputError("op: expected F or B, got '" + kind + "'");
  const CostModel& cost = self.planned.setup->cost();
  const double again = kind == "B" ? cost.recompute_s(stage, shape, slice) : 0;
  return again + cost.compute_s(kind == "F" ? OpKind::F : OpKind::B, stage, shape, slice);
}

// TeraPipe's slices for this pipeline's microbatches. Throws InputError.
std::vector<std::int64_t> terapipe_slices(const Simulated& self, std::int64_t granularity) {
  const nb::gil_scoped_release release;
  return terapipe_cut(*self.planned.setup, granularity);
}

// Bytes between ranks per iteration: each tensor- and context-parallel rank of each replica sends the same number.
double transfer_bytes(const Simulated& self) {
  const OpGraph& graph = self.graph();
  double bytes = 0;
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind == VertexKind::transfer) bytes += static_cast<double>(graph.transfer_bytes(graph[v]));
  }
  const Training& training = self.planned.setup->scenario().training;
  return bytes * training.tp * training.cp * training.dp / self.planned.setup->schedule().num_batches();
}

// What the names and defaults of the scenario resolve to.
nb::dict resolved(const Simulated& self) {
  const Scenario& scenario = self.planned.setup->scenario();
  const Training& training = scenario.training;
  nb::dict out;
  for (const auto& [key, value] :
       {std::pair("tp", training.tp), std::pair("cp", training.cp), std::pair("pp", training.pp),
        std::pair("dp", training.dp), std::pair("ep", training.ep), std::pair("etp", training.etp),
        std::pair("micro_batch", training.micro_batch), std::pair("microbatches", scenario.microbatches)}) {
    out[key] = value;
  }
  out["sequence_length"] = training.sequence_length;
  out["devices"] = training.world_size();
  nb::dict facts;
  for (const auto& [key, word] : run_facts(scenario)) facts[key.c_str()] = word;
  out["facts"] = facts;
  out["precision"] = std::string(traits_of(training.precision).name);
  if (scenario.model) {
    nb::dict model;
    model["layers"] = scenario.model->layers;
    model["hidden"] = scenario.model->hidden;
    model["experts"] = scenario.model->experts.count;
    model["padded_vocab"] = padded_vocab(*scenario.model, training.tp);
    model["parameters"] = parameters(*scenario.model);
    out["model"] = model;
  }
  if (scenario.cluster) {
    const Gpu& of = scenario.cluster->gpu;
    nb::dict gpu;
    gpu["name"] = of.name;
    gpu["memory_bytes"] = of.memory_bytes;
    gpu["reserved_bytes"] = of.reserved_bytes;
    gpu["workspace_bytes"] = of.workspace_bytes;
    out["gpu"] = gpu;
  }
  return out;
}

template <typename Get>
std::vector<double> by_rank(const Simulated& self, Get&& get) {
  std::vector<double> out;
  for (const RankMetrics& rank : self.prediction.metrics.ranks) out.push_back(get(rank));
  return out;
}

template <typename Field>
auto vertex_view(Field Vertex::*field) {
  using T = std::conditional_t<std::is_enum_v<Field>, std::uint8_t, Field>;
  return [field](nb::handle_t<Simulated> self) {
    return view_of<T>(nb::cast<const Simulated&>(self).graph().vertices(), field, self);
  };
}

}  // namespace

void bind_result(nb::module_& module) {
  nb::class_<Simulated>(module, "Simulated")
      .def_prop_ro("start",
                   [](nb::handle_t<Simulated> self) {
                     return view_of(nb::cast<const Simulated&>(self).prediction.timeline.start, self);
                   })
      .def_prop_ro("end",
                   [](nb::handle_t<Simulated> self) {
                     return view_of(nb::cast<const Simulated&>(self).prediction.timeline.end, self);
                   })
      .def_prop_ro("microbatch", vertex_view(&Vertex::microbatch))
      .def_prop_ro("stage", vertex_view(&Vertex::stage))
      .def_prop_ro("slice", vertex_view(&Vertex::slice))
      .def_prop_ro("op", vertex_view(&Vertex::op))
      .def_prop_ro("kind", vertex_view(&Vertex::kind))
      .def_prop_ro("lane", vertex_view(&Vertex::lane))
      .def_prop_ro("lane_rank",
                   [](nb::handle_t<Simulated> self) {
                     return view_of<std::int32_t>(nb::cast<const Simulated&>(self).graph().lanes(), &Lane::rank, self);
                   })
      .def("slack",
           [](const Simulated& self) {
             std::vector<std::int64_t> out;
             for (const Duration each : slack(self.graph(), self.prediction.timeline)) out.push_back(each.count());
             return owned(std::move(out));
           })
      .def_prop_ro("critical_path",
                   [](nb::handle_t<Simulated> self) {
                     const auto& path = nb::cast<const Simulated&>(self).prediction.critical_path.vertices;
                     return Array<VertexId>(path.data(), {path.size()}, self);
                   })
      .def(
          "name",
          [](const Simulated& self, VertexId vertex) {
            if (vertex >= self.graph().size()) throw nb::index_error("no such vertex");
            return self.graph().name(vertex);
          },
          "vertex"_a)
      .def("idle", &idle_table)
      .def_prop_ro("idle_by_cause",
                   [](nb::handle_t<Simulated> self) {
                     const auto& idle = nb::cast<const Simulated&>(self).prediction.idle;
                     static_assert(sizeof(IdleByCause) == kNumIdleCauses * sizeof(std::int64_t));
                     return Table<std::int64_t>(idle.data(), {idle.size(), to_size(kNumIdleCauses)}, self);
                   })
      .def("memory_curve", &memory_curve, "rank"_a)
      .def_prop_ro(
          "peak_bytes",
          [](const Simulated& self) {
            std::vector<std::int64_t> out;
            for (const RankMemory& rank : self.prediction.memory) out.push_back(rank.peak_bytes);
            return owned(std::move(out));
          },
          nb::rv_policy::move)
      .def_prop_ro("memory_at_peak", &memory_at_peak)
      .def_prop_ro("needed_bytes", &needed_bytes)
      .def_prop_ro("resolved", &resolved, nb::sig("def resolved(self) -> dict[str, typing.Any]"))
      .def_prop_ro("transfer_bytes", &transfer_bytes)
      .def("terapipe_slices", &terapipe_slices, "granularity"_a)
      .def("op_s", &op_s, "kind"_a, "stage"_a, "slice"_a)
      .def_prop_ro("has_bytes", [](const Simulated& self) { return self.graph().has_bytes(); })
      .def_prop_ro("iteration_s", [](const Simulated& self) { return self.prediction.iteration_s(); })
      .def_prop_ro("error_class",
                   [](const Simulated& self) {
                     const auto interval = interval_of(self.planned.setup->scenario(), self.prediction.iteration_s());
                     return interval ? interval_json(*interval).dump() : "null";
                   })
      .def_prop_ro("assumptions",
                   [](const Simulated& self) {
                     OrderedJson results;
                     const nlohmann::json document = nlohmann::json::parse(self.scenario);
                     add_assumptions(results, {self.planned.setup->scenario(), document, kSimulate,
                                               has_joint_blocks(self.planned.setup->schedule())});
                     return results.at("assumptions").dump();
                   })
      .def_prop_ro("makespan_s", [](const Simulated& self) { return to_seconds(self.prediction.metrics.makespan); })
      .def_prop_ro("period_s", [](const Simulated& self) { return to_seconds(self.prediction.period); })
      .def_prop_ro("span_s", [](const Simulated& self) { return to_seconds(self.prediction.metrics.span); })
      .def_prop_ro("bubble_fraction", [](const Simulated& self) { return self.prediction.metrics.bubble_fraction; })
      .def_prop_ro("bubble_over_ideal", [](const Simulated& self) { return self.prediction.metrics.bubble_over_ideal; })
      .def_prop_ro("tokens_per_s", [](const Simulated& self) { return self.prediction.throughput.tokens_per_s; })
      .def_prop_ro("model_tflops_per_device",
                   [](const Simulated& self) { return self.prediction.throughput.model_tflops_per_device; })
      .def_prop_ro("hardware_tflops_per_device",
                   [](const Simulated& self) { return self.prediction.throughput.hardware_tflops_per_device; })
      .def_prop_ro("mfu", [](const Simulated& self) { return self.prediction.throughput.mfu; })
      .def_prop_ro("fits",
                   [](const Simulated& self) -> std::optional<bool> {
                     if (!self.prediction.fit) return std::nullopt;
                     return self.prediction.fit->fits;
                   })
      .def_prop_ro("busy_s",
                   [](const Simulated& self) {
                     return by_rank(self, [](const RankMetrics& rank) { return to_seconds(rank.busy); });
                   })
      .def_prop_ro("peak_in_flight",
                   [](const Simulated& self) {
                     return by_rank(self, [](const RankMetrics& rank) { return rank.peak_in_flight; });
                   })
      .def_prop_ro("title", [](const Simulated& self) { return run_title(*self.planned.setup); })
      .def_prop_ro("scenario", [](const Simulated& self) { return self.scenario; })
      .def_prop_ro("schedule", [](const Simulated& self) { return Schedule(self.planned.setup->schedule()); })
      .def("json", &json_of)
      .def("report", &report_of, "embedded"_a)
      .def("svg", &svg_of, "width"_a, "memory"_a, "transfers"_a)
      .def("gantt", &gantt_of, "width"_a)
      .def("write_trace", &write_trace, "path"_a, "idle"_a)
      .def(
          "write_ops",
          [](const Simulated& self, const std::string& path) {
            write_file_whole(
                path, [&](const ByteSink& sink) { write_op_table(sink, self.graph(), self.prediction.timeline); });
          },
          "path"_a);
  module.def("simulate", &simulate, "scenario"_a, "schedule"_a.none(), "keep_memory"_a);
  module.def("idle_causes", [] { return std::vector<std::string>(kIdleCauseNames.begin(), kIdleCauseNames.end()); });
  module.def("memory_classes",
             [] { return std::vector<std::string>(kMemoryClassNames.begin(), kMemoryClassNames.end()); });
}

}  // namespace sluice::python

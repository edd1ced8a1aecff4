#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "python/src/bindings.h"
#include "python/src/scenario.h"
#include "tools/analyze/analysis.h"
#include "tools/analyze/heat_maps.h"
#include "tools/analyze/profile_analysis.h"
#include "tools/calibrate/calibrate.h"
#include "tools/command/document.h"
#include "tools/command/scenario_flags.h"
#include "tools/compare/comparison_output.h"
#include "tools/goodput/goodput_flags.h"
#include "tools/goodput/goodput_output.h"
#include "tools/plan/plan_request.h"
#include "tools/simulate/sweep.h"
#include "tools/slice/slice_cut.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sluice::python {
namespace {

using Axes = std::vector<std::pair<std::string, std::vector<std::string>>>;

std::string sweep(const ScenarioDocument& scenario, const Axes& named) {
  std::vector<SweepAxis> axes;
  for (const auto& [key, values] : named) axes.push_back({.key = key, .values = values});
  const nlohmann::json document = scenario.complete();
  std::string out;
  interruptible([&](const std::atomic<bool>& stop) {
    out = json_text(sweep_json(run_sweep(document, scenario.file(), std::move(axes), &stop)));
  });
  return out;
}

// Runs `work` like `interruptible`; errors about the scenario name its source.
std::string about(const ScenarioDocument& scenario, const std::function<std::string(const std::atomic<bool>&)>& work) {
  std::string out;
  try {
    interruptible([&](const std::atomic<bool>& stop) { out = work(stop); });
  } catch (const DoesNotFit&) {
    throw;
  } catch (const InputError& error) {
    throw InputError(scenario.naming(error.what()));
  }
  return out;
}

std::string plan(const ScenarioDocument& scenario, PlanRequest request) {
  request.file = scenario.file();
  const nlohmann::json document = scenario.complete();
  return about(scenario, [&](const std::atomic<bool>& stop) { return searched_plan(request, document, stop); });
}

// The document of a training run, and its picture and trace.
std::tuple<std::string, std::string, std::string> goodput(const ScenarioDocument& scenario,
                                                          std::vector<std::string> flags) {
  GoodputRequest request;
  read_goodput_flags(request, std::move(flags));
  request.file = scenario.file();
  const nlohmann::json document = scenario.complete();
  std::string svg;
  std::string trace;
  std::string text = about(scenario, [&](const std::atomic<bool>&) {
    const GoodputSetting setting = goodput_setting(request, document);
    const OrderedJson results = goodput_json(request, setting);
    const MedianRun run(request, setting, results);
    svg = run.svg();
    trace = run.chrome_trace();
    return json_text(results);
  });
  return {text, svg, trace};
}

std::tuple<std::vector<std::int64_t>, std::string> slice(const ScenarioDocument& scenario, SliceRequest request) {
  request.file = scenario.file();
  const nlohmann::json document = scenario.complete();
  SliceCut cut;
  static_cast<void>(about(scenario, [&](const std::atomic<bool>& stop) {
    request.stop = &stop;
    cut = cut_slices(request, document);
    return std::string();
  }));
  if (!cut.feasible) throw DoesNotFit("slice: no cut fits in memory");
  return {cut.lengths, json_text(cut.json)};
}

std::string calibrate_tables(const std::vector<std::string>& tables, const ScenarioDocument& scenario,
                             const std::vector<std::string>& constants, const std::vector<std::string>& ignored,
                             int folds, int skip, const std::string& output) {
  if (tables.empty()) throw InputError("calibrate: expected at least one measured file");
  const CatalogueRequest request{
      .tables = tables, .constants = constants, .ignored = ignored, .folds = folds, .output = output, .json = true};
  CalibrationScenario of{.base = scenario.complete(), .file = scenario.file(), .skip = skip};
  // The scenario of a log that prints its arguments, overridden by the keys.
  of.of_log = [&](const std::string& log) {
    nlohmann::json document = ScenarioDocument::from_file(log).document();
    document.merge_patch(scenario.document());
    return document;
  };
  return about(scenario, [&](const std::atomic<bool>&) { return calibrate(request, of); });
}

// Measured steps, as JSON, as a scenario, and as heat maps.
std::tuple<std::string, std::string, std::string> analyzed(const std::string& timeline, const std::string& names,
                                                           bool all_steps, std::optional<int> gpus) {
  std::string document;
  std::string scenario;
  std::string picture;
  interruptible([&](const std::atomic<bool>&) {
    const AnalysisRequest request{.timeline = timeline, .names = names, .all_steps = all_steps, .gpus = gpus};
    MeasuredSteps steps = read_steps(request);
    if (!steps.profile.empty()) {
      document = json_text(profile_document(analyse_profile(std::move(steps.profile), all_steps)));
      return;
    }
    const Analysis analysis = analyze(std::move(steps.run), request);
    document = json_text(analysis_document(analysis));
    scenario = measured_scenario(analysis).dump();
    picture = heat_maps(analysis);
  });
  return {document, scenario, picture};
}

std::string compared_files(const std::string& first, const std::string& second, bool by_kind, std::size_t top,
                           std::optional<std::int64_t> step) {
  std::string out;
  interruptible([&](const std::atomic<bool>&) {
    const ComparedRun a = compared_run(first, step);
    const ComparedRun b = compared_run(second, step);
    const ComparisonOptions how{.top = top, .by_kind = by_kind};
    out = json_text(comparison_document(compared(a.read.run, b.read.run, how, first, second)));
  });
  return out;
}

// The rows of a trace: kind, rank, microbatch, stage, slice, start and end (ns). A joint block is two rows.
using RowTuple = std::tuple<std::string, int, int, int, int, std::int64_t, std::int64_t>;
std::vector<RowTuple> rows_of_trace(const std::string& path, std::optional<std::int64_t> step) {
  std::vector<RowTuple> out;
  interruptible([&](const std::atomic<bool>&) {
    for (const OpRow& row : compared_run(path, step).read.run.rows) {
      const auto add = [&](const std::string& kind, const RowOp& op) {
        out.emplace_back(kind, row.rank, op.microbatch, op.stage, op.slice, row.start.count(), row.end.count());
      };
      if (row.kind == RowKind::joint) {
        add(std::string(1, letter(row.op.kind)), row.op);
        add(std::string(1, letter(row.partner.kind)), row.partner);
      } else {
        add(std::string(kRowKindNames[to_size(static_cast<int>(row.kind))]), row.op);
      }
    }
  });
  return out;
}

nb::list families() {
  nb::list out;
  for (const Family& family : all_families()) {
    nb::dict row;
    row["name"] = std::string(family.name);
    row["summary"] = std::string(family.summary);
    row["source"] = std::string(family.source);
    row["aliases"] = std::vector<std::string>(family.aliases.begin(), family.aliases.end());
    row["chunks"] = family.fixed_chunks;
    row["sliced"] = family.sliced;
    row["split_backward"] = family.split_backward;
    row["replicas"] = family.replicas;
    row["flush"] = !family.asynchronous;
    row["in_megatron_lm"] = family.in_megatron_lm;
    out.append(row);
  }
  return out;
}

}  // namespace

void bind_requests(nb::module_& module) {
  nb::class_<PlanSpace>(module, "PlanSpace")
      .def(nb::init<>())
      .def_rw("gpus", &PlanSpace::gpus)
      .def_rw("tp", &PlanSpace::tp)
      .def_rw("cp", &PlanSpace::cp)
      .def_rw("pp", &PlanSpace::pp)
      .def_rw("dp", &PlanSpace::dp)
      .def_rw("ep", &PlanSpace::ep)
      .def_rw("etp", &PlanSpace::etp)
      .def_rw("vpp", &PlanSpace::chunks)
      .def_rw("mbs", &PlanSpace::micro_batch)
      .def_rw("slices", &PlanSpace::slices)
      .def_rw("recompute", &PlanSpace::recompute)
      .def_rw("recompute_num_layers", &PlanSpace::recompute_layers);
  nb::class_<PlanRequest>(module, "PlanRequest")
      .def(nb::init<>())
      .def_rw("space", &PlanRequest::space)
      .def_rw("schedules", &PlanRequest::schedules)
      .def_rw("runs_on", &PlanRequest::runs_on)
      .def_rw("use_distributed_optimizer", &PlanRequest::distributed_optimizer)
      .def_rw("overlap_grad_reduce", &PlanRequest::overlap_grad_reduce)
      .def_rw("overlap_param_gather", &PlanRequest::overlap_param_gather)
      .def_rw("use_tp_pp_dp_mapping", &PlanRequest::mapping)
      .def_rw("slicing", &PlanRequest::slicing)
      .def_rw("no_sequence_parallel", &PlanRequest::no_sequence_parallel)
      .def_rw("even_stages", &PlanRequest::even_stages)
      .def_rw("all", &PlanRequest::everything)
      .def_rw("refine", &PlanRequest::refine)
      .def_rw("top", &PlanRequest::top)
      .def_rw("shortlist", &PlanRequest::shortlist)
      .def_rw("memory_margin", &PlanRequest::memory_margin);
  nb::class_<SliceRequest>(module, "SliceRequest")
      .def(nb::init<>())
      .def_rw("schedule", &SliceRequest::schedule)
      .def_rw("algorithm1_ms", &SliceRequest::algorithm1_ms)
      .def_rw("balanced", &SliceRequest::balanced)
      .def_rw("balance", &SliceRequest::balance)
      .def_rw("backward", &SliceRequest::backward)
      .def_rw("joint", &SliceRequest::joint)
      .def_rw("granularity", &SliceRequest::granularity)
      .def_rw("max_slices", &SliceRequest::max_slices)
      .def_rw("time_budget_s", &SliceRequest::time_budget_s)
      .def_rw("slices", &SliceRequest::slices)
      .def_rw("times", &SliceRequest::times);
  module.def("sweep", &sweep, "scenario"_a, "axes"_a);
  module.def("plan", &plan, "scenario"_a, "request"_a);
  module.def("slice", &slice, "scenario"_a, "request"_a);
  module.def("goodput", &goodput, "scenario"_a, "flags"_a);
  module.def("calibrate", &calibrate_tables, "tables"_a, "scenario"_a, "constants"_a, "ignored"_a, "folds"_a, "skip"_a,
             "output"_a);
  module.def("analyze", &analyzed, "timeline"_a, "names"_a, "all_steps"_a, "gpus"_a.none());
  module.def("compare", &compared_files, "first"_a, "second"_a, "by_kind"_a, "top"_a, "step"_a.none());
  module.def("rows", &rows_of_trace, "path"_a, "step"_a.none());
  module.def("families", &families, nb::sig("def families() -> list[dict[str, typing.Any]]"));
}

}  // namespace sluice::python

#include "tools/plan/plan_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/scenario/settings.h"
#include "model/schedule/family.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {
namespace {

// A shortlist is chosen among the first this many times its length.
constexpr int kCandidates = 16;

// Number of leading configurations whose partitions are searched.
constexpr int kRefined = 10;

// Removes the keys of a document that the plan chooses or does not use.
void remove_unread(nlohmann::json& document) {
  for (const Setting& row : settings()) {
    const nlohmann::json::json_pointer place{std::string(row.pointer)};
    if ((row.reads & kPlan) == 0 && !place.parent_pointer().empty() && document.contains(place)) {
      document.at(place.parent_pointer()).erase(place.back());
    }
  }
  for (const char* section : {"schedule", "perturbation"}) document.erase(section);
}

// Sets what the flags leave open to the values of the scenario file, which the search of a partition uses.
void fill_from_file(const nlohmann::json& document, PlanSpace& space) {
  const auto fill = [&]<typename T>(const char* key, std::vector<T>& values) {
    const nlohmann::json::json_pointer place{key};
    if (values.empty() && document.contains(place)) values.push_back(document.at(place).get<T>());
  };
  fill("/parallelism/tp", space.tp);
  fill("/parallelism/cp", space.cp);
  fill("/parallelism/pp", space.pp);
  fill("/parallelism/dp", space.dp);
  fill("/parallelism/ep", space.ep);
  fill("/parallelism/etp", space.etp);
  fill("/parallelism/vpp", space.chunks);
  fill("/parallelism/recompute", space.recompute);
  fill("/parallelism/recompute_layers", space.recompute_layers);
  fill("/parallelism/distributed_optimizer", space.distributed_optimizer);
  fill("/parallelism/pipeline_before_data", space.pipeline_before_data);
  fill("/batch/micro_batch", space.micro_batch);
  if (document.contains("schedule") && document.at("schedule").is_string()) return fill("/schedule", space.families);
  fill("/schedule/name", space.families);
  fill("/schedule/slices", space.slices);
}

std::vector<bool> yes_or_no(const std::vector<std::string>& words, const char* flag) {
  std::vector<bool> out;
  for (const std::string& word : words) {
    if (word != "yes" && word != "no") throw InputError(fmt::format("{}: expected yes or no, got '{}'", flag, word));
    out.push_back(word == "yes");
  }
  return out;
}

// Returns the framework that must run all configurations; null: any. The schedules of Megatron-LM alone are for it.
const Framework* framework_of(const PlanRequest& request) {
  const bool megatron = request.runs_on == "any" && request.schedules == std::vector<std::string>{"megatron"};
  return find_framework(megatron ? "megatron" : request.runs_on);
}

}  // namespace

PlanSpace space_of(const PlanRequest& request) {
  PlanSpace space = request.space;
  for (const std::string& name : request.schedules) {
    if (name == "auto") {
      throw InputError("plan: --schedule auto searches one configuration: use 'sluice simulate --schedule auto'");
    }
    if (name == "megatron") {
      for (const Family& family : all_families()) {
        if (family.in_megatron_lm) space.families.emplace_back(family.name);
      }
    } else {
      space.families.push_back(name);
    }
  }
  space.distributed_optimizer = yes_or_no(request.distributed_optimizer, "--use-distributed-optimizer");
  space.overlap_grad_reduce = yes_or_no(request.overlap_grad_reduce, "--overlap-grad-reduce");
  space.overlap_param_gather = yes_or_no(request.overlap_param_gather, "--overlap-param-gather");
  space.pipeline_before_data = yes_or_no(request.mapping, "--use-tp-pp-dp-mapping");
  space.sequence_parallel = !request.no_sequence_parallel;
  space.balanced_slices = request.slicing == "balanced";
  space.uneven_outer_stages = !request.even_stages;
  return space;
}

Scenario base_scenario(const PlanRequest& request, nlohmann::json document, bool partition, PlanSpace& space) {
  ScenarioFlags::check_file(request.file, document);
  if (partition) {
    ScenarioFlags::read(document, request.file);  // reports wrong values
    fill_from_file(document, space);
  }
  // Which not all configurations can have.
  if (const nlohmann::json::json_pointer gather("/parallelism/overlap_param_gather"); document.contains(gather)) {
    if (space.overlap_param_gather.empty() && document.at(gather).is_boolean()) {
      space.overlap_param_gather.push_back(document.at(gather));
    }
    document.at("parallelism").erase("overlap_param_gather");
  }
  if (const nlohmann::json::json_pointer gpus("/parallelism/gpus"); document.contains(gpus)) {
    if (space.gpus == 0 && document.at(gpus).is_number_integer()) space.gpus = document.at(gpus);
    document.at("parallelism").erase("gpus");  // of all configurations
  }
  const auto batch = document.find("batch");
  if (batch != document.end() && !batch->contains("global_batch") && batch->contains("microbatches")) {
    throw InputError("plan: expected a global batch size (--gbs), got a number of microbatches");
  }
  remove_unread(document);
  Scenario scenario = ScenarioFlags::read(document, request.file);
  if (scenario.training.zero_stage() > 1 && !request.distributed_optimizer.empty()) {
    throw InputError(
        fmt::format("plan: --use-distributed-optimizer excludes --zero-stage {}, which shards optimizer states too",
                    scenario.training.zero_stage()));
  }
  if (scenario.cluster && space.gpus > 0) scenario.cluster->use_for(space.gpus);
  if (scenario.model && !document.contains(nlohmann::json::json_pointer("/parallelism/recompute_modules"))) {
    scenario.training.recompute_modules = cheap_modules(*scenario.model, scenario.training);
  }
  if (scenario.cluster && request.memory_margin >= 0) scenario.cluster->gpu.memory_margin = request.memory_margin;
  return scenario;
}

Plan plan_of(const PlanRequest& request, const nlohmann::json& document) {
  PlanSpace space = space_of(request);
  Scenario base = base_scenario(request, document, false, space);
  const Framework* const framework = framework_of(request);
  if (framework != nullptr) restrict_to(*framework, base, space);
  const auto runs_on_megatron = [base](const PlanPoint& point) {
    return find_framework("megatron")->refusal(base, point).empty();
  };
  const int keep = std::max(request.top, kCandidates * request.shortlist);
  return Plan(std::move(base), std::move(space), keep, request.everything, runs_on_megatron);
}

void refine_plan(Plan& plan, const PlanRequest& request, const std::atomic<bool>* stop) {
  if (request.refine && !request.even_stages) plan.refine(std::min(request.top, kRefined), stop);
}

PlanReport report_of(const Plan& plan, const PlanRequest& request) {
  PlanReport report{
      .plan = &plan, .top = request.top, .model_error = request.model_error, .shortlist = request.shortlist};
  report.framework = framework_of(request);
  return report;
}

std::string ignored_by_plan(const std::string& file) { return ScenarioFlags::unused(file, "plan", kPlan); }

void throw_invalid(const PlanRequest& request, const nlohmann::json& document, const Plan& plan, std::string reason) {
  const std::string source = (request.file.empty() ? std::string("command line") : request.file) + ": ";
  std::vector<std::string> given;
  if (const std::string flags = requested_flags(plan.space()); !flags.empty()) given.push_back(flags);
  for (const char* section : {"parallelism", "batch"}) {
    if (!document.contains(section)) continue;
    for (const auto& [key, value] : document.at(section).items()) {
      const std::string pointer = fmt::format("/{}/{}", section, key);
      if (const Setting* row = find_setting(pointer); row != nullptr && (row->reads & kPlan) == 0) continue;
      const std::string named = ScenarioFlags::naming_flags(source + pointer + ": ", document, request.file);
      given.push_back(fmt::format("{} {}", named.substr(0, named.size() - 2), value.dump()));
    }
  }
  if (reason.starts_with(source)) reason.erase(0, source.size());
  if (reason.starts_with("/")) reason.erase(0, reason.find(": ") + 2);
  throw InputError(
      fmt::format("plan: every configuration of {} is invalid; the first: {}", fmt::join(given, ", "), reason));
}

std::string searched_plan(const PlanRequest& request, const nlohmann::json& document, const std::atomic<bool>& stop) {
  const auto begin = std::chrono::steady_clock::now();
  Plan plan = plan_of(request, document);
  for (std::vector<Plan::Work> work = plan.next(); !work.empty() && !stop; work = plan.next()) {
    plan.take(work, plan.work_out(work, &stop));
    plan.end_round();
  }
  if (!stop) refine_plan(plan, request, &stop);
  if (stop) return "";
  PlanReport report = report_of(plan, request);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (const std::string invalid = plan_invalid(plan); !invalid.empty()) {
    throw_invalid(request, document, plan, invalid);
  }
  if (const std::string refusal = plan_refusal(plan); !refusal.empty()) throw DoesNotFit(refusal);
  return plan_json(report);
}

}  // namespace sluice::tools

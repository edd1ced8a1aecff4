#include "tools/plan/plan_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

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

constexpr std::int64_t kMostBatch = std::int64_t{1} << 30;

// Removes the keys of a document that the plan chooses or does not use.
void remove_unread(nlohmann::json& document) {
  for (const Setting& row : settings()) {
    const nlohmann::json::json_pointer place{std::string(row.pointer)};
    if ((row.reads & kPlan) == 0 && !place.parent_pointer().empty() && document.contains(place)) {
      document.at(place.parent_pointer()).erase(place.back());
    }
  }
  if (document.contains("schedule") && !document["schedule"].is_object()) document.erase("schedule");
  document.erase("perturbation");
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

// Returns the number of GPUs of the flags and the document's "parallelism", and where it comes from: tp x cp x pp x dp
// where dp is given, otherwise whole nodes that hold one replica. Throws InputError if flags with several values fit
// several numbers.
std::pair<std::int64_t, std::string> gpus_of_sizes(const nlohmann::json& parallelism, const PlanSpace& space,
                                                   int gpus_per_node) {
  constexpr std::int64_t kMostGpus = std::int64_t{1} << 24;
  const auto in_document = [&](const char* key) {
    const auto found = parallelism.find(key);
    return found != parallelism.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
  };
  // Sizes of a scenario with dp are those of its GPUs, whatever flags search on them.
  const bool whole = space.dp.empty() && in_document("dp") > 0;
  std::int64_t gpus = 1;
  bool several = false;
  for (const auto& [key, sizes] : {std::pair("tp", &space.tp), std::pair("cp", &space.cp), std::pair("pp", &space.pp),
                                   std::pair("dp", &space.dp)}) {
    const bool given = !whole && !sizes->empty();
    const std::int64_t size = given ? *std::min_element(sizes->begin(), sizes->end()) : in_document(key);
    if (size > kMostGpus / gpus) throw InputError(fmt::format("plan: expected at most {} GPUs", kMostGpus));
    gpus *= std::max(size, std::int64_t{1});
    several = several || (given && sizes->size() > 1);
  }
  if (whole) return {gpus, " of the scenario's tp x cp x pp x dp"};
  if (!space.dp.empty() && several) {
    throw InputError(
        fmt::format("plan: --gpus: required, since {} fit several numbers of GPUs", requested_flags(space)));
  }
  if (!space.dp.empty()) return {gpus, " of tp x cp x pp x dp"};
  const std::int64_t nodes = (gpus + gpus_per_node - 1) / gpus_per_node;
  return {nodes > 1 && gpus % gpus_per_node != 0 ? gpus : nodes * gpus_per_node, ""};
}

// Sets the number of GPUs of the space, and the nodes of the cluster where they are not specified.
void set_gpus(const nlohmann::json& parallelism, PlanSpace& space, Cluster& cluster) {
  if (space.gpus == 0 && cluster.nodes_specified) {
    space.gpus = cluster.num_gpus();
    space.gpus_from = fmt::format(" of {} x {}", cluster.nodes, cluster.name);
  } else if (space.gpus == 0) {
    std::tie(space.gpus, space.gpus_from) = gpus_of_sizes(parallelism, space, cluster.gpus_per_node);
  }
  cluster.use_for(space.gpus);
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

// Returns the one value of flags, or of the document; 0 if there is none or several.
std::int64_t one_size(const std::vector<int>& flags, const nlohmann::json& document, const char* pointer) {
  const nlohmann::json::json_pointer place{pointer};
  if (!flags.empty()) return flags.size() == 1 ? flags.front() : 0;
  return document.contains(place) && document.at(place).is_number_integer() ? document.at(place).get<std::int64_t>()
                                                                            : 0;
}

// Replaces a number of microbatches without a global batch by the batch: microbatches x micro_batch x dp. With
// documents it is that of every configuration.
void batch_of_microbatches(const PlanRequest& request, nlohmann::json& document, PlanSpace& space) {
  nlohmann::json& batch = document["batch"];
  if (batch.contains("lengths")) {
    space.microbatches = request.microbatches > 0 ? request.microbatches
                                                  : static_cast<int>(one_size({}, document, "/batch/microbatches"));
    return;
  }
  if (request.microbatches > 0) {
    const std::string source = request.file.empty() ? "command line" : request.file;
    if (batch.contains("global_batch") &&
        ScenarioFlags::naming_flags(source + ": /batch/global_batch: ", document, request.file).starts_with("--")) {
      throw InputError("plan: --microbatches: specify --gbs or --microbatches, not both");
    }
    batch["microbatches"] = request.microbatches;
    batch.erase("global_batch");
  }
  if (batch.contains("global_batch") || !batch.contains("microbatches")) return;
  const auto or_one = [](std::int64_t size, const std::vector<int>& flags) {
    return size == 0 && flags.empty() ? 1 : size;
  };
  const std::int64_t micro = or_one(one_size(space.micro_batch, document, "/batch/micro_batch"), space.micro_batch);
  std::int64_t dp = one_size(space.dp, document, "/parallelism/dp");
  if (dp == 0 && space.dp.empty()) {
    const std::int64_t replica = or_one(one_size(space.tp, document, "/parallelism/tp"), space.tp) *
                                 or_one(one_size(space.cp, document, "/parallelism/cp"), space.cp) *
                                 one_size(space.pp, document, "/parallelism/pp");
    if (replica > 0 && space.gpus % replica == 0) dp = space.gpus / replica;
  }
  const std::int64_t microbatches = one_size({}, document, "/batch/microbatches");
  if (micro < 1 || dp < 1 || microbatches < 1 || micro > kMostBatch / dp / microbatches) {
    throw InputError(
        "plan: --microbatches gives a batch together with one value each of --mbs and --dp: specify these, or the "
        "global batch (--gbs)");
  }
  batch["global_batch"] = micro * dp * microbatches;
  batch.erase("microbatches");
}

// With ZeRO stage 0 or 1 given, all configurations have it, unless flags search both.
void fix_distributed_optimizer(const PlanRequest& request, const nlohmann::json& document, PlanSpace& space) {
  const nlohmann::json::json_pointer place("/parallelism/zero");
  if (!document.contains(place) || !document.at(place).is_number_integer()) return;
  const int stage = document.at(place).get<int>();
  const std::vector<std::string>& words = request.distributed_optimizer;
  if (words.empty() && (stage == 0 || stage == 1)) space.distributed_optimizer = {stage == 1};
  if (stage == 0 && std::find(words.begin(), words.end(), "yes") != words.end()) {
    throw InputError("plan: --use-distributed-optimizer yes excludes --zero-stage 0, which shards nothing");
  }
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
  if (space.gpus > 0) space.gpus_from = " of --gpus";
  const nlohmann::json parallelism = document.value("parallelism", nlohmann::json::object());
  if (parallelism.contains("gpus")) {
    if (parallelism.contains("dp")) {
      throw InputError(fmt::format("{}: /parallelism/gpus: specify dp or gpus, not both", request.file));
    }
    if (space.gpus == 0 && parallelism.at("gpus").is_number_integer()) {
      space.gpus = parallelism.at("gpus");
      space.gpus_from = " of /parallelism/gpus";
    }
    document.at("parallelism").erase("gpus");  // of all configurations
  }
  batch_of_microbatches(request, document, space);
  fix_distributed_optimizer(request, document, space);
  remove_unread(document);
  Scenario scenario = ScenarioFlags::read(document, request.file);
  if (scenario.training.zero_stage() > 1 && !request.distributed_optimizer.empty()) {
    throw InputError(
        fmt::format("plan: --use-distributed-optimizer excludes --zero-stage {}, which shards optimizer states too",
                    scenario.training.zero_stage()));
  }
  if (scenario.cluster) set_gpus(parallelism, space, *scenario.cluster);
  const bool any_modules = !document.contains(nlohmann::json::json_pointer("/parallelism/recompute_modules"));
  if (scenario.model && any_modules && !partition) {
    space.recompute_modules = cheap_modules(*scenario.model, scenario.training);
  }
  if (scenario.cluster && request.memory_margin >= 0) scenario.cluster->gpu.memory_margin = request.memory_margin;
  return scenario;
}

// Opens what the scenario leaves to the framework: dispatchers that its release and the GPUs have, and optimizer states
// on the host. Megatron-LM drops tokens with all-to-all only, and has both since 2025.
void open_space(const Framework* framework, const Scenario& base, const nlohmann::json& document, PlanSpace& space) {
  if (base.cost != CostKind::analytic || !base.model || !base.cluster) return;
  const auto given = [&](const char* flag) {
    return document.contains(nlohmann::json::json_pointer(std::string(find_setting_of_flag(flag)->pointer)));
  };
  const std::string& gpu = base.cluster->gpu.architecture;
  const bool megatron = base.software.name == "Megatron-LM" || base.software.name == "NeMo";
  const bool exchanges = megatron && (gpu == "Hopper" || gpu == "Blackwell") && base.training.expert_capacity == 0;
  const bool runs = framework == nullptr || framework->name == "megatron";
  if (base.model->has_experts() && exchanges && runs && !given("--moe-token-dispatcher")) {
    using enum Training::TokenDispatcher;
    space.dispatchers = {all_to_all, deepep, hybridep};
  }
  const bool host = base.cluster->host_link_bytes_per_s > 0 && base.cluster->host_memory_bytes_per_s > 0;
  space.may_offload = host && !base.training.forward_only() && !given("--optimizer-cpu-offload") &&
                      !given("--optimizer-offload-fraction");
  space.may_place_encoder = base.model->encoder && framework == nullptr && !base.documents &&
                            !base.training.forward_only() && !given("--encoder-placement");
}

Plan plan_of(const PlanRequest& request, const nlohmann::json& document) {
  PlanSpace space = space_of(request);
  Scenario base = base_scenario(request, document, false, space);
  const Framework* const framework = framework_of(request);
  open_space(framework, base, document, space);
  if (framework != nullptr) restrict_to(*framework, base, space);
  const Framework* const megatron_lm = find_framework("megatron");
  const bool has_model = base.model && megatron_lm->lacks(*base.model).empty();
  const auto runs_on_megatron = [base, megatron_lm, has_model](const PlanPoint& point) {
    return has_model && megatron_lm->refusal_of_point(base, point).empty();
  };
  const int keep = std::max(request.top, kCandidates * request.shortlist);
  return Plan(std::move(base), std::move(space), keep, request.everything, runs_on_megatron);
}

void refine_plan(Plan& plan, const PlanRequest& request, const std::atomic<bool>* stop) {
  if (request.refine && !request.even_stages) plan.refine(std::min(request.top, kRefined), stop);
}

PlanReport report_of(const Plan& plan, const PlanRequest& request) {
  PlanReport report{.plan = &plan, .top = request.top, .shortlist = request.shortlist};
  report.show = request.show;
  report.framework = framework_of(request);
  report.errors = catalogue_error_classes().all;
  if (const std::vector<int> ranking = plan.ranking(); !ranking.empty()) {
    Scenario fastest = scenario_of(plan.base(), plan.space(), plan.points()[ranking.front()]);
    const bool corrected = fastest.correction.has_value();
    fastest.correction.reset();  // differences are those of its class
    const auto interval = interval_of(fastest, to_seconds(plan.results()[ranking.front()].iteration));
    if (interval && interval->of) report.errors = interval->of->differences;
    if (!corrected) report.interval = interval;
  }
  report.model_error = request.model_error.value_or(report.errors.difference);
  return report;
}

std::vector<std::string> notes_of_plan(const PlanRequest& request, const nlohmann::json& document, const Plan& plan) {
  const std::optional<Cluster>& cluster = plan.base().cluster;
  const auto in_document = [&](const char* key) { return document.contains(nlohmann::json::json_pointer(key)); };
  const bool sizes_give_gpus =
      request.space.gpus == 0 && !in_document("/parallelism/gpus") && cluster.has_value() && !cluster->nodes_specified;
  const bool whole = request.space.dp.empty() && in_document("/parallelism/dp");  // as in gpus_of_sizes
  const bool gives_batch = !in_document("/batch/global_batch") && request.microbatches == 0;
  std::vector<std::string> ignored;
  std::vector<std::string> sizes;
  std::vector<std::string> notes;
  for (std::string& key : ScenarioFlags::unused_keys(request.file, kPlan)) {
    const auto gives_gpus = [&](const char* size, const std::vector<int>& flags) {
      return sizes_give_gpus && key == size && (whole || flags.empty());
    };
    const PlanSpace& space = request.space;
    if (gives_gpus("/parallelism/tp", space.tp) || gives_gpus("/parallelism/cp", space.cp) ||
        gives_gpus("/parallelism/pp", space.pp) || gives_gpus("/parallelism/dp", space.dp)) {
      sizes.push_back(std::move(key));
    } else if (key == "/batch/microbatches" && gives_batch) {
      notes.push_back(fmt::format("{}: plan takes the global batch from {}", request.file, key));
    } else {
      ignored.push_back(std::move(key));
    }
  }
  if (!sizes.empty()) {
    notes.push_back(
        fmt::format("{}: plan takes the number of GPUs from {}, and searches these sizes unless flags set "
                    "them",
                    request.file, fmt::join(sizes, ", ")));
  }
  if (!ignored.empty()) notes.push_back(fmt::format("{}: plan ignores {}", request.file, fmt::join(ignored, ", ")));
  return notes;
}

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
  report.document = document;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (const std::string invalid = plan_invalid(plan); !invalid.empty()) {
    throw_invalid(request, document, plan, invalid);
  }
  if (const std::string refusal = plan_refusal(plan); !refusal.empty()) throw DoesNotFit(refusal);
  return plan_json(report);
}

}  // namespace sluice::tools

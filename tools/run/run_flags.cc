#include "tools/run/run_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "exec/run/core_wait.h"
#include "model/batches/batch.h"
#include "model/errors.h"
#include "model/scenario/settings.h"
#include "model/scenario/setup.h"
#include "model/schedule/family.h"
#include "model/weave/weave.h"
#include "tools/command/messages.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"

namespace sluice::tools {
namespace {

void add_cell(std::vector<ProfileCell>& cells, const ProfileCell& cell) {
  if (std::find(cells.begin(), cells.end(), cell) == cells.end()) cells.push_back(cell);
}

std::vector<ProfileCell> requested_cells(const ProfilingFlags& flags, std::int64_t sequence_length) {
  if (flags.tokens.empty() && flags.contexts.empty()) return profile_grid(sequence_length);
  std::vector<std::int64_t> lengths = flags.tokens;
  if (lengths.empty()) {
    for (const ProfileCell& cell : profile_grid(sequence_length)) lengths.push_back(cell.tokens);
  }
  std::vector<ProfileCell> cells;
  for (const std::int64_t tokens : lengths) {
    if (tokens > sequence_length) {
      throw InputError(
          fmt::format("--tokens: expected at most {} tokens, the sequence length, got {}", sequence_length, tokens));
    }
    // The fit needs samples without a prefix.
    add_cell(cells, {.tokens = tokens});
    for (const std::int64_t context : flags.contexts) {
      if (tokens + context <= sequence_length) add_cell(cells, {.tokens = tokens, .context = context});
    }
  }
  return cells;
}

using Json = nlohmann::json;

Json built_in_model() {
  return {{"num_layers", 4},
          {"hidden_size", 128},
          {"num_attention_heads", 4},
          {"vocab_size", 256},
          {"max_position_embeddings", 1024},
          {"position_embedding_type", "learned_absolute"},
          {"hidden_dropout", 0.0},
          {"attention_dropout", 0.0}};
}

bool has(const Json& document, const char* pointer) {
  const Json::json_pointer at(pointer);
  return document.contains(at) && !document.at(at).is_null();
}

Precision precision_of(const std::string& name, bool on_devices) {
  if (on_devices) {
    if (name == "float32" || name == "float64") {
      throw InputError(fmt::format(
          "--precision: expected bf16 or fp16 with --backend cuda (master weights are float32), got {}", name));
    }
    return name == "fp16" ? Precision::float16 : Precision::bfloat16;
  }
  if (name == "bf16" || name == "fp16") {
    throw InputError(fmt::format("--precision: expected float32 or float64 on the CPU, got {}", name));
  }
  return name == "float64" ? Precision::float64 : Precision::float32;
}

// Replaces help texts of scenario flags whose defaults differ in a run.
void describe_run_defaults(CLI::App& command) {
  const std::pair<const char*, const char*> texts[] = {
      {"--pp", "Number of pipeline ranks, 1 to 8192 (default 2)"},
      {"--microbatches", "Number of microbatches per batch and pipeline, 1 to 1000000000 (default 8)"},
      {"--mbs", "Number of sequences per microbatch, 1 to 1048576 (default 1; built-in model: 2)"},
      {"--seq-length",
       "Number of tokens per sequence, 1 to 1073741824 (built-in model: default 128; required with other models)"},
      {"--model",
       "Model of the catalogue (gpt2, ...), or a model file: Hugging Face config.json or Megatron-style JSON; the "
       "flags "
       "below describe a model instead (default: a built-in GPT with 4 layers of hidden size 128)"},
      {"--batches",
       "Number of batches per run of the graph, for families without a flush, at least 1 (default: all "
       "steps)"},
  };
  for (const auto& [name, text] : texts) command.get_option(name)->description(text);
  // Of flags with values that runs refuse with a reason (RunFlags::scenario): those that they take.
  const std::tuple<const char*, const char*, const char*> narrowed[] = {
      {"--joint-overlap", "{none,experts}",
       "Communication that overlaps with compute in joint blocks of F and B: none or experts (dispatch and combine) "
       "(default: experts)"},
      {"--recompute", "{none,full}", "Recomputation of activations in the backward (default: none)"},
  };
  for (const auto& [name, words, text] : narrowed) {
    CLI::Option* const option = command.get_option_no_throw(name);
    if (option != nullptr) option->type_name(fmt::format("TEXT:{}", words))->description(text);
  }
  CLI::Option* const weave = command.get_option_no_throw("--weave");
  if (weave == nullptr) return;
  weave->description(
      "Order of the parts of F and B in joint blocks with experts: dualpipe, whole-backward (no separate weight "
      "gradients), or a list such as 'combine(B) attention(F) ...', which 'sluice weave --weave search' finds "
      "(default: "
      "dualpipe)");
}

// Whether the schedule has no flush. Throws InputError for an unknown family.
bool is_asynchronous(const Scenario& scenario) {
  return !names_file(scenario.schedule) &&
         find_family(scenario.schedule, scenario.source + ": /schedule/name").asynchronous;
}

}  // namespace

void ProfilingFlags::add_to(CLI::App& command) {
  const char* kProfile = "Profile";
  command
      .add_option(
          "--tokens", tokens,
          "Slice lengths to measure in tokens, as a,b,c, 1 to the sequence length (default: the sequence length, its "
          "half, quarter and eighth)")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
      ->group(kProfile);
  command
      .add_option("--contexts", contexts,
                  "Prefix lengths to measure in tokens, as a,b,c, at least 0, besides none (default: the starts of "
                  "even slices)")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31))
      ->group(kProfile);
  command.add_option("--time-budget", time_budget_s, "Measurement time in seconds, 0 to 1000000 (default 10)")
      ->check(number_from(0, 1e6))
      ->group(kProfile);
}

ProfilingSpec profiling_spec(std::span<const RunPlan* const> plans, const ProfilingFlags& flags, const RunPlace& place,
                             const TokenSource& tokens) {
  const RunPlan& first = *plans.front();
  ProfilingSpec spec{.model = first.spec().model, .precision = first.spec().precision, .kernels = first.spec().kernels};
  spec.recompute = first.spec().recompute;
  spec.attention = first.spec().attention;
  spec.sequences = first.schedule().shapes()[0].sequences;
  spec.sequence_length = first.sequence_length();
  spec.tensor_parallel = first.layout().tensor;
  spec.data_parallel = first.layout().data;
  spec.seed = first.spec().seed;
  spec.expert_parallel = first.layout().expert;
  spec.tokens = &tokens;
  spec.microbatches = first.schedule().num_microbatches();
  spec.budget_s = flags.time_budget_s;
  spec.most_wait = kMostCoreWait;
  spec.link = place.transport_name();
  spec.cells = requested_cells(flags, spec.sequence_length);
  for (const RunPlan* plan : plans) {
    for (const StageContents& contents : plan->contents()) spec.layers = std::max(spec.layers, contents.layers);
    for (const MicrobatchShape& shape : plan->schedule().shapes()) {
      if (shape.sequences != spec.sequences) {
        throw InputError(fmt::format("expected microbatches of one size for a profile, got {} and {} sequences",
                                     spec.sequences, shape.sequences));
      }
      for (int slice = 0; slice < shape.num_slices(); ++slice) {
        add_cell(spec.cells, {.tokens = shape.slice_lengths[slice]});
        add_cell(spec.cells, {.tokens = shape.slice_lengths[slice], .context = shape.context(slice)});
      }
    }
  }
  return spec;
}

Profile measured_profile(const ProfilingSpec& spec, const RunPlan& plan, const RunPlace& place,
                         const Supervision& supervision) {
  Progress progress("measuring, seconds", static_cast<std::int64_t>(std::max(1.0, spec.budget_s)));
  const auto observer = [&](double seconds) { progress.done(static_cast<std::int64_t>(seconds)); };
  Transport* const transport = place.transport();
  const WatchedPlans watched{{&plan}, supervision};
  const int workers = plan.layout().size();
  Profile profile = transport == nullptr ? profile_with_threads(spec, workers, observer, place.devices(), watched)
                                         : profile_as_process(spec, *transport, observer, place.own_device(), watched);
  profile.source = "measured";
  profile.machine = place.machine(workers);
  return profile;
}

struct RunFlags::Values {
  std::string file;
  std::unique_ptr<ScenarioFlags> scenario;
  std::string precision;
  std::string data;
  std::uint64_t seed = 1;
  std::string optimizer = "adam";
  double learning_rate = 1e-3;
  double weight_decay = 0.01;
  double clip = 1;
  std::vector<Assumption> assumed;
};

RunFlags::RunFlags(CLI::App& command, std::initializer_list<std::string_view> without)
    : values_(std::make_unique<Values>()) {
  Values& values = *values_;
  command.add_option("scenario", values.file, "Scenario file (docs/formats.md); flags override its keys");
  std::vector<std::string_view> left_out(without);
  left_out.insert(left_out.end(), {"--precision", "--seed"});  // of its own meaning
  ScenarioFlags::add_imports(command, values.file);
  values.scenario = std::make_unique<ScenarioFlags>(command, kRun, left_out);
  describe_run_defaults(command);
  const auto training = [](CLI::Option* option) { return option->group("Training"); };
  training(command.add_option("--precision", values.precision,
                              "CPU: float32 or float64 (default: float32); GPU: bf16, or fp16 with a loss scale "
                              "(default: bf16)"))
      ->check(CLI::IsMember({"float32", "float64", "bf16", "fp16"}));
  training(
      command
          .add_option("--data", values.data, "Text file to train on, with bytes as tokens (default: synthetic tokens)")
          ->type_name(kReadFile));
  training(command.add_option("--seed", values.seed,
                              "Random seed of weights, samples and synthetic tokens, at least 0 (default 1)"))
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  training(
      command.add_option("--optimizer", values.optimizer, "adam (with decoupled weight decay) or sgd (default: adam)"))
      ->check(CLI::IsMember({"adam", "sgd"}));
  const auto at_least_0 = number_from(0);
  training(command.add_option("--lr", values.learning_rate, "Learning rate, at least 0 (default 0.001)"))
      ->check(at_least_0);
  training(command.add_option("--weight-decay", values.weight_decay, "Weight decay, at least 0 (default 0.01)"))
      ->check(at_least_0);
  training(command.add_option("--clip-grad", values.clip,
                              "Clip gradients to this global norm, at least 0; 0 disables clipping. Ignored by "
                              "schedules without a flush (default 1)"))
      ->check(at_least_0);
}

RunFlags::~RunFlags() = default;

const std::vector<Assumption>& RunFlags::assumed() const { return values_->assumed; }

Scenario RunFlags::scenario(const std::string& schedule, bool unsliced) const {
  Json document = values_->scenario->document(values_->file);
  values_->assumed.clear();
  const auto assume = [&](const char* pointer, const std::string& value) {
    values_->assumed.push_back({pointer, std::string_view(pointer).substr(1), value, "default of runs", ""});
  };
  const auto set_default = [&](const char* pointer, const Json& value) {
    Json& place = document[Json::json_pointer(pointer)];
    if (!place.is_null()) return;
    place = value;
    assume(pointer, value.is_string() ? value.get<std::string>() : value.dump());
  };
  if (!schedule.empty()) {
    Json& name = document[Json::json_pointer("/schedule/name")];
    if (name.is_null() || name.is_string()) name = schedule;  // reading rejects any other type
  }
  if (unsliced && document.contains("schedule") && document.at("schedule").is_object()) {
    for (const char* key : {"slices", "slice_lengths", "slicing"}) document["schedule"].erase(key);
  }
  const bool built_in = !has(document, "/model");
  const bool packs = has(document, "/batch/lengths");
  if (built_in) {
    document["model"] = built_in_model();
    assume("/model", kBuiltInModel);
    if (!packs) set_default("/batch/sequence_length", 128);
    if (!packs) set_default("/batch/micro_batch", 2);
  }
  set_default("/schedule/name", "1f1b");
  const std::string name = document.at(Json::json_pointer("/schedule/name")).is_string()
                               ? document.at(Json::json_pointer("/schedule/name")).get<std::string>()
                               : "";
  if (!names_file(name)) {
    set_default("/parallelism/pp", 2);
    if (!packs && !has(document, "/batch/global_batch")) set_default("/batch/microbatches", 8);
  }
  Scenario scenario = ScenarioFlags::read(document, values_->file);
  // A run needs no costs; those of the file have been checked.
  scenario.cost = CostKind::uniform;
  scenario.uniform = {};
  scenario.correction.reset();
  scenario.perturbation = {};
  const Training& training = scenario.training;
  const auto refuse = [&](bool given, const char* feature) {
    if (given) throw InputError(fmt::format("{}: runs do not support {}", scenario.source, feature));
  };
  for (const Setting& row : settings()) {
    const Json::json_pointer place{std::string(row.pointer)};
    if ((row.refuses & kRun) == 0 || !document.contains(place) || document.at(place).is_null()) continue;
    const Json fallback = Json::parse(row.fallback, nullptr, false);
    if (!fallback.is_discarded() && document.at(place) == fallback) continue;
    throw InputError(fmt::format("{}: {}: runs do not support it: expected {}, got {}", scenario.source, row.pointer,
                                 fallback.is_discarded() ? "none" : fallback.dump(), document.at(place).dump()));
  }
  if (scenario.model) (void)scenario.model->transformer("a run");  // names a block, not its options
  // With experts and tensor parallelism it is required elsewhere; expert layers then split the tokens here, too.
  const bool has_experts = scenario.model && scenario.model->has_experts();
  refuse(training.sequence_parallel && !has_experts, "sequence parallelism (/parallelism/sequence_parallel)");
  refuse(packs && scenario.documents->request.order == MicrobatchOrder::best, "the search for an order (/batch/order)");
  refuse(training.work == Training::Work::prefill, "prefill (/schedule/forward_only): expected evaluation");
  refuse(training.recompute == Training::Recompute::selective, "selective recomputation (/parallelism/recompute)");
  const Json::json_pointer positions("/model/position_embedding_type");
  refuse(document.contains(positions) && document.at(positions) == "none",
         "models without position embeddings (/model/position_embedding_type): expected learned or rope");
  refuse(scenario.model && scenario.model->experts.groups > 1, "groups of experts (/model/moe_router_num_groups)");
  refuse(scenario.model && scenario.model->experts.clamp > 0,
         "a clamped activation (/model/activation_func_clamp_value)");
  refuse(scenario.model && scenario.model->mtp_layers > 0, "multi-token prediction (--mtp-num-layers 0 leaves it out)");
  refuse(training.joint_overlap == Training::JointOverlap::all,
         "overlap of the collectives of tensor parallelism (/parallelism/joint_overlap)");
  refuse(training.weave == kSearchedWeave && training.ep > 1,
         "a weave that is searched (/parallelism/weave): give one that 'sluice weave --weave search' has found");
  refuse(scenario.schedule == kAutomatic, "--schedule auto: write a schedule file with 'sluice schedule auto -o FILE'");
  if (!scenario.model) throw InputError(scenario.source + ": /model: required (--model)");
  if (built_in) scenario.model->set_name(kBuiltInModel);
  return scenario;
}

int RunFlags::naming_flags(const std::function<int()>& work) const {
  return values_->scenario->naming_flags(values_->file, work);
}

void RunFlags::print_ignored(std::string_view command) const {
  const std::string note = ScenarioFlags::unused(values_->file, command, kRun);
  print_message(note);
  const Json document = values_->scenario->document(values_->file);
  for (const char* key : {"/model/hidden_dropout", "/model/attention_dropout"}) {
    if (has(document, key) && document.at(Json::json_pointer(key)) != 0) {
      print_message(fmt::format("{} ignores {}: it trains without dropout", command, key));
    }
  }
  ScenarioFlags::print_notes(values_->file);
}

void RunFlags::print_weave_note(const RunPlan& plan) const {
  if (plan.has_woven_blocks() || !has(values_->scenario->document(values_->file), "/parallelism/weave")) return;
  const auto joint = [](const PlannedStep& step) { return step.kind == PlannedStep::Kind::op && step.num_ops > 1; };
  bool has_joint = false;
  for (int rank = 0; rank < plan.schedule().num_ranks(); ++rank) {
    const auto& steps = plan.rank(rank).steps;
    has_joint = has_joint || std::any_of(steps.begin(), steps.end(), joint);
  }
  const char* why = "no joint block has an F and a backward of layers with experts";
  if (!plan.has_experts()) {
    why = "the model has no experts";
  } else if (plan.layout().expert == 1) {
    why = "without expert parallelism (--ep) nothing is exchanged";
  } else if (!has_joint) {
    why = "the schedule has no joint blocks (combined-1f1b, dualpipe and dualpipe-v do)";
  } else if (plan.spec().weave.order.empty()) {
    why = "with --joint-overlap none joint blocks run one op after the other";
  } else if (plan.spec().recompute) {
    why = "with recomputation joint blocks run one op after the other";
  }
  print_message(fmt::format("note: --weave (/parallelism/weave) has no effect: {}", why));
}

RunSpec RunFlags::spec(const Scenario& scenario, const RunPlace& place) const {
  RunSpec spec{.model = scenario.model->transformer("a run"), .kernels = place.kernels()};
  spec.attention = place.attention();
  spec.precision = precision_of(values_->precision, spec.kernels != nullptr);
  spec.data_parallel = scenario.training.dp;
  spec.tensor_parallel = scenario.training.tp;
  spec.expert_parallel = scenario.training.ep;
  spec.stage_layers = scenario.stage_layers;
  spec.first_stage_layers = scenario.first_stage_layers;
  spec.last_stage_layers = scenario.last_stage_layers;
  spec.recompute = scenario.training.recompute == Training::Recompute::full;
  spec.overlap_grad_reduce = scenario.training.overlap_grad_reduce;
  spec.scatter_gather = scenario.training.scatter_gather;
  const bool serial = scenario.training.joint_overlap == Training::JointOverlap::none;
  spec.weave = serial || scenario.training.weave == kSearchedWeave ? Weave{} : find_weave(scenario.training.weave);
  spec.clip_gradients = is_asynchronous(scenario) ? 0 : values_->clip;
  spec.optimizer.kind = values_->optimizer == "sgd" ? OptimizerStep::Kind::sgd : OptimizerStep::Kind::adam;
  spec.optimizer.learning_rate = values_->learning_rate;
  spec.optimizer.weight_decay = values_->weight_decay;
  spec.seed = values_->seed;
  return spec;
}

std::vector<Schedule> RunFlags::schedules(const Scenario& scenario, int batches) const {
  Scenario complete = scenario;
  if (is_asynchronous(complete) && complete.batches == 0) complete.batches = batches;
  if (!scenario.documents) return {make_schedule(complete)};
  std::vector<Schedule> out;
  for (const Microbatches& replica : scenario.documents->replicas) {
    auto batch = std::make_shared<Batch>(*scenario.documents);
    batch->replicas = {replica};
    complete.documents = std::move(batch);
    out.push_back(make_schedule(complete));
  }
  return out;
}

Schedule RunFlags::schedule(const Scenario& scenario, int batches) const {
  std::vector<Schedule> replicas = schedules(scenario, batches);
  if (replicas.size() == 1) return std::move(replicas.front());
  throw InputError(scenario.source +
                   ": documents of different length in several replicas (/parallelism/dp) are for "
                   "'sluice run' alone");
}

TokenSource RunFlags::tokens(const RunPlan& plan) const {
  const auto vocabulary = static_cast<int>(plan.spec().model.vocab);
  if (values_->data.empty()) return TokenSource::synthetic(vocabulary, plan.sequence_length(), values_->seed);
  return TokenSource::of_text(values_->data, vocabulary, plan.sequence_length(), values_->seed);
}

std::string RunFlags::data_name() const {
  return values_->data.empty() ? "synthetic" : std::filesystem::path(values_->data).filename().string();
}

std::string blas_advice(const std::string& coretype) {
  return fmt::format("OpenBLAS uses kernels without AVX-512, which this CPU has: OPENBLAS_CORETYPE={} is faster",
                     coretype);
}

}  // namespace sluice::tools

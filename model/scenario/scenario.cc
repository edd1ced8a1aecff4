#include "model/scenario/scenario.h"

#include <fmt/format.h>

#include <filesystem>
#include <numeric>
#include <utility>

#include "model/batches/batch.h"
#include "model/blocks/layer.h"
#include "model/blocks/model_files.h"
#include "model/cluster/catalogue.h"
#include "model/errors.h"
#include "model/graph/host_program.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"
#include "model/input/numbers.h"
#include "model/scenario/pipeline_layout.h"
#include "model/scenario/setting_rules.h"
#include "model/scenario/settings.h"
#include "model/slicing/balanced.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kMostNodes = 65536;
constexpr std::int64_t kMostReplicas = 1 << 20;
const std::vector<std::string> kCosts = {"uniform", "analytic", "fitted"};

int whole(JsonReader& object, const std::string& key, std::int64_t low, std::int64_t high, std::int64_t fallback) {
  return static_cast<int>(object.integer_or(key, low, high, fallback));
}

// Reads an optional object.
template <typename Read>
void section(JsonReader& root, const std::string& key, Read&& read) {
  if (!root.has(key)) {
    root.allow(key);
    return;
  }
  JsonReader object = root.at(key);
  read(object);
  object.finish();
}

class Reading {
 public:
  Reading(const Json& document, std::string source, std::string folder)
      : root_(document, source), folder_(std::move(folder)) {
    scenario_.source = std::move(source);
    scenario_.training.pp = 0;  // until it is specified
  }

  Scenario run() {
    if (root_.has("schema") && root_.string("schema") != "sluice.scenario/1") {
      root_.at("schema").fail("expected \"sluice.scenario/1\"");
    }
    root_.allow("schema");
    root_.allow("name");
    root_.allow("comment");
    read_settings("", root_, scenario_);
    read_model();
    read_predictions();
    section(root_, "parallelism", [&](JsonReader& object) { read_parallelism(object); });
    section(root_, "batch", [&](JsonReader& object) { read_batch(object); });
    read_encoder(root_.json(), scenario_);
    read_cluster();
    read_software();
    read_schedule();
    read_cost();
    read_kernel_times();
    read_correction();
    section(root_, "perturbation",
            [&](JsonReader& object) { scenario_.perturbation = perturbation_from_json(object); });
    root_.finish();
    return std::move(scenario_);
  }

 private:
  std::string resolved(const std::string& path) const {
    return std::filesystem::path(path).is_absolute() || folder_.empty() ? path : folder_ + "/" + path;
  }

  void read_model() {
    if (!root_.has("model")) return;
    JsonReader model = root_.at("model");
    if (model.json().is_string()) {
      scenario_.model = find_model(model, resolved(model.string()));
    } else {
      scenario_.model = model_from_json(model);
      scenario_.model->set_name(model.has("name")
                                    ? model.string("name")
                                    : fmt::format("{} layers of {}", scenario_.model->layers, scenario_.model->hidden));
    }
  }

  // The layers of multi-token prediction instead of those of the model's file.
  void read_predictions() {
    if (!root_.has("mtp_num_layers")) return;
    const JsonReader layers = root_.at("mtp_num_layers");
    if (!scenario_.model) layers.fail("requires a model (--model)");
    scenario_.model->set_mtp_layers(layers.json().get<int>());
  }

  void read_layout(JsonReader& object) {
    if (!object.has("pipeline_layout")) return;
    const JsonReader layout = object.at("pipeline_layout");
    for (const char* key : {"stage_layers", "first_stage_layers", "last_stage_layers"}) {
      if (object.has(key)) layout.fail(fmt::format("specify pipeline_layout or {}, not both", key));
    }
    PipelineLayout read;
    try {
      read = model::read_layout(layout.string());
    } catch (const InputError& error) {
      layout.fail(error.what());
    }
    const int layers = std::accumulate(read.layers.begin(), read.layers.end(), 0);
    if (scenario_.model && layers != scenario_.model->layers) {
      layout.fail(fmt::format("expected the model's {} layers, not {}", scenario_.model->layers, layers));
    }
    if (scenario_.model && read.mtp_layers != scenario_.model->mtp_layers) {
      layout.fail(fmt::format("expected as many m as layers for multi-token prediction (--mtp-num-layers), {}, not {}",
                              scenario_.model->mtp_layers, read.mtp_layers));
    }
    scenario_.stage_layers = std::move(read.layers);
    if (read.mtp_layers > 0) scenario_.mtp_stage = read.mtp_stage;
    scenario_.predictions = std::move(read.predictions);
    const int stages = static_cast<int>(scenario_.stage_layers.size());
    const int ranks = scenario_.training.pp;
    if (ranks == 0) layout.fail("requires pp");
    if (stages % ranks != 0) layout.fail(fmt::format("{} stages are not a multiple of pp {}", stages, ranks));
    const int chunks = stages / ranks;
    if (scenario_.chunks > 0 && scenario_.chunks != chunks) {
      layout.fail(fmt::format("{} stages of pp {} are vpp {}, got vpp {}", stages, ranks, chunks, scenario_.chunks));
    }
    scenario_.chunks = chunks;
  }

  void read_parallelism(JsonReader& object) {
    Training& training = scenario_.training;
    read_settings("/parallelism", object, scenario_);
    read_gpus(object);
    read_weave(object);
    check_expert_load(object, scenario_.model, training);
    read_zero(object);
    if (training.overlap_param_gather && !(training.distributed_optimizer && training.overlap_grad_reduce)) {
      object.at("overlap_param_gather").fail("requires distributed_optimizer (or zero) and overlap_grad_reduce");
    }
    read_cross_entropy(object);
    check_fused_experts(object, scenario_.model, training);
    read_graph_modules(object, scenario_.model, training);
    if (training.gradient_copy && training.gradient_bytes != 4) {
      object.at("gradient_copy").fail("requires gradient_bytes 4");
    }
    read_offload(object);
    read_activation_offload(object);
    check_precision(object);
    read_recompute_modules(object);
    if (training.recompute_layers > 0 && training.recompute != Training::Recompute::full) {
      object.at("recompute_layers").fail("requires \"recompute\": \"full\"");
    }
    read_layout(object);
    read_layers_per_chunk(object);
  }

  void read_layers_per_chunk(JsonReader& object) {
    if (!object.has("layers_per_virtual_stage")) return;
    const JsonReader layers = object.at("layers_per_virtual_stage");
    if (scenario_.chunks != 0) layers.fail("specify vpp or layers_per_virtual_stage, not both");
    const int ranks = scenario_.training.pp;
    if (!scenario_.model || ranks == 0) layers.fail("requires a model and pp");
    const std::int64_t per_rank = layers.json().get<std::int64_t>() * ranks;
    if (scenario_.model->layers % per_rank != 0) {
      layers.fail(fmt::format("expected a divisor of {} layers / {} ranks", scenario_.model->layers, ranks));
    }
    scenario_.chunks = static_cast<int>(scenario_.model->layers / per_rank);
  }

  void read_weave(JsonReader& object) {
    if (!object.has("weave")) return;
    const JsonReader weave = object.at("weave");
    scenario_.training.weave = weave.string();
    if (scenario_.training.weave == kSearchedWeave) return;
    find_weave(scenario_.training.weave, fmt::format("{}: {}", weave.source(), weave.pointer()));
  }

  // Throws InputError if no layer of the model has this module.
  static void check_recomputed(const Model& model, RecomputeModule module, const JsonReader& name) {
    const bool of_experts = module == RecomputeModule::experts || module == RecomputeModule::activation;
    if (of_experts && !model.has_experts()) name.fail("requires a model with experts");
    if (module == RecomputeModule::shared_experts && model.experts.shared_ffn_hidden == 0) {
      name.fail("requires a model with shared experts");
    }
    const auto has = [&](std::string_view kind) {
      return model.any_block([&](const Block& block) { return block.kind() == kind; });
    };
    if (module == RecomputeModule::mlp && !has("mlp")) name.fail("requires a model with dense layers");
    if (module == RecomputeModule::up_projection && !has("latent_attention") && !has("compressed_attention")) {
      name.fail("requires a model with latent attention");
    }
  }

  void read_recompute_modules(JsonReader& object) {
    if (!object.has("recompute_modules")) return;
    const JsonReader list = object.at("recompute_modules");
    RecomputeModules modules;
    const std::vector<std::string>& names = recompute_module_names();
    for (const JsonReader& element : list.elements()) {
      const std::string word = element.one_of(names);
      const auto module = static_cast<RecomputeModule>(std::find(names.begin(), names.end(), word) - names.begin());
      if (scenario_.model) check_recomputed(*scenario_.model, module, element);
      modules = modules | module;
    }
    scenario_.training.recompute_modules = modules;
  }

  void read_cross_entropy(JsonReader& object) {
    const bool fused = object.boolean_or("fused_cross_entropy", false);
    const std::string kernels = object.string_or("cross_entropy_fusion_impl", "te");
    if (fused && kernels == "plain") {
      object.at("cross_entropy_fusion_impl").fail("excludes fused_cross_entropy: expected native or te");
    }
    using enum Training::CrossEntropy;
    scenario_.training.cross_entropy = !fused                ? (kernels == "plain" ? plain : separate)
                                       : kernels == "native" ? native
                                                             : te;
  }

  // What is sharded over replicas. distributed_optimizer means stage 1 or more.
  void read_zero(JsonReader& object) {
    Training& training = scenario_.training;
    const int stage = object.has("zero") ? object.at("zero").json().get<int>() : -1;
    if (!object.has("distributed_optimizer")) training.distributed_optimizer = stage > 0;
    if (stage >= 0 && training.distributed_optimizer != (stage > 0)) {
      object.at("zero").fail(fmt::format("contradicts distributed_optimizer, which is {}: expected {}",
                                         training.distributed_optimizer, stage > 0 ? "0" : "1, 2 or 3"));
    }
    training.zero = std::max(1, stage);
    if (object.has("dp_shard")) {
      const JsonReader shard = object.at("dp_shard");
      training.dp_shard = shard.json().get<int>();
      if (!training.distributed_optimizer) shard.fail("requires zero 1, 2 or 3, or distributed_optimizer");
      if (training.dp % training.dp_shard != 0) {
        shard.fail(fmt::format("expected a divisor of dp {}", training.dp));
      }
    }
    if (object.has("dp_replicate")) {
      const JsonReader replicate = object.at("dp_replicate");
      const int copies = replicate.json().get<int>();
      if (training.dp_shard > 0) replicate.fail("specify dp_shard or dp_replicate, not both");
      if (!training.distributed_optimizer) replicate.fail("requires zero 1, 2 or 3, or distributed_optimizer");
      if (training.dp % copies != 0) replicate.fail(fmt::format("expected a divisor of dp {}", training.dp));
      if (copies > 1) training.dp_shard = training.dp / copies;
    }
    if (training.reshard_after_forward && training.zero_stage() != 3)
      object.at("reshard_after_forward").fail("requires zero 3");
  }

  // Optimizer states in host memory.
  void read_offload(JsonReader& object) {
    Training& training = scenario_.training;
    const double fraction = object.number_or("optimizer_offload_fraction", 0, 1, 1);
    const bool overlapped = object.boolean_or("overlap_cpu_optimizer_d2h_h2d", false);
    if (!object.boolean_or("optimizer_cpu_offload", false)) return;
    if (training.zero_stage() == 3 && fraction != 1) {
      object.at("optimizer_offload_fraction")
          .fail("expected 1 with zero 3, whose 32-bit parameters are on the host too");
    }
    training.optimizer_offload = fraction;
    training.overlap_optimizer_offload = overlapped;
  }

  void read_activation_offload(JsonReader& object) {
    if (object.has("offload_modules")) {
      if (!object.has("offload_activations")) object.at("offload_modules").fail("requires offload_activations");
      for (const JsonReader& name : object.at("offload_modules").elements()) {
        scenario_.training.offload_modules.push_back(name.string());
      }
    }
    if (!object.has("offload_activations")) return;
    const JsonReader value = object.at("offload_activations");
    double& offload = scenario_.training.activation_offload;
    offload = Training::kAutomaticOffload;
    if (value.string() == "auto") return;
    if (!parse_number(value.string(), offload) || !(offload >= 0 && offload <= 1)) {
      value.fail("expected auto or a fraction from 0 to 1");
    }
  }

  void check_precision(JsonReader& object) {
    const Training& training = scenario_.training;
    if (training.narrow_parameters && traits_of(training.precision).bits != 8) {
      object.at("fp8_param_gather").fail("requires a precision of 8 bits");
    }
    if (training.narrow_attention && traits_of(training.precision).bits > 8) {
      object.at("fp8_dot_product_attention").fail("requires a precision of 8 or 4 bits");
    }
    if (training.narrow_attention && !training.flash_attention) {
      object.at("fp8_dot_product_attention").fail("requires flash_attention");
    }
  }

  // The number of GPUs instead of dp.
  void read_gpus(JsonReader& object) {
    if (!object.has("gpus")) return;
    Training& training = scenario_.training;
    const JsonReader gpus = object.at("gpus");
    const auto number = gpus.json().get<std::int64_t>();
    if (object.has("dp")) gpus.fail("specify dp or gpus, not both");
    if (training.pp == 0) gpus.fail("requires pp");
    for (const auto& [key, size] :
         {std::pair("tp", training.tp), std::pair("cp", training.cp), std::pair("pp", training.pp)}) {
      if (number % size != 0) object.at(key).fail(fmt::format("expected a divisor of the {} GPUs", number));
    }
    const std::int64_t replica = std::int64_t{training.tp} * training.cp * training.pp;
    if (number % replica != 0) {
      gpus.fail(
          fmt::format("expected a multiple of tp x cp x pp = {} x {} x {}", training.tp, training.cp, training.pp));
    }
    if (number / replica > kMostReplicas) {
      gpus.fail(fmt::format("expected at most {} replicas of tp x cp x pp = {} x {} x {} GPUs", kMostReplicas,
                            training.tp, training.cp, training.pp));
    }
    training.dp = static_cast<int>(number / replica);
  }

  void read_batch(JsonReader& object) {
    read_settings("/batch", object, scenario_);
    scenario_.shape.sequences = scenario_.training.micro_batch;
    if (object.has("lengths")) return read_documents(object);
    for (const char* key : {"pack", "order"}) {
      if (object.has(key)) object.at(key).fail("requires the lengths of documents (--lengths)");
    }
    if (scenario_.context_grouping != ContextGrouping::none || scenario_.most_tokens_per_rank > 0) {
      object.fail("dynamic context parallelism requires the lengths of documents (--lengths)");
    }
    if (scenario_.global_batch == 0) return;
    const std::int64_t each = std::int64_t{scenario_.training.micro_batch} * scenario_.training.dp;
    JsonReader batch = object.at("global_batch");
    if (scenario_.global_batch % each != 0) {
      batch.fail(fmt::format("expected a multiple of micro_batch x dp = {} x {}", scenario_.training.micro_batch,
                             scenario_.training.dp));
    }
    const std::int64_t microbatches = scenario_.global_batch / each;
    if (scenario_.microbatches != 0 && scenario_.microbatches != microbatches) {
      batch.fail(fmt::format("expected micro_batch x dp x microbatches = {} x {} x {}", scenario_.training.micro_batch,
                             scenario_.training.dp, scenario_.microbatches));
    }
    scenario_.microbatches = static_cast<int>(microbatches);
  }

  void read_documents(JsonReader& object) {
    const JsonReader lengths = object.at("lengths");
    Training& training = scenario_.training;
    if (training.micro_batch != 1)
      lengths.fail("requires one sequence per microbatch (--mbs 1), which packs documents");
    if (scenario_.global_batch > 0) object.at("global_batch").fail("expected none with lengths, which are the batch");
    if (!training.flash_attention) lengths.fail("requires flash_attention");
    const auto word = [&](const char* key, const std::vector<std::string>& words) {
      if (!object.has(key)) return std::ptrdiff_t{0};
      return std::find(words.begin(), words.end(), object.at(key).string()) - words.begin();
    };
    const std::string name = lengths.string();
    const std::string place = fmt::format("{}: {}", lengths.source(), lengths.pointer());
    BatchRequest request{.loaded = read_lengths(name.find(':') == std::string::npos ? resolved(name) : name, place),
                         .place = place,
                         .packer = static_cast<Packer>(word("pack", kPackers)),
                         .order = static_cast<MicrobatchOrder>(word("order", kMicrobatchOrders)),
                         .replicas = training.dp,
                         .microbatches = scenario_.microbatches,
                         .most_tokens = training.sequence_length,
                         .grouping = scenario_.context_grouping,
                         .most_tokens_per_rank = scenario_.most_tokens_per_rank,
                         .pipelined = training.pp > 1};
    if (request.grouping == ContextGrouping::none && request.most_tokens_per_rank > 0) {
      object.fail("the tokens of a rank matter with dynamic context parallelism only (--dynamic-cp)");
    }
    if (request.grouping != ContextGrouping::none) check_shared_ranks(object);
    request.in_step = replicas_in_step(training);
    scenario_.documents =
        std::make_shared<Batch>(make_batch(std::move(request), scenario_.model ? &*scenario_.model : nullptr));
    scenario_.microbatches = scenario_.documents->microbatches();
    if (scenario_.model && training.sequence_length == 0) training.sequence_length = scenario_.documents->longest();
  }

  void check_shared_ranks(const JsonReader& object) const {
    if (scenario_.training.cp > 1) {
      object.fail("dynamic context parallelism splits documents over the data-parallel ranks (--dp): expected no --cp");
    }
    if (names_file(scenario_.schedule)) object.fail("dynamic context parallelism requires a schedule of a family");
  }

  void read_cluster() {
    if (!root_.has("cluster")) {
      root_.allow("cluster");
      return;
    }
    JsonReader cluster = root_.at("cluster");
    Cluster loaded;
    if (!cluster.json().is_string() && !cluster.has("name")) {
      loaded = cluster_from_json(cluster);
    } else if (cluster.json().is_string()) {
      loaded = load_cluster(catalogue_or_path(cluster, catalogue_nodes()), 0);
    } else {
      const std::string name = catalogue_or_path(cluster.at("name"), catalogue_nodes());
      const int nodes = whole(cluster, "nodes", 1, kMostNodes, 0);
      loaded = load_cluster(name, nodes);
      loaded.gpus_per_node_specified = cluster.has("gpus_per_node");
      loaded.gpus_per_node = whole(cluster, "gpus_per_node", 1, loaded.gpus_per_node, loaded.gpus_per_node);
      cluster.finish();
    }
    Training training = scenario_.training;
    training.pp = std::max(1, training.pp);
    const std::int64_t needed = (training.world_size() + loaded.gpus_per_node - 1) / loaded.gpus_per_node;
    if (!loaded.nodes_specified && needed > kMostNodes) {
      cluster.fail(fmt::format("{} GPUs need {} nodes: more than {}", training.world_size(), needed, kMostNodes));
    }
    loaded.use_for(training.world_size());
    scenario_.cluster = std::move(loaded);
  }

  // Returns a name of the catalogue, or the resolved path of a file. Other names are errors.
  std::string catalogue_or_path(const JsonReader& value, const std::vector<std::string>& names) const {
    std::string name = value.string();
    if (std::find(names.begin(), names.end(), name) != names.end()) return name;
    std::string path = resolved(name);
    std::error_code error;
    if (names_file(name) || std::filesystem::exists(path, error) || error) return path;
    value.fail(fmt::format("expected a file or one of {}", fmt::join(names, ", ")), did_you_mean(name, names));
  }

  void read_kernel_times() {
    if (!root_.has("kernel_times")) return;
    const JsonReader times = root_.at("kernel_times");
    if (scenario_.cost != CostKind::analytic || !scenario_.cluster) {
      times.fail("only valid with a cluster and the analytic cost");
    }
    scenario_.kernel_times =
        times.json().is_string() ? model::read_kernel_times(resolved(times.string())) : kernel_times_from_json(times);
    const std::string& gpu = scenario_.cluster->gpu.name;
    if (scenario_.kernel_times->gpu == gpu) return;
    throw InputError(fmt::format("{}: {}: measured on the GPU {}, but the cluster has {}", times.source(),
                                 times.pointer(), scenario_.kernel_times->gpu, gpu));
  }

  void read_correction() {
    if (!root_.has("calibration")) return;
    const JsonReader calibration = root_.at("calibration");
    scenario_.correction = calibration.json().is_string() ? model::read_correction(resolved(calibration.string()))
                                                          : correction_from_json(calibration);
  }

  void read_software() {
    if (!root_.has("software")) {
      if (scenario_.cluster) scenario_.software = load_software("megatron-lm");
      return;
    }
    JsonReader software = root_.at("software");
    if (!software.json().is_string()) {
      scenario_.software = software_from_json(software);
      return;
    }
    scenario_.software = load_software(catalogue_or_path(software, catalogue_software()));
  }

  void read_schedule() {
    if (!root_.has("schedule")) {
      root_.allow("schedule");
      cut_evenly(1);
      return;
    }
    JsonReader schedule = root_.at("schedule");
    if (schedule.json().is_string()) {
      scenario_.schedule = named_schedule(schedule.string());
      cut_evenly(1);
      return;
    }
    scenario_.schedule = named_schedule(schedule.string_or("name", "1f1b"));
    read_settings("/schedule", schedule, scenario_);
    read_automatic(schedule);
    if (schedule.has("communicators")) read_queues(schedule.at("communicators"));
    const int slices = schedule.has("slices") ? schedule.at("slices").json().get<int>() : 0;
    if (schedule.has("slice_lengths")) {
      JsonReader lengths = schedule.at("slice_lengths");
      scenario_.shape.slice_lengths.clear();
      for (const JsonReader& length : lengths.elements()) {
        scenario_.shape.slice_lengths.push_back(length.integer(1, std::int64_t{1} << 30));
      }
      if (scenario_.shape.slice_lengths.empty() || scenario_.shape.num_slices() > kMaxSlices) {
        lengths.fail(fmt::format("expected 1 to {} slices", kMaxSlices));
      }
      if (slices != 0 && slices != scenario_.shape.num_slices()) {
        lengths.fail(fmt::format("expected {} lengths (slices)", slices));
      }
      std::int64_t& sequence = scenario_.training.sequence_length;
      if (sequence != 0 && sequence != scenario_.shape.tokens()) {
        lengths.fail(fmt::format("expected lengths that add up to the sequence length {}", sequence));
      }
    } else {
      cut(schedule, std::max(1, slices));
    }
    schedule.finish();
    if (scenario_.training.forward_only()) check_forward_only(schedule);
  }

  // What is set for backwards and steps has no effect.
  void check_forward_only(const JsonReader& schedule) const {
    if (scenario_.schedule == kAutomatic) schedule.fail("expected a family or a file (auto has no forward_only)");
    for (const Setting& row : settings()) {
      if ((row.reads & kBackward) == 0) continue;
      const Json::json_pointer pointer{std::string(row.pointer)};
      const Json fallback = Json::parse(row.fallback, nullptr, false);
      if (!root_.json().contains(pointer) || root_.json()[pointer] == fallback) continue;
      throw InputError(fmt::format("{}: {}: no effect without a backward (/schedule/forward_only): expected none",
                                   scenario_.source, row.pointer));
    }
  }

  void read_queues(const JsonReader& value) {
    const std::string place = fmt::format("{}: {}", value.source(), value.pointer());
    CommunicatorOptions read = read_communicators(value.string(), place);
    if (read.communicators.ends_with(".json")) read.communicators = resolved(read.communicators);
    static_cast<void>(communicator_mapping(read.communicators, place));
    scenario_.communicators = std::move(read);
  }

  void read_automatic(JsonReader& schedule) {
    AutomaticChoices& choices = scenario_.automatic;
    for (const char* key : {"memory_cap", "placement", "time_budget_s", "evaluations"}) {
      if (schedule.has(key) && scenario_.schedule != kAutomatic) {
        schedule.at(key).fail("only valid for the automatic schedule (auto)");
      }
    }
    if (schedule.has("memory_cap")) {
      const JsonReader cap = schedule.at("memory_cap");
      choices.cap = parse_memory_cap(cap.string(), fmt::format("{}: {}", cap.source(), cap.pointer()));
    }
    choices.placement = schedule.string_or("placement", choices.placement);
    if (schedule.has("time_budget_s")) choices.seconds = schedule.at("time_budget_s").json().get<double>();
    choices.evaluations = schedule.integer_or("evaluations", 1, 1'000'000'000, 0);
  }

  // Slices of equal FLOPs, in multiples that suit attention kernels if the sequence is long enough, or of equal length.
  void cut(JsonReader& schedule, int slices) {
    const bool balanced = schedule.string_or("slicing", "even") == "balanced";
    if (!balanced) return cut_evenly(slices);
    const std::int64_t sequence = scenario_.training.sequence_length;
    if (!scenario_.model || sequence == 0) {
      schedule.at("slicing").fail("balanced slices need a model and a sequence length");
    }
    if (slices > sequence) return cut_evenly(slices);  // which throws
    scenario_.shape.slice_lengths =
        balanced_slices(*scenario_.model, sequence, slices, balanced_multiple(sequence, slices));
  }

  // Equal slices; where the sequence is not divisible, the first ones have one more token.
  void cut_evenly(int slices) {
    const std::int64_t sequence = scenario_.training.sequence_length;
    if (sequence == 0) {
      scenario_.shape.slice_lengths.assign(slices, 1);
      return;
    }
    try {
      scenario_.shape.slice_lengths = even_slices(sequence, slices);
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: /schedule/slices: {}", scenario_.source, error.what()));
    }
  }

  // Resolves a path relative to the scenario's folder; other names are families.
  std::string named_schedule(const std::string& name) const { return names_file(name) ? resolved(name) : name; }

  void read_cost() {
    scenario_.cost = scenario_.model ? CostKind::analytic : CostKind::uniform;
    scenario_.uniform = {.forward = {}, .input_gradient = {}, .weight_gradient = {}};
    if (!root_.has("cost")) return;
    JsonReader cost = root_.at("cost");
    std::string kind;
    if (cost.json().is_string()) {
      kind = cost.one_of(kCosts);
    } else {
      kind = cost.at("kind").one_of(kCosts);
    }
    scenario_.cost = static_cast<CostKind>(std::find(kCosts.begin(), kCosts.end(), kind) - kCosts.begin());
    if (cost.json().is_string()) return;
    if (scenario_.cost == CostKind::uniform) read_uniform(cost);
    if (scenario_.cost == CostKind::fitted) {
      scenario_.cost_file = resolved(cost.string("file"));
      check_cost_file_keys();
    }
    cost.finish();
  }

  // Throws InputError for a key that changes only times of ops, which with a cost file are those of its measurements,
  // and has a value other than its default.
  void check_cost_file_keys() {
    for (const Setting& row : settings()) {
      const nlohmann::json::json_pointer place{std::string(row.pointer)};
      if (!row.analytic || !root_.json().contains(place)) continue;
      const Json& value = root_.json().at(place);
      const Json fallback = Json::parse(row.fallback, nullptr, false);
      if (value.is_null() || (!fallback.is_discarded() && value == fallback)) continue;
      JsonReader(value, root_.source(), std::string(row.pointer))
          .fail("only valid with the analytic cost, since the times of a cost file do not depend on it: expected " +
                (fallback.is_discarded() ? "none" : fallback.dump()));
    }
    if (scenario_.training.joint_overlap != Training::JointOverlap::all) return;
    root_.at("parallelism").at("joint_overlap").fail("expected none or experts with a cost file");
  }

  void read_uniform(JsonReader& cost) {
    const auto times = [&](const std::string& key, std::vector<double>& into) {
      if (!cost.has(key)) {
        cost.allow(key);
        return;
      }
      JsonReader value = cost.at(key);
      if (value.json().is_array()) {
        for (const JsonReader& one : value.elements()) into.push_back(one.number(0, 1e8));
        if (into.empty()) value.fail("expected a value");
      } else {
        into.push_back(value.number(0, 1e8));
      }
    };
    UniformTimes& uniform = scenario_.uniform;
    times("f", uniform.forward);
    times("b", uniform.input_gradient);
    times("w", uniform.weight_gradient);
    if (cost.has("fb")) uniform.joint = cost.number("fb", 0, 1e8);
    cost.allow("fb");
    if (cost.has("s")) uniform.vocabulary = cost.number("s", 0, 1e8);
    cost.allow("s");
    if (cost.has("t")) uniform.vocabulary_gradient = cost.number("t", 0, 1e8);
    cost.allow("t");
    if (cost.has("comm")) uniform.hop = cost.number("comm", 0, 1e8);
    cost.allow("comm");
    if (cost.has("copy")) uniform.copy = cost.number("copy", 0, 1e8);
    cost.allow("copy");
    if (cost.has("stage_weights")) times("stage_weights", uniform.stage_weights);
    cost.allow("stage_weights");
    if (cost.has("stages")) read_stages(cost);
    cost.allow("stages");
    uniform.optimizer = cost.number_or("optimizer", 0, 1e8, 0);
  }

  void read_stages(JsonReader& cost) {
    for (const char* other : {"f", "b", "w", "s", "t", "fb", "stage_weights"}) {
      if (cost.has(other)) cost.at(other).fail("expected nothing beside /cost/stages, which has the times of all ops");
    }
    for (JsonReader stage : cost.at("stages").elements()) {
      scenario_.uniform.stages.push_back({.forward = stage.number("f", 0, 1e8),
                                          .input_gradient = stage.number("b", 0, 1e8),
                                          .weight_gradient = stage.number("w", 0, 1e8),
                                          .vocabulary = stage.number_or("s", 0, 1e8, 0),
                                          .vocabulary_gradient = stage.number_or("t", 0, 1e8, 0)});
      stage.finish();
    }
    if (scenario_.uniform.stages.empty()) cost.at("stages").fail("expected one entry per stage");
  }

  JsonReader root_;
  std::string folder_;
  Scenario scenario_;
};

}  // namespace

CorrectionOrigin origin_of(const Scenario& scenario) {
  CorrectionOrigin out;
  if (scenario.model) {
    out.model = scenario.model->name;
    out.parameters = parameters(*scenario.model);
  }
  if (!scenario.cluster) return out;
  out.framework = scenario.software.name;
  const PrecisionTraits& traits = traits_of(scenario.training.precision);
  out.precision = traits.narrow() ? traits.name : "16-bit";
  out.gpu = scenario.cluster->gpu.name;
  return out;
}

bool names_file(const std::string& schedule) {
  return schedule.find('/') != std::string::npos || schedule.ends_with(".json") || schedule.ends_with(".csv");
}

Scenario scenario_from_json(const nlohmann::json& document, const std::string& source, const std::string& folder) {
  return Reading(document, source, folder).run();
}

}  // namespace sluice::model

#include "import/torchtitan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "import/names.h"
#include "import/toml.h"
#include "model/blocks/model_files.h"
#include "model/cluster/catalogue.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/schedule/schedule.h"

namespace sluice::imports {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostTorchtitan = 1'000'000'000;

// Models of the catalogue by torchtitan's names.
struct TorchtitanFlavor {
  std::string_view name, flavor, model;
};
constexpr TorchtitanFlavor kFlavors[] = {{"llama3", "8B", "llama3-8b"},
                                         {"llama3", "70B", "llama3-70b"},
                                         {"deepseek_v3", "236B", "deepseek-v2"},
                                         {"deepseek_v3", "671B", "deepseek-v3"},
                                         {"qwen3", "30B-A3B", "qwen3-30b-a3b"}};

// Schedules of PyTorch, and whether they have several stages per rank by default.
struct TorchtitanSchedule {
  std::string_view name, family;
  bool several;
};
constexpr TorchtitanSchedule kSchedules[] = {{"1F1B", "1f1b", false},
                                             {"GPipe", "gpipe", false},
                                             {"Interleaved1F1B", "interleaved-1f1b", true},
                                             {"LoopedBFS", "looped-bfs", true},
                                             {"InterleavedZeroBubble", "interleaved-zb", true},
                                             {"ZBVZeroBubble", "zb-v", true},
                                             {"DualPipeV", "dualpipe-v", true}};

constexpr std::string_view kTablesWithoutEffect =
    "job profiling metrics optimizer lr_scheduler checkpoint comm validation fault_tolerance debug "
    "memory_estimation";

constexpr std::string_view kKeysWithoutEffect =
    "model.hf_assets_path model.tokenizer_path model.print_after_conversion model.norm_type training.dataset "
    "training.dataset_path training.steps training.max_norm training.warmup_steps training.gc_freq "
    "training.gc_debug training.seed training.deterministic training.data_parallel_type training.dtype "
    "parallelism.disable_loss_parallel parallelism.expert_tensor_parallel_degree "
    "activation_checkpoint.early_stop activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns "
    "float8.precompute_float8_dynamic_scale_for_fsdp float8.force_recompute_fp8_weight_in_bwd float8.filter_fqns "
    "compile.components compile.backend";

class TorchtitanImport {
 public:
  TorchtitanImport(std::string_view text, const std::string& source)
      : source_(source), file_(read_toml(text, source)) {}

  Imported run() {
    out_.scenario = {{"schema", "sluice.scenario/1"}};
    for (const char* table : {"model", "training", "parallelism", "activation_checkpoint"}) {
      if (file_.contains(table)) fail(table, "expected a table, got " + file_.at(table).value.dump());
    }
    read_model();
    read_sizes();
    read_schedule();
    read_batch();
    read_training();
    read_converters();
    read_loss();
    read_overlap();
    for (const auto& [key, value] : file_) note_rest(key, value.value);
    note("not modeled, although they change time or memory", not_modeled_);
    note("unknown keys", unknown_);
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw InputError(fmt::format("{}: {}: {}", source_, place_of(key), what));
  }

  void note(const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) out_.notes.push_back(fmt::format("{}: {}: {}", source_, what, fmt::join(names, ", ")));
  }

  const Json* value_of(const std::string& key) {
    read_.push_back(key);
    const auto found = file_.find(key);
    return found == file_.end() ? nullptr : &found->second.value;
  }
  std::int64_t whole(const std::string& key, std::int64_t low, std::int64_t fallback) {
    const Json* const value = value_of(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_integer() || *value < low || *value > kMostTorchtitan) {
      fail(key, fmt::format("expected a whole number from {} to {}, got {}", low, kMostTorchtitan, value->dump()));
    }
    return *value;
  }
  std::string text(const std::string& key, const std::string& fallback) {
    const Json* const value = value_of(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) fail(key, "expected a string, got " + value->dump());
    return *value;
  }
  // Returns "line 3: training.seq_len"; a key that the file does not have, without a line.
  std::string place_of(const std::string& key) const {
    const auto found = file_.find(key);
    return found == file_.end() ? key : fmt::format("line {}: {}", found->second.line, key);
  }
  // Sets a key of the scenario to a value that a key of the file determines.
  void set(const char* pointer, Json value, const char* key) {
    out_.places[pointer] = place_of(key);
    out_.scenario[Json::json_pointer(pointer)] = std::move(value);
  }

  void read_model() {
    const std::string name = text("model.name", "llama3");
    const std::string flavor = text("model.flavor", "");
    std::string model;
    std::vector<std::string> known;
    for (const TorchtitanFlavor& each : kFlavors) {
      known.push_back(fmt::format("{} of {}", each.flavor, each.name));
      if (each.name == name && each.flavor == flavor) model = each.model;
    }
    for (const CatalogueFile& file : model_files()) {
      if (file.name == flavor) model = flavor;
      if (model.empty() || file.name != model) continue;
      const Model read = parse_model(file.text, model);
      layers_ = read.layers;
      predicts_ = read.mtp_layers > 0;
    }
    // torchtitan trains without multi-token prediction.
    if (predicts_) set("/mtp_num_layers", 0, "model.flavor");
    if (!model.empty()) return set("/model", model, "model.flavor");
    unknown_model_ = flavor.empty() ? "required" : fmt::format("the model '{}' of {} is not known", flavor, name);
    out_.no_model = fmt::format("{}: {}: specify --model, or a flavor that is known: {}", place_of("model.flavor"),
                                unknown_model_, fmt::join(known, ", "));
  }

  void read_sizes() {
    tp_ = whole("parallelism.tensor_parallel_degree", 1, 1);
    cp_ = whole("parallelism.context_parallel_degree", 1, 1);
    pp_ = whole("parallelism.pipeline_parallel_degree", 1, 1);
    const std::int64_t ep = whole("parallelism.expert_parallel_degree", 1, 1);
    const std::int64_t replicas = whole("parallelism.data_parallel_replicate_degree", 1, 1);
    const std::int64_t shards = whole("parallelism.data_parallel_shard_degree", -1, -1);
    set("/parallelism/tp", tp_, "parallelism.tensor_parallel_degree");
    set("/parallelism/pp", pp_, "parallelism.pipeline_parallel_degree");
    if (cp_ > 1) set("/parallelism/cp", cp_, "parallelism.context_parallel_degree");
    if (ep > 1) set("/parallelism/ep", ep, "parallelism.expert_parallel_degree");
    if (tp_ > 1) {
      set("/parallelism/sequence_parallel", true, "parallelism.tensor_parallel_degree");
      set("/parallelism/gathered_inputs", true, "parallelism.tensor_parallel_degree");
    }
    if (pp_ > 1) set("/parallelism/torch_pipelining", true, "parallelism.pipeline_parallel_degree");
    if (shards == 0) fail("parallelism.data_parallel_shard_degree", "expected -1 or a positive number, got 0");
    if (shards > 0) set("/parallelism/dp", dp_ = replicas * shards, "parallelism.data_parallel_replicate_degree");
    read_sharding(replicas, shards);
    const std::string rotate = text("parallelism.context_parallel_rotate_method", "allgather");
    if (cp_ > 1 && rotate != "alltoall") {
      not_modeled_.push_back(
          fmt::format("parallelism.context_parallel_rotate_method = \"{}\" (a ring is assumed)", rotate));
    }
  }

  // Parameters are sharded over data- and context-parallel ranks, unless there is one of them or all have copies (DDP).
  void read_sharding(std::int64_t replicas, std::int64_t shards) {
    const char* const key = "parallelism.data_parallel_shard_degree";
    const char* const policy_key = "parallelism.fsdp_reshard_after_forward";
    const std::string policy = text(policy_key, "default");
    if (policy != "default" && policy != "always" && policy != "never") {
      fail(policy_key, fmt::format("expected default, always or never, got '{}'", policy));
    }
    const char* const offload_key = "training.enable_cpu_offload";
    const Json* const offload = value_of(offload_key);
    const bool offloads = offload != nullptr && *offload == true;
    if (shards == 1 && cp_ == 1) {
      if (offloads) not_modeled_.push_back(fmt::format("{} without shards", offload_key));
      return;
    }
    set("/parallelism/zero", 3, key);
    if (offloads) set("/parallelism/optimizer_cpu_offload", true, offload_key);
    if (policy != "default") set("/parallelism/reshard_after_forward", policy == "always", policy_key);
    if (replicas == 1) return;
    if (shards > 0) return set("/parallelism/dp_shard", shards, key);
    set("/parallelism/dp_replicate", replicas, "parallelism.data_parallel_replicate_degree");
  }

  void read_schedule() {
    const std::string csv = text("parallelism.pipeline_parallel_schedule_csv", "");
    const std::string name = text("parallelism.pipeline_parallel_schedule", "1F1B");
    const std::int64_t per_stage = whole("parallelism.pipeline_parallel_layers_per_stage", 1, 0);
    const std::int64_t first = whole("parallelism.pipeline_parallel_first_stage_less_layers", 0, 1);
    const std::int64_t last = whole("parallelism.pipeline_parallel_last_stage_less_layers", 0, 1);
    if (pp_ == 1) return set("/schedule/name", "1f1b", "parallelism.pipeline_parallel_schedule");
    if (!csv.empty()) return set("/schedule/name", csv, "parallelism.pipeline_parallel_schedule_csv");
    const auto schedule = std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                       [&](const TorchtitanSchedule& each) { return each.name == name; });
    if (schedule == std::end(kSchedules)) {
      std::vector<std::string_view> names;
      for (const TorchtitanSchedule& each : kSchedules) names.push_back(each.name);
      fail("parallelism.pipeline_parallel_schedule",
           fmt::format("expected one of {}, got '{}'", fmt::join(names, ", "), name));
    }
    set("/schedule/name", schedule->family, "parallelism.pipeline_parallel_schedule");
    if (layers_ == 0) fail("model.flavor", unknown_model_ + ", because a pipeline needs the number of layers");
    const std::int64_t all = layers_ + first + last;  // embedding and head count as layers
    const std::int64_t stages = per_stage > 0 ? (all + per_stage - 1) / per_stage : pp_ * (schedule->several ? 2 : 1);
    if (stages % pp_ != 0 || stages > kMaxStages) {
      fail("parallelism.pipeline_parallel_layers_per_stage",
           fmt::format("{} stages cannot be distributed evenly over {} ranks", stages, pp_));
    }
    stages_ = stages;
    const std::int64_t chunks = stages / pp_;
    const int fixed = find_family(schedule->family).fixed_chunks;
    if (fixed > 0 && chunks != fixed) {
      fail("parallelism.pipeline_parallel_schedule",
           fmt::format("{} places {} on each rank, got {}", name, fixed == 1 ? "one stage" : "two stages", chunks));
    }
    if (fixed == 0) set("/parallelism/vpp", chunks, "parallelism.pipeline_parallel_schedule");
    distribute(stages, all, first, last);
  }

  void distribute(std::int64_t stages, std::int64_t all, std::int64_t first, std::int64_t last) {
    std::vector<std::int64_t> layers;
    for (std::int64_t stage = 0; stage < stages; ++stage)
      layers.push_back(all / stages + (stage < all % stages ? 1 : 0));
    layers.front() -= first;
    layers.back() -= last;
    if (std::any_of(layers.begin(), layers.end(), [](std::int64_t number) { return number < 0; })) {
      fail("parallelism.pipeline_parallel_degree", fmt::format("{} layers are too few for {} stages", layers_, stages));
    }
    set("/parallelism/stage_layers", layers, "parallelism.pipeline_parallel_layers_per_stage");
  }

  void read_batch() {
    const char* const old_key = "training.batch_size";
    const std::int64_t local = whole("training.local_batch_size", 1, whole(old_key, 1, 8));
    const std::int64_t global = whole("training.global_batch_size", -1, -1);
    const std::int64_t micro = pp_ > 1 ? whole("parallelism.pipeline_parallel_microbatch_size", 1, 1) : local;
    static_cast<void>(whole("parallelism.pipeline_parallel_microbatch_size", 1, 1));
    set("/batch/sequence_length", whole("training.seq_len", 1, 2048), "training.seq_len");
    set("/batch/micro_batch", micro,
        pp_ > 1 ? "parallelism.pipeline_parallel_microbatch_size" : "training.local_batch_size");
    if (local % micro != 0) {
      fail("parallelism.pipeline_parallel_microbatch_size",
           fmt::format("expected a divisor of the local batch size {}, got {}", local, micro));
    }
    if (global > 0) {
      set("/batch/global_batch", global, "training.global_batch_size");
    } else {
      set("/batch/microbatches", local / micro, "training.local_batch_size");
    }
    if (pp_ > 1 && global > 0 && dp_ > 0 && global != local * dp_) {
      not_modeled_.emplace_back("accumulation over several pipeline runs (one is assumed)");
    }
  }

  void read_training() {
    const std::string mode = text("activation_checkpoint.mode", "selective");
    if (mode == "full") {
      set("/parallelism/recompute", "full", "activation_checkpoint.mode");
    } else if (mode == "selective") {
      read_selective();
    } else if (mode != "none") {
      fail("activation_checkpoint.mode", fmt::format("expected none, selective or full, got '{}'", mode));
    }
    if (text("training.mixed_precision_reduce", "float32") == "bfloat16")
      set("/parallelism/gradient_bytes", 2, "training.mixed_precision_reduce");
    if (text("training.mixed_precision_param", "bfloat16") == "float32") {
      not_modeled_.emplace_back("training.mixed_precision_param = \"float32\" (16 bits are assumed)");
    }
  }

  // Every Nth layer is recomputed. Of single operations, torchtitan recomputes about as much as of every second layer.
  void read_selective() {
    const char* const key = "activation_checkpoint.selective_ac_option";
    const std::string option = text(key, "2");
    constexpr std::string_view kDigits = "0123456789";
    const bool layers = !option.empty() && option.size() < 6 && option.find_first_not_of(kDigits) == std::string::npos;
    if (!layers && option != "op") fail(key, fmt::format("expected op or a number of layers, got '{}'", option));
    if (layers_ == 0) {
      not_modeled_.emplace_back("activation_checkpoint.mode = \"selective\" (none is assumed)");
      return;
    }
    if (!layers) not_modeled_.push_back(fmt::format("{} = \"op\" (every second layer is assumed)", key));
    const std::int64_t every = layers ? std::max<std::int64_t>(1, std::stoll(option)) : 2;
    const std::int64_t per_stage = (layers_ + stages_ - 1) / stages_;
    if (per_stage < every) return;
    set("/parallelism/recompute", "full", key);
    if (every > 1) set("/parallelism/recompute_layers", per_stage / every, key);
  }

  // Linear layers in 8 bits.
  void read_converters() {
    const Json* const converters = value_of("model.converters");
    if (converters == nullptr || !converters->is_array()) return;
    for (const Json& each : *converters) {
      const std::string name = each.is_string() ? each.get<std::string>() : each.dump();
      const bool scaled = name == "float8" || name == "quantize.linear.float8";
      if (!scaled && name != "mx" && name != "quantize.linear.mx") {
        not_modeled_.push_back("model.converters " + name);
        continue;
      }
      set("/parallelism/precision", scaled ? "fp8-current" : "mxfp8", "model.converters");
      const std::string& table = name;
      const std::string gather = table + ".enable_fsdp_float8_all_gather";
      const Json* const gathers = value_of(gather);
      if (gathers != nullptr && *gathers == true) set("/parallelism/fp8_param_gather", true, gather.c_str());
      const std::string recipe = text(table + ".recipe_name", "");
      if (scaled && recipe.starts_with("rowwise")) {
        not_modeled_.push_back(fmt::format("{}.recipe_name = \"{}\" (one scale per tensor is assumed)", table, recipe));
      }
    }
  }

  // PyTorch's loss, unless torch.compile includes it (by default, with compile.enable).
  void read_loss() {
    const char* const key = "/parallelism/cross_entropy_fusion_impl";
    const auto enable = file_.find("compile.enable");
    if (enable == file_.end() || enable->second.value != true) return set(key, "plain", "compile.enable");
    const Json* const parts = value_of("compile.components");
    if (parts != nullptr && std::find(parts->begin(), parts->end(), Json("loss")) == parts->end()) {
      return set(key, "plain", "compile.components");
    }
    set("/parallelism/fused_cross_entropy", true, "compile.enable");
    set(key, "te", "compile.enable");
  }

  void read_overlap() {
    for (const char* key : {"parallelism.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel"}) {
      const Json* const value = value_of(key);
      if (value != nullptr && *value == true && tp_ > 1) set("/parallelism/tp_comm_overlap", true, key);
    }
  }

  // Sorts the keys that are not read into those without effect, not modeled and unknown.
  void note_rest(const std::string& key, const Json& value) {
    if (std::find(read_.begin(), read_.end(), key) != read_.end()) return;
    const std::string table = key.substr(0, key.find('.'));
    if (lists_name(kTablesWithoutEffect, table) || lists_name(kKeysWithoutEffect, key)) return;
    constexpr std::string_view kNotModeledTables = "compile float8 mx quantize experimental";
    constexpr std::string_view kNotModeledKeys =
        "parallelism.enable_compiled_autograd parallelism.module_fqns_per_model_part "
        "parallelism.pipeline_parallel_split_points training.compile";
    const bool off = value == false || value == Json::array() || value == "";
    if (lists_name(kNotModeledTables, table) || lists_name(kNotModeledKeys, key)) {
      if (!off) not_modeled_.push_back(key);
    } else {
      unknown_.push_back(key);
    }
  }

  std::string source_;
  TomlFile file_;
  std::vector<std::string> read_;
  std::int64_t tp_ = 1;
  std::int64_t cp_ = 1;
  std::int64_t pp_ = 1;
  std::int64_t dp_ = 0;      // 0: not known
  std::int64_t layers_ = 0;  // 0: not known
  std::int64_t stages_ = 1;
  std::string unknown_model_;
  bool predicts_ = false;  // the model has multi-token prediction
  std::vector<std::string> not_modeled_;
  std::vector<std::string> unknown_;
  Imported out_;
};

}  // namespace

bool is_torchtitan(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\"'";
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
    const bool header = line.starts_with('[');
    line.remove_prefix(std::min(line.find_first_not_of("[ \t\"'"), line.size()));
    for (const std::string_view table : {"model", "training", "parallelism"}) {
      if (!line.starts_with(table)) continue;
      std::string_view rest = line.substr(table.size());
      rest.remove_prefix(std::min(rest.find_first_not_of(kBlank), rest.size()));
      // A line of a script may begin with model.x=y as well.
      const bool key = rest.starts_with('.') && rest.find('=') != std::string_view::npos && !rest.ends_with('\\');
      if (header ? rest.starts_with(']') || rest.starts_with('.') : key) return true;
    }
  }
  return false;
}

Imported import_torchtitan(std::string_view text, const std::string& source) {
  constexpr std::size_t kMostToml = std::size_t{1} << 20;
  if (text.size() > kMostToml) {
    throw InputError(fmt::format("{}: expected at most {} bytes, got {}", source, kMostToml, text.size()));
  }
  return TorchtitanImport(text, source).run();
}

}  // namespace sluice::imports

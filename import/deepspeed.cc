#include "import/deepspeed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "import/names.h"
#include "model/errors.h"
#include "model/input/json_reader.h"

namespace sluice::imports {
namespace {

constexpr std::int64_t kMostDeepSpeed = std::int64_t{1} << 40;

constexpr std::string_view kDeepSpeedWithoutEffect =
    "steps_per_print wall_clock_breakdown memory_breakdown dump_state optimizer scheduler "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer prescale_gradients gradient_predivide_factor "
    "flops_profiler tensorboard wandb csv_monitor comet monitor_config comms_logger checkpoint pipeline aio "
    "nebula autotuning elasticity";
constexpr std::string_view kDeepSpeedNotModeled =
    "amp communication_data_type compile compression_training curriculum_learning data_efficiency hybrid_engine "
    "seq_parallel_communication_data_type sparse_attention sparse_gradients torch_autocast";

// Keys of zero_optimization.
constexpr std::string_view kZeroWithoutEffect =
    "stage offload_optimizer offload_param cpu_offload allgather_partitions contiguous_gradients "
    "elastic_checkpoint grad_hooks ignore_unused_parameters legacy_stage1 load_from_fp32_weights reduce_scatter "
    "round_robin_gradients stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
    "stage3_model_persistence_threshold use_all_reduce_for_fetch_params log_trace_cache_warnings";
struct ZeroNotModeled {
  std::string_view name;
  double harmless;  // the value that changes nothing
};
constexpr ZeroNotModeled kZeroNotModeled[] = {{"mics_shard_size", -1},
                                              {"mics_hierarchical_params_gather", 0},
                                              {"zero_hpz_partition_size", 1},
                                              {"zero_quantized_weights", 0},
                                              {"zero_quantized_nontrainable_weights", 0},
                                              {"zero_quantized_gradients", 0},
                                              {"zeropp_loco_param", 0},
                                              {"stage3_param_persistence_threshold", 0},
                                              {"stage3_max_live_parameters", 1e9},
                                              {"stage3_max_reuse_distance", 1e9},
                                              {"stage3_prefetch_bucket_size", 5e7},
                                              {"stage3_module_granularity_threshold", 0},
                                              {"stage3_use_all_reduce_for_fetch_params", 0},
                                              {"sub_group_size", 1e9},
                                              {"reduce_bucket_size", 5e8},
                                              {"allgather_bucket_size", 5e8},
                                              {"overlap_comm", 0},
                                              {"use_multi_rank_bucket_allreduce", 1},
                                              {"memory_efficient_linear", 1}};

class DeepSpeedReader {
 public:
  DeepSpeedReader(std::string_view text, const std::string& source)
      : source_(source), document_(parse_json(text, source)), reader_(document_, source) {
    if (!document_.is_object()) reader_.fail("expected an object");
  }

  DeepSpeedConfig run() {
    read_batch();
    read_zero();
    read_precision();
    const double clip = has("gradient_clipping") ? reader_.number("gradient_clipping", 0, 1e30) : 0;
    add("clip-grad", fmt::format("{}", clip));
    read_activations();
    note_rest();
    return std::move(out_);
  }

 private:
  void add(const char* name, std::string value) { out_.arguments.push_back({name, {std::move(value)}, 0}); }
  void add(const char* name) { out_.arguments.push_back({name, {}, 0}); }

  // Returns whether a key is set; "auto" leaves it to the program.
  bool has(const char* key) {
    reader_.allow(key);
    return reader_.has(key) && document_.at(key) != "auto";
  }
  std::int64_t count(const char* key) { return has(key) ? reader_.integer(key, 1, kMostDeepSpeed) : 0; }
  bool enabled(const char* section) {
    if (!has(section)) return false;
    JsonReader reader = reader_.at(section);
    return reader.boolean_or("enabled", false);
  }

  void read_batch() {
    const std::int64_t batch = count("train_batch_size");
    const std::int64_t micro = count("train_micro_batch_size_per_gpu");
    const std::int64_t steps = count("gradient_accumulation_steps");
    if (batch > 0) add("global-batch-size", std::to_string(batch));
    if (micro > 0) add("micro-batch-size", std::to_string(micro));
    if (batch == 0 || micro == 0 || steps == 0) return;
    if (micro > batch || steps > batch / micro || batch % (micro * steps) != 0) {
      throw InputError(
          fmt::format("{}: /train_batch_size: expected a multiple of train_micro_batch_size_per_gpu x "
                      "gradient_accumulation_steps = {} x {}, got {}",
                      source_, micro, steps, batch));
    }
    add("data-parallel-size", std::to_string(batch / (micro * steps)));
  }

  void read_zero() {
    if (has("zero_optimization")) {
      JsonReader zero = reader_.at("zero_optimization");
      stage_ = zero.integer_or("stage", 0, 3, 0);
      read_offload(zero);
    }
    add("zero-stage", std::to_string(stage_));
    if (has("zero_optimization")) note_zero(document_.at("zero_optimization"));
  }

  // Optimizer states in host memory; with ZeRO 3 `ratio` of them. The former key is cpu_offload.
  void read_offload(JsonReader& zero) {
    bool offloads = zero.boolean_or("cpu_offload", false);
    if (zero.has("offload_param")) {
      JsonReader parameters = zero.at("offload_param");
      const char* const rule = "offloading of parameters is not modeled: expected \"none\"";
      if (parameters.string_or("device", "cpu") != "none") {
        parameters.has("device") ? parameters.at("device").fail(rule) : parameters.fail(rule);
      }
    }
    if (zero.has("offload_optimizer")) {
      JsonReader optimizer = zero.at("offload_optimizer");
      const std::string device = optimizer.string_or("device", "cpu");
      if (device != "none" && device != "cpu") {
        optimizer.at("device").fail("offloading to it is not modeled: expected \"none\" or \"cpu\"");
      }
      offloads |= device == "cpu";
      if (optimizer.number_or("ratio", 0, 1, 1) != 1) optimizer.at("ratio").fail("not modeled: expected 1");
    }
    if (offloads) add("optimizer-cpu-offload");
  }

  void note_zero(const Json& zero) {
    for (const auto& item : zero.items()) {
      const std::string& key = item.key();
      const Json& value = item.value();
      if (lists_name(kZeroWithoutEffect, key)) continue;
      const auto* const known = std::find_if(std::begin(kZeroNotModeled), std::end(kZeroNotModeled),
                                             [&](const ZeroNotModeled& each) { return each.name == key; });
      if (known == std::end(kZeroNotModeled)) {
        unknown_.push_back("zero_optimization." + key);
        continue;
      }
      const bool flag = value.is_boolean();
      const double number = flag ? (value.get<bool>() ? 1 : 0) : value.is_number() ? value.get<double>() : NAN;
      const bool sharded_only = key.starts_with("stage3_") && stage_ < 3;
      if (value.is_null() || value == "auto" || sharded_only || stage_ == 0 || number == known->harmless) continue;
      not_modeled_.push_back(fmt::format("zero_optimization.{} = {}", key, value.dump()));
    }
  }

  void read_precision() {
    const bool bf16 = enabled("bf16") || enabled("bfloat16");
    const bool fp16 = enabled("fp16");
    if (bf16) add("bf16");
    if (fp16) add("fp16");
    // DeepSpeed's default: 32 bits for bf16 without ZeRO, otherwise those of the model.
    std::string type = bf16 && stage_ == 0 ? "fp32" : bf16 ? "bf16" : fp16 ? "fp16" : "fp32";
    if (has("data_types")) type = reader_.at("data_types").string_or("grad_accum_dtype", type);
    const bool whole = type == "fp32" || type == "float32" || type == "torch.float32";
    if (fp16 && whole) add("accumulate-allreduce-grads-in-fp32");
    if (bf16 && !whole) add("grad-reduce-in-bf16");
  }

  void read_activations() {
    if (!has("activation_checkpointing")) return;
    JsonReader reader = reader_.at("activation_checkpointing");
    for (const char* key : {"partition_activations", "cpu_checkpointing", "contiguous_memory_optimization"}) {
      if (reader.boolean_or(key, false)) not_modeled_.push_back(fmt::format("activation_checkpointing.{}", key));
    }
  }

  void note_rest() {
    constexpr std::string_view kRead =
        "train_batch_size train_micro_batch_size_per_gpu zero_optimization gradient_accumulation_steps bf16 bfloat16 "
        "fp16 gradient_clipping data_types activation_checkpointing";
    for (const auto& [key, value] : document_.items()) {
      if (lists_name(kRead, key) || lists_name(kDeepSpeedWithoutEffect, key) || key.starts_with('_')) continue;
      const bool off = value.is_null() || value == false ||
                       (value.is_object() && value.contains("enabled") && value.at("enabled") == false);
      if (!lists_name(kDeepSpeedNotModeled, key)) {
        unknown_.push_back(key);
      } else if (!off) {
        not_modeled_.push_back(key);
      }
    }
    const auto note = [&](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) out_.notes.push_back(fmt::format("{}: {}: {}", source_, what, fmt::join(names, ", ")));
    };
    note("not modeled, although they change time or memory", not_modeled_);
    note("unknown keys", unknown_);
  }

  std::string source_;
  Json document_;
  JsonReader reader_;
  std::int64_t stage_ = 0;
  std::vector<std::string> not_modeled_;
  std::vector<std::string> unknown_;
  DeepSpeedConfig out_;
};

}  // namespace

DeepSpeedConfig read_deepspeed(std::string_view text, const std::string& source) {
  return DeepSpeedReader(text, source).run();
}

void add_deepspeed(DeepSpeedConfig& config, const std::string& source, std::vector<MegatronArgument>& arguments) {
  const auto value = [](const MegatronArgument& argument) { return fmt::format("{}", fmt::join(argument.words, " ")); };
  const auto number = [&](const MegatronArgument& argument) { return std::strtod(value(argument).c_str(), nullptr); };
  for (const MegatronArgument& argument : config.arguments) {
    for (const MegatronArgument& given : arguments) {
      if (given.name != argument.name || number(given) == number(argument)) continue;
      if (argument.name != "clip-grad" && argument.name != "zero-stage") {
        throw InputError(fmt::format("{}: sets --{} to {}, but the command to {}", source, argument.name,
                                     value(argument), value(given)));
      }
      config.notes.push_back(
          fmt::format("{}: replaces --{} {} by {}", source, argument.name, value(given), value(argument)));
    }
  }
  for (const MegatronArgument& argument : config.arguments) {
    std::erase_if(arguments, [&](const MegatronArgument& given) { return given.name == argument.name; });
  }
  arguments.insert(arguments.end(), config.arguments.begin(), config.arguments.end());
}

}  // namespace sluice::imports

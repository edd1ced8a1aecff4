#include "import/nemo.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "import/layer_frequency.h"
#include "import/megatron.h"
#include "import/megatron_names.h"
#include "import/names.h"
#include "import/shell.h"
#include "import/yaml.h"
#include "model/errors.h"

namespace sluice::imports {
namespace {

constexpr std::int64_t kMostGpus = std::int64_t{1} << 25;

// Keys that are named otherwise than Megatron-LM's arguments, or are in another section than `model`. Of several for an
// argument, Megatron-Bridge has the last.
struct NemoKey {
  std::string_view key;  // of a section "model" of both, if it has no dot
  std::string_view argument;
};
constexpr NemoKey kNemoKeys[] = {
    {"virtual_pipeline_model_parallel_size", "num-virtual-stages-per-pipeline-rank"},
    {"num_layers_in_first_pipeline_stage", "decoder-first-pipeline-num-layers"},
    {"num_layers_in_last_pipeline_stage", "decoder-last-pipeline-num-layers"},
    {"microbatch_group_size_per_vp_stage", "microbatch-group-size-per-virtual-pipeline-stage"},
    {"num_moe_experts", "num-experts"},
    {"activation_func_clamp_value", "activation-func-clamp-value"},
    {"cuda_graph_scope", "cuda-graph-modules"},
    {"train.micro_batch_size", "micro-batch-size"},
    {"train.global_batch_size", "global-batch-size"},
    {"dist.use_tp_pp_dp_mapping", "use-tp-pp-dp-mapping"},
    {"trainer.gradient_clip_val", "clip-grad"},
    {"optimizer.clip_grad", "clip-grad"},
    {"optimizer.use_precision_aware_optimizer", "use-precision-aware-optimizer"},
    {"optimizer.optimizer_cpu_offload", "optimizer-cpu-offload"},
    {"optimizer.optimizer_offload_fraction", "optimizer-offload-fraction"},
    {"optimizer.overlap_cpu_optimizer_d2h_h2d", "overlap-cpu-optimizer-d2h-h2d"},
    {"encoder_seq_length", "seq-length"},
    {"override_vocab_size", "vocab-size"},
    {"vocab_size", "vocab-size"},
    {"activations_checkpoint_granularity", "recompute-granularity"},
    {"recompute_granularity", "recompute-granularity"},
    {"activations_checkpoint_method", "recompute-method"},
    {"recompute_method", "recompute-method"},
    {"activations_checkpoint_num_layers", "recompute-num-layers"},
    {"recompute_num_layers", "recompute-num-layers"},
    {"ub_tp_comm_overlap", "tp-comm-overlap"},
    {"fp8", "fp8-format"},
    {"fp8_recipe", "fp8-recipe"},
    {"fp8_params", "fp8-param-gather"},
    {"fp4", "fp4-format"},
    {"fp4_recipe", "fp4-recipe"},
    {"use_flash_attention", "use-flash-attn"},
    {"tokenizer.type", "tokenizer-type"},
    {"data.seq_length", "seq-length"},
    {"dataset.seq_length", "seq-length"},
    {"dataset.sequence_length", "seq-length"},
    {"optim.overlap_grad_sync", "overlap-grad-reduce"},
    {"optim.overlap_param_sync", "overlap-param-gather"},
    {"mixed_precision.fp8", "fp8-format"},
    {"mixed_precision.fp8_recipe", "fp8-recipe"},
    {"mixed_precision.fp8_param_gather", "fp8-param-gather"},
    {"mixed_precision.fp8_dot_product_attention", "fp8-dot-product-attention"},
    {"mixed_precision.fp4", "fp4-format"},
    {"mixed_precision.fp4_recipe", "fp4-recipe"},
};

// Sections whose other keys are read under the names of Megatron-LM's arguments.
constexpr std::string_view kNemoSections[] = {"model", "train",        "optimizer",      "ddp",
                                              "dist",  "comm_overlap", "mixed_precision"};

// Sections and keys that change neither time nor memory, are read before, or have no modeled cost. * ends a beginning.
constexpr std::string_view kNemoWithoutEffect =
    "name defaults* restore_from_path hydra* run.* exp_manager* trainer.* checkpoint* logger* scheduler* rng* "
    "profiling* ft ft.* straggler* nvrx_straggler* rerun_state_machine* validation* tensor_inspect* tokenizer* "
    "dataset* model.tokenizer* model.data.* model.optim.* model.nsys_profile* model.resume_from_checkpoint "
    "model.pre_process model.post_process model.native_amp* model.megatron_amp* "
    "model.grad_allreduce_chunk_size_mb model.grad_div_ar_fusion model.gradient_as_bucket_view "
    "model.apex_transformer_log_level model.gc_interval model.hysteresis model.mcore_gpt "
    "model.transformer_engine model.precision model.use_emha model.activation* model.gated_linear_unit "
    "model.normalization* model.bias model.num_query_groups model.kv_channels "
    "model.share_embeddings_and_output_weights model.overlap_p2p_comm model.tp_comm_overlap "
    "comm_overlap.tp_comm_overlap ddp.fp8_param_gather model.batch_p2p_* model.sync_batch_comm "
    "model.seq_len_interpolation_factor model.do_layer_norm_weight_decay model.transformer_block_type "
    "model.headscale model.megatron_legacy model.ub_tp_comm_* model.fp8_* model.reduce_amax "
    "model.use_te_rng_tracker model.bf16 model.fp16 model.*dtype model.init_method* "
    "model.output_layer_init_method* model.embedding_init_method* model.deallocate_pipeline_outputs "
    "model.parallel_output model.hf_model_id model.kitchen_* model.mamba_stack_spec model.layernorm_* "
    "model.symmetric_* model.tp_comm_* model.tp_only_amax_red model.scatter_embedding_sequence_parallel "
    "model.mup_* model.rope_* model.rotary_* model.glu_linear_offset model.qk_clip_* model.use_kitchen* "
    "model.use_transformer_engine_full_layer_spec model.hidden_dropout_* model.inference_* "
    "model.min_offloaded_tensor_size model.cpu_offloading_* model.bias_*fusion model.bias_activation_fusion "
    "model.bias_dropout_* model.masked_softmax_fusion model.apply_rope_fusion model.gradient_accumulation_fusion "
    "model.wgrad_deferral_limit model.transformer_layer_spec model.vocab_size_* model.should_pad_vocab "
    "model.hetereogenous_* model.generation_config* model.test_mode "
    "model.original_max_position_embeddings model.num_layers_at_* ddp.* dist.* comm_overlap.* mixed_precision "
    "mixed_precision.* optimizer.* train.*";

// Those of them that change time or memory.
constexpr std::string_view kNemoNotModeled =
    "peft* inprocess_restart* ddp.num_distributed_optimizer_instances model.peft* model.virtual_stage_* "
    "model.num_micro_batches_with_partial_activation_checkpoints "
    "model.activations_checkpoint_layers_per_pipeline model.num_microbatches_with_partial_activation_checkpoints "
    "model.moe_token_dropping dist.use_sharp comm_overlap.defer_embedding_wgrad_compute "
    "mixed_precision.first_last_layers_bf16 model.nccl_communicator_config_path "
    "optimizer.overlap_param_gather_with_optimizer_step "
    "train.decrease_batch_size_if_needed";

std::string argument_of_key(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

class NemoImport {
 public:
  NemoImport(std::string_view text, const std::string& source)
      : source_(source), file_(read_yaml(text, source)), bridge_(has_section("train") || is_bridge()) {}

  Imported run() {
    if (has_section("trainer.strategy") || text("trainer.strategy").find("Strategy") != std::string::npos) {
      fail("trainer.strategy", "recipes of NeMo 2 are not supported: expected NeMo 1 or Megatron-Bridge");
    }
    add_model();
    if (bridge_) {
      add_bridge();
    } else {
      add_nemo();
    }
    for (const auto& [key, value] : file_) add_rest(key, value);
    Imported out = scenario_of_megatron(arguments_, gpus_, source_);
    const auto note = [&](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) out.notes.push_back(fmt::format("{}: {}: {}", source_, what, fmt::join(names, ", ")));
    };
    note("not modeled, although they change time or memory", not_modeled_);
    note("unknown keys", unknown_);
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    const auto found = file_.find(key);
    throw InputError(found == file_.end() ? fmt::format("{}: {}: {}", source_, key, what)
                                          : fmt::format("{}: line {}: {}: {}", source_, found->second.line, key, what));
  }

  bool is_bridge() const { return text("_target_").find("megatron.bridge") != std::string::npos; }
  bool has_section(const std::string& name) const {
    const auto found = file_.lower_bound(name + ".");
    return found != file_.end() && found->first.starts_with(name + ".");
  }
  // Returns the value of a key; "None" without it.
  std::string text(const std::string& key) const {
    const auto found = file_.find(key);
    return found == file_.end() ? "None" : found->second.text;
  }
  bool yes(const std::string& key) const { return text(key) == "True"; }
  bool no(const std::string& key) const { return text(key) == "False"; }
  bool set(const std::string& key) const { return text(key) != "None"; }
  static bool off(const std::string& value) {
    return value == "None" || value == "False" || value == "[]" || value.empty();
  }

  // Adds an argument that a key of the file determines.
  void add(const char* argument, const std::string& key, std::vector<std::string> words = {}) {
    const auto found = file_.find(key);
    arguments_.push_back({argument, std::move(words), found == file_.end() ? 0 : found->second.line, true, key});
  }
  void add_if(bool given, const char* argument, const std::string& key) {
    if (given) add(argument, key);
  }

  // The keys of the model that both frameworks have.
  void add_model() {
    const std::string normalization = text("model.normalization");
    if (set("model.normalization")) {
      const bool rms = normalization == "rmsnorm" || normalization == "RMSNorm";
      add("normalization", "model.normalization", {rms ? "RMSNorm" : "LayerNorm"});
    }
    add_if(no("model.share_embeddings_and_output_weights"), "untie-embeddings-and-output-weights",
           "model.share_embeddings_and_output_weights");
    add_if(no("model.gradient_accumulation_fusion"), "no-gradient-accumulation-fusion",
           "model.gradient_accumulation_fusion");
    if (!yes("model.multi_latent_attention")) {
      if (set("model.kv_channels")) add("kv-channels", "model.kv_channels", {text("model.kv_channels")});
      if (set("model.num_query_groups")) {
        add("group-query-attention", "model.num_query_groups");
        add("num-query-groups", "model.num_query_groups", {text("model.num_query_groups")});
      }
    }
  }

  void add_nemo() {
    add_gpus();
    const std::string precision = text("trainer.precision");
    const bool bf16 = precision.starts_with("bf16");
    const bool fp16 = precision.starts_with("16");
    add_if(bf16, "bf16", "trainer.precision");
    add_if(fp16, "fp16", "trainer.precision");
    if ((bf16 || fp16) && no("model.megatron_amp_O2")) {
      not_modeled_.emplace_back("model.megatron_amp_O2 False (16-bit weights with 32-bit main weights are assumed)");
    }
    const std::string optimizer = text("model.optim.name");
    add_if(optimizer == "distributed_fused_adam" || optimizer == "mcore_distributed_optim", "use-distributed-optimizer",
           "model.optim.name");
    if (set("model.optim.name") && optimizer.find("adam") == std::string::npos &&
        optimizer != "mcore_distributed_optim") {
      not_modeled_.push_back("model.optim.name " + optimizer);
    }
    const std::string reduced = text("model.optim.grad_sync_dtype");
    add_if(bf16 && (reduced == "bf16" || reduced == "torch.bfloat16"), "grad-reduce-in-bf16",
           "model.optim.grad_sync_dtype");
    const std::string activation = text("model.activation");
    add_if(activation.find("glu") != std::string::npos, "swiglu", "model.activation");
    add_if(no("model.bias"), "disable-bias-linear", "model.bias");
    add_if(!yes("model.overlap_p2p_comm"), "no-overlap-p2p-communication", "model.overlap_p2p_comm");
    if (yes("model.transformer_engine")) add("transformer-impl", "model.transformer_engine", {"transformer_engine"});
    if (no("model.use_flash_attention") && !yes("model.transformer_engine") && !yes("model.mcore_gpt")) {
      add("attention-backend", "model.use_flash_attention", {"unfused"});
    }
  }

  void add_gpus() {
    std::int64_t gpus = 1;
    for (const char* key : {"trainer.devices", "trainer.num_nodes"}) {
      if (!set(key)) return;
      const std::string value = text(key);
      const bool number = value.find_first_not_of("0123456789") == std::string::npos && value.size() < 9;
      const std::int64_t count = number && !value.empty() ? std::stoll(value) : 0;
      if (count < 1 || count > kMostGpus / gpus) return;  // -1 and lists of devices: not known
      gpus *= count;
    }
    gpus_ = gpus;
  }

  void add_bridge() {
    const bool comm = has_section("comm_overlap");
    const std::string precision = text("mixed_precision");
    const bool bf16 = yes("mixed_precision.bf16") || yes("model.bf16") || precision.starts_with("bf16");
    const bool fp16 = yes("mixed_precision.fp16") || yes("model.fp16") || precision.starts_with("fp16");
    const std::string place = has_section("mixed_precision") ? "mixed_precision.bf16" : "mixed_precision";
    add_if(bf16, "bf16", place);
    add_if(fp16 && !bf16, "fp16", place);
    add_recipe(precision);
    add_if(yes("comm_overlap.tp_comm_overlap") || yes("model.tp_comm_overlap"), "tp-comm-overlap",
           comm ? "comm_overlap.tp_comm_overlap" : "model.tp_comm_overlap");
    const std::string reduce =
        set("mixed_precision.grad_reduce_in_fp32") ? "mixed_precision.grad_reduce_in_fp32" : "ddp.grad_reduce_in_fp32";
    add_if(bf16 && no(reduce), "grad-reduce-in-bf16", reduce);
    add_if(fp16 && !bf16 && !no(reduce), "accumulate-allreduce-grads-in-fp32", reduce);
    const char* const distributed =
        yes("ddp.use_distributed_optimizer") ? "ddp.use_distributed_optimizer" : "optimizer.use_distributed_optimizer";
    add_if(yes(distributed), "use-distributed-optimizer", distributed);
    // Without values of its own, comm_overlap overlaps what it can.
    const auto overlaps = [&](const std::string& name, const std::string& other) {
      const std::string key = "comm_overlap." + name;
      return comm ? (set(key) ? yes(key) : true) : yes(other);
    };
    add_if(overlaps("overlap_grad_reduce", "ddp.overlap_grad_reduce"), "overlap-grad-reduce",
           comm ? "comm_overlap.overlap_grad_reduce" : "ddp.overlap_grad_reduce");
    add_if(!overlaps("overlap_p2p_comm", "model.overlap_p2p_comm"), "no-overlap-p2p-communication",
           comm ? "comm_overlap.overlap_p2p_comm" : "model.overlap_p2p_comm");
    const char* const moe = "comm_overlap.overlap_moe_expert_parallel_comm";
    const char* const delay = "comm_overlap.delay_wgrad_compute";
    add_if(yes(moe), "overlap-moe-expert-parallel-comm", moe);
    add_if(yes(delay), "delay-wgrad-compute", delay);
    if (yes("model.gated_linear_unit")) add("swiglu", "model.gated_linear_unit");
    // For the distributed optimizer (CommOverlapConfig of training/comm_overlap.py).
    add_if(yes(distributed) && overlaps("overlap_grad_reduce", "ddp.overlap_grad_reduce") &&
               overlaps("overlap_param_gather", "ddp.overlap_param_gather"),
           "overlap-param-gather", comm ? "comm_overlap.overlap_param_gather" : "ddp.overlap_param_gather");
    add_if(no("model.bias_activation_fusion"), "no-bias-swiglu-fusion", "model.bias_activation_fusion");
    for (const char* key : {"ddp.use_megatron_fsdp", "ddp.use_custom_fsdp", "dist.use_megatron_fsdp"}) {
      add_if(yes(key), "use-megatron-fsdp", key);
    }
    add_if(yes("dist.use_torch_fsdp2"), "use-torch-fsdp2", "dist.use_torch_fsdp2");
    const std::string strategy = "ddp.data_parallel_sharding_strategy";
    if (!off(text(strategy))) add("data-parallel-sharding-strategy", strategy, {text(strategy)});
    if (set("model.attention_backend")) add_attention_backend();
  }

  // The formats of a recipe that is named, such as bf16_with_mxfp8_mixed.
  void add_recipe(const std::string& recipe) {
    const auto has = [&](const char* word) { return recipe.find(word) != std::string::npos; };
    if (has("nvfp4")) {
      add("fp4-format", "mixed_precision", {"e2m1"});
    } else if (has("subchannel")) {
      not_modeled_.push_back("mixed_precision " + recipe);
    } else if (has("fp8")) {
      add("fp8-format", "mixed_precision", {"hybrid"});
      add("fp8-recipe", "mixed_precision", {has("mxfp8") ? "mxfp8" : has("current") ? "tensorwise" : "delayed"});
      add("fp8-param-gather", "mixed_precision");
    }
  }

  // The number or the name of Megatron-LM's enumeration.
  void add_attention_backend() {
    constexpr std::array kBackends = {"flash", "fused", "unfused", "local", "auto"};
    std::string value = text("model.attention_backend");
    for (std::size_t i = 0; i < kBackends.size(); ++i) {
      if (value == fmt::format("[{}]", i + 1) || value == std::to_string(i + 1)) value = kBackends[i];
    }
    value.erase(0, value.rfind('.') == std::string::npos ? 0 : value.rfind('.') + 1);
    if (std::find(kBackends.begin(), kBackends.end(), value) == kBackends.end()) {
      fail("model.attention_backend", fmt::format("expected one of {}, got '{}'", fmt::join(kBackends, ", "), value));
    }
    add("attention-backend", "model.attention_backend", {value});
  }

  // Returns the argument of a key that is read under the name of Megatron-LM's argument or another; "" for others.
  std::string argument_for(const std::string& key) const {
    const std::size_t dot = key.find('.');
    const std::string section = key.substr(0, dot);
    const std::string name = dot == std::string::npos ? "" : key.substr(dot + 1);
    for (const NemoKey& each : kNemoKeys) {
      const bool model = section == "model" && each.key == name;
      if (model || each.key == key) return std::string(each.argument);
    }
    const bool read = std::find(std::begin(kNemoSections), std::end(kNemoSections), section) != std::end(kNemoSections);
    return read && name.find('.') == std::string::npos ? argument_of_key(name) : "";
  }

  // Adds the argument of a key, or names the key as not modeled or unknown.
  void add_rest(const std::string& key, const YamlValue& value) {
    const auto given = std::any_of(arguments_.begin(), arguments_.end(),
                                   [&](const MegatronArgument& argument) { return argument.key == key; });
    if (given || key.ends_with("_target_") || key.ends_with("_call_") || key.ends_with("_partial_")) return;
    const std::string argument = argument_for(key);
    const MegatronAttribute* const attribute = megatron_attribute(argument);
    const bool inverted = attribute != nullptr && attribute->inverted;
    if (inverted && key.starts_with("model.") && megatron_key(attribute->name) != nullptr &&
        !lists_name(kNemoWithoutEffect, key)) {
      if (value.text == "False") add(std::string(attribute->name).c_str(), key);
      return;
    }
    if (off(value.text) || value.text == "???") return;
    const MegatronKey* const known = argument.empty() ? nullptr : megatron_key(argument);
    const bool elsewhere = lists_name(kNemoWithoutEffect, key) && !is_renamed(key) && !is_batch_key(key);
    if (lists_name(kNemoNotModeled, key)) {
      if (value.text != (key.ends_with("_instances") ? "1" : "0"))
        not_modeled_.push_back(fmt::format("{} {}", key, value.text));
    } else if (known != nullptr && !elsewhere) {
      add_value(*known, key, value);
    } else if (!argument.empty() && megatron_not_modeled(argument, value.text) && !elsewhere) {
      not_modeled_.push_back(fmt::format("{} {}", key, value.text));
    } else if (!elsewhere && (argument.empty() || !megatron_without_effect(argument))) {
      unknown_.push_back(key);
    }
  }

  static bool is_renamed(const std::string& key) {
    return std::any_of(std::begin(kNemoKeys), std::end(kNemoKeys), [&](const NemoKey& each) {
      return key == each.key || key == fmt::format("model.{}", each.key);
    });
  }
  // Keys of sections whose other keys are without effect.
  static bool is_batch_key(const std::string& key) {
    constexpr std::string_view kKeys =
        "train.rampup_batch_size optimizer.optimizer optimizer.main_grads_dtype optimizer.exp_avg_dtype "
        "optimizer.exp_avg_sq_dtype optimizer.main_params_dtype";
    return lists_name(kKeys, key);
  }

  void add_value(const MegatronKey& known, const std::string& key, const YamlValue& value) {
    const auto before = std::find_if(arguments_.begin(), arguments_.end(), [&](const MegatronArgument& argument) {
      return argument.name == known.name && !argument.words.empty();
    });
    if (before != arguments_.end() && before->words.front() != value.text) {
      fail(key, fmt::format("{} contradicts {}: {}", value.text, before->key, before->words.front()));
    }
    if (before != arguments_.end()) return;
    const std::string name(known.name);
    if (known.value == MegatronValue::flag) {
      if (value.text != "True") fail(key, fmt::format("expected true or false, got {}", value.text));
      return add(name.c_str(), key);
    }
    std::vector<std::string> words = {value.text};
    if (known.value == MegatronValue::words) words = words_of_list(value.text);
    add(name.c_str(), key, std::move(words));
  }

  std::string source_;
  YamlFile file_;
  bool bridge_;
  std::int64_t gpus_ = 0;
  std::vector<MegatronArgument> arguments_;
  std::vector<std::string> not_modeled_;
  std::vector<std::string> unknown_;
};

// --- overrides of Megatron-Bridge ---------------------------------------------------------------------------------

// Flags of Megatron-LM whose keys are not model.NAME, with the value in Megatron-Bridge, or which it does not have.
struct BridgeFlag {
  std::string_view argument, key, value;
};
constexpr BridgeFlag kBridgeFlags[] = {
    {"bf16", "mixed_precision.bf16", "true"},
    {"fp16", "mixed_precision.fp16", "true"},
    {"use-distributed-optimizer", "ddp.use_distributed_optimizer", "true"},
    {"overlap-grad-reduce", "comm_overlap.overlap_grad_reduce", "true"},
    {"overlap-param-gather", "comm_overlap.overlap_param_gather", "true"},
    {"tp-comm-overlap", "comm_overlap.tp_comm_overlap", "true"},
    {"overlap-moe-expert-parallel-comm", "comm_overlap.overlap_moe_expert_parallel_comm", "true"},
    {"delay-wgrad-compute", "comm_overlap.delay_wgrad_compute", "true"},
    {"no-overlap-p2p-communication", "comm_overlap.overlap_p2p_comm", "false"},
    {"grad-reduce-in-bf16", "mixed_precision.grad_reduce_in_fp32", "false"},
    {"recompute-activations", "model.recompute_granularity", "selective"},
    {"use-flash-attn", "model.attention_backend", "flash"},
    {"no-bias-swiglu-fusion", "model.bias_activation_fusion", "false"},
    {"disable-bias-linear", "model.add_bias_linear", "false"},
    {"untie-embeddings-and-output-weights", "model.share_embeddings_and_output_weights", "false"},
    {"swiglu", "model.gated_linear_unit", "true"},
    {"quick-geglu", "model.gated_linear_unit", "true"},
    {"num-layers-per-virtual-pipeline-stage", "", ""},
    {"group-query-attention", "", ""},
    {"spec", "", ""},
};

// What a recipe may set otherwise.
constexpr std::pair<std::string_view, std::string_view> kUnlessGiven[] = {
    {"model.tensor_model_parallel_size", "1"},
    {"model.pipeline_model_parallel_size", "1"},
    {"model.virtual_pipeline_model_parallel_size", "null"},
    {"model.pipeline_model_parallel_layout", "null"},
    {"model.num_layers_in_first_pipeline_stage", "null"},
    {"model.num_layers_in_last_pipeline_stage", "null"},
    {"model.context_parallel_size", "1"},
    {"model.expert_model_parallel_size", "1"},
    {"model.expert_tensor_parallel_size", "1"},
    {"model.sequence_parallel", "false"},
    {"model.recompute_granularity", "null"},
    {"model.recompute_method", "null"},
    {"model.recompute_num_layers", "null"},
    {"model.cuda_graph_impl", "none"},
    {"train.micro_batch_size", "1"},
    // Sections that a recipe may have as a name or not at all.
    {"comm_overlap._target_", "megatron.bridge.training.comm_overlap.CommOverlapConfig"},
    {"mixed_precision._target_", "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"},
    {"comm_overlap.tp_comm_overlap", "false"},
    {"comm_overlap.overlap_p2p_comm", "false"},
    {"comm_overlap.overlap_grad_reduce", "false"},
    {"comm_overlap.overlap_param_gather", "false"},
    {"ddp.use_distributed_optimizer", "false"},
    {"ddp.overlap_grad_reduce", "false"},
    {"ddp.overlap_param_gather", "false"},
    {"dist.use_tp_pp_dp_mapping", "false"},
    {"mixed_precision.bf16", "false"},
    {"mixed_precision.fp8", "null"},
    {"mixed_precision.fp8_param_gather", "false"},
    {"mixed_precision.fp8_recipe", "null"},
    {"mixed_precision.grad_reduce_in_fp32", "true"},
    {"optimizer.use_distributed_optimizer", "false"},
    {"optimizer.optimizer_cpu_offload", "false"},
};

std::string bridge_value(std::string_view argument, std::span<const std::string> words) {
  constexpr std::string_view kLists[] = {"recompute-modules", "cuda-graph-modules", "offload-modules", "window-size"};
  constexpr std::string_view kPatterns[] = {"pipeline-model-parallel-layout", "hybrid-layer-pattern"};
  const auto is_in = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), argument) != std::end(names);
  };
  if (words.empty()) return "true";
  if (is_in(kLists)) return fmt::format("[{}]", fmt::join(words, ", "));
  if (is_in(kPatterns)) return fmt::format("'{}'", words.front());
  return words.front().starts_with('(') ? layer_frequency(words.front()).dump() : words.front();
}

}  // namespace

bool is_nemo(std::string_view text) {
  bool model = false;
  bool other = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    model = model || line.starts_with("model:");
    other = other || line.starts_with("trainer:") || line.starts_with("train:") ||
            line.starts_with("_target_: megatron.bridge");
  }
  return model && other;
}

Imported import_nemo(std::string_view text, const std::string& source) {
  constexpr std::size_t kMostYaml = std::size_t{1} << 20;
  if (text.size() > kMostYaml) {
    throw InputError(fmt::format("{}: expected at most {} bytes, got {}", source, kMostYaml, text.size()));
  }
  return NemoImport(text, source).run();
}

std::string bridge_overrides(const std::string& megatron_arguments, int chunks) {
  std::map<std::string, std::string> values(std::begin(kUnlessGiven), std::end(kUnlessGiven));
  if (chunks > 1) {
    values["model.virtual_pipeline_model_parallel_size"] = std::to_string(chunks);
    values["comm_overlap.overlap_p2p_comm"] = "true";
  }
  std::vector<std::string> words;
  for (ShellWord& word : split_words(megatron_arguments, "arguments")) words.push_back(std::move(word.text));
  for (auto at = words.begin(); at != words.end();) {
    const auto end = std::find_if(at + 1, words.end(), [](const std::string& word) { return word.starts_with("--"); });
    const std::string argument = at->substr(2);
    const std::string value = bridge_value(argument, {at + 1, end});
    at = end;
    const auto is_of = [&](const auto& row) { return row.argument == argument; };
    const auto* const flag = std::find_if(std::begin(kBridgeFlags), std::end(kBridgeFlags), is_of);
    if (flag != std::end(kBridgeFlags)) {
      if (!flag->key.empty()) values[std::string(flag->key)] = flag->value;
      continue;
    }
    const auto row = std::find_if(std::rbegin(kNemoKeys), std::rend(kNemoKeys), is_of);
    std::string key(row == std::rend(kNemoKeys) ? std::string_view(argument) : row->key);
    std::replace(key.begin(), key.end(), '-', '_');
    values[key.find('.') == std::string::npos ? "model." + key : key] = value;
  }
  // One value in two places.
  values["model.seq_length"] = values["dataset.sequence_length"];
  values["optimizer.use_distributed_optimizer"] = values["ddp.use_distributed_optimizer"];
  for (const char* const name : {"overlap_grad_reduce", "overlap_param_gather"}) {
    values[std::string("ddp.") + name] = values[std::string("comm_overlap.") + name];
  }
  if (values["mixed_precision.fp8_recipe"] == "mxfp8" && values["mixed_precision.fp8_param_gather"] == "true") {
    values["mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"] = "true";  // which it requires
  }
  std::string out, section;
  for (const auto& [key, value] : values) {
    const std::size_t dot = key.find('.');
    if (key.substr(0, dot) != section) out += (section = key.substr(0, dot)) + ":\n";
    out += fmt::format("  {}: {}\n", key.substr(dot + 1), value);
  }
  return out;
}

}  // namespace sluice::imports

#include "tools/plan/frameworks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "import/megatron_arguments.h"
#include "import/megatron_model.h"
#include "import/nemo.h"
#include "model/errors.h"
#include "model/input/nearest.h"

namespace sluice::tools {
namespace {

// The reason of the first rule that is broken.
class Refusal {
 public:
  void unless(bool runs, std::string_view reason) {
    if (!runs && reason_.empty()) reason_ = reason;
  }
  std::string take() { return std::move(reason_); }

 private:
  std::string reason_;
};

bool exchanges_by_nccl(const Scenario& base, const PlanPoint& point) {
  const auto dispatcher = point.dispatcher.value_or(base.training.token_dispatcher);
  return point.ep == 1 || dispatcher == Training::TokenDispatcher::all_to_all;
}

std::string refused_by_megatron(const Scenario& base, const PlanPoint& point) {
  const Model& model = *base.model;
  Refusal out;
  out.unless(point.family->in_megatron_lm, "its schedules are 1f1b, interleaved-1f1b and combined-1f1b");
  if (point.family->for_expert_parallelism) {
    const std::string& weave = base.training.weave;
    out.unless(weave == "dualpipe" || weave == "whole-backward",
               "combined 1F1B has the weaves dualpipe and whole-backward");
    out.unless(base.training.joint_overlap == Training::JointOverlap::experts,
               "combined 1F1B overlaps dispatch and combine (--joint-overlap experts)");
    out.unless(point.chunks > 1 || point.pp == 1, "combined 1F1B with a pipeline requires interleaving");
    out.unless(point.recompute != Training::Recompute::full, "combined 1F1B excludes full recomputation");
  }
  using Graphs = Training::GraphImplementation;
  const Graphs graphs = base.training.graph_implementation;
  const bool of_modules = graphs == Graphs::local || graphs == Graphs::transformer_engine;
  out.unless(
      !of_modules || point.recompute != Training::Recompute::full,
      "with full recomputation its CUDA graphs are those of whole iterations (--cuda-graph-impl full_iteration)");
  out.unless(graphs != Graphs::transformer_engine || point.recompute != Training::Recompute::selective ||
                 !point.recompute_modules.any_of(RecomputeModule::experts) ||
                 !base.training.graph_modules.any_of(GraphModule::moe_router),
             "its CUDA graphs of moe_router exclude the recomputation of moe");
  out.unless(!base.training.fp8_dispatch || point.ep == 1, "it dispatches tokens in 16 bits");
  out.unless(point.slices == 1, "it does not slice sequences");
  out.unless(point.chunks == 1 || point.pp > 1, "interleaving requires at least 2 pipeline ranks");
  const bool blocks = blocks_transfers(base, point);
  out.unless(point.chunks == 1 || point.pp > 2 || !blocks,
             "interleaving on 2 pipeline ranks requires transfers that overlap with compute "
             "(--overlap-p2p-communication)");
  out.unless(point.chunks > 1 || point.pp == 1 || blocks, "without interleaving, its transfers do not overlap");
  out.unless(model.mtp_layers == 0 || model.positions == 0,
             "its multi-token prediction does not support learned positions");
  const int stages = point.pp * point.chunks;
  out.unless(model.mtp_layers == 0 || point.mtp_stage == kLastStage || point.mtp_stage + 1 == stages || point.pp > 2,
             "its multi-token prediction cannot be on the first pipeline rank");
  out.unless(model.mtp_layers == 0 || point.mtp_stage == kLastStage || point.mtp_stage + 1 == stages ||
                 !is_megatron_hybrid(model),
             "multi-token prediction of its hybrid models is on the last stage");
  out.unless(base.training.zero_stage() < 2, "its arguments are printed for the ZeRO stages 0 and 1 only");
  return out.take();
}

std::string refused_by_bridge(const Scenario& base, const PlanPoint& point) {
  Refusal out;
  out.unless(base.training.scatter_gather, "it has no --no-scatter-gather-tensors-in-pipeline");
  out.unless(base.training.deferred_head_gradients == 0, "deferred gradients of the head are not printed for it");
  const std::string reason = out.take();
  return reason.empty() ? refused_by_megatron(base, point) : reason;
}

// PyTorch's names of schedules.
constexpr std::pair<std::string_view, std::string_view> kPyTorchSchedules[] = {
    {"1f1b", "1F1B"},           {"interleaved-1f1b", "Interleaved1F1B"},
    {"gpipe", "GPipe"},         {"looped-bfs", "LoopedBFS"},
    {"zb-v", "ZBVZeroBubble"},  {"interleaved-zb", "InterleavedZeroBubble"},
    {"dualpipe-v", "DualPipeV"}};

std::string_view pytorch_schedule(const PlanPoint& point) {
  const auto found = std::find_if(std::begin(kPyTorchSchedules), std::end(kPyTorchSchedules),
                                  [&](const auto& each) { return each.first == point.family->name; });
  return found == std::end(kPyTorchSchedules) ? "" : found->second;
}

// How torchtitan distributes layers: it counts the embedding as `first` layers and the head as `last`.
struct TorchtitanLayers {
  int each = 0;  // of an inner stage
  int first = 0;
  int last = 0;
  bool possible = false;
};

TorchtitanLayers torchtitan_layers(const Scenario& base, const PlanPoint& point) {
  const int layers = base.model->layers;
  const int stages = point.pp * point.chunks;
  const int outer = (point.first_layers > 0 ? 1 : 0) + (point.last_layers > 0 ? 1 : 0);
  const int inner = layers - point.first_layers - point.last_layers;
  TorchtitanLayers out;
  if (!base.stage_layers.empty() || !point.stage_layers.empty() || stages <= outer || inner % (stages - outer) != 0)
    return out;
  out.each = inner / (stages - outer);
  out.first = point.first_layers > 0 ? out.each - point.first_layers : 0;
  out.last = point.last_layers > 0 ? out.each - point.last_layers : 0;
  out.possible = out.each > 0 && out.first >= 0 && out.last >= 0;
  return out;
}

std::string refused_by_torchtitan(const Scenario& base, const PlanPoint& point) {
  const Transformer& model = *base.model->flat;
  Refusal out;
  out.unless(model.positions == 0 && model.rms_norm && model.gated && !model.projection_bias && !model.mlp_bias,
             "its models have rotary embeddings, RMSNorm, SwiGLU and no biases");
  out.unless(!model.has_experts() || model.has_latent_attention() || model.qk_norm,
             "its models with experts have latent attention (deepseek_v3) or normalized queries and keys (qwen3)");
  out.unless(base.training.expert_capacity == 0, "it drops no tokens");
  out.unless(model.mtp_layers == 0, "it trains without multi-token prediction (--mtp-num-layers 0)");
  out.unless(!traits_of(base.training.precision).narrow(), "its 8-bit linear layers are not modeled");
  out.unless(!base.training.tp_comm_overlap, "its asynchronous tensor parallelism is not modeled");
  out.unless(!pytorch_schedule(point).empty(),
             "its schedules are 1f1b, interleaved-1f1b, gpipe, looped-bfs, zb-v, interleaved-zb and dualpipe-v");
  out.unless(point.slices == 1, "it does not slice sequences");
  out.unless(point.pp > 1 || point.microbatches == 1 || point.family->name == "1f1b",
             "without a pipeline, each microbatch is followed by its backward pass (1f1b)");
  const bool one_dimension = point.tp * point.pp == 1;
  const bool sharded = base.training.zero_stage() == 3;
  out.unless(exchanges_by_nccl(base, point), "its exchange of tokens is NCCL's all-to-all");
  out.unless(offloaded_part(base, point) == 0 || sharded, "it offloads sharded states only (--zero-stage 3)");
  out.unless(base.training.zero_stage() != 2, "it shards parameters as well as gradients (--zero-stage 3)");
  out.unless(sharded || point.cp == 1, "it shards parameters over context-parallel ranks (--zero-stage 3)");
  out.unless(point.etp == 1, "it does not split experts over tensor-parallel ranks");
  out.unless(sharded || point.ep == 1, "it shards parameters over expert-parallel ranks (--zero-stage 3)");
  out.unless(sharded || point.dp == 1 || one_dimension,
             "with tensor or pipeline parallelism it shards parameters over replicas (--zero-stage 3)");
  out.unless(sharded || !point.distributed_optimizer, "it has no distributed optimizer besides FSDP (--zero-stage 3)");
  out.unless(!point.pipeline_before_data, "its stages are not placed before the replicas");
  out.unless(point.recompute != Training::Recompute::selective, "it does not recompute attention alone");
  out.unless(point.recompute_layers == 0, "it does not recompute only the leading layers of a stage");
  out.unless(point.pp == 1 || torchtitan_layers(base, point).possible,
             "it distributes layers evenly, except for fewer in the first and last stage");
  return out.take();
}

std::string torchtitan_model(const Transformer& model) {
  struct Flavor {
    int layers, hidden, ffn_hidden;
    const char* name;
  };
  constexpr Flavor kLlama[] = {{32, 4096, 14336, "8B"}, {80, 8192, 28672, "70B"}, {126, 16384, 53248, "405B"}};
  constexpr std::int64_t kLlamaWords = 128256;
  if (!model.has_experts() && !model.qk_norm && model.vocab == kLlamaWords && model.kv_heads == 8) {
    for (const Flavor& each : kLlama) {
      if (each.layers == model.layers && each.hidden == model.hidden && each.ffn_hidden == model.ffn_hidden) {
        return fmt::format("name = \"llama3\"\nflavor = \"{}\"\n", each.name);
      }
    }
  }
  const char* const name = model.has_latent_attention() ? "deepseek_v3" : model.qk_norm ? "qwen3" : "llama3";
  return fmt::format("name = \"{}\"\nflavor = \"{}\"  # to be defined: {} layers of {}, {} heads\n", name, model.name,
                     model.layers, model.hidden, model.heads);
}

std::string torchtitan_toml(const Scenario& base, const PlanSpace& /*space*/, const PlanPoint& point) {
  const bool pipeline = point.pp > 1;
  const bool sharded = base.training.zero_stage() == 3;
  std::string out = "[model]\n" + torchtitan_model(*base.model->flat);
  fmt::format_to(std::back_inserter(out), "\n[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n",
                 point.micro_batch * (pipeline ? point.microbatches : 1), base.global_batch,
                 base.training.sequence_length);
  if (offloaded_part(base, point) > 0) out += "enable_cpu_offload = true\n";
  fmt::format_to(std::back_inserter(out),
                 "\n[parallelism]\ndata_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\n"
                 "tensor_parallel_degree = {}\ncontext_parallel_degree = {}\npipeline_parallel_degree = {}\n",
                 sharded ? 1 : point.dp, sharded ? point.dp : 1, point.tp, point.cp, point.pp);
  if (point.ep > 1) fmt::format_to(std::back_inserter(out), "expert_parallel_degree = {}\n", point.ep);
  if (sharded && base.training.reshard_after_forward) {
    fmt::format_to(std::back_inserter(out), "fsdp_reshard_after_forward = \"{}\"\n",
                   *base.training.reshard_after_forward ? "always" : "never");
  }
  if (pipeline) {
    const TorchtitanLayers layers = torchtitan_layers(base, point);
    fmt::format_to(std::back_inserter(out),
                   "pipeline_parallel_schedule = \"{}\"\npipeline_parallel_microbatch_size = {}\n"
                   "pipeline_parallel_layers_per_stage = {}\npipeline_parallel_first_stage_less_layers = {}\n"
                   "pipeline_parallel_last_stage_less_layers = {}\n",
                   pytorch_schedule(point), point.micro_batch, layers.each, layers.first, layers.last);
  }
  if (base.training.cross_entropy == Training::CrossEntropy::te) {
    out += "\n[compile]\nenable = true\ncomponents = [\"model\", \"loss\"]\n";
  }
  const bool full = point.recompute == Training::Recompute::full;
  return out + fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n", full ? "full" : "none");
}

std::string refused_by_deepspeed(const Scenario& base, const PlanPoint& point) {
  const Transformer& model = *base.model->flat;
  Refusal out;
  out.unless(!model.has_experts() && !model.has_latent_attention() && !model.qk_norm,
             "its pipeline engine is modeled for dense layers without latent attention and norms of queries and keys");
  out.unless(model.projection_bias == model.mlp_bias && model.qkv_bias == model.mlp_bias,
             "its linear layers have biases all together");
  out.unless(!traits_of(base.training.precision).narrow(), "its GEMMs have 16 bits");
  out.unless(!base.training.tp_comm_overlap, "its tensor-parallel communication does not overlap");
  out.unless(base.training.cross_entropy == Training::CrossEntropy::separate, "its loss is not fused");
  out.unless(!base.training.overlap_grad_reduce, "its pipeline engine does not overlap the reduction of gradients");
  out.unless(model.mtp_layers == 0, "it trains without multi-token prediction (--mtp-num-layers 0)");
  const double offload = offloaded_part(base, point);
  out.unless(offload == 0 || (offload == 1 && !base.training.overlap_optimizer_offload),
             "it offloads all optimizer states, without overlap");
  out.unless(offload == 0 || point.distributed_optimizer || point.dp == 1,
             "it offloads sharded states (--use-distributed-optimizer)");
  out.unless(base.training.zero_stage() < 2, "its pipeline engine has the ZeRO stages 0 and 1");
  out.unless(point.family->name == "1f1b", "the schedule of its pipeline engine is 1f1b");
  out.unless(point.slices == 1, "it does not slice sequences");
  out.unless(point.cp == 1, "its pipeline engine has no context parallelism");
  out.unless(point.ep == 1, "its pipeline engine has no expert parallelism");
  out.unless(!point.overlap_param_gather, "it gathers parameters after the step");
  out.unless(!point.pipeline_before_data, "its stages are not placed before the replicas");
  out.unless(point.recompute != Training::Recompute::selective, "it does not recompute attention alone");
  out.unless(point.recompute_layers == 0, "it does not recompute only the leading layers of a stage");
  out.unless(point.first_layers == 0 && point.last_layers == 0 && point.stage_layers.empty() &&
                 base.stage_layers.empty() && model.layers % point.pp == 0,
             "it distributes layers evenly");
  return out.take();
}

std::string deepspeed_arguments(const Scenario& base, const PlanSpace& space, const PlanPoint& point) {
  const Scenario scenario = scenario_of(base, space, point);
  const Transformer& model = *base.model->flat;
  const bool full = point.recompute == Training::Recompute::full;
  std::string out = fmt::format(
      "--deepspeed --deepspeed_config ds_config.json --tensor-model-parallel-size {} "
      "--pipeline-model-parallel-size {} --micro-batch-size {} --global-batch-size {}",
      point.tp, point.pp, point.micro_batch, base.global_batch);
  const auto add = [&](bool has, const std::string& text) {
    if (has) out += " " + text;
  };
  add(scenario.training.sequence_parallel, "--sequence-parallel");
  add(full, "--checkpoint-activations --deepspeed-activation-checkpointing");
  add(true, fmt::format("--num-layers {} --hidden-size {} --num-attention-heads {} --ffn-hidden-size {}", model.layers,
                        model.hidden, model.heads, model.ffn_hidden));
  add(model.kv_heads != model.heads, fmt::format("--num-key-value-heads {}", model.kv_heads));
  add(model.head_dim * model.heads != model.hidden, fmt::format("--kv-channels {}", model.head_dim));
  add(true,
      fmt::format("--seq-length {0} --max-position-embeddings {1} --vocab-size {2}", scenario.training.sequence_length,
                  std::max<std::int64_t>(scenario.training.sequence_length, model.positions), model.vocab));
  add(model.positions == 0, "--use-rotary-position-embeddings");
  add(model.gated, "--swiglu");
  add(model.rms_norm, "--normalization rmsnorm");
  add(!model.tied_embeddings, "--untie-embeddings-and-output-weights");
  add(!model.projection_bias && !model.mlp_bias, "--disable-bias-linear");
  add(!model.dropout, "--hidden-dropout 0 --attention-dropout 0");
  add(!scenario.training.scatter_gather, "--no-scatter-gather-tensors-in-pipeline");
  add(scenario.training.transformer_engine, "--transformer-impl transformer_engine");
  add(scenario.training.flash_attention, "--use-flash-attn-v2");
  add(true, "--bf16");
  return out +
         fmt::format(
             "\nds_config.json: {{\"train_batch_size\": {}, \"train_micro_batch_size_per_gpu\": {}, "
             "\"gradient_accumulation_steps\": {}, \"zero_optimization\": {{\"stage\": {}{}}}, \"bf16\": "
             "{{\"enabled\": true}}, \"data_types\": {{\"grad_accum_dtype\": \"{}\"}}, \"gradient_clipping\": {}}}\n",
             base.global_batch, point.micro_batch, point.microbatches,
             point.distributed_optimizer || scenario.training.optimizer_offload > 0 ? 1 : 0,
             scenario.training.optimizer_offload > 0 ? ", \"offload_optimizer\": {\"device\": \"cpu\"}" : "",
             scenario.training.gradient_bytes == 2 ? "bf16" : "fp32", scenario.clip_gradients ? "1.0" : "0.0");
}

std::string refused_by_sluice(const Scenario& base, const PlanPoint& point) {
  const Transformer& model = *base.model->flat;
  Refusal out;
  out.unless(model.experts.groups <= 1, "its router does not limit tokens to groups of experts");
  out.unless(!model.has_experts() || !model.mlp_bias, "its kernels do not support biases of experts");
  out.unless(base.training.expert_capacity == 0, "its router drops no tokens");
  out.unless(!model.has_latent_attention(), "its kernels do not support latent attention");
  out.unless(!model.qk_norm, "its kernels do not support normalized queries and keys");
  out.unless(model.mtp_layers == 0, "it trains without multi-token prediction (--mtp-num-layers 0)");
  out.unless(!traits_of(base.training.precision).narrow(), "runs do not support GEMMs in 8 or 4 bits");
  out.unless(!base.training.tp_comm_overlap, "runs do not overlap tensor-parallel communication");
  out.unless(point.cp == 1, "runs do not support context parallelism");
  out.unless(point.etp == 1, "runs do not split experts over tensor-parallel ranks");
  out.unless(base.training.joint_overlap != Training::JointOverlap::all,
             "runs do not overlap collectives of tensor parallelism (--joint-overlap experts)");
  out.unless(point.ep == 1 || base.training.weave != kSearchedWeave, "runs do not search weaves");
  out.unless(exchanges_by_nccl(base, point), "runs exchange tokens by NCCL's or MPI's all-to-all");
  out.unless(offloaded_part(base, point) == 0, "runs keep optimizer states on the device");
  out.unless(!point.distributed_optimizer, "runs do not support a distributed optimizer");
  out.unless(!point.pipeline_before_data, "runs place replicas before stages");
  out.unless(point.recompute != Training::Recompute::selective, "runs do not support selective recomputation");
  out.unless(point.recompute_layers == 0, "runs do not support recomputation of some layers");
  out.unless(model.kv_heads % point.tp == 0, "each tensor-parallel rank needs a key/value head");
  return out.take();
}

std::string sluice_arguments(const Scenario& base, const PlanSpace& space, const PlanPoint& point) {
  const Transformer& model = *base.model->flat;
  const bool full = point.recompute == Training::Recompute::full;
  std::string out =
      fmt::format("run --schedule {} --pp {} --tp {} --dp {} --mbs {} --gbs {} --seq-length {} --recompute {}",
                  point.family->name, point.pp, point.tp, point.dp, point.micro_batch, base.global_batch,
                  base.training.sequence_length, full ? "full" : "none");
  const auto add = [&](bool has, const std::string& text) {
    if (has) out += " " + text;
  };
  add(point.family->fixed_chunks == 0, fmt::format("--vpp {}", point.chunks));
  add(point.slices > 1,
      fmt::format("--slices {} --slicing {}", point.slices, space.balanced_slices ? "balanced" : "even"));
  add(!base.stage_layers.empty(), fmt::format("--stage-layers {}", fmt::join(base.stage_layers, ",")));
  add(!point.stage_layers.empty(), fmt::format("--stage-layers {}", fmt::join(point.stage_layers, ",")));
  add(point.first_layers > 0, fmt::format("--decoder-first-pipeline-num-layers {}", point.first_layers));
  add(point.last_layers > 0, fmt::format("--decoder-last-pipeline-num-layers {}", point.last_layers));
  add(true, fmt::format("--num-layers {} --hidden-size {} --num-attention-heads {} --num-query-groups {} "
                        "--kv-channels {}",
                        model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim));
  add(model.ffn_hidden > 0, fmt::format("--ffn-hidden-size {}", model.ffn_hidden));
  add(true, fmt::format("--vocab-size {}", model.vocab));
  add(model.positions > 0, fmt::format("--max-position-embeddings {}", model.positions));
  add(model.positions == 0, "--position-embedding-type rope");
  add(model.gated, "--swiglu");
  add(model.rms_norm, "--normalization RMSNorm");
  add(!model.tied_embeddings, "--untie-embeddings-and-output-weights");
  add(!model.projection_bias && !model.mlp_bias, "--disable-bias-linear");
  add(model.qkv_bias && !model.projection_bias, "--add-qkv-bias");
  if (!model.has_experts()) return out;
  const Experts& experts = model.experts;
  const Training& training = base.training;
  add(true, fmt::format("--num-experts {} --moe-router-topk {} --moe-ffn-hidden-size {}", experts.count,
                        experts.per_token, experts.ffn_hidden));
  add(experts.shared_ffn_hidden > 0,
      fmt::format("--moe-shared-expert-intermediate-size {}", experts.shared_ffn_hidden));
  add(experts.shared_gate, "--moe-shared-expert-gate");
  if (experts.leading_dense > 0) {
    std::vector<int> has(static_cast<std::size_t>(model.layers), 1);
    std::fill_n(has.begin(), experts.leading_dense, 0);
    add(true, fmt::format("--moe-layer-freq {}", fmt::join(has, ",")));
  }
  add(point.ep > 1, fmt::format("--ep {}", point.ep));
  add(training.joint_overlap == Training::JointOverlap::none, "--joint-overlap none");
  add(point.ep > 1 && training.weave != Training{}.weave, fmt::format("--weave '{}'", training.weave));
  return out;
}

std::string megatron_line(const Scenario& base, const PlanSpace& space, const PlanPoint& point) {
  return megatron_arguments(scenario_of(base, space, point));
}

std::string bridge_yaml(const Scenario& base, const PlanSpace& space, const PlanPoint& point) {
  return bridge_overrides(megatron_line(base, space, point), point.chunks);
}

// The reason of `refused_by`.
template <auto refused_by>
std::string refusal_of(const Scenario& base, const PlanPoint& point) {
  if (base.training.lora_rank > 0) return "LoRA is not printed for it";
  if (base.documents) return "documents of different length are not printed for it";
  if (base.training.forward_only()) return "work without a backward is not printed for it";
  if (point.encoder.value_or(base.encoder).apart())
    return "an encoder apart from the first stage is not printed for it";
  return refused_by(base, point);
}

// What frameworks for transformers do not have of a model.
std::string transformer_lacks(const Model& model) { return model.flat ? "" : "a layer other than a transformer's"; }

constexpr Framework kFrameworks[] = {
    {"megatron", "Megatron-LM", megatron_lacks, refusal_of<refused_by_megatron>, megatron_line},
    {"megatron-bridge", "Megatron-Bridge", megatron_lacks, refusal_of<refused_by_bridge>, bridge_yaml},
    {"torchtitan", "torchtitan", transformer_lacks, refusal_of<refused_by_torchtitan>, torchtitan_toml},
    {"deepspeed", "DeepSpeed", transformer_lacks, refusal_of<refused_by_deepspeed>, deepspeed_arguments},
    {"sluice", "sluice", transformer_lacks, refusal_of<refused_by_sluice>, sluice_arguments}};

// A configuration without any parallelism, which every framework runs.
PlanPoint plainest() {
  PlanPoint out;
  out.family = &find_family("1f1b");
  return out;
}

}  // namespace

std::span<const Framework> all_frameworks() { return kFrameworks; }

const Framework* find_framework(const std::string& name) {
  if (name == "any") return nullptr;
  std::vector<std::string> names;
  for (const Framework& framework : kFrameworks) {
    if (framework.name == name) return &framework;
    names.emplace_back(framework.name);
  }
  names.emplace_back("any");
  throw InputError(fmt::format("--runs-on: expected one of {}, got '{}'{}", fmt::join(names, ", "), name,
                               did_you_mean(name, names)));
}

void restrict_to(const Framework& framework, Scenario& base, PlanSpace& space) {
  const auto refused = [&](const PlanPoint& point) { return framework.refusal_of_point(base, point); };
  const auto fail = [&](const std::string& what, const std::string& reason) {
    throw InputError(fmt::format("--runs-on {}: {}: {}", framework.name, what, reason));
  };
  if (!base.model) return;  // enumerating reports it
  if (const std::string lacks = framework.lacks(*base.model); !lacks.empty()) {
    throw InputError(fmt::format("--runs-on {}: {}: {} is not supported", framework.name, base.model->name, lacks));
  }
  if (const std::string reason = refused(plainest()); !reason.empty()) fail("the scenario", reason);
  space.megatron_transfers = framework.name.starts_with("megatron");
  space.base_transfers = !space.megatron_transfers;
  if (framework.name == "torchtitan") {
    if (base.training.cross_entropy == Training::CrossEntropy::native) {
      fail("--cross-entropy-fusion-impl native", "its loss is PyTorch's (plain), or compiled with its gradient (te)");
    }
    if (base.training.cross_entropy == Training::CrossEntropy::separate) {
      base.training.cross_entropy = Training::CrossEntropy::plain;
      space.base_flags = " --cross-entropy-fusion-impl plain";
    }
    base.training.torch_pipelining = base.training.gathered_inputs = true;
    space.base_flags += " --torch-pipelining --gathered-inputs";
    if (!space.sequence_parallel) fail("--no-sequence-parallel", "its tensor parallelism splits sequences as well");
  }
  const auto probe = [&](const char* flag, const auto& values, const auto& set) {
    for (const auto& value : values) {
      PlanPoint point = plainest();
      set(point, value);
      if (const std::string reason = refused(point); !reason.empty()) fail(fmt::format("{} {}", flag, value), reason);
    }
  };
  probe("--schedule", space.families,
        [](PlanPoint& point, const std::string& name) { point.family = &find_family(name, "--schedule"); });
  probe("--tp", space.tp, [](PlanPoint& point, int tp) { point.tp = tp; });
  probe("--cp", space.cp, [](PlanPoint& point, int cp) { point.cp = cp; });
  probe("--ep", space.ep, [](PlanPoint& point, int ep) { point.ep = ep; });
  probe("--etp", space.etp, [](PlanPoint& point, int etp) { point.etp = etp; });
  probe("--recompute-num-layers", space.recompute_layers, [](PlanPoint& point, int layers) {
    point.recompute = Training::Recompute::full;
    point.recompute_layers = layers;
  });
  probe("--slices", space.slices, [](PlanPoint& point, int slices) { point.slices = slices; });
  constexpr std::array kRecompute = {"none", "selective", "full"};
  probe("--recompute", space.recompute, [&](PlanPoint& point, const std::string& word) {
    const auto found = std::find(kRecompute.begin(), kRecompute.end(), word);
    if (found == kRecompute.end()) return;  // enumerating reports it
    point.recompute = static_cast<Training::Recompute>(found - kRecompute.begin());
    point.recompute_modules = base.training.recompute_modules;
  });
  const auto probe_yes = [&](const char* flag, const std::vector<bool>& values, bool PlanPoint::*member) {
    if (std::find(values.begin(), values.end(), true) == values.end()) return;
    PlanPoint point = plainest();
    point.*member = true;
    if (const std::string reason = refused(point); !reason.empty()) fail(fmt::format("{} yes", flag), reason);
  };
  probe_yes("--use-distributed-optimizer", space.distributed_optimizer, &PlanPoint::distributed_optimizer);
  probe_yes("--use-tp-pp-dp-mapping", space.pipeline_before_data, &PlanPoint::pipeline_before_data);
  // Its runs split the tokens of layers with experts, and nothing else.
  if (framework.name == "sluice" && !base.model->has_experts()) space.sequence_parallel = false;
  if (space.families.empty()) {
    for (const Family& family : all_families()) {
      PlanPoint point = plainest();
      point.family = &family;
      if (!family.asynchronous && refused(point).empty()) space.families.emplace_back(family.name);
    }
  }
  space.refusal = [base, &framework](const PlanPoint& point) {
    const std::string reason = framework.refusal_of_point(base, point);
    return reason.empty() ? reason : fmt::format("--runs-on {}: {}", framework.name, reason);
  };
}

}  // namespace sluice::tools

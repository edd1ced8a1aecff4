// Public header.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/workload/precision.h"
#include "model/workload/transformer.h"

namespace sluice::model {

// A part of a layer that is recomputed by itself (Megatron-LM's recompute-modules), or the whole layer.
enum class RecomputeModule : std::uint8_t {
  core_attention,  // scores, softmax, dropout; no effect with fused attention
  norm,            // outputs of both norms
  up_projection,   // queries, keys and values from the latents
  mlp,             // of a dense layer
  experts,         // router, dispatch, experts, combine, with the shared expert
  activation,      // of the experts
  shared_experts,
  layer,
};

// What is launched as CUDA graphs, one per layer and pass (Megatron-LM's cuda-graph-modules).
enum class GraphModule : std::uint8_t {
  attention,       // everything of a layer besides its MLP
  mlp,             // of a dense layer
  moe,             // of a layer with experts, all of it: its sizes must be constant (tokens are dropped or padded)
  moe_router,      // with the shared expert
  moe_preprocess,  // the copies of tokens before the dispatch, and their sum after the combine
};

// A set of modules.
template <typename Module>
class ModuleSet {
 public:
  constexpr ModuleSet() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): one module is a set.
  constexpr ModuleSet(Module module) : bits_(static_cast<std::uint8_t>(1U << unsigned(module))) {}
  constexpr ModuleSet operator|(ModuleSet other) const {
    ModuleSet out;
    out.bits_ = static_cast<std::uint8_t>(bits_ | other.bits_);
    return out;
  }
  constexpr bool any_of(ModuleSet other) const { return (bits_ & other.bits_) != 0; }
  friend bool operator==(const ModuleSet&, const ModuleSet&) = default;

 private:
  std::uint8_t bits_ = 0;
};
using RecomputeModules = ModuleSet<RecomputeModule>;
using GraphModules = ModuleSet<GraphModule>;
inline constexpr GraphModules kWholeLayer = GraphModules(GraphModule::attention) | GraphModule::mlp | GraphModule::moe;
// By enumerator, without `layer`: "core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts".
const std::vector<std::string>& recompute_module_names();
std::vector<std::string> names_of(RecomputeModules modules);
// By enumerator: "attn", "mlp", "moe", "moe_router", "moe_preprocess".
const std::vector<std::string>& graph_module_names();
std::vector<std::string> names_of(GraphModules modules);

// The training configuration of a transformer: everything besides its shape that determines parameters, activations and
// time on one device.
struct Training {
  // The activations that are recomputed before the backward pass instead of being stored.
  enum class Recompute : std::uint8_t {
    none,
    selective,  // `recompute_modules` of each layer
    full,       // whole layers, from their inputs
  };

  // How context-parallel ranks exchange keys and values.
  enum class ContextExchange : std::uint8_t {
    ring,        // around a ring, one rank's per step, overlapped with attention over those received before (p2p)
    all_to_all,  // for attention the heads are split instead of the sequence (Jacobs et al. 2023)
  };

  // How the loss is computed from the 16-bit logits, one row per token.
  enum class CrossEntropy : std::uint8_t {
    separate,  // kernel by kernel, on 32-bit logits, which the softmax and then its gradient overwrite
    native,    // compiled by PyTorch: as `separate`, but the softmax is written besides the 32-bit logits
    te,        // Transformer Engine: softmax and its gradient overwrite the 16-bit logits
    plain,     // PyTorch's: as `native`, and two more 32-bit tensors in the backward pass
  };

  // What captures and replays CUDA graphs (Megatron-LM's cuda-graph-impl).
  enum class GraphImplementation : std::uint8_t {
    none,
    local,               // Megatron-LM, `graph_modules` of each layer
    transformer_engine,  // Transformer Engine, the same
    full_iteration,      // all forwards and backwards of an iteration are one graph
  };

  // What carries the tokens of experts.
  enum class TokenDispatcher : std::uint8_t {
    all_to_all,  // NCCL: one copy of a token per expert
    deepep,      // one copy per rank, sent once to each node and forwarded there (DeepEP)
    hybridep,    // the same within NVLink domains of several nodes (NVIDIA's HybridEP)
  };

  // What is done with the batch.
  enum class Work : std::uint8_t {
    training,
    evaluation,  // forwards, with the loss
    prefill,     // forwards that leave keys and values; the head of the last token is not counted
  };

  // The communication of each half of a joint block that overlaps with the other half's kernels.
  enum class JointOverlap : std::uint8_t {
    none,
    experts,  // dispatch and combine, in the order of `weave`, as DualPipe and Megatron-LM's combined 1F1B do
    all,      // also the collectives of tensor and context parallelism, which no framework does
  };

  Work work = Work::training;
  int vocabulary_barriers = 0;  // of the schedule; 0: the embedding is on the first stage and the head on the last one
  int offload_window = 0;       // OffloadOptions::window, which no key sets (planned_setup)
  int tp = 1;
  int cp = 1;  // number of ranks over which the tokens of a sequence are split, each with two of 2 cp chunks, so that
               // all have the same causal work
  int dp = 1;
  int pp = 1;
  int ep = 1;           // number of ranks, of the tp cp dp ranks of a stage, over which the experts are distributed
  int etp = 1;          // number of ranks over which each expert is split instead of tp
  int micro_batch = 1;  // sequences
  std::int64_t sequence_length = 0;
  bool sequence_parallel = false;  // norms and dropout also split over the tp ranks
  // Under sequence parallelism, all-gathers and reduce-scatters overlap with the GEMMs before or after them
  // (userbuffers of Transformer Engine).
  bool tp_comm_overlap = false;
  Recompute recompute = Recompute::none;
  RecomputeModules recompute_modules = RecomputeModule::core_attention;  // with selective recomputation
  int recompute_layers = 0;     // with full recomputation: number of leading layers recomputed per stage (0 = all)
  bool flash_attention = true;  // the scores are never stored
  bool grouped_experts = true;  // the GEMMs of the experts are one grouped GEMM (Transformer Engine)
  // Each GEMM is one kernel for all experts, the first with their activation and the cast of its result; otherwise the
  // host launches a GEMM and a cast per expert (Megatron-LM's use-transformer-engine-op-fuser).
  bool fused_grouped_mlp = false;
  // Number of microbatches for which the last stage defers the head's weight gradient to the end of the batch
  // (Megatron-LM's wgrad-deferral-limit); it keeps the operands.
  int deferred_head_gradients = 0;
  bool distributed_optimizer = false;  // optimizer states sharded over the data-parallel ranks: ZeRO
  // With distributed_optimizer, the stage of ZeRO (Rajbhandari et al. 2020): 1 shards optimizer states, 2 gradients
  // too, 3 parameters too (FSDP).
  int zero = 1;
  int dp_shard = 0;  // number of data-parallel replicas over which states are sharded (0: all); other replicas are
                     // copies (HSDP)
  // ZeRO 3: gathered parameters are freed after the forward and gathered again before the backward. By default without
  // a pipeline (torchtitan).
  std::optional<bool> reshard_after_forward;
  bool overlap_grad_reduce = false;   // gradients are reduced during the backward pass
  bool overlap_param_gather = false;  // with the distributed optimizer: parameters are gathered before the first
                                      // forward of each stage, instead of after its step
  GemmPrecision precision = GemmPrecision::bf16;
  // Parameters of linear layers are kept and gathered in the 8 bits of `precision`, and there is no 16-bit copy
  // (Megatron-LM's fp8-param-gather).
  bool narrow_parameters = false;
  // Fused attention has operands of 8 bits (Megatron-LM's fp8-dot-product-attention); queries, keys, values and output
  // gradients are cast before it. Stored tensors are counted as without it.
  bool narrow_attention = false;
  int gradient_bytes = 4;      // of a gradient element: 2 or 4
  bool gradient_copy = false;  // 32-bit gradients are accumulated besides 16-bit ones, which are kept as well
  int optimizer_bytes = 12;    // of the 32-bit weight and both moments of a parameter, 3 to 12
  int lora_rank = 0;           // of adapters, which alone are trained (adapters.h); 0: all parameters are
  // Fraction of the optimizer states that are in host memory, where the host updates their parameters (ZeRO-Offload,
  // Ren et al. 2021; Megatron-LM's optimizer-offload-fraction).
  double optimizer_offload = 0;
  // Fraction of what each rank's forwards store that is copied to host memory until its backward (graph/offload.h);
  // kAutomaticOffload: as much as delays no op.
  double activation_offload = 0;
  static constexpr double kAutomaticOffload = -1;
  // Modules whose inputs alone are copied; empty: everything is (Megatron-LM's offload-modules).
  std::vector<std::string> offload_modules;
  // The copies of gradients to the host and of parameters back overlap with its updates and those of the GPU.
  bool overlap_optimizer_offload = false;
  // PyTorch's pipeline stages: the last one keeps the 16-bit logits of every microbatch, and each has buffers for what
  // it receives of every microbatch, until the end of the batch (torch/distributed/pipelining/stage.py: output_chunks,
  // args_recv_info and grad_recv_info). Without effect on one stage.
  bool torch_pipelining = false;
  // With sequence parallelism, the inputs of attention, MLP and head are stored as gathered for their GEMMs (DTensor);
  // otherwise each rank stores its shard and gathers again for the weight gradients (Megatron-LM).
  bool gathered_inputs = false;
  bool fused_activation = true;  // the MLP's gate and activation are one kernel, which stores their inputs alone
  // The inputs of the MLP's activation are stored in 8 bits (Megatron-LM's activation-func-fp8-input-store).
  bool narrow_activation_inputs = false;
  bool scatter_gather = true;  // each tp rank sends 1/tp of a transfer, all-gathered on arrival (tp > 1)
  CrossEntropy cross_entropy = CrossEntropy::separate;
  // Transformer Engine's layers: where gradients are accumulated within the GEMM, a 16-bit tensor of each weight's
  // shape is kept to return to autograd in place of the gradient (transformer_engine/pytorch/utils, get_dummy_wgrad).
  bool transformer_engine = false;
  // Latent attention rotates queries in place, and keys as it joins their parts (Megatron-LM's
  // fused_mla_yarn_rope_apply).
  bool fused_latent_rotary = false;
  bool any_layout = false;  // what the GPU multiplies: see traits_of
  ContextExchange context_exchange = ContextExchange::ring;
  JointOverlap joint_overlap = JointOverlap::experts;
  std::string weave = "dualpipe";  // of joint blocks with experts: see find_weave; or kSearchedWeave
  GraphImplementation graph_implementation = GraphImplementation::none;
  GraphModules graph_modules;  // of `local` and `transformer_engine`
  TokenDispatcher token_dispatcher = TokenDispatcher::all_to_all;
  bool fp8_dispatch =
      false;  // tokens are dispatched in 8 bits with a 32-bit scale per 128, combined in 16 (DeepSeek-V3)
  int communication_sms = -1;   // that dispatch and combine occupy; -1: as many as the dispatcher takes by default
  double expert_imbalance = 1;  // tokens of the busiest expert-parallel rank over the mean
  // Most rows of an expert over the mean, beyond which tokens are dropped (0: none is); padded, every expert has as
  // many.
  double expert_capacity = 0;
  bool pads_experts = false;
  // World ranks in the order tensor, context, pipeline, data instead of tensor, context, data, pipeline, so that the
  // stages of a replica are close to each other (Megatron-LM's use-tp-pp-dp-mapping).
  bool pipeline_before_data = false;

  // 20 and 16: the defaults of Megatron-LM's moe-deepep-num-sms and moe-hybridep-num-sms. NCCL is assumed to take as
  // many as DeepEP.
  int dispatch_sms() const {
    if (communication_sms >= 0) return communication_sms;
    return token_dispatcher == TokenDispatcher::hybridep ? 16 : 20;
  }
  // Rows of the experts of the mean and of the busiest rank, over those of all tokens' choices spread evenly.
  double mean_expert_rows() const {
    if (expert_capacity == 0) return 1;
    return pads_experts ? expert_capacity : std::min(1.0, expert_capacity);
  }
  double most_expert_rows(const Experts& experts) const {
    const double load = std::min(expert_imbalance, largest_imbalance(experts, ep));
    if (expert_capacity == 0) return load;
    return pads_experts ? expert_capacity : std::min(load, expert_capacity);
  }
  // Number of ranks over which the vocabulary is split.
  int vocabulary_ranks() const { return vocabulary_barriers > 0 ? tp * pp : tp; }
  std::int64_t world_size() const { return std::int64_t{tp} * cp * dp * pp; }
  // Number of ranks that have the same parameters and all-reduce their gradients: of experts, and of everything else.
  int data_ranks() const { return cp * dp; }
  int replica_copies() const { return dp_shard > 0 ? dp / dp_shard : 1; }  // that hold the same shards
  int shard_ranks() const { return data_ranks() / replica_copies(); }
  bool forward_only() const { return work != Work::training; }
  // Whether narrow weights of linear layers take the place of 16-bit ones: inference has no use for those.
  bool replaces_weights() const { return narrow_parameters || work == Work::prefill; }
  int zero_stage() const { return distributed_optimizer ? zero : 0; }
  // Without a pipeline, sharded gradients are reduced in every backward, and sharded parameters are gathered in every
  // forward; with one, once per batch unless parameters are resharded (PyTorch's pipelining).
  bool reshards() const { return zero_stage() == 3 && reshard_after_forward.value_or(pp == 1); }
  bool gathers_per_op() const { return zero_stage() == 3 && (pp == 1 || reshards()); }
  bool reduces_per_op() const { return zero_stage() >= 2 && pp == 1; }
  // ZeRO 2 with a pipeline: after each run of backwards of one stage on a rank.
  bool reduces_runs() const { return zero_stage() == 2 && pp > 1; }
  int expert_ranks() const { return ep * etp; }  // over which the experts of a layer are distributed
  int expert_data_ranks() const { return tp * cp * dp / expert_ranks(); }
  int expert_shard_ranks() const { return expert_data_ranks() / replica_copies(); }
  // Whether selective recomputation repeats anything: fused attention stores no scores.
  bool has_modules_to_repeat() const;
  // Whether each tp rank sends its own shard of a transfer instead of the whole tensor.
  bool splits_transfers() const { return tp > 1 && (sequence_parallel || scatter_gather); }

  friend bool operator==(const Training&, const Training&) = default;
};

// Returns a vocabulary size as padded by Megatron-LM: to the next multiple of 128 tp.
constexpr std::int64_t padded_vocab(std::int64_t vocab, int tp) {
  const std::int64_t step = std::int64_t{128} * tp;
  return (vocab + step - 1) / step * step;
}

// Of multi-token prediction: the last stage, whatever their number.
inline constexpr int kLastStage = -1;

// Of one stage, where several have multi-token prediction or losses.
struct Predictions {
  int layers = 0;  // of multi-token prediction
  int losses = 0;  // of the last of the hidden states that arrive; the others are passed on
  friend bool operator==(const Predictions&, const Predictions&) = default;
};

// The part of the model on one stage.
struct StageContents {
  int layers = 0;
  int expert_layers = 0;  // number of them with experts
  int first = 0;          // of a model whose layers are not those of a Transformer: see Model::alike
  bool embedding = false;
  bool head = false;
  int losses = 0;  // with a head: of how many hidden states (0: of the main model and all multi-token predictions)
  // Where the vocabulary is split over all pipeline ranks, whose first stages have a shard of both, instead of these:
  // their number.
  int vocabulary_ranks = 0;
  bool tied_copy = false;  // the head has its own copy of a tied word embedding, since the original is on another rank
  int mtp_layers = 0;      // of multi-token prediction
  bool mtp_embedding = false;  // for them: a copy of the word embedding that is on another rank
  // Of the encoder of images: layers, the projection of patches before all of them, and the mergers after them.
  int encoder_layers = 0;
  bool encoder_begin = false;
  bool encoder_end = false;
  int encoder_ranks = 1;  // that have this part of it, with microbatches of their own

  bool has_encoder() const { return encoder_layers > 0 || encoder_begin || encoder_end; }

  std::array<std::pair<LayerKind, int>, 2> by_kind() const {
    return {{{LayerKind::dense, layers - expert_layers}, {LayerKind::experts, expert_layers}}};
  }
  friend bool operator==(const StageContents&, const StageContents&) = default;
};

}  // namespace sluice::model

#include "tools/command/scenario_flag_rows.h"

namespace sluice::tools {

using namespace flag_groups;

namespace {

const ScenarioFlagRow kScenarioFlagRows[] = {
    {"--schedule", "/schedule/name", ScenarioValueKind::name, kSchedule,
     "Schedule family ('sluice schedules' lists them), schedule file, or auto to search for one (default: 1f1b)"},
    {"--pp,--pipeline-model-parallel-size", "/parallelism/pp", ScenarioValueKind::whole, kSchedule,
     "Number of pipeline ranks, 1 to 8192 (required without a schedule file)"},
    {"--vpp,--num-virtual-stages-per-pipeline-rank", "/parallelism/vpp", ScenarioValueKind::whole, kSchedule,
     "Number of model chunks (virtual stages) per rank, 1 to 32767; hanayo: twice the number of waves (default: the "
     "family's)"},
    {"--num-layers-per-virtual-pipeline-stage", "/parallelism/layers_per_virtual_stage", ScenarioValueKind::whole,
     kSchedule, "Number of layers per model chunk, instead of --vpp; must divide layers / pp (default: not set)"},
    {"--group", "/schedule/group", ScenarioValueKind::whole, kSchedule,
     "Interleaved families: number of microbatches (or slices) per group, at least --pp (default: --pp)"},
    {"--microbatches", "/batch/microbatches", ScenarioValueKind::whole, kSchedule,
     "Number of microbatches per batch and pipeline, 1 to 1000000000 (required without --gbs)"},
    {"--slices", "/schedule/slices", ScenarioValueKind::whole, kSchedule,
     "Number of slices per sequence, 1 to 32767 (default 1); --slicing sets how they are cut"},
    {"--slicing", "/schedule/slicing", ScenarioValueKind::text, kSchedule,
     "How sequences are cut: even, or balanced for equal FLOPs under causal attention (default: even)",
     "even,balanced"},
    {"--slice-lengths", "/schedule/slice_lengths", ScenarioValueKind::whole_list, kSchedule,
     "Number of tokens of each slice, as a,b,c; they add up to the sequence length (default: by --slicing)"},
    {"--batches", "/schedule/batches", ScenarioValueKind::whole, kSchedule,
     "Number of batches to simulate, for families without a flush, at least 1 (default: the family's)"},

    {"--memory-cap", "/schedule/memory_cap", ScenarioValueKind::text, kAutomaticSchedule,
     "Memory limit per rank: bytes (60GiB), or activations of a number of microbatches (3mb), each held from its F "
     "until its B or W ends (default: the device's "
     "memory)"},
    {"--time-budget", "/schedule/time_budget_s", ScenarioValueKind::real, kAutomaticSchedule,
     "Search time in seconds, 0 to 1000000 (default 10)"},
    {"--placement", "/schedule/placement", ScenarioValueKind::text, kAutomaticSchedule,
     "Placement of stages: linear, looped, v or any; without --vpp, any tries one and two chunks per rank (default: "
     "any)",
     "linear,looped,v,any"},

    {"--tp,--tensor-model-parallel-size", "/parallelism/tp", ScenarioValueKind::whole, kParallelism,
     "Number of tensor-parallel ranks, 1 to 4096 (default 1)"},
    {"--dp,--data-parallel-size", "/parallelism/dp", ScenarioValueKind::whole, kParallelism,
     "Number of data-parallel replicas, 1 to 1048576 (default 1)"},
    {"--gpus", "/parallelism/gpus", ScenarioValueKind::whole, kParallelism,
     "Number of GPUs, a multiple of tp x cp x pp, 1 to 16777216; sets the number of data-parallel replicas (default: "
     "tp x cp x pp x dp)"},
    {"--use-tp-pp-dp-mapping", "/parallelism/pipeline_before_data", ScenarioValueKind::yes, kParallelism,
     "Place the stages of a replica on neighboring GPUs: rank order tp-pp-dp (default: tp-dp-pp)"},
    {"--cp,--context-parallel-size", "/parallelism/cp", ScenarioValueKind::whole, kParallelism,
     "Number of context-parallel ranks, which split each sequence, 1 to 4096 (default 1)"},
    {"--cp-comm-type", "/parallelism/cp_comm_type", ScenarioValueKind::text, kParallelism,
     "Exchange of keys and values between context-parallel ranks: p2p or a2a (default: p2p)", "p2p,a2a"},
    {"--ep,--expert-model-parallel-size", "/parallelism/ep", ScenarioValueKind::whole, kParallelism,
     "Number of expert-parallel ranks, 1 to 65536; must divide tp x cp x dp (default 1)"},
    {"--etp,--expert-tensor-parallel-size", "/parallelism/etp", ScenarioValueKind::whole, kParallelism,
     "Number of ranks over which each expert is split, 1 to 4096; ep x etp must divide tp x cp x dp (default 1)"},
    {"--joint-overlap", "/parallelism/joint_overlap", ScenarioValueKind::text, kParallelism,
     "Communication that overlaps with compute in joint blocks of F and B: none, experts (dispatch and combine) or all "
     "(also of tensor and context parallelism, which no framework does) (default: experts)",
     "none,experts,all"},
    {"--weave", "/parallelism/weave", ScenarioValueKind::text, kParallelism,
     "Order of the parts of F and B in joint blocks with experts: dualpipe, whole-backward (no separate weight "
     "gradients), search (the fastest per pair of stages), or a list such as 'combine(B) attention(F) ...' (default: "
     "dualpipe)"},
    {"--moe-token-dispatcher", "/parallelism/moe_token_dispatcher", ScenarioValueKind::text, kParallelism,
     "Dispatch and combine of experts: alltoall (NCCL, a copy per expert), deepep or hybridep (a copy per rank, sent "
     "once to each node) (default: alltoall)",
     "alltoall,deepep,hybridep"},
    {"--fused-grouped-mlp,--use-transformer-engine-op-fuser", "/parallelism/fused_grouped_mlp", ScenarioValueKind::yes,
     kParallelism,
     "Compute each GEMM of all experts in one kernel, the first with the activation and the cast of its result, "
     "instead "
     "of a GEMM and a cast per expert (default: off)"},
    {"--cuda-graph-impl", "/parallelism/cuda_graph_impl", ScenarioValueKind::text, kParallelism,
     "Launch kernels as CUDA graphs: none, local or transformer_engine (parts of layers), or full_iteration; the "
     "memory "
     "of graphs is not included (default: none)",
     "none,local,transformer_engine,full_iteration"},
    {"--cuda-graph-modules", "/parallelism/cuda_graph_modules", ScenarioValueKind::text_list, kParallelism,
     "With --cuda-graph-impl local or transformer_engine: list of attn, mlp, moe, moe_router, moe_preprocess (default: "
     "whole layers)"},
    {"--fp8-dispatch", "/parallelism/fp8_dispatch", ScenarioValueKind::yes, kParallelism,
     "Dispatch the tokens of experts in 8 bits; combine remains in 16 (default: off)"},
    {"--moe-communication-sms", "/parallelism/moe_communication_sms", ScenarioValueKind::whole, kParallelism,
     "Multiprocessors that dispatch and combine take from compute beside them, 0 to 1024 (default: 20, hybridep 16)"},
    {"--expert-imbalance", "/parallelism/expert_imbalance", ScenarioValueKind::real, kParallelism,
     "Tokens of the busiest expert-parallel rank over the mean, 1 to experts / experts per token; limited to --ep "
     "(default: 1)"},
    {"--moe-expert-capacity-factor", "/parallelism/moe_expert_capacity_factor", ScenarioValueKind::real, kParallelism,
     "Most tokens of an expert over the mean, beyond which they are dropped, 0.001 to 1000 (default: none is dropped)"},
    {"--moe-pad-expert-input-to-capacity", "/parallelism/moe_pad_expert_input_to_capacity", ScenarioValueKind::yes,
     kParallelism, "Pad the tokens of every expert to --moe-expert-capacity-factor (default: off)"},
    {"--sequence-parallel", "/parallelism/sequence_parallel", ScenarioValueKind::yes, kParallelism,
     "Split norms and dropout over the tensor-parallel ranks (default: off)"},
    {"--tp-comm-overlap", "/parallelism/tp_comm_overlap", ScenarioValueKind::yes, kParallelism,
     "Overlap tensor-parallel communication with the GEMMs before or after it; needs --sequence-parallel (default: "
     "off)"},
    {"--recompute,--recompute-granularity", "/parallelism/recompute", ScenarioValueKind::text, kParallelism,
     "Activation recomputation: none, selective or full (default: none)", "none,selective,full"},
    {"--recompute-modules", "/parallelism/recompute_modules", ScenarioValueKind::text_list, kParallelism,
     "With selective recomputation: list of core_attn, layernorm, mla_up_proj, mlp, moe, moe_act, shared_experts "
     "(default: core_attn)"},
    {"--recompute-num-layers", "/parallelism/recompute_layers", ScenarioValueKind::whole, kParallelism,
     "With full recomputation: number of leading layers recomputed per stage, 1 to 100000 (default: all)"},
    {"--use-distributed-optimizer", "/parallelism/distributed_optimizer", ScenarioValueKind::yes, kParallelism,
     "Shard optimizer states over the data-parallel replicas, as --zero-stage 1 (default: off)"},
    {"--zero-stage", "/parallelism/zero", ScenarioValueKind::whole, kParallelism,
     "Stage of ZeRO: 1 shards optimizer states, 2 also gradients, 3 also parameters (FSDP), 0 nothing (default 0)"},
    {"--dp-shard", "/parallelism/dp_shard", ScenarioValueKind::whole, kParallelism,
     "With --zero-stage: number of replicas that share one set of shards (HSDP), a divisor of --dp (default: --dp)"},
    {"--dp-replicate", "/parallelism/dp_replicate", ScenarioValueKind::whole, kParallelism,
     "In place of --dp-shard: number of copies of the shards, a divisor of --dp (default: 1)"},
    {"--reshard-after-forward", "/parallelism/reshard_after_forward", ScenarioValueKind::yes, kParallelism,
     "With --zero-stage 3: gather parameters again before the backward (default: on without a pipeline)"},
    {"--torch-pipelining", "/parallelism/torch_pipelining", ScenarioValueKind::yes, kParallelism,
     "Count what PyTorch's stages keep until the end of a batch: logits and receive buffers of all microbatches "
     "(default: off)"},
    {"--gathered-inputs", "/parallelism/gathered_inputs", ScenarioValueKind::yes, kParallelism,
     "With --sequence-parallel: count the inputs of attention, MLP and head as stored gathered, as by DTensor "
     "(default: "
     "off)"},
    {"--optimizer-cpu-offload", "/parallelism/optimizer_cpu_offload", ScenarioValueKind::yes, kParallelism,
     "Keep optimizer states in host memory and update their parameters on the host (default: off)"},
    {"--optimizer-offload-fraction", "/parallelism/optimizer_offload_fraction", ScenarioValueKind::real, kParallelism,
     "With --optimizer-cpu-offload: fraction of the optimizer states on the host, 0 to 1 (default: 1)"},
    {"--overlap-cpu-optimizer-d2h-h2d", "/parallelism/overlap_cpu_optimizer_d2h_h2d", ScenarioValueKind::yes,
     kParallelism, "Overlap the copies of gradients and parameters with the host's updates (default: off)"},
    {"--overlap-grad-reduce", "/parallelism/overlap_grad_reduce", ScenarioValueKind::yes, kParallelism,
     "Overlap gradient reduction with the backward pass (default: off)"},
    {"--overlap-param-gather", "/parallelism/overlap_param_gather", ScenarioValueKind::yes, kParallelism,
     "Gather parameters before the first forward of each stage; requires --use-distributed-optimizer and "
     "--overlap-grad-reduce (default: after the step)"},
    {"--cross-entropy-loss-fusion", "/parallelism/fused_cross_entropy", ScenarioValueKind::yes, kParallelism,
     "Compute the cross-entropy loss in fused kernels (default: off)"},
    {"--cross-entropy-fusion-impl", "/parallelism/cross_entropy_fusion_impl", ScenarioValueKind::text, kParallelism,
     "Kernels of --cross-entropy-loss-fusion: te, in place of the 16-bit logits, or native, in 32 bits (default: te)",
     "native,te"},
    {"--wgrad-deferral-limit", "/parallelism/wgrad_deferral_limit", ScenarioValueKind::whole, kParallelism,
     "Number of microbatches whose weight gradient of the head the last stage defers (default: 0)"},
    {"--precision", "/parallelism/precision", ScenarioValueKind::text, kParallelism,
     "Operands of the linear layers' GEMMs: bf16, fp16, fp8 (delayed scaling), fp8-current, mxfp8 or nvfp4 (default: "
     "bf16)",
     "bf16,fp16,fp8,fp8-current,mxfp8,nvfp4"},
    {"--fp8-param-gather", "/parallelism/fp8_param_gather", ScenarioValueKind::yes, kParallelism,
     "Keep and gather the parameters of linear layers in 8 bits (default: off)"},
    {"--fp8-dot-product-attention", "/parallelism/fp8_dot_product_attention", ScenarioValueKind::yes, kParallelism,
     "Compute fused attention with operands of 8 bits (default: off)"},
    {"--activation-func-fp8-input-store", "/parallelism/activation_func_fp8_input_store", ScenarioValueKind::yes,
     kParallelism, "Store the inputs of the MLP's activation in 8 bits (default: off)"},
    {"--overlap-p2p-communication", "/parallelism/overlap_transfers", ScenarioValueKind::yes, kParallelism,
     "Overlap point-to-point transfers with compute (default: as the training framework does)"},
    {"--stage-layers", "/parallelism/stage_layers", ScenarioValueKind::whole_list, kParallelism,
     "Number of layers of each stage, as a,b,c (default: distributed evenly)"},
    {"--pipeline-model-parallel-layout", "/parallelism/pipeline_layout", ScenarioValueKind::text, kParallelism,
     "Layers of each stage in Megatron-LM's form, such as 'Et*3|(t*4|)*6t*3L' or, with multi-token prediction, "
     "'Et*4|t*3mL' (default: distributed evenly)"},
    {"--decoder-first-pipeline-num-layers", "/parallelism/first_stage_layers", ScenarioValueKind::whole, kParallelism,
     "Number of layers in the first stage, 1 to 100000 (default: distributed evenly)"},
    {"--decoder-last-pipeline-num-layers", "/parallelism/last_stage_layers", ScenarioValueKind::whole, kParallelism,
     "Number of layers in the last stage, 1 to 100000 (default: distributed evenly)"},

    {"--mbs,--micro-batch-size", "/batch/micro_batch", ScenarioValueKind::whole, kBatch,
     "Number of sequences per microbatch, 1 to 1048576 (default 1)"},
    {"--gbs,--global-batch-size", "/batch/global_batch", ScenarioValueKind::whole, kBatch,
     "Number of sequences per batch over all replicas, a multiple of mbs x dp; sets --microbatches (default: mbs x dp "
     "x microbatches)"},
    {"--seq-length", "/batch/sequence_length", ScenarioValueKind::whole, kBatch,
     "Number of tokens per sequence, 1 to 1073741824 (required with a model)"},

    {"--model", "/model", ScenarioValueKind::name, kModel,
     "Model of the catalogue (llama3-8b, gpt3-175b, ...), or a model file: Hugging Face config.json or Megatron-style "
     "JSON; the flags below describe a model instead (default: none)"},
    {"--num-layers", "/model/num_layers", ScenarioValueKind::whole, kModel,
     "Number of transformer layers, 1 to 32768 (required)"},
    {"--hidden-size", "/model/hidden_size", ScenarioValueKind::whole, kModel, "Hidden size, 1 to 16777216 (required)"},
    {"--ffn-hidden-size", "/model/ffn_hidden_size", ScenarioValueKind::whole, kModel,
     "Hidden size of the feed-forward layers, 1 to 16777216 (default: 4 x hidden size; required with --swiglu)"},
    {"--num-attention-heads", "/model/num_attention_heads", ScenarioValueKind::whole, kModel,
     "Number of attention heads, 1 to 32768 (required)"},
    {"--num-query-groups", "/model/num_query_groups", ScenarioValueKind::whole, kModel,
     "Number of key-value heads (grouped-query attention), a divisor of the attention heads (default: all of them)"},
    {"--vocab-size", "/model/vocab_size", ScenarioValueKind::whole, kModel,
     "Vocabulary size, 1 to 2147483648 (required)"},
    {"--kv-channels", "/model/kv_channels", ScenarioValueKind::whole, kModel,
     "Size of an attention head, 1 to 16777216 (default: hidden size / attention heads)"},
    {"--swiglu", "/model/swiglu", ScenarioValueKind::yes, kModel,
     "Use gated feed-forward layers, SwiGLU (default: off)"},
    {"--normalization", "/model/normalization", ScenarioValueKind::text, kModel,
     "LayerNorm or RMSNorm (default: LayerNorm)", "LayerNorm,RMSNorm"},
    {"--position-embedding-type", "/model/position_embedding_type", ScenarioValueKind::text, kModel,
     "learned, learned_absolute (the same), rope or none (default: learned)", "learned,learned_absolute,rope,none"},
    {"--max-position-embeddings", "/model/max_position_embeddings", ScenarioValueKind::whole, kModel,
     "Number of positions, 1 to 16777216 (required with learned position embeddings)"},
    {"--untie-embeddings-and-output-weights", "/model/untie_embeddings_and_output_weights", ScenarioValueKind::yes,
     kModel, "Give the output layer weights of its own (default: shared with the embedding)"},
    {"--disable-bias-linear", "/model/disable_bias_linear", ScenarioValueKind::yes, kModel,
     "Remove the biases of linear layers (default: off)"},
    {"--add-qkv-bias", "/model/add_qkv_bias", ScenarioValueKind::yes, kModel,
     "Add a bias to the QKV projection despite --disable-bias-linear (default: off)"},
    {"--qk-layernorm", "/model/qk_layernorm", ScenarioValueKind::yes, kModel,
     "Normalize queries and keys (default: off)"},
    {"--num-experts", "/model/num_experts", ScenarioValueKind::whole, kModel,
     "Number of experts per layer, at least 1 (default: dense layers)"},
    {"--moe-router-topk", "/model/moe_router_topk", ScenarioValueKind::whole, kModel,
     "Number of experts per token, 1 to the number of experts (default 2)"},
    {"--moe-ffn-hidden-size", "/model/moe_ffn_hidden_size", ScenarioValueKind::whole, kModel,
     "Hidden size of an expert, 1 to 16777216 (default: --ffn-hidden-size)"},
    {"--moe-shared-expert-intermediate-size", "/model/moe_shared_expert_intermediate_size", ScenarioValueKind::whole,
     kModel, "Total hidden size of the shared experts, 1 to 16777216 (default: no shared experts)"},
    {"--moe-shared-expert-gate", "/model/moe_shared_expert_gate", ScenarioValueKind::yes, kModel,
     "Scale the output of the shared experts by a learned gate (default: off)"},
    {"--moe-layer-freq", "/model/moe_layer_freq", ScenarioValueKind::whole_list, kModel,
     "1 if all layers have experts, or one number per layer: 0 (dense, at the front only) or 1 (experts) (default 1)"},
    {"--mtp-num-layers", "/mtp_num_layers", ScenarioValueKind::whole, kModel,
     "Number of layers for multi-token prediction (MTP), 0 to 1024, also of --model (default: the model's, 0)"},
    {"--multi-latent-attention", "/model/multi_latent_attention", ScenarioValueKind::yes, kModel,
     "Use multi-latent attention (MLA) (default: off)"},
    {"--q-lora-rank", "/model/q_lora_rank", ScenarioValueKind::whole, kModel,
     "MLA: rank of the query projection, 1 to 16777216 (default: queries are not compressed)"},
    {"--kv-lora-rank", "/model/kv_lora_rank", ScenarioValueKind::whole, kModel,
     "MLA: rank of the key-value projection, 1 to 16777216 (required with MLA)"},
    {"--qk-head-dim", "/model/qk_head_dim", ScenarioValueKind::whole, kModel,
     "MLA: size of a query or key head without its rotary part, 1 to 16777216 (required with MLA)"},
    {"--qk-pos-emb-head-dim", "/model/qk_pos_emb_head_dim", ScenarioValueKind::whole, kModel,
     "MLA: size of the rotary part of a query or key head, 1 to 16777216 (required with MLA)"},
    {"--v-head-dim", "/model/v_head_dim", ScenarioValueKind::whole, kModel,
     "MLA: size of a value head, 1 to 16777216 (required with MLA)"},

    {"--cluster", "/cluster/name", ScenarioValueKind::name, kCluster,
     "Node of the catalogue (dgx-h100, ...), or a node or cluster file (required with the analytic cost)"},
    {"--nodes", "/cluster/nodes", ScenarioValueKind::whole, kCluster,
     "Number of nodes, 1 to 65536 (default: the file's, or as many as the configuration needs)"},
    {"--gpus-per-node", "/cluster/gpus_per_node", ScenarioValueKind::whole, kCluster,
     "Number of GPUs that are used of each node, at most all (default: all, or the largest power of two where only it "
     "divides the number of GPUs, such as 64 of the 72 of an NVL72 domain)"},
    {"--software", "/software", ScenarioValueKind::name, kCluster,
     "Training framework: megatron-lm, megatron-deepspeed, nanotron, nemo, nemo-2024, nemo-2023, torchtitan, "
     "torchtitan-eager, "
     "torchtitan-rowwise, or a file (default: "
     "megatron-lm)"},

    {"--calibration", "/calibration", ScenarioValueKind::path, kCost,
     "Calibration file from 'sluice calibrate': corrects the iteration time and adds an interval (default: none)"},

    {"--kernel-times", "/kernel_times", ScenarioValueKind::path, kCost,
     "Measured kernel times from 'sluice calibrate': kernels with these shapes take the measured time; of the "
     "cluster's "
     "GPU (default: none)"},

    {"--jitter", "/perturbation/jitter", ScenarioValueKind::text, kPerturbation,
     "Noise with mean 1 on every duration and on the latency of links: lognormal:S (S up to 3), normal:S or uniform:S "
     "(S up to 1) (default: none)"},
    {"--trials", "/perturbation/trials", ScenarioValueKind::whole, kPerturbation,
     "Number of simulations with --jitter, 1 to 1000000 (default 1000)"},
    {"--seed", "/perturbation/seed", ScenarioValueKind::whole, kPerturbation,
     "Random seed of --jitter and of --schedule auto, at least 0 (default 1)"},
};

}  // namespace

std::span<const ScenarioFlagRow> scenario_flag_rows() { return kScenarioFlagRows; }

}  // namespace sluice::tools

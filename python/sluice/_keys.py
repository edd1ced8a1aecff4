"""The keywords of Scenario. Written by python/write_keys.py."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Union


class SizeKeys(TypedDict, total=False):
    """All keywords but the schedule."""

    cost: Union[str, os.PathLike[str]]
    uniform: Union[str, Mapping[str, Any]]
    slow_rank: Mapping[int, float]
    slow_link: Mapping[tuple[int, int], float]
    pp: int
    pipeline_model_parallel_size: int
    vpp: int
    num_virtual_stages_per_pipeline_rank: int
    num_layers_per_virtual_pipeline_stage: int
    group: int
    microbatches: int
    slices: int
    slicing: str
    slice_lengths: Sequence[int]
    forward_only: str
    batches: int
    communicators: str
    memory_cap: str
    evaluations: int
    time_budget: float
    placement: str
    tp: int
    tensor_model_parallel_size: int
    dp: int
    data_parallel_size: int
    gpus: int
    use_tp_pp_dp_mapping: bool
    cp: int
    context_parallel_size: int
    cp_comm_type: str
    ep: int
    expert_model_parallel_size: int
    etp: int
    expert_tensor_parallel_size: int
    joint_overlap: str
    weave: str
    moe_token_dispatcher: str
    fused_grouped_mlp: bool
    use_transformer_engine_op_fuser: bool
    fp8_dispatch: bool
    moe_communication_sms: int
    expert_imbalance: float
    moe_expert_capacity_factor: float
    moe_pad_expert_input_to_capacity: bool
    cuda_graph_impl: str
    cuda_graph_modules: Sequence[str]
    sequence_parallel: bool
    tp_comm_overlap: bool
    recompute: str
    recompute_granularity: str
    recompute_modules: Sequence[str]
    recompute_num_layers: int
    use_distributed_optimizer: bool
    zero_stage: int
    dp_shard: int
    dp_replicate: int
    reshard_after_forward: bool
    torch_pipelining: bool
    gathered_inputs: bool
    optimizer_cpu_offload: bool
    optimizer_offload_fraction: float
    overlap_cpu_optimizer_d2h_h2d: bool
    offload_activations: str
    offload_modules: Sequence[str]
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    cross_entropy_loss_fusion: bool
    cross_entropy_fusion_impl: str
    wgrad_deferral_limit: int
    precision: str
    fp8_param_gather: bool
    fp8_dot_product_attention: bool
    activation_func_fp8_input_store: bool
    lora_rank: int
    overlap_p2p_communication: bool
    stage_layers: Sequence[int]
    pipeline_model_parallel_layout: str
    decoder_first_pipeline_num_layers: int
    decoder_last_pipeline_num_layers: int
    encoder_placement: str
    encoder_pp: int
    encoder_dp: int
    encoder_tp: int
    mbs: int
    micro_batch_size: int
    gbs: int
    global_batch_size: int
    seq_length: int
    lengths: str
    pack: str
    microbatch_order: str
    dynamic_cp: str
    max_seqlen_per_dp_cp_rank: int
    images: str
    freeze_encoder: bool
    model: Union[str, os.PathLike[str], Mapping[str, Any]]
    mtp_num_layers: int
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    vocab_size: int
    kv_channels: int
    swiglu: bool
    normalization: str
    position_embedding_type: str
    max_position_embeddings: int
    untie_embeddings_and_output_weights: bool
    disable_bias_linear: bool
    add_qkv_bias: bool
    qk_layernorm: bool
    hidden_dropout: float
    attention_dropout: float
    num_experts: int
    moe_router_topk: int
    moe_ffn_hidden_size: int
    moe_shared_expert_intermediate_size: int
    moe_shared_expert_gate: bool
    moe_layer_freq: Sequence[int]
    moe_router_num_groups: int
    moe_router_group_topk: int
    activation_func_clamp_value: float
    multi_latent_attention: bool
    q_lora_rank: int
    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int
    cluster: Union[str, os.PathLike[str], Mapping[str, Any]]
    nodes: int
    gpus_per_node: int
    software: Union[str, os.PathLike[str], Mapping[str, Any]]
    stage_weights: Sequence[float]
    calibration: Union[str, os.PathLike[str], Mapping[str, Any]]
    kernel_times: Union[str, os.PathLike[str], Mapping[str, Any]]
    jitter: str
    trials: int
    seed: int


class ScenarioKeys(SizeKeys, total=False):
    """All keywords."""

    schedule: Union[str, os.PathLike[str]]

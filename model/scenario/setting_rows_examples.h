// What rows of the table of settings (setting_rows.cc) share: places, headings, and documents that examples need
// besides.
#pragma once

#include <type_traits>

#include "model/scenario/scenario.h"
#include "model/scenario/settings.h"

namespace sluice::model {

template <typename Member>
SettingPlace place_of(Member& member) {
  if constexpr (std::is_enum_v<Member>) {
    return WordPlace{&member, [](void* at, int word) { *static_cast<Member*>(at) = static_cast<Member>(word); }};
  } else {
    return &member;
  }
}

// The place of a member of a scenario, of its training or of its encoder.
template <auto Member>
SettingPlace at(Scenario& scenario) {
  if constexpr (std::is_invocable_v<decltype(Member), Training&>) {
    return place_of(scenario.training.*Member);
  } else if constexpr (std::is_invocable_v<decltype(Member), EncoderChoices&>) {
    return place_of(scenario.encoder.*Member);
  } else {
    return place_of(scenario.*Member);
  }
}

// Headings in the help.
inline constexpr const char *kScheduleGroup = "Schedule", *kParallelGroup = "Parallelism",
                            *kStagesGroup = "Layers of stages";
inline constexpr const char *kExpertsGroup = "Experts", *kBatchGroup = "Batch", *kModelGroup = "Model",
                            *kCostGroup = "Cost";
inline constexpr const char *kClusterGroup = "Cluster and framework", *kPerturbationGroup = "Stragglers and noise";
inline constexpr const char* kAutomaticGroup = "Automatic schedule (--schedule auto)";
inline constexpr const char* kMemoryGroup = "Recomputation, sharding and offload";
inline constexpr const char* kKernelsGroup = "Kernels, precision and overlap";

// Commands that do not know where an encoder runs.
inline constexpr Commands kElsewhere = kRun | kSlice | kWeave | kSchedule;

// What the examples of settings of experts and of latent attention need besides.
inline constexpr const char* kExperts =
    R"({"model": {"num_experts": 16, "moe_ffn_hidden_size": 8192}, "parallelism": {"ep": 4, "sequence_parallel": true}})";
inline constexpr const char* kExpertsOnTwo =
    R"({"model": {"num_experts": 16, "moe_ffn_hidden_size": 8192}, "parallelism": {"ep": 2, "sequence_parallel": true}})";
inline constexpr const char* kExpertsOnEight =
    R"({"model": {"num_experts": 16, "moe_ffn_hidden_size": 8192}, "parallelism": {"ep": 8, "sequence_parallel": true}})";
inline constexpr const char* kWithoutReplicas = R"({"model": {"num_experts": 16, "moe_ffn_hidden_size": 8192},)"
                                                R"( "parallelism": {"dp": null, "ep": 8, "sequence_parallel": true}})";
inline constexpr const char* kJointExperts =
    R"({"model": {"num_experts": 16, "moe_ffn_hidden_size": 8192}, "schedule": {"name": "dualpipe"},)"
    R"( "parallelism": {"ep": 4, "sequence_parallel": true}})";
inline constexpr const char* kLimitedExperts =
    R"({"model": {"num_experts": 16, "moe_ffn_hidden_size": 8192},)"
    R"( "parallelism": {"ep": 4, "sequence_parallel": true, "moe_expert_capacity_factor": 2}})";
inline constexpr const char* kManyExperts =
    R"({"model": {"num_experts": 256, "moe_ffn_hidden_size": 512}, "parallelism": {"tp": 1, "dp": 4, "ep": 2}})";
inline constexpr const char* kGraphsOfLayers =
    R"({"model": {"num_experts": 256, "moe_ffn_hidden_size": 512},)"
    R"( "parallelism": {"tp": 1, "dp": 4, "ep": 2, "cuda_graph_impl": "local"}})";
inline constexpr const char* kSharedExperts =
    R"({"model": {"num_experts": 16, "moe_ffn_hidden_size": 8192, "moe_shared_expert_intermediate_size": 2048},)"
    R"( "parallelism": {"sequence_parallel": true}})";
inline constexpr const char* kGroupsPerToken = R"({"model": {"num_experts": 16, "moe_router_group_topk": 2},)"
                                               R"( "parallelism": {"sequence_parallel": true}})";
inline constexpr const char* kGroups = R"({"model": {"num_experts": 16, "moe_router_num_groups": 4},)"
                                       R"( "parallelism": {"sequence_parallel": true}})";
inline constexpr const char* kLatentSizes =
    R"({"model": {"kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128,)"
    R"( "num_query_groups": 32}})";
inline constexpr const char* kLatent =
    R"({"model": {"multi_latent_attention": true, "kv_lora_rank": 512, "qk_head_dim": 128,)"
    R"( "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "num_query_groups": 32}})";
inline constexpr const char* kOverlappedReduction =
    R"({"parallelism": {"vpp": 2, "distributed_optimizer": true, "overlap_grad_reduce": true},)"
    R"( "schedule": {"name": "interleaved-1f1b"}})";
inline constexpr const char* kHardToSchedule = R"({"schedule": {"name": "auto", "memory_cap": "5mb"}})";
inline constexpr const char* kAutomaticSchedule = R"({"schedule": {"name": "auto", "time_budget_s": 0.2}})";
inline constexpr const char* kDocuments = R"({"batch": {"global_batch": null, "lengths": "lognormal:1000,1,4096,32"}})";
inline constexpr const char* kShared =
    R"({"batch": {"global_batch": null, "lengths": "lognormal:1000,1,4000,32", "max_tokens_per_rank": 2000, )"
    R"("dynamic_cp": "fastest"}, "parallelism": {"dp": 4}})";
inline constexpr const char* kManyDocuments =
    R"({"batch": {"global_batch": null, "microbatches": 32, "lengths": "lognormal:1000,1,4000,128"}})";
inline constexpr const char* kEncoder = R"({"model": "qwen3-vl-8b", "batch": {"images": "2x1024"}})";
inline constexpr const char* kOwnRanks =
    R"({"model": "qwen3-vl-8b", "batch": {"images": "2x1024"}, "parallelism": {"encoder_placement": "own-ranks"}})";
inline constexpr const char* kUniform = R"({"cost": {"kind": "uniform"}})";
inline constexpr const char* kSharded = R"({"parallelism": {"zero": 3}})";
inline constexpr const char* kOffloaded = R"({"parallelism": {"optimizer_cpu_offload": true}})";
inline constexpr const char* kOnHost = R"({"parallelism": {"offload_activations": "1"}})";

}  // namespace sluice::model

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "model/batches/batch.h"
#include "model/scenario/scenario.h"
#include "model/schedule/family.h"
#include "model/workload/training.h"

namespace sluice::sim {

using namespace model;  // NOLINT(google-build-using-namespace)

// The batches of documents of a plan's configurations, each packed once. Thread-safe.
class PlanBatches {
 public:
  // Returns the documents of `base` in this number of replicas and of microbatches per replica (0: the fewest), the
  // replica with the most work first. Throws InputError if they do not fit.
  std::shared_ptr<const Batch> of(const Scenario& base, int replicas, int microbatches, bool in_step);

 private:
  std::mutex mutex_;
  std::map<std::tuple<int, int, bool>, std::shared_ptr<const Batch>> known_;
};

// One configuration of a model on a cluster.
struct PlanPoint {
  const Family* family = nullptr;
  int tp = 1;
  int cp = 1;
  int pp = 1;
  int dp = 1;
  int ep = 1;
  int etp = 1;
  int chunks = 1;
  int micro_batch = 1;
  int microbatches = 1;
  int slices = 1;
  int first_layers = 0;  // of the first stage; 0: as many as the others
  int last_layers = 0;
  std::vector<int> stage_layers;  // of every stage, instead; empty: as even as possible
  int mtp_stage = kLastStage;     // of multi-token prediction, with stage_layers
  Training::Recompute recompute = Training::Recompute::none;
  RecomputeModules recompute_modules;  // with selective recomputation
  int recompute_layers = 0;            // with full recomputation, of each stage; 0: all
  bool distributed_optimizer = false;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool pipeline_before_data = false;
  // Nothing: as in the base. If that leaves it open, transfers of Megatron-LM's interleaved schedule overlap.
  std::optional<bool> overlap_transfers;
  std::optional<Training::TokenDispatcher> dispatcher;  // nothing: as in the base
  bool offloads_optimizer = false;                      // all optimizer states; otherwise as in the base
  std::optional<EncoderChoices> encoder;                // nothing: as in the base

  friend bool operator==(const PlanPoint&, const PlanPoint&) = default;
};

// Fewest tokens of a sequence per context-parallel rank that a plan tries by default.
inline constexpr std::int64_t kLeastContextTokens = 4096;

// The search space of a plan. An empty list stands for the default in its comment.
struct PlanSpace {
  std::int64_t gpus = 0;               // all are used; 0: those of the cluster
  std::string gpus_from = {};          // where the number comes from, in errors, such as " of --gpus"
  std::vector<int> tp;                 // default: divisors of a node's GPUs that divide the number of heads
  std::vector<int> cp;                 // default: powers of two in a node, at least kLeastContextTokens a rank
  std::vector<int> pp;                 // default: divisors of the remaining GPUs, at most one rank per layer
  std::vector<int> dp;                 // default: the remaining GPUs
  std::vector<int> ep;                 // default: divisors of the number of experts that divide tp x cp x dp
  std::vector<int> etp;                // default: 1
  std::vector<int> chunks;             // for families with a free number of chunks; default: all up to 8, with pp > 1
  std::vector<int> micro_batch;        // default: powers of two up to 16
  int microbatches = 0;                // of documents; 0: as loaded, or the fewest and multiples of them
  std::vector<int> slices;             // for families with slices; default: 2, 4, 8
  std::vector<std::string> families;   // default: all with a flush
  std::vector<std::string> recompute;  // default: none, selective (where it repeats anything) and full
  // With selective recomputation: sets of modules; default: those of the base.
  std::vector<RecomputeModules> recompute_modules;
  // With full recomputation: of each stage; 0 is all. Default: all, and a half and a quarter of those of the largest
  // stage; if the base has a number, this one.
  std::vector<int> recompute_layers;
  std::vector<bool> distributed_optimizer;  // default: both
  std::vector<bool> overlap_grad_reduce;    // default: as in the base
  std::vector<bool> overlap_param_gather;   // where it is possible; default: as in the base
  std::vector<bool> pipeline_before_data;   // default: both, where they differ
  // Of experts, to choose from: by the lower bound of 1F1B with these sizes, and all for the leaders (Plan::refine).
  std::vector<Training::TokenDispatcher> dispatchers;  // default: as in the base
  bool may_offload = false;                            // tries optimizer states on the host if memory binds
  bool may_place_encoder = false;                      // tries the encoder of the leaders apart from the first stage
  bool sequence_parallel = true;                       // where tp > 1
  bool balanced_slices = true;                         // equal FLOPs instead of equal lengths
  bool uneven_outer_stages = true;  // also up to two layers fewer in the last stage, and one in the first
  bool empty_stages = false;        // also more stages than layers
  bool megatron_transfers = false;  // only transfers of interleaved stages may overlap
  bool base_transfers = false;      // all transfers are as in the base
  std::string base_flags = {};      // of what was set in the base besides its own flags; `flags_of` adds them
  std::shared_ptr<PlanBatches> batches = std::make_shared<PlanBatches>();  // of the base's documents
  // Returns the reason why a configuration is left out, "" if it is not; by default none is.
  std::function<std::string(const PlanPoint&)> refusal = {};
};

// Returns the flags of `sluice plan` that restrict the space: "--tp 3 --pp 2,4"; "" if it has all defaults.
std::string requested_flags(const PlanSpace& space);

// Returns all configurations in a fixed order: tp x cp x pp x dp is the number of GPUs, and micro_batch x dp divides
// the global batch, or documents are distributed over dp replicas. Of families with the same order on one rank (pp =
// 1), the first is tried. Throws InputError for a base without model, cluster, sequence length or global batch, for
// unknown names, and, with the reason, if there is no configuration.
std::vector<PlanPoint> enumerate(const Scenario& base, const PlanSpace& space);

// Returns the sets of modules that a plan tries with selective recomputation unless the scenario lists modules: core
// attention, as in `simulate`; of models with experts or latent attention also norms, the experts' activation and the
// projection up from the latents (as in NVIDIA's recipes for DeepSeek-V3), with core attention unless it is fused.
std::vector<RecomputeModules> cheap_modules(const Model& model, const Training& training);

// Returns "deepep"; "bubbles".
std::string name_of(Training::TokenDispatcher dispatcher);
std::string name_of(EncoderPlacement placement);

// Returns the fraction of the optimizer states that a configuration has on the host.
double offloaded_part(const Scenario& base, const PlanPoint& point);

// Whether the ranks of a configuration wait for their sends.
bool blocks_transfers(const Scenario& base, const PlanPoint& point);

// Returns the scenario of a configuration. Throws InputError if it is impossible (more slices than tokens).
Scenario scenario_of(const Scenario& base, const PlanSpace& space, const PlanPoint& point);

// Returns the layout of the stages of a configuration (model/scenario/pipeline_layout.h), or nothing if all have as
// many layers or it has none.
std::string uneven_layout(const Scenario& base, const PlanPoint& point);

// Returns the flags of `sluice simulate` that turn the base into the configuration.
std::string flags_of(const Scenario& base, const PlanSpace& space, const PlanPoint& point);

}  // namespace sluice::sim

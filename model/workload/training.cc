#include "model/workload/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "model/errors.h"

namespace sluice::model {

const std::vector<std::string>& recompute_module_names() {
  static const std::vector<std::string> names = {"core_attn", "layernorm", "mla_up_proj",   "mlp",
                                                 "moe",       "moe_act",   "shared_experts"};
  return names;
}

bool Training::has_modules_to_repeat() const {
  using enum RecomputeModule;
  const RecomputeModules others = RecomputeModules(norm) | up_projection | mlp | experts | activation | shared_experts;
  return !flash_attention || recompute_modules.any_of(others);
}

const std::vector<std::string>& graph_module_names() {
  static const std::vector<std::string> names = {"attn", "mlp", "moe", "moe_router", "moe_preprocess"};
  return names;
}

namespace {

template <typename Module>
std::vector<std::string> names_in(ModuleSet<Module> modules, const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (modules.any_of(static_cast<Module>(i))) out.push_back(names[i]);
  }
  return out;
}

// Distributes `layers` over `count` stages. The remainder goes to the middle, and of two stages equally near it to the
// earlier: the head is more expensive than the embedding.
// "126 layers of 16384" is the name of a model without one.
std::string layers_of(const Transformer& model) {
  const std::string layers = fmt::format("{} layers of ", model.layers);
  return model.name.starts_with(layers) ? model.name : layers + model.name;
}

std::vector<int> deal(int layers, int count) {
  std::vector<int> out(static_cast<std::size_t>(count), layers / count);
  const int extra = layers % count;
  const int begin = (count - extra) / 2;
  for (int i = begin; i < begin + extra; ++i) ++out[i];
  return out;
}

std::vector<int> layer_counts(const Transformer& model, int num_stages, std::span<const int> explicit_layers, int first,
                              int last) {
  if (!explicit_layers.empty()) {
    if (first > 0 || last > 0) {
      throw InputError(
          fmt::format("layers of the {} stage are specified twice: in the list of all stages and separately",
                      first > 0 ? "first" : "last"));
    }
    if (static_cast<int>(explicit_layers.size()) != num_stages) {
      throw InputError(
          fmt::format("layers are specified for {} stages, but there are {}", explicit_layers.size(), num_stages));
    }
    const std::int64_t sum = std::accumulate(explicit_layers.begin(), explicit_layers.end(), std::int64_t{0});
    for (const int layers : explicit_layers) {
      if (layers < 0) throw InputError(fmt::format("a stage cannot have {} layers", layers));
    }
    if (sum != model.layers) {
      throw InputError(fmt::format("the stages' layers add up to {}, but {} has {}", sum, model.name, model.layers));
    }
    return {explicit_layers.begin(), explicit_layers.end()};
  }
  if (num_stages > model.layers) {
    throw InputError(fmt::format("{} stages are more than the {}", num_stages, layers_of(model)));
  }
  if (first < 0 || last < 0) throw InputError(fmt::format("a stage cannot have {} layers", first < 0 ? first : last));
  const int fixed = (first > 0 ? 1 : 0) + (last > 0 ? 1 : 0);
  const int free_stages = num_stages - fixed;
  const int free_layers = model.layers - first - last;
  if (free_stages < 0 || free_layers < free_stages || (free_stages == 0 && free_layers != 0)) {
    throw InputError(fmt::format("first stage {}, last stage {} layers: the {} other stages have {} of the {}", first,
                                 last, std::max(free_stages, 0), free_layers, layers_of(model)));
  }
  std::vector<int> counts;
  if (first > 0) counts.push_back(first);
  if (free_stages > 0) {
    const std::vector<int> middle = deal(free_layers, free_stages);
    counts.insert(counts.end(), middle.begin(), middle.end());
  }
  if (last > 0) counts.push_back(last);
  return counts;
}

// Adds the layers of multi-token prediction to a stage.
void place_predictions(const Transformer& model, int stage, std::vector<StageContents>& stages) {
  const int last = static_cast<int>(stages.size()) - 1;
  if (stage < 0 || stage > last) {
    throw InputError(fmt::format("multi-token prediction is on stage {}, but there are {}", stage, last + 1));
  }
  for (int after = stage + 1; after <= last; ++after) {
    if (stages[after].layers == 0) continue;
    throw InputError(fmt::format("stage {} has {} layers after the multi-token prediction of stage {}", after,
                                 stages[after].layers, stage));
  }
  stages[stage].mtp_layers = model.mtp_layers;
  stages[stage].mtp_embedding = !stages[stage].embedding && !stages[stage].tied_copy;
}

void check_experts(const Transformer& model, const Training& training) {
  const Experts& experts = model.experts;
  if (!model.has_experts()) {
    if (training.ep > 1) {
      throw InputError(fmt::format("/parallelism/ep: {}: expert-parallel size {}, but there are no experts", model.name,
                                   training.ep));
    }
    if (training.etp == 1) return;
    throw InputError(fmt::format("/parallelism/etp: {}: expert-tensor-parallel size {}, but there are no experts",
                                 model.name, training.etp));
  }
  if (experts.count % training.ep != 0) {
    throw InputError(
        fmt::format("/parallelism/ep: {}: experts ({}) must be a multiple of the expert-parallel size ({})", model.name,
                    experts.count, training.ep));
  }
  if (experts.ffn_hidden % training.etp != 0) {
    throw InputError(
        fmt::format("/parallelism/etp: {}: the feed-forward size of an expert ({}) must be a multiple of the "
                    "expert-tensor-parallel size "
                    "({})",
                    model.name, experts.ffn_hidden, training.etp));
  }
  const std::int64_t replicas = training.tp * std::int64_t{training.cp} * training.dp;
  if (training.etp > 1 && replicas % (std::int64_t{training.ep} * training.etp) != 0) {
    throw InputError(fmt::format(
        "/parallelism/etp: expert-parallel size {} x expert-tensor-parallel size {} must divide tp {} x cp {} x "
        "dp {}",
        training.ep, training.etp, training.tp, training.cp, training.dp));
  }
  if (replicas % training.ep != 0) {
    throw InputError(fmt::format("/parallelism/ep: expert-parallel size {} must divide tp {} x cp {} x dp {}",
                                 training.ep, training.tp, training.cp, training.dp));
  }
  if (model.mlp_bias && training.etp > 1) {
    throw InputError(fmt::format(
        "/parallelism/etp: {}: experts with biases and expert-tensor parallelism are not modeled", model.name));
  }
  if (training.tp == 1) return;
  if (!training.sequence_parallel) {
    throw InputError(
        fmt::format("/parallelism/sequence_parallel: {}: experts with tensor parallelism need it (--sequence-parallel)",
                    model.name));
  }
  if (experts.shared_ffn_hidden % training.tp != 0) {
    throw InputError(
        fmt::format("/parallelism/tp: {}: the shared experts' feed-forward size ({}) must be a multiple of the "
                    "tensor-parallel size ({})",
                    model.name, experts.shared_ffn_hidden, training.tp));
  }
}

void check_shards(const Transformer& model, const Training& training) {
  if (training.zero < 1 || training.zero > 3) {
    throw InputError(fmt::format("the stage of ZeRO must be 1, 2 or 3, got {}", training.zero));
  }
  if (training.dp_shard < 0 || (training.dp_shard > 0 && training.dp % training.dp_shard != 0)) {
    throw InputError(fmt::format("/parallelism/dp_shard: must divide the data-parallel size {}, got {}", training.dp,
                                 training.dp_shard));
  }
  if (model.has_experts() && training.expert_data_ranks() % training.replica_copies() != 0) {
    throw InputError(fmt::format("/parallelism/ep: ep {} x etp {} must divide tp {} x cp {} x dp_shard {}", training.ep,
                                 training.etp, training.tp, training.cp, training.dp_shard));
  }
}

void check_latents(const Transformer& model, const Training& training) {
  if (!model.has_latent_attention() || training.flash_attention) return;
  throw InputError(fmt::format("/parallelism/flash_attention: {}: latent attention needs flash attention", model.name));
}

void check_context(const Transformer& model, const Training& training) {
  const int cp = training.cp;
  if (cp == 1) return;
  if (!training.flash_attention)
    throw InputError("/parallelism/flash_attention: context parallelism needs flash attention");
  if (training.sequence_length % (2 * std::int64_t{cp}) != 0) {
    throw InputError(
        fmt::format("/parallelism/cp: sequence length {} must be a multiple of twice the context-parallel size ({})",
                    training.sequence_length, cp));
  }
  if (training.context_exchange == Training::ContextExchange::ring) return;
  if (model.has_latent_attention()) {
    throw InputError(
        fmt::format("/parallelism/cp_comm_type: {}: latent attention with context parallelism is modeled only for p2p",
                    model.name));
  }
  const int heads = model.heads / training.tp;
  const int kv_heads = std::max(1, model.kv_heads / training.tp);
  if (heads % cp != 0 || kv_heads % cp != 0) {
    throw InputError(
        fmt::format("/parallelism/cp: {}: {} attention and {} key/value heads of a tensor rank must be multiples of "
                    "the context-parallel "
                    "size ({}) with a2a",
                    model.name, heads, kv_heads, cp));
  }
}

}  // namespace

std::vector<std::string> names_of(RecomputeModules modules) { return names_in(modules, recompute_module_names()); }
std::vector<std::string> names_of(GraphModules modules) { return names_in(modules, graph_module_names()); }

std::vector<StageContents> split_layers(const Transformer& model, int num_stages, std::span<const int> explicit_layers,
                                        int first_layers, int last_layers, int mtp_stage) {
  if (num_stages < 1) throw InputError(fmt::format("expected at least one stage, got {}", num_stages));
  std::vector<StageContents> stages;
  int first = 0;
  for (const int layers : layer_counts(model, num_stages, explicit_layers, first_layers, last_layers)) {
    const int dense = std::clamp(model.dense_layers() - first, 0, layers);
    stages.push_back({.layers = layers, .expert_layers = layers - dense});
    first += layers;
  }
  stages.front().embedding = true;
  stages.back().head = true;
  stages.back().tied_copy = model.tied_embeddings && num_stages > 1;
  if (model.mtp_layers > 0) place_predictions(model, mtp_stage == kLastStage ? num_stages - 1 : mtp_stage, stages);
  return stages;
}

StageContents recomputed_layers(const Training& training, const StageContents& contents) {
  StageContents out;
  if (training.recompute != Training::Recompute::full) return out;
  const int most = training.recompute_layers > 0 ? training.recompute_layers : contents.layers;
  out.layers = std::min(most, contents.layers);
  // Dense layers precede those with experts.
  out.expert_layers = std::max(0, out.layers - (contents.layers - contents.expert_layers));
  if (training.recompute_layers == 0) out.mtp_layers = contents.mtp_layers;
  return out;
}

std::vector<StageContents> sharded_units(const StageContents& contents) {
  std::vector<StageContents> out;
  if (contents.embedding) out.push_back({.embedding = true});
  const int dense = contents.layers - contents.expert_layers;
  for (int layer = 0; layer < contents.layers; ++layer) {
    out.push_back({.layers = 1, .expert_layers = layer < dense ? 0 : 1});
  }
  for (int layer = 0; layer < contents.mtp_layers; ++layer) {
    out.push_back({.mtp_layers = 1, .mtp_embedding = contents.mtp_embedding && layer == 0});
  }
  if (contents.head) out.push_back({.head = true, .tied_copy = contents.tied_copy});
  return out;
}

void check_training(const Transformer& model, const Training& training) {
  const auto positive = [](std::int64_t value, const char* what) {
    if (value < 1) throw InputError(fmt::format("{} must be at least 1, got {}", what, value));
  };
  positive(training.tp, "tensor-parallel size");
  positive(training.dp, "data-parallel size");
  positive(training.pp, "pipeline-parallel size");
  positive(training.cp, "context-parallel size");
  positive(training.ep, "expert-parallel size");
  positive(training.etp, "expert-tensor-parallel size");
  positive(training.micro_batch, "microbatch size");
  positive(training.sequence_length, "sequence length");
  constexpr std::int64_t kMostReplicas = 1 << 30;  // so that counts of ranks do not overflow
  const std::int64_t replicas = std::int64_t{training.tp} * training.cp * training.dp;
  if (replicas > kMostReplicas) {
    throw InputError(fmt::format("tp {} x cp {} x dp {} ranks are more than {}", training.tp, training.cp, training.dp,
                                 kMostReplicas));
  }
  if (training.gradient_bytes != 2 && training.gradient_bytes != 4) {
    throw InputError(
        fmt::format("/parallelism/gradient_bytes: gradients take 2 or 4 bytes, got {}", training.gradient_bytes));
  }
  const auto divides = [&](std::int64_t value, const char* what) {
    if (value % training.tp != 0) {
      throw InputError(fmt::format("/parallelism/tp: {}: {} ({}) must be a multiple of the tensor-parallel size ({})",
                                   model.name, what, value, training.tp));
    }
  };
  divides(model.heads, "attention heads");
  if (model.dense_layers() > 0) divides(model.ffn_hidden, "the feed-forward size");
  if (model.kv_heads >= training.tp) divides(model.kv_heads, "key/value heads");
  if (training.tp > model.kv_heads && training.tp % model.kv_heads != 0) {
    throw InputError(
        fmt::format("/parallelism/tp: {}: the tensor-parallel size ({}) must be a multiple of the key/value heads ({})",
                    model.name, training.tp, model.kv_heads));
  }
  if (model.positions > 0 && training.sequence_length > model.positions) {
    throw InputError(fmt::format("/batch/sequence_length: {}: sequence length {} is more than its {} learned positions",
                                 model.name, training.sequence_length, model.positions));
  }
  check_experts(model, training);
  check_shards(model, training);
  check_latents(model, training);
  check_context(model, training);
}

std::int64_t padded_vocab(const Transformer& model, int tp) {
  const std::int64_t step = std::int64_t{128} * tp;
  return (model.vocab + step - 1) / step * step;
}

std::int64_t layer_parameters_per_device(const Transformer& model, int tp, LayerKind kind, int expert_ranks) {
  Transformer share = model;
  share.heads = model.heads / tp;
  share.kv_heads = std::max(1, model.kv_heads / tp);
  share.ffn_hidden = model.ffn_hidden / tp;
  share.experts.shared_ffn_hidden = model.experts.shared_ffn_hidden / tp;
  const std::int64_t count = layer_parameters(share, kind);
  if (kind == LayerKind::dense) return count;
  const std::int64_t routed = routed_expert_parameters(model);
  return count - routed + routed / expert_ranks;
}

std::int64_t stage_expert_parameters_per_device(const Transformer& model, const StageContents& contents,
                                                int expert_ranks) {
  const int layers = contents.expert_layers + (model.last_kind() == LayerKind::experts ? contents.mtp_layers : 0);
  return layers * (routed_expert_parameters(model) / expert_ranks);
}

std::int64_t stage_linear_parameters_per_device(const Transformer& model, int tp, const StageContents& contents,
                                                int expert_ranks) {
  const bool predicted_by_experts = model.last_kind() == LayerKind::experts;
  const std::int64_t experts = contents.expert_layers + (predicted_by_experts ? contents.mtp_layers : 0);
  const std::int64_t all = contents.layers + contents.mtp_layers;
  std::int64_t count = all * (attention_matrix_elements(model) / tp);
  count += (all - experts) * (mlp_matrix_elements(model, model.ffn_hidden) / tp);
  if (experts > 0) {
    count += experts * (mlp_matrix_elements(model, model.experts.shared_ffn_hidden) / tp);
    const std::int64_t matrices = mlp_matrix_elements(model, model.experts.ffn_hidden);
    count += experts * (model.experts.count * matrices / expert_ranks);
  }
  return count;
}

std::int64_t stage_parameters_per_device(const Transformer& model, int tp, const StageContents& contents,
                                         int expert_ranks) {
  const std::int64_t words = padded_vocab(model, tp) / tp * model.hidden;
  std::int64_t count = (contents.layers - contents.expert_layers) * layer_parameters_per_device(model, tp);
  if (contents.expert_layers > 0) {
    count += contents.expert_layers * layer_parameters_per_device(model, tp, LayerKind::experts, expert_ranks);
  }
  if (contents.mtp_layers > 0) {
    const std::int64_t projection = 2 * std::int64_t{model.hidden} * model.hidden / tp;
    const std::int64_t norms = std::int64_t{3} * model.hidden * (model.rms_norm ? 1 : 2);
    count += contents.mtp_layers *
             (projection + norms + layer_parameters_per_device(model, tp, model.last_kind(), expert_ranks));
    if (contents.mtp_embedding) count += words;
  }
  if (contents.embedding) count += words + std::int64_t{model.positions} * model.hidden;
  if (contents.head) {
    count += std::int64_t{model.hidden} * (model.rms_norm ? 1 : 2);
    if (!model.tied_embeddings || contents.tied_copy) count += words;
  }
  return count;
}

std::int64_t gathered_parameter_bytes(const Transformer& model, const Training& training,
                                      const StageContents& contents) {
  const std::int64_t bytes = 2 * stage_parameters_per_device(model, training.tp, contents, training.expert_ranks());
  const bool whole_scale = training.precision == GemmPrecision::fp8 || training.precision == GemmPrecision::fp8_current;
  if (!training.narrow_parameters || !whole_scale) return bytes;
  return bytes - stage_linear_parameters_per_device(model, training.tp, contents, training.expert_ranks());
}

}  // namespace sluice::model

#include "model/workload/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "model/errors.h"

namespace sluice::model {
namespace {

// Distributes `layers` over `count` stages. The remainder goes to the middle, and of two stages equally near it to the
// earlier: the head is more expensive than the embedding.
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
    throw InputError(fmt::format("{} stages are more than the {} layers of {}", num_stages, model.layers, model.name));
  }
  if (first < 0 || last < 0) throw InputError(fmt::format("a stage cannot have {} layers", first < 0 ? first : last));
  const int fixed = (first > 0 ? 1 : 0) + (last > 0 ? 1 : 0);
  const int free_stages = num_stages - fixed;
  const int free_layers = model.layers - first - last;
  if (free_stages < 0 || free_layers < free_stages || (free_stages == 0 && free_layers != 0)) {
    throw InputError(
        fmt::format("first stage {}, last stage {} layers: the {} other stages have {} of the {} layers of {}", first,
                    last, std::max(free_stages, 0), free_layers, model.layers, model.name));
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

void check_experts(const Transformer& model, const Training& training) {
  const Experts& experts = model.experts;
  if (!model.has_experts()) {
    if (training.ep == 1) return;
    throw InputError(fmt::format("{}: expert-parallel size {}, but there are no experts", model.name, training.ep));
  }
  if (experts.count % training.ep != 0) {
    throw InputError(fmt::format("{}: experts ({}) must be a multiple of the expert-parallel size ({})", model.name,
                                 experts.count, training.ep));
  }
  if (training.tp * std::int64_t{training.cp} * training.dp % training.ep != 0) {
    throw InputError(fmt::format("expert-parallel size {} must divide tp {} x cp {} x dp {}", training.ep, training.tp,
                                 training.cp, training.dp));
  }
  if (training.tp == 1) return;
  if (!training.sequence_parallel) {
    throw InputError(fmt::format("{}: experts with tensor parallelism need sequence parallelism", model.name));
  }
  if (experts.shared_ffn_hidden % training.tp != 0) {
    throw InputError(fmt::format(
        "{}: the shared experts' feed-forward size ({}) must be a multiple of the tensor-parallel size ({})",
        model.name, experts.shared_ffn_hidden, training.tp));
  }
}

void check_latents(const Transformer& model, const Training& training) {
  if (!model.has_latent_attention() || training.flash_attention) return;
  throw InputError(fmt::format("{}: latent attention needs flash attention", model.name));
}

void check_context(const Transformer& model, const Training& training) {
  const int cp = training.cp;
  if (cp == 1) return;
  if (!training.flash_attention) throw InputError("context parallelism needs flash attention");
  if (training.sequence_length % (2 * std::int64_t{cp}) != 0) {
    throw InputError(fmt::format("sequence length {} must be a multiple of twice the context-parallel size ({})",
                                 training.sequence_length, cp));
  }
  if (training.context_exchange == Training::ContextExchange::ring) return;
  if (model.has_latent_attention()) {
    throw InputError(fmt::format("{}: latent attention with context parallelism is modeled only for p2p", model.name));
  }
  const int heads = model.heads / training.tp;
  const int kv_heads = std::max(1, model.kv_heads / training.tp);
  if (heads % cp != 0 || kv_heads % cp != 0) {
    throw InputError(fmt::format(
        "{}: {} attention and {} key/value heads of a tensor rank must be multiples of the context-parallel "
        "size ({}) with a2a",
        model.name, heads, kv_heads, cp));
  }
}

}  // namespace

std::vector<StageContents> split_layers(const Transformer& model, int num_stages, std::span<const int> explicit_layers,
                                        int first_layers, int last_layers) {
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
  return stages;
}

StageContents recomputed_layers(const Training& training, const StageContents& contents) {
  StageContents out;
  if (training.recompute != Training::Recompute::full) return out;
  const int most = training.recompute_layers > 0 ? training.recompute_layers : contents.layers;
  out.layers = std::min(most, contents.layers);
  // Dense layers precede those with experts.
  out.expert_layers = std::max(0, out.layers - (contents.layers - contents.expert_layers));
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
  positive(training.micro_batch, "microbatch size");
  positive(training.sequence_length, "sequence length");
  constexpr std::int64_t kMostReplicas = 1 << 30;  // so that counts of ranks do not overflow
  const std::int64_t replicas = std::int64_t{training.tp} * training.cp * training.dp;
  if (replicas > kMostReplicas) {
    throw InputError(fmt::format("tp {} x cp {} x dp {} ranks are more than {}", training.tp, training.cp, training.dp,
                                 kMostReplicas));
  }
  if (training.gradient_bytes != 2 && training.gradient_bytes != 4) {
    throw InputError(fmt::format("gradients take 2 or 4 bytes, got {}", training.gradient_bytes));
  }
  const auto divides = [&](std::int64_t value, const char* what) {
    if (value % training.tp != 0) {
      throw InputError(fmt::format("{}: {} ({}) must be a multiple of the tensor-parallel size ({})", model.name, what,
                                   value, training.tp));
    }
  };
  divides(model.heads, "attention heads");
  if (model.dense_layers() > 0) divides(model.ffn_hidden, "the feed-forward size");
  if (model.kv_heads >= training.tp) divides(model.kv_heads, "key/value heads");
  if (training.tp > model.kv_heads && training.tp % model.kv_heads != 0) {
    throw InputError(fmt::format("{}: the tensor-parallel size ({}) must be a multiple of the key/value heads ({})",
                                 model.name, training.tp, model.kv_heads));
  }
  if (model.positions > 0 && training.sequence_length > model.positions) {
    throw InputError(fmt::format("{}: sequence length {} is more than its {} learned positions", model.name,
                                 training.sequence_length, model.positions));
  }
  check_experts(model, training);
  check_latents(model, training);
  check_context(model, training);
}

std::int64_t padded_vocab(const Transformer& model, int tp) {
  const std::int64_t step = std::int64_t{128} * tp;
  return (model.vocab + step - 1) / step * step;
}

std::int64_t layer_parameters_per_device(const Transformer& model, int tp, LayerKind kind, int ep) {
  Transformer share = model;
  share.heads = model.heads / tp;
  share.kv_heads = std::max(1, model.kv_heads / tp);
  share.ffn_hidden = model.ffn_hidden / tp;
  share.experts.shared_ffn_hidden = model.experts.shared_ffn_hidden / tp;
  const std::int64_t count = layer_parameters(share, kind);
  if (kind == LayerKind::dense) return count;
  const std::int64_t routed = routed_expert_parameters(model);
  return count - routed + routed / ep;
}

std::int64_t stage_expert_parameters_per_device(const Transformer& model, const StageContents& contents, int ep) {
  return contents.expert_layers * (routed_expert_parameters(model) / ep);
}

std::int64_t stage_parameters_per_device(const Transformer& model, int tp, const StageContents& contents, int ep) {
  const std::int64_t words = padded_vocab(model, tp) / tp * model.hidden;
  std::int64_t count = (contents.layers - contents.expert_layers) * layer_parameters_per_device(model, tp);
  if (contents.expert_layers > 0) {
    count += contents.expert_layers * layer_parameters_per_device(model, tp, LayerKind::experts, ep);
  }
  if (contents.embedding) count += words + std::int64_t{model.positions} * model.hidden;
  if (contents.head) {
    count += std::int64_t{model.hidden} * (model.rms_norm ? 1 : 2);
    if (!model.tied_embeddings || contents.tied_copy) count += words;
  }
  return count;
}

}  // namespace sluice::model

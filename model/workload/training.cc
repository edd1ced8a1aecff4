#include "model/workload/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "model/errors.h"

namespace sluice {
namespace {

// `layers` over `count` stages. What is left over goes to the middle, and of two stages equally near it to the
// earlier: the head weighs more than the embedding.
std::vector<int> deal(int layers, int count) {
  std::vector<int> out(static_cast<std::size_t>(count), layers / count);
  const int extra = layers % count;
  const int begin = (count - extra) / 2;
  for (int i = begin; i < begin + extra; ++i) ++out[static_cast<std::size_t>(i)];
  return out;
}

std::vector<int> layer_counts(const Transformer& model, int num_stages, std::span<const int> explicit_layers, int first,
                              int last) {
  if (!explicit_layers.empty()) {
    if (first > 0 || last > 0) {
      throw InputError(
          fmt::format("layers of the {} stage are given twice: in the list of all stages and by themselves",
                      first > 0 ? "first" : "last"));
    }
    if (static_cast<int>(explicit_layers.size()) != num_stages) {
      throw InputError(
          fmt::format("layers are given for {} stages, but there are {}", explicit_layers.size(), num_stages));
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
        fmt::format("first stage {}, last stage {} layers: the {} other stages are left with {} of the {} layers of {}",
                    first, last, std::max(free_stages, 0), free_layers, model.layers, model.name));
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

}  // namespace

std::vector<StageContents> split_layers(const Transformer& model, int num_stages, std::span<const int> explicit_layers,
                                        int first_layers, int last_layers) {
  if (num_stages < 1) throw InputError(fmt::format("expected at least one stage, got {}", num_stages));
  std::vector<StageContents> stages;
  for (const int layers : layer_counts(model, num_stages, explicit_layers, first_layers, last_layers)) {
    stages.push_back({.layers = layers});
  }
  stages.front().embedding = true;
  stages.back().head = true;
  stages.back().tied_copy = model.tied_embeddings && num_stages > 1;
  return stages;
}

void check_training(const Transformer& model, const Training& training) {
  if (model.has_experts() || model.has_latent_attention() || model.qk_norm) {
    throw InputError(fmt::format("{}: experts, latent attention and norms of queries are not priced", model.name));
  }
  const auto positive = [](std::int64_t value, const char* what) {
    if (value < 1) throw InputError(fmt::format("{} must be at least 1, got {}", what, value));
  };
  positive(training.tp, "tensor-parallel size");
  positive(training.dp, "data-parallel size");
  positive(training.pp, "pipeline-parallel size");
  positive(training.micro_batch, "microbatch size");
  positive(training.sequence_length, "sequence length");
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
  divides(model.ffn_hidden, "the feed-forward size");
  if (model.kv_heads >= training.tp) divides(model.kv_heads, "key/value heads");
  if (training.tp > model.kv_heads && training.tp % model.kv_heads != 0) {
    throw InputError(fmt::format("{}: the tensor-parallel size ({}) must be a multiple of the key/value heads ({})",
                                 model.name, training.tp, model.kv_heads));
  }
  if (model.positions > 0 && training.sequence_length > model.positions) {
    throw InputError(fmt::format("{}: sequence length {} is more than its {} learned positions", model.name,
                                 training.sequence_length, model.positions));
  }
}

std::int64_t padded_vocab(const Transformer& model, int tp) {
  const std::int64_t step = std::int64_t{128} * tp;
  return (model.vocab + step - 1) / step * step;
}

std::int64_t layer_parameters_per_device(const Transformer& model, int tp) {
  Transformer share = model;
  share.heads = model.heads / tp;
  share.kv_heads = std::max(1, model.kv_heads / tp);
  share.ffn_hidden = model.ffn_hidden / tp;
  return layer_parameters(share);
}

std::int64_t stage_parameters_per_device(const Transformer& model, int tp, const StageContents& contents) {
  const std::int64_t words = padded_vocab(model, tp) / tp * model.hidden;
  std::int64_t count = contents.layers * layer_parameters_per_device(model, tp);
  if (contents.embedding) count += words + std::int64_t{model.positions} * model.hidden;
  if (contents.head) {
    count += std::int64_t{model.hidden} * (model.rms_norm ? 1 : 2);
    if (!model.tied_embeddings || contents.tied_copy) count += words;
  }
  return count;
}

}  // namespace sluice

#include "model/blocks/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "model/blocks/adapters.h"
#include "model/blocks/encoder.h"
#include "model/blocks/layer.h"
#include "model/blocks/stage_kernels.h"
#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

// Distributes `layers` over `count` stages. The remainder goes to the middle, and of two stages equally near it to the
// earlier: the head is more expensive than the embedding.
// "126 layers of 16384" is the name of a model without one.
std::string layers_of(const Model& model) {
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

std::vector<int> layer_counts(const Model& model, int num_stages, std::span<const int> explicit_layers, int first,
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

// Places the layers of multi-token prediction, and the losses, on stages.
void place_predictions(std::span<const Predictions> predictions, std::vector<StageContents>& stages) {
  if (predictions.size() != stages.size()) {
    throw InputError(fmt::format("multi-token prediction is laid out for {} stages, but there are {}",
                                 predictions.size(), stages.size()));
  }
  const bool tied = stages.back().tied_copy;
  const bool whole =
      std::all_of(predictions.begin(), predictions.end() - 1, [](const Predictions& of) { return of.losses == 0; });
  int first = -1;  // with multi-token prediction
  for (int stage = 0; stage < std::ssize(stages); ++stage) {
    StageContents& of = stages[to_size(stage)];
    const auto [layers, losses] = predictions[to_size(stage)];
    if (first >= 0 && of.layers > 0) {
      throw InputError(
          fmt::format("stage {} has {} layers after the multi-token prediction of stage {}", stage, of.layers, first));
    }
    if (first < 0 && layers > 0) first = stage;
    of.mtp_layers = layers;
    of.head = losses > 0;
    of.losses = whole ? 0 : losses;
    of.tied_copy = of.head && tied && !of.embedding;
    of.mtp_embedding = layers > 0 && !of.embedding && !of.tied_copy;
  }
}

// All layers of multi-token prediction on `stage`, and the losses on the last one.
std::vector<Predictions> predictions_on(int stage, int layers, int num_stages) {
  if (stage < 0 || stage >= num_stages) {
    throw InputError(fmt::format("multi-token prediction is on stage {}, but there are {}", stage, num_stages));
  }
  std::vector<Predictions> out(to_size(num_stages));
  out[to_size(stage)].layers = layers;
  out.back().losses = 1 + layers;
  return out;
}

void check_experts(const Model& model, const Training& training) {
  if (!model.has_experts()) {
    if (training.ep > 1) {
      throw InputError(fmt::format("/parallelism/ep: {}: expert-parallel size {}, but there are no experts", model.name,
                                   training.ep));
    }
    if (training.etp == 1) return;
    throw InputError(fmt::format("/parallelism/etp: {}: expert-tensor-parallel size {}, but there are no experts",
                                 model.name, training.etp));
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
  if (training.tp > 1 && !training.sequence_parallel) {
    throw InputError(
        fmt::format("/parallelism/sequence_parallel: {}: experts with tensor parallelism need it (--sequence-parallel)",
                    model.name));
  }
}

void check_shards(const Model& model, const Training& training) {
  if (training.lora_rank > 0 && training.zero_stage() == 3) {
    throw InputError("/parallelism/lora_rank: frozen parameters are not sharded: expected a zero stage below 3");
  }
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

void check_context(const Training& training) {
  if (training.cp == 1) return;
  if (!training.flash_attention)
    throw InputError("/parallelism/flash_attention: context parallelism needs flash attention");
  if (training.sequence_length % (2 * std::int64_t{training.cp}) != 0) {
    throw InputError(
        fmt::format("/parallelism/cp: sequence length {} must be a multiple of twice the context-parallel size ({})",
                    training.sequence_length, training.cp));
  }
}

void check_sizes(const Training& training) {
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
}

// The layers of a stage and those of multi-token prediction, by kind.
KindCounts with_predictions(const Model& model, const StageContents& contents) {
  KindCounts out = layers_by_kind(model, contents);
  if (contents.mtp_layers > 0) out.push_back({model.mtp_kind, contents.mtp_layers});
  return out;
}

// Parameters of the blocks and norms of these layers.
BlockParameters of_layers(const Model& model, int tp, const StageContents& contents, int expert_ranks) {
  const LayerStyle style = model.style();
  BlockParameters sum;
  for (const auto& [kind, layers] : with_predictions(model, contents)) {
    const BlockParameters each = layer_parameters(model.kind(kind), style, {.tp = tp, .expert_ranks = expert_ranks});
    sum += {.all = layers * each.all, .linear = layers * each.linear, .routed = layers * each.routed};
  }
  return sum;
}

}  // namespace

StageContents layers_from(const Model& model, int first, int layers) {
  StageContents out{.layers = layers, .expert_layers = model.expert_layers(first, layers)};
  if (!model.flat && layers > 0) out.first = model.alike(first, layers);
  return out;
}

std::vector<StageContents> split_layers(const Model& model, int num_stages, std::span<const int> explicit_layers,
                                        int first_layers, int last_layers, int mtp_stage,
                                        std::span<const Predictions> predictions) {
  if (num_stages < 1) throw InputError(fmt::format("expected at least one stage, got {}", num_stages));
  std::vector<StageContents> stages;
  int first = 0;
  for (const int layers : layer_counts(model, num_stages, explicit_layers, first_layers, last_layers)) {
    stages.push_back(layers_from(model, first, layers));
    first += layers;
  }
  stages.front().embedding = true;
  if (model.encoder) {
    stages.front().encoder_layers = model.encoder->layers.layers;
    stages.front().encoder_begin = stages.front().encoder_end = true;
  }
  stages.back().head = true;
  stages.back().tied_copy = model.tied_embeddings && num_stages > 1;
  if (model.mtp_layers == 0) return stages;
  const int last = num_stages - 1;
  place_predictions(predictions.empty()
                        ? predictions_on(mtp_stage == kLastStage ? last : mtp_stage, model.mtp_layers, num_stages)
                        : std::vector<Predictions>(predictions.begin(), predictions.end()),
                    stages);
  return stages;
}

int losses_of(const Model& model, const StageContents& contents) {
  return !contents.head ? 0 : contents.losses > 0 ? contents.losses : 1 + model.mtp_layers;
}

int hidden_states_after(const Model& model, std::span<const StageContents> stages, int stage) {
  if (stage < 0) return 1;
  const StageContents& last = stages[to_size(stage)];
  if (last.head && last.losses == 0) return 0;
  int count = 1;
  for (const StageContents& of : stages.first(to_size(stage + 1))) count += of.mtp_layers - of.losses;
  return std::min(count, 1 + model.mtp_layers);
}

KindCounts layers_by_kind(const Model& model, const StageContents& contents) {
  KindCounts out;
  const auto add = [&](int kind, int layers) {
    if (layers > 0) out.push_back({kind, layers});
  };
  if (model.flat) {
    add(0, contents.layers - contents.expert_layers);
    add(1, contents.expert_layers);
    return out;
  }
  std::array<int, kMostKinds> counts{};
  for (int layer = contents.first; layer < contents.first + contents.layers; ++layer) {
    ++counts[model.pattern()[static_cast<std::size_t>(layer)]];
  }
  for (std::size_t kind = 0; kind < model.kinds().size(); ++kind) add(static_cast<int>(kind), counts[kind]);
  return out;
}

StageContents recomputed_layers(const Model& model, const Training& training, const StageContents& contents) {
  StageContents out;
  if (training.recompute != Training::Recompute::full) return out;
  const int most = training.recompute_layers > 0 ? training.recompute_layers : contents.layers;
  const int layers = std::min(most, contents.layers);
  if (model.flat) {
    // Dense layers precede those with experts.
    out.layers = layers;
    out.expert_layers = std::max(0, layers - (contents.layers - contents.expert_layers));
  } else {
    out = layers_from(model, contents.first, layers);
  }
  if (training.recompute_layers == 0) out.mtp_layers = contents.mtp_layers;
  return out;
}

std::vector<StageContents> sharded_units(const Model& model, const StageContents& contents) {
  std::vector<StageContents> out;
  if (contents.embedding || contents.has_encoder()) {
    out.push_back({.embedding = contents.embedding,
                   .encoder_layers = contents.encoder_layers,
                   .encoder_begin = contents.encoder_begin,
                   .encoder_end = contents.encoder_end});
  }
  for (const auto& [kind, layers] : layers_by_kind(model, contents)) {
    StageContents unit{.layers = 1, .expert_layers = model.kind(kind).has_experts() ? 1 : 0};
    const auto& pattern = model.pattern();
    unit.first = model.flat ? 0 : static_cast<int>(std::find(pattern.begin(), pattern.end(), kind) - pattern.begin());
    out.insert(out.end(), static_cast<std::size_t>(layers), unit);
  }
  for (int layer = 0; layer < contents.mtp_layers; ++layer) {
    out.push_back({.mtp_layers = 1, .mtp_embedding = contents.mtp_embedding && layer == 0});
  }
  if (contents.head) out.push_back({.head = true, .tied_copy = contents.tied_copy});
  return out;
}

void check_training(const Model& model, const Training& training) {
  check_sizes(training);
  model.any_block([&](const Block& block) {
    block.check(model.name, training);
    return false;
  });
  if (model.positions > 0 && training.sequence_length > model.positions) {
    throw InputError(fmt::format("/batch/sequence_length: {}: sequence length {} is more than its {} learned positions",
                                 model.name, training.sequence_length, model.positions));
  }
  check_experts(model, training);
  check_shards(model, training);
  check_context(training);
  check_encoder(model, training);
}

std::int64_t layer_parameters_per_device(const Model& model, int tp, KindIndex kind, int expert_ranks) {
  return layer_parameters(model.kind(kind), model.style(), {.tp = tp, .expert_ranks = expert_ranks}).all;
}

std::int64_t stage_expert_parameters_per_device(const Model& model, const StageContents& contents, int expert_ranks) {
  if (contents.expert_layers == 0 && contents.mtp_layers == 0) return 0;
  return of_layers(model, 1, contents, expert_ranks).routed;
}

std::int64_t stage_linear_parameters_per_device(const Model& model, int tp, const StageContents& contents,
                                                int expert_ranks) {
  const std::int64_t encoder =
      contents.has_encoder() ? encoder_linear_parameters(*model.encoder, model.encoder->tensor_ranks(tp), contents) : 0;
  return of_layers(model, tp, contents, expert_ranks).linear + encoder;
}

std::int64_t stage_parameters_per_device(const Model& model, int tp, const StageContents& contents, int expert_ranks) {
  const int shards = tp * std::max(1, contents.vocabulary_ranks);
  const std::int64_t words = padded_vocab(model, shards) / shards * model.hidden;
  const std::int64_t norm = model.style().norm_parameters();
  std::int64_t count = of_layers(model, tp, contents, expert_ranks).all;
  if (contents.mtp_layers > 0) {
    const std::int64_t projection = 2 * std::int64_t{model.hidden} * model.hidden / tp;
    count += contents.mtp_layers * (projection + 3 * norm);
    if (contents.mtp_embedding) count += words;
  }
  if (contents.vocabulary_ranks > 0) {
    count += (model.tied_embeddings ? 1 : 2) * words + norm + model.other_parameters;
    if (contents.embedding) count += std::int64_t{model.positions} * model.hidden;
  } else if (contents.embedding) {
    count += words + std::int64_t{model.positions} * model.hidden;
    count += layer_embedding_parameters(model, padded_vocab(model, tp) / tp);
  }
  if (contents.head) {
    count += norm + model.other_parameters;
    if (!model.tied_embeddings || contents.tied_copy) count += words;
  }
  if (contents.has_encoder()) count += encoder_parameters(*model.encoder, model.encoder->tensor_ranks(tp), contents);
  return count;
}

std::int64_t trained_parameters_per_device(const Model& model, const Training& training,
                                           const StageContents& contents) {
  if (training.lora_rank == 0) {
    const std::int64_t frozen =
        contents.has_encoder() && model.encoder->frozen
            ? encoder_parameters(*model.encoder, model.encoder->tensor_ranks(training.tp), contents)
            : 0;
    return stage_parameters_per_device(model, training.tp, contents, training.expert_ranks()) - frozen;
  }
  std::int64_t count = 0;
  for (const auto& [kind, layers] : with_predictions(model, contents)) {
    const SliceShape slice{.sequences = 1, .tokens = std::int64_t{training.tp} * training.cp, .context = 0};
    count += layers * adapter_elements(layer_kernels(model, training, OpKind::F, slice, kind), training);
  }
  return count;
}

std::int64_t trained_expert_parameters_per_device(const Model& model, const Training& training,
                                                  const StageContents& contents) {
  if (training.lora_rank > 0) return 0;
  return stage_expert_parameters_per_device(model, contents, training.expert_ranks());
}

std::int64_t stage_matrices_of_each_shape(const Model& model, const Training& training, const StageContents& contents) {
  if (training.lora_rank > 0) return 0;  // no gradient of their shape is returned
  std::int64_t count = 0;
  boost::container::static_vector<const Block*, 4 * kMostKinds> seen;  // blocks are shared by kinds
  for (const auto& [kind, layers] : with_predictions(model, contents)) {
    for (const LayerStep& step : model.kind(kind).steps) {
      for (const BlockPtr& block : step.blocks) {
        if (std::find(seen.begin(), seen.end(), block.get()) != seen.end()) continue;
        if (seen.size() < seen.capacity()) seen.push_back(block.get());
        count += block->matrices_of_each_shape(training);
      }
    }
  }
  if (contents.mtp_layers > 0) count += 2 * std::int64_t{model.hidden} * model.hidden / training.tp;
  if (contents.head || contents.vocabulary_ranks > 0) {
    count += padded_vocab(model, training.vocabulary_ranks()) / training.vocabulary_ranks() * model.hidden;
  }
  return count;
}

std::int64_t gathered_parameter_bytes(const Model& model, const Training& training, const StageContents& contents) {
  const std::int64_t bytes = 2 * trained_parameters_per_device(model, training, contents);
  if (training.lora_rank > 0) return bytes;
  const bool whole_scale = training.precision == GemmPrecision::fp8 || training.precision == GemmPrecision::fp8_current;
  if (!training.narrow_parameters || !whole_scale) return bytes;
  return bytes - stage_linear_parameters_per_device(model, training.tp, contents, training.expert_ranks());
}

}  // namespace sluice::model

#include "tests/support/one_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/to_size.h"

namespace sluice::test {
namespace {

Transformer small(int layers) {
  Transformer model;
  model.layers = layers;
  model.hidden = 16;
  model.heads = 4;
  model.kv_heads = 4;
  model.head_dim = 4;
  model.ffn_hidden = 24;
  model.vocab = 37;
  model.dropout = false;
  return model;
}

// A buffer with the alignment of the executor.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes) : store_(to_size(bytes) + 2 * kBufferAlignment) {}
  std::byte* data() {
    void* at = store_.data();
    std::size_t space = store_.size();
    return static_cast<std::byte*>(std::align(kBufferAlignment, 1, at, space));
  }

 private:
  std::vector<std::byte> store_;
};

// Calls visit(index in the whole matrix, index in the stage's buffer) for every element of a block.
template <typename Visit>
void for_elements(const Parameter& parameter, Visit&& visit) {
  for (std::int64_t row = 0; row < parameter.rows; ++row) {
    for (std::int64_t column = 0; column < parameter.columns; ++column) {
      visit(to_size((parameter.first_row + row) * parameter.all_columns + parameter.first_column + column),
            to_size(parameter.offset + row * parameter.columns + column));
    }
  }
}

template <typename Scalar>
void add_blocks_of(const Stage& stage, const std::byte* data, Weights& all) {
  const auto* from = reinterpret_cast<const Scalar*>(data);
  for (const Parameter& parameter : stage.parameters()) {
    auto& whole = all[parameter.name];
    if (whole.empty()) whole.assign(parameter.all_rows * parameter.all_columns, std::nan(""));
    for_elements(parameter, [&](std::size_t to, std::size_t at) {
      const auto value = static_cast<double>(from[at]);
      if (!std::isnan(whole[to])) {
        EXPECT_EQ(whole[to], value) << parameter.name << " differs between ranks";
      }
      whole[to] = value;
    });
  }
}

}  // namespace

Transformer small_gpt(int layers, bool tied) {
  Transformer model = small(layers);
  model.name = "small-gpt";
  model.positions = 64;
  model.tied_embeddings = tied;
  return model;
}

Transformer small_llama(int layers) {
  Transformer model = small(layers);
  model.name = "small-llama";
  model.kv_heads = 2;
  model.gated = true;
  model.tied_embeddings = false;
  model.rms_norm = true;
  model.qkv_bias = model.projection_bias = model.mlp_bias = false;
  return model;
}

Transformer small_mixtral(int layers) {
  Transformer model = small_llama(layers);
  model.name = "small-mixtral";
  model.experts = {.count = 4, .per_token = 2, .ffn_hidden = 10};
  return model;
}

Transformer small_expert_gpt(int layers) {
  Transformer model = small_gpt(layers);
  model.name = "small-expert-gpt";
  model.mlp_bias = false;
  model.experts = {
      .count = 4, .per_token = 2, .ffn_hidden = 10, .shared_ffn_hidden = 12, .shared_gate = true, .leading_dense = 1};
  return model;
}

double relative_difference(const Weights& a, const Weights& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (const auto& [name, values] : b) {
    const auto found = a.find(name);
    if (found == a.end() || found->second.size() != values.size()) return INFINITY;
    std::string scale = name;
    if (const auto at = scale.find("attention.key.bias"); at != std::string::npos) {
      scale.replace(at, std::string::npos, "attention.query.bias");
    }
    double most = 0;
    double apart = 0;
    for (const double value : b.at(scale)) most = std::max(most, std::abs(value));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(found->second[i] - values[i]);
      apart = std::isnan(difference) ? INFINITY : std::max(apart, difference);
    }
    if (apart > 0) worst = std::max(worst, apart / most);
  }
  return worst;
}

void add_blocks(const Stage& stage, const std::byte* data, Weights& all) {
  stage.element_bytes() == 8 ? add_blocks_of<double>(stage, data, all) : add_blocks_of<float>(stage, data, all);
}

void set_blocks(const Stage& stage, const Weights& all, std::byte* data) {
  ASSERT_EQ(stage.element_bytes(), 8);
  auto* to = reinterpret_cast<double*>(data);
  for (const Parameter& parameter : stage.parameters()) {
    const auto& whole = all.at(parameter.name);
    for_elements(parameter, [&](std::size_t from, std::size_t at) { to[at] = whole[from]; });
  }
}

OneDevice::OneDevice(const Transformer& model) {
  StageSpec spec{.model = model};
  spec.contents = {
      .layers = model.layers, .expert_layers = model.layers - model.dense_layers(), .embedding = true, .head = true};
  stage_ = make_cpu_stage(spec, Precision::float64);
}

Weights OneDevice::initial(std::uint64_t seed) const {
  Buffer weights(stage_->memory().weights);
  std::memset(weights.data(), 0, to_size(stage_->memory().weights));
  stage_->initialise(weights.data(), seed);
  Weights all;
  add_blocks(*stage_, weights.data(), all);
  return all;
}

OneDevice::Result OneDevice::gradient(const Weights& weights, const TokenSource& tokens, std::int64_t step,
                                      int first_sequence, int sequences, double loss_scale) const {
  return gradient(weights, tokens, step, {to_size(sequences), {tokens.sequence_length()}}, loss_scale, first_sequence);
}

OneDevice::Result OneDevice::gradient(const Weights& weights, const TokenSource& tokens, std::int64_t step,
                                      const std::vector<std::vector<std::int64_t>>& sequences, double loss_scale,
                                      int first_sequence) const {
  SliceShape shape{.sequences = 1, .tokens = tokens.sequence_length()};
  const SliceMemory memory = stage_->slice_memory(shape);
  Buffer held(stage_->memory().weights);
  Buffer gradients(stage_->memory().gradients);
  Buffer scratch(stage_->scratch_bytes(shape));
  Buffer to_input(memory.to_input_gradient);
  Buffer to_weight(memory.to_weight_gradient);
  Buffer keys(memory.keys_values);
  Buffer keys_gradient(memory.keys_values_gradient);
  std::memset(held.data(), 0, to_size(stage_->memory().weights));
  set_blocks(*stage_, weights, held.data());
  std::memset(gradients.data(), 0, to_size(stage_->memory().gradients));
  std::vector<std::int32_t> ids(to_size(shape.rows()));
  std::vector<std::int32_t> targets(to_size(shape.rows()));
  Result result;
  const auto run = [&](int sequence, std::int64_t first_token) {
    tokens.fill(step, first_sequence + sequence, 1, first_token, shape.tokens, ids, targets);
    SliceCall call;
    call.shape = shape;
    call.weights = held.data();
    call.gradients = gradients.data();
    if (stage_->spec().head_is_embedding()) {
      std::int64_t at = 0;
      for (const Parameter& parameter : stage_->parameters()) {
        if (parameter.name == kWordEmbedding) at = parameter.offset * stage_->element_bytes();
      }
      call.embedding = held.data() + at;
      call.embedding_gradient = gradients.data() + at;
    }
    call.scratch = scratch.data();
    call.to_input_gradient = to_input.data();
    call.to_weight_gradient = to_weight.data();
    std::memset(keys_gradient.data(), 0, to_size(memory.keys_values_gradient));
    call.keys_values = keys.data();
    call.keys_values_gradient = keys_gradient.data();
    call.sequence_tokens = shape.tokens;
    call.tokens = ids.data();
    call.targets = targets.data();
    call.loss_scale = loss_scale;
    stage_->forward(call);
    result.loss += call.loss;
    stage_->backward(call);
  };
  for (int sequence = 0; sequence < static_cast<int>(sequences.size()); ++sequence) {
    std::int64_t first_token = 0;
    for (const std::int64_t length : sequences[to_size(sequence)]) {
      shape.tokens = length;
      run(sequence, first_token);
      first_token += length;
    }
  }
  add_blocks(*stage_, gradients.data(), result.gradients);
  return result;
}

void add_weights(const RunPlan& plan, Worker& worker, Weights& all) {
  const int chunks = static_cast<int>(plan.schedule().stages_of(worker.pipeline_rank()).size());
  const std::int64_t element = plan.checkpoint_precision() == Precision::float64 ? 8 : 4;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Stage& stage = worker.stage_of(chunk);
    std::vector<std::byte> weights(static_cast<std::size_t>(stage.memory().weights / plan.element_bytes() * element));
    worker.read_state(chunk, StatePart::weights, 0, weights);
    add_blocks(stage, weights.data(), all);
  }
}

Trained train(const RunPlan& plan, const TokenSource& tokens, const TrainingOptions& options) {
  Trained trained;
  std::mutex mutex;
  const std::int64_t last = options.first_step + static_cast<std::int64_t>(options.runs) * plan.batches();
  const WorkerHooks hooks{.after_run =
                              [&](Worker& worker, Transport&, std::int64_t) {
                                const std::lock_guard lock(mutex);
                                add_weights(plan, worker, trained.weights);
                              },
                          .is_due = [&](std::int64_t steps_done) { return steps_done == last; }};
  train_with_threads(plan, tokens, options, trained.report, hooks);
  return trained;
}

}  // namespace sluice::test

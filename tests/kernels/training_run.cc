#include "tests/kernels/training_run.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "model/to_size.h"
#include "tests/kernels/thread_group.h"
#include "tests/support/count_allocations.h"

namespace sluice::test {
namespace {

constexpr std::size_t kGuard = 192;
constexpr std::byte kGuardByte{0xA5};

// The buffers of one slice of one microbatch on one stage.
struct SliceBuffers {
  SliceBuffers(const SliceMemory& memory)
      : to_input(memory.to_input_gradient),
        to_weight(memory.to_weight_gradient),
        output_gradients(memory.output_gradients),
        output(memory.boundary),
        input_gradient(memory.boundary) {}
  bool intact() const {
    return to_input.intact() && to_weight.intact() && output_gradients.intact() && output.intact() &&
           input_gradient.intact();
  }
  GuardedBuffer to_input;
  GuardedBuffer to_weight;
  GuardedBuffer output_gradients;
  GuardedBuffer output;
  GuardedBuffer input_gradient;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
};

// Keys and values of one microbatch on one stage.
struct KeyBuffers {
  explicit KeyBuffers(const SliceMemory& memory)
      : keys_values(memory.keys_values), gradient(memory.keys_values_gradient) {
    gradient.zero();
  }
  GuardedBuffer keys_values;
  GuardedBuffer gradient;
};

struct StageState {
  std::unique_ptr<Stage> stage;
  std::unique_ptr<GuardedBuffer> weights;
  std::unique_ptr<GuardedBuffer> gradients;
  std::unique_ptr<GuardedBuffer> scratch;
  std::vector<std::vector<std::unique_ptr<SliceBuffers>>> slices;  // [microbatch][slice]
  std::vector<std::unique_ptr<KeyBuffers>> keys;                   // [microbatch]
};

// One tensor-parallel rank with all stages.
class HostRank {
 public:
  HostRank(const TrainingCase& training, const Matrices& weights, int tensor_rank, TensorGroup* group,
           ExpertGroup* experts)
      : training_(training), group_(group), experts_(experts), batch_(training.batch()) {
    for (const StageSpec& spec : training.stage_specs(tensor_rank)) make_stage(spec, weights);
  }

  void train() {
    training_.in_order([this](int m, std::size_t k) { forward(m, k); },
                       [this](int m, std::size_t k) { backward(m, k); },
                       [this](std::size_t s, int m, std::size_t k) { weight(s, m, k); });
  }

  // Adds the blocks of this rank.
  void collect(TrainingResult& result) const {
    if (group_ == nullptr || group_->rank() == 0) result.loss = loss_;
    result.allocations += allocations_;
    result.recompute_ns += recompute_ns_;
    for (const StageState& state : states_) {
      collect_gradients(state, result.gradients);
      result.squared_norm += state.stage->squared_norm(state.gradients->data());
      result.intact = result.intact && state.weights->intact() && state.gradients->intact() && state.scratch->intact();
      for (const auto& microbatch : state.slices) {
        for (const auto& slice : microbatch) result.intact = result.intact && slice->intact();
      }
      for (const auto& keys : state.keys) {
        result.intact = result.intact && keys->keys_values.intact() && keys->gradient.intact();
      }
    }
  }

 private:
  void make_stage(const StageSpec& spec, const Matrices& weights) {
    StageState state;
    state.stage = make_cpu_stage(spec, training_.precision);
    state.weights = std::make_unique<GuardedBuffer>(state.stage->memory().weights);
    state.gradients = std::make_unique<GuardedBuffer>(state.stage->memory().gradients);
    state.weights->zero();
    state.gradients->zero();
    for (const Parameter& p : state.stage->parameters()) {
      const std::vector<double>& matrix = weights.at(p.name);
      for (std::int64_t row = 0; row < p.rows; ++row) {
        for (std::int64_t column = 0; column < p.columns; ++column) {
          set_element(training_.precision, state.weights->data(), p.offset + row * p.columns + column,
                      matrix[(p.first_row + row) * p.all_columns + p.first_column + column]);
        }
      }
    }
    std::int64_t scratch = 0;
    const SliceShape all{.sequences = training_.sequences, .tokens = training_.tokens()};
    for (int m = 0; m < training_.microbatches; ++m) {
      state.keys.push_back(std::make_unique<KeyBuffers>(state.stage->slice_memory(all)));
      auto& slices = state.slices.emplace_back();
      std::int64_t context = 0;
      for (const std::int64_t tokens : training_.slices) {
        const SliceShape shape{.sequences = training_.sequences, .tokens = tokens, .context = context};
        auto& slice = slices.emplace_back(std::make_unique<SliceBuffers>(state.stage->slice_memory(shape)));
        for (int sequence = 0; sequence < training_.sequences; ++sequence) {
          const Sequence& from = batch_[m * training_.sequences + sequence];
          for (std::int64_t i = context; i < context + tokens; ++i) {
            slice->tokens.push_back(from.tokens[i]);
            slice->targets.push_back(from.targets[i]);
          }
        }
        scratch = std::max(scratch, state.stage->scratch_bytes(shape));
        context += tokens;
      }
    }
    state.scratch = std::make_unique<GuardedBuffer>(scratch);
    states_.push_back(std::move(state));
  }

  SliceCall call_of(std::size_t s, int m, std::size_t k) {
    StageState& state = states_[s];
    SliceBuffers& slice = *state.slices[m][k];
    SliceCall call;
    call.shape = {
        .sequences = training_.sequences,
        .tokens = training_.slices[k],
        .context = std::accumulate(training_.slices.begin(), training_.slices.begin() + static_cast<std::ptrdiff_t>(k),
                                   std::int64_t{0})};
    call.tensor = group_;
    call.experts = experts_;
    call.weights = state.weights->data();
    call.gradients = state.gradients->data();
    if (state.stage->spec().head_is_embedding()) {
      const StageState& first = states_.front();
      for (const Parameter& p : first.stage->parameters()) {
        if (p.name != "embedding.word.weight") continue;
        call.embedding = first.weights->data() + p.offset * first.stage->element_bytes();
        call.embedding_gradient = first.gradients->data() + p.offset * first.stage->element_bytes();
      }
    }
    // Results must not depend on the contents of scratch.
    std::memset(state.scratch->data(), 0xFF, to_size(state.scratch->size()));
    call.scratch = state.scratch->data();
    call.to_input_gradient = slice.to_input.data();
    call.to_weight_gradient = slice.to_weight.data();
    if (training_.backward != TrainingCase::Backward::whole) call.output_gradients = slice.output_gradients.data();
    call.keys_values = state.keys[m]->keys_values.data();
    call.keys_values_gradient = state.keys[m]->gradient.data();
    call.sequence_tokens = training_.tokens();
    if (s > 0) call.input = states_[s - 1].slices[m][k]->output.data();
    call.output = slice.output.data();
    if (s + 1 < states_.size()) call.output_gradient = states_[s + 1].slices[m][k]->input_gradient.data();
    call.input_gradient = slice.input_gradient.data();
    call.tokens = slice.tokens.data();
    call.targets = slice.targets.data();
    call.loss_scale = training_.loss_scale;
    return call;
  }

  template <class Op>
  void counted(std::size_t s, int m, std::size_t k, const Op& op) {
    SliceCall call = call_of(s, m, k);
    const std::int64_t before = allocations();
    op(*states_[s].stage, call);
    allocations_ += allocations() - before;
    loss_ += call.loss;
    recompute_ns_ += call.recompute_ns;
  }
  void forward(int m, std::size_t k) {
    for (std::size_t s = 0; s < states_.size(); ++s) {
      if (training_.in_parts) {
        counted(s, m, k, [](const Stage& stage, SliceCall& call) { run_in_parts(stage, call, true); });
        continue;
      }
      counted(s, m, k, [](const Stage& stage, SliceCall& call) { stage.forward(call); });
    }
  }
  void backward(int m, std::size_t k) {
    for (std::size_t s = states_.size(); s-- > 0;) {
      if (training_.in_parts) {
        counted(s, m, k, [](const Stage& stage, SliceCall& call) { run_in_parts(stage, call, false); });
        if (training_.backward == TrainingCase::Backward::split) weight(s, m, k);
      } else if (training_.backward == TrainingCase::Backward::whole) {
        counted(s, m, k, [](const Stage& stage, SliceCall& call) { stage.backward(call); });
      } else {
        counted(s, m, k, [](const Stage& stage, SliceCall& call) { stage.input_gradient(call); });
        if (training_.backward == TrainingCase::Backward::split) weight(s, m, k);
      }
    }
  }
  void weight(std::size_t s, int m, std::size_t k) {
    // Buffers that live until the input gradient have been released.
    SliceBuffers& slice = *states_[s].slices[m][k];
    std::memset(slice.to_input.data(), 0xFF, to_size(slice.to_input.size()));
    if (k == 0) {
      GuardedBuffer& keys = states_[s].keys[m]->keys_values;
      std::memset(keys.data(), 0xFF, to_size(keys.size()));
    }
    counted(s, m, k, [](const Stage& stage, SliceCall& call) { stage.weight_gradient(call); });
  }

  void collect_gradients(const StageState& state, Matrices& gradients) const {
    for (const Parameter& p : state.stage->parameters()) {
      std::vector<double>& matrix = gradients[p.name];
      matrix.resize(p.all_rows * p.all_columns);
      // Of replicated parameters, those of the first rank; of experts, the sum over the ranks that route tokens to
      // them.
      if (!p.expert && p.size() == p.all_rows * p.all_columns && state.stage->spec().tensor_rank > 0) continue;
      for (std::int64_t row = 0; row < p.rows; ++row) {
        for (std::int64_t column = 0; column < p.columns; ++column) {
          matrix[(p.first_row + row) * p.all_columns + p.first_column + column] +=
              element(training_.precision, state.gradients->data(), p.offset + row * p.columns + column);
        }
      }
    }
  }

  const TrainingCase& training_;
  TensorGroup* group_;
  ExpertGroup* experts_;
  std::vector<Sequence> batch_;
  std::vector<StageState> states_;
  double loss_ = 0;
  std::int64_t allocations_ = 0;
  std::int64_t recompute_ns_ = 0;
};

}  // namespace

GuardedBuffer::GuardedBuffer(std::int64_t bytes)
    : memory_(to_size(bytes) + 2 * kGuard + kBufferAlignment, kGuardByte), size_(bytes) {
  void* begin = memory_.data() + kGuard;
  std::size_t space = to_size(bytes) + kGuard + kBufferAlignment;
  data_ = static_cast<std::byte*>(std::align(kBufferAlignment, to_size(bytes), begin, space));
  std::memset(data_, 0xFF, to_size(bytes));
}

void GuardedBuffer::zero() { std::memset(data_, 0, to_size(size_)); }

bool GuardedBuffer::intact() const {
  const auto is_guard = [](std::byte b) { return b == kGuardByte; };
  return std::all_of(memory_.data(), static_cast<const std::byte*>(data_), is_guard) &&
         std::all_of(static_cast<const std::byte*>(data_) + size_, memory_.data() + memory_.size(), is_guard);
}

std::vector<StageSpec> TrainingCase::stage_specs(int tensor_rank) const {
  std::vector<StageSpec> specs;
  int first_layer = 0;
  for (const StageContents& contents : stages) {
    StageSpec& spec = specs.emplace_back(StageSpec{.model = model,
                                                   .contents = contents,
                                                   .first_layer = first_layer,
                                                   .tensor_parallel = tensor_parallel,
                                                   .tensor_rank = tensor_rank,
                                                   .expert_parallel = expert_parallel,
                                                   .recompute = recompute,
                                                   .sliced = slices.size() > 1,
                                                   .gemms = gemms});
    if (head_shares_embedding) spec.contents.tied_copy = false;
    first_layer += contents.layers;
  }
  return specs;
}

std::int64_t TrainingCase::tokens() const { return std::accumulate(slices.begin(), slices.end(), std::int64_t{0}); }

std::vector<Sequence> TrainingCase::batch() const {
  std::mt19937_64 random(7);
  std::vector<Sequence> out(to_size(std::int64_t{sequences} * microbatches));
  for (Sequence& sequence : out) {
    for (std::int64_t i = 0; i <= tokens(); ++i) {
      const auto token = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model.vocab));
      if (i < tokens()) sequence.tokens.push_back(token);
      if (i > 0) sequence.targets.push_back(token);
    }
  }
  return out;
}

Matrices random_matrices(const Transformer& model, std::uint64_t seed) {
  const StageSpec whole{.model = model, .contents = test::whole(model)};
  std::mt19937_64 random(seed);
  Matrices out;
  const std::unique_ptr<Stage> stage = make_cpu_stage(whole, Precision::float64);
  for (const Parameter& p : stage->parameters()) {
    const bool gain = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
    std::normal_distribution<double> normal(gain ? 1.0 : 0.0, p.all_columns > 1 ? 0.3 : 0.2);
    std::vector<double>& matrix = out[p.name];
    // Rounded to float, so that both precisions have equal weights.
    for (std::int64_t i = 0; i < p.all_rows * p.all_columns; ++i) {
      matrix.push_back(static_cast<double>(static_cast<float>(normal(random))));
    }
  }
  return out;
}

void run_in_parts(const Stage& stage, SliceCall& call, bool forward) {
  using Pass = PartPass;
  const int layers = stage.spec().contents.layers;
  stage.begin_parts(call, forward);
  for (int i = 0; i < layers; ++i) {
    if (forward) {
      for (const LayerPart part : {LayerPart::attention, LayerPart::dispatch, LayerPart::experts, LayerPart::combine}) {
        stage.run_part(call, {Pass::forward, part, i});
      }
      continue;
    }
    const int layer = layers - 1 - i;
    for (const LayerPart part : {LayerPart::combine, LayerPart::experts, LayerPart::dispatch}) {
      stage.run_part(call, {Pass::input_gradient, part, layer});
    }
    const bool whole = call.output_gradients == nullptr;
    if (whole) stage.run_part(call, {Pass::weight_gradient, LayerPart::experts, layer});
    stage.run_part(call, {Pass::input_gradient, LayerPart::attention, layer});
    if (whole) stage.run_part(call, {Pass::weight_gradient, LayerPart::attention, layer});
  }
  stage.end_parts(call, forward);
}

TrainingResult run(const TrainingCase& training, const Matrices& weights) {
  TrainingResult result;
  if (training.tensor_parallel == 1) {
    HostRank rank(training, weights, 0, nullptr, nullptr);
    rank.train();
    rank.collect(result);
    return result;
  }
  ThreadGroupBoard board(training.tensor_parallel);
  ThreadMail mail(training.tensor_parallel);
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int t = 0; t < training.tensor_parallel; ++t) {
    threads.emplace_back([&, t] {
      ThreadGroup group(board, t);
      ThreadExpertGroup experts(mail, t);
      HostRank rank(training, weights, t, &group, training.expert_parallel > 1 ? &experts : nullptr);
      rank.train();
      const std::lock_guard lock(mutex);
      rank.collect(result);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return result;
}

double element(Precision precision, const std::byte* buffer, std::int64_t i) {
  if (precision == Precision::float64) return reinterpret_cast<const double*>(buffer)[i];
  return static_cast<double>(reinterpret_cast<const float*>(buffer)[i]);
}

void set_element(Precision precision, std::byte* buffer, std::int64_t i, double value) {
  if (precision == Precision::float64) {
    reinterpret_cast<double*>(buffer)[i] = value;
  } else {
    reinterpret_cast<float*>(buffer)[i] = static_cast<float>(value);
  }
}

Transformer small_gpt() {
  return {.name = "small GPT",
          .layers = 2,
          .hidden = 24,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 6,
          .ffn_hidden = 40,
          .vocab = 50,
          .positions = 64};
}

Transformer small_llama() {
  return {.name = "small Llama",
          .layers = 2,
          .hidden = 24,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 6,
          .ffn_hidden = 40,
          .gated = true,
          .vocab = 50,
          .tied_embeddings = false,
          .rms_norm = true,
          .qkv_bias = false,
          .projection_bias = false,
          .mlp_bias = false};
}

Transformer small_expert_gpt() {
  Transformer model = small_gpt();
  model.name = "small GPT with experts";
  model.mlp_bias = false;
  model.experts = {.count = 4, .per_token = 2, .ffn_hidden = 14, .leading_dense = 1};
  return model;
}

Transformer small_expert_llama() {
  Transformer model = small_llama();
  model.name = "small Llama with experts";
  model.experts = {
      .count = 4, .per_token = 2, .ffn_hidden = 14, .shared_ffn_hidden = 12, .shared_gate = true, .leading_dense = 1};
  return model;
}

}  // namespace sluice::test

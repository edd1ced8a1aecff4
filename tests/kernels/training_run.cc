#include "tests/kernels/training_run.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "model/to_size.h"
#include "tests/kernels/rank_run.h"
#include "tests/kernels/thread_group.h"
#include "tests/support/count_allocations.h"

namespace sluice::test {
namespace {

constexpr std::size_t kGuard = 192;
constexpr std::byte kGuardByte{0xA5};

// The CPU, for RankRun.
class HostPlace {
 public:
  using Buffer = GuardedBuffer;
  HostPlace(Precision precision, TensorGroup* group, ExpertGroup* experts)
      : precision_(precision), group_(group), experts_(experts) {}

  std::unique_ptr<Stage> make_stage(const StageSpec& spec) const { return make_cpu_stage(spec, precision_); }
  std::unique_ptr<Buffer> make_buffer(std::int64_t bytes) const { return std::make_unique<Buffer>(bytes); }
  std::vector<std::byte> as_bytes(const std::vector<double>& numbers) const {
    std::vector<std::byte> out(numbers.size() * element_bytes());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      set_element(precision_, out.data(), static_cast<std::int64_t>(i), numbers[i]);
    }
    return out;
  }
  std::vector<double> gradient_numbers(const Buffer& gradients) const {
    std::vector<double> out(to_size(gradients.size()) / element_bytes());
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = element(precision_, gradients.data(), static_cast<std::int64_t>(i));
    }
    return out;
  }
  void fill_tables(const Stage& /*stage*/, Buffer& /*tables*/, std::int64_t /*positions*/) const {}
  template <class Op>
  void run(const Stage& stage, SliceCall& call, const Op& op) {
    call.tensor = group_;
    call.experts = experts_;
    const std::int64_t before = test::allocations();
    op(stage, call);
    allocations += test::allocations() - before;
    loss_ = call.loss;
    recompute_ns += call.recompute_ns;
  }
  double loss() const { return loss_; }
  void add_squares(const Stage& stage, const Buffer& gradients) { squares_ += stage.squared_norm(gradients.data()); }
  double squares() const { return squares_; }

  std::int64_t allocations = 0;
  std::int64_t recompute_ns = 0;

 private:
  std::size_t element_bytes() const { return precision_ == Precision::float64 ? sizeof(double) : sizeof(float); }

  Precision precision_;
  TensorGroup* group_;
  ExpertGroup* experts_;
  double loss_ = 0;
  double squares_ = 0;
};

// Trains one rank and adds its results.
void run_on_host(const TrainingCase& training, const Matrices& weights, int tensor_rank, TensorGroup* group,
                 ExpertGroup* experts, std::mutex& mutex, TrainingResult& result) {
  HostPlace place(training.precision, group, experts);
  RankRun<HostPlace> rank(training, weights, tensor_rank, place);
  rank.train();
  const std::lock_guard lock(mutex);
  rank.collect(result);
  result.allocations += place.allocations;
  result.recompute_ns += place.recompute_ns;
}

}  // namespace

GuardedBuffer::GuardedBuffer(std::int64_t bytes)
    : memory_(to_size(bytes) + 2 * kGuard + kBufferAlignment, kGuardByte), size_(bytes) {
  void* begin = memory_.data() + kGuard;
  std::size_t space = to_size(bytes) + kGuard + kBufferAlignment;
  data_ = static_cast<std::byte*>(std::align(kBufferAlignment, to_size(bytes), begin, space));
  std::memset(data_, 0xFF, to_size(bytes));
}

void GuardedBuffer::fill(std::byte value) { std::fill_n(data_, size_, value); }
void GuardedBuffer::write(std::span<const std::byte> bytes) { std::copy(bytes.begin(), bytes.end(), data_); }

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
                                                   .sliced = slices.size() > 1});
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
  std::mutex mutex;
  if (training.tensor_parallel == 1) {
    run_on_host(training, weights, 0, nullptr, nullptr, mutex, result);
    return result;
  }
  ThreadGroupBoard board(training.tensor_parallel);
  ThreadMail mail(training.tensor_parallel);
  std::vector<std::thread> threads;
  for (int t = 0; t < training.tensor_parallel; ++t) {
    threads.emplace_back([&, t] {
      ThreadGroup group(board, t);
      ThreadExpertGroup experts(mail, t);
      run_on_host(training, weights, t, &group, training.expert_parallel > 1 ? &experts : nullptr, mutex, result);
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

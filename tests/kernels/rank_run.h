#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "model/to_size.h"
#include "tests/kernels/training_run.h"

namespace sluice::test {

// One tensor-parallel rank of a TrainingCase with all its stages. Place is where they run, the CPU or a device: it
// creates stages, buffers with guards (Buffer), and converts numbers of weights and gradients.
template <class Place>
class RankRun {
  using Buffer = typename Place::Buffer;

 public:
  RankRun(const TrainingCase& training, const Matrices& weights, int tensor_rank, Place& place)
      : training_(training), tensor_rank_(tensor_rank), place_(place), batch_(training.batch()) {
    for (const StageSpec& spec : training.stage_specs(tensor_rank)) make_stage(spec, weights);
  }

  void train() {
    training_.in_order([this](int m, std::size_t k) { forward(m, k); },
                       [this](int m, std::size_t k) { backward(m, k); },
                       [this](std::size_t s, int m, std::size_t k) { weight(s, m, k); });
  }

  // Adds the blocks of this rank.
  void collect(TrainingResult& result) const {
    if (tensor_rank_ == 0) result.loss = loss_;
    for (const State& state : states_) {
      collect_gradients(state, result.gradients);
      place_.add_squares(*state.stage, *state.gradients);
      for (const auto& buffer : state.buffers) result.intact = result.intact && buffer->intact();
      for (const auto& microbatch : state.slices) {
        for (const Slice& slice : microbatch) result.intact = result.intact && slice.on_host->intact();
      }
    }
    result.squared_norm += place_.squares();
  }

 private:
  // The buffers of one slice of one microbatch on one stage.
  struct Slice {
    Buffer* to_input;
    Buffer* to_weight;
    Buffer* output_gradients;
    Buffer* output;
    Buffer* input_gradient;
    Buffer* tokens;
    Buffer* targets;
    std::unique_ptr<GuardedBuffer> on_host;
  };
  // Keys and values of one microbatch on one stage.
  struct Keys {
    Buffer* keys_values;
    Buffer* gradient;
  };
  struct State {
    std::unique_ptr<Stage> stage;
    std::vector<std::unique_ptr<Buffer>> buffers;  // all of them
    Buffer* weights = nullptr;
    Buffer* gradients = nullptr;
    Buffer* scratch = nullptr;
    Buffer* tables = nullptr;
    std::vector<std::vector<Slice>> slices;  // [microbatch][slice]
    std::vector<Keys> keys;                  // [microbatch]

    // Offset of the word embedding, in elements.
    std::int64_t embedding() const {
      const auto parameters = stage->parameters();
      return std::find_if(parameters.begin(), parameters.end(),
                          [](const Parameter& p) { return p.name == kWordEmbedding; })
          ->offset;
    }
    std::int64_t gradient_bytes() const {
      return stage->memory().gradients / (stage->memory().weights / stage->element_bytes());
    }
  };

  SliceShape shape_of(std::size_t k) const {
    const auto begin = training_.slices.begin();
    return {.sequences = training_.sequences,
            .tokens = training_.slices[k],
            .context = std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(k), std::int64_t{0})};
  }

  void make_stage(const StageSpec& spec, const Matrices& weights) {
    State state;
    state.stage = place_.make_stage(spec);
    const auto buffer = [&](std::int64_t bytes) { return state.buffers.emplace_back(place_.make_buffer(bytes)).get(); };
    const StageMemory memory = state.stage->memory();
    state.weights = buffer(memory.weights);
    state.gradients = buffer(memory.gradients);
    state.gradients->fill(std::byte{0});
    std::vector<double> numbers(to_size(memory.weights / state.stage->element_bytes()));
    for (const Parameter& p : state.stage->parameters()) {
      const std::vector<double>& matrix = weights.at(p.name);
      for (std::int64_t i = 0; i < p.size(); ++i) numbers[p.offset + i] = matrix[in_matrix(p, i)];
    }
    state.weights->write(place_.as_bytes(numbers));
    std::int64_t scratch = 0;
    for (int m = 0; m < training_.microbatches; ++m) {
      const SliceMemory whole =
          state.stage->slice_memory({.sequences = training_.sequences, .tokens = training_.tokens()});
      state.keys.push_back({buffer(whole.keys_values), buffer(whole.keys_values_gradient)});
      state.keys.back().gradient->fill(std::byte{0});
      auto& slices = state.slices.emplace_back();
      for (std::size_t k = 0; k < training_.slices.size(); ++k) {
        const SliceShape shape = shape_of(k);
        const SliceMemory of = state.stage->slice_memory(shape);
        const std::int64_t bytes = shape.rows() * static_cast<std::int64_t>(sizeof(std::int32_t));
        Slice& slice = slices.emplace_back(Slice{buffer(of.to_input_gradient), buffer(of.to_weight_gradient),
                                                 buffer(of.output_gradients), buffer(of.boundary), buffer(of.boundary),
                                                 buffer(bytes), buffer(bytes),
                                                 std::make_unique<GuardedBuffer>(state.stage->slice_host_bytes())});
        std::vector<std::int32_t> tokens;
        std::vector<std::int32_t> targets;
        for (int sequence = 0; sequence < training_.sequences; ++sequence) {
          const Sequence& from = batch_[m * training_.sequences + sequence];
          for (std::int64_t i = shape.context; i < shape.context + shape.tokens; ++i) {
            tokens.push_back(from.tokens[i]);
            targets.push_back(from.targets[i]);
          }
        }
        slice.tokens->write(std::as_bytes(std::span(tokens)));
        slice.targets->write(std::as_bytes(std::span(targets)));
        scratch = std::max(scratch, state.stage->scratch_bytes(shape));
      }
    }
    state.scratch = buffer(scratch);
    state.tables = buffer(state.stage->table_bytes(training_.tokens()));
    place_.fill_tables(*state.stage, *state.tables, training_.tokens());
    states_.push_back(std::move(state));
  }

  template <class Op>
  void run_op(std::size_t s, int m, std::size_t k, const Op& op) {
    State& state = states_[s];
    Slice& slice = state.slices[m][k];
    // Results must not depend on the contents of scratch.
    state.scratch->fill(std::byte{0xFF});
    SliceCall call;
    call.shape = shape_of(k);
    call.weights = state.weights->data();
    call.gradients = state.gradients->data();
    if (state.stage->spec().head_is_embedding()) {
      const State& first = states_.front();
      call.embedding = first.weights->data() + first.embedding() * first.stage->element_bytes();
      call.embedding_gradient = first.gradients->data() + first.embedding() * first.gradient_bytes();
    }
    call.scratch = state.scratch->data();
    call.to_input_gradient = slice.to_input->data();
    call.to_weight_gradient = slice.to_weight->data();
    if (training_.backward != TrainingCase::Backward::whole) call.output_gradients = slice.output_gradients->data();
    call.keys_values = state.keys[m].keys_values->data();
    call.keys_values_gradient = state.keys[m].gradient->data();
    call.sequence_tokens = training_.tokens();
    if (s > 0) call.input = states_[s - 1].slices[m][k].output->data();
    call.output = slice.output->data();
    if (s + 1 < states_.size()) call.output_gradient = states_[s + 1].slices[m][k].input_gradient->data();
    call.input_gradient = slice.input_gradient->data();
    call.tokens = reinterpret_cast<const std::int32_t*>(slice.tokens->data());
    call.targets = reinterpret_cast<const std::int32_t*>(slice.targets->data());
    call.loss_scale = training_.loss_scale;
    call.on_host = slice.on_host->data();
    if (m % 2 == 0) call.tables = state.tables->data();  // odd microbatches compute what is in the tables
    place_.run(*state.stage, call, op);
  }
  void forward(int m, std::size_t k) {
    for (std::size_t s = 0; s < states_.size(); ++s) {
      run_op(s, m, k, [this](const Stage& stage, SliceCall& call) {
        training_.in_parts ? run_in_parts(stage, call, true) : stage.forward(call);
      });
      if (training_.stages[s].head) loss_ += place_.loss();
    }
  }
  void backward(int m, std::size_t k) {
    for (std::size_t s = states_.size(); s-- > 0;) {
      run_op(s, m, k, [this](const Stage& stage, SliceCall& call) {
        if (training_.in_parts) return run_in_parts(stage, call, false);
        training_.backward == TrainingCase::Backward::whole ? stage.backward(call) : stage.input_gradient(call);
      });
      if (training_.backward == TrainingCase::Backward::split) weight(s, m, k);
    }
  }
  void weight(std::size_t s, int m, std::size_t k) {
    // Buffers that live until the input gradient have been released.
    states_[s].slices[m][k].to_input->fill(std::byte{0xFF});
    if (k == 0) states_[s].keys[m].keys_values->fill(std::byte{0xFF});
    run_op(s, m, k, [](const Stage& stage, SliceCall& call) { stage.weight_gradient(call); });
  }

  // Returns the index in the whole matrix of element i of a block.
  static std::int64_t in_matrix(const Parameter& p, std::int64_t i) {
    return (p.first_row + i / p.columns) * p.all_columns + p.first_column + i % p.columns;
  }

  void collect_gradients(const State& state, Matrices& gradients) const {
    const std::vector<double> numbers = place_.gradient_numbers(*state.gradients);
    for (const Parameter& p : state.stage->parameters()) {
      std::vector<double>& matrix = gradients[p.name];
      matrix.resize(p.all_rows * p.all_columns);
      // Of replicated parameters, those of the first rank; of experts, the sum over the ranks that route tokens to
      // them.
      if (!p.expert && p.size() == p.all_rows * p.all_columns && tensor_rank_ > 0) continue;
      for (std::int64_t i = 0; i < p.size(); ++i) matrix[in_matrix(p, i)] += numbers[p.offset + i];
    }
  }

  const TrainingCase& training_;
  int tensor_rank_;
  Place& place_;
  std::vector<Sequence> batch_;
  std::vector<State> states_;
  double loss_ = 0;
};

}  // namespace sluice::test

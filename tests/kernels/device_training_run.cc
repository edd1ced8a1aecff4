#include "tests/kernels/device_training_run.h"

#include <algorithm>
#include <barrier>
#include <mutex>
#include <numeric>
#include <thread>

#include "kernels/device_kernels.h"
#include "model/to_size.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

Element element_of(Precision precision) {
  return precision == Precision::float16 ? Element::float16 : Element::bfloat16;
}

struct Board {
  explicit Board(int size) : barrier(size), data(to_size(size)), sends(to_size(size)) {}
  std::barrier<> barrier;
  std::vector<std::vector<double>> data;
  std::vector<std::span<const ExchangeBlock>> sends;
};

// Waits for the stream, reduces on the host in the order of the ranks, and rounds once.
class HostGroup final : public StreamGroup {
 public:
  HostGroup(Board& board, int rank, Device& device) : board_(board), rank_(rank), device_(device) {}
  int size() const override { return static_cast<int>(board_.data.size()); }
  int rank() const override { return rank_; }
  void all_reduce_sum(void* data, std::int64_t count, Element element, Stream& stream) override {
    combine(data, count, element, stream, [](double a, double b) { return a + b; });
  }
  void all_reduce_max(float* data, std::int64_t count, Stream& stream) override {
    combine(data, count, Element::float32, stream, [](double a, double b) { return std::max(a, b); });
  }

  void all_gather(void*, std::int64_t, Stream&) override { throw std::logic_error("stages do not call all_gather"); }
  void exchange(std::span<const ExchangeBlock> sends, std::span<const ExchangeBlock> receives,
                Stream& stream) override {
    device_.synchronize(stream);
    board_.sends[rank_] = sends;
    board_.barrier.arrive_and_wait();
    std::vector<std::size_t> next(board_.sends.size(), 0);
    for (const ExchangeBlock& block : receives) {
      const auto from = board_.sends[block.rank];
      std::size_t& at = next[block.rank];
      while (at < from.size() && from[at].rank != rank_) ++at;
      if (at == from.size() || from[at].bytes != block.bytes) {
        throw std::logic_error("a receive without its send");
      }
      device_.copy(block.data, from[at++].data, block.bytes, stream);
    }
    device_.synchronize(stream);
    board_.barrier.arrive_and_wait();
  }

 private:
  template <class Combine>
  void combine(void* data, std::int64_t count, Element element, Stream& stream, const Combine& combined) {
    const std::int64_t bytes = count * bytes_of(element);
    std::byte* const host = device_.allocate_host(bytes);
    device_.copy(host, data, bytes, stream);
    device_.synchronize(stream);
    board_.data[rank_] = as_numbers(element, {host, to_size(bytes)});
    board_.barrier.arrive_and_wait();
    std::vector<double> result = board_.data.front();
    for (std::size_t rank = 1; rank < board_.data.size(); ++rank) {
      for (std::size_t i = 0; i < result.size(); ++i) result[i] = combined(result[i], board_.data[rank][i]);
    }
    board_.barrier.arrive_and_wait();
    const std::vector<std::byte> back = as_bytes(element, result);
    std::copy(back.begin(), back.end(), host);
    device_.copy(data, host, bytes, stream);
    device_.synchronize(stream);
    device_.release_host(host);
  }

  Board& board_;
  int rank_;
  Device& device_;
};

// The buffers of one slice of one microbatch on one stage.
struct DeviceSliceBuffers {
  DeviceSliceBuffers(Device& device, Stream& stream, const SliceMemory& memory, std::int64_t host_bytes,
                     const std::vector<std::int32_t>& of_tokens, const std::vector<std::int32_t>& of_targets)
      : to_input(device, stream, memory.to_input_gradient),
        to_weight(device, stream, memory.to_weight_gradient),
        output_gradients(device, stream, memory.output_gradients),
        output(device, stream, memory.boundary),
        input_gradient(device, stream, memory.boundary),
        on_host(host_bytes),
        tokens(device, stream, static_cast<std::int64_t>(of_tokens.size() * sizeof(std::int32_t))),
        targets(device, stream, static_cast<std::int64_t>(of_targets.size() * sizeof(std::int32_t))) {
    tokens.write(std::as_bytes(std::span(of_tokens)));
    targets.write(std::as_bytes(std::span(of_targets)));
  }
  bool intact() const {
    return to_input.intact() && to_weight.intact() && output_gradients.intact() && output.intact() &&
           input_gradient.intact() && on_host.intact();
  }
  DeviceMemory to_input;
  DeviceMemory to_weight;
  DeviceMemory output_gradients;
  DeviceMemory output;
  DeviceMemory input_gradient;
  GuardedBuffer on_host;
  DeviceMemory tokens;
  DeviceMemory targets;
};

// Keys and values of one microbatch on one stage.
struct DeviceKeyBuffers {
  DeviceKeyBuffers(Device& device, Stream& stream, const SliceMemory& memory)
      : keys_values(device, stream, memory.keys_values), gradient(device, stream, memory.keys_values_gradient) {
    gradient.fill(std::byte{0});
  }
  DeviceMemory keys_values;
  DeviceMemory gradient;
};

struct DeviceStageState {
  std::unique_ptr<Stage> stage;
  std::unique_ptr<DeviceMemory> weights;
  std::unique_ptr<DeviceMemory> gradients;
  std::unique_ptr<DeviceMemory> scratch;
  std::unique_ptr<DeviceMemory> tables;
  std::vector<std::vector<std::unique_ptr<DeviceSliceBuffers>>> slices;  // [microbatch][slice]
  std::vector<std::unique_ptr<DeviceKeyBuffers>> keys;                   // [microbatch]
};

// One tensor-parallel rank with all stages, as HostRank of training_run.cc.
class DeviceRank {
 public:
  DeviceRank(const TrainingCase& training, const Matrices& weights, Device& device, int tensor_rank, StreamGroup* group)
      : training_(training),
        device_(device),
        stream_(device.make_stream(StreamPriority::normal)),
        group_(group),
        batch_(training.batch()),
        loss_(device, *stream_, sizeof(float)),
        squares_(device, *stream_, sizeof(float)) {
    for (const StageSpec& spec : training.stage_specs(tensor_rank)) make_stage(spec, weights);
  }

  void train() {
    training_.in_order([this](int m, std::size_t k) { forward(m, k); },
                       [this](int m, std::size_t k) { backward(m, k); },
                       [this](std::size_t s, int m, std::size_t k) { weight(s, m, k); });
  }

  // Adds the blocks of this rank.
  void collect(TrainingResult& result) {
    if (group_ == nullptr || group_->rank() == 0) result.loss = all_losses_;
    squares_.fill(std::byte{0});
    for (const DeviceStageState& state : states_) {
      collect_gradients(state, result.gradients);
      state.stage->add_squared_norm(state.gradients->data(), reinterpret_cast<float*>(squares_.data()), *stream_);
      device_.synchronize(*stream_);
      result.intact = result.intact && state.weights->intact() && state.gradients->intact() &&
                      state.scratch->intact() && state.tables->intact();
      for (const auto& microbatch : state.slices) {
        for (const auto& slice : microbatch) result.intact = result.intact && slice->intact();
      }
      for (const auto& keys : state.keys) {
        result.intact = result.intact && keys->keys_values.intact() && keys->gradient.intact();
      }
    }
    result.squared_norm += as_numbers(Element::float32, squares_.read()).front();
  }

 private:
  void make_stage(const StageSpec& spec, const Matrices& weights) {
    DeviceStageState state;
    state.stage = device_kernels()->make_stage(spec, training_.precision);
    const StageMemory memory = state.stage->memory();
    state.weights = std::make_unique<DeviceMemory>(device_, *stream_, memory.weights);
    state.gradients = std::make_unique<DeviceMemory>(device_, *stream_, memory.gradients);
    state.gradients->fill(std::byte{0});
    std::vector<double> numbers(to_size(memory.weights / state.stage->element_bytes()));
    for (const Parameter& p : state.stage->parameters()) {
      const std::vector<double>& matrix = weights.at(p.name);
      for (std::int64_t row = 0; row < p.rows; ++row) {
        for (std::int64_t column = 0; column < p.columns; ++column) {
          numbers[p.offset + row * p.columns + column] =
              matrix[(p.first_row + row) * p.all_columns + p.first_column + column];
        }
      }
    }
    state.weights->write(as_bytes(element_of(training_.precision), numbers));
    std::int64_t scratch = 0;
    const SliceShape all{.sequences = training_.sequences, .tokens = training_.tokens()};
    for (int m = 0; m < training_.microbatches; ++m) {
      state.keys.push_back(std::make_unique<DeviceKeyBuffers>(device_, *stream_, state.stage->slice_memory(all)));
      auto& slices = state.slices.emplace_back();
      std::int64_t context = 0;
      for (const std::int64_t of_slice : training_.slices) {
        const SliceShape shape{.sequences = training_.sequences, .tokens = of_slice, .context = context};
        std::vector<std::int32_t> tokens;
        std::vector<std::int32_t> targets;
        for (int sequence = 0; sequence < training_.sequences; ++sequence) {
          const Sequence& from = batch_[m * training_.sequences + sequence];
          for (std::int64_t i = context; i < context + of_slice; ++i) {
            tokens.push_back(from.tokens[i]);
            targets.push_back(from.targets[i]);
          }
        }
        slices.push_back(std::make_unique<DeviceSliceBuffers>(device_, *stream_, state.stage->slice_memory(shape),
                                                              state.stage->slice_host_bytes(), tokens, targets));
        scratch = std::max(scratch, state.stage->scratch_bytes(shape));
        context += of_slice;
      }
    }
    state.scratch = std::make_unique<DeviceMemory>(device_, *stream_, scratch);
    state.tables = std::make_unique<DeviceMemory>(device_, *stream_, state.stage->table_bytes(training_.tokens()));
    state.stage->fill_tables(state.tables->data(), training_.tokens(), *stream_);
    states_.push_back(std::move(state));
  }

  template <class Op>
  void run_op(std::size_t s, int m, std::size_t k, const Op& op) {
    DeviceStageState& state = states_[s];
    DeviceSliceBuffers& slice = *state.slices[m][k];
    // Results must not depend on the contents of scratch.
    state.scratch->fill(std::byte{0xff});
    SliceCall call;
    call.shape = {
        .sequences = training_.sequences,
        .tokens = training_.slices[k],
        .context = std::accumulate(training_.slices.begin(), training_.slices.begin() + static_cast<std::ptrdiff_t>(k),
                                   std::int64_t{0})};
    call.weights = state.weights->data();
    call.gradients = state.gradients->data();
    if (state.stage->spec().head_is_embedding()) {
      const DeviceStageState& first = states_.front();
      for (const Parameter& p : first.stage->parameters()) {
        if (p.name != kWordEmbedding) continue;
        call.embedding = first.weights->data() + p.offset * first.stage->element_bytes();
        call.embedding_gradient = first.gradients->data() + p.offset * static_cast<std::int64_t>(sizeof(float));
      }
    }
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
    call.tokens = reinterpret_cast<const std::int32_t*>(slice.tokens.data());
    call.targets = reinterpret_cast<const std::int32_t*>(slice.targets.data());
    call.loss_scale = training_.loss_scale;
    call.stream = stream_.get();
    call.device = &device_;
    call.stream_group = group_;
    call.stream_experts = training_.expert_parallel > 1 ? group_ : nullptr;
    call.on_host = slice.on_host.data();
    call.loss_on_device = reinterpret_cast<float*>(loss_.data());
    if (m % 2 == 0) call.tables = state.tables->data();  // odd microbatches compute what is in the tables
    op(*state.stage, call);
    device_.synchronize(*stream_);
  }

  void forward(int m, std::size_t k) {
    for (std::size_t s = 0; s < states_.size(); ++s) {
      run_op(s, m, k, [this](const Stage& stage, SliceCall& call) {
        training_.in_parts ? run_in_parts(stage, call, true) : stage.forward(call);
      });
      if (training_.stages[s].head) all_losses_ += as_numbers(Element::float32, loss_.read()).front();
    }
  }
  void backward(int m, std::size_t k) {
    for (std::size_t s = states_.size(); s-- > 0;) {
      if (training_.in_parts) {
        run_op(s, m, k, [](const Stage& stage, SliceCall& call) { run_in_parts(stage, call, false); });
        if (training_.backward == TrainingCase::Backward::split) weight(s, m, k);
      } else if (training_.backward == TrainingCase::Backward::whole) {
        run_op(s, m, k, [](const Stage& stage, SliceCall& call) { stage.backward(call); });
      } else {
        run_op(s, m, k, [](const Stage& stage, SliceCall& call) { stage.input_gradient(call); });
        if (training_.backward == TrainingCase::Backward::split) weight(s, m, k);
      }
    }
  }
  void weight(std::size_t s, int m, std::size_t k) {
    // Buffers that live until the input gradient have been released.
    DeviceSliceBuffers& slice = *states_[s].slices[m][k];
    slice.to_input.fill(std::byte{0xff});
    if (k == 0) states_[s].keys[m]->keys_values.fill(std::byte{0xff});
    run_op(s, m, k, [](const Stage& stage, SliceCall& call) { stage.weight_gradient(call); });
  }

  void collect_gradients(const DeviceStageState& state, Matrices& gradients) const {
    const std::vector<double> numbers = as_numbers(Element::float32, state.gradients->read());
    for (const Parameter& p : state.stage->parameters()) {
      std::vector<double>& matrix = gradients[p.name];
      matrix.resize(p.all_rows * p.all_columns);
      // Of replicated parameters, those of the first rank; of experts, the sum over the ranks that route tokens to
      // them.
      if (!p.expert && p.size() == p.all_rows * p.all_columns && state.stage->spec().tensor_rank > 0) continue;
      for (std::int64_t row = 0; row < p.rows; ++row) {
        for (std::int64_t column = 0; column < p.columns; ++column) {
          matrix[(p.first_row + row) * p.all_columns + p.first_column + column] +=
              numbers[p.offset + row * p.columns + column];
        }
      }
    }
  }

  const TrainingCase& training_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  StreamGroup* group_;
  std::vector<Sequence> batch_;
  std::vector<DeviceStageState> states_;
  DeviceMemory loss_;
  DeviceMemory squares_;
  double all_losses_ = 0;
};

}  // namespace

TrainingResult run_on_devices(const TrainingCase& training, const Matrices& weights,
                              const std::function<void(Device&)>& inspect) {
  TrainingResult result;
  Board board(training.tensor_parallel);
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int t = 0; t < training.tensor_parallel; ++t) {
    threads.emplace_back([&, t] {
      const std::unique_ptr<Device> device = make_test_device();
      device->make_current();
      HostGroup group(board, t, *device);
      DeviceRank rank(training, weights, *device, t, training.tensor_parallel == 1 ? nullptr : &group);
      rank.train();
      const std::lock_guard lock(mutex);
      rank.collect(result);
      if (inspect) inspect(*device);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return result;
}

Matrices rounded(Precision precision, const Matrices& weights) {
  Matrices out;
  for (const auto& [name, matrix] : weights) out[name] = rounded(element_of(precision), matrix);
  return out;
}

}  // namespace sluice::test

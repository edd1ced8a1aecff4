#include "exec/measure/part_bench.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <random>
#include <utility>

#include "exec/plan/packing.h"
#include "exec/steady_clock.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

// Rounds toward zero; subnormal results become zero.
std::uint16_t bits_of(float value, Element element) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (element == Element::bfloat16) return static_cast<std::uint16_t>(bits >> 16);
  const std::uint32_t exponent = bits >> 23 & 0xffU;
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  if (exponent < 113) return static_cast<std::uint16_t>(sign);
  return static_cast<std::uint16_t>(sign | (exponent - 112U) << 10 | (bits >> 13 & 0x3ffU));
}

bool is_whole(const PartBenchSpec& spec, const ProfileCell& cell) {
  return cell.context == 0 && cell.tokens == spec.sequence_length;
}

// Returns the length of the sequence of which the cell is the last slice.
std::int64_t key_tokens(const ProfileCell& cell) { return cell.context + cell.tokens; }

SliceShape slice_shape_of(const PartBenchSpec& spec, std::int64_t tokens, std::int64_t context) {
  return {.sequences = spec.sequences, .tokens = tokens, .context = context};
}

}  // namespace

std::array<PartBench::Part, 3> PartBench::make_parts(const PartBenchSpec& spec) {
  std::array<Part, 3> parts;
  const bool slices =
      std::any_of(spec.cells.begin(), spec.cells.end(), [&](const ProfileCell& cell) { return !is_whole(spec, cell); });
  for (const PartKind kind : kModelParts) {
    StageSpec of{.model = spec.model,
                 .tensor_parallel = spec.tensor_parallel,
                 .tensor_rank = spec.tensor_rank,
                 .recompute = spec.recompute};
    of.model.layers = std::max(spec.model.layers, spec.layers);
    of.contents.embedding = kind == PartKind::embedding;
    of.contents.layers = kind == PartKind::layer ? spec.layers : 0;
    of.contents.head = kind == PartKind::head;
    of.contents.tied_copy = of.contents.head && spec.model.tied_embeddings;
    Part& part = parts[static_cast<std::size_t>(kind)];
    const auto make = [&] {
      return spec.kernels != nullptr ? spec.kernels->make_stage(of, spec.precision)
                                     : make_cpu_stage(of, spec.precision);
    };
    part.stage = make();
    of.sliced = true;
    if (kind == PartKind::layer && slices) part.sliced = make();
  }
  return parts;
}

const Stage& PartBench::stage_of(const Part& part, const ProfileCell& cell) const {
  return part.sliced && !is_whole(spec_, cell) ? *part.sliced : *part.stage;
}

PartBench::Sizes PartBench::sizes_of(const PartBenchSpec& spec, const std::array<Part, 3>& parts) {
  Sizes sizes;
  const auto raise = [](std::int64_t& most, std::int64_t bytes) { most = std::max(most, bytes); };
  for (const Part& part : parts) {
    for (const ProfileCell& cell : spec.cells) {
      const Stage& stage = part.sliced && !is_whole(spec, cell) ? *part.sliced : *part.stage;
      const SliceShape shape = slice_shape_of(spec, cell.tokens, cell.context);
      raise(sizes.scratch, stage.scratch_bytes(shape));
      const SliceMemory memory = stage.slice_memory(shape);
      raise(sizes.most.to_input_gradient, memory.to_input_gradient);
      raise(sizes.most.to_weight_gradient, memory.to_weight_gradient);
      raise(sizes.most.output_gradients, memory.output_gradients);
      raise(sizes.most.boundary, memory.boundary);
      const SliceMemory of_keys = stage.slice_memory(slice_shape_of(spec, key_tokens(cell), 0));
      raise(sizes.most.keys_values, of_keys.keys_values);
      raise(sizes.most.keys_values_gradient, of_keys.keys_values_gradient);
    }
  }
  return sizes;
}

std::int64_t PartBench::allocated_bytes(const std::array<Part, 3>& parts, const Sizes& sizes) {
  std::int64_t bytes = aligned(sizes.scratch);
  for (const Part& part : parts) {
    const StageMemory memory = part.stage->memory();
    bytes += aligned(memory.weights) + aligned(memory.gradients) + aligned(memory.optimizer_state);
  }
  const SliceMemory& most = sizes.most;
  bytes += kMicrobatches *
           (aligned(most.to_input_gradient) + aligned(most.to_weight_gradient) + aligned(most.output_gradients) +
            aligned(most.keys_values) + aligned(most.keys_values_gradient) + 4 * aligned(most.boundary));
  return bytes;
}

std::int64_t PartBench::bytes_of(const PartBenchSpec& spec) {
  const auto parts = make_parts(spec);
  return allocated_bytes(parts, sizes_of(spec, parts));
}

PartBench::PartBench(const PartBenchSpec& spec, Device* device)
    : spec_(spec), device_(spec.kernels != nullptr ? device : nullptr), parts_(make_parts(spec)) {
  const Sizes sizes = sizes_of(spec_, parts_);
  const std::int64_t bytes = allocated_bytes(parts_, sizes);
  if (device_ != nullptr) {
    device_->make_current();
    stream_ = device_->make_stream(StreamPriority::normal);
    for (auto& event : events_) event = device_->make_event();
    memory_ = device_->allocate(bytes);
  } else {
    memory_ = static_cast<std::byte*>(::operator new (to_size(bytes), std::align_val_t{kBufferAlignment}));
    std::memset(memory_, 0, to_size(bytes));
  }
  place(sizes);
  std::int64_t most_tokens = 0;
  for (const ProfileCell& cell : spec_.cells) {
    most_tokens = std::max(most_tokens, cell.tokens);
  }
  std::mt19937_64 random(spec_.seed);
  for (std::int64_t i = 0; i < most_tokens * spec_.sequences; ++i) {
    tokens_.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(spec_.model.vocab)));
    targets_.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(spec_.model.vocab)));
  }
  load_tokens();
}

PartBench::~PartBench() {
  if (device_ == nullptr) {
    ::operator delete (memory_, std::align_val_t{kBufferAlignment});
    return;
  }
  device_->settle(*stream_);
  device_->release(memory_);
  device_->release(small_);
}

void PartBench::load_tokens() {
  if (device_ == nullptr) return;
  const auto bytes = static_cast<std::int64_t>(tokens_.size() * sizeof(std::int32_t));
  const std::int64_t before_tables = 2 * aligned(bytes) + aligned(std::int64_t{sizeof(float)});
  std::int64_t tables = 0;
  for (const Part& part : parts_) tables = std::max(tables, part.stage->table_bytes(spec_.sequence_length));
  small_ = device_->allocate(before_tables + tables);
  tables_ = small_ + before_tables;
  for (const Part& part : parts_) part.stage->fill_tables(tables_, spec_.sequence_length, *stream_);
  device_->copy(small_, tokens_.data(), bytes, *stream_);
  device_->copy(small_ + aligned(bytes), targets_.data(), bytes, *stream_);
  device_->synchronize(*stream_);
}

Element PartBench::element() const {
  return spec_.precision == Precision::float16 ? Element::float16 : Element::bfloat16;
}

void PartBench::mark(std::size_t at) {
  if (device_ != nullptr) {
    device_->record(*events_[at], *stream_);
  } else {
    marks_[at] = now_ns();
  }
}

std::int64_t PartBench::between(std::size_t first, std::size_t second) {
  if (device_ == nullptr) return marks_[second] - marks_[first];
  device_->synchronize(*events_[second]);
  return device_->nanoseconds_between(*events_[first], *events_[second]);
}

void PartBench::zero(std::byte* data, std::int64_t bytes) {
  if (device_ == nullptr) {
    std::memset(data, 0, to_size(bytes));
  } else if (bytes > 0) {
    device_->zero(data, bytes, *stream_);
  }
}

void PartBench::place(const Sizes& sizes) {
  std::byte* at = memory_;
  const auto next = [&](std::int64_t bytes) {
    std::byte* const here = at;
    at += aligned(bytes);
    return here;
  };
  for (Part& part : parts_) {
    const StageMemory memory = part.stage->memory();
    part.weights = next(memory.weights);
    part.gradients = next(memory.gradients);
    part.optimizer_state = next(memory.optimizer_state);
    fill_weights(part);
  }
  scratch_ = next(sizes.scratch);
  const SliceMemory& most = sizes.most;
  for (Buffers& of : buffers_) {
    of.to_input_gradient = next(most.to_input_gradient);
    of.to_weight_gradient = next(most.to_weight_gradient);
    of.output_gradients = next(most.output_gradients);
    of.keys_values = next(most.keys_values);
    of.keys_values_gradient = next(most.keys_values_gradient);
    of.input = next(most.boundary);
    of.output = next(most.boundary);
    of.output_gradient = next(most.boundary);
    of.input_gradient = next(most.boundary);
    fill_with_random(of.keys_values, most.keys_values, 1, element());
    fill_with_random(of.input, most.boundary, 1, element());
    fill_with_random(of.output_gradient, most.boundary, 1e-3, element());
  }
}

void PartBench::fill_with_random(std::byte* data, std::int64_t bytes, double scale, Element element) {
  std::minstd_rand random(static_cast<std::minstd_rand::result_type>(spec_.seed));
  const auto next = [&] { return scale * (2 * std::generate_canonical<double, 30>(random) - 1); };
  if (device_ != nullptr) {
    std::vector<std::byte> host(to_size(bytes));
    if (element == Element::float32) {
      std::generate_n(reinterpret_cast<float*>(host.data()), bytes / 4, [&] { return static_cast<float>(next()); });
    } else {
      std::generate_n(reinterpret_cast<std::uint16_t*>(host.data()), bytes / 2,
                      [&] { return bits_of(static_cast<float>(next()), element); });
    }
    device_->copy(data, host.data(), bytes, *stream_);
    device_->synchronize(*stream_);
  } else if (spec_.precision == Precision::float64) {
    auto* const to = reinterpret_cast<double*>(data);
    std::generate_n(to, bytes / 8, next);
  } else {
    auto* const to = reinterpret_cast<float*>(data);
    std::generate_n(to, bytes / 4, [&] { return static_cast<float>(next()); });
  }
}

// On a device the initial weights are copied through the gradient buffer, as in a run.
void PartBench::fill_weights(Part& part) {
  if (device_ == nullptr) {
    part.stage->initialise(part.weights, spec_.seed);
    return;
  }
  const StageMemory memory = part.stage->memory();
  std::vector<std::byte> host(to_size(memory.gradients));
  part.stage->initialise(host.data(), spec_.seed);
  device_->copy(part.gradients, host.data(), memory.gradients, *stream_);
  part.stage->set_weights(part.gradients, part.weights, part.optimizer_state, *stream_);
  device_->zero(part.gradients, memory.gradients, *stream_);
  device_->synchronize(*stream_);
}

std::int64_t PartBench::call(OpKind kind, const Part& part, const ProfileCell& cell, Buffers& buffers,
                             TensorGroup* tensor, StreamGroup* stream_group) {
  const Stage& stage = stage_of(part, cell);
  SliceCall call;
  call.shape = slice_shape_of(spec_, cell.tokens, cell.context);
  call.tensor = tensor;
  call.weights = part.weights;
  call.gradients = part.gradients;
  call.scratch = scratch_;
  call.to_input_gradient = buffers.to_input_gradient;
  call.to_weight_gradient = buffers.to_weight_gradient;
  call.output_gradients = buffers.output_gradients;
  call.keys_values = buffers.keys_values;
  call.keys_values_gradient = buffers.keys_values_gradient;
  call.sequence_tokens = key_tokens(cell);
  call.input = buffers.input;
  call.output = buffers.output;
  call.output_gradient = buffers.output_gradient;
  call.input_gradient = buffers.input_gradient;
  call.tokens = tokens_.data();
  call.targets = targets_.data();
  if (device_ != nullptr) {
    const std::int64_t bytes = aligned(static_cast<std::int64_t>(tokens_.size() * sizeof(std::int32_t)));
    call.tokens = reinterpret_cast<const std::int32_t*>(small_);
    call.targets = reinterpret_cast<const std::int32_t*>(small_ + bytes);
    call.loss_on_device = reinterpret_cast<float*>(small_ + 2 * bytes);
    call.tables = tables_;
    call.stream = stream_.get();
    call.device = device_;
    call.stream_group = stream_group;
  }
  call.loss_scale = 1 / static_cast<double>(spec_.sequences * spec_.sequence_length);

  // As the executor does before the backward of a sequence's last slice.
  if ((kind == OpKind::B || kind == OpKind::I) && cell.context + cell.tokens == spec_.sequence_length) {
    zero(buffers.keys_values_gradient,
         stage.slice_memory(slice_shape_of(spec_, key_tokens(cell), 0)).keys_values_gradient);
  }
  switch (kind) {
    case OpKind::F: stage.forward(call); break;
    case OpKind::I: stage.input_gradient(call); break;
    case OpKind::W: stage.weight_gradient(call); break;
    case OpKind::B: stage.backward(call); break;
  }
  return call.recompute_ns;
}

std::array<PartBench::OpTime, 5> PartBench::run(PartKind part, const ProfileCell& cell, TensorGroup* tensor,
                                                StreamGroup* stream_group) {
  constexpr std::array kKinds = {OpKind::F, OpKind::F, OpKind::B, OpKind::I, OpKind::W};
  constexpr std::array kOfSecond = {false, true, false, true, true};
  const Part& of = parts_[static_cast<std::size_t>(part)];
  std::array<OpTime, 5> times;
  // In a run the previous op belongs to the same part, so that its weights are in the cache, and the host is ahead of
  // the device, as it is here during the first pass. The second pass counts.
  for (int pass = 0; pass < 2; ++pass) {
    Buffers& first = buffers_[calls_ % kMicrobatches];
    Buffers& second = buffers_[(calls_ + 1) % kMicrobatches];
    calls_ += 2;
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
      mark(i);
      times[i] = {.kind = kKinds[i],
                  .recompute_ns = call(kKinds[i], of, cell, kOfSecond[i] ? second : first, tensor, stream_group)};
    }
    mark(kKinds.size());
  }
  for (std::size_t i = kKinds.size(); i-- > 0;) times[i].nanoseconds = between(i, i + 1) - times[i].recompute_ns;
  return times;
}

std::int64_t PartBench::run_pass(PartKind part, PassKind pass) {
  const Part& of = parts_[static_cast<std::size_t>(part)];
  mark(0);
  if (pass == PassKind::norm) {
    if (device_ != nullptr) {
      of.stage->add_squared_norm(of.gradients, reinterpret_cast<float*>(scratch_), *stream_);
    } else if (of.stage->squared_norm(of.gradients) < 0) {  // used, so that it is not optimized away
      return 0;
    }
  } else {
    // With so small a learning rate the weights stay random.
    const OptimizerStep step{.learning_rate = 1e-9, .number = ++steps_, .stream = stream_.get()};
    of.stage->step(of.weights, of.weights, of.optimizer_state, of.gradients, step);
    zero(of.gradients, of.stage->memory().gradients);
  }
  mark(1);
  return between(0, 1);
}

std::int64_t PartBench::parameters(PartKind part) const {
  const Stage& stage = *parts_[static_cast<std::size_t>(part)].stage;
  return stage.memory().weights / stage.element_bytes();
}

std::int64_t PartBench::boundary_bytes(std::int64_t tokens) const {
  return parts_[static_cast<std::size_t>(PartKind::layer)]
      .stage->slice_memory(slice_shape_of(spec_, tokens, 0))
      .boundary;
}

}  // namespace sluice::exec

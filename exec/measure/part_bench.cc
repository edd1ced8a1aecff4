#include "exec/measure/part_bench.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <new>
#include <random>
#include <span>
#include <utility>

#include "exec/plan/packing.h"
#include "exec/run/op_outcome.h"
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

// An op and its parts in the order in which Stage runs them.
std::vector<StagePart> parts_in_order(OpKind kind, int layers) {
  using enum LayerPart;
  std::vector<StagePart> parts;
  for (int i = 0; i < layers; ++i) {
    const bool forward = kind == OpKind::F;
    const int layer = forward ? i : layers - 1 - i;
    const auto add = [&](PartPass pass, std::initializer_list<LayerPart> order) {
      for (const LayerPart part : order) parts.push_back({pass, part, layer});
    };
    if (forward) {
      add(PartPass::forward, {attention, dispatch, experts, combine});
      continue;
    }
    add(PartPass::input_gradient, {combine, experts, dispatch, attention});
    if (kind == OpKind::B) add(PartPass::weight_gradient, {attention, experts});
  }
  return parts;
}

constexpr std::array kKindOfPass = {OpKind::F, OpKind::I, OpKind::W};  // by PartPass

}  // namespace

std::vector<PartKind> model_parts(const Transformer& model) {
  std::vector<PartKind> parts = {PartKind::embedding};
  if (model.dense_layers() > 0) parts.push_back(PartKind::layer);
  parts.push_back(PartKind::head);
  if (model.has_experts()) parts.push_back(PartKind::experts);
  return parts;
}

int PartBench::layers_of(const PartBenchSpec& spec, PartKind part) {
  const Transformer& model = spec.model;
  if (part == PartKind::experts) return std::min(spec.layers, model.layers - model.dense_layers());
  if (part != PartKind::layer) return 1;
  return model.has_experts() ? std::min(spec.layers, model.dense_layers()) : spec.layers;
}

std::unique_ptr<Stage> PartBench::make_stage_of(const PartBenchSpec& spec, const StageContents& contents,
                                                int first_layer, bool sliced) {
  StageSpec of{.model = spec.model,
               .contents = contents,
               .first_layer = first_layer,
               .tensor_parallel = spec.tensor_parallel,
               .tensor_rank = spec.tensor_rank,
               .data_rank = spec.data_rank,
               .expert_parallel = spec.expert_parallel,
               .recompute = spec.recompute,
               .sliced = sliced,
               .attention = spec.attention};
  of.model.layers = std::max(spec.model.layers, spec.layers);
  return spec.kernels != nullptr ? spec.kernels->make_stage(of, spec.precision) : make_cpu_stage(of, spec.precision);
}

PartBench::Parts PartBench::make_parts(const PartBenchSpec& spec) {
  Parts parts;
  const bool slices =
      std::any_of(spec.cells.begin(), spec.cells.end(), [&](const ProfileCell& cell) { return !is_whole(spec, cell); });
  for (const PartKind kind : model_parts(spec.model)) {
    StageContents contents;
    const bool experts = kind == PartKind::experts;
    const bool has_layers = experts || kind == PartKind::layer;
    contents.embedding = kind == PartKind::embedding;
    contents.layers = has_layers ? layers_of(spec, kind) : 0;
    contents.expert_layers = experts ? contents.layers : 0;
    contents.head = kind == PartKind::head;
    contents.tied_copy = contents.head && spec.model.tied_embeddings;
    Part& part = parts[slot_of(kind)];
    const int first_layer = experts ? spec.first_expert_layer : 0;
    part.stage = make_stage_of(spec, contents, first_layer, false);
    if (has_layers && slices) part.sliced = make_stage_of(spec, contents, first_layer, true);
  }
  return parts;
}

const Stage& PartBench::stage_of(const Part& part, const ProfileCell& cell) const {
  return part.sliced && !is_whole(spec_, cell) ? *part.sliced : *part.stage;
}

PartBench::Sizes PartBench::sizes_of(const PartBenchSpec& spec, const Parts& parts) {
  Sizes sizes;
  const auto raise = [](std::int64_t& most, std::int64_t bytes) { most = std::max(most, bytes); };
  for (const Part& part : parts) {
    if (part.stage == nullptr) continue;
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

std::int64_t PartBench::allocated_bytes(const Parts& parts, const Sizes& sizes) {
  std::int64_t bytes = aligned(sizes.scratch);
  for (const Part& part : parts) {
    if (part.stage == nullptr) continue;
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
  // Those of an op of layers with experts: at its ends, and between up to six parts per layer.
  const std::size_t most_marks = to_size(spec_.model.has_experts() ? 6 * std::max(spec_.layers, 1) + 3 : 6);
  marks_.resize(most_marks);
  events_.resize(device_ != nullptr ? most_marks : 0);
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
  load_tables();
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
  for (const Buffers& buffers : buffers_) {
    if (buffers.on_host != nullptr) device_->release_host(buffers.on_host);
  }
}

void PartBench::load_tables() {
  if (device_ == nullptr) return;
  const auto bytes = static_cast<std::int64_t>(tokens_.size() * sizeof(std::int32_t));
  const std::int64_t before_tables = 2 * aligned(bytes) + aligned(std::int64_t{sizeof(float)});
  std::int64_t tables = 0;
  for (const Part& part : parts_) {
    if (part.stage != nullptr) tables = std::max(tables, part.stage->table_bytes(spec_.sequence_length));
  }
  small_ = device_->allocate(before_tables + tables);
  tables_ = small_ + before_tables;
  for (const Part& part : parts_) {
    if (part.stage != nullptr) part.stage->fill_tables(tables_, spec_.sequence_length, *stream_);
  }
  const std::int64_t host_bytes = spec_.model.has_experts() ? part_of(PartKind::experts).stage->slice_host_bytes() : 0;
  for (Buffers& buffers : buffers_) {
    if (host_bytes > 0) buffers.on_host = device_->allocate_host(host_bytes);
  }
}

void PartBench::load_tokens() {
  if (device_ == nullptr) return;
  const auto bytes = static_cast<std::int64_t>(tokens_.size() * sizeof(std::int32_t));
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
    if (part.stage == nullptr) continue;
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

// Repeats a block of numbers, whose length divides no dimension: drawing all of them takes longer than measuring.
void PartBench::fill_with_random(std::byte* data, std::int64_t bytes, double scale, Element element) {
  constexpr std::int64_t kMostNumbers = 65521;
  std::minstd_rand random(static_cast<std::minstd_rand::result_type>(spec_.seed));
  const auto next = [&] { return scale * (2 * std::generate_canonical<double, 30>(random) - 1); };
  const auto block_of = [&]<class T>(T, const auto& convert) {
    std::vector<T> numbers(to_size(std::min(bytes / static_cast<std::int64_t>(sizeof(T)), kMostNumbers)));
    std::generate(numbers.begin(), numbers.end(), [&] { return convert(next()); });
    const auto all = std::as_bytes(std::span(numbers));
    return std::vector<std::byte>(all.begin(), all.end());
  };
  std::vector<std::byte> block;
  if (device_ == nullptr && spec_.precision == Precision::float64) {
    block = block_of(double{}, [](double value) { return value; });
  } else if (device_ == nullptr || element == Element::float32) {
    block = block_of(float{}, [](double value) { return static_cast<float>(value); });
  } else {
    block = block_of(std::uint16_t{}, [&](double value) { return bits_of(static_cast<float>(value), element); });
  }
  const auto copy = [&](std::byte* to, const std::byte* from, std::int64_t count) {
    if (device_ != nullptr) {
      device_->copy(to, from, count, *stream_);
    } else {
      std::memcpy(to, from, to_size(count));
    }
  };
  std::int64_t filled = std::ssize(block);
  if (filled > 0) copy(data, block.data(), filled);
  for (std::int64_t more = 0; filled > 0 && filled < bytes; filled += more) {
    more = std::min(filled, bytes - filled);
    copy(data + filled, data, more);
  }
  if (device_ != nullptr) device_->synchronize(*stream_);
}

// On a device the initial weights are drawn in the gradient buffer, as in a run.
void PartBench::fill_weights(Part& part) {
  if (device_ == nullptr) {
    part.stage->initialise(part.weights, spec_.seed);
    return;
  }
  const StageMemory memory = part.stage->memory();
  device_->zero(part.gradients, memory.gradients, *stream_);
  part.stage->draw_weights(part.gradients, spec_.seed, *stream_);
  part.stage->set_weights(part.gradients, part.weights, part.optimizer_state, *stream_);
  device_->zero(part.gradients, memory.gradients, *stream_);
  device_->synchronize(*stream_);
}

SliceCall PartBench::call_of(OpKind kind, const Part& part, const ProfileCell& cell, Buffers& buffers,
                             const OpGroups& groups) {
  const Stage& stage = stage_of(part, cell);
  SliceCall call;
  call.shape = slice_shape_of(spec_, cell.tokens, cell.context);
  call.tensor = groups.tensor;
  call.experts = groups.experts;
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
    call.stream_group = groups.stream_tensor;
    call.stream_experts = groups.stream_experts;
    call.on_host = buffers.on_host;
  }
  call.loss_scale = 1 / static_cast<double>(spec_.sequences * spec_.sequence_length);

  // As the executor does before the backward of a sequence's last slice.
  if ((kind == OpKind::B || kind == OpKind::I) && cell.context + cell.tokens == spec_.sequence_length) {
    zero(buffers.keys_values_gradient,
         stage.slice_memory(slice_shape_of(spec_, key_tokens(cell), 0)).keys_values_gradient);
  }
  return call;
}

std::int64_t PartBench::call(OpKind kind, const Part& part, const ProfileCell& cell, Buffers& buffers,
                             const OpGroups& groups) {
  SliceCall call = call_of(kind, part, cell, buffers, groups);
  compute(stage_of(part, cell), kind, call);
  return call.recompute_ns;
}

void PartBench::load_microbatch(int microbatch, std::int64_t tokens) {
  const std::size_t count = to_size(spec_.sequences * tokens);
  if (spec_.tokens != nullptr) {
    spec_.tokens->fill(0, spec_.first_sequence + std::int64_t{microbatch % spec_.microbatches} * spec_.sequences,
                       spec_.sequences, 0, tokens, {tokens_.data(), count}, {targets_.data(), count});
  }
  load_tokens();
}

void PartBench::copy_output_to_input(const Stage& stage, const ProfileCell& cell, Buffers& buffers) {
  const std::int64_t bytes = stage.slice_memory(slice_shape_of(spec_, cell.tokens, 0)).boundary;
  if (device_ == nullptr) {
    std::memcpy(buffers.input, buffers.output, to_size(bytes));
  } else {
    device_->copy(buffers.input, buffers.output, bytes, *stream_);
  }
}

// The layers before the measured ones run one by one in the memory of the latter, whose weights are then restored.
void PartBench::load_inputs(const OpGroups& groups) {
  ProfileCell cell;
  for (const ProfileCell& each : spec_.cells) cell.tokens = std::max(cell.tokens, each.tokens);
  const auto forward = [&](const Part& part, int microbatch) {
    Buffers& buffers = buffers_[to_size(microbatch)];
    call(OpKind::F, part, cell, buffers, groups);
    copy_output_to_input(*part.stage, cell, buffers);
  };
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    load_microbatch(microbatch, cell.tokens);
    forward(part_of(PartKind::embedding), microbatch);
  }
  for (int layer = 0; layer < spec_.first_expert_layer; ++layer) {
    const bool experts = spec_.model.layer_kind(layer) == LayerKind::experts;
    const Part& measured = part_of(experts ? PartKind::experts : PartKind::layer);
    Part part{.stage = make_stage_of(spec_, {.layers = 1, .expert_layers = experts ? 1 : 0}, layer, false),
              .sliced = nullptr,
              .weights = measured.weights,
              .gradients = measured.gradients,
              .optimizer_state = measured.optimizer_state};
    fill_weights(part);
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) forward(part, microbatch);
  }
  if (device_ != nullptr) device_->synchronize(*stream_);
  for (Part& part : parts_) {
    if (part.stage != nullptr && part.stage->spec().contents.layers > 0) fill_weights(part);
  }
}

// Adds the times of an op to `times`.
void PartBench::time_in_parts(OpKind kind, const ProfileCell& cell, Buffers& buffers, const OpGroups& groups,
                              std::vector<ExpertPartTime>& times) {
  const Part& part = part_of(PartKind::experts);
  const Stage& stage = stage_of(part, cell);
  const bool forward = kind == OpKind::F;
  const std::vector<StagePart> order = parts_in_order(kind, layers_of(PartKind::experts));
  mark(0);
  SliceCall call = call_of(kind, part, cell, buffers, groups);
  if (kind == OpKind::B) call.output_gradients = nullptr;
  stage.begin_parts(call, forward);
  for (std::size_t i = 0; i < order.size(); ++i) {
    mark(i + 1);
    stage.run_part(call, order[i]);
  }
  mark(order.size() + 1);
  stage.end_parts(call, forward);
  mark(order.size() + 2);
  const std::size_t first = times.size();
  for (std::size_t i = 0; i < order.size(); ++i) {
    times.push_back({.part = order[i].part,
                     .kind = kKindOfPass.at(static_cast<std::size_t>(order[i].pass)),
                     .nanoseconds = between(i + 1, i + 2)});
  }
  const auto is_attention = [&](const ExpertPartTime& time) {
    return time.part == LayerPart::attention && time.kind != OpKind::W;
  };
  const auto begin = times.begin() + static_cast<std::ptrdiff_t>(first);
  std::find_if(begin, times.end(), is_attention)->nanoseconds += between(0, 1);
  std::find_if(times.rbegin(), times.rend(), is_attention)->nanoseconds += between(order.size() + 1, order.size() + 2);
}

std::vector<ExpertPartTime> PartBench::run_expert_layers(const ProfileCell& cell, const OpGroups& groups) {
  std::vector<ExpertPartTime> times;
  for (int pass = 0; pass < 2; ++pass) {
    Buffers& first = buffers_[calls_ % kMicrobatches];
    Buffers& second = buffers_[(calls_ + 1) % kMicrobatches];
    calls_ += 2;
    times.clear();
    time_in_parts(OpKind::F, cell, first, groups, times);
    time_in_parts(OpKind::F, cell, second, groups, times);
    time_in_parts(OpKind::B, cell, first, groups, times);
    time_in_parts(OpKind::I, cell, second, groups, times);
    call(OpKind::W, part_of(PartKind::experts), cell, second, groups);
  }
  return times;
}

std::array<PartBench::OpTime, 5> PartBench::run(PartKind part, const ProfileCell& cell, const OpGroups& groups) {
  constexpr std::array kKinds = {OpKind::F, OpKind::F, OpKind::B, OpKind::I, OpKind::W};
  constexpr std::array kOfSecond = {false, true, false, true, true};
  const Part& of = part_of(part);
  std::array<OpTime, 5> times;
  // In a run the previous op belongs to the same part, so that its weights are in the cache, and the host is ahead of
  // the device, as it is here during the first pass. The second pass counts.
  for (int pass = 0; pass < 2; ++pass) {
    Buffers& first = buffers_[calls_ % kMicrobatches];
    Buffers& second = buffers_[(calls_ + 1) % kMicrobatches];
    calls_ += 2;
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
      mark(i);
      times[i] = {.kind = kKinds[i], .recompute_ns = call(kKinds[i], of, cell, kOfSecond[i] ? second : first, groups)};
    }
    mark(kKinds.size());
  }
  for (std::size_t i = kKinds.size(); i-- > 0;) times[i].nanoseconds = between(i, i + 1) - times[i].recompute_ns;
  // A device's events are around the whole op, whose recomputation launches what the forward launches.
  for (OpTime& time : times) {
    if (device_ == nullptr || !spec_.recompute || part != PartKind::layer) break;
    if (time.kind != OpKind::B && time.kind != OpKind::I) continue;
    time.recompute_ns = std::min(times[0].nanoseconds, time.nanoseconds - 1);
    time.nanoseconds -= time.recompute_ns;
  }
  return times;
}

std::int64_t PartBench::run_pass(PartKind part, PassKind pass) {
  const Part& of = part_of(part);
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
  const Stage& stage = *part_of(part).stage;
  return stage.memory().weights / stage.element_bytes();
}

std::int64_t PartBench::boundary_bytes(std::int64_t tokens) const {
  return part_of(PartKind::head).stage->slice_memory(slice_shape_of(spec_, tokens, 0)).boundary;
}

}  // namespace sluice::exec

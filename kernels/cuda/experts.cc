#include "kernels/cuda/experts.h"

#include <vector>

namespace sluice::kernels::cuda {
namespace {

std::int64_t most_own_rows(const RankSizes& sizes, std::int64_t rows) {
  return (rows + sizes.tensor_parallel - 1) / sizes.tensor_parallel;
}
std::int64_t most_rows(const RankSizes& sizes, std::int64_t rows) {
  return sizes.experts.most_rows(rows, sizes.tensor_parallel);
}
std::byte* bytes_at(void* data, std::int64_t offset) { return static_cast<std::byte*>(data) + offset; }

}  // namespace

void ExpertActivations::carve(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows) {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t own = most_own_rows(sizes, rows);
  scores = carver.take<float>(own * experts.count);
  choices = carver.take<std::int32_t>(own * experts.per_token);
  places = carver.take<std::int32_t>(own * experts.per_token);
  pre = carver.take<Half>(most_rows(sizes, rows) * experts.up_width);
  shared_pre = carver.take<Half>(rows * experts.shared_up_width);
  shared_gate = carver.take<float>(experts.shared_ffn > 0 ? rows : 0);
}

void ExpertInputs::carve(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows) {
  const std::int64_t most = most_rows(sizes, rows);
  up = carver.take<Half>(most * RoutedRow(sizes.hidden).stride);
  down = carver.take<Half>(most * sizes.experts.ffn);
  shared_down = carver.take<Half>(rows * sizes.experts.shared_ffn);
}

void ExpertGradients::carve(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows) {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t most = most_rows(sizes, rows);
  logits = carver.take<Half>(rows * experts.count);
  up = carver.take<Half>(most * experts.up_width);
  down = carver.take<Half>(most * sizes.hidden);
  shared_up = carver.take<Half>(rows * experts.shared_up_width);
  shared_gate = carver.take<Half>(experts.shared_ffn > 0 ? rows : 0);
}

ExpertScratch::ExpertScratch(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows) {
  const std::int64_t stride = RoutedRow(sizes.hidden).stride;
  own = carver.take<Half>(most_own_rows(sizes, rows) * sizes.experts.per_token * stride);
  outputs = carver.take<Half>(most_rows(sizes, rows) * stride);
  counts = carver.take<std::int32_t>(2 * sizes.experts.count);
  gate_gradients = carver.take<float>(rows);
}

void ExpertMlp::route(const Half* input, const ExpertActivations& kept, const ExpertScratch& scratch) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t own = end_row() - first_row();
  linear.forward_to_float(input + first_row() * sizes.hidden, weights + at.router, own, experts.count, sizes.hidden,
                          kept.scores);
  choose_experts(linear.stream, own, experts.count, experts.per_token, kept.scores, kept.choices);
  place_choices(linear.stream, own * experts.per_token, experts.count, kept.choices, kept.places, scratch.counts);
}

// Exchanges the numbers of rows and enqueues their copy to the host.
void ExpertMlp::read_counts(const ExpertScratch& scratch) const {
  const ExpertSizes& experts = sizes.experts;
  const auto bytes = experts.local * static_cast<std::int64_t>(sizeof(std::int32_t));
  const int me = spec.expert_rank();
  std::int32_t* const into = scratch.counts + experts.count;
  linear.device.copy(bytes_at(into, me * bytes), bytes_at(scratch.counts, me * bytes), bytes, linear.stream);
  if (experts.ranks > 1) {
    std::vector<ExchangeBlock> sends;
    std::vector<ExchangeBlock> receives;
    for (int rank = 0; rank < experts.ranks; ++rank) {
      if (rank == me) continue;
      sends.push_back({rank, bytes_at(scratch.counts, rank * bytes), bytes});
      receives.push_back({rank, bytes_at(into, rank * bytes), bytes});
    }
    group->exchange(sends, receives, linear.stream);
  }
  linear.device.copy(sent, scratch.counts, expert_host_bytes(experts), linear.stream);
}

void ExpertMlp::dispatch(const Half* input, const ExpertActivations& kept, const ExpertInputs& inputs,
                         const ExpertScratch& scratch) const {
  const RoutedRow row(sizes.hidden);
  read_counts(scratch);
  send_rows(linear.stream, routed(kept), input, sizes.hidden, true, row.stride, scratch.own);
  if (wait_for != nullptr) {
    (*wait_for)(linear.stream);
  } else {
    linear.device.synchronize(linear.stream);
  }
  exchange(row.stride, scratch.own, inputs.up, false);
}

// The rows of an expert are ordered by the rank that sends them. See kernels/cpu/experts.cc.
void ExpertMlp::exchange(std::int64_t width, Half* own, Half* of_experts, bool back) const {
  const ExpertSizes& experts = sizes.experts;
  const int me = spec.expert_rank();
  const std::int64_t row_bytes = width * static_cast<std::int64_t>(sizeof(Half));
  std::vector<ExchangeBlock> of_own;
  std::vector<ExchangeBlock> of_received;
  std::byte* at_home = nullptr;
  std::int64_t offset = 0;
  for (std::int64_t e = 0; e < experts.count; ++e) {
    const int rank = static_cast<int>(e / experts.local);
    const std::int64_t bytes = sent[e] * row_bytes;
    if (e == experts.first) at_home = bytes_at(own, offset);
    if (rank != me && bytes > 0) of_own.push_back({rank, bytes_at(own, offset), bytes});
    offset += bytes;
  }
  offset = 0;
  for (std::int64_t i = 0; i < experts.local; ++i) {
    for (int rank = 0; rank < experts.ranks; ++rank) {
      const std::int64_t bytes = received()[rank * experts.local + i] * row_bytes;
      if (bytes == 0) continue;
      std::byte* const block = bytes_at(of_experts, offset);
      offset += bytes;
      if (rank != me) {
        of_received.push_back({rank, block, bytes});
        continue;
      }
      linear.device.copy(back ? at_home : block, back ? block : at_home, bytes, linear.stream);
      at_home += bytes;
    }
  }
  if (experts.ranks == 1) return;
  back ? group->exchange(of_received, of_own, linear.stream) : group->exchange(of_own, of_received, linear.stream);
}

std::int64_t ExpertMlp::received_rows() const {
  std::int64_t all = 0;
  for (std::int64_t i = 0; i < sizes.experts.count; ++i) all += received()[i];
  return all;
}

template <typename Visit>
void ExpertMlp::for_each_expert(const Visit& visit) const {
  const ExpertSizes& experts = sizes.experts;
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < experts.local; ++i) {
    std::int64_t count = 0;
    for (std::int64_t rank = 0; rank < experts.ranks; ++rank) count += received()[rank * experts.local + i];
    if (count > 0) visit(i, first, count);
    first += count;
  }
}

// Those of the rows of inputs.up; their gradients have the same places in scratch.outputs.
RowFactors ExpertMlp::probabilities(const ExpertInputs& inputs, const ExpertScratch& scratch) const {
  const RoutedRow row(sizes.hidden);
  constexpr std::int64_t kHalvesPerFloat = 2;
  return {.at = reinterpret_cast<const float*>(inputs.up + row.tail),
          .stride = row.stride / kHalvesPerFloat,
          .gradients = reinterpret_cast<float*>(scratch.outputs + row.tail)};
}

void ExpertMlp::shared_forward(const Half* input, const ExpertActivations& kept, const ExpertInputs& inputs) const {
  const std::int64_t h = sizes.hidden;
  const ExpertSizes& experts = sizes.experts;
  linear.forward(input, weights + at.shared_up, rows, experts.shared_up_width, h, kept.shared_pre);
  RowFactors gate;
  if (at.shared_gate >= 0) {
    linear.forward_to_float(input, weights + at.shared_gate, rows, 1, h, kept.shared_gate);
    apply_sigmoid(linear.stream, rows, kept.shared_gate);
    gate.at = kept.shared_gate;
  }
  activate(linear.stream, linear.element, spec.model.gated, kept.shared_pre, nullptr, rows, experts.shared_ffn,
           inputs.shared_down, gate);
}

void ExpertMlp::run_experts(const Half* input, const ExpertActivations& kept, const ExpertInputs& inputs,
                            const ExpertScratch& scratch, Half* out) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  const std::int64_t f = experts.ffn;
  const std::int64_t stride = RoutedRow(h).stride;
  for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
    linear.forward(inputs.up + first * stride, weights + at.expert_up + i * at.expert_stride, count, experts.up_width,
                   h, kept.pre + first * experts.up_width, stride);
  });
  if (const std::int64_t all = received_rows(); all > 0) {
    activate(linear.stream, linear.element, spec.model.gated, kept.pre, nullptr, all, f, inputs.down,
             probabilities(inputs, scratch));
  }
  if (experts.shared_ffn > 0) shared_forward(input, kept, inputs);
  if (out == nullptr) return;
  for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
    linear.forward(inputs.down + first * f, weights + at.expert_down + i * at.expert_stride, count, h, f,
                   scratch.outputs + first * h);
  });
  if (experts.shared_ffn == 0) return;
  linear.forward(inputs.shared_down, weights + at.shared_down, rows, h, experts.shared_ffn, out);
}

void ExpertMlp::add_results(const ExpertActivations& kept, const ExpertScratch& scratch, Half* out) const {
  const std::int64_t h = sizes.hidden;
  add_routed_rows(linear.stream, linear.element, routed(kept), scratch.own, h, rows, h, sizes.experts.shared_ffn > 0,
                  nullptr, nullptr, out);
  sum_over_group(out, rows * h, linear.element);
}

void ExpertMlp::combine_gradient(const Half* output_gradient, const ExpertActivations& kept,
                                 const ExpertGradients& gradients, const ExpertScratch& scratch) const {
  send_rows(linear.stream, routed(kept), output_gradient, sizes.hidden, false, sizes.hidden, scratch.own);
  exchange(sizes.hidden, scratch.own, gradients.down, false);
}

// Writes `input_gradient`, of which other tensor-parallel ranks have other parts.
void ExpertMlp::shared_gradient(const Half* output_gradient, const ExpertActivations& kept,
                                const ExpertGradients& gradients, const ExpertScratch& scratch,
                                Half* input_gradient) const {
  const std::int64_t h = sizes.hidden;
  const std::int64_t s = sizes.experts.shared_ffn;
  const std::int64_t width = sizes.experts.shared_up_width;
  linear.input_gradient(output_gradient, weights + at.shared_down, rows, h, s, gradients.shared_up + (width - s),
                        width);
  RowFactors gate;
  if (at.shared_gate >= 0) gate = {.at = kept.shared_gate, .gradients = scratch.gate_gradients};
  activate_gradient(linear.stream, linear.element, spec.model.gated, kept.shared_pre, nullptr, rows, s,
                    gradients.shared_up, gate);
  if (at.shared_gate >= 0) {
    sum_over_group(scratch.gate_gradients, rows, Element::float32);
    sigmoid_gradient(linear.stream, linear.element, rows, kept.shared_gate, scratch.gate_gradients,
                     gradients.shared_gate);
  }
  linear.input_gradient(gradients.shared_up, weights + at.shared_up, rows, width, h, input_gradient, h);
}

void ExpertMlp::experts_gradient(const Half* output_gradient, const ExpertActivations& kept, const ExpertInputs& inputs,
                                 const ExpertGradients& gradients, const ExpertScratch& scratch,
                                 Half* input_gradient) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  const std::int64_t f = experts.ffn;
  const std::int64_t width = experts.up_width;
  const std::int64_t stride = RoutedRow(h).stride;
  for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
    linear.input_gradient(gradients.down + first * h, weights + at.expert_down + i * at.expert_stride, count, h, f,
                          gradients.up + first * width + (width - f), width);
  });
  if (const std::int64_t all = received_rows(); all > 0) {
    activate_gradient(linear.stream, linear.element, spec.model.gated, kept.pre, nullptr, all, f, gradients.up,
                      probabilities(inputs, scratch));
  }
  for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
    linear.input_gradient(gradients.up + first * width, weights + at.expert_up + i * at.expert_stride, count, width, h,
                          scratch.outputs + first * stride, stride);
  });
  if (experts.shared_ffn > 0) shared_gradient(output_gradient, kept, gradients, scratch, input_gradient);
}

void ExpertMlp::add_input_gradients(const ExpertActivations& kept, const ExpertGradients& gradients,
                                    const ExpertScratch& scratch, Half* input_gradient) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  const std::int64_t first = first_row();
  const RoutedRow row(h);
  logit_gradients(linear.stream, linear.element, routed(kept), scratch.own, row, rows, gradients.logits);
  sum_over_group(gradients.logits, rows * experts.count, linear.element);
  add_routed_rows(linear.stream, linear.element, routed(kept), scratch.own, row.stride, rows, h, experts.shared_ffn > 0,
                  gradients.shared_gate, at.shared_gate < 0 ? nullptr : weights + at.shared_gate, input_gradient);
  linear.input_gradient(gradients.logits + first * experts.count, weights + at.router, end_row() - first, experts.count,
                        h, input_gradient + first * h, h, true);
  sum_over_group(input_gradient, rows * h, linear.element);
}

void ExpertMlp::experts_weight_gradient(const Half* input, const Half* output_gradient, const ExpertInputs& inputs,
                                        const ExpertGradients& gradients, float* weight_gradients) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  const std::int64_t f = experts.ffn;
  const std::int64_t width = experts.up_width;
  const std::int64_t stride = RoutedRow(h).stride;
  for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
    const std::int64_t expert = i * at.expert_stride;
    linear.weight_gradient(gradients.up + first * width, inputs.up + first * stride, count, width, h,
                           weight_gradients + at.expert_up + expert, stride);
    linear.weight_gradient(gradients.down + first * h, inputs.down + first * f, count, h, f,
                           weight_gradients + at.expert_down + expert);
  });
  if (experts.shared_ffn == 0) return;
  linear.weight_gradient(gradients.shared_up, input, rows, experts.shared_up_width, h, weight_gradients + at.shared_up);
  linear.weight_gradient(output_gradient, inputs.shared_down, rows, h, experts.shared_ffn,
                         weight_gradients + at.shared_down);
}

void ExpertMlp::router_weight_gradient(const Half* input, const ExpertGradients& gradients,
                                       float* weight_gradients) const {
  const std::int64_t h = sizes.hidden;
  linear.weight_gradient(gradients.logits, input, rows, sizes.experts.count, h, weight_gradients + at.router);
  if (at.shared_gate < 0) return;
  linear.weight_gradient(gradients.shared_gate, input, rows, 1, h, weight_gradients + at.shared_gate);
}

}  // namespace sluice::kernels::cuda

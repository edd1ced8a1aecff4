#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/carver.h"
#include "kernels/row_shapes.h"
#include "kernels/weights.h"

namespace sluice::kernels {

// The MLP of a layer with experts: a router chooses k experts per token; rows are sent to the ranks of their experts
// (dispatch), pass the experts, and are sent back and added (combine). No token is dropped.
//
// Symbols: n rows of the slice, o own rows (the shard of them that this tensor-parallel rank routes), e experts of the
// layer, l experts of this rank, k experts per token, f size of an expert, s size of the shared experts on this rank,
// and R the maximum number of rows that the experts of this rank receive (RankSizes::most_expert_rows). The memory is
// that of R rows, however many arrive, because a run does not allocate. Rows that are sent with their probability have
// the layout of Backend::RoutedRow, of stride w.
//
// The probabilities of the k experts are the softmax of their logits (Megatron-LM's default, and Mixtral's); for k = 1
// the softmax over all logits, because the former is constant. Of equal logits, the lower index is chosen. The input of
// an expert's last matrix is multiplied with the probability, as in Megatron-LM's grouped MLP.
//
// Backend is described in kernels/layer.h. Logits, probabilities and their gradients are Real.

// What lives until the input gradient.
template <class Backend>
struct ExpertActivations {
  using Number = typename Backend::Number;
  using Real = typename Backend::Real;
  Real* scores = nullptr;           // [o, e], the probabilities; 0 for experts that were not chosen, unless k = 1
  std::int32_t* choices = nullptr;  // [o, k], experts
  std::int32_t* places = nullptr;   // [o, k], places among the rows that this rank sends, which are sorted by expert
  Number* pre = nullptr;            // [R, f] or [R, 2f], inputs of the activation function
  Number* shared_pre = nullptr;     // [n, s] or [n, 2s]
  Real* shared_gate = nullptr;      // [n], with a gate of the shared experts

  void carve(Carver& carver, const RankSizes& sizes, std::int64_t rows) {
    const ExpertSizes& experts = sizes.experts;
    scores = carver.take<Real>(sizes.most_own_rows(rows) * experts.count);
    choices = carver.take<std::int32_t>(sizes.most_own_rows(rows) * experts.per_token);
    places = carver.take<std::int32_t>(sizes.most_own_rows(rows) * experts.per_token);
    pre = carver.take<Number>(sizes.most_expert_rows(rows) * experts.up_width);
    shared_pre = carver.take<Number>(rows * experts.shared_up_width);
    shared_gate = carver.take<Real>(experts.shared_ffn > 0 ? rows : 0);
  }
};

// Inputs of matrix multiplications, which live until the weight gradient. The router's and the shared experts' is
// LayerInputs::up.
template <class Backend>
struct ExpertInputs {
  using Number = typename Backend::Number;
  std::int32_t* counts = nullptr;  // [2, e], see ExpertMlp::sent; on a device in SliceCall::on_host
  Number* up = nullptr;            // [R, w], rows sorted by expert, with their probabilities
  Number* down = nullptr;          // [R, f], times the probabilities
  Number* shared_down = nullptr;   // [n, s], times the gate

  void carve(Carver& carver, const RankSizes& sizes, std::int64_t rows) {
    const std::int64_t most = sizes.most_expert_rows(rows);
    if (!Backend::kOnDevice) counts = carver.take<std::int32_t>(2 * sizes.experts.count);
    up = carver.take<Number>(most * typename Backend::RoutedRow(sizes.hidden).stride);
    down = carver.take<Number>(most * sizes.experts.ffn);
    shared_down = carver.take<Number>(rows * sizes.experts.shared_ffn);
  }
};

// Gradients of the outputs of matrix multiplications, which live from the input gradient to the weight gradient.
template <class Backend>
struct ExpertGradients {
  using Number = typename Backend::Number;
  Number* logits = nullptr;       // [n, e]
  Number* up = nullptr;           // [R, f] or [R, 2f]
  Number* down = nullptr;         // [R, h]
  Number* shared_up = nullptr;    // [n, s] or [n, 2s]
  Number* shared_gate = nullptr;  // [n], of the gate's logits

  void carve(Carver& carver, const RankSizes& sizes, std::int64_t rows) {
    const ExpertSizes& experts = sizes.experts;
    const std::int64_t most = sizes.most_expert_rows(rows);
    logits = carver.take<Number>(rows * experts.count);
    up = carver.take<Number>(most * experts.up_width);
    down = carver.take<Number>(most * sizes.hidden);
    shared_up = carver.take<Number>(rows * experts.shared_up_width);
    shared_gate = carver.take<Number>(experts.shared_ffn > 0 ? rows : 0);
  }
};

template <class Backend>
struct ExpertScratch {
  using Number = typename Backend::Number;
  Number* own = nullptr;           // [o k, w], rows that are sent or came back
  Number* outputs = nullptr;       // [R, w], of the experts; in the backward pass gradients of their inputs
  std::int32_t* counts = nullptr;  // [2, e], as ExpertMlp::sent
  typename Backend::Real* gate_gradients = nullptr;  // [n]

  void carve(Carver& carver, const RankSizes& sizes, std::int64_t rows) {
    const std::int64_t stride = typename Backend::RoutedRow(sizes.hidden).stride;
    own = carver.take<Number>(sizes.most_own_rows(rows) * sizes.experts.per_token * stride);
    outputs = carver.take<Number>(sizes.most_expert_rows(rows) * stride);
    counts = carver.take<std::int32_t>(2 * sizes.experts.count);
    gate_gradients = carver.take<typename Backend::Real>(rows);
  }
};

// Bytes of ExpertMlp::sent.
constexpr std::int64_t expert_host_bytes(const ExpertSizes& sizes) {
  return 2 * sizes.count * static_cast<std::int64_t>(sizeof(std::int32_t));
}

template <class Backend>
class ExpertMlp {
  using Number = typename Backend::Number;
  using Real = typename Backend::Real;
  using RoutedRow = typename Backend::RoutedRow;

 public:
  // `sent` is on the host: [e], number of rows sent to each expert; then [ranks, l], number received from each rank for
  // each expert of this one. Written by dispatch, because every matrix multiplication and message needs the numbers
  // (decision 0021).
  ExpertMlp(const Backend& backend, const LayerOffsets& at, const Number* weights,
            const ExpertActivations<Backend>& kept, const ExpertInputs<Backend>& inputs,
            const ExpertScratch<Backend>& scratch, std::int32_t* sent)
      : b_(backend), at_(at), weights_(weights), kept_(kept), inputs_(inputs), scratch_(scratch), sent_(sent) {}

  // Forward: from `input` [n, h] to `out` [n, h], equal on all tensor-parallel ranks, in this order.
  void route(const Number* input) const {
    const std::int64_t own = own_rows();
    b_.linear.forward_to_real(input + first_row() * hidden(), weights_ + at_.router, own, experts().count, hidden(),
                              kept_.scores);
    b_.choose_experts(own, experts().count, experts().per_token, kept_.scores, kept_.choices);
    b_.place_choices(own * experts().per_token, experts().count, kept_.choices, kept_.places, scratch_.counts);
  }
  // Sends rows to their experts, after their numbers: writes `sent` and inputs.up.
  void dispatch(const Number* input) const {
    const RoutedRow row(hidden());
    read_counts();
    b_.send_rows(routed(), input, hidden(), true, row.stride, scratch_.own);
    b_.wait();
    exchange(row.stride, scratch_.own, inputs_.up, false);
  }
  // Runs the experts of this rank, and the shared ones, whose results it writes to `out`. Stops before the last
  // matrices if `out` is null.
  void run_experts(const Number* input, Number* out) const {
    const std::int64_t h = hidden();
    const std::int64_t f = experts().ffn;
    const std::int64_t width = experts().up_width;
    const std::int64_t stride = RoutedRow(h).stride;
    const std::int64_t all = for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
      b_.linear.forward(inputs_.up + first * stride, weights_ + at_.expert_up + i * at_.expert_stride, count, width, h,
                        kept_.pre + first * width, {.inputs_stride = stride});
    });
    if (all > 0) b_.activate(kept_.pre, nullptr, all, f, inputs_.down, probabilities());
    if (experts().shared_ffn > 0) shared_forward(input);
    if (out == nullptr) return;
    for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
      b_.linear.forward(inputs_.down + first * f, weights_ + at_.expert_down + i * at_.expert_stride, count, h, f,
                        scratch_.outputs + first * h);
    });
    if (experts().shared_ffn == 0) return;
    b_.linear.forward(inputs_.shared_down, weights_ + at_.shared_down, b_.rows(), h, experts().shared_ffn, out);
  }
  // Sends the results back, to scratch.own.
  void combine() const { exchange(hidden(), scratch_.own, scratch_.outputs, true); }
  // Adds the results in scratch.own to `out`, over all tensor-parallel ranks.
  void add_results(Number* out) const {
    b_.add_routed_rows(routed(), scratch_.own, hidden(), b_.rows(), hidden(), experts().shared_ffn > 0, nullptr,
                       nullptr, out);
    b_.all_reduce(out, b_.rows() * hidden());
  }

  // Input gradient: from the gradient of `out`, `output_gradient` [n, h], to `gradients` and the gradient of `input`.
  // Sends output gradients to the experts: writes gradients.down.
  void combine_gradient(const Number* output_gradient, const ExpertGradients<Backend>& gradients) const {
    b_.send_rows(routed(), output_gradient, hidden(), false, hidden(), scratch_.own);
    exchange(hidden(), scratch_.own, gradients.down, false);
  }
  // Writes `input_gradient` of the shared experts, of which other tensor-parallel ranks have other parts.
  void experts_gradient(const Number* output_gradient, const ExpertGradients<Backend>& gradients,
                        Number* input_gradient) const {
    const std::int64_t h = hidden();
    const std::int64_t f = experts().ffn;
    const std::int64_t width = experts().up_width;
    const std::int64_t stride = RoutedRow(h).stride;
    const std::int64_t all = for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
      b_.linear.input_gradient(gradients.down + first * h, weights_ + at_.expert_down + i * at_.expert_stride, count, h,
                               f, gradients.up + first * width + (width - f), {.inputs_stride = width});
    });
    if (all > 0) b_.activate_gradient(kept_.pre, nullptr, all, f, gradients.up, probabilities());
    for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
      b_.linear.input_gradient(gradients.up + first * width, weights_ + at_.expert_up + i * at_.expert_stride, count,
                               width, h, scratch_.outputs + first * stride, {.inputs_stride = stride});
    });
    if (experts().shared_ffn > 0) shared_gradient(output_gradient, gradients, input_gradient);
  }
  // Sends the gradients of the experts' inputs back, to scratch.own.
  void dispatch_gradient() const { exchange(RoutedRow(hidden()).stride, scratch_.own, scratch_.outputs, true); }
  // Adds those in scratch.own and that of the router to `input_gradient`, over all tensor-parallel ranks.
  void add_input_gradients(const ExpertGradients<Backend>& gradients, Number* input_gradient) const {
    const std::int64_t h = hidden();
    const std::int64_t n = b_.rows();
    const RoutedRow row(h);
    b_.logit_gradients(routed(), scratch_.own, row, n, gradients.logits);
    b_.all_reduce(gradients.logits, n * experts().count);
    b_.add_routed_rows(routed(), scratch_.own, row.stride, n, h, experts().shared_ffn > 0, gradients.shared_gate,
                       at_.shared_gate < 0 ? nullptr : weights_ + at_.shared_gate, input_gradient);
    b_.linear.input_gradient(gradients.logits + first_row() * experts().count, weights_ + at_.router, own_rows(),
                             experts().count, h, input_gradient + first_row() * h, {.add = true});
    b_.all_reduce(input_gradient, n * h);
  }

  // Accumulate the gradients of matrices: of the routed and the shared experts but not of the gate, and of the router
  // and that gate. Nothing is exchanged.
  void experts_weight_gradient(const Number* input, const Number* output_gradient,
                               const ExpertGradients<Backend>& gradients, Real* weight_gradients) const {
    const std::int64_t h = hidden();
    const std::int64_t f = experts().ffn;
    const std::int64_t width = experts().up_width;
    const std::int64_t stride = RoutedRow(h).stride;
    for_each_expert([&](std::int64_t i, std::int64_t first, std::int64_t count) {
      const std::int64_t expert = i * at_.expert_stride;
      b_.linear.weight_gradient(gradients.up + first * width, inputs_.up + first * stride, count, width, h,
                                weight_gradients + at_.expert_up + expert, {.inputs_stride = stride});
      b_.linear.weight_gradient(gradients.down + first * h, inputs_.down + first * f, count, h, f,
                                weight_gradients + at_.expert_down + expert);
    });
    if (experts().shared_ffn == 0) return;
    b_.linear.weight_gradient(gradients.shared_up, input, b_.rows(), experts().shared_up_width, h,
                              weight_gradients + at_.shared_up);
    b_.linear.weight_gradient(output_gradient, inputs_.shared_down, b_.rows(), h, experts().shared_ffn,
                              weight_gradients + at_.shared_down);
  }
  void router_weight_gradient(const Number* input, const ExpertGradients<Backend>& gradients,
                              Real* weight_gradients) const {
    b_.linear.weight_gradient(gradients.logits, input, b_.rows(), experts().count, hidden(),
                              weight_gradients + at_.router);
    if (at_.shared_gate < 0) return;
    b_.linear.weight_gradient(gradients.shared_gate, input, b_.rows(), 1, hidden(), weight_gradients + at_.shared_gate);
  }

 private:
  const ExpertSizes& experts() const { return b_.sizes.experts; }
  std::int64_t hidden() const { return b_.sizes.hidden; }
  // The shard of the rows that this rank routes.
  std::int64_t first_row() const { return b_.rows() * b_.spec.tensor_rank / b_.spec.tensor_parallel; }
  std::int64_t own_rows() const {
    return b_.rows() * (b_.spec.tensor_rank + 1) / b_.spec.tensor_parallel - first_row();
  }
  RoutedRows<Real> routed() const {
    return {.first = first_row(),
            .rows = own_rows(),
            .k = experts().per_token,
            .experts = experts().count,
            .scores = kept_.scores,
            .choices = kept_.choices,
            .places = kept_.places};
  }
  // Calls visit(expert of this rank, its first row, its number of rows) for those with rows. Returns the number of rows
  // that the experts of this rank have received.
  template <class Visit>
  std::int64_t for_each_expert(const Visit& visit) const {
    std::int64_t first = 0;
    for (std::int64_t i = 0; i < experts().local; ++i) {
      std::int64_t count = 0;
      for (std::int64_t rank = 0; rank < experts().ranks; ++rank) count += received(rank, i);
      if (count > 0) visit(i, first, count);
      first += count;
    }
    return first;
  }
  std::int64_t received(std::int64_t rank, std::int64_t expert) const {
    return sent_[experts().count + rank * experts().local + expert];
  }
  // Those of the rows of inputs.up; their gradients have the same places in scratch.outputs.
  RowFactors<Real> probabilities() const {
    const RoutedRow row(hidden());
    return {.at = reinterpret_cast<const Real*>(inputs_.up + row.tail),
            .stride = row.stride * static_cast<std::int64_t>(sizeof(Number)) / static_cast<std::int64_t>(sizeof(Real)),
            .gradients = reinterpret_cast<Real*>(scratch_.outputs + row.tail)};
  }

  // Exchanges the numbers of rows and copies them to the host.
  void read_counts() const {
    const auto bytes = experts().local * static_cast<std::int64_t>(sizeof(std::int32_t));
    const int me = b_.spec.expert_rank();
    auto* const from = reinterpret_cast<std::byte*>(scratch_.counts);
    auto* const into = reinterpret_cast<std::byte*>(scratch_.counts + experts().count);
    b_.copy(into + me * bytes, from + me * bytes, bytes);
    if (experts().ranks > 1) {
      auto messages = b_.exchange();
      for (int rank = 0; rank < experts().ranks; ++rank) {
        if (rank == me) continue;
        messages.receive(rank, into + rank * bytes, bytes);
        messages.send(rank, from + rank * bytes, bytes);
      }
      messages.finish();
    }
    b_.copy(reinterpret_cast<std::byte*>(sent_), from, expert_host_bytes(experts()));
  }

  // Sends rows of `width` elements from `own` to the experts, or back. The rows of an expert are ordered by the rank
  // that sends them.
  void exchange(std::int64_t width, Number* own, Number* of_experts, bool back) const {
    const int me = b_.spec.expert_rank();
    const std::int64_t row_bytes = width * static_cast<std::int64_t>(sizeof(Number));
    auto messages = b_.exchange();
    const auto post = [&messages](int rank, std::byte* block, std::int64_t bytes, bool send) {
      send ? messages.send(rank, block, bytes) : messages.receive(rank, block, bytes);
    };
    std::byte* at_home = nullptr;
    auto* block = reinterpret_cast<std::byte*>(own);
    for (std::int64_t e = 0; e < experts().count; ++e) {
      const int rank = static_cast<int>(e / experts().local);
      const std::int64_t bytes = sent_[e] * row_bytes;
      if (e == experts().first) at_home = block;
      if (rank != me && bytes > 0) post(rank, block, bytes, !back);
      block += bytes;
    }
    block = reinterpret_cast<std::byte*>(of_experts);
    for (std::int64_t i = 0; i < experts().local; ++i) {
      for (int rank = 0; rank < experts().ranks; ++rank) {
        const std::int64_t bytes = received(rank, i) * row_bytes;
        if (bytes == 0) continue;
        if (rank == me) {
          b_.copy(back ? at_home : block, back ? block : at_home, bytes);
          at_home += bytes;
        } else {
          post(rank, block, bytes, back);
        }
        block += bytes;
      }
    }
    if (experts().ranks > 1) messages.finish();
  }

  void shared_forward(const Number* input) const {
    const std::int64_t n = b_.rows();
    const std::int64_t h = hidden();
    b_.linear.forward(input, weights_ + at_.shared_up, n, experts().shared_up_width, h, kept_.shared_pre);
    RowFactors<Real> gate;
    if (at_.shared_gate >= 0) {
      b_.linear.forward_to_real(input, weights_ + at_.shared_gate, n, 1, h, kept_.shared_gate);
      b_.apply_sigmoid(n, kept_.shared_gate);
      gate.at = kept_.shared_gate;
    }
    b_.activate(kept_.shared_pre, nullptr, n, experts().shared_ffn, inputs_.shared_down, gate);
  }
  // Writes `input_gradient`, of which other tensor-parallel ranks have other parts.
  void shared_gradient(const Number* output_gradient, const ExpertGradients<Backend>& gradients,
                       Number* input_gradient) const {
    const std::int64_t n = b_.rows();
    const std::int64_t h = hidden();
    const std::int64_t s = experts().shared_ffn;
    const std::int64_t width = experts().shared_up_width;
    b_.linear.input_gradient(output_gradient, weights_ + at_.shared_down, n, h, s, gradients.shared_up + (width - s),
                             {.inputs_stride = width});
    RowFactors<Real> gate;
    if (at_.shared_gate >= 0) gate = {.at = kept_.shared_gate, .gradients = scratch_.gate_gradients};
    b_.activate_gradient(kept_.shared_pre, nullptr, n, s, gradients.shared_up, gate);
    if (at_.shared_gate >= 0) {
      b_.all_reduce(scratch_.gate_gradients, n);
      b_.sigmoid_gradient(n, kept_.shared_gate, scratch_.gate_gradients, gradients.shared_gate);
    }
    b_.linear.input_gradient(gradients.shared_up, weights_ + at_.shared_up, n, width, h, input_gradient);
  }

  const Backend& b_;
  const LayerOffsets& at_;
  const Number* weights_;
  const ExpertActivations<Backend>& kept_;
  const ExpertInputs<Backend>& inputs_;
  const ExpertScratch<Backend>& scratch_;
  std::int32_t* sent_;
};

}  // namespace sluice::kernels

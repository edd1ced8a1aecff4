#include "kernels/cpu/experts.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"

namespace sluice::kernels::cpu {
namespace {

template <class T>
std::int32_t* take_integers(Carver<T>& carver, std::int64_t count) {
  static_assert(sizeof(T) >= sizeof(std::int32_t));
  return reinterpret_cast<std::int32_t*>(carver.take(count));
}

std::int64_t most_own_rows(std::int64_t rows, std::int64_t tensor_parallel) {
  return (rows + tensor_parallel - 1) / tensor_parallel;
}

// Multiplies row r of a matrix with factors[r * stride].
template <class T>
void multiply_rows(const T* factors, std::int64_t stride, std::int64_t rows, std::int64_t width, T* matrix,
                   std::int64_t matrix_stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < width; ++c) matrix[row * matrix_stride + c] *= factors[row * stride];
  }
}

// y += factor x.
template <class T>
void add_multiple(T factor, const T* x, std::int64_t count, T* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

}  // namespace

template <class T>
void ExpertActivations<T>::carve(Carver<T>& carver, const ExpertSizes& sizes, std::int64_t rows,
                                 std::int64_t tensor_parallel) {
  const std::int64_t own = most_own_rows(rows, tensor_parallel);
  scores = carver.take(own * sizes.count);
  choices = take_integers(carver, own * sizes.per_token);
  places = take_integers(carver, own * sizes.per_token);
  sent = take_integers(carver, sizes.count);
  received = take_integers(carver, sizes.count);
  pre = carver.take(sizes.most_rows(rows, tensor_parallel) * sizes.up_width);
  shared_pre = carver.take(rows * sizes.shared_up_width);
  shared_gate = carver.take(sizes.shared_ffn > 0 ? rows : 0);
}

template <class T>
void ExpertInputs<T>::carve(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows) {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t most = experts.most_rows(rows, sizes.tensor_parallel);
  ends = take_integers(carver, experts.local);
  up = carver.take(most * (sizes.hidden + 1));
  down = carver.take(most * experts.ffn);
  shared_down = carver.take(rows * experts.shared_ffn);
}

template <class T>
void ExpertGradients<T>::carve(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows) {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t most = experts.most_rows(rows, sizes.tensor_parallel);
  logits = carver.take(rows * experts.count);
  up = carver.take(most * experts.up_width);
  down = carver.take(most * sizes.hidden);
  shared_up = carver.take(rows * experts.shared_up_width);
  shared_gate = carver.take(experts.shared_ffn > 0 ? rows : 0);
}

template <class T>
ExpertScratch<T>::ExpertScratch(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows) {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t most = experts.most_rows(rows, sizes.tensor_parallel);
  own = carver.take(most_own_rows(rows, sizes.tensor_parallel) * experts.per_token * (sizes.hidden + 1));
  outputs = carver.take(most * (sizes.hidden + 1));
  active = carver.take(most * experts.ffn);
  shared = carver.take(rows * experts.shared_ffn);
}

template <class T>
void ExpertMlp<T>::route(const T* input, const ExpertActivations<T>& kept) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t own = end_row() - first_row();
  const std::int64_t h = sizes.hidden;
  const std::int64_t k = experts.per_token;
  gemm_nt<T>(own, experts.count, h, T{1}, input + first_row() * h, h, weights + at.router, h, Into::set, kept.scores,
             experts.count);
  std::fill_n(kept.sent, experts.count, 0);
  for (std::int64_t row = 0; row < own; ++row) {
    T* const scores = kept.scores + row * experts.count;
    std::int32_t* const choices = kept.choices + row * k;
    for (std::int64_t j = 0; j < k; ++j) {
      std::int32_t best = -1;
      for (std::int32_t e = 0; e < experts.count; ++e) {
        if (std::find(choices, choices + j, e) != choices + j) continue;
        if (best < 0 || scores[e] > scores[best]) best = e;
      }
      choices[j] = best;
      ++kept.sent[best];
    }
    // choices[0] has the maximum.
    const T highest = scores[choices[0]];
    T sum = 0;
    for (std::int32_t e = 0; e < experts.count; ++e) {
      const bool counts = k == 1 || std::find(choices, choices + k, e) != choices + k;
      scores[e] = counts ? std::exp(scores[e] - highest) : T{0};
      sum += scores[e];
    }
    for (std::int64_t e = 0; e < experts.count; ++e) scores[e] /= sum;
  }
  std::int32_t place = 0;
  for (std::int32_t e = 0; e < experts.count; ++e) {
    if (kept.sent[e] == 0) continue;
    for (std::int64_t i = 0; i < own * k; ++i) {
      if (kept.choices[i] == e) kept.places[i] = place++;
    }
  }
}

// Writes received and ends.
template <class T>
void ExpertMlp<T>::exchange_counts(const ExpertActivations<T>& kept, const ExpertInputs<T>& inputs) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t local = experts.local;
  const auto bytes = local * static_cast<std::int64_t>(sizeof(std::int32_t));
  const int me = spec.expert_rank();
  for (int rank = 0; rank < experts.ranks; ++rank) {
    if (rank == me) continue;
    group->receive(rank, reinterpret_cast<std::byte*>(kept.received + rank * local), bytes);
    group->send(rank, reinterpret_cast<const std::byte*>(kept.sent + rank * local), bytes);
  }
  std::copy_n(kept.sent + me * local, local, kept.received + me * local);
  if (experts.ranks > 1) group->finish();
  std::int32_t end = 0;
  for (std::int64_t i = 0; i < local; ++i) {
    for (std::int64_t rank = 0; rank < experts.ranks; ++rank) end += kept.received[rank * local + i];
    inputs.ends[i] = end;
  }
}

template <class T>
void ExpertMlp<T>::exchange(const ExpertActivations<T>& kept, std::int64_t width, T* own, T* of_experts,
                            bool back) const {
  const ExpertSizes& experts = sizes.experts;
  const int me = spec.expert_rank();
  const auto bytes = [width](std::int32_t count) { return count * width * static_cast<std::int64_t>(sizeof(T)); };
  const auto post = [&](int rank, T* block, std::int32_t count, bool send) {
    if (count == 0) return;
    if (send) {
      group->send(rank, reinterpret_cast<const std::byte*>(block), bytes(count));
    } else {
      group->receive(rank, reinterpret_cast<std::byte*>(block), bytes(count));
    }
  };
  T* block = own;
  for (std::int64_t e = 0; e < experts.count; ++e) {
    const int rank = static_cast<int>(e / experts.local);
    if (rank != me) post(rank, block, kept.sent[e], !back);
    block += kept.sent[e] * width;
  }
  T* at_home = own;
  for (std::int64_t e = 0; e < experts.first; ++e) at_home += kept.sent[e] * width;
  block = of_experts;
  for (std::int64_t i = 0; i < experts.local; ++i) {
    for (int rank = 0; rank < experts.ranks; ++rank) {
      const std::int32_t count = kept.received[rank * experts.local + i];
      if (rank == me) {
        back ? std::copy_n(block, count * width, at_home) : std::copy_n(at_home, count * width, block);
        at_home += count * width;
      } else {
        post(rank, block, count, back);
      }
      block += count * width;
    }
  }
  if (experts.ranks > 1) group->finish();
}

template <class T>
void ExpertMlp<T>::activate(T* pre, std::int64_t count, std::int64_t width, T* out) const {
  const T* const no_bias = nullptr;
  if (spec.model.gated) {
    add_bias_swiglu<T>(pre, no_bias, count, width, out);
  } else {
    add_bias_gelu<T>(pre, no_bias, count, width, out);
  }
}

template <class T>
void ExpertMlp<T>::activation_gradient(const T* pre, std::int64_t count, std::int64_t width, T* gradient) const {
  if (spec.model.gated) {
    swiglu_gradient<T>(pre, count, width, gradient);
  } else {
    gelu_gradient<T>(pre, count * width, gradient);
  }
}

template <class T>
void ExpertMlp<T>::shared_forward(const T* input, const ExpertActivations<T>& kept,
                                  const ExpertInputs<T>& inputs) const {
  const std::int64_t h = sizes.hidden;
  const std::int64_t s = sizes.experts.shared_ffn;
  const std::int64_t width = sizes.experts.shared_up_width;
  gemm_nt<T>(rows, width, h, T{1}, input, h, weights + at.shared_up, h, Into::set, kept.shared_pre, width);
  activate(kept.shared_pre, rows, s, inputs.shared_down);
  if (at.shared_gate < 0) return;
  gemm_nt<T>(rows, 1, h, T{1}, input, h, weights + at.shared_gate, h, Into::set, kept.shared_gate, 1);
  for (std::int64_t row = 0; row < rows; ++row) {
    kept.shared_gate[row] = T{1} / (T{1} + std::exp(-kept.shared_gate[row]));
  }
  multiply_rows<T>(kept.shared_gate, 1, rows, s, inputs.shared_down, s);
}

template <class T>
void ExpertMlp<T>::dispatch(const T* input, const ExpertActivations<T>& kept, const ExpertInputs<T>& inputs,
                            const ExpertScratch<T>& scratch) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  const std::int64_t k = experts.per_token;
  const std::int64_t own = end_row() - first_row();
  exchange_counts(kept, inputs);
  for (std::int64_t row = 0; row < own; ++row) {
    for (std::int64_t j = 0; j < k; ++j) {
      T* const to = scratch.own + kept.places[row * k + j] * (h + 1);
      std::copy_n(input + (first_row() + row) * h, h, to);
      to[h] = kept.scores[row * experts.count + kept.choices[row * k + j]];
    }
  }
  exchange(kept, h + 1, scratch.own, inputs.up, false);
}

template <class T>
void ExpertMlp<T>::run_experts(const T* input, const ExpertActivations<T>& kept, const ExpertInputs<T>& inputs,
                               const ExpertScratch<T>& scratch, T* out) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  const std::int64_t f = experts.ffn;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < experts.local; ++i) {
    const std::int64_t count = inputs.ends[i] - begin;
    gemm_nt<T>(count, experts.up_width, h, T{1}, inputs.up + begin * (h + 1), h + 1,
               weights + at.expert_up + i * at.expert_stride, h, Into::set, kept.pre + begin * experts.up_width,
               experts.up_width);
    begin = inputs.ends[i];
  }
  activate(kept.pre, begin, f, inputs.down);
  multiply_rows<T>(inputs.up + h, h + 1, begin, f, inputs.down, f);
  if (experts.shared_ffn > 0) shared_forward(input, kept, inputs);
  if (out == nullptr) return;

  begin = 0;
  for (std::int64_t i = 0; i < experts.local; ++i) {
    gemm_nt<T>(inputs.ends[i] - begin, h, f, T{1}, inputs.down + begin * f, f,
               weights + at.expert_down + i * at.expert_stride, f, Into::set, scratch.outputs + begin * h, h);
    begin = inputs.ends[i];
  }
  if (experts.shared_ffn > 0) {
    gemm_nt<T>(rows, h, experts.shared_ffn, T{1}, inputs.shared_down, experts.shared_ffn, weights + at.shared_down,
               experts.shared_ffn, Into::set, out, h);
  } else {
    std::fill_n(out, rows * h, T{0});
  }
}

template <class T>
void ExpertMlp<T>::add_results(const ExpertActivations<T>& kept, const ExpertScratch<T>& scratch, T* out) const {
  const std::int64_t h = sizes.hidden;
  const std::int64_t k = sizes.experts.per_token;
  for (std::int64_t row = 0; row < end_row() - first_row(); ++row) {
    for (std::int64_t j = 0; j < k; ++j) {
      add<T>(scratch.own + kept.places[row * k + j] * h, h, out + (first_row() + row) * h);
    }
  }
  sum_over_group(out, rows * h);
}

// Writes `input_gradient`, of which other tensor-parallel ranks have other parts.
template <class T>
void ExpertMlp<T>::shared_gradient(const T* output_gradient, const ExpertActivations<T>& kept,
                                   const ExpertGradients<T>& gradients, const ExpertScratch<T>& scratch,
                                   T* input_gradient) const {
  const std::int64_t h = sizes.hidden;
  const std::int64_t s = sizes.experts.shared_ffn;
  const std::int64_t width = sizes.experts.shared_up_width;
  T* const inner = gradients.shared_up + (width - s);
  gemm_nn<T>(rows, s, h, output_gradient, h, weights + at.shared_down, s, Into::set, inner, width);
  if (at.shared_gate >= 0) {
    activate(kept.shared_pre, rows, s, scratch.shared);
    row_dot_products<T>(rows, s, scratch.shared, s, inner, width, gradients.shared_gate);
    sum_over_group(gradients.shared_gate, rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      const T gate = kept.shared_gate[row];
      gradients.shared_gate[row] *= gate * (T{1} - gate);
    }
    multiply_rows<T>(kept.shared_gate, 1, rows, s, inner, width);
  }
  activation_gradient(kept.shared_pre, rows, s, gradients.shared_up);
  gemm_nn<T>(rows, h, width, gradients.shared_up, width, weights + at.shared_up, h, Into::set, input_gradient, h);
  for (std::int64_t row = first_row(); at.shared_gate >= 0 && row < end_row(); ++row) {
    add_multiple<T>(gradients.shared_gate[row], weights + at.shared_gate, h, input_gradient + row * h);
  }
}

// From the gradients of the probabilities, which came back in the last column of scratch.own. Equal on all
// tensor-parallel ranks.
template <class T>
void ExpertMlp<T>::router_gradient(const ExpertActivations<T>& kept, const ExpertGradients<T>& gradients,
                                   const ExpertScratch<T>& scratch) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t k = experts.per_token;
  const std::int64_t h = sizes.hidden;
  std::fill_n(gradients.logits, rows * experts.count, T{0});
  for (std::int64_t row = 0; row < end_row() - first_row(); ++row) {
    const T* const scores = kept.scores + row * experts.count;
    const std::int32_t* const choices = kept.choices + row * k;
    T* const out = gradients.logits + (first_row() + row) * experts.count;
    T total = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      out[choices[j]] = scratch.own[kept.places[row * k + j] * (h + 1) + h];
      total += scores[choices[j]] * out[choices[j]];
    }
    for (std::int64_t e = 0; e < experts.count; ++e) out[e] = scores[e] * (out[e] - total);
  }
  sum_over_group(gradients.logits, rows * experts.count);
}

template <class T>
void ExpertMlp<T>::combine_gradient(const T* output_gradient, const ExpertActivations<T>& kept,
                                    const ExpertGradients<T>& gradients, const ExpertScratch<T>& scratch) const {
  const std::int64_t h = sizes.hidden;
  const std::int64_t k = sizes.experts.per_token;
  for (std::int64_t row = 0; row < end_row() - first_row(); ++row) {
    for (std::int64_t j = 0; j < k; ++j) {
      std::copy_n(output_gradient + (first_row() + row) * h, h, scratch.own + kept.places[row * k + j] * h);
    }
  }
  exchange(kept, h, scratch.own, gradients.down, false);
}

template <class T>
void ExpertMlp<T>::experts_gradient(const T* output_gradient, const ExpertActivations<T>& kept,
                                    const ExpertInputs<T>& inputs, const ExpertGradients<T>& gradients,
                                    const ExpertScratch<T>& scratch, T* input_gradient) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  const std::int64_t f = experts.ffn;
  const std::int64_t width = experts.up_width;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < experts.local; ++i) {
    gemm_nn<T>(inputs.ends[i] - begin, f, h, gradients.down + begin * h, h,
               weights + at.expert_down + i * at.expert_stride, f, Into::set,
               gradients.up + begin * width + (width - f), width);
    begin = inputs.ends[i];
  }
  const std::int64_t come = begin;
  activate(kept.pre, come, f, scratch.active);
  T* const inner = gradients.up + (width - f);
  for (std::int64_t row = 0; row < come; ++row) {
    T* const probability = scratch.outputs + row * (h + 1) + h;
    row_dot_products<T>(1, f, scratch.active + row * f, f, inner + row * width, width, probability);
  }
  multiply_rows<T>(inputs.up + h, h + 1, come, f, inner, width);
  activation_gradient(kept.pre, come, f, gradients.up);
  begin = 0;
  for (std::int64_t i = 0; i < experts.local; ++i) {
    gemm_nn<T>(inputs.ends[i] - begin, h, width, gradients.up + begin * width, width,
               weights + at.expert_up + i * at.expert_stride, h, Into::set, scratch.outputs + begin * (h + 1), h + 1);
    begin = inputs.ends[i];
  }
  if (experts.shared_ffn > 0) {
    shared_gradient(output_gradient, kept, gradients, scratch, input_gradient);
  } else {
    std::fill_n(input_gradient, rows * h, T{0});
  }
}

template <class T>
void ExpertMlp<T>::add_input_gradients(const ExpertActivations<T>& kept, const ExpertGradients<T>& gradients,
                                       const ExpertScratch<T>& scratch, T* input_gradient) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  const std::int64_t k = experts.per_token;
  const std::int64_t own = end_row() - first_row();
  router_gradient(kept, gradients, scratch);
  for (std::int64_t row = 0; row < own; ++row) {
    for (std::int64_t j = 0; j < k; ++j) {
      add<T>(scratch.own + kept.places[row * k + j] * (h + 1), h, input_gradient + (first_row() + row) * h);
    }
  }
  gemm_nn<T>(own, h, experts.count, gradients.logits + first_row() * experts.count, experts.count, weights + at.router,
             h, Into::add, input_gradient + first_row() * h, h);
  sum_over_group(input_gradient, rows * h);
}

template <class T>
void ExpertMlp<T>::experts_weight_gradient(const T* input, const T* output_gradient, const ExpertInputs<T>& inputs,
                                           const ExpertGradients<T>& gradients, T* weight_gradients) const {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  const std::int64_t f = experts.ffn;
  const std::int64_t width = experts.up_width;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < experts.local; ++i) {
    const std::int64_t count = inputs.ends[i] - begin;
    const std::int64_t expert = i * at.expert_stride;
    gemm_tn<T>(width, h, count, gradients.up + begin * width, width, inputs.up + begin * (h + 1), h + 1,
               weight_gradients + at.expert_up + expert, h);
    gemm_tn<T>(h, f, count, gradients.down + begin * h, h, inputs.down + begin * f, f,
               weight_gradients + at.expert_down + expert, f);
    begin = inputs.ends[i];
  }
  if (experts.shared_ffn == 0) return;
  const std::int64_t s = experts.shared_ffn;
  gemm_tn<T>(experts.shared_up_width, h, rows, gradients.shared_up, experts.shared_up_width, input, h,
             weight_gradients + at.shared_up, h);
  gemm_tn<T>(h, s, rows, output_gradient, h, inputs.shared_down, s, weight_gradients + at.shared_down, s);
}

template <class T>
void ExpertMlp<T>::router_weight_gradient(const T* input, const ExpertGradients<T>& gradients,
                                          T* weight_gradients) const {
  const std::int64_t h = sizes.hidden;
  const std::int64_t count = sizes.experts.count;
  gemm_tn<T>(count, h, rows, gradients.logits, count, input, h, weight_gradients + at.router, h);
  if (at.shared_gate >= 0) {
    gemm_tn<T>(1, h, rows, gradients.shared_gate, 1, input, h, weight_gradients + at.shared_gate, h);
  }
}

#define SLUICE_INSTANTIATE(T)           \
  template struct ExpertActivations<T>; \
  template struct ExpertInputs<T>;      \
  template struct ExpertGradients<T>;   \
  template struct ExpertScratch<T>;     \
  template struct ExpertMlp<T>;
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(double)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels::cpu

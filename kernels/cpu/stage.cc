#include "kernels/stage.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/layered_stage.h"

namespace sluice::kernels {
namespace {

using namespace cpu;  // NOLINT(google-build-using-namespace): all of it

// The matrix multiplications of a linear layer with weights [outputs, inputs].
template <class T>
struct CpuLinear {
  // out [rows, outputs] = x [rows, inputs] x weights^T.
  void forward(const T* x, const T* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs, T* out,
               const LinearOptions& options = {}) const {
    gemm_nt<T>(rows, outputs, inputs, T{1}, x, stride(options.inputs_stride, inputs), weights, inputs, Into::set, out,
               stride(options.outputs_stride, outputs));
  }
  void forward_to_real(const T* x, const T* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                       T* out) const {
    forward(x, weights, rows, outputs, inputs, out);
  }
  // dx [rows, inputs] = dout [rows, outputs] x weights.
  void input_gradient(const T* dout, const T* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                      T* dx, const LinearOptions& options = {}) const {
    gemm_nn<T>(rows, inputs, outputs, dout, stride(options.outputs_stride, outputs), weights, inputs,
               options.add ? Into::add : Into::set, dx, stride(options.inputs_stride, inputs));
  }
  // gradient [outputs, inputs] += dout^T x.
  void weight_gradient(const T* dout, const T* x, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                       T* gradient, const LinearOptions& options = {}) const {
    gemm_tn<T>(outputs, inputs, rows, dout, stride(options.outputs_stride, outputs), x,
               stride(options.inputs_stride, inputs), gradient, inputs);
  }

 private:
  static std::int64_t stride(std::int64_t given, std::int64_t width) { return given > 0 ? given : width; }
};

// The backend of layers in the precision T.
template <class T>
struct CpuBackend {
  using Number = T;
  using Real = T;
  struct Config {};
  static constexpr bool kOnDevice = false;
  static constexpr bool kFusesNorms = false;
  static constexpr int kOptimizerStates = 2;

  // Rows that are sent to experts, with a number at element `tail`.
  struct RoutedRow {
    explicit constexpr RoutedRow(std::int64_t width) : tail(width), stride(width + 1) {}
    std::int64_t tail;
    std::int64_t stride;
  };

  struct Scratch {
    Scratch(Carver& carver, const StageSpec& spec, const RankSizes& sizes, const SliceShape& shape)
        : attention(carver), sums(carver.take<T>(2 * sizes.hidden)) {
      const std::int64_t n = shape.rows();
      if (spec.has_rotary()) {
        cosines = carver.take<T>(shape.tokens * sizes.head_dim / 2);
        sines = carver.take<T>(shape.tokens * sizes.head_dim / 2);
      }
      if (spec.contents.head) {
        maxima = carver.take<T>(n);
        row_sums = carver.take<T>(2 * n);
      }
      if (spec.contents.expert_layers > 0) {
        active = carver.take<T>(std::max(sizes.most_expert_rows(n) * sizes.experts.ffn, n * sizes.experts.shared_ffn));
      }
    }
    AttentionScratch<T> attention;
    T* sums;               // [2h]
    T* cosines = nullptr;  // [tokens, d / 2], null with learned positions
    T* sines = nullptr;
    T* maxima = nullptr;    // of the logits
    T* row_sums = nullptr;  // of their exponentials, then the targets' logits
    T* active = nullptr;    // [R, f] or [n, s], outputs of the activation function
  };

  // Messages between the ranks of experts.
  struct Exchange {
    ExpertGroup* group;
    void send(int rank, const std::byte* data, std::int64_t bytes) { group->send(rank, data, bytes); }
    void receive(int rank, std::byte* data, std::int64_t bytes) { group->receive(rank, data, bytes); }
    void finish() { group->finish(); }
  };

  CpuBackend(const Config& /*config*/, const StageSpec& of_stage, const RankSizes& of_rank, const SliceCall& of_op,
             const Scratch& of_scratch)
      : spec(of_stage), sizes(of_rank), call(of_op), scratch(of_scratch) {}

  const StageSpec& spec;
  const RankSizes& sizes;
  const SliceCall& call;
  const Scratch& scratch;
  CpuLinear<T> linear;

  std::int64_t rows() const { return call.shape.rows(); }
  std::int64_t logit_columns() const { return sizes.vocab_rows; }
  void all_reduce(T* data, std::int64_t count) const {
    if (spec.tensor_parallel > 1) call.tensor->all_reduce_sum(data, count);
  }
  Exchange exchange() const { return {call.experts}; }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const { std::copy_n(from, bytes, to); }
  void wait() const {}

  // x = from, plus bias + residual unless residual is null; then the norm.
  void residual_norm(const T* from, T* x, const T* residual, const T* bias, const LayerNorm<CpuBackend>& norm) const {
    const std::int64_t h = sizes.hidden;
    if (from != x) std::copy_n(from, rows() * h, x);
    if (residual != nullptr) add_bias_residual<T>(bias, residual, rows(), h, x);
    if (norm.out == nullptr) return;
    cpu::norm<T>(x, norm.gain, norm.bias, spec.model.rms_norm, rows(), h, norm.statistics, norm.out);
  }
  void norm_gradient(const T* gradient, const T* x, const T* residual, const T* gain, const T* statistics, T* dx,
                     T* gain_gradient, T* bias_gradient, const std::int32_t* /*not_finite*/ = nullptr) const {
    cpu::norm_gradient<T>(gradient, x, gain, statistics, residual, spec.model.rms_norm, rows(), sizes.hidden,
                          scratch.sums, dx, gain_gradient, bias_gradient);
  }
  void add_bias_gradient(const T* gradient, std::int64_t width, T* into) const {
    add_column_sums<T>(gradient, rows(), width, into);
  }
  void weight_gradients(std::span<const MatrixGradient<CpuBackend>> matrices, T* weight_gradients) const {
    for (const auto& of : matrices) {
      linear.weight_gradient(of.gradient, of.input, rows(), of.outputs, of.inputs, weight_gradients + of.matrix);
    }
  }

  // pre += bias, and out = the activation function of pre, times the factors of the rows.
  void activate(T* pre, const T* bias, std::int64_t count, std::int64_t width, T* out,
                const RowFactors<T>& factors = {}) const {
    if (spec.model.gated) {
      add_bias_swiglu<T>(pre, bias, count, width, out);
    } else {
      add_bias_gelu<T>(pre, bias, count, width, out);
    }
    if (factors.at != nullptr) multiply_rows(factors, count, width, out, width);
  }
  void activate_gradient(T* pre, const T* /*bias*/, std::int64_t count, std::int64_t width, T* gradient,
                         const RowFactors<T>& factors = {}) const {
    if (factors.at != nullptr) {
      const std::int64_t stride = spec.model.gated ? 2 * width : width;
      T* const inner = gradient + (stride - width);
      activate(pre, nullptr, count, width, scratch.active);
      for (std::int64_t row = 0; row < count; ++row) {
        row_dot_products<T>(1, width, scratch.active + row * width, width, inner + row * stride, stride,
                            factors.gradients + row * factors.stride);
      }
      multiply_rows(factors, count, width, inner, stride);
    }
    if (spec.model.gated) {
      swiglu_gradient<T>(pre, count, width, gradient);
    } else {
      gelu_gradient<T>(pre, count * width, gradient);
    }
  }

  void compute_rotary_angles() const {
    if (scratch.cosines == nullptr) return;
    call.shape.for_each_document([&](const DocumentPart& part) {
      const std::int64_t at = part.first * sizes.head_dim / 2;
      rotary_angles<T>(part.context, part.tokens, sizes.head_dim, scratch.cosines + at, scratch.sines + at);
    });
  }
  void attention_forward(const T* qkv, const T* bias, const LayerKeys<CpuBackend>& keys, T* queries, T* out,
                         T* log_sums) const {
    const std::int64_t q = sizes.query_width;
    const std::int64_t w = sizes.key_width;
    const std::int64_t all = sizes.qkv_width;
    const auto bias_from = [bias](std::int64_t column) { return bias == nullptr ? nullptr : bias + column; };
    apply_rotary<T>(head_rows(sizes.heads, rows()), qkv, all, bias, scratch.cosines, scratch.sines, false, queries, q);
    const auto write_keys = [&](const T* from, const T* key_bias, const T* cosines, T* to) {
      for (int sequence = 0; sequence < call.shape.sequences; ++sequence) {
        apply_rotary<T>(head_rows(sizes.kv_heads, call.shape.tokens), from + sequence * call.shape.tokens * all, all,
                        key_bias, cosines, scratch.sines, false, to + first_row(keys, sequence) * w, w);
      }
    };
    write_keys(qkv + q, bias_from(q), scratch.cosines, keys.keys);
    write_keys(qkv + q + w, bias_from(q + w), nullptr, keys.values);
    for_each_document([&](const AttentionSizes& of, const DocumentPart& part) {
      attention<T>(of, queries + part.first * q, of_document(keys_values(keys), part), scratch.attention,
                   out + part.first * q, log_sums + part.first, rows());
    });
  }
  // Without slices, no other slice adds to the gradients of keys and values, so that they are accumulated directly in
  // qkv_gradient.
  void attention_gradient(const LayerKeys<CpuBackend>& keys, const T* queries, const T* out, const T* log_sums,
                          const T* out_gradient, T* qkv_gradient) const {
    const std::int64_t q = sizes.query_width;
    const std::int64_t w = sizes.key_width;
    const std::int64_t all = sizes.qkv_width;
    KeysValues<T> of_keys = keys_values(keys);
    if (keys.keys_gradient == nullptr) {
      of_keys.keys_gradient = qkv_gradient + q;
      of_keys.values_gradient = of_keys.keys_gradient + w;
      of_keys.gradient_stride = all;
      for (std::int64_t row = 0; row < rows(); ++row) std::fill_n(of_keys.keys_gradient + row * all, 2 * w, T{0});
    }
    for_each_document([&](const AttentionSizes& of, const DocumentPart& part) {
      const std::int64_t at = part.first * q;
      cpu::attention_gradient<T>(of, queries + at, of_document(of_keys, part), out + at, log_sums + part.first, rows(),
                                 out_gradient + at, scratch.attention, qkv_gradient + part.first * all, all);
    });
    const T* const no_bias = nullptr;
    const auto read_gradients = [&](const T* from, const T* cosines, T* to) {
      for (int sequence = 0; sequence < call.shape.sequences; ++sequence) {
        apply_rotary<T>(head_rows(sizes.kv_heads, call.shape.tokens),
                        from + first_row(keys, sequence) * of_keys.gradient_stride, of_keys.gradient_stride, no_bias,
                        cosines, scratch.sines, true, to + sequence * call.shape.tokens * all, all);
      }
    };
    read_gradients(of_keys.keys_gradient, scratch.cosines, qkv_gradient + q);
    if (keys.keys_gradient != nullptr) read_gradients(of_keys.values_gradient, nullptr, qkv_gradient + q + w);
    if (scratch.cosines == nullptr) return;
    apply_rotary<T>(head_rows(sizes.heads, rows()), qkv_gradient, all, no_bias, scratch.cosines, scratch.sines, true,
                    qkv_gradient, all);
  }

  void embed(const EmbeddingShape& shape, const T* words, const T* positions, T* out) const {
    const std::int64_t h = shape.hidden;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const std::int64_t token = call.tokens[row] - shape.first_token;
      if (token >= 0 && token < shape.vocab_rows) {
        std::copy_n(words + token * h, h, out + row * h);
      } else {
        std::fill_n(out + row * h, h, T{0});
      }
    }
    for_each_position(positions, [&](std::int64_t position, std::int64_t row, std::int64_t count) {
      add<T>(positions + position * h, count * h, out + row * h);
    });
  }
  void embedding_gradient(const EmbeddingShape& shape, const T* gradient, T* words, T* positions) const {
    const std::int64_t h = shape.hidden;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const std::int64_t token = call.tokens[row] - shape.first_token;
      if (token >= 0 && token < shape.vocab_rows) add<T>(gradient + row * h, h, words + token * h);
    }
    for_each_position(positions, [&](std::int64_t position, std::int64_t row, std::int64_t count) {
      add<T>(gradient + row * h, count * h, positions + position * h);
    });
  }

  void loss(const LogitsShape& shape, T* logits, SliceCall& result) const {
    const std::int64_t n = shape.rows;
    row_maxima<T>(logits, shape.stride, n, shape.columns, scratch.maxima);
    if (spec.tensor_parallel > 1) call.tensor->all_reduce_max(scratch.maxima, n);
    T* const targets = scratch.row_sums + n;
    const auto target_in = [&](std::int64_t row) { return call.targets[row] - shape.first_token; };
    const auto is_here = [&](std::int64_t target) { return target >= 0 && target < shape.columns; };
    for (std::int64_t row = 0; row < n; ++row) {
      targets[row] = is_here(target_in(row)) ? logits[row * shape.stride + target_in(row)] : T{0};
    }
    row_exponentials<T>(logits, shape.stride, n, shape.columns, scratch.maxima, scratch.row_sums);
    all_reduce(scratch.row_sums, 2 * n);
    result.loss = 0;
    for (std::int64_t row = 0; row < n; ++row) {
      result.loss += static_cast<double>(std::log(scratch.row_sums[row]) + (scratch.maxima[row] - targets[row]));
    }
    const T scale = static_cast<T>(call.loss_scale);
    scale_rows<T>(logits, shape.stride, n, shape.columns, scratch.row_sums, scale);
    for (std::int64_t row = 0; row < n; ++row) {
      if (is_here(target_in(row))) logits[row * shape.stride + target_in(row)] -= scale;
    }
  }

  // The kernels of layers with experts, as in kernels/cuda/routing.h.
  void choose_experts(std::int64_t own, std::int64_t experts, std::int64_t k, T* scores, std::int32_t* choices) const {
    for (std::int64_t row = 0; row < own; ++row, scores += experts, choices += k) {
      for (std::int64_t j = 0; j < k; ++j) {
        std::int32_t best = -1;
        for (std::int32_t e = 0; e < experts; ++e) {
          if (std::find(choices, choices + j, e) != choices + j) continue;
          if (best < 0 || scores[e] > scores[best]) best = e;
        }
        choices[j] = best;
      }
      // choices[0] has the maximum.
      const T highest = scores[choices[0]];
      T sum = 0;
      for (std::int32_t e = 0; e < experts; ++e) {
        const bool counts = k == 1 || std::find(choices, choices + k, e) != choices + k;
        scores[e] = counts ? std::exp(scores[e] - highest) : T{0};
        sum += scores[e];
      }
      for (std::int64_t e = 0; e < experts; ++e) scores[e] /= sum;
    }
  }
  void place_choices(std::int64_t count, std::int64_t experts, const std::int32_t* choices, std::int32_t* places,
                     std::int32_t* sent) const {
    std::int32_t place = 0;
    for (std::int32_t e = 0; e < experts; ++e) {
      sent[e] = static_cast<std::int32_t>(std::count(choices, choices + count, e));
      if (sent[e] == 0) continue;
      for (std::int64_t i = 0; i < count; ++i) {
        if (choices[i] == e) places[i] = place++;
      }
    }
  }
  void send_rows(const RoutedRows<T>& routed, const T* matrix, std::int64_t width, bool with_scores,
                 std::int64_t stride, T* out) const {
    for (std::int64_t i = 0; i < routed.rows * routed.k; ++i) {
      T* const to = out + routed.places[i] * stride;
      std::copy_n(matrix + (routed.first + i / routed.k) * width, width, to);
      if (with_scores) to[width] = routed.scores[i / routed.k * routed.experts + routed.choices[i]];
    }
  }
  void add_routed_rows(const RoutedRows<T>& routed, const T* results, std::int64_t stride, std::int64_t all_rows,
                       std::int64_t width, bool adds, const T* factors, const T* direction, T* out) const {
    if (!adds) std::fill_n(out, all_rows * width, T{0});
    for (std::int64_t row = 0; row < routed.rows; ++row) {
      T* const to = out + (routed.first + row) * width;
      if (direction != nullptr) {
        const T factor = factors[routed.first + row];
        for (std::int64_t c = 0; c < width; ++c) to[c] += factor * direction[c];
      }
      for (std::int64_t j = 0; j < routed.k; ++j) {
        add<T>(results + routed.places[row * routed.k + j] * stride, width, to);
      }
    }
  }
  void logit_gradients(const RoutedRows<T>& routed, const T* results, const RoutedRow& of, std::int64_t all_rows,
                       T* gradients) const {
    std::fill_n(gradients, all_rows * routed.experts, T{0});
    for (std::int64_t row = 0; row < routed.rows; ++row) {
      const T* const scores = routed.scores + row * routed.experts;
      const std::int32_t* const choices = routed.choices + row * routed.k;
      T* const out = gradients + (routed.first + row) * routed.experts;
      T total = 0;
      for (std::int64_t j = 0; j < routed.k; ++j) {
        out[choices[j]] = results[routed.places[row * routed.k + j] * of.stride + of.tail];
        total += scores[choices[j]] * out[choices[j]];
      }
      for (std::int64_t e = 0; e < routed.experts; ++e) out[e] = scores[e] * (out[e] - total);
    }
  }
  void apply_sigmoid(std::int64_t count, T* numbers) const {
    for (std::int64_t i = 0; i < count; ++i) numbers[i] = T{1} / (T{1} + std::exp(-numbers[i]));
  }
  void sigmoid_gradient(std::int64_t count, const T* outputs, const T* output_gradients, T* gradients) const {
    for (std::int64_t i = 0; i < count; ++i) gradients[i] = output_gradients[i] * (outputs[i] * (T{1} - outputs[i]));
  }

 private:
  HeadRows head_rows(std::int64_t heads, std::int64_t count) const {
    return {.rows = count, .tokens = call.shape.tokens, .heads = heads, .head_dim = sizes.head_dim};
  }
  // Calls visit(sizes, part) for each document of a packed sequence, or once for all sequences.
  template <typename Visit>
  void for_each_document(const Visit& visit) const {
    call.shape.for_each_document([&](const DocumentPart& part) {
      AttentionSizes of = attention_sizes(sizes, call.shape);
      of.tokens = static_cast<int>(part.tokens);
      of.context = part.context;
      visit(of, part);
    });
  }
  // Calls visit(position, row, count) for `count` rows with consecutive positions in their documents; without learned
  // positions never.
  template <typename Visit>
  void for_each_position(const T* positions, const Visit& visit) const {
    for (int sequence = 0; positions != nullptr && sequence < call.shape.sequences; ++sequence) {
      call.shape.for_each_document([&](const DocumentPart& part) {
        visit(part.context, sequence * call.shape.tokens + part.first, part.tokens);
      });
    }
  }
  // The keys and values from the document's first token on.
  KeysValues<T> of_document(KeysValues<T> of, const DocumentPart& part) const {
    const std::int64_t rows_before = call.shape.context + part.first - part.context;
    of.keys += rows_before * of.stride;
    of.values += rows_before * of.stride;
    if (of.keys_gradient != nullptr) {
      of.keys_gradient += rows_before * of.gradient_stride;
      of.values_gradient += rows_before * of.gradient_stride;
    }
    return of;
  }
  // The row of the slice's first token.
  std::int64_t first_row(const LayerKeys<CpuBackend>& keys, int sequence) const {
    return sequence * keys.tokens + call.shape.context;
  }
  KeysValues<T> keys_values(const LayerKeys<CpuBackend>& keys) const {
    return {.keys = keys.keys,
            .values = keys.values,
            .stride = sizes.key_width,
            .keys_gradient = keys.keys_gradient,
            .values_gradient = keys.values_gradient,
            .gradient_stride = sizes.key_width,
            .tokens = keys.tokens};
  }
  static void multiply_rows(const RowFactors<T>& factors, std::int64_t count, std::int64_t width, T* matrix,
                            std::int64_t stride) {
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t c = 0; c < width; ++c) matrix[row * stride + c] *= factors.at[row * factors.stride];
    }
  }
};

template <class T>
class CpuStage final : public LayeredStage<CpuBackend<T>> {
 public:
  explicit CpuStage(const StageSpec& spec) : LayeredStage<CpuBackend<T>>(spec) { use_one_thread(); }

  double squared_norm(const std::byte* gradients) const override {
    return cpu::squared_norm(this->offsets(), this->reals(gradients));
  }
  void step(const std::byte* weights, std::byte* new_weights, std::byte* optimizer_state, const std::byte* gradients,
            const OptimizerStep& step) const override {
    optimizer_step(this->offsets(), step, this->reals(weights), this->reals(new_weights), this->reals(optimizer_state),
                   this->reals(gradients));
  }
};

}  // namespace

std::unique_ptr<Stage> make_cpu_stage(const StageSpec& spec, Precision precision) {
  if (precision == Precision::float64) return std::make_unique<CpuStage<double>>(spec);
  return std::make_unique<CpuStage<float>>(spec);
}

}  // namespace sluice::kernels

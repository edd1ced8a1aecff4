#include "kernels/stage.h"

#include <stdexcept>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/buffers.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/routing.h"
#include "kernels/device_kernels.h"
#include "kernels/layered_stage.h"

namespace sluice::kernels {
namespace cuda {
namespace {

// The matrix multiplications of a linear layer, enqueued on a stream. Weights are [outputs, inputs]. Do nothing without
// rows.
struct Linear {
  Element element;
  Device& device;
  Stream& stream;

  // out [rows, outputs] = x [rows, inputs] x weights^T.
  void forward(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
               Half* out, const LinearOptions& options = {}) const {
    if (rows == 0) return;
    device.multiply(forward_call(x, weights, rows, outputs, inputs, out, element, options), stream);
  }

  void forward_to_real(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                       float* out) const {
    if (rows == 0) return;
    device.multiply(forward_call(x, weights, rows, outputs, inputs, out, Element::float32), stream);
  }

  // dx [rows, inputs] = dout [rows, outputs] x weights.
  void input_gradient(const Half* dout, const Half* weights, std::int64_t rows, std::int64_t outputs,
                      std::int64_t inputs, Half* dx, const LinearOptions& options = {}) const {
    if (rows == 0) return;
    device.multiply(input_gradient_call(dout, weights, rows, outputs, inputs, dx, options), stream);
  }

  // gradient [outputs, inputs] += dout^T x, in float32.
  void weight_gradient(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                       float* gradient, const LinearOptions& options = {}) const {
    if (rows == 0) return;
    device.multiply(weight_gradient_call(dout, x, rows, outputs, inputs, gradient, options), stream);
  }

 private:
  static std::int64_t stride(std::int64_t given, std::int64_t width) { return given > 0 ? given : width; }

  GemmCall forward_call(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs,
                        std::int64_t inputs, void* out, Element out_element, const LinearOptions& options = {}) const {
    return {.rows = rows,
            .columns = outputs,
            .inner = inputs,
            .a = x,
            .a_stride = stride(options.inputs_stride, inputs),
            .b = weights,
            .b_stride = inputs,
            .b_transposed = true,
            .c = out,
            .c_stride = stride(options.outputs_stride, outputs),
            .in = element,
            .out = out_element};
  }

  GemmCall input_gradient_call(const Half* dout, const Half* weights, std::int64_t rows, std::int64_t outputs,
                               std::int64_t inputs, Half* dx, const LinearOptions& options = {}) const {
    return {.rows = rows,
            .columns = inputs,
            .inner = outputs,
            .a = dout,
            .a_stride = stride(options.outputs_stride, outputs),
            .b = weights,
            .b_stride = inputs,
            .c = dx,
            .c_stride = stride(options.inputs_stride, inputs),
            .in = element,
            .out = element,
            .beta = options.add ? 1.0F : 0.0F};
  }

  GemmCall weight_gradient_call(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs,
                                std::int64_t inputs, float* gradient, const LinearOptions& options = {}) const {
    return {.rows = outputs,
            .columns = inputs,
            .inner = rows,
            .a = dout,
            .a_stride = stride(options.outputs_stride, outputs),
            .a_transposed = true,
            .b = x,
            .b_stride = stride(options.inputs_stride, inputs),
            .c = gradient,
            .c_stride = inputs,
            .in = element,
            .out = Element::float32,
            .beta = 1};
  }
};

// The backend of layers in 16 bits, which enqueues on SliceCall::stream.
struct CudaBackend {
  using Number = Half;
  using Real = float;
  using Config = Element;
  using RoutedRow = cuda::RoutedRow;
  static constexpr bool kOnDevice = true;
  static constexpr bool kFusesNorms = true;
  static constexpr int kOptimizerStates = 3;

  struct Scratch {
    Scratch(Carver& carver, const StageSpec& spec, const RankSizes& sizes, const SliceShape& shape) {
      const std::int64_t rows = shape.rows();
      attention = carver.take<std::byte>(attention_scratch_bytes(attention_sizes(sizes, shape), spec.attention));
      dot_products = carver.take<float>(rows * sizes.heads);
      if (!spec.sliced) keys_gradient = carver.take<float>(2 * values_after(rows, sizes.key_width));
      if (spec.has_rotary()) angles = carver.take<float>(shape.tokens * sizes.head_dim);
      if (!spec.contents.head) return;
      auto* const all = carver.take<float>(kRowSums * rows);
      if (all == nullptr) return;
      sums = {.maxima = all, .own_maxima = all + rows, .sums = all + 2 * rows, .losses = all + 4 * rows};
    }
    std::byte* attention = nullptr;
    float* dot_products = nullptr;   // [heads, n], backward
    float* keys_gradient = nullptr;  // [2, n w], backward, if not sliced; see values_after
    float* angles = nullptr;         // without SliceCall::tables
    RowSums sums;
  };

  // Messages between the ranks of experts.
  struct Exchange {
    StreamGroup* group;
    Stream& stream;
    std::vector<ExchangeBlock> sends{};
    std::vector<ExchangeBlock> receives{};
    void send(int rank, std::byte* data, std::int64_t bytes) { sends.push_back({rank, data, bytes}); }
    void receive(int rank, std::byte* data, std::int64_t bytes) { receives.push_back({rank, data, bytes}); }
    void finish() { group->exchange(sends, receives, stream); }
  };

  CudaBackend(Element element, const StageSpec& of_stage, const RankSizes& of_rank, const SliceCall& of_op,
              const Scratch& of_scratch)
      : spec(of_stage), sizes(of_rank), call(of_op), scratch(of_scratch), linear{element, *call.device, *call.stream} {}

  const StageSpec& spec;
  const RankSizes& sizes;
  const SliceCall& call;
  const Scratch& scratch;
  Linear linear;

  std::int64_t rows() const { return call.shape.rows(); }
  std::int64_t logit_columns() const { return sizes.vocab_columns; }
  void all_reduce(Half* data, std::int64_t count) const { all_reduce(data, count, linear.element); }
  void all_reduce(float* data, std::int64_t count) const { all_reduce(data, count, Element::float32); }
  Exchange exchange() const { return {call.stream_experts, linear.stream}; }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const {
    linear.device.copy(to, from, bytes, linear.stream);
  }
  void wait() const {
    call.wait_for != nullptr ? (*call.wait_for)(linear.stream) : linear.device.synchronize(linear.stream);
  }

  void residual_norm(const Half* from, Half* x, const Half* residual, const Half* bias,
                     const LayerNorm<CudaBackend>& norm) const {
    cuda::residual_norm(linear.stream, linear.element, from, x, residual, bias, rows(), sizes.hidden,
                        {.gain = norm.gain, .bias = norm.bias, .rms = spec.model.rms_norm}, norm.statistics, norm.out,
                        norm.not_finite);
  }
  void norm_gradient(const Half* gradient, const Half* x, const Half* residual, const Half* gain,
                     const float* statistics, Half* dx, float* gain_gradient, float* bias_gradient,
                     std::int32_t* not_finite = nullptr) const {
    cuda::norm_gradient(linear.stream, linear.element, gradient, x, residual,
                        {.gain = gain, .rms = spec.model.rms_norm}, statistics, rows(), sizes.hidden, dx, gain_gradient,
                        bias_gradient, not_finite);
  }
  void add_bias_gradient(const Half* gradient, std::int64_t width, float* into) const {
    add_column_sums(linear.stream, linear.element, gradient, rows(), width, into);
  }
  void weight_gradients(std::span<const MatrixGradient<CudaBackend>> matrices, float* weight_gradients) const {
    for (const auto& [gradient, outputs, input, inputs, matrix, bias] : matrices) {
      if (outputs == 0) continue;
      linear.weight_gradient(gradient, input, rows(), outputs, inputs, weight_gradients + matrix);
    }
  }

  void activate(const Half* pre, const Half* bias, std::int64_t count, std::int64_t width, Half* out,
                const RowFactors& factors = {}) const {
    cuda::activate(linear.stream, linear.element, spec.model.gated, pre, bias, count, width, out, factors);
  }
  void activate_gradient(const Half* pre, const Half* bias, std::int64_t count, std::int64_t width, Half* gradient,
                         const RowFactors& factors = {}) const {
    cuda::activate_gradient(linear.stream, linear.element, spec.model.gated, pre, bias, count, width, gradient,
                            factors);
  }

  void compute_rotary_angles() const {
    if (!spec.has_rotary() || call.tables != nullptr) return;
    rotary_angles(linear.stream, call.shape.context, call.shape.tokens, sizes.head_dim, scratch.angles);
  }
  void attention_forward(const Half* qkv, const Half* bias, const LayerKeys<CudaBackend>& keys, Half* queries,
                         Half* out, float* log_sums) const {
    split_qkv(linear.stream, linear.element, qkv_shape(keys), qkv, bias, queries, keys.keys, keys.values);
    cuda::attention_forward({.choice = spec.attention,
                             .shape = attention_sizes(sizes, call.shape),
                             .element = linear.element,
                             .queries = queries,
                             .keys = {.tokens = keys.tokens, .keys = keys.keys},
                             .out = out,
                             .log_sums = log_sums,
                             .scratch = scratch.attention},
                            linear.device, linear.stream);
  }
  void attention_gradient(const LayerKeys<CudaBackend>& keys, const Half* queries, Half* out, float* log_sums,
                          const Half* out_gradient, Half* qkv_gradient) const {
    float* const keys_gradient = spec.sliced ? keys.keys_gradient : scratch.keys_gradient;
    // Without slices, libraries write all gradients to the fused rows.
    const bool in_rows =
        attention_backward({.choice = spec.attention,
                            .shape = attention_sizes(sizes, call.shape),
                            .element = linear.element,
                            .queries = queries,
                            .keys = {.tokens = keys.tokens, .keys = keys.keys, .keys_gradient = keys_gradient},
                            .accumulate = spec.sliced,
                            .key_rows_gradient = spec.sliced ? nullptr : qkv_gradient + sizes.query_width,
                            .out = out,
                            .log_sums = log_sums,
                            .out_gradient = out_gradient,
                            .dot_products = scratch.dot_products,
                            .queries_gradient = qkv_gradient,
                            .queries_gradient_stride = sizes.qkv_width,
                            .scratch = scratch.attention},
                           linear.device, linear.stream);
    const std::int64_t values_at = values_after(call.shape.sequences * keys.tokens, sizes.key_width);
    merge_qkv_gradients(linear.stream, linear.element, qkv_shape(keys), in_rows ? nullptr : keys_gradient,
                        in_rows ? nullptr : keys_gradient + values_at, qkv_gradient);
  }

  void embed(const EmbeddingShape& shape, const Half* words, const Half* positions, Half* out) const {
    if (positions != nullptr) positions += call.shape.context * shape.hidden;
    cuda::embed(linear.stream, linear.element, shape, call.tokens, words, positions, out);
  }
  void embedding_gradient(const EmbeddingShape& shape, const Half* gradient, float* words, float* positions) const {
    if (positions != nullptr) positions += call.shape.context * shape.hidden;
    cuda::embedding_gradient(linear.stream, linear.element, shape, call.tokens, gradient, words, positions);
  }

  void loss(const LogitsShape& shape, Half* logits, const SliceCall& /*result*/) const {
    const RowSums& sums = scratch.sums;
    sum_logits(linear.stream, linear.element, shape, logits, call.targets, sums);
    if (spec.tensor_parallel > 1) {
      call.stream_group->all_reduce_max(sums.maxima, shape.rows, linear.stream);
      rescale_sums(linear.stream, shape.rows, sums);
      all_reduce(sums.sums, 2 * shape.rows);
    }
    logits_gradient(linear.stream, linear.element, shape, logits, call.targets, sums,
                    static_cast<float>(call.loss_scale), call.loss_on_device, call.not_finite);
  }

  void choose_experts(std::int64_t own, std::int64_t experts, std::int64_t k, float* scores,
                      std::int32_t* choices) const {
    cuda::choose_experts(linear.stream, own, experts, k, scores, choices);
  }
  void place_choices(std::int64_t count, std::int64_t experts, const std::int32_t* choices, std::int32_t* places,
                     std::int32_t* sent) const {
    cuda::place_choices(linear.stream, count, experts, choices, places, sent);
  }
  void send_rows(const RoutedRows& routed, const Half* matrix, std::int64_t width, bool with_scores,
                 std::int64_t stride, Half* out) const {
    cuda::send_rows(linear.stream, routed, matrix, width, with_scores, stride, out);
  }
  void add_routed_rows(const RoutedRows& routed, const Half* results, std::int64_t stride, std::int64_t all_rows,
                       std::int64_t width, bool adds, const Half* factors, const Half* direction, Half* out) const {
    cuda::add_routed_rows(linear.stream, linear.element, routed, results, stride, all_rows, width, adds, factors,
                          direction, out);
  }
  void logit_gradients(const RoutedRows& routed, const Half* results, const RoutedRow& of, std::int64_t all_rows,
                       Half* gradients) const {
    cuda::logit_gradients(linear.stream, linear.element, routed, results, of, all_rows, gradients);
  }
  void apply_sigmoid(std::int64_t count, float* numbers) const { cuda::apply_sigmoid(linear.stream, count, numbers); }
  void sigmoid_gradient(std::int64_t count, const float* outputs, const float* output_gradients,
                        Half* gradients) const {
    cuda::sigmoid_gradient(linear.stream, linear.element, count, outputs, output_gradients, gradients);
  }

 private:
  void all_reduce(void* data, std::int64_t count, Element element) const {
    if (spec.tensor_parallel > 1) call.stream_group->all_reduce_sum(data, count, element, linear.stream);
  }
  QkvShape qkv_shape(const LayerKeys<CudaBackend>& keys) const {
    const float* angles = scratch.angles;
    if (spec.has_rotary() && call.tables != nullptr) {
      angles = reinterpret_cast<const float*>(call.tables) + call.shape.context * sizes.head_dim;
    }
    return {.rows = rows(),
            .tokens = call.shape.tokens,
            .heads = static_cast<int>(sizes.heads),
            .kv_heads = static_cast<int>(sizes.kv_heads),
            .head_dim = static_cast<int>(sizes.head_dim),
            .key_tokens = keys.tokens,
            .key_context = call.shape.context,
            .angles = angles};
  }
};

class CudaStage final : public LayeredStage<CudaBackend> {
 public:
  CudaStage(const StageSpec& of_stage, Element element)
      : LayeredStage(of_stage, element),
        element_(element),
        step_ranges_(cuda::step_ranges(offsets())),
        counted_ranges_(cuda::counted_ranges(offsets())) {}

  std::int64_t slice_host_bytes() const override {
    return spec().contents.expert_layers * expert_host_bytes(sizes().experts);
  }
  std::int64_t table_bytes(std::int64_t positions) const override {
    return spec().has_rotary() ? positions * sizes().head_dim * static_cast<std::int64_t>(sizeof(float)) : 0;
  }
  void fill_tables(std::byte* tables, std::int64_t positions, Stream& stream) const override {
    if (spec().has_rotary()) rotary_angles(stream, 0, positions, sizes().head_dim, reals(tables));
  }
  double squared_norm(const std::byte*) const override {
    throw std::logic_error("squared_norm is not implemented by device stages");
  }
  void add_squared_norm(const std::byte* gradients, float* squares, Stream& stream) const override {
    add_squares(stream, counted_ranges_, reals(gradients), squares);
  }
  void draw_weights(std::byte* float_weights, std::uint64_t seed, Stream& stream) const override {
    cuda::draw_weights(stream, spec(), offsets(), seed, reals(float_weights));
  }
  void set_weights(const std::byte* float_weights, std::byte* weights, std::byte* optimizer_state,
                   Stream& stream) const override {
    cuda::set_weights(stream, element_, offsets().elements, reals(float_weights), reals(optimizer_state),
                      numbers(weights));
  }
  void step(const std::byte* /*weights*/, std::byte* new_weights, std::byte* optimizer_state,
            const std::byte* gradients, const OptimizerStep& step) const override {
    float* const master = reals(optimizer_state);
    optimizer_step(*step.stream, element_, step_ranges_, step,
                   {.master = master, .first = master + offsets().elements, .second = master + 2 * offsets().elements},
                   reals(gradients), numbers(new_weights));
  }

 private:
  Element element_;
  std::vector<WeightRange> step_ranges_;
  std::vector<WeightRange> counted_ranges_;
};

class CudaKernels final : public DeviceKernels {
 public:
  std::unique_ptr<Stage> make_stage(const StageSpec& spec, Precision precision) const override {
    switch (precision) {
      case Precision::float16: return std::make_unique<CudaStage>(spec, Element::float16);
      case Precision::bfloat16: return std::make_unique<CudaStage>(spec, Element::bfloat16);
      case Precision::float32:
      case Precision::float64: break;
    }
    throw InputError("precision: devices support fp16 and bf16");
  }
  void add(Stream& stream, Element element, const void* from, std::int64_t count, void* into) const override {
    cuda::add(stream, element, from, count, into);
  }
  void maximum(Stream& stream, const float* from, std::int64_t count, float* into) const override {
    cuda::maximum(stream, from, count, into);
  }
  void flag_not_finite(Stream& stream, Element element, const void* data, std::int64_t count,
                       std::int32_t* flag) const override {
    cuda::flag_not_finite(stream, element, data, count, flag);
  }
  void fill_not_a_number(Stream& stream, Element element, void* data, std::int64_t count) const override {
    cuda::fill_not_a_number(stream, element, data, count);
  }
  void gradient_scale(Stream& stream, const float* squares, float clip, float loss_scale, float* scale,
                      float* norm) const override {
    cuda::gradient_scale(stream, squares, clip, loss_scale, scale, norm);
  }
};

}  // namespace
}  // namespace cuda

const DeviceKernels* device_kernels() {
  static const cuda::CudaKernels kernels;
  return &kernels;
}

}  // namespace sluice::kernels

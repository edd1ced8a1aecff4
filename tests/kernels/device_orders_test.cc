// Kernels whose threads cooperate give bitwise equal results in any order of warps in the emulation: none reads data
// that another warp has not written yet.

#include <algorithm>
#include <vector>

#include "kernels/cuda/gemm_attention.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/routing.h"
#include "kernels/emulation/block.h"
#include "kernels/emulation/device.h"
#include "tests/kernels/device_fixture.h"

namespace sluice::test {
namespace {

using emulation::ExecutionOrder;
using Numbers = std::vector<double>;

class DeviceOrders : public DeviceKernels {
 protected:
  // Returns all outputs, for equal inputs each time.
  std::vector<Numbers> results(const ExecutionOrder& order) {
    emulation::put(*stream_, [order] { emulation::set_execution_order(order); });
    engine_.seed(11);
    std::vector<Numbers> out;
    norms(out);
    attention(out);
    loss(out);
    places(out);
    return out;
  }

 private:
  void norms(std::vector<Numbers>& out) {
    constexpr std::int64_t kNormRows = 34;
    constexpr std::int64_t kWidth = 600;  // three warps of chunks
    cuda::Half* const x = halves(random(kNormRows * kWidth));
    const cuda::NormWeights weights{.gain = halves(random(kWidth)), .bias = halves(random(kWidth))};
    float* const statistics = floats(kNormRows * kNormStatistics);
    cuda::Half* const normed = halves(kNormRows * kWidth);
    cuda::residual_norm(*stream_, element(), x, x, halves(random(kNormRows * kWidth)), halves(random(kWidth)),
                        kNormRows, kWidth, weights, statistics, normed);
    cuda::Half* const dx = halves(kNormRows * kWidth);
    float* const gain_gradient = floats(Numbers(kWidth));
    float* const bias_gradient = floats(Numbers(kWidth));
    cuda::norm_gradient(*stream_, element(), normed, x, nullptr, weights, statistics, kNormRows, kWidth, dx,
                        gain_gradient, bias_gradient);
    out.insert(out.end(),
               {read(x), read(statistics), read(normed), read(dx), read(gain_gradient), read(bias_gradient)});
  }

  void places(std::vector<Numbers>& out) {
    constexpr std::int64_t kChoices = 600;
    std::vector<std::int32_t> choices(kChoices);
    for (std::size_t i = 0; i < choices.size(); ++i) choices[i] = static_cast<std::int32_t>(i * i % 7);
    // The bits of integers are those of finite float32 numbers.
    float* const found = floats(kChoices);
    float* const sent = floats(std::int64_t{7});
    cuda::place_choices(*stream_, kChoices, 7, integers(choices), reinterpret_cast<std::int32_t*>(found),
                        reinterpret_cast<std::int32_t*>(sent));
    out.insert(out.end(), {read(found), read(sent)});
  }

  void attention(std::vector<Numbers>& out) {
    const AttentionSizes shape{.tokens = 3, .heads = 2, .kv_heads = 1, .head_dim = 8, .context = 70};
    const std::int64_t of_keys = 2 * values_after(73, shape.key_width());
    const cuda::KeyRows keys{.tokens = 73,
                             .keys = halves(random(of_keys)),
                             .keys_gradient = floats(Numbers(static_cast<std::size_t>(of_keys)))};
    const std::int64_t size = shape.rows() * shape.query_width();
    cuda::Half* const queries = halves(random(size));
    cuda::Half* const attended = halves(size);
    float* const log_sums = floats(shape.heads * shape.rows());
    std::byte* const scratch = memory(cuda::gemm_attention_scratch_bytes(shape)).data();
    cuda::gemm_attention_forward({.shape = shape,
                                  .element = element(),
                                  .queries = queries,
                                  .keys = keys,
                                  .out = attended,
                                  .log_sums = log_sums,
                                  .scratch = scratch},
                                 *device_, *stream_);
    cuda::Half* const gradient = halves(random(size));
    float* const dot_products = floats(shape.heads * shape.rows());
    cuda::row_dot_products(shape, element(), attended, gradient, dot_products, *stream_);
    cuda::Half* const queries_gradient = halves(size);
    cuda::gemm_attention_backward({.shape = shape,
                                   .element = element(),
                                   .queries = queries,
                                   .keys = keys,
                                   .log_sums = log_sums,
                                   .out_gradient = gradient,
                                   .dot_products = dot_products,
                                   .queries_gradient = queries_gradient,
                                   .queries_gradient_stride = shape.query_width(),
                                   .scratch = scratch},
                                  *device_, *stream_);
    out.insert(out.end(),
               {read(attended), read(log_sums), read(dot_products), read(queries_gradient), read(keys.keys_gradient)});
  }

  void loss(std::vector<Numbers>& out) {
    const LogitsShape shape{.rows = 3, .columns = 590, .stride = 600};
    cuda::Half* const logits = halves(random(shape.rows * shape.stride, 3));
    const std::int32_t* const targets = integers({5, 0, 589});
    const cuda::RowSums sums{.maxima = floats(3), .own_maxima = floats(3), .sums = floats(6), .losses = floats(3)};
    float* const total = floats(1);
    cuda::sum_logits(*stream_, element(), shape, logits, targets, sums);
    cuda::logits_gradient(*stream_, element(), shape, logits, targets, sums, 2, total);
    out.insert(out.end(), {read(logits), read(sums.sums), read(total)});
  }
};
INSTANTIATE_TEST_SUITE_P(Types, DeviceOrders, ::testing::Values(Element::float16, Element::bfloat16),
                         [](const auto& type) { return type.param == Element::float16 ? "fp16" : "bf16"; });

TEST_P(DeviceOrders, ResultsDoNotDependOnTheOrderOfWarps) {
  const std::vector<Numbers> reference = results({});
  for (const Numbers& numbers : reference) {
    EXPECT_TRUE(std::none_of(numbers.begin(), numbers.end(), [](double number) { return number != number; }));
  }
  for (const ExecutionOrder::Warps warps : {ExecutionOrder::Warps::first_ahead, ExecutionOrder::Warps::last_ahead}) {
    EXPECT_EQ(results({.warps = warps}), reference);
  }
  for (std::uint32_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(results({.warps = ExecutionOrder::Warps::random, .seed = seed}), reference);
  }
}

}  // namespace
}  // namespace sluice::test

// Compares GEMM attention on a device with attention on the CPU in double precision.

#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cuda/gemm_attention.h"
#include "tests/kernels/device_fixture.h"

namespace sluice::test {
namespace {

using Numbers = std::vector<double>;

class DeviceAttention : public DeviceKernels {};
INSTANTIATE_TEST_SUITE_P(Types, DeviceAttention, ::testing::Values(Element::float16, Element::bfloat16),
                         [](const auto& type) { return type.param == Element::float16 ? "fp16" : "bf16"; });

struct GemmAttentionCase {
  int heads;
  int kv_heads;
  int head_dim;
  int sequences;
  int context;  // tokens before the slice, in the slice, and after it
  int tokens;
  int after;
  std::int64_t workspace;
};

TEST_P(DeviceAttention, GemmAttentionEqualsCpu) {
  constexpr std::int64_t kEnough = std::int64_t{1} << 20;
  for (const GemmAttentionCase& of : {
           GemmAttentionCase{2, 2, 8, 1, 0, 9, 0, kEnough},
           GemmAttentionCase{4, 2, 16, 2, 0, 13, 0, kEnough},
           GemmAttentionCase{3, 1, 5, 2, 5, 7, 0, kEnough},
           GemmAttentionCase{4, 4, 8, 1, 24, 8, 0, kEnough},
           GemmAttentionCase{4, 2, 8, 3, 7, 5, 4, kEnough},
           GemmAttentionCase{2, 1, 16, 2, 0, 6, 11, kEnough},
           // Tiles of 64 rows of half of the heads, and of a single row. (The scores of 5 + 70 tokens have 80 columns.)
           GemmAttentionCase{4, 4, 8, 2, 5, 70, 3, 2 * 64 * 2 * 80 * 4},
           GemmAttentionCase{4, 2, 8, 1, 5, 11, 0, 1},
           // More keys than threads per block.
           GemmAttentionCase{1, 1, 8, 1, 300, 2, 0, kEnough},
       }) {
    const AttentionSizes shape{.sequences = of.sequences,
                               .tokens = of.tokens,
                               .heads = of.heads,
                               .kv_heads = of.kv_heads,
                               .head_dim = of.head_dim,
                               .context = of.context};
    const std::int64_t n = shape.rows();
    const std::int64_t q = shape.query_width();
    const std::int64_t w = shape.key_width();

    // Keys and values of both; those of the CPU are double. Tokens after the slice are not read: they are not numbers.
    const std::int64_t tokens = of.context + of.tokens + of.after;
    const std::int64_t values_at = values_after(of.sequences * tokens, w);
    Numbers numbers = random(2 * values_at);
    for (int sequence = 0; sequence < of.sequences; ++sequence) {
      const std::int64_t end = (sequence + 1) * tokens * w;
      for (std::int64_t i = end - of.after * w; i < end; ++i) {
        numbers[i] = numbers[values_at + i] = std::numeric_limits<double>::quiet_NaN();
      }
    }
    Numbers gradients = random_of(Element::float32, 2 * values_at);
    const cuda::KeyRows keys_there{.tokens = tokens, .keys = halves(numbers), .keys_gradient = floats(gradients)};
    const cpu::KeysValues<double> keys{.keys = numbers.data(),
                                       .values = numbers.data() + values_at,
                                       .stride = w,
                                       .keys_gradient = gradients.data(),
                                       .values_gradient = gradients.data() + values_at,
                                       .gradient_stride = w,
                                       .tokens = tokens};
    Carver measure;
    const cpu::AttentionScratch<double> sizes(measure);
    std::vector<std::byte> cpu_scratch(static_cast<std::size_t>(measure.bytes()));
    Carver carver(cpu_scratch.data());
    const cpu::AttentionScratch<double> scratch(carver);

    const Numbers queries = random(n * q);
    cuda::Half* const queries_there = halves(queries);
    cuda::Half* const out = halves(n * q);
    float* const log_sums = floats(of.heads * n);
    std::byte* const scratch_there = memory(cuda::gemm_attention_scratch_bytes(shape, of.workspace)).data();
    cuda::gemm_attention_forward({.shape = shape,
                                  .element = element(),
                                  .queries = queries_there,
                                  .keys = keys_there,
                                  .out = out,
                                  .log_sums = log_sums,
                                  .scratch = scratch_there},
                                 *device_, *stream_, of.workspace);
    Numbers expected(static_cast<std::size_t>(n * q));
    Numbers expected_log_sums(static_cast<std::size_t>(of.heads * n));
    cpu::attention<double>(shape, queries.data(), keys, scratch, expected.data(), expected_log_sums.data(),
                           shape.rows());
    EXPECT_LT(relative_error(read(out), expected), allowed());
    EXPECT_LT(relative_error(read(log_sums), expected_log_sums), 1e-5);

    const Numbers gradient = random(n * q);
    cuda::Half* const gradient_there = halves(gradient);
    float* const dot_products = floats(of.heads * n);
    cuda::row_dot_products(shape, element(), out, gradient_there, dot_products, *stream_);
    const std::int64_t stride = q + 2 * w;
    cuda::Half* const queries_gradient = halves(Numbers(static_cast<std::size_t>(n * stride), 3.0));
    cuda::gemm_attention_backward({.shape = shape,
                                   .element = element(),
                                   .queries = queries_there,
                                   .keys = keys_there,
                                   .log_sums = log_sums,
                                   .out_gradient = gradient_there,
                                   .dot_products = dot_products,
                                   .queries_gradient = queries_gradient,
                                   .queries_gradient_stride = stride,
                                   .scratch = scratch_there},
                                  *device_, *stream_, of.workspace);
    Numbers expected_gradient(static_cast<std::size_t>(n * stride), 3.0);
    cpu::attention_gradient<double>(shape, queries.data(), keys, expected.data(), expected_log_sums.data(),
                                    shape.rows(), gradient.data(), scratch, expected_gradient.data(), stride);
    // The columns of keys and values are not written.
    EXPECT_LT(relative_error(read(queries_gradient), expected_gradient), allowed());
    EXPECT_LT(relative_error(read(keys_there.keys_gradient), gradients), allowed());
  }
}

TEST(GemmAttention, ScratchFitsTheWorkspace) {
  const AttentionSizes shape{
      .sequences = 1, .tokens = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128, .context = 24576};
  const std::int64_t bytes = cuda::gemm_attention_scratch_bytes(shape);
  EXPECT_LE(bytes, cuda::kAttentionWorkspace);
  // And uses more than half of it.
  EXPECT_GT(2 * bytes, cuda::kAttentionWorkspace);
}

}  // namespace
}  // namespace sluice::test

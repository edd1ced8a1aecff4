// Compares GEMM attention on a device with attention on the CPU in double precision.

#include <numeric>

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
  std::vector<std::int64_t> slices;
  std::int64_t workspace;
};

// Runs the last slice, whose tokens attend to all others.
TEST_P(DeviceAttention, GemmAttentionEqualsCpu) {
  constexpr std::int64_t kEnough = std::int64_t{1} << 20;
  for (const GemmAttentionCase& of : {
           GemmAttentionCase{2, 2, 8, 1, {9}, kEnough},
           GemmAttentionCase{4, 2, 16, 2, {13}, kEnough},
           GemmAttentionCase{3, 1, 5, 2, {4, 1, 7}, kEnough},
           GemmAttentionCase{4, 4, 8, 1, {8, 16, 8}, kEnough},
           // Tiles of 64 rows of half of the heads, and of a single row. (The scores of 5 + 70 tokens have 112 columns,
           // which 5 slices of one token would need.)
           GemmAttentionCase{4, 4, 8, 2, {5, 70}, 2 * 64 * 2 * 112 * 4 + 4 * 64 * 2 * 8},
           GemmAttentionCase{4, 2, 8, 1, {5, 11}, 1},
           // More keys than threads per block.
           GemmAttentionCase{1, 1, 8, 1, {300, 2}, kEnough},
       }) {
    AttentionSizes shape{.sequences = of.sequences,
                         .tokens = static_cast<int>(of.slices.back()),
                         .heads = of.heads,
                         .kv_heads = of.kv_heads,
                         .head_dim = of.head_dim};
    shape.context = std::accumulate(of.slices.begin(), of.slices.end() - 1, std::int64_t{0});
    const std::int64_t n = shape.rows();
    const std::int64_t q = shape.query_width();
    const std::int64_t w = shape.key_width();

    // Blocks of keys and values of both; those of the CPU are double.
    cuda::KeySegments segments;
    std::vector<Numbers> blocks;
    std::vector<Numbers> gradient_blocks;
    std::vector<float*> gradients;
    for (const std::int64_t tokens : of.slices) {
      const std::int64_t rows = of.sequences * tokens;
      const std::int64_t size = cuda::values_after(rows, w);
      blocks.push_back(random(2 * size));
      gradient_blocks.push_back(random_of(Element::float32, 2 * size));
      gradients.push_back(floats(gradient_blocks.back()));
      segments.tokens[segments.count] = static_cast<std::int32_t>(tokens);
      segments.keys[segments.count] = halves(blocks.back());
      segments.keys_gradient[segments.count] = gradients.back();
      ++segments.count;
    }
    std::vector<std::byte*> block_places;
    std::vector<std::byte*> gradient_places;
    for (Numbers& block : blocks) block_places.push_back(reinterpret_cast<std::byte*>(block.data()));
    for (Numbers& block : gradient_blocks) gradient_places.push_back(reinterpret_cast<std::byte*>(block.data()));
    cpu::KeysValues<double> keys{.blocks = block_places,
                                 .gradient_blocks = gradient_places,
                                 .tokens = of.slices,
                                 .sequences = of.sequences,
                                 .width = w};
    keys.own = keys.in_block(keys.earlier(), of.slices.back());
    Carver<double> measure;
    const cpu::AttentionScratch<double> sizes(measure);
    std::vector<std::byte> cpu_scratch(static_cast<std::size_t>(measure.bytes()));
    Carver<double> carver(cpu_scratch.data());
    const cpu::AttentionScratch<double> scratch(carver);

    const Numbers queries = random(n * q);
    cuda::Half* const queries_there = halves(queries);
    cuda::Half* const out = halves(n * q);
    float* const log_sums = floats(of.heads * n);
    std::byte* const scratch_there = memory(cuda::gemm_attention_scratch_bytes(shape, of.workspace)).data();
    cuda::gemm_attention_forward({.shape = shape,
                                  .element = element(),
                                  .queries = queries_there,
                                  .segments = segments,
                                  .out = out,
                                  .log_sums = log_sums,
                                  .scratch = scratch_there},
                                 *device_, *stream_, of.workspace);
    Numbers expected(static_cast<std::size_t>(n * q));
    Numbers expected_log_sums(static_cast<std::size_t>(of.heads * n));
    cpu::attention<double>(shape, queries.data(), keys, scratch, expected.data(), expected_log_sums.data());
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
                                   .segments = segments,
                                   .log_sums = log_sums,
                                   .out_gradient = gradient_there,
                                   .dot_products = dot_products,
                                   .queries_gradient = queries_gradient,
                                   .queries_gradient_stride = stride,
                                   .scratch = scratch_there},
                                  *device_, *stream_, of.workspace);
    Numbers expected_gradient(static_cast<std::size_t>(n * stride), 3.0);
    cpu::attention_gradient<double>(shape, queries.data(), keys, expected.data(), expected_log_sums.data(),
                                    gradient.data(), scratch, expected_gradient.data(), stride);
    // The columns of keys and values are not written.
    EXPECT_LT(relative_error(read(queries_gradient), expected_gradient), allowed());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_LT(relative_error(read(gradients[i]), gradient_blocks[i]), allowed()) << "slice " << i;
    }
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

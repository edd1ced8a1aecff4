// Compares device kernels with those of the CPU in double precision on random numbers: ||out - reference|| /
// ||reference|| is below 1e-2 in bf16 and 2e-3 in fp16.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/elementwise.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/loss.h"
#include "tests/kernels/device_fixture.h"

namespace sluice::test {
namespace {

using Numbers = std::vector<double>;

class DeviceElementwise : public DeviceKernels {
 protected:
  // Compares one output of an op, called `what` in failures.
  void expect_near(const Numbers& out, const Numbers& reference, const char* what) {
    EXPECT_LT(relative_error(out, reference), allowed()) << what;
  }
};
INSTANTIATE_TEST_SUITE_P(Types, DeviceElementwise, ::testing::Values(Element::float16, Element::bfloat16),
                         [](const auto& type) { return type.param == Element::float16 ? "fp16" : "bf16"; });

constexpr std::int64_t kTokenRows = 19;

// Rows of whole chunks of 8, of which one has more chunks than a block of 32 threads, and rows with a partial chunk.
constexpr std::int64_t kWidths[] = {48, 296, 37};

TEST_P(DeviceElementwise, ResidualNormEqualsCpu) {
  for (const std::int64_t n : kWidths) {
    for (const bool rms : {false, true}) {
      for (const bool with_residual : {false, true}) {
        const Numbers x = random(kTokenRows * n, 2, 0.5);
        const Numbers residual = random(kTokenRows * n);
        const Numbers residual_bias = random(n);
        const Numbers gain = random(n, 0.5, 1);
        const Numbers bias = random(n);
        cuda::Half* const sum = halves(x);
        float* const statistics = floats(kTokenRows * kNormStatistics);
        cuda::Half* const out = halves(kTokenRows * n);
        cuda::residual_norm(*stream_, element(), sum, sum, with_residual ? halves(residual) : nullptr,
                            halves(residual_bias), kTokenRows, n,
                            {.gain = halves(gain), .bias = rms ? nullptr : halves(bias), .rms = rms}, statistics, out);

        Numbers expected_sum = x;
        if (with_residual) {
          cpu::add_bias_residual<double>(residual_bias.data(), residual.data(), kTokenRows, n, expected_sum.data());
        }
        expect_near(read(sum), expected_sum, "sum");
        Numbers expected_statistics(kTokenRows * 2);
        Numbers expected(static_cast<std::size_t>(kTokenRows * n));
        cpu::norm<double>(read(sum).data(), gain.data(), rms ? nullptr : bias.data(), rms, kTokenRows, n,
                          expected_statistics.data(), expected.data());
        expect_near(read(statistics), expected_statistics, "statistics");
        expect_near(read(out), expected, "norm");
      }
    }
  }
}

TEST_P(DeviceElementwise, ResidualWithoutNormEqualsCpu) {
  const Numbers x = random(kTokenRows * 48);
  const Numbers residual = random(kTokenRows * 48);
  cuda::Half* const sum = halves(x);
  cuda::residual_norm(*stream_, element(), sum, sum, halves(residual), nullptr, kTokenRows, 48, {}, nullptr, nullptr);
  Numbers expected = x;
  cpu::add<double>(residual.data(), kTokenRows * 48, expected.data());
  expect_near(read(sum), expected, "sum");
}

TEST_P(DeviceElementwise, FirstNormKeepsItsInput) {
  for (const std::int64_t n : kWidths) {
    const Numbers x = random(kTokenRows * n);
    cuda::Half* const from = halves(x);
    cuda::Half* const kept = halves(kTokenRows * n);
    float* const statistics = floats(kTokenRows * kNormStatistics);
    cuda::Half* const out = halves(kTokenRows * n);
    cuda::Half* const in_place = halves(kTokenRows * n);
    const cuda::NormWeights weights{.gain = halves(random(n)), .rms = true};
    cuda::residual_norm(*stream_, element(), from, kept, nullptr, nullptr, kTokenRows, n, weights, statistics, out);
    cuda::residual_norm(*stream_, element(), from, from, nullptr, nullptr, kTokenRows, n, weights, statistics,
                        in_place);
    EXPECT_EQ(read(kept), x);
    EXPECT_EQ(read(out), read(in_place));
    // Without a norm it is a copy.
    cuda::Half* const copied = halves(kTokenRows * n);
    cuda::residual_norm(*stream_, element(), from, copied, nullptr, nullptr, kTokenRows, n, {}, nullptr, nullptr);
    EXPECT_EQ(read(copied), x);
  }
}

TEST_P(DeviceElementwise, NormsFlagWhatIsNotFinite) {
  for (const std::int64_t n : kWidths) {
    const cuda::NormWeights weights{.gain = halves(Numbers(static_cast<std::size_t>(n), 1.0)), .rms = true};
    float* const statistics = floats(Numbers(kTokenRows * 2, 1.0));
    float* const sums = floats(Numbers(static_cast<std::size_t>(n)));
    const auto flag_of = [&](double last, bool gradient) {
      Numbers x = random(kTokenRows * n);
      x.back() = last;
      cuda::Half* const numbers = halves(x);
      std::int32_t* const flag = integers({0});
      if (gradient) {
        cuda::norm_gradient(*stream_, element(), halves(random(kTokenRows * n)), halves(random(kTokenRows * n)),
                            numbers, weights, statistics, kTokenRows, n, halves(kTokenRows * n), sums, nullptr, flag);
      } else {
        cuda::residual_norm(*stream_, element(), numbers, numbers, halves(random(kTokenRows * n)), nullptr, kTokenRows,
                            n, {}, nullptr, nullptr, flag);
      }
      return flag_at(flag);
    };
    for (const bool gradient : {false, true}) {
      EXPECT_EQ(flag_of(1.5, gradient), 0);
      EXPECT_EQ(flag_of(std::numeric_limits<double>::infinity(), gradient), 1);
      EXPECT_EQ(flag_of(std::numeric_limits<double>::quiet_NaN(), gradient), 1);
    }
  }
}

TEST_P(DeviceElementwise, NormGradientEqualsCpu) {
  for (const std::int64_t n : kWidths) {
    for (const bool rms : {false, true}) {
      const Numbers gradient = random(kTokenRows * n);
      const Numbers x = random(kTokenRows * n, 2, 0.5);
      const Numbers gain = random(n, 0.5, 1);
      const Numbers bias(static_cast<std::size_t>(n));
      const Numbers residual = random(kTokenRows * n);
      const Numbers before = random_of(Element::float32, 2 * n, 5);
      Numbers statistics(kTokenRows * 2);
      Numbers normed(static_cast<std::size_t>(kTokenRows * n));
      cpu::norm<double>(x.data(), gain.data(), bias.data(), rms, kTokenRows, n, statistics.data(), normed.data());
      cuda::Half* const dx = halves(kTokenRows * n);
      float* const gain_gradient = floats(Numbers(before.begin(), before.begin() + n));
      float* const bias_gradient = floats(Numbers(before.begin() + n, before.end()));
      cuda::norm_gradient(*stream_, element(), halves(gradient), halves(x), halves(residual),
                          {.gain = halves(gain), .rms = rms}, floats(statistics), kTokenRows, n, dx, gain_gradient,
                          rms ? nullptr : bias_gradient);

      Numbers sums(static_cast<std::size_t>(2 * n));
      Numbers expected(static_cast<std::size_t>(kTokenRows * n));
      Numbers expected_sums = before;
      cpu::norm_gradient<double>(gradient.data(), x.data(), gain.data(), statistics.data(), residual.data(), rms,
                                 kTokenRows, n, sums.data(), expected.data(), expected_sums.data(),
                                 rms ? nullptr : expected_sums.data() + n);
      expect_near(read(dx), expected, "dx");
      expect_near(read(gain_gradient), Numbers(expected_sums.begin(), expected_sums.begin() + n), "gain");
      expect_near(read(bias_gradient), Numbers(expected_sums.begin() + n, expected_sums.end()), "bias");
    }
  }
}

// Fewer rows than a warp reads, several per thread with a remainder, and more than a block of all warps has in flight.
TEST_P(DeviceElementwise, ColumnSumsEqualCpu) {
  for (const std::int64_t rows : {1, 70, 1100}) {
    for (const std::int64_t n : kWidths) {
      const Numbers matrix = random(rows * n);
      const Numbers before = random_of(Element::float32, n);
      float* const sums = floats(before);
      cuda::add_column_sums(*stream_, element(), halves(matrix), rows, n, sums);
      Numbers expected = before;
      cpu::add_column_sums<double>(matrix.data(), rows, n, expected.data());
      EXPECT_LT(relative_error(read(sums), expected), 1e-6) << rows << " rows of " << n;
    }
  }
}

TEST_P(DeviceElementwise, GeluAndSwigluEqualCpu) {
  for (const std::int64_t n : kWidths) {
    for (const bool gated : {false, true}) {
      for (const bool with_bias : {false, true}) {
        const std::int64_t all = gated ? 2 * n : n;
        const Numbers x = random(kTokenRows * all, 2);
        const Numbers bias = random(all);
        const cuda::Half* const inputs = halves(x);
        const cuda::Half* const bias_there = with_bias ? halves(bias) : nullptr;
        cuda::Half* const out = halves(kTokenRows * n);
        cuda::activate(*stream_, element(), gated, inputs, bias_there, kTokenRows, n, out);
        Numbers pre = x;
        Numbers expected(static_cast<std::size_t>(kTokenRows * n));
        const auto forward = gated ? cpu::add_bias_swiglu<double> : cpu::add_bias_gelu<double>;
        forward(pre.data(), with_bias ? bias.data() : nullptr, kTokenRows, n, expected.data());
        expect_near(read(out), expected, "out");

        // The left half, that of the gates, is only written.
        Numbers gradient = random(kTokenRows * all);
        cuda::Half* const gradients = halves(gradient);
        cuda::activate_gradient(*stream_, element(), gated, inputs, bias_there, kTokenRows, n, gradients);
        if (gated) {
          cpu::swiglu_gradient<double>(pre.data(), kTokenRows, n, gradient.data());
        } else {
          cpu::gelu_gradient<double>(pre.data(), kTokenRows * n, gradient.data());
        }
        expect_near(read(gradients), gradient, "gradient");
      }
    }
  }
}

// The slope of large numbers is 0 or 1, and nothing overflows.
TEST_P(DeviceElementwise, ActivationsOfLargeNumbersDoNotOverflow) {
  const Numbers x = {-6e4, -300, -88, -1e-7, 0, 88, 300, 6e4};
  for (const bool gated : {false, true}) {
    Numbers pre = x;
    if (gated) pre.insert(pre.end(), x.size(), 1.0);
    cuda::Half* const place = halves(pre);
    cuda::Half* const out = halves(static_cast<std::int64_t>(x.size()));
    cuda::activate(*stream_, element(), gated, place, nullptr, 1, static_cast<std::int64_t>(x.size()), out);
    cuda::Half* const gradient = halves(Numbers(pre.size(), 1.0));
    cuda::activate_gradient(*stream_, element(), gated, place, nullptr, 1, static_cast<std::int64_t>(x.size()),
                            gradient);
    const Numbers values = read(out);
    const Numbers slopes = read(gradient);
    const Numbers numbers = rounded(element(), x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i]) < 1) continue;
      EXPECT_NEAR(values[i], x[i] > 0 ? numbers[i] : 0, 1e-3) << x[i];
      EXPECT_NEAR(slopes[i], x[i] > 0 ? 1 : 0, 1e-3) << x[i];
    }
  }
}

struct Heads {
  int heads;
  int kv_heads;
  int head_dim;
  bool rotary;
  std::int64_t context;
};

TEST_P(DeviceElementwise, RotaryEmbeddingEqualsCpu) {
  constexpr std::int64_t kTokens = 5;
  constexpr std::int64_t kSequences = 2;
  constexpr std::int64_t n = kSequences * kTokens;
  for (const Heads& of : {Heads{4, 2, 32, true, 0},
                          {2, 2, 6, true, 1000003},
                          {3, 1, 5, false, 7},
                          {2, 1, 16, false, 0},
                          // More chunks than threads.
                          {40, 40, 128, true, 100000}}) {
    const std::int64_t q = std::int64_t{of.heads} * of.head_dim;
    const std::int64_t w = std::int64_t{of.kv_heads} * of.head_dim;
    const std::int64_t all = q + 2 * w;
    const std::int64_t half = of.head_dim / 2;
    const Numbers qkv = random(n * all);
    const Numbers bias = random(all);
    Numbers cosines(static_cast<std::size_t>(kTokens * half));
    Numbers sines(cosines.size());
    cuda::QkvShape shape{.rows = n,
                         .tokens = kTokens,
                         .heads = of.heads,
                         .kv_heads = of.kv_heads,
                         .head_dim = of.head_dim,
                         .key_tokens = kTokens + 5,
                         .key_context = 3};
    // Rows of the slice within those of the microbatch, of which no other changes.
    const std::int64_t all_keys = n / kTokens * shape.key_tokens * w;
    const auto in_place = [&](const Numbers& rows, Numbers all_rows) {
      for (std::int64_t row = 0; row < n; ++row) {
        const std::int64_t to = row / kTokens * shape.key_tokens + shape.key_context + row % kTokens;
        std::copy_n(rows.begin() + row * w, w, all_rows.begin() + to * w);
      }
      return all_rows;
    };
    if (of.rotary) {
      float* const angles = floats(2 * kTokens * half);
      cuda::rotary_angles(*stream_, of.context, kTokens, of.head_dim, angles);
      cpu::rotary_angles<double>(of.context, kTokens, of.head_dim, cosines.data(), sines.data());
      Numbers expected;
      for (std::int64_t token = 0; token < kTokens; ++token) {
        expected.insert(expected.end(), cosines.begin() + token * half, cosines.begin() + (token + 1) * half);
        expected.insert(expected.end(), sines.begin() + token * half, sines.begin() + (token + 1) * half);
      }
      EXPECT_LT(relative_error(read(angles), expected), 1e-6) << "angles are accurate at any position";
      shape.angles = angles;
    }
    const auto rotate = [&](int heads, const double* from, std::int64_t stride, const double* added, bool rotary,
                            bool back, double* to, std::int64_t to_stride) {
      cpu::apply_rotary<double>({.rows = n, .tokens = kTokens, .heads = heads, .head_dim = of.head_dim}, from, stride,
                                added, rotary && of.rotary ? cosines.data() : nullptr, sines.data(), back, to,
                                to_stride);
    };

    cuda::Half* const queries = halves(n * q);
    const Numbers before = random(all_keys);
    cuda::Half* const keys = halves(before);
    cuda::Half* const values = halves(before);
    cuda::split_qkv(*stream_, element(), shape, halves(qkv), halves(bias), queries, keys, values);
    Numbers expected_queries(static_cast<std::size_t>(n * q));
    Numbers expected_keys(static_cast<std::size_t>(n * w));
    Numbers expected_values(static_cast<std::size_t>(n * w));
    rotate(of.heads, qkv.data(), all, bias.data(), true, false, expected_queries.data(), q);
    rotate(of.kv_heads, qkv.data() + q, all, bias.data() + q, true, false, expected_keys.data(), w);
    rotate(of.kv_heads, qkv.data() + q + w, all, bias.data() + q + w, false, false, expected_values.data(), w);
    expect_near(read(queries), expected_queries, "queries");
    expect_near(read(keys), in_place(expected_keys, before), "keys");
    expect_near(read(values), in_place(expected_values, before), "values");

    const Numbers keys_gradient = random_of(Element::float32, n * w);
    const Numbers values_gradient = random_of(Element::float32, n * w);
    cuda::Half* const gradient = halves(qkv);
    cuda::merge_qkv_gradients(*stream_, element(), shape, floats(in_place(keys_gradient, before)),
                              floats(in_place(values_gradient, before)), gradient);
    Numbers expected = qkv;
    if (of.rotary) rotate(of.heads, expected.data(), all, nullptr, true, true, expected.data(), all);
    rotate(of.kv_heads, keys_gradient.data(), w, nullptr, true, true, expected.data() + q, all);
    rotate(of.kv_heads, values_gradient.data(), w, nullptr, false, true, expected.data() + q + w, all);
    expect_near(read(gradient), expected, "gradient");

    // All gradients are in place.
    cuda::Half* const rows = halves(qkv);
    cuda::merge_qkv_gradients(*stream_, element(), shape, nullptr, nullptr, rows);
    expected = qkv;
    if (of.rotary) rotate(of.heads + of.kv_heads, expected.data(), all, nullptr, true, true, expected.data(), all);
    expect_near(read(rows), expected, "gradient in place");
  }
}

// The rank has tokens 3 to 12; some rows have other tokens, and one token occurs three times.
TEST_P(DeviceElementwise, EmbeddingEqualsCpu) {
  for (const std::int64_t h : {std::int64_t{48}, std::int64_t{37}}) {
    const EmbeddingShape shape{.rows = 8, .tokens = 4, .hidden = h, .first_token = 3, .vocab_rows = 10};
    const std::vector<std::int32_t> tokens = {5, 2, 12, 5, 13, 3, 5, 7};
    const Numbers words = random(10 * h);
    const Numbers positions = random(4 * h);
    cuda::Half* const out = halves(8 * h);
    cuda::Half* const without = halves(8 * h);
    std::int32_t* const tokens_there = integers(tokens);
    cuda::embed(*stream_, element(), shape, tokens_there, halves(words), halves(positions), out);
    cuda::embed(*stream_, element(), shape, tokens_there, halves(words), nullptr, without);
    const Numbers gradient = random(8 * h);
    const Numbers before = random_of(Element::float32, 14 * h);
    float* const words_gradient = floats(Numbers(before.begin(), before.begin() + 10 * h));
    float* const positions_gradient = floats(Numbers(before.begin() + 10 * h, before.end()));
    cuda::embedding_gradient(*stream_, element(), shape, tokens_there, halves(gradient), words_gradient,
                             positions_gradient);

    Numbers expected;
    Numbers expected_without;
    Numbers expected_gradient = before;
    for (std::int64_t row = 0; row < 8; ++row) {
      const std::int64_t token = tokens[row] - 3;
      const bool here = token >= 0 && token < 10;
      for (std::int64_t i = 0; i < h; ++i) {
        const double word = here ? words[token * h + i] : 0;
        const double of_row = gradient[row * h + i];
        expected_without.push_back(word);
        expected.push_back(word + positions[row % 4 * h + i]);
        if (here) expected_gradient[token * h + i] += of_row;
        expected_gradient[(10 + row % 4) * h + i] += of_row;
      }
    }
    expect_near(read(out), expected, "out");
    EXPECT_EQ(read(without), expected_without);
    Numbers both = read(words_gradient);
    const Numbers of_positions = read(positions_gradient);
    both.insert(both.end(), of_positions.begin(), of_positions.end());
    EXPECT_LT(relative_error(both, expected_gradient), 1e-6);
  }
}

// A vocabulary of 300 tokens on two ranks with 256 columns each, of which 212 of the second are padding; and one of 43
// without padding. The logits of one row are much larger than the others.
TEST_P(DeviceElementwise, CrossEntropyOverShardsEqualsCpu) {
  for (const std::vector<LogitsShape>& ranks : {std::vector<LogitsShape>{
                                                    {.rows = 5, .columns = 256, .stride = 256, .first_token = 0},
                                                    {.rows = 5, .columns = 44, .stride = 256, .first_token = 256},
                                                },
                                                {{.rows = 5, .columns = 43, .stride = 43, .first_token = 0}},
                                                {{.rows = 5, .columns = 43, .stride = 64, .first_token = 0},
                                                 {.rows = 5, .columns = 0, .stride = 64, .first_token = 43}}}) {
    constexpr std::int64_t n = 5;
    constexpr float kScale = 128;
    const std::int64_t vocabulary = ranks.back().first_token + ranks.back().columns;
    const std::vector<std::int32_t> targets = {0, 17, static_cast<std::int32_t>(vocabulary) - 1, 42, 3};
    Numbers logits = random(n * vocabulary, 3);
    for (std::int64_t i = 0; i < vocabulary; ++i) logits[i] += i % 2 == 0 ? 500 : 480;
    logits = rounded(element(), logits);

    std::vector<cuda::Half*> parts;
    std::vector<cuda::RowSums> sums;
    std::int32_t* const targets_there = integers(targets);
    for (const LogitsShape& shape : ranks) {
      Numbers part(static_cast<std::size_t>(n * shape.stride));
      for (std::int64_t row = 0; row < n; ++row) {
        for (std::int64_t i = 0; i < shape.columns; ++i) {
          part[row * shape.stride + i] = logits[row * vocabulary + shape.first_token + i];
        }
      }
      parts.push_back(halves(part));
      sums.push_back({.maxima = floats(n), .own_maxima = floats(n), .sums = floats(2 * n), .losses = floats(n)});
      cuda::sum_logits(*stream_, element(), shape, parts.back(), targets_there, sums.back());
    }
    // The all-reduces of the group.
    Numbers maxima = read(sums.front().maxima);
    for (const cuda::RowSums& of : sums) {
      const Numbers others = read(of.maxima);
      for (std::size_t i = 0; i < maxima.size(); ++i) maxima[i] = std::max(maxima[i], others[i]);
    }
    float* const maxima_there = floats(maxima);
    Numbers all(2 * n);
    for (cuda::RowSums& of : sums) {
      of.maxima = maxima_there;
      cuda::rescale_sums(*stream_, n, of);
      const Numbers others = read(of.sums);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += others[i];
    }
    float* const all_there = floats(all);

    Numbers expected = logits;
    double expected_loss = 0;
    for (std::int64_t row = 0; row < n; ++row) {
      double* const of_row = expected.data() + row * vocabulary;
      const double highest = *std::max_element(of_row, of_row + vocabulary);
      double sum = 0;
      for (std::int64_t i = 0; i < vocabulary; ++i) sum += std::exp(of_row[i] - highest);
      const auto target = static_cast<std::int64_t>(targets[row]);
      expected_loss += std::log(sum) + highest - of_row[target];
      for (std::int64_t i = 0; i < vocabulary; ++i) {
        of_row[i] = kScale * (std::exp(of_row[i] - highest) / sum - (i == target ? 1 : 0));
      }
    }
    Numbers gradient(expected.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const LogitsShape& shape = ranks[rank];
      sums[rank].sums = all_there;
      float* const loss = floats(1);
      cuda::logits_gradient(*stream_, element(), shape, parts[rank], targets_there, sums[rank], kScale, loss);
      EXPECT_NEAR(read(loss).front(), expected_loss, 1e-5 * expected_loss);
      const Numbers part = read(parts[rank]);
      for (std::int64_t row = 0; row < n; ++row) {
        for (std::int64_t i = 0; i < shape.stride; ++i) {
          const double number = part[row * shape.stride + i];
          if (i < shape.columns) {
            gradient[row * vocabulary + shape.first_token + i] = number;
          } else {
            EXPECT_EQ(number, 0) << "padding";
          }
        }
      }
    }
    expect_near(gradient, expected, "gradient");
  }
}

}  // namespace
}  // namespace sluice::test

// The choice of experts and the places of rows, compared with a sort on the host.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cuda/routing.h"
#include "tests/kernels/device_fixture.h"

namespace sluice::test {
namespace {

using Numbers = std::vector<double>;

class DeviceRouting : public DeviceKernels {
 protected:
  // The contents of a buffer of `integers`.
  std::vector<std::int32_t> integers_at(DeviceMemory& memory) {
    device_->synchronize(*stream_);
    const std::vector<std::byte> bytes = memory.read();
    std::vector<std::int32_t> out(bytes.size() / sizeof(std::int32_t));
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Types, DeviceRouting, ::testing::Values(Element::float16));

constexpr std::int64_t kRoutedRows = 9;

// More and fewer experts than a warp has lanes; with equal logits, and rows with numbers that are not finite.
TEST_P(DeviceRouting, ChoosesTheHighestLogits) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const std::int64_t experts : {3, 32, 71}) {
    for (const std::int64_t k : {1, 2, 3}) {
      Numbers logits = random_of(Element::float32, kRoutedRows * experts);
      for (double& logit : logits) logit = std::round(4 * logit) / 4;  // many are equal
      std::fill_n(logits.begin(), experts, kNan);
      logits[experts] = kNan;
      logits[2 * experts + 1] = kInfinity;
      std::fill_n(logits.begin() + 3 * experts, experts, -kInfinity);
      DeviceMemory& choices = memory(kRoutedRows * k * 4);
      float* const scores = floats(logits);
      cuda::choose_experts(*stream_, kRoutedRows, experts, k, scores, reinterpret_cast<std::int32_t*>(choices.data()));
      const std::vector<std::int32_t> chosen = integers_at(choices);
      const Numbers probabilities = read(scores);
      for (std::int64_t row = 0; row < kRoutedRows; ++row) {
        SCOPED_TRACE(testing::Message() << "row " << row << " of " << experts << " experts, k " << k);
        const double* const of_row = logits.data() + row * experts;
        const auto order_of = [&](std::int32_t e) { return std::isnan(of_row[e]) ? -kInfinity : of_row[e]; };
        std::vector<std::int32_t> sorted(static_cast<std::size_t>(experts));
        std::iota(sorted.begin(), sorted.end(), 0);
        std::stable_sort(sorted.begin(), sorted.end(),
                         [&](std::int32_t a, std::int32_t b) { return order_of(a) > order_of(b); });
        for (std::int64_t j = 0; j < k; ++j) EXPECT_EQ(chosen[row * k + j], sorted[j]);
        if (row < 4) continue;  // not finite
        double sum = 0;
        const std::int64_t counted = k == 1 ? experts : k;
        for (std::int64_t j = 0; j < counted; ++j) sum += std::exp(of_row[sorted[j]]);
        for (std::int64_t j = 0; j < experts; ++j) {
          const double expected = j < counted ? std::exp(of_row[sorted[j]]) / sum : 0;
          EXPECT_NEAR(probabilities[row * experts + sorted[j]], expected, 1e-6);
        }
      }
    }
  }
}

TEST_P(DeviceRouting, PlacesSortChoicesStably) {
  for (const std::int64_t count : {0, 5, 300, 1031}) {
    constexpr std::int32_t kExperts = 12;
    std::vector<std::int32_t> choices(static_cast<std::size_t>(count));
    std::uniform_int_distribution<std::int32_t> any(0, kExperts - 2);  // the last one is never chosen
    for (std::int32_t& choice : choices) choice = any(engine_);
    DeviceMemory& places = memory(count * 4);
    DeviceMemory& sent = memory(kExperts * 4);
    cuda::place_choices(*stream_, count, kExperts, integers(choices), reinterpret_cast<std::int32_t*>(places.data()),
                        reinterpret_cast<std::int32_t*>(sent.data()));
    std::vector<std::int32_t> sorted(choices.size());
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](std::int32_t a, std::int32_t b) { return choices[a] < choices[b]; });
    const std::vector<std::int32_t> found = integers_at(places);
    for (std::size_t i = 0; i < sorted.size(); ++i) EXPECT_EQ(found[sorted[i]], static_cast<std::int32_t>(i));
    const std::vector<std::int32_t> counts = integers_at(sent);
    for (std::int32_t e = 0; e < kExperts; ++e) EXPECT_EQ(counts[e], std::count(choices.begin(), choices.end(), e));
  }
}

}  // namespace
}  // namespace sluice::test

// Tests of the comparison of weaves with a trace of DualPipe.

#include "benchmarks/accuracy/dualpipe_trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::bench::accuracy {
namespace {

using testing::HasSubstr;

// Returns the comparison of a group; a test failure if there is none.
Comparison comparison_of(const TableScore& score, const std::string& group) {
  const auto found = std::find_if(score.comparisons.begin(), score.comparisons.end(),
                                  [&](const Comparison& each) { return each.group == group; });
  if (found == score.comparisons.end()) {
    ADD_FAILURE() << "no comparison of " << group;
    return {};
  }
  return *found;
}

// One layer. Attention of the forward starts 2 us after combine of the backward, in the replay immediately; nothing
// else is idle. experts(W) takes 8 us on two streams.
std::string one_layer(const std::string& dispatch) {
  return "op,index,stream,kernels,gpu_busy_us,gpu_start_us,gpu_end_us\n"
         "combine(B),0,27,1,8,0,9\nattn(F),0,7,4,9,2,12\nmlp(B),0,7,2,7,12,20\ndispatch(F),0,27,1,5,12,18\n" +
         dispatch +
         "mlp(W),0,7,3,5,20,28\nmlp(W),0,23,2,3,22,26\nmlp(F),0,7,2,7,28,36\nattn(B),0,7,5,9,36,46\n"
         "combine(F),0,27,1,7,36,44\nattn(W),0,7,1,3,46,50\n";
}

TEST(DualPipeTrace, ComparesTimeWaitsAndIdleTime) {
  const TableScore score = score_dualpipe_trace(CsvTable(one_layer("dispatch(B),0,27,1,5,20,26\n"), "trace"));
  const Comparison block = comparison_of(score, "block from the extents of its parts");
  EXPECT_DOUBLE_EQ(block.measured, 50e-6);
  EXPECT_DOUBLE_EQ(block.predicted, 48e-6);
  const Comparison waits = comparison_of(score, "parts that wait for the same part");
  EXPECT_EQ(waits.measured, 10);
  EXPECT_EQ(waits.predicted, 10);
  const Comparison idle = comparison_of(score, "idle time of the compute lane");
  EXPECT_NEAR(idle.measured, 2e-6, 1e-15);
  EXPECT_NEAR(idle.predicted, 0, 1e-15);
  // Busy times, and the longer stream of experts(W): 9 + 7 + 5 + 7 + 9 + 3 us.
  EXPECT_DOUBLE_EQ(comparison_of(score, "block from their busy times").predicted, 40e-6);
}

// Idle time per kernel: attention 1/4 and 1/5 and 1 us, experts(F) and experts(B) 1/2: the median is 1/2. experts(W), 3
// kernels and 5 us on its first stream, takes 8 us: (8 - 5 - 3/2) / 3 of the second stream are exposed.
TEST(DualPipeTrace, FitsGapsOfOtherLayers) {
  const std::vector<TracedPart> parts = traced_parts(CsvTable(one_layer("dispatch(B),0,27,1,5,20,26\n"), "trace"));
  ASSERT_EQ(parts.size(), 10);
  const StreamGaps gaps = gaps_without(parts, 1);
  EXPECT_NEAR(gaps.kernel_s, 0.5e-6, 1e-15);
  EXPECT_NEAR(gaps.second_exposed, 0.5, 1e-9);
  EXPECT_EQ(gaps_without(parts, 0).kernel_s, 0);
}

// dispatch(B) starts after experts(W), but by the weave it waits for experts(B) alone.
TEST(DualPipeTrace, CountsPartsThatWaitForAnother) {
  const TableScore score = score_dualpipe_trace(CsvTable(one_layer("dispatch(B),0,27,1,5,28.5,34.5\n"), "trace"));
  const Comparison waits = comparison_of(score, "parts that wait for the same part");
  EXPECT_EQ(waits.measured, 10);
  EXPECT_EQ(waits.predicted, 9);
}

TEST(DualPipeTrace, ErrorsNameTheRow) {
  try {
    score_dualpipe_trace(CsvTable(one_layer("mlp(X),0,27,1,5,20,26\n"), "trace"));
    ADD_FAILURE() << "expected an error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("trace: row 5, column op: expected a part of a layer"));
  }
}

class PublishedTrace : public testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("SLUICE_DATA");
    if (data == nullptr) GTEST_SKIP() << "SKIPPED: set SLUICE_DATA to the folder of published measurements";
    table_ = read_csv(std::string(data) + "/deepseek_dualpipe_trace_ops.csv");
  }
  std::optional<CsvTable> table_;
};

// DeepSeek's trace: four layers, of which the block takes 129.012 ms.
TEST_F(PublishedTrace, DualPipeIsReplayed) {
  const TableScore score = score_dualpipe_trace(*table_);
  const Comparison block = comparison_of(score, "block from the extents of its parts");
  EXPECT_DOUBLE_EQ(block.measured, 0.129012);
  EXPECT_LT(std::abs(block.error()), 0.01);
  const Comparison waits = comparison_of(score, "parts that wait for the same part");
  EXPECT_EQ(waits.measured, 40);
  EXPECT_EQ(waits.predicted, 40);
  // Compute parts have the same extents in both, so that idle times differ by as much as the blocks.
  const Comparison idle = comparison_of(score, "idle time of the compute lane");
  EXPECT_NEAR(idle.measured, 0.002565, 1e-9);
  EXPECT_LT(std::abs(idle.predicted - idle.measured), 0.01 * block.measured);
  std::cout << "compute idle: trace " << 1e3 * idle.measured << " ms, replay " << 1e3 * idle.predicted << " ms\n";
  EXPECT_LT(std::abs(comparison_of(score, "block from busy times and the gaps of other layers").error()), 0.03);
}

// Returns the speed of a compute part beside communication, relative to alone, for which its work is the most equal
// (smallest spread over mean) in all layers, where it runs beside communication for different fractions of its time.
double fitted_speed(const std::vector<TracedPart>& parts, const PassPart& part) {
  const auto work = [&](const TracedPart& each, double speed) {
    double beside = 0;
    for (const TracedPart& other : parts) {
      if (!communicates(other.part.part)) continue;
      beside += std::max(0.0, std::min(each.end_s, other.end_s) - std::max(each.start_s, other.start_s));
    }
    return each.kernels.busy_s * (1 - beside / each.seconds() * (1 - speed));
  };
  double best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int step = 500; step <= 1500; ++step) {
    const double speed = 1e-3 * step;
    double sum = 0;
    double squares = 0;
    int count = 0;
    for (const TracedPart& each : parts) {
      if (each.part != part) continue;
      sum += work(each, speed);
      squares += work(each, speed) * work(each, speed);
      ++count;
    }
    const double spread = count * squares / (sum * sum);
    if (spread < least) best = speed;
    least = std::min(least, spread);
  }
  return best;
}

// Attention is the same in every layer. Its forward and backward lose about the 20 of 132 multiprocessors that
// communication holds; its weight gradients, all GEMMs, nothing.
TEST_F(PublishedTrace, CommunicationSlowsAttention) {
  const std::vector<TracedPart> parts = traced_parts(*table_);
  const double forward = fitted_speed(parts, {LayerPart::attention, OpKind::F});
  const double backward = fitted_speed(parts, {LayerPart::attention, OpKind::B});
  const double weights = fitted_speed(parts, {LayerPart::attention, OpKind::W});
  std::cout << "speed beside communication: attention(F) " << forward << ", attention(B) " << backward
            << ", attention(W) " << weights << "\n";
  EXPECT_NEAR(forward, 112.0 / 132, 0.04);
  EXPECT_NEAR(backward, 112.0 / 132, 0.04);
  EXPECT_NEAR(weights, 1, 0.02);
}

// `sluice weave --parts` with the busy times, and the gaps of all layers but one.
TEST_F(PublishedTrace, BusyTimesAndGapsExplainTheBlock) {
  const test::TemporaryFolder folder;
  const std::vector<TracedPart> parts = traced_parts(*table_);
  std::string rows = "part,layer,seconds,kernels,second_stream_s\n";
  for (const TracedPart& part : parts) {
    rows += fmt::format("{},{},{:.9f},{},{:.9f}\n", to_string(part.part), part.layer, part.kernels.busy_s,
                        part.kernels.kernels, part.kernels.second_busy_s);
  }
  write_file_whole(folder.path("parts.csv"), rows);
  for (int layer = 0; layer < 4; ++layer) {
    const StreamGaps gaps = gaps_without(parts, layer);
    const test::CommandResult result = test::run_sluice(
        {"weave", "--json", "--parts", folder.path("parts.csv"), "--kernel-gap", fmt::format("{}", gaps.kernel_s),
         "--second-stream-exposed", fmt::format("{}", gaps.second_exposed)});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const double seconds = nlohmann::json::parse(result.out).at("seconds");
    std::cout << "gaps without layer " << layer << ": " << 1e6 * gaps.kernel_s << " us, " << gaps.second_exposed
              << ", block " << 1e3 * seconds << " ms\n";
    EXPECT_NEAR(seconds / 0.129012, 1, 0.03) << layer;
  }
}

}  // namespace
}  // namespace sluice::bench::accuracy

// Tests of the comparison of weaves with a trace of DualPipe.

#include "benchmarks/accuracy/dualpipe_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>

#include "model/errors.h"

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

// DeepSeek's trace: four layers, of which the block takes 129.012 ms.
TEST(PublishedTrace, DualPipeIsReplayed) {
  const char* data = std::getenv("SLUICE_DATA");
  if (data == nullptr) GTEST_SKIP() << "SKIPPED: set SLUICE_DATA to the folder of published measurements";
  const TableScore score = score_dualpipe_trace(read_csv(std::string(data) + "/deepseek_dualpipe_trace_ops.csv"));
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
}

}  // namespace
}  // namespace sluice::bench::accuracy

// Work without a backward: evaluation, prefill in chunks, reference passes before training.

#include "model/schedule/forward_only.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "model/errors.h"
#include "model/scenario/setup.h"
#include "model/schedule/family.h"
#include "model/schedule/pytorch_csv.h"
#include "model/schedule/schedule_file.h"
#include "model/schedule/with_communication.h"
#include "sim/engine/predict.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using namespace model;  // NOLINT(google-build-using-namespace)
using namespace sim;    // NOLINT(google-build-using-namespace)

Scenario scenario_of(const std::string& family, int ranks, int microbatches) {
  Scenario out{.source = "test"};
  out.schedule = family;
  out.training.pp = ranks;
  out.training.work = Training::Work::evaluation;
  out.microbatches = microbatches;
  out.uniform = {.forward = {1}, .input_gradient = {1}, .weight_gradient = {1}};
  return out;
}

double forward_seconds_of(const Setup& setup) { return to_seconds(predict(setup, {}).metrics.makespan); }
double forward_seconds_of(const Scenario& scenario) { return forward_seconds_of(Setup(scenario)); }
double forward_seconds_of(const Scenario& scenario, Schedule schedule) {
  return forward_seconds_of(Setup(scenario, std::move(schedule)));
}

TEST(ForwardOnly, EveryFamilyRunsItsForwardsInTheirOrder) {
  for (const Family& family : all_families()) {
    if (family.asynchronous || family.vocabulary_barriers > 0) continue;
    SCOPED_TRACE(family.name);
    const FamilyParams params{
        .ranks = 4, .microbatches = family.name == "hanayo" ? 4 : 8, .shape = {.slice_lengths = {3, 2}}};
    FamilyParams whole = params;
    if (!family.sliced) whole.shape.slice_lengths = {5};
    const Schedule training = make_schedule(family, whole);
    const Schedule alone = without_backward(training);
    EXPECT_TRUE(alone.forward_only());
    EXPECT_EQ(alone.num_ops(), std::int64_t{alone.num_stages()} * alone.num_units());
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<std::int64_t> expected;
      std::vector<std::int64_t> ordered;
      const auto number = [&](const Op& op) {
        return op.stage * alone.num_units() + alone.first_unit(op.microbatch) + op.slice;
      };
      for (const Op& op : training.ops(rank)) {
        if (op.kind == OpKind::F) expected.push_back(number(op));
      }
      for (const Op& op : alone.ops(rank)) ordered.push_back(number(op));
      EXPECT_EQ(ordered, expected);
    }
    const Schedule sent = with_communication(alone);
    EXPECT_NO_THROW(static_cast<void>(lower(sent)));
    EXPECT_EQ(without_backward(with_communication(training)).num_ops(), alone.num_ops());
    const Schedule read = schedule_from_json(schedule_to_json(sent), "read");
    EXPECT_EQ(read.parts().orders, alone.parts().orders);
    EXPECT_TRUE(read.forward_only());
    const OpGraph graph = lower(alone);
    EXPECT_TRUE(std::all_of(graph.vertices().begin(), graph.vertices().end(), [](const Vertex& vertex) {
      return vertex.kind == VertexKind::compute || vertex.kind == VertexKind::transfer;
    }));
  }
}

// Li et al. 2021 (TeraPipe), eq. 5.
TEST(ForwardOnly, EqualStagesTakeTheSumAndThePassesOfTheLongest) {
  for (const char* family : {"gpipe", "1f1b", "zb-h1"}) {
    EXPECT_EQ(forward_seconds_of(scenario_of(family, 4, 6)), 6 + 3);
  }
  for (const std::vector<double>& times : {std::vector<double>{4, 3, 2, 2, 1}, {1, 2, 5, 1}, {3, 3, 3}}) {
    Scenario scenario = scenario_of("terapipe", 4, 1);
    scenario.shape.slice_lengths.assign(times.size(), 1);
    scenario.uniform.forward = times;
    scenario.uniform.input_gradient = scenario.uniform.weight_gradient = times;
    const double sum = std::accumulate(times.begin(), times.end(), 0.0);
    EXPECT_EQ(forward_seconds_of(scenario), sum + 3 * *std::max_element(times.begin(), times.end()));
  }
}

// Forwards of a reference model, then 1F1B, without a barrier: m f + (m + p - 1) (f + x), which is optimal.
TEST(ForwardOnly, AReferencePassFillsTheBubblesOfTraining) {
  for (const auto& [ranks, passes, best] : {std::tuple(4, 8, 41), std::tuple(4, 4, 25), std::tuple(2, 4, 19)}) {
    ScheduleParts parts = make_parts(find_family("1f1b"), {.ranks = ranks, .microbatches = passes});
    parts.num_microbatches = 2 * passes;
    parts.shapes = {{.forward_only = true}, {}};
    parts.shape_of.assign(static_cast<std::size_t>(2 * passes), 1);
    std::fill_n(parts.shape_of.begin(), passes, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<Op> order;
      for (int mb = 0; mb < passes; ++mb) order.push_back({.microbatch = mb, .stage = static_cast<std::int16_t>(rank)});
      for (Op op : parts.orders[rank]) {
        op.microbatch += passes;
        order.push_back(op);
      }
      parts.orders[rank] = order;
    }
    const std::string text = schedule_to_json(Schedule(parts));
    Scenario scenario = scenario_of("1f1b", ranks, 2 * passes);
    scenario.training.work = Training::Work::training;
    EXPECT_EQ(forward_seconds_of(scenario, schedule_from_json(text, "read")), best) << text;
    scenario.training.sequence_length = 3;  // what is not trained is not throughput
    const Prediction prediction = predict(model::Setup(scenario, schedule_from_json(text, "read")), {});
    EXPECT_DOUBLE_EQ(prediction.throughput.tokens_per_s, 3.0 * passes / best);
  }
}

std::string refusal(const std::string& rank0, const std::string& shapes) {
  return test::error_from<ScheduleError>(
      [&] {
        static_cast<void>(schedule_from_json(
            fmt::format(
                R"({{"schema": "sluice.schedule/1", "ranks": 1, "stages": 1, "microbatches": 2, "placement": [[0]], "shapes": [{}], "shape_of": [0, {}], "order": [[{}]]}})",
                shapes, shapes.find("}, {") == std::string::npos ? 0 : 1, rank0),
            "file"));
      },
      "");
}

TEST(ForwardOnly, OneMissingBackwardIsAnError) {
  const std::string trained = R"({"slice_lengths": [1]})";
  const std::string alone = R"({"slice_lengths": [1], "backward": false})";
  EXPECT_EQ(refusal(R"("0F0", "0F1")", trained), "");
  EXPECT_THAT(refusal(R"("0F0", "0F1", "0B0")", trained), testing::HasSubstr("B(stage 0, mb 1) is missing"));
  EXPECT_EQ(refusal(R"("0F0", "0F1", "0B0")", trained + ", " + alone), "");
  EXPECT_THAT(refusal(R"("0F0", "0F1", "0B0", "0B1")", trained + ", " + alone),
              testing::HasSubstr("B(stage 0, mb 1) is there, but its microbatch is forward-only"));
  EXPECT_THAT(refusal(R"("0F0", "0B0")", trained + ", " + alone), testing::HasSubstr("F(stage 0, mb 1) is missing"));
  EXPECT_THAT([] { static_cast<void>(schedule_from_csv("0F0,0SEND_F0,0RECV_B0\n1RECV_F0,1F0,1SEND_B0\n", "file")); },
              testing::ThrowsMessage<ScheduleError>(testing::HasSubstr("0RECV_B0: its microbatch is forward-only")));
  EXPECT_TRUE(schedule_from_csv("0F0,0F1\n1F0,1F1\n", "file").forward_only());
}

}  // namespace
}  // namespace sluice::test

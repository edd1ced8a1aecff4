#include "model/cost/fitted.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

const std::string kText = R"({"schema": "sluice.cost/1", "machine": "bench", "sequences": 2, "tensor_parallel": 1,
  "parts": {
    "embedding": {"F": {"tokens": [64], "seconds": [0.5]}, "B": {"tokens": [64], "seconds": [0.25]}},
    "layer": {"F": {"tokens": [64, 128, 512], "seconds": [1, 2, 10], "ctx": [0.5, 0.01, 0.001, 0.0001], "residual": 0.02},
              "I": {"tokens": [128], "seconds": [3]}, "W": {"tokens": [128], "seconds": [1.5]}},
    "head": {"F": {"tokens": [128, 256], "seconds": [4, 3]}, "B": {"tokens": [128], "seconds": [8]}}},
  "links": {"wire": {"latency_s": 0.25, "bandwidth_bytes_per_s": 1000}}})";

CostTable table() { return parse_cost_table(kText, "cost.json"); }

const std::vector<StageContents> kStages = {{.layers = 2, .embedding = true}, {.layers = 3, .head = true}};

TEST(TimeCurveTest, IsExactAtMeasuredLengthsAndLinearBetween) {
  const TimeCurve curve = *table().curve(PartKind::layer, OpKind::F);
  EXPECT_EQ(curve.at(64, 0), 1);
  EXPECT_EQ(curve.at(128, 0), 2);
  EXPECT_EQ(curve.at(512, 0), 10);
  EXPECT_EQ(curve.at(96, 0), 1.5);
  EXPECT_EQ(curve.at(320, 0), 6);
}

TEST(TimeCurveTest, IsConstantBelowAndExtrapolatedAbove) {
  const TimeCurve curve = *table().curve(PartKind::layer, OpKind::F);
  EXPECT_EQ(curve.at(1, 0), 1);
  EXPECT_EQ(curve.at(1024, 0), 10 + 512.0 * 8 / 384);
  const TimeCurve falling = *table().curve(PartKind::head, OpKind::F);
  EXPECT_EQ(falling.at(512, 0), 3);  // noise does not make long slices free
}

TEST(TimeCurveTest, AddsTheContextTermWhereThereIsContext) {
  const TimeCurve curve = *table().curve(PartKind::layer, OpKind::F);
  EXPECT_DOUBLE_EQ(curve.at(64, 1000), 1 + 0.5 + 0.01 * 64 + 0.001 * 1000 + 0.0001 * 64 * 1000);
  TimeCurve negative = curve;
  negative.context = {-100, 0, 0, 0};
  EXPECT_EQ(negative.at(64, 1), 0);
  EXPECT_EQ(negative.at(64, 0), 1);
}

// Where a time is c + b i + a i^2 / 2 without context and a i j more with it, documents take their own times and c
// once, wherever slices cut them.
TEST(TimeCurveTest, PackedDocumentsTakeTheirOwnTimes) {
  constexpr double kFixed = 3;
  constexpr double kToken = 0.25;
  constexpr double kPair = 0.0625;
  TimeCurve curve{.context = {0, 0, 0, kPair}};
  for (std::int64_t tokens = 1; tokens <= 64; ++tokens) {
    const auto i = static_cast<double>(tokens);
    curve.tokens.push_back(tokens);
    curve.seconds.push_back(kFixed + kToken * i + kPair * i * i / 2);
  }
  const std::vector<std::int64_t> documents = {20, 1, 30, 13};
  double alone = 0;
  for (const std::int64_t length : documents) alone += curve.at(length, 0) - kFixed;
  for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{64}, {32, 32}, {7, 50, 7}, {20, 44}}) {
    const MicrobatchShape shape{.slice_lengths = cut, .documents = documents};
    double sum = 0;
    for (int slice = 0; slice < shape.num_slices(); ++slice) sum += curve.at(slice_shape(shape, slice)) - kFixed;
    EXPECT_DOUBLE_EQ(sum, alone) << cut.size();
  }
  EXPECT_EQ(curve.at(slice_shape({.slice_lengths = {30, 34}, .documents = {64}}, 1)), curve.at(34, 30));
}

TEST(FittedCostTest, RejectsConfigurationsThatWereNotMeasured) {
  EXPECT_EQ(error_of([] { FittedCost(table(), Training{}, {{.layers = 3, .expert_layers = 2, .embedding = true}}); }),
            "cost.json: times are of dense layers, but stage 0 has 2 layers with experts");
  Training training;
  training.cp = 2;
  EXPECT_EQ(error_of([&] { FittedCost(table(), training, kStages); }),
            "cost.json: times are without context parallelism (--cp), got size 2");
}

TEST(FittedCostTest, AddsUpThePartsOfAStage) {
  const FittedCost cost(table(), Training{}, kStages);
  const MicrobatchShape shape{2, {128}};
  EXPECT_EQ(cost.compute_s(OpKind::F, 0, shape, 0), 2 * 2 + 0.5);
  EXPECT_EQ(cost.compute_s(OpKind::F, 1, shape, 0), 3 * 2 + 4);
  EXPECT_EQ(cost.compute_s(OpKind::B, 1, shape, 0), 3 * 4.5 + 8);  // the layer's B is I and W
  const MicrobatchShape cut{2, {64, 64}};
  EXPECT_DOUBLE_EQ(cost.compute_s(OpKind::F, 0, cut, 1),
                   2 * (1 + 0.5 + 0.01 * 64 + 0.001 * 64 + 0.0001 * 64 * 64) + 0.5);
  EXPECT_EQ(cost.recompute_s(0, shape, 0), 0);
  Training full;
  full.recompute = Training::Recompute::full;
  EXPECT_EQ(FittedCost(table(), full, kStages).recompute_s(0, shape, 0), 4);
  CostTable measured = table();
  measured.curve(PartKind::recompute, OpKind::F) = TimeCurve{.tokens = {128}, .seconds = {0.75}};
  EXPECT_EQ(FittedCost(measured, full, kStages).recompute_s(0, shape, 0), 1.5);
  EXPECT_EQ(to_json_text(parse_cost_table(to_json_text(measured), "again")), to_json_text(measured));
}

TEST(FittedCostTest, UsesItsOneLinkForEveryTransfer) {
  const FittedCost cost(table(), Training{}, kStages);
  EXPECT_EQ(cost.transfer(0, 1, 500).occupied_s, 0.5);
  EXPECT_EQ(cost.transfer(0, 1, 500).latency_s, 0.25);
  EXPECT_EQ(cost.transfer(1, 1, 500).latency_s, 0);
  EXPECT_EQ(cost.optimizer_s(0), 0);
}

class Rest : public CostModel {
 public:
  double compute_s(OpKind, int, const MicrobatchShape&, int) const override { return 99; }
  TransferTime transfer(int, int, std::int64_t) const override { return {7, 8}; }
  double collective_s(CollectiveKind, int, std::int64_t) const override { return 5; }
  double optimizer_s(int) const override { return 6; }
  LinkSharing sharing(std::span<const LinkEnds>) const override { return {.num_resources = 3}; }
};

// Times of the stage itself, once per op; passes over parameters; all-reduces over the ranks of a collective.
TEST(FittedCostTest, AddsTheTimeOfTheStageItself) {
  CostTable around = table();
  around.curve(PartKind::stage, OpKind::F) = TimeCurve{.tokens = {64, 128}, .seconds = {0.25, 0.5}};
  around.curve(PartKind::stage, OpKind::B) = TimeCurve{.tokens = {128}, .seconds = {0.125}};
  around.pass(PassKind::optimizer) = PassTime{.fixed_s = 1, .elements_per_s = 100};
  around.pass(PassKind::norm) = PassTime{.fixed_s = 2, .elements_per_s = 1000};
  around.sums = {{.ranks = 2, .latency_s = 0.5, .bandwidth_bytes_per_s = 10},
                 {.ranks = 4, .latency_s = 1.5, .bandwidth_bytes_per_s = 10}};
  Training training;
  training.dp = 3;
  training.pp = 2;
  const ParameterCounts parameters{.of_stage = {500, 700}, .most_on_a_rank = 1200};
  const FittedCost cost(around, training, kStages, std::make_unique<Rest>(), parameters);
  EXPECT_EQ(cost.compute_s(OpKind::F, 0, {2, {128}}, 0), 2 * 2 + 0.5 + 0.5);
  EXPECT_EQ(cost.compute_s(OpKind::B, 1, {2, {128}}, 0), 3 * 4.5 + 8 + 0.125);
  EXPECT_EQ(cost.optimizer_s(1), 1 + 7);
  EXPECT_EQ(cost.collective_s(CollectiveKind::tied_embedding, 0, 20), 0.5 + 2);
  EXPECT_EQ(cost.collective_s(CollectiveKind::gradient_reduce, 0, 20), 1.5 + 2);  // of 3 ranks: the time for 4
  EXPECT_DOUBLE_EQ(cost.collective_s(CollectiveKind::global_norm, -1, 4), 0.5 + 0.4 + 2 + 1.2);
  EXPECT_EQ(cost.collective_s(CollectiveKind::parameter_gather, 0, 20), 5);
  // Without the number of parameters: the other model's optimizer.
  EXPECT_EQ(FittedCost(around, training, kStages, std::make_unique<Rest>()).optimizer_s(1), 6);
}

TEST(FittedCostTest, UsesAnotherModelForTheRest) {
  CostTable without = table();
  without.links.clear();
  const FittedCost cost(without, Training{}, kStages, std::make_unique<Rest>());
  EXPECT_EQ(cost.transfer(0, 1, 500).occupied_s, 7);
  EXPECT_EQ(cost.collective_s(CollectiveKind::gradient_reduce, 0, 1), 5);
  EXPECT_EQ(cost.optimizer_s(0), 6);
  EXPECT_EQ(cost.sharing({}).num_resources, 3);
  EXPECT_TRUE(FittedCost(table(), Training{}, kStages, std::make_unique<Rest>()).sharing({}).empty());  // its own link
  EXPECT_EQ(FittedCost(without, Training{}, kStages).transfer(0, 1, 500).occupied_s, 0);
}

TEST(FittedCostTest, RejectsPartsThatWereNotMeasured) {
  const FittedCost cost(table(), Training{}, kStages);
  EXPECT_EQ(error_of([&] {
              cost.compute_s(OpKind::F, 0, {1, {128}}, 0);
            }),
            "cost.json: /sequences: times are for microbatches of 2 sequences, got 1");
  EXPECT_EQ(error_of([&] {
              cost.compute_s(OpKind::I, 1, {2, {128}}, 0);
            }),
            "cost.json: /parts/head/I: required key is missing (the schedule splits the backward pass)");
  Training tp;
  tp.tp = 4;
  EXPECT_EQ(error_of([&] { FittedCost(table(), tp, kStages); }),
            "cost.json: /tensor_parallel: times are for tensor-parallel size 1, got 4");
  CostTable headless = table();
  headless.curve(PartKind::head, OpKind::F).reset();
  EXPECT_EQ(error_of([&] { FittedCost(headless, Training{}, kStages); }),
            "cost.json: /parts/head: required key is missing (stage 1 has this part)");
  CostTable two = table();
  two.links.push_back({"other", 0, 1});
  EXPECT_EQ(error_of([&] { FittedCost(two, Training{}, kStages); }),
            "cost.json: /links: without a cluster: expected one link, got 2");
}

// Seconds of the parts of a layer with experts, with expert-parallel size 2; a dense layer takes 2, 3 and 1.5 s.
CostTable expert_table() {
  CostTable out = table();
  out.expert_parallel = 2;
  const auto set = [&](PartKind part, OpKind kind, double seconds) {
    out.curve(part, kind) = TimeCurve{.tokens = {128}, .seconds = {seconds}};
  };
  set(PartKind::attention, OpKind::F, 4);
  set(PartKind::dispatch, OpKind::F, 1);
  set(PartKind::experts, OpKind::F, 3);
  set(PartKind::combine, OpKind::F, 2);
  set(PartKind::attention, OpKind::I, 3);
  set(PartKind::dispatch, OpKind::I, 2);
  set(PartKind::experts, OpKind::I, 4);
  set(PartKind::combine, OpKind::I, 1);
  set(PartKind::attention, OpKind::W, 2);
  set(PartKind::experts, OpKind::W, 5);
  return out;
}

Training expert_training() {
  Training training;
  training.dp = training.ep = 2;
  return training;
}

const MicrobatchShape kWhole{2, {128}};

TEST(FittedCostTest, AddsUpThePartsOfLayersWithExperts) {
  const FittedCost cost(expert_table(), expert_training(), {{.layers = 3, .expert_layers = 2}});
  EXPECT_EQ(cost.compute_s(OpKind::F, 0, kWhole, 0), 2 + 2 * 10);
  EXPECT_EQ(cost.compute_s(OpKind::I, 0, kWhole, 0), 3 + 2 * 10);
  EXPECT_EQ(cost.compute_s(OpKind::W, 0, kWhole, 0), 1.5 + 2 * 7);
  EXPECT_EQ(cost.compute_s(OpKind::B, 0, kWhole, 0), 4.5 + 2 * 17);
  // Exchanges take 1 + 2 s forward and backward per layer, none of them hidden.
  for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::B}) {
    const WovenBlock block = cost.woven_op(kind, 0, kWhole, 0);
    EXPECT_EQ(block.seconds, cost.compute_s(kind, 0, kWhole, 0));
    EXPECT_EQ(block.communication_s, 6);
    EXPECT_EQ(block.exposed_s, 6);
  }
  EXPECT_EQ(cost.woven_op(OpKind::W, 0, kWhole, 0).communication_s, 0);
  Training full = expert_training();
  full.recompute = Training::Recompute::full;
  EXPECT_EQ(FittedCost(expert_table(), full, {{.layers = 3, .expert_layers = 2}}).recompute_s(0, kWhole, 0),
            2 + 2 * 10);
  EXPECT_TRUE(
      FittedCost(expert_table(), expert_training(), {{.layers = 3}}).woven_op(OpKind::F, 0, kWhole, 0).parts.empty());
}

// dualpipe with one layer each. Compute: attention(F) 0-4, experts(B) 4-8, experts(W) 8-13, experts(F) 13-16,
// attention(B) 16-19, attention(W) 19-21; dispatch(B) 8-10 and combine(F) 16-18 are hidden, as are the others. With an
// I, without weight gradients: experts(F) 8-11, attention(B) 11-14.
TEST(FittedCostTest, WeavesThePartsOfJointBlocks) {
  const std::vector<StageContents> stages = {{.layers = 1, .expert_layers = 1},
                                             {.layers = 1, .expert_layers = 1, .head = true}};
  const auto joint = [&](const Training& training, OpKind backward, int stage = 0) {
    return FittedCost(expert_table(), training, stages).joint_s(stage, kWhole, 0, backward, stage, kWhole, 0);
  };
  EXPECT_EQ(joint(expert_training(), OpKind::B), 21);
  EXPECT_EQ(joint(expert_training(), OpKind::I), 14);
  EXPECT_EQ(joint(expert_training(), OpKind::B, 1), 21 + 4 + 8);
  const FittedCost cost(expert_table(), expert_training(), stages);
  const WovenBlock block = cost.woven_joint(0, kWhole, 0, OpKind::B, 0, kWhole, 0);
  EXPECT_EQ(block.communication_s, 6);
  EXPECT_EQ(block.exposed_s, 0);
  Training serial = expert_training();
  serial.joint_overlap = Training::JointOverlap::none;
  EXPECT_EQ(joint(serial, OpKind::B), 27);
  EXPECT_EQ(FittedCost(expert_table(), serial, stages).woven_joint(0, kWhole, 0, OpKind::B, 0, kWhole, 0).exposed_s, 6);
  Training full = expert_training();
  full.recompute = Training::Recompute::full;
  EXPECT_EQ(joint(full, OpKind::B), 27);
  Training searched = expert_training();
  searched.weave = kSearchedWeave;
  EXPECT_LE(joint(searched, OpKind::B), 21);
}

// The experts of two replicas differ with expert-parallel size 2: only the other 25 of 100 parameters are reduced.
TEST(FittedCostTest, ReducesGradientsOfExpertsOverRanksThatHaveThem) {
  CostTable measured = expert_table();
  measured.sums = {{.ranks = 2, .latency_s = 0.5, .bandwidth_bytes_per_s = 10}};
  const std::vector<StageContents> stages = {{.layers = 1, .expert_layers = 1}};
  const ParameterCounts parameters{.of_stage = {100}, .experts_of_stage = {75}, .most_on_a_rank = 100};
  const FittedCost cost(measured, expert_training(), stages, nullptr, parameters);
  EXPECT_EQ(cost.collective_s(CollectiveKind::gradient_reduce, 0, 400), 0.5 + 10);
  EXPECT_EQ(cost.collective_s(CollectiveKind::global_norm, -1, 20), 0.5 + 2);  // over both replicas
  Training copies = expert_training();
  copies.ep = measured.expert_parallel = 1;
  const FittedCost apart(measured, copies, stages, nullptr, parameters);
  EXPECT_EQ(apart.collective_s(CollectiveKind::gradient_reduce, 0, 400), 0.5 + 10 + 0.5 + 30);
}

TEST(FittedCostTest, RejectsExpertsThatWereNotMeasured) {
  const std::vector<StageContents> stages = {{.layers = 1, .expert_layers = 1}};
  EXPECT_EQ(error_of([&] { FittedCost(expert_table(), Training{}, stages); }),
            "cost.json: /expert_parallel: times are for expert-parallel size 2, got 1");
  CostTable without = expert_table();
  without.curve(PartKind::combine, OpKind::F).reset();
  EXPECT_EQ(error_of([&] { FittedCost(without, expert_training(), stages); }),
            "cost.json: /parts/combine: required key is missing (stage 0 has this part)");
}

TEST(CostFile, HasThePartsOfLayersWithExperts) {
  const std::string text = to_json_text(expert_table());
  const CostTable again = parse_cost_table(text, "again");
  EXPECT_EQ(to_json_text(again), text);
  EXPECT_EQ(again.expert_parallel, 2);
  EXPECT_EQ(again.curve(PartKind::combine, OpKind::I)->at(128, 0), 1);
  EXPECT_EQ(to_json_text(table()).find("expert"), std::string::npos);
  const auto error = [&](PartKind part, OpKind kind, bool set) {
    nlohmann::json file = nlohmann::json::parse(text);
    nlohmann::json& at = file["parts"][to_string(part)];
    const std::string key(1, letter(kind));
    if (set) {
      at[key] = at["F"];
    } else {
      at.erase(key);
    }
    return error_of([&] { parse_cost_table(file.dump(), "cost.json"); });
  };
  EXPECT_THAT(error(PartKind::dispatch, OpKind::W, true), testing::HasSubstr("/parts/dispatch/W: unknown key"));
  EXPECT_THAT(error(PartKind::experts, OpKind::B, true), testing::HasSubstr("/parts/experts/B: unknown key"));
  EXPECT_THAT(error(PartKind::combine, OpKind::I, false),
              testing::HasSubstr("/parts/combine: expected times of \"I\""));
}

TEST(CostFile, RoundTripsThroughItsText) {
  const CostTable first = table();
  const CostTable second = parse_cost_table(to_json_text(first), "again");
  EXPECT_EQ(to_json_text(second), to_json_text(first));
  EXPECT_EQ(second.curve(PartKind::layer, OpKind::F)->at(320, 77),
            first.curve(PartKind::layer, OpKind::F)->at(320, 77));
  EXPECT_EQ(second.links[0].name, "wire");
}

TEST(CostFile, HasPassesAllReducesAndStageTimes) {
  CostTable first = table();
  first.curve(PartKind::stage, OpKind::F) = first.curve(PartKind::stage, OpKind::B) =
      TimeCurve{.tokens = {8}, .seconds = {1e-6}};
  first.pass(PassKind::norm) = PassTime{.fixed_s = 2, .elements_per_s = 1000};
  first.sums = {{.ranks = 2, .latency_s = 0.5, .bandwidth_bytes_per_s = 10}};
  const CostTable second = parse_cost_table(to_json_text(first), "again");
  EXPECT_EQ(to_json_text(second), to_json_text(first));
  EXPECT_EQ(second.pass(PassKind::norm)->at(500), 2.5);
  EXPECT_FALSE(second.pass(PassKind::optimizer));
  EXPECT_EQ(second.sums.at(0).ranks, 2);
  std::string text = to_json_text(first);
  text.replace(text.find("\"ranks\": 2"), 10, "\"ranks\": 1");
  EXPECT_THAT(error_of([&] { parse_cost_table(text, "cost.json"); }), testing::HasSubstr("/sums/0/ranks"));
}

TEST(CostFile, ErrorsNameFileAndPlace) {
  const auto error = [](const std::string& from, const std::string& to) {
    std::string text = kText;
    text.replace(text.find(from), from.size(), to);
    return error_of([&] { parse_cost_table(text, "cost.json"); });
  };
  EXPECT_EQ(error("sluice.cost/1", "sluice.cost/2"),
            "cost.json: /schema: expected \"sluice.cost/1\", got \"sluice.cost/2\"");
  EXPECT_EQ(error("[64, 128, 512]", "[64, 64, 512]"),
            "cost.json: /parts/layer/F/tokens/1: expected token counts that increase, got 64");
  EXPECT_EQ(error("[1, 2, 10]", "[1, 2]"),
            "cost.json: /parts/layer/F/seconds: expected as many entries as tokens, 3, got [1,2]");
  EXPECT_EQ(error("[1, 2, 10]", "[1, -2, 10]"),
            "cost.json: /parts/layer/F/seconds/1: expected a number from 0 to 1000000, got -2");
  EXPECT_EQ(error("[0.5, 0.01, 0.001, 0.0001]", "[1, 2]"),
            "cost.json: /parts/layer/F/ctx: expected four numbers, [a0, a1, a2, a3], got [1,2]");
  EXPECT_EQ(error("\"residual\"", "\"residuum\""),
            "cost.json: /parts/layer/F/residuum: unknown key; did you mean 'residual'?");
  EXPECT_EQ(error("\"W\"", "\"X\""), "cost.json: /parts/layer/X: unknown key; did you mean 'F'?");
  EXPECT_EQ(error("\"head\"", "\"heads\""), "cost.json: /parts/heads: unknown key; did you mean 'head'?");
}

}  // namespace
}  // namespace sluice::test

// Batches of documents of different length (sim/planner/batch_setup.h).

#include "sim/planner/batch_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "model/batches/batch.h"
#include "model/blocks/attention_core.h"
#include "model/errors.h"
#include "sim/engine/engine.h"
#include "sim/engine/predict.h"
#include "sim/planner/auto_setup.h"

namespace sluice::test {
namespace {

using namespace model;  // NOLINT(google-build-using-namespace)
using namespace sim;    // NOLINT(google-build-using-namespace)

// A schedule whose F takes a second per token, and B two.
Scenario scenario_of(const std::string& family, int ranks, const std::vector<std::int64_t>& lengths,
                     MicrobatchOrder order, int replicas = 1) {
  Scenario out{.source = "test"};
  out.schedule = family;
  out.training.pp = ranks;
  out.training.dp = replicas;
  out.uniform = {.forward = {1}, .input_gradient = {1}, .weight_gradient = {1}};
  BatchRequest request{.loaded = {}, .place = "test", .order = order, .replicas = replicas};
  for (const std::int64_t length : lengths) request.loaded.push_back({length});
  out.documents = std::make_shared<Batch>(make_batch(std::move(request), nullptr));
  out.microbatches = out.documents->microbatches();
  return out;
}

double seconds_of(const Scenario& scenario) {
  const BatchRun run = batch_setup(scenario).run;
  return to_seconds(run.replicas[static_cast<std::size_t>(run.slowest)].makespan);
}

struct Published {
  int ranks;
  std::vector<std::int64_t> lengths;
  double best, ascending, descending, even;
};

// Exact optima by enumeration with another program; f = t, whole backward 2 t.
TEST(BatchOrder, HasTheExactOptimaOf1F1B) {
  for (const Published& each : {Published{2, {1, 1, 4}, 27, 30, 30, 24},
                                {2, {1, 2, 3, 4}, 37, 39, 39, 37.5},
                                {3, {1, 1, 1, 5}, 49, 54, 54, 36},
                                {4, {1, 1, 1, 1, 1, 1, 1, 5}, 77, 81, 81, 49.5},
                                {4, {8, 4, 4, 2, 2, 2, 1, 1}, 122, 132, 135, 99}}) {
    const BatchRun best = batch_setup(scenario_of("1f1b", each.ranks, each.lengths, MicrobatchOrder::best)).run;
    EXPECT_EQ(to_seconds(best.replicas[0].makespan), each.best);
    EXPECT_TRUE(best.best_order);
    EXPECT_EQ(to_seconds(best.even), each.even);
    EXPECT_EQ(seconds_of(scenario_of("1f1b", each.ranks, each.lengths, MicrobatchOrder::ascending)), each.ascending);
    EXPECT_EQ(seconds_of(scenario_of("1f1b", each.ranks, each.lengths, MicrobatchOrder::descending)), each.descending);
  }
}

// GPipe: sum of (f + b) + (p - 1) (max f + max b), in any order.
TEST(BatchOrder, MakesNoDifferenceToGPipe) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const int ranks = std::uniform_int_distribution<>(2, 5)(random);
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(std::uniform_int_distribution<>(1, 6)(random)));
    std::int64_t sum = 0;
    for (std::int64_t& length : lengths) sum += length = std::uniform_int_distribution<>(1, 9)(random);
    const std::int64_t most = *std::max_element(lengths.begin(), lengths.end());
    EXPECT_EQ(seconds_of(scenario_of("gpipe", ranks, lengths, MicrobatchOrder::given)),
              static_cast<double>(3 * sum + (ranks - 1) * 3 * most));
  }
}

// The search simulates permuted times on one graph; here every order has a schedule and a graph of its own.
TEST(BatchOrder, IsTheBestOfAllSchedules) {
  std::mt19937 random(2);
  const std::vector<std::string> families = {"1f1b", "zb-h1", "interleaved-1f1b", "gpipe", "seq1f1b", "zb-v"};
  for (int round = 0; round < 500; ++round) {
    const std::string& family = families[static_cast<std::size_t>(round) % families.size()];
    const int ranks = std::uniform_int_distribution<>(2, 3)(random);
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(family == "interleaved-1f1b" ? 2 * ranks : 4));
    for (std::int64_t& length : lengths) length = std::uniform_int_distribution<>(2, 9)(random);
    const double found = seconds_of(scenario_of(family, ranks, lengths, MicrobatchOrder::best));
    double least = 1e9;
    std::sort(lengths.begin(), lengths.end());
    do least = std::min(least, seconds_of(scenario_of(family, ranks, lengths, MicrobatchOrder::given)));
    while (std::next_permutation(lengths.begin(), lengths.end()));
    EXPECT_EQ(found, least) << family;
  }
}

TEST(BatchOrder, RefusesJointBlocksAndRoutes) {
  for (const char* family : {"dualpipe", "chimera", "pipedream"}) {
    const Scenario scenario = scenario_of(family, 2, {1, 2, 3, 4}, MicrobatchOrder::best);
    EXPECT_THROW(batch_setup(scenario), InputError) << family;
    EXPECT_NO_THROW(batch_setup(scenario_of(family, 2, {1, 2, 3, 4}, MicrobatchOrder::given))) << family;
  }
}

// It is selected by the documents' own times, from the families among others.
TEST(BatchOrder, AutomaticSchedulesAreNoSlowerThanFamilies) {
  std::mt19937 random(6);
  for (int round = 0; round < 6; ++round) {
    std::vector<std::int64_t> lengths(8);
    std::int64_t sum[2] = {0, 0};
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      sum[i % 2] += lengths[i] = std::uniform_int_distribution<>(1, 9)(random);
    }
    Scenario scenario = scenario_of("auto", 2, lengths, MicrobatchOrder::given, 2);
    scenario.automatic.placement = "linear";
    scenario.automatic.evaluations = 200;
    scenario.chunks = 1;
    const PlannedSetup found = planned_setup(scenario);
    ASSERT_TRUE(found.automatic && found.batch);
    for (const char* family : {"1f1b", "zb-h1", "zb-h2", "gpipe"}) {
      EXPECT_LE(to_seconds(found.automatic->makespan),
                seconds_of(scenario_of(family, 2, lengths, MicrobatchOrder::given, 2)))
          << family;
    }
    // A rank has f + b + w = 3 per token; the second one starts after the first forward.
    EXPECT_EQ(to_seconds(found.automatic->lower_bound), static_cast<double>(3 * std::max(sum[0], sum[1])));
    EXPECT_GT(found.automatic->makespan, found.automatic->lower_bound);
    EXPECT_EQ(found.automatic->makespan,
              found.batch->replicas[static_cast<std::size_t>(found.batch->slowest)].makespan);
  }
}

TEST(BatchReplicas, AreBalancedWithoutPackingAnew) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    BatchRequest request{.loaded = {}, .place = "test", .packer = Packer::balanced, .replicas = 3};
    for (int i = 0; i < 12; ++i) {
      Documents& documents = request.loaded.emplace_back();
      for (int left = std::uniform_int_distribution<>(1, 3)(random); left > 0; --left) {
        documents.push_back(std::uniform_int_distribution<>(1, 99)(random));
      }
    }
    const Batch balanced = make_batch(request, nullptr);
    request.packer = Packer::given;
    const Batch given = make_batch(request, nullptr);
    std::vector<Documents> all;
    std::int64_t heaviest[2] = {0, 0};
    for (const Batch* batch : {&balanced, &given}) {
      for (const Microbatches& replica : batch->replicas) {
        ASSERT_EQ(replica.size(), 4U);
        std::int64_t sum = 0;
        for (const Documents& documents : replica) sum += tokens_of(documents);
        std::int64_t& most = heaviest[batch == &balanced ? 0 : 1];
        most = std::max(most, sum);
        if (batch == &balanced) all.insert(all.end(), replica.begin(), replica.end());
      }
    }
    EXPECT_LE(heaviest[0], heaviest[1]);
    EXPECT_THAT(all, testing::UnorderedElementsAreArray(request.loaded));
  }
}

// Line k of the file goes to replica k mod dp; the batch takes the time of the slowest one.
TEST(BatchReplicas, WaitForTheSlowest) {
  std::mt19937 random(4);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::int64_t> lengths(12);
    for (std::int64_t& length : lengths) length = std::uniform_int_distribution<>(1, 9)(random);
    const BatchRun run = batch_setup(scenario_of("1f1b", 3, lengths, MicrobatchOrder::given, 3)).run;
    ASSERT_EQ(run.replicas.size(), 3U);
    double most = 0;
    for (std::size_t replica = 0; replica < 3; ++replica) {
      const std::vector<std::int64_t> own = {lengths[replica], lengths[replica + 3], lengths[replica + 6],
                                             lengths[replica + 9]};
      const double alone = seconds_of(scenario_of("1f1b", 3, own, MicrobatchOrder::given));
      EXPECT_EQ(to_seconds(run.replicas[replica].makespan), alone);
      most = std::max(most, alone);
    }
    EXPECT_EQ(to_seconds(run.replicas[static_cast<std::size_t>(run.slowest)].makespan), most);
  }
}

Scenario analytic_scenario(int ranks, int cp) {
  Scenario out = scenario_from_json({{"schema", "sluice.scenario/1"},
                                     {"model", "llama3-8b"},
                                     {"cluster", "dgx-h100"},
                                     {"parallelism", {{"pp", ranks}, {"tp", 2}, {"dp", 4 / cp}, {"cp", cp}}},
                                     {"batch", {{"microbatches", 3}, {"sequence_length", 8192}}}},
                                    "test", "");
  return out;
}

// Documents that need all ranks: as with a fixed context-parallel size.
TEST(DynamicContext, OfAllRanksIsContextParallelism) {
  for (const int ranks : {1, 2}) {
    Scenario shared = analytic_scenario(ranks, 1);
    BatchRequest request{.loaded = {{8192}, {8192}, {8192}},
                         .place = "test",
                         .replicas = 4,
                         .grouping = ContextGrouping::megatron,
                         .most_tokens_per_rank = 2048,
                         .pipelined = ranks > 1};
    std::vector<ContextGroup> groups(3, {{.tokens = 8192, .ranks = 4, .first = 0}});
    shared.documents = std::make_shared<Batch>(batch_of_groups(std::move(request), std::move(groups)));
    const BatchSetup found = batch_setup(shared);
    const model::Setup fixed(analytic_scenario(ranks, 4));
    const Prediction expected = predict(fixed);
    EXPECT_EQ(found.run.replicas[0].makespan, expected.metrics.makespan);
    EXPECT_EQ(found.run.replicas[0].tokens, 3 * 8192);
    EXPECT_EQ(predict(*found.setup).fit->needed_bytes, expected.fit->needed_bytes);
  }
}

// A group lasts as long as its slowest rank; groups follow each other.
TEST(DynamicContext, WaitsForTheSlowestRank) {
  Scenario scenario = analytic_scenario(1, 1);
  BatchRequest request{.loaded = {{8192}, {4096}, {2048}, {1024}, {512}, {2048}, {100}, {1500}},
                       .place = "test",
                       .replicas = 4,
                       .grouping = ContextGrouping::megatron,
                       .most_tokens_per_rank = 4096};
  scenario.documents = std::make_shared<Batch>(make_batch(request, nullptr));
  scenario.microbatches = scenario.documents->microbatches();
  const BatchSetup by_rule = batch_setup(scenario);
  request.grouping = ContextGrouping::fastest;
  scenario.documents = std::make_shared<Batch>(make_batch(request, nullptr));
  const BatchSetup fastest = batch_setup(scenario);
  EXPECT_EQ(fastest.setup->scenario().documents->groups.size(), 1U);
  EXPECT_EQ(fastest.run.replicas[0].documents, 8);
  EXPECT_LT(fastest.run.replicas[0].makespan, by_rule.run.replicas[0].makespan);
  EXPECT_LT(fastest.run.replicas[0].makespan, *fastest.run.before);
}

// Pairs of a query and a key add up over the documents of a packed sequence, however it is cut into slices.
TEST(PackedDocuments, AttendToThemselves) {
  std::mt19937 random(6);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<>(low, high)(random); };
  for (int round = 0; round < 200; ++round) {
    AttentionCore core{.heads = 4, .kv_heads = 4, .head_dim = 8, .value_head_dim = 8};
    if (draw(0, 2) == 0) core.window = draw(1, 20);
    if (core.window == 0 && draw(0, 2) == 0) core.chunk = draw(1, 20);
    MicrobatchShape shape{.sequences = 1, .slice_lengths = {}, .documents = {}};
    double whole = 0;
    std::int64_t tokens = 0;
    for (int i = draw(2, 5); i > 0; --i) {
      shape.documents.push_back(draw(1, 30));
      tokens += shape.documents.back();
      whole += core.pairs(static_cast<double>(shape.documents.back()), 0);
    }
    for (std::int64_t left = tokens; left > 0; left -= shape.slice_lengths.back()) {
      shape.slice_lengths.push_back(std::min<std::int64_t>(left, draw(1, 25)));
    }
    double sum = 0;
    std::int64_t most = 0;
    for (int slice = 0; slice < shape.num_slices(); ++slice) {
      const SliceShape of = slice_shape(shape, slice);
      sum += of.sum_over_documents([&](double n, double context) { return core.pairs(n, context); });
      most = std::max(most, of.most_keys());
    }
    EXPECT_NEAR(sum, whole, 1e-9 * whole);
    EXPECT_EQ(most, *std::max_element(shape.documents.begin(), shape.documents.end()));
  }
}

}  // namespace
}  // namespace sluice::test

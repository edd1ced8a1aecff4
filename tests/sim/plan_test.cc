#include "sim/planner/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <tuple>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/slicing/balanced.h"
#include "sim/engine/predict.h"
#include "sim/planner/partition.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

// A small GPT with many cheap microbatches; `changes` override it.
Scenario base_of(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 51200,
              "max_position_embeddings": 2048},
    "cluster": {"name": "dgx-a100-80gb", "nodes": 2},
    "batch": {"global_batch": 192, "sequence_length": 2048}})");
  document.merge_patch(changes);
  return scenario_from_json(document, "test", "");
}

void finish(Plan& plan) {
  for (auto work = plan.next(); !work.empty(); work = plan.next()) {
    plan.take(work, plan.work_out(work));
    plan.end_round();
  }
}

TEST(PlanSpace, UsesAllGpusAndTheWholeBatch) {
  const Scenario base = base_of();
  const std::vector<PlanPoint> points = enumerate(base, {});
  std::set<std::string_view> families;
  std::set<std::string> flags;
  for (const PlanPoint& point : points) {
    EXPECT_EQ(point.tp * point.pp * point.dp, 16);
    EXPECT_EQ(std::int64_t{point.micro_batch} * point.microbatches * point.dp, 192);
    EXPECT_LE(point.pp * point.chunks, 24);
    EXPECT_FALSE(point.family->asynchronous);
    families.insert(point.family->name);
    EXPECT_TRUE(flags.insert(flags_of(base, {}, point)).second) << flags_of(base, {}, point);
  }
  EXPECT_EQ(families.size(), 26U);  // two others do not flush, and one is for experts
}

TEST(PlanSpace, TriesEveryOrderOnOneRank) {
  PlanSpace space;
  space.tp = {8};
  space.pp = {1};
  space.micro_batch = {2};
  space.slices = {1, 2};
  std::set<std::tuple<int, int, std::string_view>> tried;  // by slices and chunks
  for (const PlanPoint& point : enumerate(base_of(), space))
    tried.insert({point.slices, point.chunks, point.family->name});
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) EXPECT_TRUE(tried.contains({1, 1, name})) << name;
  EXPECT_TRUE(tried.contains({2, 1, "seq1f1b"}));
  const auto order = [](std::string_view name, int slices, int chunks) -> std::vector<Op> {
    const FamilyParams params = {
        .chunks = chunks, .microbatches = 6, .shape = {.sequences = 1, .slice_lengths = even_slices(slices, slices)}};
    try {
      return make_parts(find_family(name), params).orders[0];
    } catch (const InputError&) {
      return {};  // not on one rank
    }
  };
  for (const auto& [slices, chunks, name] : tried) {
    for (const auto& [other_slices, other_chunks, other] : tried) {
      if (other_slices != slices || other_chunks != chunks || other == name) continue;
      const std::vector<Op> ops = order(name, slices, chunks);
      EXPECT_TRUE(ops.empty() || ops != order(other, slices, chunks)) << name << " and " << other;
    }
  }
  // A family is left out only for one that was listed.
  space.families = {"interleaved-1f1b"};
  EXPECT_FALSE(enumerate(base_of(), space).empty());
}

TEST(PlanSpace, TriesContextAndExpertSizes) {
  const auto sizes_of = [](const Scenario& base, const PlanSpace& space, int PlanPoint::*size) {
    std::set<int> out;
    for (const PlanPoint& point : enumerate(base, space)) {
      EXPECT_EQ(point.tp * point.cp * point.pp * point.dp, 16);
      EXPECT_EQ(point.tp * point.cp * point.dp % point.ep, 0);
      EXPECT_TRUE(!space.cp.empty() || point.cp == 1 || point.slices == 1);
      out.insert(point.*size);
    }
    return out;
  };
  const Scenario lengthy = base_of({{"batch", {{"sequence_length", 16384}}}});
  EXPECT_EQ(sizes_of(lengthy, {}, &PlanPoint::cp), (std::set{1, 2, 4}));
  EXPECT_EQ(sizes_of(lengthy, {.cp = {1, 8}}, &PlanPoint::cp), (std::set{1, 8}));
  const Scenario experts = base_of(
      {{"model",
        {{"disable_bias_linear", true}, {"num_experts", 6}, {"moe_router_topk", 2}, {"moe_ffn_hidden_size", 1024}}}});
  EXPECT_EQ(sizes_of(experts, {}, &PlanPoint::ep), (std::set{1, 2}));
  EXPECT_EQ(sizes_of(experts, {.ep = {2}}, &PlanPoint::ep), (std::set{2}));
  EXPECT_THROW(enumerate(experts, {.ep = {3}}), InputError);
}

TEST(PlanSpace, ReportsWhyItIsEmpty) {
  const auto error = [](const PlanSpace& space, const nlohmann::json& changes = nlohmann::json::object()) {
    try {
      enumerate(base_of(changes), space);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error({.tp = {3}}), "plan: no requested combination of tp x pp x dp equals 16 GPUs (--tp 3)");
  EXPECT_EQ(error({.gpus = 32}), "--gpus: expected at most the 16 of DGX A100 80GB, got 32");
  EXPECT_EQ(error({.tp = {1}, .pp = {1}, .micro_batch = {7}}),
            "plan: the global batch 192 is not a multiple of micro_batch x dp for any requested sizes (--tp 1 --pp 1 "
            "--mbs 7)");
  EXPECT_EQ(error({.families = {"1f1c"}}),
            "--schedule: there is no schedule family '1f1c'; did you mean '1f1b'? ('sluice schedules' lists them)");
  EXPECT_EQ(error({.recompute = {"ful"}}),
            "--recompute: expected none, selective or full, got 'ful'; did you mean 'full'?");
  EXPECT_EQ(error({}, {{"batch", {{"global_batch", nullptr}}}}), "test: /batch/global_batch: required (--gbs)");
  EXPECT_EQ(error({}, {{"model", nullptr}}), "test: /model: required (--model)");
}

// A run on a shared graph with a shortened steady state has exactly the times and bytes of `predict`, and respects the
// lower bounds of its assessment.
TEST(StructureRuns, EqualPredictions) {
  int simulated = 0;
  int refused = 0;
  std::mt19937 random(7);
  for (const nlohmann::json& changes :
       {nlohmann::json::object(),
        nlohmann::json{{"cluster", {{"name", "p3.16xlarge"}, {"nodes", 2}}}, {"batch", {{"sequence_length", 1024}}}},
        nlohmann::json{{"parallelism", {{"overlap_transfers", true}, {"overlap_grad_reduce", true}}},
                       {"model", {{"num_layers", 26}}}}}) {
    const Scenario base = base_of(changes);
    PlanSpace space;
    for (const Family& family : all_families()) space.families.emplace_back(family.name);
    std::vector<PlanPoint> points = enumerate(base, space);
    std::shuffle(points.begin(), points.end(), random);
    points.resize(220);
    // Grouped by structure, so that they share graphs.
    const auto structure = [](const PlanPoint& p) {
      return std::tuple(p.family->name, p.pp, p.chunks, p.microbatches, p.slices);
    };
    std::stable_sort(points.begin(), points.end(),
                     [&](const PlanPoint& a, const PlanPoint& b) { return structure(a) < structure(b); });
    std::optional<StructureRuns> runs;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Scenario scenario = scenario_of(base, space, points[i]);
      SCOPED_TRACE(flags_of(base, space, points[i]));
      if (i == 0 || structure(points[i]) != structure(points[i - 1])) runs.emplace(scenario);
      SharedCosts shared;
      const PlanResult assessed = runs->assess(scenario, shared);
      const PlanResult result = runs->run(scenario);
      try {
        const model::Setup setup(scenario);
        const Prediction expected = predict(setup);
        ASSERT_EQ(result.status, PlanStatus::simulated) << result.reason;
        ++simulated;
        EXPECT_EQ(result.makespan, expected.metrics.makespan);
        EXPECT_EQ(result.iteration, expected.iteration);
        EXPECT_EQ(result.needed_bytes, expected.fit->needed_bytes);
        EXPECT_EQ(result.rank, expected.fit->rank);
        EXPECT_EQ(result.fits, expected.fit->fits);
        EXPECT_NEAR(result.bubble_fraction, expected.metrics.bubble_fraction, 1e-12);
        EXPECT_DOUBLE_EQ(result.throughput.mfu, expected.throughput.mfu);
        EXPECT_LE(assessed.needed_bytes, expected.fit->needed_bytes);
        EXPECT_LE(assessed.bound, expected.iteration);
        EXPECT_TRUE(assessed.status != PlanStatus::over || !expected.fit->fits);
      } catch (const InputError& error) {
        EXPECT_EQ(result.status, PlanStatus::refused);
        EXPECT_EQ(result.reason, error.what());
        ++refused;
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(simulated, 400);
  EXPECT_GT(refused, 20);
}

// Configurations that differ in what their kernels do not depend on share times; of no other does one take any.
TEST(StructureRuns, KeptPricesAreThoseComputedAlone) {
  std::mt19937 random(11);
  for (const char* model : {"nemotron-3-nano", "deepseek-v3", "llama3-8b"}) {
    const Scenario base = base_of({{"model", model},
                                   {"cluster", {{"name", "dgx-h100"}, {"nodes", 8}}},
                                   {"batch", {{"global_batch", 128}, {"sequence_length", 4096}}}});
    PlanSpace space;
    for (const Family& family : all_families()) space.families.emplace_back(family.name);
    space.dispatchers = {Training::TokenDispatcher::all_to_all, Training::TokenDispatcher::hybridep};
    std::vector<PlanPoint> points = enumerate(base, space);
    std::shuffle(points.begin(), points.end(), random);
    PriceStore store;
    int compared = 0;
    for (std::size_t i = 0; i < points.size() && compared < (small_scope() ? 40 : 400); ++i) {
      const Scenario scenario = scenario_of(base, space, points[i]);
      SCOPED_TRACE(flags_of(base, space, points[i]));
      try {
        const Schedule schedule = make_schedule(scenario);
        if (schedule.num_stages() > 16) continue;
        const ScenarioCosts kept(scenario, schedule, nullptr, store);
        const ScenarioCosts alone(scenario, schedule);
        const MicrobatchShape& shape = schedule.shapes()[0];
        for (int stage = 0; stage < schedule.num_stages(); ++stage) {
          for (int slice = 0; slice < shape.num_slices(); ++slice) {
            for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W, OpKind::B}) {
              ASSERT_EQ(kept.cost().compute_s(kind, stage, shape, slice),
                        alone.cost().compute_s(kind, stage, shape, slice));
            }
            ASSERT_EQ(kept.cost().recompute_s(stage, shape, slice), alone.cost().recompute_s(stage, shape, slice));
          }
          const int other = std::uniform_int_distribution(0, schedule.num_stages() - 1)(random);
          const auto joint = [&](const ScenarioCosts& of) {
            return of.cost().joint_s(other, shape, 0, stage % 2 == 0 ? OpKind::B : OpKind::I, stage, shape, 0);
          };
          ASSERT_EQ(joint(kept), joint(alone));
        }
        ++compared;
      } catch (const InputError&) {
        continue;  // refused
      }
    }
    EXPECT_GE(compared, 40) << model;
  }
}

// Of neighbors in every order, also those that share nothing.
TEST(StructureRuns, BoundsDoNotDependOnWhatWasAssessedBefore) {
  const Scenario base = base_of({{"model", {{"num_experts", 8}, {"moe_ffn_hidden_size", 1024}}}});
  PlanSpace space;
  space.tp = {2};
  space.pp = {4};
  space.micro_batch = {2};
  space.recompute = {"none", "full"};
  space.slices = {1, 2};
  std::vector<PlanPoint> points = enumerate(base, space);
  const auto sizes = [](const PlanPoint& of) {
    return std::tie(of.tp, of.pp, of.ep, of.chunks, of.slices, of.first_layers, of.last_layers, of.recompute,
                    of.distributed_optimizer, of.overlap_grad_reduce, of.overlap_param_gather, of.pipeline_before_data);
  };
  std::stable_sort(points.begin(), points.end(),
                   [&](const PlanPoint& a, const PlanPoint& b) { return sizes(a) < sizes(b); });
  points.resize(small_scope() ? 200 : 1500);
  std::shuffle(points.begin() + std::ssize(points) / 2, points.end(), std::mt19937(7));
  SharedCosts shared;
  int sharing = 0;
  for (const PlanPoint& point : points) {
    SCOPED_TRACE(flags_of(base, space, point));
    const Scenario scenario = scenario_of(base, space, point);
    const CostModel* const before = shared.costs ? &shared.costs->cost() : nullptr;
    const PlanResult next = StructureRuns(scenario).assess(scenario, shared);
    sharing += shared.costs && &shared.costs->cost() == before ? 1 : 0;
    SharedCosts none;
    const PlanResult alone = StructureRuns(scenario).assess(scenario, none);
    ASSERT_EQ(next.status, alone.status);
    ASSERT_EQ(next.bound, alone.bound);
    ASSERT_EQ(next.needed_bytes, alone.needed_bytes);
    ASSERT_EQ(next.tight, alone.tight);
  }
  EXPECT_GT(sharing, std::ssize(points) / 10);
  EXPECT_LT(sharing, std::ssize(points));
}

// Of batches with tens of thousands of microbatches, times and bytes are those of `predict`, or marked as extrapolated
// and as near as the drift that is left out.
TEST(StructureRuns, LongRunsNeedFewMicrobatches) {
  const Scenario base = base_of({{"cluster", {{"name", "dgx-h100"}, {"nodes", 1}}},
                                 {"model", {{"num_layers", 26}, {"untie_embeddings_and_output_weights", true}}},
                                 {"batch", {{"global_batch", 1 << 17}}}});
  PlanSpace space;
  space.tp = {1};
  space.pp = {2, 4};
  space.micro_batch = {1};
  space.recompute = {"none"};
  for (const char* name : {"1f1b", "eager-1f1b", "zb-v", "pipedream", "pipedream-2bw"})
    space.families.emplace_back(name);
  int extrapolated = 0;
  std::set<std::tuple<std::string_view, int>> seen;
  for (const PlanPoint& point : enumerate(base, space)) {
    if (!seen.emplace(point.family->name, point.pp).second || (small_scope() && point.pp != 2)) continue;
    const Scenario scenario = scenario_of(base, space, point);
    SCOPED_TRACE(flags_of(base, space, point));
    StructureRuns runs(scenario);
    SharedCosts shared;
    const PlanResult assessed = runs.assess(scenario, shared);
    const PlanResult result = runs.run(scenario);
    const Prediction expected = predict(model::Setup(scenario));
    ASSERT_EQ(result.status, PlanStatus::simulated) << result.reason;
    const double near = result.extrapolated ? 1e-6 : 0;
    extrapolated += result.extrapolated ? 1 : 0;
    EXPECT_NEAR(to_seconds(result.iteration), to_seconds(expected.iteration), near * to_seconds(expected.iteration));
    EXPECT_NEAR(result.bubble_fraction, expected.metrics.bubble_fraction, 1e-12 + near);
    EXPECT_NEAR(result.throughput.mfu, expected.throughput.mfu, 1e-12 + near);
    EXPECT_EQ(result.needed_bytes, expected.fit->needed_bytes);
    EXPECT_LE(assessed.needed_bytes, expected.fit->needed_bytes);
    EXPECT_LT(runs.num_ops(), 400'000);
  }
  EXPECT_GE(extrapolated, 2);
}

TEST(Plan, SkipsOnlyWorseConfigurations) {
  for (const char* memory : {"80", "24"}) {
    if (small_scope() && std::string(memory) == "80") continue;
    const Scenario base =
        base_of({{"cluster",
                  {{"name", nullptr},
                   {"node",
                    {{"name", "node"},
                     {"gpu",
                      {{"name", "a"},
                       {"peak_flops_per_s", 312e12},
                       {"memory_bytes", std::stoll(memory) << 30},
                       {"memory_bandwidth_bytes_per_s", 2e12},
                       {"sms", 108},
                       {"gemm",
                        {{"peak_fraction", 0.8},
                         {"operand_edge", 0},
                         {"exposed_write", 0},
                         {"memory_efficiency", 0.9},
                         {"launch_s", 3e-6},
                         {"group_s", 0},
                         {"source", "made up"}}},
                       {"attention_forward",
                        {{"peak_fraction", 0.5}, {"tail_rows", 0}, {"softmax_size", 0}, {"source", "made up"}}},
                       {"attention_backward",
                        {{"peak_fraction", 0.4}, {"tail_rows", 0}, {"softmax_size", 0}, {"source", "made up"}}},
                       {"memory_efficiency", 0.9},
                       {"kernel_s", 3e-6},
                       {"memory_margin", 0.25}}},
                     {"gpus", 8},
                     {"intra_node", "nvlink3"},
                     {"inter_node", {{"name", "slow"}, {"latency_s", 1e-5}, {"bandwidth_bytes_per_s", 25e9}}}}}}}});
    PlanSpace space;
    space.families = {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "seq1f1b", "dualpipe-v"};
    if (small_scope()) space.families = {"1f1b", "zb-v", "seq1f1b"};
    space.slices = {2};
    constexpr int kKeep = 8;
    Plan all(base, space, kKeep, true);
    Plan some(base, space, kKeep);
    finish(all);
    finish(some);
    int bounded = 0;
    for (std::size_t i = 0; i < all.points().size(); ++i) {
      const PlanResult& mine = some.results()[i];
      const PlanResult& whole = all.results()[i];
      if (mine.status == PlanStatus::bounded) {
        ++bounded;
        EXPECT_EQ(whole.status, PlanStatus::simulated);
      } else {
        EXPECT_EQ(mine.status, whole.status);
        EXPECT_EQ(mine.iteration, whole.iteration);
      }
    }
    EXPECT_GT(bounded, 100);
    const std::vector<int> ranking = all.ranking();
    ASSERT_GE(ranking.size(), 8U);
    const auto within = [&](int point) { return all.results()[point].tight; };
    EXPECT_TRUE(std::is_partitioned(ranking.begin(), ranking.end(), [&](int point) { return !within(point); }));
    EXPECT_GT(std::count_if(ranking.begin(), ranking.end(), within), 5);
    EXPECT_EQ(std::vector(ranking.begin(), ranking.begin() + kKeep), [&] {
      const auto r = some.ranking();
      return std::vector(r.begin(), r.begin() + kKeep);
    }());
    // Equal configurations are interchangeable, so times and bytes are compared.
    const auto figures = [](const Plan& plan) {
      std::vector<std::pair<Duration, std::int64_t>> out;
      for (const int point : plan.pareto_front()) {
        const PlanResult& result = plan.results()[point];
        out.emplace_back(result.iteration, result.needed_bytes);
      }
      return out;
    };
    EXPECT_EQ(figures(all), figures(some));
    for (const auto& [time, bytes] : figures(all)) {
      for (const PlanResult& other : all.results()) {
        if (other.status != PlanStatus::simulated || !other.fits) continue;
        EXPECT_FALSE(other.iteration < time && other.needed_bytes < bytes);
      }
    }
  }
}

// The best of a subset is that of a search without bounds, also where the ranking has none of the subset.
TEST(Plan, BestOfSubsetIsExact) {
  const Scenario base = base_of();
  PlanSpace space;
  space.families = {"1f1b", "interleaved-1f1b", "zb-v", "seq1f1b"};
  if (small_scope()) space.families = {"1f1b", "zb-v"};
  const auto subset = [](const PlanPoint& point) { return point.family->name == "1f1b" && point.pp > 2; };
  Plan all(base, space, 1, true, subset);
  Plan some(base, space, 1, false, subset);
  Plan without(base, space, 1);
  for (Plan* const plan : {&all, &some, &without}) finish(*plan);
  ASSERT_GE(some.best_of_subset(), 0);
  EXPECT_TRUE(subset(some.points()[some.best_of_subset()]));
  const auto time = [](const Plan& plan, int point) { return plan.results()[point].iteration; };
  EXPECT_EQ(time(some, some.best_of_subset()), time(all, all.best_of_subset()));
  EXPECT_GT(some.ranking().size(), without.ranking().size());
  EXPECT_LT(some.ranking().size(), all.ranking().size());
  EXPECT_EQ(without.best_of_subset(), -1);
}

TEST(Plan, DoesNotDependOnTheDistributionOfWork) {
  const Scenario base = base_of();
  PlanSpace space;
  space.families = {"1f1b", "interleaved-1f1b", "zb-h1"};
  if (small_scope()) space.families = {"interleaved-1f1b"};
  Plan whole(base, space, 5);
  finish(whole);
  Plan dealt(base, space, 5);
  for (auto work = dealt.next(); !work.empty(); work = dealt.next()) {
    // In reverse order, one by one, in another plan.
    Plan other(base, space, 5);
    for (auto item = work.rbegin(); item != work.rend(); ++item) {
      const std::span one(&*item, 1);
      dealt.take(one, other.work_out(one));
    }
    dealt.end_round();
  }
  EXPECT_EQ(whole.ranking(), dealt.ranking());
  for (std::size_t i = 0; i < whole.results().size(); ++i) {
    EXPECT_EQ(whole.results()[i].status, dealt.results()[i].status);
    EXPECT_EQ(whole.results()[i].iteration, dealt.results()[i].iteration);
  }
}

// Refined points have the results of `predict` with their layers, and nothing becomes slower.
TEST(Plan, RefinesItsLeaders) {
  const Scenario base = base_of({{"model", {{"vocab_size", 204800}}}});
  PlanSpace space;
  space.families = {"1f1b", "zb-v", "gpipe"};
  const auto subset = [](const PlanPoint& point) { return point.family->name == "gpipe" && point.pp > 1; };
  Plan plan(base, space, 5, false, subset);
  finish(plan);
  const std::vector<PlanResult> before(plan.results().begin(), plan.results().end());
  const std::vector<PlanPoint> points(plan.points().begin(), plan.points().end());
  const int best_before = plan.best_of_subset();
  plan.refine(5);
  int refined = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const PlanPoint& point = plan.points()[i];
    if (point == points[i]) {
      EXPECT_EQ(plan.results()[i].iteration, before[i].iteration);
      continue;
    }
    ++refined;
    EXPECT_FALSE(point.stage_layers.empty());
    EXPECT_NE(flags_of(base, space, point).find(uneven_layout(base, point)), std::string::npos);
    const model::Setup setup(scenario_of(base, space, point));
    const Prediction expected = predict(setup);
    EXPECT_EQ(plan.results()[i].iteration, expected.iteration);
    EXPECT_EQ(plan.results()[i].needed_bytes, expected.fit->needed_bytes);
    EXPECT_TRUE(before[i].tight || plan.results()[i].iteration < before[i].iteration);
  }
  EXPECT_GE(refined, 2);
  EXPECT_LE(refined, 10);  // five of each ranking
  EXPECT_FALSE(plan.points()[static_cast<std::size_t>(best_before)].stage_layers.empty());
  const std::vector<int> ranking = plan.ranking();
  const auto slower = [&](int a, int b) {
    const PlanResult& x = plan.results()[static_cast<std::size_t>(a)];
    const PlanResult& y = plan.results()[static_cast<std::size_t>(b)];
    return std::tie(x.tight, x.iteration) < std::tie(y.tight, y.iteration);
  };
  EXPECT_TRUE(std::is_sorted(ranking.begin(), ranking.end(), slower));
}

// Where no recomputation does not fit, the leaders recompute no more layers than they must.
TEST(Plan, RefinesTheNumberOfRecomputedLayers) {
  Scenario base = base_of({{"model", {{"num_layers", 16}}}});
  base.cluster->gpu.memory_margin = 0;
  PlanSpace space;
  space.families = {"1f1b"};
  space.tp = {1};
  space.pp = {2};
  space.micro_batch = {4};
  space.uneven_outer_stages = false;
  space.distributed_optimizer = {false};
  const auto predicted = [&](int layers) {
    PlanSpace one = space;
    one.recompute = {layers == 0 ? "none" : "full"};
    one.recompute_layers = {layers};
    return predict(model::Setup(scenario_of(base, one, enumerate(base, one).front())));
  };
  // Room for five of the eight layers of a stage, but not for six.
  base.cluster->gpu.memory_bytes = predicted(3).fit->needed_bytes;
  ASSERT_GT(predicted(2).fit->needed_bytes, base.cluster->gpu.memory_bytes);
  Plan plan(base, space, 3);
  finish(plan);
  EXPECT_EQ(plan.points()[static_cast<std::size_t>(plan.ranking().front())].recompute_layers, 4);  // a half
  plan.refine(3);
  const auto first = static_cast<std::size_t>(plan.ranking().front());
  const PlanPoint& point = plan.points()[first];
  const Prediction prediction = predict(model::Setup(scenario_of(base, space, point)));
  EXPECT_EQ(plan.results()[first].iteration, prediction.iteration);
  EXPECT_LE(plan.results()[first].iteration, predicted(3).iteration);
  EXPECT_NE(flags_of(base, space, point).find(fmt::format("--recompute-num-layers {}", point.recompute_layers)),
            std::string::npos);
  PlanPoint less = point;
  --less.recompute_layers;
  EXPECT_TRUE(less.recompute_layers == 0 || !predict(model::Setup(scenario_of(base, space, less))).fit->fits);
}

// Gradients of a stage are reduced while other stages of the rank go on, and parameters that are gathered in the next
// iteration are gathered before the first forwards.
TEST(Plan, OverlapsOfCollectivesAreChoices) {
  const Scenario base = base_of();
  PlanSpace space;
  space.families = {"interleaved-1f1b"};
  space.chunks = {3};
  space.tp = {1};
  space.pp = {4};
  space.micro_batch = {1};
  space.recompute = {"none"};
  space.distributed_optimizer = {true};
  space.pipeline_before_data = {false};
  space.uneven_outer_stages = false;
  space.overlap_grad_reduce = space.overlap_param_gather = {false, true};
  const std::vector<PlanPoint> points = enumerate(base, space);
  ASSERT_EQ(points.size(), 3U);  // none, gradients, and both
  std::vector<Duration> times;
  for (const PlanPoint& point : points) {
    const model::Setup setup(scenario_of(base, space, point));
    const Prediction prediction = predict(setup);
    times.push_back(prediction.iteration);
    EXPECT_GT(prediction.period, Duration{0});
    EXPECT_LT(prediction.period, prediction.iteration);
    for (VertexId v = 0; v < setup.graph().size(); ++v) {
      if (setup.graph()[v].kind != VertexKind::collective) continue;
      const Collective collective = setup.graph().collective(setup.graph()[v]);
      if (collective.kind != CollectiveKind::parameter_gather) continue;
      EXPECT_EQ(prediction.timeline.start[v] < prediction.iteration / 2, point.overlap_param_gather);
    }
  }
  EXPECT_LT(times[1], times[0]);
  EXPECT_NE(times[2], times[1]);  // the first stage has the embedding, whose gather is exposed
}

// Of iterations without a barrier, whose collectives do not count, gathers do not delay any: also where links are
// shared.
TEST(Plan, OverlappedGathersDoNotChangeThePeriod) {
  const auto period = [](bool gather) {
    nlohmann::json document = nlohmann::json::parse(R"({"model": "llama3-8b", "cluster": "dgx-h100",
        "parallelism": {"pp": 4, "vpp": 2, "dp": 2, "distributed_optimizer": true, "overlap_grad_reduce": true},
        "schedule": "interleaved-1f1b", "batch": {"microbatches": 8, "sequence_length": 4096}})");
    document["parallelism"]["overlap_param_gather"] = gather;
    return predict(model::Setup(scenario_from_json(document, "test", ""))).period;
  };
  EXPECT_GT(period(true), Duration{0});
  EXPECT_EQ(period(true), period(false));
}

// Of layouts with equal times, a plan names a regular one.
TEST(Plan, PrefersRegularLayouts) {
  const Scenario scenario = scenario_from_json(
      nlohmann::json::parse(R"({"model": "llama3-8b", "cluster": "dgx-h100", "parallelism": {"pp": 4},
        "batch": {"microbatches": 32, "sequence_length": 4096}})"),
      "test", "");
  const auto changes = [](const std::vector<int>& layers) {
    int out = 0;
    for (std::size_t i = 2; i + 1 < layers.size(); ++i) out += layers[i] != layers[i - 1] ? 1 : 0;
    return out;
  };
  int fewer = 0;
  for (const char* family : {"1f1b", "zb-v", "v-half", "interleaved-1f1b"}) {
    for (const int layers : {31, 37, 41}) {
      Scenario with = scenario;
      with.schedule = family;
      with.chunks = std::string(family) == "1f1b" ? 1 : 2;
      Transformer model = with.model->transformer("the test");
      model.layers = layers;
      with.model = model;
      SCOPED_TRACE(fmt::format("{} {}", family, layers));
      const PartitionLimits limits = {.vertices = 1'000'000, .simulations = 24, .nodes = 50'000};
      const Partition best = best_partition(with, limits);
      const Partition regular = regular_partition(with, limits);
      EXPECT_LE(to_seconds(regular.result.iteration), (1 + kEqualTimes) * to_seconds(best.result.iteration));
      EXPECT_LE(changes(regular.layers), changes(best.layers));
      fewer += changes(regular.layers) < changes(best.layers) ? 1 : 0;
      with.stage_layers = regular.layers;
      EXPECT_EQ(predict(model::Setup(with)).iteration, regular.result.iteration);
    }
  }
  EXPECT_GT(fewer, 0);
}

TEST(Plan, StopsOnRequest) {
  Plan plan(base_of(), {}, 5);
  const std::atomic<bool> stop = true;
  const auto work = plan.next();
  ASSERT_FALSE(work.empty());
  for (const PlanResult& result : plan.work_out(work, &stop)) EXPECT_EQ(result.status, PlanStatus::open);
}

TEST(Plan, WhatWasAssessedBeforeAStopCanBeSimulated) {
  Plan plan(base_of(), {}, 5);
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> assessed = 0;
  const auto work = plan.next();
  plan.take(work, plan.work_out(work, &stop, [&](std::int64_t more) { stop = (assessed += more) >= 400; }));
  plan.end_round();
  ASSERT_LT(assessed, std::ssize(work));
  const auto leaders = plan.next();
  ASSERT_FALSE(leaders.empty());
  for (const Plan::Work& each : leaders)
    EXPECT_GT(plan.results()[static_cast<std::size_t>(each.point)].needed_bytes, 0);
  plan.take(leaders, plan.work_out(leaders));
  EXPECT_FALSE(plan.ranking().empty());
}

}  // namespace
}  // namespace sluice::test

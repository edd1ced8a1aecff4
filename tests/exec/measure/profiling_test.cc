// Measured profiles: their points, and that they can be fitted and price a plan. Independent of the speed of the
// machine.

#include "exec/measure/profiling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "exec/measure/trial.h"
#include "exec/plan/run_plan.h"
#include "exec/run/core_wait.h"
#include "exec/transport/expert_exchange.h"
#include "exec/transport/threads.h"
#include "kernels/stage.h"
#include "model/cost/fitted.h"
#include "model/cost/price.h"
#include "model/cost/profile_fit.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "sim/engine/engine.h"
#include "tests/support/errors.h"
#include "tests/support/one_device.h"

namespace sluice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kTokens = 16;

ProfilingSpec small_spec() {
  ProfilingSpec spec{.model = test::small_gpt(2)};
  spec.sequence_length = kTokens;
  spec.layers = 2;
  spec.cells = profile_grid(kTokens);
  spec.budget_s = 0;
  spec.least_rounds = 2;
  return spec;
}

TEST(ProfileGrid, HasEvenSlicesOfTheSequence) {
  using Cell = ProfileCell;
  EXPECT_THAT(profile_grid(8), ElementsAre(Cell{8, 0}, Cell{4, 0}, Cell{4, 4}, Cell{2, 0}, Cell{2, 2}, Cell{2, 4},
                                           Cell{2, 6}, Cell{1, 0}, Cell{1, 2}, Cell{1, 4}, Cell{1, 6}));
  EXPECT_THAT(profile_grid(6), ElementsAre(Cell{6, 0}, Cell{3, 0}, Cell{3, 3}));
  EXPECT_THAT(profile_grid(1), ElementsAre(Cell{1, 0}));
}

// Every part, kind and slice once, every pass, message and all-reduce, with times above 0.
TEST(Profiling, MeasuresEveryPointOfTheGrid) {
  const ProfilingSpec spec = small_spec();
  const Profile profile = profile_with_threads(spec, 2);
  std::set<std::tuple<PartKind, OpKind, std::int64_t, std::int64_t>> seen;
  for (const ProfileSample& sample : profile.samples) {
    EXPECT_TRUE(seen.insert({sample.part, sample.kind, sample.tokens, sample.context}).second);
    EXPECT_GT(sample.seconds, 0);
    EXPECT_EQ(sample.sequences, 1);
    EXPECT_EQ(sample.tensor_parallel, 1);
  }
  // Four kinds of op: layers at 11 slices; embedding, head and overhead at four lengths.
  EXPECT_EQ(seen.size(), 4 * (11 + 3 * 4));
  EXPECT_EQ(profile.passes.size(), 2 * 3);
  for (const ProfilePass& pass : profile.passes) EXPECT_GT(pass.seconds, 0);
  EXPECT_EQ(profile.transfers.size(), 4);
  for (const ProfileTransfer& transfer : profile.transfers) EXPECT_GT(transfer.seconds, 0);
  EXPECT_EQ(profile.sums.size(), 3);
  for (const ProfileSum& sum : profile.sums) EXPECT_EQ(sum.ranks, 2);
  EXPECT_EQ(profile.dtype, "float32");
}

TEST(Profiling, JsonRoundTripIsExact) {
  const Profile profile = profile_with_threads(small_spec(), 2);
  const std::string text = to_json_text(profile);
  EXPECT_EQ(to_json_text(parse_profile(text, "p.json")), text);
}

// The first round only warms the caches.
TEST(Profiling, FirstRoundDoesNotCount) {
  std::size_t samples = 1;
  on_threads(2, [&](Transport& transport) {
    Profiler profiler(small_spec(), transport);
    profiler.round();
    const Profile profile = profiler.gather();
    if (transport.rank() == 0) samples = profile.samples.size();
  });
  EXPECT_EQ(samples, 0U);
}

TEST(Profiling, SupportsDataAndTensorParallelismAndBothPrecisions) {
  for (const Precision precision : {Precision::float32, Precision::float64}) {
    ProfilingSpec spec = small_spec();
    spec.precision = precision;
    spec.model = test::small_gpt(2, false);
    spec.tensor_parallel = 2;
    spec.data_parallel = 2;
    spec.sequences = 2;
    spec.recompute = true;
    spec.cells = {{.tokens = kTokens}, {.tokens = 8, .context = 8}, {.tokens = 8}};
    const Profile profile = profile_with_threads(spec, 4);
    ASSERT_FALSE(profile.samples.empty());
    EXPECT_EQ(profile.samples.front().tensor_parallel, 2);
    EXPECT_EQ(profile.samples.front().sequences, 2);
    // At the three slices.
    EXPECT_EQ(std::count_if(profile.samples.begin(), profile.samples.end(),
                            [](const ProfileSample& sample) { return sample.part == PartKind::recompute; }),
              3);
    EXPECT_EQ(profile.dtype, precision == Precision::float64 ? "float64" : "float32");
    for (const ProfileSum& sum : profile.sums) EXPECT_EQ(sum.ranks, 2);  // replicas, tied stages, and ranks of a norm
  }
}

TEST(Profiling, RejectsUnsupportedSpecs) {
  ProfilingSpec spec = small_spec();
  spec.tensor_parallel = 2;
  EXPECT_EQ(test::error_from([&] { profile_with_threads(spec, 3); }),
            "expected a tensor-parallel size that divides the 3 workers, got 2");
  spec = small_spec();
  spec.model.experts.count = 4;
  EXPECT_THROW(profile_with_threads(spec, 2), InputError);
}

ProfilingSpec expert_profiling_spec(const TokenSource& tokens) {
  ProfilingSpec spec = small_spec();
  spec.model = test::small_mixtral(4);
  spec.expert_parallel = spec.data_parallel = 2;
  spec.tokens = &tokens;
  spec.microbatches = 4;
  return spec;
}

// In the first repetition the first rank waits 3 s for the other one, in the second it is the other way round.
TEST(ExpertProfiling, ExchangesTakeAsLongAsOnTheRankThatWaitsLeast) {
  const ExchangeTimes ranks[] = {{{3.5, 0.5}, {1, 0}}, {{0.5, 3.5}, {0, 0}}};
  EXPECT_THAT(without_waits(ranks).seconds, ElementsAre(0.5, 0.5));
  EXPECT_THAT(without_waits(ranks).disturbed, ElementsAre(1, 0));
  EXPECT_THAT(without_waits(std::span(ranks).first(1)).seconds, ElementsAre(3.5, 0.5));
}

TEST(ExpertProfiling, WaitsBelongToThePartThatOthersCompute) {
  const auto moved_to = [](PartKind exchange, OpKind kind) {
    std::vector<ProfileSample> samples;
    for (const PartKind part : kExpertLayerParts) {
      for (const OpKind of : kinds_of(part)) {
        for (const std::int64_t tokens : {8, 16}) {
          samples.push_back({.part = part, .kind = of, .tokens = tokens, .seconds = 1});
        }
      }
    }
    move_wait({.part = exchange, .kind = kind, .tokens = 16, .seconds = 1}, 0.5, samples);
    std::vector<std::tuple<PartKind, OpKind, std::int64_t>> longer;
    for (const ProfileSample& sample : samples) {
      if (sample.seconds == 1.5) longer.emplace_back(sample.part, sample.kind, sample.tokens);
    }
    return longer;
  };
  using enum PartKind;
  EXPECT_THAT(moved_to(dispatch, OpKind::F), ElementsAre(std::tuple(attention, OpKind::F, 16)));
  EXPECT_THAT(moved_to(combine, OpKind::F), ElementsAre(std::tuple(experts, OpKind::F, 16)));
  EXPECT_THAT(moved_to(combine, OpKind::I), ElementsAre(std::tuple(attention, OpKind::I, 16)));
  EXPECT_THAT(moved_to(dispatch, OpKind::I), ElementsAre(std::tuple(experts, OpKind::I, 16)));
}

// Two pipeline ranks of two replicas. Attention at all 11 slices; dispatch, experts and combine at four lengths.
TEST(ExpertProfiling, MeasuresThePartsOfLayersWithExperts) {
  const TokenSource tokens = TokenSource::synthetic(37, kTokens, 1);
  const Profile profile = profile_with_threads(expert_profiling_spec(tokens), 4);
  std::map<std::pair<PartKind, OpKind>, int> seen;
  for (const ProfileSample& sample : profile.samples) {
    ++seen[{sample.part, sample.kind}];
    EXPECT_GT(sample.seconds, 0);
    EXPECT_EQ(sample.expert_parallel, is_of_expert_layer(sample.part) ? 2 : 1);
  }
  for (const PartKind part : kExpertLayerParts) {
    for (const OpKind kind : kinds_of(part)) {
      EXPECT_EQ((seen[{part, kind}]), part == PartKind::attention ? 11 : 4) << to_string(part);
    }
  }
  EXPECT_EQ(seen.count({PartKind::layer, OpKind::F}), 0U);
  EXPECT_EQ(seen.size(), 3U + 2U + 3U + 2U + 3U * 4U);
  std::set<int> ranks;
  for (const ProfileSum& sum : profile.sums) ranks.insert(sum.ranks);
  EXPECT_THAT(ranks, ElementsAre(2, 4));  // the norm is over all ranks
  // The fit prices a plan with joint blocks.
  const ProfileFit fit = fit_profile(profile, {});
  EXPECT_EQ(fit.table.expert_parallel, 2);
}

TEST(ExpertProfiling, MeasuresDenseLayersBesides) {
  const TokenSource tokens = TokenSource::synthetic(37, kTokens, 1);
  ProfilingSpec spec = expert_profiling_spec(tokens);
  spec.model = test::small_expert_gpt(3);  // the first of three layers is dense
  spec.data_parallel = 1;
  spec.tensor_parallel = 2;
  spec.cells = {{.tokens = kTokens}};
  const Profile profile = profile_with_threads(spec, 2);
  std::set<PartKind> parts;
  for (const ProfileSample& sample : profile.samples) parts.insert(sample.part);
  EXPECT_THAT(parts, ElementsAre(PartKind::embedding, PartKind::layer, PartKind::head, PartKind::stage,
                                 PartKind::attention, PartKind::dispatch, PartKind::experts, PartKind::combine));
}

TEST(ExpertProfiling, RejectsRecomputationAndSizesThatDoNotFit) {
  const TokenSource tokens = TokenSource::synthetic(37, kTokens, 1);
  const auto error_of = [](const ProfilingSpec& tried) -> std::string {
    return test::error_from([&] { profile_with_threads(tried, 4); });
  };
  ProfilingSpec spec = expert_profiling_spec(tokens);
  spec.recompute = true;
  EXPECT_THAT(error_of(spec), HasSubstr("profiles do not support recomputation of layers with experts"));
  spec = expert_profiling_spec(tokens);
  spec.expert_parallel = 4;
  EXPECT_THAT(error_of(spec), HasSubstr("divides the 2 ranks of a stage, got 4"));
}

// Counts the bytes of rows, which are larger than the numbers of rows.
class CountingGroup final : public ExpertGroup {
 public:
  explicit CountingGroup(Transport& transport) : exchange_(transport, Channel::tensor, {0, 1}, 2, 64) {}
  int size() const override { return exchange_.size(); }
  int rank() const override { return exchange_.rank(); }
  void send(int rank, const std::byte* data, std::int64_t bytes) override {
    if (bytes >= 64) sent_ += bytes;
    exchange_.send(rank, data, bytes);
  }
  void receive(int rank, std::byte* data, std::int64_t bytes) override { exchange_.receive(rank, data, bytes); }
  void finish() override { exchange_.finish(); }
  std::int64_t take() { return std::exchange(sent_, 0); }

 private:
  ExpertExchange exchange_;
  std::int64_t sent_ = 0;
};

// The last two of four layers are measured. Both replicas together exchange as many rows as in a forward of the whole
// model on the same microbatch: three inputs are loaded, and each of two passes has two forwards, and two backwards
// that exchange as much.
TEST(ExpertProfiling, RoutesTheRowsOfARun) {
  const TokenSource tokens = TokenSource::synthetic(37, kTokens, 1);
  std::atomic<std::int64_t> before{0}, measured{0}, whole{0};
  on_threads(2, [&](Transport& transport) {
    CountingGroup group(transport);
    const PartBenchSpec spec{.model = test::small_mixtral(4),
                             .sequences = 2,
                             .sequence_length = kTokens,
                             .layers = 2,
                             .cells = {{.tokens = kTokens}},
                             .data_rank = transport.rank(),
                             .expert_parallel = 2,
                             .first_expert_layer = 2,
                             .tokens = &tokens,
                             .first_sequence = 2 * transport.rank()};
    PartBench bench(spec);
    bench.load_inputs({.experts = &group});
    before += group.take();
    bench.run_expert_layers({.tokens = kTokens}, {.experts = &group});
    measured += group.take();

    StageSpec all{.model = spec.model, .contents = {.layers = 4, .expert_layers = 4, .embedding = true}};
    all.data_rank = transport.rank();
    all.expert_parallel = 2;
    const auto stage = make_cpu_stage(all, Precision::float32);
    const SliceShape shape{.sequences = 2, .tokens = kTokens};
    const SliceMemory memory = stage->slice_memory(shape);
    std::vector<std::vector<std::byte>> stores;
    const auto buffer = [&](std::int64_t bytes) {
      void* at = stores.emplace_back(static_cast<std::size_t>(bytes) + 2 * kBufferAlignment).data();
      std::size_t space = stores.back().size();
      return static_cast<std::byte*>(std::align(kBufferAlignment, 1, at, space));
    };
    std::byte* const weights = buffer(stage->memory().weights);
    stage->initialise(weights, spec.seed);
    std::vector<std::int32_t> ids(2 * kTokens), targets(2 * kTokens);
    tokens.fill(0, spec.first_sequence, 2, 0, kTokens, ids, targets);
    SliceCall call{.shape = shape, .experts = &group, .weights = weights};
    call.scratch = buffer(stage->scratch_bytes(shape));
    call.to_input_gradient = buffer(memory.to_input_gradient);
    call.to_weight_gradient = buffer(memory.to_weight_gradient);
    call.keys_values = buffer(memory.keys_values);
    call.output = buffer(memory.boundary);
    call.tokens = ids.data();
    stage->forward(call);
    whole += group.take();
  });
  EXPECT_GT(measured, 0);
  EXPECT_EQ(before / 3 + measured / 8, whole);
}

// From measured times to prices of every kind of vertex.
TEST(Profiling, PricesAPlan) {
  Profile profile = profile_with_threads(small_spec(), 2);
  // On a busy machine a small message may take longer than a large one: the fit then has a latency only, and a transfer
  // no duration.
  const auto sort_times = [](auto& points) {
    std::vector<double> seconds;
    for (const auto& point : points) seconds.push_back(point.seconds);
    std::sort(seconds.begin(), seconds.end());
    for (std::size_t i = 0; i < points.size(); ++i) points[i].seconds = seconds[i];
  };
  sort_times(profile.transfers);
  sort_times(profile.sums);
  const ProfileFit fit = fit_profile(profile, {});
  for (const std::string name : {"zb-h1", "dualpipe", "seq1f1b"}) {
    SCOPED_TRACE(name);
    const Family& family = find_family(name);
    RunSpec run{.model = test::small_gpt(4)};
    run.recompute = true;
    run.clip_gradients = 1;
    FamilyParams params{.ranks = 2, .microbatches = 4};
    params.shape.slice_lengths = family.sliced ? std::vector<std::int64_t>{8, 8} : std::vector<std::int64_t>{16};
    const RunPlan plan(run, make_schedule(family, params));
    Training training;
    training.pp = 2;
    training.recompute = Training::Recompute::full;
    ParameterCounts parameters;
    for (int stage = 0; stage < plan.schedule().num_stages(); ++stage) {
      parameters.of_stage.push_back(plan.stage(0, stage).memory().weights / 4);
      parameters.most_on_a_rank += parameters.of_stage.back();
    }
    const FittedCost cost(fit.table, training, plan.contents(), nullptr, parameters);
    const Prices prices = price(plan.graph(), cost);
    std::set<VertexKind> kinds;
    for (VertexId v = 0; v < plan.graph().size(); ++v) {
      kinds.insert(plan.graph()[v].kind);
      EXPECT_GT(prices.duration[v].count(), 0) << plan.graph().name(v);
    }
    EXPECT_TRUE(kinds.contains(VertexKind::recompute));
    EXPECT_TRUE(kinds.contains(VertexKind::collective));
    EXPECT_TRUE(kinds.contains(VertexKind::optimizer));
    EXPECT_GT(simulate(plan.graph(), prices).end.back().count(), 0);
  }
}

TEST(Trials, RunEveryPlanTheRequestedNumberOfTimes) {
  const RunSpec run{.model = test::small_gpt(2)};
  FamilyParams params{.ranks = 2, .microbatches = 3};
  params.shape.slice_lengths = {kTokens};
  const RunPlan first(run, make_schedule(find_family("gpipe"), params));
  const RunPlan second(run, make_schedule(find_family("zb-h1"), params));
  const TokenSource tokens = TokenSource::synthetic(37, kTokens, 1);
  const ProfilingSpec profiling = small_spec();
  const TrialSpec spec{.plans = {&first, &second}, .tokens = {&tokens, &tokens}, .runs = 7, .profiling = &profiling};
  int observed = 0;
  const TrialReport report = run_trials_with_threads(spec, [&](int runs) { observed = runs; });
  EXPECT_EQ(observed, 14);
  EXPECT_FALSE(report.profile.samples.empty());
  ASSERT_EQ(report.plans.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const RunPlan& plan = *spec.plans[i];
    const PlanTrials& trials = report.plans[i];
    ASSERT_EQ(trials.clocks.size(), 7U);
    for (int rank = 0; rank < 2; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      EXPECT_EQ(trials.arena_bytes[at], plan.arena(rank).total_bytes);
      EXPECT_GE(trials.held_bytes[at], plan.arena(rank).standing_bytes + plan.rank(rank).most_held_bytes);
      EXPECT_LE(trials.held_bytes[at], trials.arena_bytes[at]);
    }
    for (const auto& clocks : trials.clocks) {
      const Timeline timeline = measured_timeline(plan.graph(), clocks);
      for (VertexId v = 0; v < plan.graph().size(); ++v) {
        EXPECT_GE(timeline.end[v], timeline.start[v]) << plan.graph().name(v);
        for (const VertexId need : plan.graph().needs(v)) {
          if (plan.graph()[need].kind == VertexKind::compute && plan.graph()[v].kind == VertexKind::compute) {
            EXPECT_GE(timeline.start[v], timeline.end[need]) << plan.graph().name(v);
          }
        }
      }
    }
  }
}

RunPlan plan_of_two_ranks() {
  FamilyParams params{.ranks = 2, .microbatches = 2};
  params.shape.slice_lengths = {kTokens};
  return RunPlan({.model = test::small_gpt(2)}, make_schedule(find_family("1f1b"), params));
}

// No run is calm enough: each plan has its runs four times over, and the profile falls back to all times.
TEST(Trials, DisturbedRunsAreRepeatedAndKeptApart) {
  const RunPlan plan = plan_of_two_ranks();
  const TokenSource tokens = TokenSource::synthetic(37, kTokens, 1);
  ProfilingSpec profiling = small_spec();
  TrialSpec spec{.plans = {&plan}, .tokens = {&tokens}, .runs = 7, .profiling = &profiling};
  EXPECT_FALSE(run_trials_with_threads(spec).profile_disturbed);
  spec.most_wait = profiling.most_wait = -1;
  int observed = 0;
  const TrialReport report = run_trials_with_threads(spec, [&](int runs) { observed = runs; });
  EXPECT_EQ(observed, 7);
  EXPECT_TRUE(report.plans.at(0).clocks.empty());
  EXPECT_EQ(report.plans.at(0).disturbed.size(), 4U * 7U);
  EXPECT_TRUE(report.profile_disturbed);
  EXPECT_FALSE(report.profile.samples.empty());
}

TEST(CoreWait, IsCalmUpToAFraction) {
  EXPECT_TRUE(is_calm({.nanoseconds = 50'000}, 0, 0.02));
  EXPECT_FALSE(is_calm({.nanoseconds = 51'000}, 0, 0.02));
  EXPECT_TRUE(is_calm({.nanoseconds = 2'049'000}, 100'000'000, 0.02));
  EXPECT_FALSE(is_calm({.nanoseconds = 2'051'000}, 100'000'000, 0.02));
}

// Two threads that always have work, on one core: each waits while the other runs.
TEST(CoreWait, CountsTimeWithoutACore) {
  if (::access("/proc/thread-self/schedstat", R_OK) != 0) GTEST_SKIP() << "SKIPPED: this kernel has no schedstat";
  using std::chrono::steady_clock;
  std::atomic<bool> waited{false};
  std::atomic<std::int64_t> counted_ns{0};
  const steady_clock::time_point deadline = steady_clock::now() + std::chrono::seconds(20);
  const auto work = [&] {
    cpu_set_t all, first;
    ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
    int core = 0;
    while (!CPU_ISSET(core, &all)) ++core;
    CPU_ZERO(&first);
    CPU_SET(core, &first);
    ASSERT_EQ(::sched_setaffinity(0, sizeof first, &first), 0);
    const CoreWaitMeter meter;
    const CoreWait before = meter.read();
    while (!waited.load() && steady_clock::now() < deadline) {
      const CoreWait wait = meter.read() - before;
      if (wait.nanoseconds > 0) counted_ns.store(wait.nanoseconds);
      if (wait.nanoseconds > 5'000'000 && wait.switches > 0) waited.store(true);
    }
  };
  {
    const std::jthread one(work);
    const std::jthread two(work);
  }
  if (!waited && counted_ns == 0) GTEST_SKIP() << "SKIPPED: the schedstat of this kernel stays 0";
  EXPECT_TRUE(waited) << counted_ns << " ns of waiting in 20 s";
}

TEST(Trials, HaveNoProfileUnlessRequested) {
  const RunPlan plan = plan_of_two_ranks();
  const TokenSource tokens = TokenSource::synthetic(37, kTokens, 1);
  const TrialReport report = run_trials_with_threads({.plans = {&plan}, .tokens = {&tokens}, .runs = 1});
  EXPECT_TRUE(report.profile.samples.empty());
  EXPECT_EQ(report.plans.at(0).clocks.size(), 1U);
}

}  // namespace
}  // namespace sluice::test

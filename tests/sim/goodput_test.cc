#include "sim/goodput/goodput.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/errors.h"
#include "model/input/files.h"
#include "sim/goodput/closed_forms.h"
#include "sim/goodput/failures.h"
#include "sim/goodput/reroute.h"
#include "sim/simulator.h"
#include "tests/support/command.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

FailureCause cause_with_mtbf(double seconds) {
  return {.name = "any", .between = {RandomTime::Kind::exponential, seconds, 0}, .nodes = 0};
}

Duration seconds(double time) { return from_seconds(time, "time"); }

GoodputRun run_with(const CheckpointTimes& times, double mtbf, double horizon) {
  GoodputRun run;
  run.causes = {cause_with_mtbf(mtbf)};
  run.causes[0].diagnosis.mean_s = times.downtime;
  run.horizon = seconds(horizon);
  run.interval = seconds(times.interval);
  run.stall = seconds(times.stall);
  run.durable = seconds(times.durable);
  run.init = seconds(times.restart / 3);
  run.load = seconds(times.restart) - run.init;
  return run;
}

// Both sides agree within 4.5 standard errors, and these are small.
void expect_mean(const Estimate& estimate, double expected, double precision) {
  EXPECT_NEAR(estimate.mean, expected, 4.5 * estimate.error + 1e-6);
  EXPECT_LT(estimate.error, precision);
}

// Values of Young and Daly for 5 s and 185.6 s, and where the stall is half of the mean time between failures.
TEST(CheckpointIntervals, AreThosePublished) {
  EXPECT_NEAR(young_interval(5, 185.6), 43.08, 5e-3);
  EXPECT_NEAR(daly_interval(5, 185.6), 39.81, 5e-3);
  EXPECT_NEAR(exact_interval(5, 185.6), 39.81, 5e-3);
  EXPECT_NEAR(daly_interval(5, 10), 6.944, 5e-4);
  EXPECT_NEAR(exact_interval(5, 10), 6.983, 5e-4);
}

// The derivative of the useful fraction vanishes at the exact interval.
TEST(CheckpointIntervals, ExactOneIsTheOptimum) {
  for (const double stall : {0.01, 1.0, 20.0, 300.0}) {
    const double best = exact_interval(stall, 100);
    const auto fraction = [&](double t) {
      return useful_fraction({.interval = t, .stall = stall, .durable = stall}, 100);
    };
    EXPECT_GT(fraction(best), fraction(0.99 * best)) << stall;
    EXPECT_GT(fraction(best), fraction(1.01 * best)) << stall;
  }
}

TEST(GoodputTrials, AgreeWithDalysFractionForAnyTimes) {
  const CheckpointTimes cases[] = {
      {.interval = 40, .stall = 5, .durable = 5, .restart = 0, .downtime = 0},
      {.interval = 40, .stall = 5, .durable = 5, .restart = 60, .downtime = 0},
      {.interval = 40, .stall = 5, .durable = 5, .restart = 30, .downtime = 50},
      {.interval = 60, .stall = 1, .durable = 40, .restart = 30, .downtime = 10},  // asynchronous
      {.interval = 60, .stall = 0, .durable = 60, .restart = 0, .downtime = 0},
      {.interval = 300, .stall = 20, .durable = 20, .restart = 100, .downtime = 0}};
  for (const CheckpointTimes& times : cases) {
    // The end of a run within an interval changes the fraction by at most an interval over the horizon.
    const GoodputSummary summary = simulate_goodput(run_with(times, 185.6, 2e7), 7, 60);
    EXPECT_NEAR(summary.goodput.mean, useful_fraction(times, 185.6),
                4.5 * summary.goodput.error + times.interval / 2e7);
    EXPECT_LT(summary.goodput.error, 1.5e-4);
  }
}

TEST(GoodputTrials, AgreeWithErlangsFormulaForSparesWhateverTheRepairs) {
  for (const char* repair : {"exp:400", "400", "lognormal:100:400", "uniform:0:800"}) {
    GoodputRun run = run_with({.interval = 100}, 200, 1e7);
    run.causes[0].nodes = 1;
    run.causes[0].repair = parse_random_time(repair, "repair");
    run.spares = 5;
    const GoodputSummary summary = simulate_goodput(run, 3, 60);
    std::vector<double> waiting;
    for (const TrialResult& trial : summary.trials) waiting.push_back(to_seconds(trial.of(TimeUse::waiting)) / 1e7);
    double squares = 0;
    for (const double each : waiting) squares += std::pow(each - summary.of(TimeUse::waiting), 2);
    const double error = std::sqrt(squares / 59 / 60);
    expect_mean({summary.of(TimeUse::waiting), error}, erlang_b(6, 2), 2e-4);
  }
  EXPECT_NEAR(erlang_b(6, 2), 0.01208, 5e-6);
}

TEST(GoodputTrials, AgreeWithAQueueOfRepairs) {
  GoodputRun run = run_with({.interval = 100}, 200, 1e7);
  run.causes[0].nodes = 1;
  run.causes[0].repair = parse_random_time("exp:300", "repair");
  run.spares = 3;
  run.crews = 2;
  const GoodputSummary summary = simulate_goodput(run, 3, 60);
  EXPECT_NEAR(summary.of(TimeUse::waiting), waiting_fraction(3, 2, 1.5), 1.5e-3);
  EXPECT_EQ(waiting_fraction(5, 6, 2), erlang_b(6, 2));  // as many crews as can be needed
}

// Renewal-reward: the loss is E[Z] / M, its deviation over a run T sqrt(E[Z^2] / (M T)), for rare failures.
TEST(GoodputTrials, SpreadAsRenewalRewardPredicts) {
  const double mtbf = 1e5;
  const double horizon = 1e7;
  GoodputRun run = run_with({.interval = 1}, mtbf, horizon);
  run.causes[0].diagnosis = parse_random_time("uniform:0:200", "diagnosis");
  const GoodputSummary summary = simulate_goodput(run, 11, 4000);
  const double mean = 100;
  const double square = 200.0 * 200 / 3;
  // 1 / (M + E[Z]) failures per second; half an interval lost each.
  EXPECT_NEAR(1 - summary.goodput.mean, (mean + 0.5) / (mtbf + mean + 0.5), 5 * summary.goodput.error);
  const double middle = std::accumulate(summary.goodputs.begin(), summary.goodputs.end(), 0.0) / 4000;
  double squares = 0;
  for (const double each : summary.goodputs) squares += std::pow(each - middle, 2);
  const double spread = std::sqrt(squares / 3999);
  // The relative error of a deviation from n trials is about 1 / sqrt(2 n): 1.1 %.
  EXPECT_NEAR(spread / std::sqrt(square / (mtbf * horizon)), 1, 0.06);
  // The control variate removes E[Z]^2 / E[Z^2] = 0.75 of the variance.
  EXPECT_NEAR(summary.goodput.error * std::sqrt(4000.0) / spread, std::sqrt(0.25), 0.03);
}

// 2,000 new units with k = 0.78 fail more often than in steady state. The number of failures of a renewal process for
// which the running time is short is that of the first failures, 1 - exp(-(t / scale)^k) per unit, and a little more.
TEST(GoodputTrials, NewWeibullUnitsFailSooner) {
  GoodputRun run = run_with({.interval = 100}, 1, 1e6);
  run.causes[0] = {.name = "node", .units = 2000, .between = parse_random_time("weibull:1e8:0.78", "x"), .nodes = 0};
  const GoodputSummary summary = simulate_goodput(run, 5, 2000);
  const double first = 2000 * -std::expm1(-std::pow(1e6 / run.causes[0].between.weibull_scale(), 0.78));
  EXPECT_NEAR(summary.failures.mean / first, 1, 0.05);
  EXPECT_GT(summary.failures.mean, first);
  EXPECT_GT(first / (2000 * 1e6 / 1e8), 2);  // steady state: time over mean
  // Far into their life they fail at the rate of a steady state.
  run.causes[0].between.mean_s = 1e5;
  EXPECT_NEAR(simulate_goodput(run, 5, 20).failures.mean / (2000 * 1e6 / 1e5), 1, 0.05);
}

GoodputRun everything() {
  GoodputRun run;
  const auto add = [&](FailureKind kind, double mtbf, const char* duration) {
    FailureCause cause{.name = "cause",
                       .kind = kind,
                       .units = 8,
                       .between = {RandomTime::Kind::exponential, 8 * mtbf, 0},
                       .detection = parse_random_time("exp:20", "x"),
                       .diagnosis = parse_random_time("10", "x"),
                       .duration = parse_random_time(duration, "x"),
                       .repair = parse_random_time("lognormal:500:3000", "x")};
    run.causes.push_back(cause);
  };
  add(FailureKind::crash, 3000, "0");
  add(FailureKind::hang, 5000, "0");
  add(FailureKind::corruption, 9000, "exp:2000");
  add(FailureKind::slow, 4000, "exp:900");
  add(FailureKind::planned, 20000, "600");
  run.causes[0].between = parse_random_time("weibull:24000:0.7", "x");
  run.causes[0].copies_survive = 0.8;
  run.causes[3].slowdown = 1.3;
  run.horizon = seconds(2e5);
  run.step = seconds(7.3);
  run.interval = seconds(501.7);
  run.stall = seconds(3.3);
  run.durable = seconds(77.7);
  run.storage_interval = seconds(1800);
  run.storage_load = seconds(100);
  run.start = seconds(300);
  run.init = seconds(111.1);
  run.load = seconds(22.3);
  run.reconfigure = seconds(15);
  run.replacement = parse_random_time("exp:60", "x");
  run.spares = 1;
  run.crews = 2;
  run.replicas = 4;
  run.speed = [](std::span<const int> lost) {
    const int missing = std::accumulate(lost.begin(), lost.end(), 0);
    return missing == 1 ? 0.75 : missing == 2 ? 0.45 : 0.0;
  };
  return run;
}

// The uses of time add up to the wall clock in every trial, exactly, whatever happens in it.
TEST(GoodputTrials, BadputAddsUpExactly) {
  for (std::size_t policy = 0; policy < kRecoveryPolicies.size(); ++policy) {
    GoodputRun run = everything();
    run.policy = static_cast<RecoveryPolicy>(policy);
    if (run.policy == RecoveryPolicy::reroute) run.places = 2;
    const std::int64_t trials = small_scope() ? 2'500 : 17'000;  // 102,000 for all policies
    const GoodputSummary summary = simulate_goodput(run, 1, trials);
    for (const TrialResult& trial : summary.trials) {
      ASSERT_EQ(std::accumulate(trial.time.begin(), trial.time.end(), Duration{}), trial.wall);
      ASSERT_EQ(trial.wall, run.horizon);
      ASSERT_TRUE(std::none_of(trial.time.begin(), trial.time.end(), [](Duration time) { return time.count() < 0; }));
    }
    for (std::size_t use = 0; use < kTimeUses.size(); ++use) {
      const bool continues = continues_without(run.policy) || shrinks(run.policy);
      if (static_cast<TimeUse>(use) == TimeUse::degraded && !continues) continue;
      EXPECT_GT(summary.fractions[use], 0) << kRecoveryPolicies[policy] << " " << kTimeUses[use];
    }
  }
}

// A run that ends with its work does that much of it.
TEST(GoodputTrials, EndWithTheirWork) {
  GoodputRun run = everything();
  run.policy = RecoveryPolicy::drop;
  run.work = seconds(5e4);
  run.horizon = seconds(1e7);
  const GoodputSummary summary = simulate_goodput(run, 2, 500);
  EXPECT_EQ(summary.finished, 1);
  for (const TrialResult& trial : summary.trials) {
    EXPECT_NEAR(to_seconds(trial.of(TimeUse::useful)), 5e4, 1e-6);
    EXPECT_LT(trial.wall, run.horizon);
  }
}

TEST(GoodputTrials, ArePureFunctionsOfSeedAndTrial) {
  const GoodputRun run = everything();
  const GoodputSummary summary = simulate_goodput(run, 9, 100);
  const GoodputSummary fewer = simulate_goodput(run, 9, 37);
  for (std::size_t i = 0; i < 37; ++i) {
    EXPECT_EQ(summary.trials[i].time, fewer.trials[i].time);
    EXPECT_EQ(summary.trials[i].time, simulate_trial(run, 9, i).time);
  }
  EXPECT_NE(summary.goodput.mean, simulate_goodput(run, 10, 100).goodput.mean);
}

// The spans of a history cover the run and add up to its result.
TEST(GoodputTrials, HaveTheHistoryOfTheirResult) {
  GoodputRun run = everything();
  for (const int policy : {0, 1, 2, 3, 4, 5}) {
    run.policy = static_cast<RecoveryPolicy>(policy);
    for (std::uint64_t i = 0; i < 20; ++i) {
      TrialHistory history;
      const TrialResult result = simulate_trial(run, 3, i, &history);
      EXPECT_EQ(result.time, simulate_trial(run, 3, i).time);
      TimeByUse sum{};
      Duration end{};
      for (const TrialSpan& span : history.spans) {
        EXPECT_EQ(span.begin, end);
        EXPECT_GT(span.end, span.begin);
        EXPECT_LT(span.missing, run.replicas);
        end = span.end;
        sum[static_cast<std::size_t>(span.use)] += span.end - span.begin;
      }
      EXPECT_EQ(end, result.wall);
      EXPECT_EQ(history.spans.back().progress, result.of(TimeUse::useful));
      for (const TimeUse use : {TimeUse::start, TimeUse::detection, TimeUse::diagnosis, TimeUse::replacement,
                                TimeUse::waiting, TimeUse::init, TimeUse::load, TimeUse::planned}) {
        EXPECT_EQ(sum[static_cast<std::size_t>(use)], result.of(use)) << kTimeUses[static_cast<std::size_t>(use)];
      }
      EXPECT_EQ(std::ssize(history.failures), result.failures);
      Duration lost{};
      for (const TrialFailure& failure : history.failures) lost += failure.lost;
      EXPECT_EQ(lost, result.of(TimeUse::lost));
    }
  }
}

TEST(GoodputSearch, FindsTheExactInterval) {
  const GoodputRun run = run_with({.interval = 1, .stall = 5, .durable = 5, .restart = 30}, 185.6, 1e6);
  const IntervalSearch found = best_interval(run, seconds(1), 1, 40, 0.001);
  EXPECT_NEAR(to_seconds(found.best), 39.81, 4);
  EXPECT_NEAR(found.goodput, useful_fraction({39.81, 5, 5, 30, 0}, 185.6), 2e-3);
  // The ends of the flat region are 0.001 below the best.
  const auto fraction = [](Duration t) { return useful_fraction({to_seconds(t), 5, 5, 30, 0}, 185.6); };
  EXPECT_NEAR(fraction(found.low), fraction(found.best) - 0.001, 7e-4);
  EXPECT_NEAR(fraction(found.high), fraction(found.best) - 0.001, 7e-4);
}

TEST(GoodputSearch, FindsTheSparesOfErlangsFormula) {
  GoodputRun run = run_with({.interval = 100}, 200, 1e6);
  run.causes[0].nodes = 1;
  run.causes[0].repair = parse_random_time("exp:400", "repair");
  // erlang_b is 0.0121 with 5 spares, 0.0034 with 6.
  EXPECT_EQ(spares_for(run, 0.006, 100, 1, 60), 6);
}

// GPU-hours per failure as published; Llama 3: 419 unexpected and 47 planned interruptions in 54 days on 16,384 GPUs.
TEST(Failures, OfTheCatalogueHaveThePublishedRates) {
  for (const std::string& name : catalogue_failures()) {
    const FailureModel model = load_failures(name);
    EXPECT_FALSE(model.source.empty()) << name;
    EXPECT_GT(model.gpu_hours(), 5e3) << name;
    EXPECT_LT(model.gpu_hours(), 2e5) << name;
  }
  EXPECT_NEAR(load_failures("llama3-405b").gpu_hours(), 16384.0 * 54 * 24 / 466, 1e-6);
  EXPECT_NEAR(load_failures("meta-rsc-1").gpu_hours(), 8 * 24 * 1000 / 6.5, 1);
  EXPECT_NEAR(load_failures("meta-rsc-2").gpu_hours(), 8 * 24 * 1000 / 2.34, 1);
  EXPECT_NEAR(load_failures("lablup-b200").gpu_hours(), 504.0 * 55 * 24 / 10, 1);
}

// Bad components fail more often, and all together as often as the file says.
TEST(Failures, OfBadComponentsKeepTheMeanRate) {
  FailureComponent component;
  component.name = "node";
  component.gpu_hours = 1000;
  component.domain_gpus = 8;
  component.bad_fraction = 0.15;
  component.bad_factor = 5;
  FailureSetting setting;
  setting.gpus = 8000;
  const std::vector<FailureCause> causes = causes_of({"x", "y", {component}}, setting);
  ASSERT_EQ(causes.size(), 2U);
  EXPECT_EQ(causes[1].units, 150);
  EXPECT_NEAR(causes[0].between.mean_s / causes[1].between.mean_s, 5, 1e-9);
  EXPECT_NEAR(causes[0].failures_per_s() + causes[1].failures_per_s(), 8000.0 / 1000 / 3600, 1e-12);
}

// One failure of an NVLink domain of 72 GPUs takes out 9 nodes of 8, and the replicas on them.
TEST(Failures, OfDomainsTakeOutNodesAndReplicas) {
  FailureComponent component;
  component.gpu_hours = 1e5;
  component.domain_gpus = 72;
  FailureSetting setting;
  setting.gpus = 7200;
  setting.replica_gpus = 32;
  const FailureCause cause = causes_of({"x", "y", {component}}, setting)[0];
  EXPECT_EQ(cause.units, 100);
  EXPECT_EQ(cause.nodes, 9);
  EXPECT_EQ(cause.replicas, 3);  // 72 / 32, rounded up
}

TEST(Failures, InALogAreCounted) {
  const TemporaryFolder folder;
  write_file_whole(folder.path("log.csv"), "hours,component\n1,GPU\n5.5,link\n7,GPU\n");
  const FailureModel model = fit_failures(folder.path("log.csv"), 3000);
  ASSERT_EQ(model.components.size(), 2U);
  EXPECT_EQ(model.components[0].gpu_hours, 1500);
  EXPECT_EQ(model.components[1].gpu_hours, 3000);
  write_file_whole(folder.path("log.csv"), "hours,component\n1\n");
  EXPECT_THROW(fit_failures(folder.path("log.csv"), 3000), InputError);
}

TEST(RandomTimes, HaveTheMeansOfTheirTexts) {
  EXPECT_EQ(parse_random_time("3.1h", "x").mean_s, 11160);
  RandomStream random(1, 2, 3);
  for (const char* text : {"250", "exp:250s", "uniform:100:400", "lognormal:200:250", "weibull:250:0.8"}) {
    const RandomTime time = parse_random_time(text, "x");
    double sum = 0;
    double squares = 0;
    constexpr int kDraws = 100'000;
    for (int i = 0; i < kDraws; ++i) {
      const double each = time.draw(random);
      sum += each;
      squares += each * each;
    }
    const double mean = sum / kDraws;
    EXPECT_NEAR(mean, 250, 5 * std::sqrt((squares / kDraws - mean * mean) / kDraws) + 1e-9) << text;
  }
  for (const char* text :
       {"", "h", "-3", "3x", "exp:", "exp:1:2", "uniform:5:1", "lognormal:5:1", "weibull:1:99", "a:1"}) {
    EXPECT_THROW(parse_random_time(text, "x"), InputError) << text;
  }
}

// Hosts lost together: 0.933 for 16 hosts, two copies and two failures (Gemini, SOSP 2023).
TEST(PeerCheckpoints, SurviveAsGeminiComputes) {
  EXPECT_NEAR(copies_survive(16, 2, 2), 0.933, 5e-4);
  EXPECT_EQ(copies_survive(16, 2, 1), 1);
}

// Per rank, forwards take 4 s and backwards 8 s.
Scenario reroute_scenario(std::string_view family, int pp, int dp, int microbatches) {
  return sim::parse_scenario(fmt::format(
      R"({{"cost": {{"kind": "uniform", "f": 4, "b": 4, "w": 4}}, "schedule": "{}", "parallelism": {{"pp": {}, "dp": {}}},
          "batch": {{"microbatches": {}}}}})",
      family, pp, dp, microbatches));
}

double delay_s(const model::Setup& setup, const std::vector<int>& lost, int replicas) {
  const auto delay = sim::rerouting_delay(setup, lost, replicas);
  return delay ? to_seconds(*delay) : -1;
}

// On one rank there are no bubbles: the peers compute m d / (d - lost) microbatches, rounded up.
TEST(Rerouting, OfOneRankGivesItsPeersMoreMicrobatches) {
  const model::Setup setup(reroute_scenario("1f1b", 1, 4, 6));
  EXPECT_EQ(delay_s(setup, {0}, 4), 0);
  EXPECT_EQ(delay_s(setup, {1}, 4), 12 * 2);  // 24 / 3 = 8 in place of 6
  EXPECT_EQ(delay_s(setup, {2}, 4), 12 * 6);
  EXPECT_EQ(delay_s(setup, {3}, 4), 12 * 18);
  EXPECT_EQ(delay_s(setup, {1}, 5), 12 * 2);  // 7.5
  EXPECT_EQ(delay_s(setup, {1}, 7), 12);      // one each
  EXPECT_EQ(delay_s(setup, {1}, 400), 12);    // not more replicas than can have one are simulated
}

// Bound at rank i: i forwards, then m' microbatches (2405.14009): the iteration is longer by what does not fit in its
// bubbles, and never shorter. It is shorter than with all lost microbatches at the end.
TEST(Rerouting, UsesBubbles) {
  const int pp = 4;
  const int microbatches = 6;
  const int dp = 3;
  const auto healthy_s = [&](const char* family) {
    return sim::Simulator(reroute_scenario(family, pp, dp, microbatches)).predict().iteration_s();
  };
  EXPECT_EQ(healthy_s("1f1b"), (microbatches + pp - 1) * 12);
  for (const char* family : {"1f1b", "gpipe", "zb-h1"}) {
    const model::Setup setup(reroute_scenario(family, pp, dp, microbatches));
    for (int rank = 0; rank < pp; ++rank) {
      std::vector<int> lost(pp);
      lost[static_cast<std::size_t>(rank)] = 1;
      const double seconds = delay_s(setup, lost, dp);
      EXPECT_GE(healthy_s(family) + seconds, rank * 4 + 9 * 12) << family << rank;
      EXPECT_LE(seconds, 3 * 12) << family << rank;
      lost[static_cast<std::size_t>((rank + 1) % pp)] = 1;
      EXPECT_GE(delay_s(setup, lost, dp), seconds) << family << rank;
    }
  }
  // With backwards in two halves the lost rank costs less than a flush of 1F1B without it, and a few ops.
  const model::Setup split(reroute_scenario("zb-h1", pp, dp, microbatches));
  EXPECT_LE(healthy_s("zb-h1") + delay_s(split, {0, 0, 1, 0}, dp), healthy_s("1f1b") + 2 * 4);
}

// Every family with a flush: all ops once, no deadlock, whichever ranks are lost, or an error that says why not.
TEST(Rerouting, HoldsForEveryFamily) {
  int supported = 0;
  for (const Family& family : all_families()) {
    try {
      const model::Setup setup(reroute_scenario(family.name, 4, 3, 8));
      for (const std::vector<int>& lost : {std::vector<int>{0, 1, 0, 0}, {2, 0, 0, 0}, {1, 0, 1, 1}}) {
        EXPECT_GE(delay_s(setup, lost, 3), 0) << family.name;
      }
      ++supported;
    } catch (const ScheduleError& error) {
      EXPECT_NE(std::string(error.what()).find("replica"), std::string::npos) << error.what();
    } catch (const InputError&) {  // another number of ranks, microbatches or slices
    }
  }
  EXPECT_GE(supported, 12);
}

}  // namespace
}  // namespace sluice::test

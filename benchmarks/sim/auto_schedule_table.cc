// Compares automatic schedules with every family of the registry under the same memory limit, and with their lower
// bound.
//   auto_schedule_table [seconds per case, default 10] [ranks, default 8] [number of random cases instead]

#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "model/schedule/family.h"
#include "model/to_size.h"
#include "sim/planner/auto_schedule.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t kActivation = 1000;  // of a microbatch on 1/p of the layers, held until its weight gradient

struct Case {
  int ranks = 8;
  int microbatches = 32;
  int f = 1, b = 1, w = 1;  // for 1/p of the layers, in ms
  bool heavy_ends = false;  // the embedding adds 20 % of a rank's work to the first stage, the loss 40 % to the last
  double hop = 0;           // latency in units of f
};

AutoPlacement placed(const Case& of, const std::string& name, const std::vector<int>& rank_of, std::int64_t limit) {
  AutoPlacement out{.name = name, .problem = {}, .families = {}};
  PlacedProblem& problem = out.problem;
  problem.num_ranks = of.ranks;
  problem.num_microbatches = of.microbatches;
  problem.rank_of = rank_of;
  const int stages = problem.num_stages();
  const int chunks = stages / of.ranks;
  const Duration hop(static_cast<std::int64_t>(of.hop * of.f * 1e6));
  for (int stage = 0; stage < stages; ++stage) {
    // In hundredths of a rank's work.
    const int share = 100 / chunks + (of.heavy_ends ? (stage == 0 ? 20 : 0) + (stage + 1 == stages ? 40 : 0) : 0);
    const auto time = [&](int ms) { return Duration(std::int64_t{ms} * share * 10'000); };
    problem.times.push_back({.forward = time(of.f),
                             .input_gradient = time(of.b),
                             .weight_gradient = time(of.w),
                             .backward = time(of.b + of.w)});
    problem.bytes.push_back({.activations_to_weight_gradient = kActivation / chunks});
    const auto latency = [&](int other) {
      const bool apart = other >= 0 && other < stages && rank_of[other] != rank_of[stage];
      return apart ? hop : Duration{};
    };
    problem.forward_hop.push_back(latency(stage + 1));
    problem.backward_hop.push_back(latency(stage - 1));
  }
  problem.limit.assign(of.ranks, limit);
  problem.after.assign(of.ranks, Duration{});
  out.families = families_of(problem);
  return out;
}

std::vector<AutoPlacement> placements(const Case& of, std::int64_t limit) {
  std::vector<int> linear, looped, v;
  for (int r = 0; r < of.ranks; ++r) linear.push_back(r);
  looped = linear;
  looped.insert(looped.end(), linear.begin(), linear.end());
  v = linear;
  v.insert(v.end(), linear.rbegin(), linear.rend());
  std::vector<AutoPlacement> out;
  out.push_back(placed(of, "linear", linear, limit));
  out.push_back(placed(of, "looped 2", looped, limit));
  out.push_back(placed(of, "v", v, limit));
  return out;
}

int run(double seconds, int ranks) {
  fmt::print(
      "| m | f/b/w | ends | hop | cap (mb) | best family | ms | auto | ms | first s | total s | bound ms | gap % | "
      "family's gap % |\n");
  fmt::print("|--:|---|---|--:|--:|---|--:|---|--:|--:|--:|--:|--:|--:|\n");
  int cases = 0, no_worse = 0, close = 0, uncapped = 0, uncapped_close = 0, proven = 0;
  double slowest_first = 0;
  for (const int m : {16, 32, 64}) {
    for (const auto& [f, b, w] : {std::tuple(10, 12, 8), {5, 6, 4}, {1, 2, 1}}) {
      for (const bool heavy : {false, true}) {
        for (const double hop : {0.0, 0.1}) {
          const Case of{.ranks = ranks, .microbatches = m, .f = f, .b = b, .w = w, .heavy_ends = heavy, .hop = hop};
          // 1F1B and ZB-V both hold up to p microbatches (p of them, 2p halves) and share one cap.
          for (const double cap : {0.0, 1.0 * ranks, 0.5 * ranks}) {
            const std::int64_t limit = cap == 0 ? kNoLimit : static_cast<std::int64_t>(cap * kActivation);
            const AutoResult result = auto_schedule(placements(of, limit), {.seconds = seconds});
            const auto ms = [](Duration d) { return static_cast<double>(d.count()) / 1e6; };
            const double bound = ms(result.lower_bound);
            const bool family = !result.best_family.empty();
            fmt::print(
                "| {} | {}/{}/{} | {} | {} | {} | {} | {} | {}, {} | {:.2f} | {:.2f} | {:.1f} | {:.2f} | {:.2f} | {} "
                "|\n",
                m, f, b, w, heavy ? "heavy" : "even", hop, cap == 0 ? "none" : fmt::format("{}", cap),
                family ? result.best_family : "none fits",
                family ? fmt::format("{:.2f}", ms(result.best_family_makespan)) : "", result.found_by, result.placement,
                ms(result.makespan), result.first_seconds, result.seconds, bound, 100 * result.gap(),
                family ? fmt::format("{:.2f}", 100 * (ms(result.best_family_makespan) / bound - 1)) : "");
            std::fflush(stdout);
            ++cases;
            no_worse += !family || result.makespan <= result.best_family_makespan ? 1 : 0;
            close += result.gap() <= 0.02 ? 1 : 0;
            proven += result.makespan == result.lower_bound ? 1 : 0;
            if (cap == 0) {
              ++uncapped;
              uncapped_close += result.gap() <= 0.02 ? 1 : 0;
            }
            slowest_first = std::max(slowest_first, result.first_seconds);
          }
        }
      }
    }
  }
  fmt::print(
      "\n{} cases: {} at least as fast as every family, {} within 2 % of the bound ({} of {} without a cap), {} on it; "
      "first answer within {:.2f} s.\n",
      cases, no_worse, close, uncapped_close, uncapped, proven, slowest_first);
  return no_worse == cases ? 0 : 1;
}

// Random cases of 2 to 8 ranks with one placement, limits from a half of 1F1B's to all of it, and uneven stages.
int run_random(double seconds, int cases) {
  std::mt19937 engine(1);
  const auto random = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); };
  double sum = 0;
  int close = 0, proven = 0;
  for (int i = 0; i < cases; ++i) {
    const Case of{.ranks = random(2, 8),
                  .microbatches = random(1, 8) * 8,
                  .f = random(4, 12),
                  .b = random(4, 12),
                  .w = random(3, 10),
                  .heavy_ends = random(0, 3) == 0,
                  .hop = 0.1 * random(0, 3)};
    const int eighths = random(4, 8);
    AutoPlacement placement = placements(of, std::int64_t{kActivation} * of.ranks * eighths / 8)[to_size(random(0, 2))];
    if (random(0, 1) == 0) {
      for (SliceOpTimes& times : placement.problem.times) {
        const int percent = random(80, 120);
        times.forward = times.forward * percent / 100;
        times.input_gradient = times.input_gradient * percent / 100;
        times.weight_gradient = times.weight_gradient * percent / 100;
        times.backward = times.input_gradient + times.weight_gradient;
      }
    }
    const std::string name = placement.name;
    std::vector<AutoPlacement> only;
    only.push_back(std::move(placement));
    const AutoResult result = auto_schedule(std::move(only), {.seconds = seconds});
    fmt::print("{} p {} m {} f/b/w {}/{}/{} hop {:.1f} limit {}/8: {} ms, {:.2f} % above the bound\n", name, of.ranks,
               of.microbatches, of.f, of.b, of.w, of.hop, eighths, static_cast<double>(result.makespan.count()) / 1e6,
               100 * result.gap());
    std::fflush(stdout);
    sum += result.gap();
    close += result.gap() <= 0.02 ? 1 : 0;
    proven += result.makespan == result.lower_bound ? 1 : 0;
  }
  fmt::print("{} cases: mean gap {:.2f} %, {} within 2 %, {} on the bound\n", cases, 100 * sum / cases, close, proven);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  if (argc > 3) return sluice::bench::run_random(std::atof(argv[1]), std::atoi(argv[3]));
  return sluice::bench::run(argc > 1 ? std::atof(argv[1]) : 10, argc > 2 ? std::atoi(argv[2]) : 8);
}

#include "sim/engine/perturbed.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>

#include "model/errors.h"
#include "sim/engine/engine.h"
#include "sim/engine/parallel.h"

namespace sluice::sim {
namespace {

// Clamps to a value that check_total rejects instead of overflowing.
Duration scaled(Duration duration, double factor) {
  constexpr double kMost = 5e18;
  return Duration{std::llround(std::min(static_cast<double>(duration.count()) * factor, kMost))};
}

// Draws factors of mean 1.
class Factors {
 public:
  Factors(const Jitter& jitter, std::uint64_t seed, std::uint64_t trial)
      : jitter_(jitter), random_(seeded(seed, trial)) {}

  double next() {
    const double spread = jitter_.spread;
    switch (jitter_.kind) {
      case Jitter::Kind::none: break;
      case Jitter::Kind::lognormal: return std::exp(spread * normal_(random_) - spread * spread / 2);
      case Jitter::Kind::normal: {
        double factor = 1 + spread * normal_(random_);
        while (factor < 0 || factor > 2) factor = 1 + spread * normal_(random_);
        return factor;
      }
      case Jitter::Kind::uniform: return 1 + spread * (2 * uniform_(random_) - 1);
    }
    return 1;
  }

 private:
  static std::mt19937_64 seeded(std::uint64_t seed, std::uint64_t trial) {
    std::seed_seq sequence{seed & 0xffffffffU, seed >> 32U, trial & 0xffffffffU, trial >> 32U};
    return std::mt19937_64(sequence);
  }

  Jitter jitter_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
};

// Returns the place of element `index` of a list of the perturbation, in errors.
std::string slow_place(const Perturbation& perturbation, const char* key, std::size_t index) {
  return fmt::format("{}{}/perturbation/{}/{}", perturbation.source, perturbation.source.empty() ? "" : ": ", key,
                     index);
}

void check_link(const OpGraph& graph, const Perturbation::SlowLink& slow, const std::string& place) {
  std::vector<std::string> links;
  for (const Lane& lane : graph.lanes()) {
    if (lane.kind != LaneKind::link) continue;
    if ((lane.rank == slow.a && lane.peer == slow.b) || (lane.rank == slow.b && lane.peer == slow.a)) return;
    if (lane.rank < lane.peer && links.size() < 8) links.push_back(fmt::format("{}-{}", lane.rank, lane.peer));
  }
  throw InputError(fmt::format("{}: expected {}{}, got {}-{}", place,
                               links.empty() ? "none, as the schedule has no transfers"
                                             : fmt::format("a link with transfers: {}", fmt::join(links, ", ")),
                               links.size() == 8 ? ", ..." : "", slow.a, slow.b));
}

}  // namespace

void slow_down(const OpGraph& graph, const Perturbation& perturbation, Prices& prices) {
  std::vector<double> factors(graph.lanes().size(), 1.0);
  const auto first_link = 2 * static_cast<std::size_t>(graph.schedule().num_ranks());
  for (std::size_t i = 0; i < perturbation.slow_ranks.size(); ++i) {
    const Perturbation::SlowRank& slow = perturbation.slow_ranks[i];
    if (slow.rank < 0 || slow.rank >= graph.schedule().num_ranks()) {
      throw InputError(fmt::format("{}: expected a rank from 0 to {}, got {}",
                                   slow_place(perturbation, "slow_ranks", i), graph.schedule().num_ranks() - 1,
                                   slow.rank));
    }
    factors[graph.compute_lane(slow.rank)] *= slow.factor;
  }
  for (std::size_t i = 0; i < perturbation.slow_links.size(); ++i) {
    const Perturbation::SlowLink& slow = perturbation.slow_links[i];
    check_link(graph, slow, slow_place(perturbation, "slow_links", i));
    for (std::size_t lane = 0; lane < factors.size(); ++lane) {
      const Lane& link = graph.lanes()[lane];
      if (link.kind != LaneKind::link) continue;
      const bool between = (link.rank == slow.a && link.peer == slow.b) || (link.rank == slow.b && link.peer == slow.a);
      if (!between) continue;
      factors[lane] *= slow.factor;
      prices.lane_latency[lane] = scaled(prices.lane_latency[lane], slow.factor);
      if (prices.sharing.empty()) continue;
      // A slower link takes less of the shared capacity.
      SharedLink& shared = prices.sharing.links[lane - first_link];
      shared.speed = std::min(1.0, shared.speed / slow.factor);
      for (ResourceUse& use : shared.uses) use.share = std::min(1.0, use.share / slow.factor);
    }
  }
  RoundingError error;
  for (VertexId v = 0; v < graph.size(); ++v) {
    // The slowest link bounds a collective; slow compute of a rank does not change it.
    const double factor = graph[v].kind == VertexKind::collective ? 1.0 : factors[graph[v].lane];
    const double exact_s = to_seconds(prices.duration[v]) * factor;
    if (factor != 1.0) prices.duration[v] = scaled(prices.duration[v], factor);
    error.add(exact_s, prices.duration[v]);
  }
  check_total(graph, prices);
  error.check("with slow ranks and links, the ops");
}

Duration Trials::quantile(double q) const {
  const double at = q * static_cast<double>(makespans.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, makespans.size() - 1);
  const double fraction = at - static_cast<double>(below);
  return makespans[below] + scaled(makespans[above] - makespans[below], fraction);
}

Trials run_trials(const OpGraph& graph, const Prices& prices, const Perturbation& perturbation,
                  const std::function<void(std::int64_t)>& progress) {
  Trials trials;
  trials.makespans.resize(perturbation.trials);
  std::atomic<std::int64_t> done = 0;
  parallel_for(perturbation.trials, [&](std::int64_t trial) {
    Factors factors(perturbation.jitter, perturbation.seed, static_cast<std::uint64_t>(trial));
    Prices drawn = prices;
    for (Duration& duration : drawn.duration) duration = scaled(duration, factors.next());
    for (Duration& latency : drawn.lane_latency) latency = scaled(latency, factors.next());
    check_total(graph, drawn);
    const Timeline timeline = simulate(graph, drawn);
    trials.makespans[trial] = *std::max_element(timeline.end.begin(), timeline.end.end());
    const std::int64_t now = ++done;
    if (progress) progress(now);
  });
  std::sort(trials.makespans.begin(), trials.makespans.end());
  const auto count = static_cast<double>(trials.makespans.size());
  for (const Duration makespan : trials.makespans) trials.mean_s += to_seconds(makespan) / count;
  double squares = 0;
  for (const Duration makespan : trials.makespans) squares += std::pow(to_seconds(makespan) - trials.mean_s, 2);
  if (count > 1) trials.deviation_s = std::sqrt(squares / (count - 1));
  return trials;
}

}  // namespace sluice::sim

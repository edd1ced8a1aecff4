#include "sim/planner/slices_for_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "model/cost/price.h"
#include "model/errors.h"
#include "model/graph/op_graph.h"
#include "model/scenario/costs.h"
#include "model/schedule/family.h"
#include "model/slicing/balanced.h"
#include "model/slicing/stage_times.h"
#include "model/slicing/terapipe.h"
#include "sim/engine/parallel.h"
#include "sim/planner/slices_run.h"

namespace sluice::sim {
namespace {

// Lower bound of the makespan of a schedule over all cuts of its sequences; slices_for_schedule.h derives it.
class SlicesBound {
 public:
  // `graph`: of the schedule with any number of slices; not referenced after construction. `times`: of its costs; must
  // outlive this. Preconditions: the schedule flushes and has one route and no joint blocks.
  SlicesBound(const OpGraph& graph, const ScenarioCosts& costs, const StageTimes& times);

  // Returns the bound over all cuts into `slices` slices.
  Duration operator()(int slices) const;

 private:
  struct Rank {
    std::vector<int> stages;  // ascending: the first F and the last backward of the rank are of the first
    Duration steps{};         // minimal time of collectives and optimizer steps after its list
  };
  void find_steps(const OpGraph& graph, const CostModel& cost);
  void find_sends(const Schedule& schedule, const ScenarioCosts& costs);
  Duration send(const std::vector<std::vector<Duration>>& sends, int stage, std::int64_t granules) const {
    return sends[stage][granules - 1];
  }
  Duration head(const Rank& rank, std::int64_t granules) const;
  Duration return_path(const Rank& rank, std::int64_t granules) const;
  Duration work(const Rank& rank, std::int64_t begin, std::int64_t granules, bool weights) const;

  const StageTimes& times_;
  int microbatches_;
  bool split_;
  bool blocking_;  // transfers count as work of the sender
  std::vector<Rank> ranks_;
  Duration last_steps_{};  // of the rank that has stage 0
  // By stage and granules: time until the next stage has the result of a slice's F, and the previous one its gradient.
  std::vector<std::vector<Duration>> sends_forward_, sends_gradient_;
};

// Minimum, over all cuts, of the sum of `own` of all slices and `outer` of the first: a shortest path over the
// sequence.
Duration least(const SequenceCut& cut, int slices, const auto& own, const auto& outer) {
  auto row = [&](std::int64_t context, std::span<Duration> out) {
    const std::int64_t begin = context / cut.granularity;
    for (std::size_t n = 0; n < out.size(); ++n) {
      const auto granules = static_cast<std::int64_t>(n) + 1;
      out[n] = own(begin, granules);
      if (begin == 0) out[n] += outer(granules);
    }
  };
  return best_slices({.forward = {.tokens = cut.tokens, .granularity = cut.granularity, .row = std::move(row)},
                      .min_slices = slices,
                      .max_slices = slices})
      .latency;
}

SlicesBound::SlicesBound(const OpGraph& graph, const ScenarioCosts& costs, const StageTimes& times)
    : times_(times),
      microbatches_(graph.schedule().total_microbatches()),
      split_(graph.schedule().split_backward()),
      blocking_(costs.lowering_options(graph.schedule().weight_policy()).blocking_transfers) {
  const Schedule& schedule = graph.schedule();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto stages = schedule.stages_of(rank);
    ranks_.push_back({.stages = {stages.begin(), stages.end()}});
  }
  find_steps(graph, costs.cost());
  last_steps_ = ranks_[schedule.rank_of(0, 0)].steps;
  find_sends(schedule, costs);
}

// Finds the longest path of collectives and optimizer steps after the last op of each rank's list. Their times do not
// depend on the cut.
void SlicesBound::find_steps(const OpGraph& graph, const CostModel& cost) {
  const Prices prices = price(graph, cost);
  std::vector<Duration> after(graph.size(), Duration{0});
  std::vector<char> seen(ranks_.size(), 0);
  for (VertexId v = graph.size(); v-- > 0;) {
    const VertexKind kind = graph[v].kind;
    if (kind == VertexKind::collective || kind == VertexKind::optimizer) {
      const Duration length = prices.duration[v] + after[v];
      for (const VertexId need : graph.needs(v)) after[need] = std::max(after[need], length);
    } else if (kind == VertexKind::compute) {
      const auto rank = static_cast<std::size_t>(graph.rank_of(v));
      if (seen[rank] == 0) ranks_[rank].steps = after[v];
      seen[rank] = 1;
    }
  }
}

void SlicesBound::find_sends(const Schedule& schedule, const ScenarioCosts& costs) {
  const SequenceCut& cut = times_.cut();
  const CostModel& cost = costs.cost();
  const int stages = schedule.num_stages();
  const auto sent = [&](int from_stage, int to_stage, std::int64_t bytes) {
    const int from = schedule.rank_of(from_stage, 0);
    const int to = schedule.rank_of(to_stage, 0);
    if (from == to) return Duration{0};
    return from_seconds(cost.transfer(from, to, bytes).occupied_s, "transfer") +
           from_seconds(cost.transfer(from, to, 0).latency_s, "latency");
  };
  for (int stage = 0; stage < stages; ++stage) {
    auto& forward = sends_forward_.emplace_back();
    auto& gradient = sends_gradient_.emplace_back();
    for (std::int64_t granules = 1; granules <= times_.granules(); ++granules) {
      // The last granule may be shorter than the others: a lower bound for all.
      const std::int64_t tokens = granules * cut.granularity - (times_.granules() * cut.granularity - cut.tokens);
      MicrobatchShape shape{.sequences = cut.sequences, .slice_lengths = {tokens}};
      if (tokens < cut.tokens) shape.slice_lengths.push_back(cut.tokens - tokens);
      const SliceBytes bytes = costs.footprint() == nullptr ? SliceBytes{} : costs.footprint()->slice(stage, shape, 0);
      forward.push_back(stage + 1 < stages ? sent(stage, stage + 1, bytes.transfer_forward) : Duration{0});
      gradient.push_back(stage > 0 ? sent(stage, stage - 1, bytes.transfer_backward) : Duration{0});
    }
  }
}

// Time before the rank's first op, an F of its first stage: the first slice passes all earlier stages.
Duration SlicesBound::head(const Rank& rank, std::int64_t granules) const {
  Duration sum{};
  for (int stage = 0; stage < rank.stages.front(); ++stage) {
    sum += times_.forward(stage, 0, granules) + send(sends_forward_, stage, granules);
  }
  return sum;
}

// Time after the rank's last backward, which is of its first stage and a first slice: the earlier stages, and then the
// last steps of the rank of stage 0. Recomputation begins when the gradient has arrived.
Duration SlicesBound::return_path(const Rank& rank, std::int64_t granules) const {
  Duration sum = last_steps_;
  for (int stage = rank.stages.front(); stage > 0; --stage) {
    sum += send(sends_gradient_, stage, granules) + times_.recompute(stage - 1, 0, granules) +
           times_.gradient(stage - 1, 0, granules);
  }
  if (rank.stages.front() > 0) sum += times_.weight(0, 0, granules);
  return sum;
}

Duration SlicesBound::work(const Rank& rank, std::int64_t begin, std::int64_t granules, bool weights) const {
  Duration sum{};
  for (const int stage : rank.stages) {
    sum += times_.forward(stage, begin, granules) + times_.recompute(stage, begin, granules) +
           times_.gradient(stage, begin, granules);
    if (weights) sum += times_.weight(stage, begin, granules);
    if (blocking_) sum += send(sends_forward_, stage, granules) + send(sends_gradient_, stage, granules);
  }
  return microbatches_ * sum;
}

Duration SlicesBound::operator()(int slices) const {
  Duration bound{};
  for (const Rank& rank : ranks_) {
    // No op of the rank waits for its last transfer.
    const auto before = [&](std::int64_t n) {
      return head(rank, n) - (blocking_ ? send(sends_gradient_, rank.stages.front(), n) : Duration{0});
    };
    // All of its work and the steps after it; without separate Ws also the return path.
    bound = std::max(bound, least(
                                times_.cut(), slices, [&](auto begin, auto n) { return work(rank, begin, n, true); },
                                [&](auto n) {
                                  return before(n) + (split_ ? rank.steps : std::max(rank.steps, return_path(rank, n)));
                                }));
    if (!split_) continue;
    // Its work up to the last input gradient and the return path of that.
    bound = std::max(bound, least(
                                times_.cut(), slices, [&](auto begin, auto n) { return work(rank, begin, n, false); },
                                [&](auto n) { return before(n) + return_path(rank, n); }));
  }
  return bound;
}

using Clock = std::chrono::steady_clock;

void check_request(const SlicesRequest& request) {
  const Scenario& scenario = request.scenario;
  const auto fail = [&](const std::string& what) { throw InputError(fmt::format("{}: {}", scenario.source, what)); };
  if (names_file(scenario.schedule)) {
    fail(fmt::format("/schedule/name: expected a family, got the file {}, whose number of slices is fixed",
                     scenario.schedule));
  }
  const Family& family = find_family(scenario.schedule);
  if (!family.sliced) {
    std::vector<std::string_view> sliced;
    for (const Family& each : all_families()) {
      if (each.sliced) sliced.push_back(each.name);
    }
    fail(fmt::format("/schedule/name: {} has no slices: expected one of {}", family.name, fmt::join(sliced, ", ")));
  }
  if (scenario.training.sequence_length < 1) fail("/batch/sequence_length: required to cut a sequence (--seq-length)");
  if (scenario.training.forward_only()) {
    fail("/schedule/forward_only: expected none: cuts for a schedule have a backward (without --for, prompts are cut)");
  }
  if (scenario.perturbation.slows() || scenario.perturbation.trials > 0) {
    fail("/perturbation: expected no slow ranks, slow links or jitter");
  }
  for (const auto* times :
       {&scenario.uniform.forward, &scenario.uniform.input_gradient, &scenario.uniform.weight_gradient}) {
    if (scenario.cost == CostKind::uniform && times->size() > 1) {
      fail("/cost: expected one time per op kind; times per slice are valid for one cut only");
    }
  }
  const std::int64_t tokens = scenario.training.sequence_length;
  if (request.granularity < 1 || request.granularity > tokens) {
    fail(fmt::format("granularity: expected 1 to the sequence's {} tokens, got {}", tokens, request.granularity));
  }
  const std::int64_t granules = (tokens + request.granularity - 1) / request.granularity;
  if (request.slices < 0 || request.slices > granules) {
    fail(fmt::format("slices: expected at most {} slices of {} tokens at granularity {}, got {}", granules, tokens,
                     request.granularity, request.slices));
  }
  if (request.max_slices < 1) fail(fmt::format("slices: expected a limit of at least 1, got {}", request.max_slices));
}

// Powers of two and their neighbors.
std::set<int> first_counts(const SlicesRequest& request, std::int64_t granules) {
  if (request.slices > 0) return {request.slices};
  const auto most = static_cast<int>(std::min<std::int64_t>(request.max_slices, granules));
  std::set<int> counts = {most};
  for (int power = 1; power / 2 <= most; power *= 2) {
    for (const int count : {power - 1, power, power + 1}) {
      if (count >= 1 && count <= most) counts.insert(count);
    }
  }
  return counts;
}

std::vector<std::int64_t> in_granules(const std::vector<std::int64_t>& lengths, std::int64_t granularity) {
  std::vector<std::int64_t> out;
  for (const std::int64_t length : lengths) out.push_back((length + granularity - 1) / granularity);
  return out;
}

// The search with one number of slices: its schedule and graph, and the best cut so far.
class SliceSearch {
 public:
  SliceSearch(const SlicesRequest& request, int slices) : request_(request) {
    candidate_.slices = slices;
    try {
      run_ = std::make_unique<SlicesRun>(request.scenario, request.granularity, slices);
    } catch (const InputError& error) {
      candidate_.refused = error.what();
    }
  }

  const SlicesCandidate& candidate() const { return candidate_; }
  const SlicesRun& run() const { return *run_; }
  bool refused() const { return run_ == nullptr; }
  bool fits() const { return best_.fits(); }

  void start(const StageTimes& times, const SlicesBound& bound, const std::function<bool()>& is_late) {
    const std::int64_t tokens = request_.scenario.training.sequence_length;
    const std::int64_t granularity = request_.granularity;
    const int slices = candidate_.slices;
    candidate_.lower_bound = bound(slices);
    // Even slices first, so that they win ties.
    std::vector<std::int64_t> even = in_granules(even_slices(tokens, granularity, slices), granularity);
    best_ = run_->simulate(even);
    candidate_.even = best_.makespan;
    counts_ = std::move(even);
    if (request_.scenario.model && tokens % granularity == 0) {
      try_cut(in_granules(balanced_slices(*request_.scenario.model, tokens, slices, granularity), granularity));
    }
    record();
    if (is_late()) return;
    SlicingProblem problem{.forward = times.slowest_forward(),
                           .backward = times.slowest_backward(),
                           .num_cells = run_->schedule().num_ranks(),
                           .min_slices = slices,
                           .max_slices = slices};
    try_cut(in_granules(best_slices(problem).lengths, granularity));
    if (is_late()) return record();
    problem.num_cells = kManyCells;
    try_cut(in_granules(best_slices(problem).lengths, granularity));
    record();
  }

  // Moves granules until no move helps or the time is up.
  void search(const std::function<bool()>& is_late) {
    std::int64_t step = 1;
    const std::int64_t mean = run_->granules() / 2 / candidate_.slices;
    while (2 * step <= mean) step *= 2;
    for (; step >= 1; step /= 2) {
      while (one_pass(step, is_late)) {
      }
    }
    candidate_.searched = !is_late();
    record();
  }

 private:
  static constexpr int kManyCells = 1000;  // so that only the longest slice counts

  bool try_cut(const std::vector<std::int64_t>& counts) {
    const auto result = run_->simulate_if_better(counts, best_);
    if (!result) return false;
    best_ = *result;
    counts_ = counts;
    return true;
  }

  // Tries all moves of `step` granules between two slices, neighbors first. Returns whether any helped.
  bool one_pass(std::int64_t step, const std::function<bool()>& is_late) {
    bool helped = false;
    const auto slices = std::ssize(counts_);
    for (std::int64_t apart = 1; apart < slices; ++apart) {
      for (std::int64_t a = 0; a + apart < slices; ++a) {
        for (const auto& [from, to] : {std::pair(a, a + apart), std::pair(a + apart, a)}) {
          while (counts_[from] > step) {
            if (is_late()) return false;
            std::vector<std::int64_t> moved = counts_;
            moved[from] -= step;
            moved[to] += step;
            if (!try_cut(moved)) break;
            helped = true;
          }
        }
      }
    }
    return helped;
  }

  void record() {
    candidate_.lengths = run_->lengths_of(counts_);
    candidate_.makespan = best_.makespan;
    candidate_.fit = best_.fit;
    candidate_.simulations = run_->simulations();
  }

  const SlicesRequest& request_;
  SlicesCandidate candidate_;
  std::unique_ptr<SlicesRun> run_;
  std::vector<std::int64_t> counts_;  // granules of each slice
  SlicesRun::Result best_;
};

class SlicesPlanner {
 public:
  explicit SlicesPlanner(const SlicesRequest& request)
      : request_(request),
        deadline_(Clock::now() +
                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(request.time_budget_s))) {}

  ScheduleSlices run() {
    const std::int64_t tokens = request_.scenario.training.sequence_length;
    const std::int64_t granules = (tokens + request_.granularity - 1) / request_.granularity;
    std::set<int> counts = first_counts(request_, granules);
    while (!counts.empty()) {
      evaluate(counts);
      counts = neighbors_of_best(granules);
    }
    return result();
  }

 private:
  bool is_interrupted() const { return request_.stop != nullptr && *request_.stop; }
  bool is_late() const { return is_interrupted() || Clock::now() >= deadline_; }

  // Starts all, and searches those whose lower bound is below the best start.
  void evaluate(const std::set<int>& counts) {
    const std::size_t first = searches_.size();
    for (const int count : counts) searches_.push_back(std::make_unique<SliceSearch>(request_, count));
    if (!times_) tabulate();
    parallel_for(std::ssize(searches_) - static_cast<std::int64_t>(first), [&](std::int64_t i) {
      SliceSearch& search = *searches_[first + static_cast<std::size_t>(i)];
      if (!search.refused()) search.start(*times_, *bound_, [this] { return is_late(); });
    });
    const SliceSearch* best = best_search();
    std::vector<SliceSearch*> worth;
    for (std::size_t i = first; i < searches_.size(); ++i) {
      SliceSearch& search = *searches_[i];
      if (search.refused()) continue;
      const bool room = best == nullptr || search.candidate().lower_bound < best->candidate().makespan;
      if (room || !search.fits()) worth.push_back(&search);
    }
    parallel_for(std::ssize(worth), [&](std::int64_t i) { worth[i]->search([this] { return is_late(); }); });
  }

  void tabulate() {
    for (const auto& search : searches_) {
      if (search->refused()) continue;
      const SlicesRun& run = search->run();
      times_ = std::make_unique<StageTimes>(run.costs().cost(), run.schedule().num_stages(), run.costs().stages(),
                                            SequenceCut{.tokens = request_.scenario.training.sequence_length,
                                                        .granularity = request_.granularity,
                                                        .sequences = run.schedule().shapes()[0].sequences,
                                                        .split_backward = run.schedule().split_backward()},
                                            parallel_for);
      bound_ = std::make_unique<SlicesBound>(run.graph(), run.costs(), *times_);
      return;
    }
    // None is supported: reports the reason of the first.
    throw InputError(searches_.front()->candidate().refused);
  }

  const SliceSearch* best_search() const {
    const SliceSearch* best = nullptr;
    for (const auto& search : searches_) {
      if (search->refused() || !search->fits()) continue;
      const auto order = [](const SliceSearch& s) { return std::pair(s.candidate().makespan, s.candidate().slices); };
      if (best == nullptr || order(*search) < order(*best)) best = search.get();
    }
    return best;
  }

  std::set<int> neighbors_of_best(std::int64_t granules) const {
    const SliceSearch* best = best_search();
    if (best == nullptr || request_.slices > 0 || is_late()) return {};
    std::set<int> out;
    for (const int count : {best->candidate().slices - 1, best->candidate().slices + 1}) {
      const bool known = std::any_of(searches_.begin(), searches_.end(),
                                     [&](const auto& search) { return search->candidate().slices == count; });
      if (!known && count >= 1 && count <= std::min<std::int64_t>(request_.max_slices, granules)) out.insert(count);
    }
    return out;
  }

  ScheduleSlices result() const {
    ScheduleSlices out;
    out.lower_bound = Duration::max();
    for (const auto& search : searches_) out.candidates.push_back(search->candidate());
    std::sort(out.candidates.begin(), out.candidates.end(),
              [](const auto& a, const auto& b) { return a.slices < b.slices; });
    const SliceSearch* best = best_search();
    for (std::size_t i = 0; i < out.candidates.size(); ++i) {
      const SlicesCandidate& candidate = out.candidates[i];
      if (!candidate.refused.empty()) continue;
      if (best != nullptr && candidate.slices == best->candidate().slices) out.best = i;
      out.lower_bound = std::min(out.lower_bound, candidate.lower_bound);
      out.simulations += candidate.simulations;
    }
    out.interrupted = is_interrupted();
    out.out_of_time = !out.interrupted && is_late();
    return out;
  }

  const SlicesRequest& request_;
  Clock::time_point deadline_;
  std::unique_ptr<StageTimes> times_;
  std::unique_ptr<SlicesBound> bound_;
  std::vector<std::unique_ptr<SliceSearch>> searches_;
};

}  // namespace

ScheduleSlices slices_for_schedule(const SlicesRequest& request) {
  check_request(request);
  return SlicesPlanner(request).run();
}

}  // namespace sluice::sim

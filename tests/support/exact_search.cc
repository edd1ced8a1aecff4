#include "tests/support/exact_search.h"

#include <algorithm>
#include <map>
#include <vector>

namespace sluice::test {
namespace {

// Groups are indexed by kind (0 F, 1 I, 2 W), stage and slice. A state is the number of ops placed per group and the
// times.
class Exact {
 public:
  Exact(const PlacedProblem& problem, std::int64_t known, std::int64_t max_states)
      : problem_(problem),
        best_(known),
        max_states_(max_states),
        m_(problem.num_microbatches),
        k_(problem.num_slices()),
        stages_(problem.num_stages()),
        groups_(3 * stages_ * k_) {
    placed_.assign(groups_, 0);
    end_.assign(std::int64_t{groups_} * m_, -1);
    clock_.assign(problem.num_ranks, 0);
    held_.assign(problem.num_ranks, 0);
    left_.assign(problem.num_ranks, 0);
    for (int g = 0; g < groups_; ++g) left_[rank(g)] += time(g) * m_;
    // A lower bound of the time after the end of an op of each group: the critical path to the last stage and back.
    follows_.assign(groups_, 0);
    for (int s = 0; s < stages_; ++s) {
      for (int i = 0; i < k_; ++i) {
        std::int64_t best = time(group(2, s, i));
        if (s > 0) best = std::max(best, backward_latency(s) + time(group(1, s - 1, i)) + follows_[group(1, s - 1, i)]);
        if (i > 0) best = std::max(best, time(group(1, s, i - 1)) + follows_[group(1, s, i - 1)]);
        follows_[group(1, s, i)] = best;
      }
    }
    for (int s = stages_ - 1; s >= 0; --s) {
      for (int i = k_ - 1; i >= 0; --i) {
        std::int64_t best = time(group(1, s, i)) + follows_[group(1, s, i)];
        if (s + 1 < stages_)
          best = std::max(best, forward_latency(s) + time(group(0, s + 1, i)) + follows_[group(0, s + 1, i)]);
        if (i + 1 < k_) best = std::max(best, time(group(0, s, i + 1)) + follows_[group(0, s, i + 1)]);
        follows_[group(0, s, i)] = best;
      }
    }
  }

  std::optional<std::int64_t> run() {
    search(0, 0);
    if (states_ > max_states_) return std::nullopt;
    return best_;
  }

 private:
  int group(int kind, int stage, int slice) const { return (kind * stages_ + stage) * k_ + slice; }
  int kind(int g) const { return g / (stages_ * k_); }
  int stage(int g) const { return g / k_ % stages_; }
  int slice(int g) const { return g % k_; }
  int rank(int g) const { return problem_.rank_of[stage(g)]; }
  std::int64_t time(int g) const {
    const SliceOpTimes& of = problem_.times[problem_.slice_index(stage(g), slice(g))];
    return (kind(g) == 0 ? of.forward : kind(g) == 1 ? of.input_gradient : of.weight_gradient).count();
  }
  std::int64_t forward_latency(int s) const {
    return problem_.rank_of[s] == problem_.rank_of[s + 1] ? 0 : problem_.forward_hop[s].count();
  }
  std::int64_t backward_latency(int s) const {
    return problem_.rank_of[s] == problem_.rank_of[s - 1] ? 0 : problem_.backward_hop[s].count();
  }
  std::int64_t end(int g, int j) const { return end_[g * m_ + j]; }

  // Earliest start of the next op of the group by its dependencies; -1 if one is not placed.
  std::int64_t ready(int g) const {
    const int j = placed_[g];
    std::int64_t there = 0;
    const auto need = [&](int other, std::int64_t delay) {
      const std::int64_t e = end(other, j);
      there = e < 0 || there < 0 ? -1 : std::max(there, e + delay);
    };
    const int s = stage(g);
    const int i = slice(g);
    if (kind(g) == 0) {
      if (s > 0) need(group(0, s - 1, i), forward_latency(s - 1));
      if (i > 0) need(group(0, s, i - 1), 0);
    } else if (kind(g) == 1) {
      need(group(0, s, i), 0);
      if (s + 1 < stages_) need(group(1, s + 1, i), backward_latency(s + 1));
      if (i + 1 < k_) need(group(1, s, i + 1), 0);
    } else {
      need(group(1, s, i), 0);
    }
    return there;
  }

  std::int64_t change(int g) const {
    const SliceBytes& of = problem_.bytes[problem_.slice_index(stage(g), slice(g))];
    switch (kind(g)) {
      case 0: return of.activations_to_input_gradient + of.activations_to_weight_gradient + of.keys_values;
      case 1: return of.gradients_to_weight_gradient - of.activations_to_input_gradient - of.keys_values;
      default: return -of.activations_to_weight_gradient - of.gradients_to_weight_gradient;
    }
  }

  // The times on which ops that are not placed depend: ends of their dependencies, and the clocks of the ranks.
  std::vector<std::int64_t> signature(std::int64_t now) const {
    std::vector<std::int64_t> out = clock_;
    for (int g = 0; g < groups_; ++g) {
      for (int j = 0; j < placed_[g]; ++j) {
        if (awaited(g, j)) out.push_back(end(g, j));
      }
    }
    out.push_back(now);  // later ops must not start before the last placed one
    return out;
  }
  bool awaited(int g, int j) const {
    const auto open = [&](int other) { return placed_[other] <= j; };
    const int s = stage(g);
    const int i = slice(g);
    if (kind(g) == 2) return false;
    if (kind(g) == 0) {
      return open(group(1, s, i)) || (s + 1 < stages_ && open(group(0, s + 1, i))) ||
             (i + 1 < k_ && open(group(0, s, i + 1)));
    }
    return open(group(2, s, i)) || (s > 0 && open(group(1, s - 1, i))) || (i > 0 && open(group(1, s, i - 1)));
  }

  bool dominated(std::int64_t now) {
    const std::vector<std::int64_t> here = signature(now);
    auto& others = seen_[placed_];
    for (const auto& other : others) {
      if (other.size() == here.size() &&
          std::equal(other.begin(), other.end(), here.begin(), [](auto a, auto b) { return a <= b; }))
        return true;
    }
    std::erase_if(others, [&](const auto& other) {
      return std::equal(here.begin(), here.end(), other.begin(), [](auto a, auto b) { return a <= b; });
    });
    others.push_back(here);
    return false;
  }

  void search(std::int64_t now, int depth) {
    if (states_ > max_states_) return;
    if (depth == groups_ * m_) {
      best_ = std::min(best_, *std::max_element(clock_.begin(), clock_.end()));
      return;
    }
    for (std::size_t r = 0; r < clock_.size(); ++r) {
      const std::int64_t from = left_[r] > 0 ? std::max(clock_[r], now) : clock_[r];
      if (from + left_[r] >= best_) return;
    }
    for (int g = 0; g < groups_; ++g) {
      if (placed_[g] == m_) continue;
      const std::int64_t there = ready(g);
      if (there >= 0 && std::max({there, clock_[rank(g)], now}) + time(g) + follows_[g] >= best_) return;
    }
    if (dominated(now)) return;
    ++states_;
    struct Branch {
      std::int64_t start;
      int g;
    };
    std::vector<Branch> branches;
    for (int g = 0; g < groups_; ++g) {
      const int r = rank(g);
      if (placed_[g] == m_) continue;
      const std::int64_t there = ready(g);
      if (there < 0 || held_[r] + change(g) > problem_.limit[r]) continue;
      const std::int64_t start = std::max(there, clock_[r]);
      if (start < now) continue;
      branches.push_back({start, g});
    }
    std::stable_sort(branches.begin(), branches.end(),
                     [](const Branch& a, const Branch& b) { return a.start < b.start; });
    for (const auto& [start, g] : branches) {
      const int r = rank(g);
      const int j = placed_[g]++;
      const std::int64_t clock = clock_[r];
      clock_[r] = end_[g * m_ + j] = start + time(g);
      held_[r] += change(g);
      left_[r] -= time(g);
      search(start, depth + 1);
      left_[r] += time(g);
      held_[r] -= change(g);
      end_[g * m_ + j] = -1;
      clock_[r] = clock;
      --placed_[g];
    }
  }

  const PlacedProblem& problem_;
  std::int64_t best_;
  std::int64_t max_states_;
  int m_, k_, stages_, groups_;
  std::vector<int> placed_;                        // by group
  std::vector<std::int64_t> end_;                  // by group and microbatch
  std::vector<std::int64_t> clock_, held_, left_;  // by rank
  std::vector<std::int64_t> follows_;              // by group
  std::map<std::vector<int>, std::vector<std::vector<std::int64_t>>> seen_;
  std::int64_t states_ = 0;
};

}  // namespace

std::optional<std::int64_t> least_makespan(const PlacedProblem& problem, std::int64_t known, std::int64_t max_states) {
  return Exact(problem, known, max_states).run();
}

}  // namespace sluice::test

#include "model/batches/context_groups.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr double kBalanced = 0.05;     // of Megatron-LM's rule: ranks within this fraction of the fullest
constexpr double kFullList = 1.1;      // likewise: a list of documents ends above this times its share of the work
constexpr std::int64_t kTargets = 64;  // times that fastest_group tries to meet
constexpr std::int64_t kMostAssignments = 4000;   // that it tries in all
constexpr std::int64_t kMostSteps = 400'000'000;  // the same for many documents and ranks: some seconds
constexpr std::int64_t kFewestAssignments = 16;

double most_of(const std::vector<double>& times) { return *std::max_element(times.begin(), times.end()); }

// One group of Megatron-LM's rule.
class GroupByRule {
 public:
  explicit GroupByRule(const ContextProblem& problem) : problem_(problem), free_(problem.ranks) {}

  // Takes the documents of a group out of `left`, which are sorted, the longest first.
  ContextGroup take(Documents& left) {
    lists_ = cut(left);
    while (place_next()) {
      if (shorter_ && !lists_.empty() && slack() <= kBalanced * fullest()) break;
    }
    left.clear();
    for (const std::deque<std::int64_t>& list : lists_) left.insert(left.end(), list.begin(), list.end());
    take_back(left);
    std::sort(left.rbegin(), left.rend());
    while (free_ > 0) widen();
    return group();
  }

 private:
  // Ranks that share their documents.
  struct Block {
    int ranks = 1;
    Documents documents;
    double time = 0;
  };

  int ranks_of(std::int64_t tokens) const { return least_ranks(tokens, problem_.most_tokens); }
  double time_of(std::int64_t tokens) const { return problem_.time(tokens, ranks_of(tokens)); }

  std::deque<std::deque<std::int64_t>> cut(const Documents& documents) const {
    std::set<int> sizes;
    double all = 0;
    for (const std::int64_t tokens : documents) {
      sizes.insert(ranks_of(tokens));
      all += time_of(tokens);
    }
    const double share = all / static_cast<double>(sizes.size());
    std::deque<std::deque<std::int64_t>> out(1);
    double work = 0;
    for (const std::int64_t tokens : documents) {
      if (!out.back().empty() && work + time_of(tokens) > kFullList * share && out.size() < sizes.size()) {
        out.emplace_back();
        work = 0;
      }
      out.back().push_back(tokens);
      work += time_of(tokens);
    }
    return out;
  }

  Block* least_loaded(int ranks) {
    Block* found = nullptr;
    for (Block& block : blocks_) {
      if (block.ranks == ranks && (found == nullptr || block.time < found->time)) found = &block;
    }
    return found;
  }

  bool place_next() {
    for (auto list = lists_.begin(); list != lists_.end(); ++list) {
      const std::int64_t tokens = list->front();
      const int ranks = ranks_of(tokens);
      Block* block = least_loaded(ranks);
      if (free_ >= ranks && (block == nullptr || block->time > 0)) {
        free_ -= ranks;
        block = &blocks_.emplace_back(Block{.ranks = ranks, .documents = {}});
      }
      if (block == nullptr) continue;
      shorter_ = shorter_ || (first_ranks_ > 0 && ranks < first_ranks_);
      if (first_ranks_ == 0) first_ranks_ = ranks;
      block->documents.push_back(tokens);
      block->time += time_of(tokens);
      list->pop_front();
      if (list->empty()) lists_.erase(list);
      return true;
    }
    return false;
  }

  Block& fullest_block() {
    return *std::max_element(blocks_.begin(), blocks_.end(),
                             [](const Block& a, const Block& b) { return a.time < b.time; });
  }
  double fullest() { return fullest_block().time; }
  double emptiest() const {
    double least = free_ > 0 ? 0 : std::numeric_limits<double>::infinity();
    for (const Block& block : blocks_) least = std::min(least, block.time);
    return least;
  }
  double slack() { return fullest() - emptiest(); }

  void take_back(Documents& left) {
    while (emptiest() > 0 && slack() > kBalanced * fullest()) {
      Block& block = fullest_block();
      if (block.documents.size() < 2) return;
      const double before = slack();
      const std::int64_t tokens = block.documents.back();
      block.documents.pop_back();
      block.time -= time_of(tokens);
      if (slack() < before) {
        left.push_back(tokens);
        continue;
      }
      block.documents.push_back(tokens);
      block.time += time_of(tokens);
      return;
    }
  }

  // The free ranks are at least as many as those of the smallest block: all are powers of two.
  void widen() {
    Block& block = *std::min_element(blocks_.begin(), blocks_.end(),
                                     [](const Block& a, const Block& b) { return a.ranks < b.ranks; });
    free_ -= block.ranks;
    block.ranks *= 2;
  }

  ContextGroup group() {
    std::stable_sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) { return a.ranks > b.ranks; });
    ContextGroup out;
    int first = 0;
    for (const Block& block : blocks_) {
      for (const std::int64_t tokens : block.documents) {
        out.push_back({.tokens = tokens, .ranks = block.ranks, .first = first});
      }
      first += block.ranks;
    }
    return out;
  }

  const ContextProblem& problem_;
  int free_ = 0;
  std::deque<std::deque<std::int64_t>> lists_;
  std::vector<Block> blocks_;
  int first_ranks_ = 0;  // of the group's first document
  bool shorter_ = false;
};

// Documents that may each run on any number of ranks from its least to all.
class FastestGroup {
 public:
  explicit FastestGroup(const ContextProblem& problem) : problem_(problem) {
    for (const std::int64_t tokens : problem.documents) {
      const int least = least_ranks(tokens, problem.most_tokens);
      Choices choices{.tokens = tokens, .least = least};
      for (int ranks = least; ranks <= problem.ranks; ranks *= 2) choices.times.push_back(problem.time(tokens, ranks));
      choices_.push_back(std::move(choices));
    }
    const std::int64_t steps = std::max<std::int64_t>(1, std::ssize(choices_) * problem.ranks);
    most_assignments_ = std::clamp(kMostSteps / steps, kFewestAssignments, kMostAssignments);
    least_time_ = time_of_least_work();
  }

  double least_time() const { return least_time_; }

  ContextGroup find() {
    meet_times();
    improve();
    return best_;
  }

 private:
  struct Choices {
    std::int64_t tokens = 0;
    int least = 1;
    std::vector<double> times;  // on least, 2 least, 4 least, ... ranks

    int ranks(std::size_t choice) const { return least << choice; }
    double work(std::size_t choice) const { return times[choice] * ranks(choice); }
  };
  using Chosen = std::vector<std::size_t>;

  double time_of_least_work() const {
    double work = 0;
    double longest = 0;
    for (const Choices& choices : choices_) {
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < choices.times.size(); ++i) least = std::min(least, choices.work(i));
      work += least;
      longest = std::max(longest, *std::min_element(choices.times.begin(), choices.times.end()));
    }
    return std::max(work / problem_.ranks, longest);
  }

  // For each target: of the numbers of ranks that meet it, the one with the least work, or else the fastest.
  void meet_times() {
    double longest = 0;
    for (const Choices& choices : choices_) longest = std::max(longest, choices.times.front());
    longest = std::max(longest, least_time_);
    const std::int64_t targets = std::min(kTargets, most_assignments_);
    for (std::int64_t i = 0; i <= targets; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(targets);
      const double target = longest * share * share;
      Chosen chosen;
      for (const Choices& choices : choices_) chosen.push_back(meeting(choices, target));
      try_choice(chosen);
    }
  }

  static std::size_t meeting(const Choices& choices, double target) {
    std::size_t best = 0;
    const auto better = [&](std::size_t a, std::size_t b) {
      const bool a_meets = choices.times[a] <= target;
      const bool b_meets = choices.times[b] <= target;
      if (a_meets != b_meets) return a_meets;
      return a_meets ? choices.work(a) < choices.work(b) : choices.times[a] < choices.times[b];
    };
    for (std::size_t i = 1; i < choices.times.size(); ++i) {
      if (better(i, best)) best = i;
    }
    return best;
  }

  bool try_choice(const Chosen& chosen) {
    ++tried_;
    std::vector<std::size_t> order(chosen.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto ranks = [&](std::size_t i) { return choices_[i].ranks(chosen[i]); };
    const auto time = [&](std::size_t i) { return choices_[i].times[chosen[i]]; };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return ranks(a) != ranks(b) ? ranks(a) > ranks(b) : time(a) > time(b);
    });
    std::vector<double> loads(to_size(problem_.ranks));
    ContextGroup group;
    for (const std::size_t i : order) {
      // The ranks of a block have equal loads, since all that ran was on as many or more.
      int first = 0;
      for (int at = ranks(i); at < problem_.ranks; at += ranks(i)) {
        if (loads[to_size(at)] < loads[to_size(first)]) first = at;
      }
      for (int at = first; at < first + ranks(i); ++at) loads[to_size(at)] += time(i);
      group.push_back({.tokens = choices_[i].tokens, .ranks = ranks(i), .first = first});
    }
    const double ends = most_of(loads);
    if (!best_.empty() && ends >= best_time_ * (1 - 1e-12)) return false;
    best_time_ = ends;
    best_ = std::move(group);
    best_choice_ = chosen;
    return true;
  }

  // Gives one document after the other more or fewer ranks, until nothing helps.
  void improve() {
    bool better = true;
    while (better) {
      better = false;
      for (std::size_t i = 0; i < choices_.size(); ++i) {
        for (std::size_t choice = 0; choice < choices_[i].times.size(); ++choice) {
          if (tried_ >= most_assignments_ || best_time_ <= least_time_ * (1 + 1e-9)) return;
          if (choice == best_choice_[i]) continue;
          Chosen changed = best_choice_;
          changed[i] = choice;
          better = try_choice(changed) || better;
        }
      }
    }
  }

  const ContextProblem& problem_;
  std::vector<Choices> choices_;
  ContextGroup best_;
  Chosen best_choice_;
  double best_time_ = 0;
  double least_time_ = 0;
  std::int64_t tried_ = 0;
  std::int64_t most_assignments_ = 0;
};

}  // namespace

int least_ranks(std::int64_t tokens, std::int64_t most_tokens) {
  int ranks = 1;
  while (ranks * most_tokens < tokens) ranks *= 2;
  return ranks;
}

std::vector<double> times_of_ranks(const ContextGroup& group, const ContextProblem& problem) {
  std::vector<double> out(to_size(problem.ranks));
  for (const SharedDocument& document : group) {
    const double time = problem.time(document.tokens, document.ranks);
    for (int rank = document.first; rank < document.first + document.ranks; ++rank) out[to_size(rank)] += time;
  }
  return out;
}

std::vector<ContextGroup> megatron_groups(const ContextProblem& problem) {
  Documents left = problem.documents;
  std::sort(left.rbegin(), left.rend());
  std::vector<ContextGroup> out;
  while (!left.empty()) out.push_back(GroupByRule(problem).take(left));
  return out;
}

ContextGroup fastest_group(const ContextProblem& problem) { return FastestGroup(problem).find(); }

double least_time(const ContextProblem& problem) { return FastestGroup(problem).least_time(); }

}  // namespace sluice::model

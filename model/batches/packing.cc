#include "model/batches/packing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "model/to_size.h"

namespace sluice::model {
namespace {

// What a bin holds.
struct Bin {
  double weight = 0;
  std::int64_t tokens = 0;
  std::size_t items = 0;

  friend bool operator==(const Bin&, const Bin&) = default;
};

bool has_room(const PackingProblem& problem, const Bin& bin, std::size_t item) {
  return (problem.cap == 0 || bin.tokens + problem.tokens[item] <= problem.cap) &&
         (problem.most_items == 0 || bin.items < problem.most_items);
}

void put(const PackingProblem& problem, Bin& bin, std::size_t item) {
  bin.weight += problem.weight[item];
  bin.tokens += problem.tokens[item];
  ++bin.items;
}

std::vector<Bin> filled(const PackingProblem& problem, const Packing& packing) {
  std::vector<Bin> bins(to_size(problem.bins));
  for (std::size_t item = 0; item < packing.size(); ++item) put(problem, bins[to_size(packing[item])], item);
  return bins;
}

bool is_valid(const PackingProblem& problem, const Packing& packing) {
  const std::vector<Bin> bins = filled(problem, packing);
  return std::all_of(bins.begin(), bins.end(), [&](const Bin& bin) {
    return bin.items > 0 && (problem.cap == 0 || bin.tokens <= problem.cap) &&
           (problem.most_items == 0 || bin.items <= problem.most_items);
  });
}

std::vector<std::size_t> heaviest_first(const PackingProblem& problem) {
  std::vector<std::size_t> order(problem.weight.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return problem.weight[a] > problem.weight[b]; });
  return order;
}

// A solution for some of the items: its bins that are not empty, the heaviest first.
struct Partial {
  struct Part {
    double weight = 0;
    std::vector<std::size_t> items;
  };
  std::vector<Part> parts;
  double difference = 0;    // between its heaviest and its lightest bin
  std::size_t created = 0;  // earlier ones precede equal ones

  bool operator<(const Partial& other) const {
    return std::pair(difference, other.created) < std::pair(other.difference, created);
  }
};

// Adds the heaviest bin of `b` to the lightest of `a`, and so on.
Partial sum_of(Partial a, Partial b, std::size_t bins, std::size_t created) {
  for (std::size_t i = 0; i < b.parts.size(); ++i) {
    const std::size_t with = bins - 1 - i;
    if (with >= a.parts.size()) {
      a.parts.push_back(std::move(b.parts[i]));
      continue;
    }
    Partial::Part& part = a.parts[with];
    part.weight += b.parts[i].weight;
    part.items.insert(part.items.end(), b.parts[i].items.begin(), b.parts[i].items.end());
  }
  std::stable_sort(a.parts.begin(), a.parts.end(),
                   [](const Partial::Part& x, const Partial::Part& y) { return x.weight > y.weight; });
  a.difference = a.parts.front().weight - (a.parts.size() < bins ? 0 : a.parts.back().weight);
  a.created = created;
  return a;
}

// Searches all packings but those that differ in the names of bins.
class Search {
 public:
  Search(const PackingProblem& problem, std::optional<Packing> start, std::int64_t most_nodes)
      : problem_(problem),
        order_(heaviest_first(problem)),
        bins_(to_size(problem.bins)),
        packing_(problem.weight.size(), 0),
        best_(std::move(start)),
        nodes_(most_nodes) {
    const double all = std::accumulate(problem.weight.begin(), problem.weight.end(), 0.0);
    bound_ = std::max(all / problem.bins, order_.empty() ? 0 : problem.weight[order_[0]]);
    if (best_) least_ = heaviest(problem, *best_);
  }

  std::optional<ExactPacking> run() {
    assign(0);
    if (!best_) return std::nullopt;
    return ExactPacking{std::move(*best_), nodes_ > 0 || done()};
  }

 private:
  // Sums of the same weights in another order may differ in their last bits.
  static constexpr double kRounding = 1 + 1e-12;
  bool done() const { return least_ <= bound_ * kRounding; }

  void assign(std::size_t next) {
    if (next == order_.size()) {
      const double found = heaviest(problem_, packing_);
      if (found * kRounding < least_) std::tie(least_, best_) = std::pair(found, std::optional(packing_));
      return;
    }
    const std::size_t item = order_[next];
    const auto empty = std::count_if(bins_.begin(), bins_.end(), [](const Bin& bin) { return bin.items == 0; });
    const bool only_empty = std::ssize(order_) - static_cast<std::ptrdiff_t>(next) == empty;
    for (std::size_t bin = 0; bin < bins_.size() && nodes_ > 0 && !done(); ++bin) {
      if (only_empty && bins_[bin].items > 0) continue;
      if (!has_room(problem_, bins_[bin], item)) continue;
      if ((bins_[bin].weight + problem_.weight[item]) * kRounding >= least_) continue;
      // Equal bins are alternatives of each other.
      if (std::find(bins_.begin(), bins_.begin() + static_cast<std::ptrdiff_t>(bin), bins_[bin]) !=
          bins_.begin() + static_cast<std::ptrdiff_t>(bin)) {
        continue;
      }
      --nodes_;
      const Bin before = bins_[bin];
      put(problem_, bins_[bin], item);
      packing_[item] = static_cast<int>(bin);
      assign(next + 1);
      bins_[bin] = before;
    }
  }

  const PackingProblem& problem_;
  std::vector<std::size_t> order_;
  std::vector<Bin> bins_;
  Packing packing_;
  std::optional<Packing> best_;
  double least_ = std::numeric_limits<double>::infinity();
  double bound_ = 0;
  std::int64_t nodes_;
};

}  // namespace

double heaviest(const PackingProblem& problem, const Packing& packing) {
  double most = 0;
  for (const Bin& bin : filled(problem, packing)) most = std::max(most, bin.weight);
  return most;
}

std::optional<Packing> pack_greedily(const PackingProblem& problem) {
  std::vector<Bin> bins(to_size(problem.bins));
  Packing out(problem.weight.size());
  for (const std::size_t item : heaviest_first(problem)) {
    auto lightest = bins.end();
    for (auto bin = bins.begin(); bin != bins.end(); ++bin) {
      if (!has_room(problem, *bin, item)) continue;
      const bool lighter =
          lightest == bins.end() || std::pair(bin->weight, bin->items) < std::pair(lightest->weight, lightest->items);
      if (lighter) lightest = bin;
    }
    if (lightest == bins.end()) return std::nullopt;
    put(problem, *lightest, item);
    out[item] = static_cast<int>(lightest - bins.begin());
  }
  return out;
}

std::optional<Packing> pack_by_differencing(const PackingProblem& problem) {
  std::vector<Partial> heap;
  for (std::size_t item = 0; item < problem.weight.size(); ++item) {
    const double weight = problem.weight[item];
    heap.push_back(
        {.parts = {{.weight = weight, .items = {item}}}, .difference = problem.bins > 1 ? weight : 0, .created = item});
  }
  std::make_heap(heap.begin(), heap.end());
  const auto pop = [&] {
    std::pop_heap(heap.begin(), heap.end());
    Partial out = std::move(heap.back());
    heap.pop_back();
    return out;
  };
  for (std::size_t created = heap.size(); heap.size() > 1; ++created) {
    Partial first = pop();
    heap.push_back(sum_of(std::move(first), pop(), to_size(problem.bins), created));
    std::push_heap(heap.begin(), heap.end());
  }
  Packing out(problem.weight.size());
  const std::vector<Partial::Part>& parts = heap.front().parts;
  for (std::size_t bin = 0; bin < parts.size(); ++bin) {
    for (const std::size_t item : parts[bin].items) out[item] = static_cast<int>(bin);
  }
  return is_valid(problem, out) ? std::optional(std::move(out)) : std::nullopt;
}

std::optional<ExactPacking> pack_exactly(const PackingProblem& problem, std::int64_t most_nodes) {
  std::optional<Packing> start = pack_greedily(problem);
  std::optional<Packing> other = pack_by_differencing(problem);
  if (other && (!start || heaviest(problem, *other) < heaviest(problem, *start))) start = std::move(other);
  return Search(problem, std::move(start), most_nodes).run();
}

}  // namespace sluice::model

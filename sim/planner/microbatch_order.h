#pragma once

#include <cstdint>
#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"

namespace sluice::sim {

using namespace model;  // NOLINT(google-build-using-namespace)

// The rows of a graph: vertices that differ only in their microbatch have the same one.
class MicrobatchRows {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};  // of collectives and optimizer steps

  explicit MicrobatchRows(const OpGraph& graph);
  std::uint32_t of(VertexId v) const { return rows_[v]; }
  std::size_t count() const { return count_; }

 private:
  std::vector<std::uint32_t> rows_;
  std::size_t count_ = 0;
};

// An order of microbatches: at position i of a schedule runs number order[i].
struct FoundOrder {
  std::vector<int> order;
  Duration makespan{};
  bool best = false;  // all orders were tried
  std::int64_t tried = 0;
};

// Finds the order with the least makespan. `prices` are those of the microbatches in their order. Microbatches with
// equal `kind` are alike; a larger `work` takes longer. Precondition: no joint blocks, and one route.
FoundOrder best_order(const OpGraph& graph, const Prices& prices, const std::vector<int>& kind,
                      const std::vector<double>& work);

}  // namespace sluice::sim

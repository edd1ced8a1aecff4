// Public header.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/graph/op_graph.h"

namespace sluice::model {

// Dense numbers of ops that take as long: those of one kind, slice and shape of microbatch on stages with the same
// contents. The schedule must outlive it.
class OpClasses {
 public:
  OpClasses(const Schedule& schedule, const CostModel& cost) : schedule_(schedule) {
    for (const MicrobatchShape& shape : schedule.shapes()) {
      offsets_.push_back(slices_);
      slices_ += static_cast<std::size_t>(shape.num_slices());
    }
    for (int stage = 0; stage < schedule.num_stages(); ++stage) alike_.push_back(cost.alike(stage));
  }

  std::size_t count() const { return kKinds * slices_ * alike_.size(); }
  // Returns the class of the op of `vertex`, below count().
  std::size_t of(const Vertex& vertex) const { return index(vertex, alike_[static_cast<std::size_t>(vertex.stage)]); }
  // As `of`, with stages apart though their contents are the same.
  std::size_t on_its_stage(const Vertex& vertex) const { return index(vertex, vertex.stage); }

 private:
  static constexpr std::size_t kKinds = 8;  // kNumOpKinds or more, a power of two

  std::size_t index(const Vertex& vertex, int stage) const {
    const std::size_t slice =
        offsets_[schedule_.shape_index(vertex.microbatch)] + static_cast<std::size_t>(vertex.slice);
    return kKinds * (static_cast<std::size_t>(stage) * slices_ + slice) + static_cast<std::size_t>(vertex.op);
  }

  const Schedule& schedule_;
  std::size_t slices_ = 0;  // over all shapes
  std::vector<std::size_t> offsets_;
  std::vector<int> alike_;
};

// Values of pairs of classes. Searched one by one among the pairs of the first class, which are few: those that a
// schedule joins.
template <typename Value>
class ClassPairs {
 public:
  explicit ClassPairs(std::size_t classes) : pairs_(classes) {}

  // Returns the value of a pair, which `make()` returns the first time.
  template <typename Make>
  Value find(std::size_t first, std::size_t second, const Make& make) {
    auto& pairs = pairs_[first];
    for (const auto& [other, value] : pairs) {
      if (other == second) return value;
    }
    return pairs.emplace_back(second, make()).second;
  }

 private:
  std::vector<std::vector<std::pair<std::size_t, Value>>> pairs_;
};

}  // namespace sluice::model

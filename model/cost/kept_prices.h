#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "model/cluster/placement.h"
#include "model/schedule/op.h"
#include "model/workload/slice_shape.h"
#include "model/workload/training.h"

namespace sluice::model {

// Seconds of layers, ops and joint blocks that have been computed.
class KeptPrices {
 public:
  // Of one op, or of one layer of a kind.
  struct Part {
    OpKind kind = OpKind::F;
    StageContents contents;
    int layer = -1;  // the kind of a single layer, in place of `contents`
    SliceShape slice;
  };
  // Return what is kept, or else what `compute` returns. Packed documents are not kept.
  double of(const Part& part, const std::function<double()>& compute);
  double of(const Part& forward, const Part& backward, const std::function<double()>& compute);

 private:
  using Key = std::array<std::int64_t, 12>;
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  double of(const Key& key, const std::function<double()>& compute);

  std::mutex mutex_;
  std::unordered_map<Key, double, Hash> seconds_;
};

// The prices of configurations of one model, cluster and software: those that differ only in what the kernels of an op
// do not depend on share theirs. Not thread-safe.
class PriceStore {
 public:
  // Of ops; `again` of recomputations, which depend on what is recomputed as well. Precondition: ops neither gather
  // parameters nor reduce gradients.
  std::shared_ptr<KeptPrices> of(const Training& training, const Placement& placement, bool again);

 private:
  struct Entry {
    Training training;
    std::array<int, 13> groups;
    std::shared_ptr<KeptPrices> prices;
  };
  std::vector<Entry> entries_;  // the last used one last
};

}  // namespace sluice::model

#include "model/cost/kept_prices.h"

#include <algorithm>
#include <boost/functional/hash.hpp>
#include <iterator>
#include <utility>

#include "model/cost/analytic.h"

namespace sluice::model {
namespace {

// Appends to the numbers that identify an op.
auto add(const KeptPrices::Part& part, std::array<std::int64_t, 12>::iterator to) {
  const StageContents& held = part.contents;
  const int flags = (held.embedding ? 1 : 0) + (held.head ? 2 : 0) + (held.tied_copy ? 4 : 0) +
                    (held.mtp_embedding ? 8 : 0) + 16 * static_cast<int>(part.kind) + (held.encoder_begin ? 256 : 0) +
                    (held.encoder_end ? 512 : 0) + 1024 * held.encoder_layers;
  const auto packed = [](int high, int low) { return (std::int64_t{high} << 32) + low; };
  *to++ = packed(flags, part.layer);
  *to++ = packed(held.layers, held.expert_layers);
  *to++ = packed(held.first, held.mtp_layers);
  *to++ = packed((held.vocabulary_ranks << 8) + held.losses, part.slice.sequences);
  *to++ = part.slice.tokens;
  *to++ = part.slice.context;
  return to;
}

}  // namespace

std::size_t KeptPrices::Hash::operator()(const Key& key) const { return boost::hash_range(key.begin(), key.end()); }

double KeptPrices::of(const Part& part, const std::function<double()>& compute) {
  if (part.slice.packed != nullptr) return compute();
  Key key{};
  add(part, key.begin());
  return of(key, compute);
}

double KeptPrices::of(const Part& forward, const Part& backward, const std::function<double()>& compute) {
  if (forward.slice.packed != nullptr || backward.slice.packed != nullptr) return compute();
  Key key{};
  add(backward, add(forward, key.begin()));
  return of(key, compute);
}

double KeptPrices::of(const Key& key, const std::function<double()>& compute) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = seconds_.find(key); found != seconds_.end()) return found->second;
  }
  const double seconds = compute();
  const std::lock_guard lock(mutex_);
  return seconds_.try_emplace(key, seconds).first->second;
}

std::shared_ptr<KeptPrices> PriceStore::of(const Training& training, const Placement& placement, bool again) {
  Entry entry;
  entry.training = training;
  Training& key = entry.training;
  key.dp = 1;
  if (key.vocabulary_barriers == 0) key.pp = 1;
  key.micro_batch = 1;  // slices have their sequences
  key.pipeline_before_data = key.distributed_optimizer = false;
  key.zero = 1;
  key.dp_shard = 0;
  key.overlap_grad_reduce = key.overlap_param_gather = false;
  key.optimizer_offload = 0;
  if (!again) {
    key.recompute = Training::Recompute::none;
    key.recompute_modules = {};
    key.recompute_layers = 0;
  }
  auto group = entry.groups.begin();
  for (const Reach& reach : {placement.tensor_group(), placement.context_group(), placement.expert_group(),
                             placement.expert_tensor_group()}) {
    for (const int number : {reach.size, reach.nodes, reach.per_node}) *group++ = number;
  }
  *group = placement.used_per_node();
  const auto known = std::find_if(entries_.rbegin(), entries_.rend(), [&](const Entry& other) {
    return other.groups == entry.groups && other.training == entry.training;
  });
  if (known == entries_.rend()) {
    entry.prices = std::make_shared<KeptPrices>();
    entries_.push_back(std::move(entry));
  } else {
    std::rotate(std::prev(known.base()), known.base(), entries_.end());
  }
  return entries_.back().prices;
}

void AnalyticCost::keep_in(PriceStore& store) {
  if (!kept_) return;
  kept_ = store.of(training_, placement_, false);
  kept_again_ = store.of(training_, placement_, true);
}

double AnalyticCost::layer_s(OpKind kind, bool again, int layer, const SliceShape& slice) const {
  return (again ? kept_again_ : kept_)->of({.kind = kind, .layer = layer, .slice = slice}, [&] {
    return computed_layer_s(kind, again, layer, slice);
  });
}

double AnalyticCost::compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const {
  const SliceShape size = slice_shape(shape, slice);
  if (!kept_) return computed_s(kind, stage, size);
  return kept_->of({.kind = kind, .contents = priced_[stage], .slice = size},
                   [&] { return computed_s(kind, stage, size); });
}

double AnalyticCost::joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice,
                             OpKind backward, int backward_stage, const MicrobatchShape& backward_shape,
                             int backward_slice) const {
  const auto compute = [&] {
    return computed_joint_s(forward_stage, forward_shape, forward_slice, backward, backward_stage, backward_shape,
                            backward_slice);
  };
  if (!kept_) return compute();
  return kept_->of(
      {.contents = priced_[forward_stage], .slice = slice_shape(forward_shape, forward_slice)},
      {.kind = backward, .contents = priced_[backward_stage], .slice = slice_shape(backward_shape, backward_slice)},
      compute);
}

double AnalyticCost::recompute_s(int stage, const MicrobatchShape& shape, int slice) const {
  const SliceShape size = slice_shape(shape, slice);
  if (training_.recompute == Training::Recompute::none) return 0;
  if (!kept_) return computed_recompute_s(stage, size);
  return kept_again_->of({.contents = contents(stage), .slice = size},
                         [&] { return computed_recompute_s(stage, size); });
}

}  // namespace sluice::model

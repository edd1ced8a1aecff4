#include "exec/plan/woven_steps.h"

#include <algorithm>
#include <utility>

namespace sluice::exec {
namespace {

PartPass pass_of(OpKind kind) {
  if (kind == OpKind::F) return PartPass::forward;
  return kind == OpKind::W ? PartPass::weight_gradient : PartPass::input_gradient;
}

class WovenStepList {
 public:
  WovenStepList(const std::array<BlockOp, 2>& ops, bool weights_apart) : ops_(ops), weights_apart_(weights_apart) {}

  // Adds a part of layer `layer`, in the order of its pass, unless its op does not have it.
  void add(const PassPart& part, int layer) {
    const bool forward = part.pass == OpKind::F;
    const int op = (ops_[0].op == OpKind::F) == forward ? 0 : 1;
    const StageContents& stage = ops_[static_cast<std::size_t>(op)].stage;
    if (layer >= stage.layers) return;
    if (part.pass == OpKind::W && ops_[static_cast<std::size_t>(op)].op != OpKind::B) return;
    const int in_stage = forward ? layer : stage.layers - 1 - layer;
    const bool dense = in_stage < stage.layers - stage.expert_layers;
    if (dense && part.part != LayerPart::attention) return;
    WovenStep step{.op = op, .part = {pass_of(part.pass), part.part, in_stage}, .layer = layer};
    int& pending = pending_[forward ? 0 : 1];
    int& need = computed_[forward ? 0 : 1];
    if (communicates(part.part)) {
      step.exchanges = true;
      pending = static_cast<int>(exchanges_.size());
      const bool overwrites = !forward && part.part == LayerPart::combine;
      exchanges_.push_back({step, overwrites ? std::max(need, experts_read_) : need});
      return;
    }
    if (part.pass != OpKind::W) step.after = std::exchange(pending, -1);
    computes_.push_back(step);
    const auto computed = static_cast<int>(computes_.size());
    if (part.pass != OpKind::W || !weights_apart_) need = computed;
    if (part.pass == OpKind::W && part.part == LayerPart::experts) experts_read_ = computed;
  }

  std::vector<WovenStep> merge() const {
    std::vector<WovenStep> steps;
    std::size_t next = 0;
    for (std::size_t computed = 0; computed <= computes_.size(); ++computed) {
      if (computed > 0) steps.push_back(computes_[computed - 1]);
      for (; next < exchanges_.size() && exchanges_[next].need <= static_cast<int>(computed); ++next) {
        steps.push_back(exchanges_[next].step);
      }
    }
    return steps;
  }

 private:
  struct Exchange {
    WovenStep step;
    int need = 0;  // number of computing steps before it
  };

  const std::array<BlockOp, 2>& ops_;
  bool weights_apart_;                     // else a weight gradient is part of the input gradient before it
  std::array<int, 2> pending_ = {-1, -1};  // of F and of the backward: an exchange whose result the next part needs
  std::array<int, 2> computed_ = {0, 0};   // and the number of computing steps up to the last one that it needs
  int experts_read_ = 0;                   // the same up to the last weight gradient of experts
  std::vector<WovenStep> computes_;
  std::vector<Exchange> exchanges_;
};

}  // namespace

std::vector<WovenStep> woven_steps(const Weave& weave, const std::array<BlockOp, 2>& ops) {
  const bool apart = weave.has_weight_parts();
  WovenStepList list(ops, apart);
  for (int layer = 0; layer < std::max(ops[0].stage.layers, ops[1].stage.layers); ++layer) {
    for (const PassPart& part : weave.order) {
      list.add(part, layer);
      if (!apart && part.pass == OpKind::B && !communicates(part.part)) list.add({part.part, OpKind::W}, layer);
    }
  }
  return list.merge();
}

}  // namespace sluice::exec

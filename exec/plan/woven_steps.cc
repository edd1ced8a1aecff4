#include "exec/plan/woven_steps.h"

#include <algorithm>

namespace sluice::exec {
namespace {

PartPass pass_of(OpKind kind) {
  if (kind == OpKind::F) return PartPass::forward;
  return kind == OpKind::W ? PartPass::weight_gradient : PartPass::input_gradient;
}

class WovenStepList {
 public:
  explicit WovenStepList(const std::array<BlockOp, 2>& ops) : ops_(ops) {}

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
    if (communicates(part.part)) {
      step.exchanges = true;
      pending = exchanges_++;
    } else if (part.pass != OpKind::W) {
      step.after = pending;
      pending = -1;
    }
    steps_.push_back(step);
  }
  std::vector<WovenStep> take() { return std::move(steps_); }

 private:
  const std::array<BlockOp, 2>& ops_;
  int exchanges_ = 0;
  std::array<int, 2> pending_ = {-1, -1};  // of F and of the backward: an exchange whose result the next part needs
  std::vector<WovenStep> steps_;
};

}  // namespace

std::vector<WovenStep> woven_steps(const Weave& weave, const std::array<BlockOp, 2>& ops) {
  WovenStepList list(ops);
  const bool apart = weave.has_weight_parts();
  for (int layer = 0; layer < std::max(ops[0].stage.layers, ops[1].stage.layers); ++layer) {
    for (const PassPart& part : weave.order) {
      list.add(part, layer);
      if (!apart && part.pass == OpKind::B && !communicates(part.part)) list.add({part.part, OpKind::W}, layer);
    }
  }
  return list.take();
}

}  // namespace sluice::exec

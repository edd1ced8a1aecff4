#pragma once

#include <array>
#include <vector>

#include "kernels/stage.h"
#include "model/schedule/op.h"
#include "model/weave/weave.h"
#include "model/workload/transformer.h"

namespace sluice::exec {

// One op of a joint block.
struct BlockOp {
  OpKind op = OpKind::F;
  StageContents stage;
};

// The next step of a worker in a woven block.
struct WovenStep {
  int op = 0;  // index of its op in the block
  StagePart part;
  int layer = 0;           // of the part, in the order of its pass: in a backward, 0 is the last layer of the stage
  bool exchanges = false;  // dispatch and combine, on the communication lane
  int after = -1;          // the exchange that must be complete, by its number in the block, from 0; -1: none
};

// Returns the parts of an F and of a B or I in the order of `weave`: layer i of both, each in the order of its pass,
// then the layers that only one of them has (weave_block predicts the same order). The weight gradients of a B follow
// their input gradients if the weave does not have them; an I has none. Dense layers have one part per pass, attention.
// Steps without `exchanges` keep the order of the weave, and so do exchanges among themselves; an exchange is listed
// directly after the step and the exchange that it waits for. As in weave_block, an exchange waits for the previous
// part of its pass, and here also for the weight gradients of the experts of the layer before, whose buffers it
// overwrites.
std::vector<WovenStep> woven_steps(const Weave& weave, const std::array<BlockOp, 2>& ops);

}  // namespace sluice::exec

#pragma once

#include "model/namespaces.h"

namespace sluice::exec {

// Dynamic loss scale for float16, which keeps gradients from underflowing: halved when the gradients of a step overflow
// (the step is skipped), doubled after many steps without overflow (Micikevicius et al. 2018, 3.2). All workers have
// the same scale, since the norm that decides is the same.
class LossScale {
 public:
  // `dynamic`: for float16; otherwise the scale is constantly 1.
  explicit LossScale(bool dynamic) : dynamic_(dynamic), scale_(dynamic ? kFirst : 1) {}
  double value() const { return scale_; }
  // Updates the scale after an optimizer step. Returns false if the gradients overflow at the minimum scale.
  bool update(bool overflowed);

 private:
  static constexpr double kFirst = 65536;
  static constexpr int kStepsToDouble = 1000;
  bool dynamic_;
  double scale_;
  int good_steps_ = 0;
};

}  // namespace sluice::exec

#pragma once

#include "model/namespaces.h"

namespace sluice::exec {

// The scale that losses of float16 are multiplied with, so that gradients do not vanish: halved when a step's gradients
// overflow (that step changes nothing), doubled after many that did not (Micikevicius et al. 2018, 3.2). All workers
// come to the same one, since the norm that they decide by is the same.
class LossScale {
 public:
  // `dynamic`: of float16; else it is 1 and stays.
  explicit LossScale(bool dynamic) : dynamic_(dynamic), scale_(dynamic ? kFirst : 1) {}
  double value() const { return scale_; }
  // After an optimizer step. False: it cannot go lower, so what overflows is not its fault.
  bool update(bool overflowed);

 private:
  static constexpr double kFirst = 65536;
  static constexpr int kStepsToDouble = 1000;
  bool dynamic_;
  double scale_;
  int good_steps_ = 0;
};

}  // namespace sluice::exec

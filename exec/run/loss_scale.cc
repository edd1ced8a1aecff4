#include "exec/run/loss_scale.h"

namespace sluice::exec {

bool LossScale::update(bool overflowed) {
  if (!dynamic_) return !overflowed;
  if (overflowed) {
    good_steps_ = 0;
    if (scale_ <= 1) return false;
    scale_ /= 2;
  } else if (++good_steps_ == kStepsToDouble) {
    good_steps_ = 0;
    scale_ *= 2;
  }
  return true;
}

}  // namespace sluice::exec

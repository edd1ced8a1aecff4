#include "model/graph/lowering_check.h"

#include <string>

#include "model/errors.h"

namespace sluice::model {

void check_options(const Schedule& schedule, const LoweringOptions& options) {
  const bool flush = schedule.weight_policy() == WeightPolicy::flush;
  if (flush && schedule.num_batches() > 1) {
    throw InputError("a schedule with a flush has one batch");
  }
  if (!flush && options.global_norm) {
    throw InputError(schedule.family() + ": a global gradient norm needs a schedule with a flush");
  }
  if (!flush && options.overlap_param_gather) {
    throw InputError(
        schedule.family() +
        ": gathers of parameters before the first forward (overlap_param_gather, zero 3) need a schedule with "
        "a flush");
  }
  const bool shared = options.tied_embedding || options.mtp_stage > 0;
  if (schedule.weight_policy() == WeightPolicy::stashed && shared && schedule.num_ranks() > 1) {
    throw InputError(schedule.family() +
                     ": steps after every backward, so embedding and head cannot share a weight across ranks");
  }
}

}  // namespace sluice::model

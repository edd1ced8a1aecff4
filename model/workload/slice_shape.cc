#include "model/workload/slice_shape.h"

#include "model/schedule/schedule.h"

namespace sluice::model {

SliceShape slice_shape(const MicrobatchShape& microbatch, int slice) {
  return {.sequences = microbatch.sequences,
          .tokens = microbatch.slice_lengths[slice],
          .context = microbatch.context(slice)};
}

}  // namespace sluice::model

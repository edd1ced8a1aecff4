#include "model/workload/slice_shape.h"

#include <algorithm>

#include "model/schedule/schedule.h"

namespace sluice::model {

SliceShape slice_shape(const MicrobatchShape& microbatch, int slice) {
  return {.sequences = microbatch.sequences,
          .tokens = microbatch.slice_lengths[slice],
          .context = microbatch.context(slice),
          .packed = microbatch.documents.empty() ? nullptr : &microbatch.documents};
}

std::int64_t SliceShape::most_keys() const {
  std::int64_t most = 0;
  for_each_document([&](const DocumentPart& part) { most = std::max(most, part.context + part.tokens); });
  return most;
}

}  // namespace sluice::model

#include "model/workload/slice_shape.h"

#include <algorithm>

#include "model/schedule/schedule.h"

namespace sluice::model {

SliceShape slice_shape(const MicrobatchShape& microbatch, int slice) {
  return {.sequences = microbatch.sequences,
          .tokens = microbatch.slice_lengths[slice],
          .context = microbatch.context(slice),
          .packed = microbatch.documents.empty() ? nullptr : &microbatch};
}

std::vector<DocumentPart> SliceShape::documents() const {
  std::vector<DocumentPart> out;
  std::int64_t begin = 0;
  for (const std::int64_t length : packed->documents) {
    const std::int64_t from = std::max(begin, context);
    const std::int64_t to = std::min(begin + length, context + tokens);
    if (from < to) out.push_back({.tokens = to - from, .context = from - begin});
    begin += length;
  }
  return out;
}

std::int64_t SliceShape::most_keys() const {
  if (packed == nullptr) return context + tokens;
  std::int64_t most = 0;
  for (const DocumentPart& part : documents()) most = std::max(most, part.context + part.tokens);
  return most;
}

}  // namespace sluice::model

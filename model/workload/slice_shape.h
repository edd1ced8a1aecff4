// Public header.
#pragma once

#include <cstdint>

#include "model/namespaces.h"

namespace sluice::model {

struct MicrobatchShape;

// One slice of a microbatch: `tokens` of each of its sequences, after a prefix of `context` tokens.
struct SliceShape {
  int sequences = 1;
  std::int64_t tokens = 1;
  std::int64_t context = 0;

  std::int64_t rows() const { return sequences * tokens; }
  friend bool operator==(const SliceShape&, const SliceShape&) = default;
};

// Returns the shape of slice `slice` of a microbatch.
SliceShape slice_shape(const MicrobatchShape& microbatch, int slice);

}  // namespace sluice::model

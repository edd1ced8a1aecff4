// Public header.
#pragma once

#include <cstdint>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

struct MicrobatchShape;

// `tokens` of a document after a prefix of `context` tokens of it.
struct DocumentPart {
  std::int64_t tokens = 1;
  std::int64_t context = 0;
};

// One slice of a microbatch: `tokens` of each of its sequences, after a prefix of `context` tokens.
struct SliceShape {
  int sequences = 1;
  std::int64_t tokens = 1;
  std::int64_t context = 0;
  const MicrobatchShape* packed = nullptr;  // the microbatch, if its sequence packs documents

  std::int64_t rows() const { return sequences * tokens; }
  friend bool operator==(const SliceShape&, const SliceShape&) = default;

  // The documents, or their parts, in a slice of a packed sequence.
  std::vector<DocumentPart> documents() const;
  // The longest reach of a token: tokens of its document up to the end of the slice.
  std::int64_t most_keys() const;
  // Sums what attention costs, f(tokens, context), over all sequences or documents.
  template <typename Cost>
  double sum_over_documents(const Cost& f) const {
    if (packed == nullptr) return sequences * f(static_cast<double>(tokens), static_cast<double>(context));
    double sum = 0;
    for (const DocumentPart& part : documents()) {
      sum += f(static_cast<double>(part.tokens), static_cast<double>(part.context));
    }
    return sum;
  }
};

// Returns the shape of slice `slice` of a microbatch.
SliceShape slice_shape(const MicrobatchShape& microbatch, int slice);

}  // namespace sluice::model

// Public header.
#pragma once

#include <cstdint>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

struct MicrobatchShape;

// `tokens` of a document after a prefix of `context` tokens of it, from token `first` of a slice on.
struct DocumentPart {
  std::int64_t tokens = 1;
  std::int64_t context = 0;
  std::int64_t first = 0;
};

// One slice of a microbatch: `tokens` of each of its sequences, after a prefix of `context` tokens.
struct SliceShape {
  int sequences = 1;
  std::int64_t tokens = 1;
  std::int64_t context = 0;
  const std::vector<std::int64_t>* packed = nullptr;  // lengths of the documents that the microbatch's sequence packs

  std::int64_t rows() const { return sequences * tokens; }
  friend bool operator==(const SliceShape&, const SliceShape&) = default;

  // Calls visit(DocumentPart) for each document, or part of one, in a slice of a sequence; without packed documents the
  // sequence is one.
  template <typename Visit>
  void for_each_document(const Visit& visit) const {
    if (packed == nullptr) return visit(DocumentPart{tokens, context, 0});
    std::int64_t begin = 0;
    for (const std::int64_t length : *packed) {
      const std::int64_t from = std::max(begin, context);
      const std::int64_t to = std::min(begin + length, context + tokens);
      if (from < to) visit(DocumentPart{to - from, from - begin, from - context});
      begin += length;
    }
  }
  // The longest reach of a token: tokens of its document up to the end of the slice.
  std::int64_t most_keys() const;
  // Sums what attention costs, f(tokens, context), over all sequences or documents.
  template <typename Cost>
  double sum_over_documents(const Cost& f) const {
    double sum = 0;
    for_each_document([&](const DocumentPart& part) {
      sum += f(static_cast<double>(part.tokens), static_cast<double>(part.context));
    });
    return sequences * sum;
  }
};

// Returns the shape of slice `slice` of a microbatch.
SliceShape slice_shape(const MicrobatchShape& microbatch, int slice);

}  // namespace sluice::model

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/slicing/slice_times.h"

namespace sluice::model {

// The measured time of one chunk of a prompt on one cell of a pipeline.
struct MeasuredChunk {
  std::int64_t tokens = 1;
  std::int64_t context = 0;  // tokens before it
  double seconds = 0;
};

// t(u, n) = c + g u + b n + a (2 u n + n^2) for n tokens after a prefix of u: launches, reads of keys and values,
// weights and attention; none is negative. Chunks of one size determine b and a alone: c and g are then 0.
struct ChunkTimes {
  double fixed_s = 0;
  double per_context_s = 0;
  double per_token_s = 0;
  double attention_s = 0;  // a
  double mean_error = 0;   // |predicted / measured - 1|
  double max_error = 0;
  std::int64_t longest = 0;  // end of the last measured chunk, in tokens
  bool one_size = false;     // all chunks have the same number of tokens

  double seconds(std::int64_t tokens, std::int64_t context) const;
};

// The fit with the least squares of relative errors. Throws InputError, naming `source`, if there is no chunk or no
// time.
ChunkTimes fit_chunk_times(const std::vector<MeasuredChunk>& chunks, const std::string& source);

// Reads a table with the columns tokens, context and seconds, of one cell each; with a column ranks, the times are of a
// pipeline with that many cells, and are scaled to one with `cells`. Throws InputError naming row and column.
std::vector<MeasuredChunk> parse_chunks(std::string_view text, const std::string& source, int cells);

}  // namespace sluice::model

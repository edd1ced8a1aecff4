#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/namespaces.h"

namespace sluice::exec {

// Tokens to train on. A sample is a window of sequence_length + 1 tokens; which one follows from (seed, step, index in
// the batch) alone, so that a run reads the same however its batch is cut, on however many ranks, and after a resume.
class TokenSource {
 public:
  // The bytes of a file as tokens. Throws InputError naming it if it cannot be read or is shorter than a window, and
  // for a vocabulary that has no place for 256 tokens.
  static TokenSource of_text(const std::string& path, int vocabulary, std::int64_t sequence_length, std::uint64_t seed);

  // A Markov chain that follows from the seed: each token has four that may come next, with chances 1/2, 1/4, 1/8 and
  // 1/8. A model that has learnt it has a loss of 1.75 ln 2 = 1.213 nats a token, or less where some of a token's four
  // are the same; before, ln(vocabulary). Throws InputError for a vocabulary below 2.
  static TokenSource synthetic(int vocabulary, std::int64_t sequence_length, std::uint64_t seed);

  int vocabulary() const { return vocabulary_; }
  std::int64_t sequence_length() const { return sequence_length_; }

  // Of `sequences` samples from index `first_sequence` of the batch of `step`, `num_tokens` tokens each from
  // `first_token` on, sequence by sequence; `targets` are the tokens that come next. Both hold sequences x num_tokens.
  // Allocates nothing. Precondition: first_token + num_tokens <= sequence_length.
  void fill(std::int64_t step, std::int64_t first_sequence, int sequences, std::int64_t first_token,
            std::int64_t num_tokens, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

 private:
  TokenSource(int vocabulary, std::int64_t sequence_length, std::uint64_t seed);

  std::int32_t successor(std::int32_t token, std::uint64_t random) const;
  void fill_synthetic(std::uint64_t sample, std::int64_t first_token, std::span<std::int32_t> tokens,
                      std::span<std::int32_t> targets) const;

  int vocabulary_;
  std::int64_t sequence_length_;
  std::uint64_t seed_;
  std::string text_;  // empty: synthetic
};

}  // namespace sluice::exec

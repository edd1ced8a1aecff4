#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/namespaces.h"

namespace sluice::exec {

// Training data. A sample is a window of sequence_length + 1 tokens; it depends on (seed, step, index in the batch)
// only, so that a run reads the same data however its batch is partitioned, on any number of ranks, and after a resume.
class TokenSource {
 public:
  // Uses the bytes of a file as tokens. Throws InputError naming it if it cannot be read or is shorter than a window,
  // or if the vocabulary is smaller than 256.
  static TokenSource of_text(const std::string& path, int vocabulary, std::int64_t sequence_length, std::uint64_t seed);

  // Samples a Markov chain generated from the seed: each token has four successors, with probabilities 1/2, 1/4, 1/8
  // and 1/8. The minimum loss is 1.75 ln 2 = 1.213 nats per token, or less where some of the four successors coincide;
  // the initial loss is ln(vocabulary). Throws InputError for a vocabulary below 2.
  static TokenSource synthetic(int vocabulary, std::int64_t sequence_length, std::uint64_t seed);

  int vocabulary() const { return vocabulary_; }
  std::int64_t sequence_length() const { return sequence_length_; }

  // Fills `tokens` with `num_tokens` tokens from `first_token` on of each of `sequences` samples, beginning with index
  // `first_sequence` of the batch of `step`, and `targets` with their successors; both [sequences, num_tokens].
  // Allocates no memory. Precondition: first_token + num_tokens <= sequence_length.
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

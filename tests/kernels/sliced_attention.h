#pragma once

#include <cstddef>
#include <ostream>
#include <vector>

#include "kernels/device.h"

namespace sluice::test {

// Sequences cut into slices, and attention of some of the slices.
struct AttentionCase {
  Element element = Element::bfloat16;
  int head_dim = 64;
  int heads = 1;
  int kv_heads = 1;
  int sequences = 1;
  std::vector<int> slices;    // tokens of each
  std::size_t first_run = 0;  // slices from this one on are run, the earlier ones are context alone
  double magnitude = 1;       // of queries

  int tokens() const { return first_token(slices.size()); }
  int first_token(std::size_t slice) const;
};
std::ostream& operator<<(std::ostream& out, const AttentionCase& of);

// Rows of all tokens: [sequences][tokens][width].
struct TokenRows {
  TokenRows(const AttentionCase& of, int row_width);
  double* row(int sequence, int token) { return at.data() + index(sequence, token); }
  const double* row(int sequence, int token) const { return at.data() + index(sequence, token); }
  std::size_t index(int sequence, int token) const {
    return (static_cast<std::size_t>(sequence) * static_cast<std::size_t>(tokens) + static_cast<std::size_t>(token)) *
           static_cast<std::size_t>(width);
  }
  int tokens;
  int width;
  std::vector<double> at;
};

// What goes in and comes out, or the gradients of it.
struct AttentionNumbers {
  explicit AttentionNumbers(const AttentionCase& of);
  TokenRows queries;
  TokenRows keys;
  TokenRows values;
  TokenRows out;
  TokenRows log_sums;  // one a head
};

// Normal numbers as 16 bits have them; `out` is the gradient of the output.
AttentionNumbers attention_inputs(const AttentionCase& of);

// By the book, in double: writes out and log_sums of `results`, and adds to all gradients but that of `out`.
void naive_attention(const AttentionCase& of, const AttentionNumbers& inputs, AttentionNumbers& results,
                     AttentionNumbers& gradients);

// The same by flash attention on a device, slice by slice: forward from the first to the last, backward from the last
// to the first, into gradients of keys and values that hold something before. Fails the test if anything is written
// beside what is to be.
void flash_attention(const AttentionCase& of, const AttentionNumbers& inputs, Device& device, AttentionNumbers& results,
                     AttentionNumbers& gradients);

// Fails the test unless both come to the same, as far as 16 bits go.
void expect_flash_as_naive(const AttentionCase& of, Device& device);

// ||a - b|| / ||b||; a number that is not finite makes it so. Where there is but one key, the gradients of queries and
// keys are 0: then ||a - b|| is to be small beside numbers of the order of 1.
double distance(const TokenRows& a, const TokenRows& b);

}  // namespace sluice::test

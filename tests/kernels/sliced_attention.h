#pragma once

#include <cstddef>
#include <ostream>
#include <vector>

#include "kernels/attention_sizes.h"
#include "kernels/device.h"

namespace sluice::test {

// Sequences split into slices, and attention of some of the slices.
struct AttentionCase {
  Element element = Element::bfloat16;
  int head_dim = 64;
  int heads = 1;
  int kv_heads = 1;
  int sequences = 1;
  std::vector<int> slices;    // number of tokens per slice
  std::size_t first_run = 0;  // first slice that is run; earlier ones are context only
  double magnitude = 1;       // of queries
  bool accumulate = true;     // into the gradients of keys and values
  bool in_rows = false;       // gradients of keys and values in rows with those of queries; one slice
  AttentionChoice choice = AttentionChoice::gemm;

  int tokens() const { return first_token(slices.size()); }
  int first_token(std::size_t slice) const;
};
std::ostream& operator<<(std::ostream& out, const AttentionCase& of);

// One row per token: [sequences][tokens][width].
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

// Inputs and outputs of attention, or their gradients.
struct AttentionNumbers {
  explicit AttentionNumbers(const AttentionCase& of);
  TokenRows queries;
  TokenRows keys;
  TokenRows values;
  TokenRows out;
  TokenRows log_sums;  // one per head
};

// Returns normally distributed inputs, rounded to 16 bits; `out` is the gradient of the output.
AttentionNumbers attention_inputs(const AttentionCase& of);

// Naive attention in double precision: writes out and log_sums of `results`, and accumulates all gradients but that of
// `out`.
void naive_attention(const AttentionCase& of, const AttentionNumbers& inputs, AttentionNumbers& results,
                     AttentionNumbers& gradients);

// The same with of.choice on a device, slice by slice: forward from the first to the last, backward from the last
// to the first, with gradients of keys and values that are not zero before. Fails the test if a kernel writes
// elsewhere.
void device_attention(const AttentionCase& of, const AttentionNumbers& inputs, Device& device,
                      AttentionNumbers& results, AttentionNumbers& gradients);

// Fails the test unless both agree to 16-bit precision.
void expect_attention_equals_naive(const AttentionCase& of, Device& device);

// Returns ||a - b|| / ||b||, which is not finite if any number is not. With a single key, the gradients of queries and
// keys are 0; returns ||a - b|| then.
double distance(const TokenRows& a, const TokenRows& b);

}  // namespace sluice::test

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention_sizes.h"
#include "kernels/device.h"

namespace sluice::kernels {

// What a plan of AttentionLibrary depends on: attention of one slice whose keys are one block. There are sizes.context
// + sizes.tokens keys per sequence; the last query reads all of them. Distances are in elements, in rows of heads:
// element [sequence, token, head, i] is at sequence * sequence_stride + token * stride + head * head_dim + i. Queries,
// outputs and their gradients without a stride are dense.
struct AttentionProblem {
  AttentionSizes sizes;
  Element element = Element::bfloat16;
  std::int64_t key_stride = 0;  // of keys and values
  std::int64_t key_sequence_stride = 0;
  // Of the backward pass alone, else 0.
  std::int64_t queries_gradient_stride = 0;
  std::int64_t keys_gradient_stride = 0;  // of the gradients of keys and values, in 16 bits
  std::int64_t keys_gradient_sequence_stride = 0;

  std::int64_t keys() const { return sizes.context + sizes.tokens; }
  auto operator<=>(const AttentionProblem&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Tensors on the device, aligned to 16 bytes. `log_sums` is dense [sequences, heads, tokens].
struct LibraryForward {
  const void* queries = nullptr;
  const void* keys = nullptr;
  const void* values = nullptr;
  void* out = nullptr;
  float* log_sums = nullptr;  // ln of the sum of exp(scaled score)
  std::byte* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};
struct LibraryBackward {
  const void* queries = nullptr;
  const void* keys = nullptr;
  const void* values = nullptr;
  const void* out = nullptr;
  const void* out_gradient = nullptr;
  const float* log_sums = nullptr;
  void* queries_gradient = nullptr;  // all three are written
  void* keys_gradient = nullptr;
  void* values_gradient = nullptr;
  std::byte* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};

// Causal attention by a library of the device (cuDNN). Never throws for what the library cannot do: the caller then
// uses its own kernels. Used by the thread of its device.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  // Enqueue one pass. Return false if the library is missing, does not support the problem, needs more workspace than
  // given, or fails; nothing is enqueued then. The first call for a problem builds its plan, which takes a second. The
  // backward pass of several sequences is run only if the forward pass always was, because of its log sums.
  virtual bool forward(const AttentionProblem& problem, const LibraryForward& call, Stream& stream) = 0;
  virtual bool backward(const AttentionProblem& problem, const LibraryBackward& call, Stream& stream) = 0;
  // Returns whether any forward pass of these sizes was enqueued.
  virtual bool has_run(const AttentionSizes& sizes) const = 0;
  // Returns one line for each reason why a pass was not run, without repetitions.
  virtual const std::vector<std::string>& notes() const = 0;
};

// Returns the workspace, in bytes, that is planned for either pass: twice the gradient of queries in float32 (on sm_80
// cuDNN has one of its own), one float per row and head, with grouped heads the gradients of keys and values of every
// query head, and 64 KiB. cuDNN 9.12 to 9.28 need no more (tests/exec/device/cudnn_plans_test.cc).
inline std::int64_t library_workspace_bytes(const AttentionSizes& sizes) {
  constexpr std::int64_t kRest = std::int64_t{64} << 10;
  const std::int64_t keys = sizes.context + sizes.tokens;
  const std::int64_t of_heads = sizes.heads == sizes.kv_heads ? 0 : 4 * keys * sizes.sequences * sizes.query_width();
  return 8 * sizes.rows() * sizes.query_width() + 4 * sizes.rows() * sizes.heads + of_heads + kRest;
}

}  // namespace sluice::kernels

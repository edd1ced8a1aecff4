#pragma once

#include <compare>
#include <cstdint>

#include "model/namespaces.h"

namespace sluice::kernels {

// Which implementation computes attention on a device: cuDNN where it can, else GEMMs; or GEMMs.
enum class AttentionChoice : std::uint8_t { cudnn, gemm };

// Sizes of causal attention of one slice's queries over the keys of its prefix and its own; heads / kv_heads query
// heads use one key head: query head i reads key head i / (heads / kv_heads) (Ainslie et al. 2023). Scores are scaled
// by 1 / sqrt(head_dim).
struct AttentionSizes {
  int sequences = 1;
  int tokens = 0;  // per sequence in this slice
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::int64_t context = 0;  // length of the prefix, in tokens

  std::int64_t rows() const { return std::int64_t{sequences} * tokens; }  // row = sequence * tokens + token
  std::int64_t query_width() const { return std::int64_t{heads} * head_dim; }
  std::int64_t key_width() const { return std::int64_t{kv_heads} * head_dim; }
  auto operator<=>(const AttentionSizes&) const = default;  // NOLINT(modernize-use-nullptr)
};

}  // namespace sluice::kernels

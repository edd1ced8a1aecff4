#pragma once

#include <cstdint>
#include <vector>

#include "kernels/stage.h"

namespace sluice::kernels {

// Sizes on one tensor-parallel rank.
struct RankSizes {
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t query_width = 0;    // heads x head_dim
  std::int64_t key_width = 0;      // kv_heads x head_dim: of the keys, and as much of the values
  std::int64_t qkv_width = 0;      // of queries, keys and values together
  std::int64_t ffn = 0;            // columns into the MLP's last matrix
  std::int64_t up_width = 0;       // columns of its first: ffn, or gate and up beside each other
  std::int64_t vocab_columns = 0;  // with padding
  std::int64_t vocab_rows = 0;     // without: the first so many of them
  std::int64_t first_token = 0;    // of those rows
};

// Throws InputError for what these kernels cannot compute.
RankSizes rank_sizes(const StageSpec& spec);

// Where the weights of a layer begin, in elements; -1 for those that the model does not have.
struct LayerOffsets {
  std::int64_t norm1_gain = -1;
  std::int64_t norm1_bias = -1;
  std::int64_t qkv = -1;  // [qkv_width, hidden]
  std::int64_t qkv_bias = -1;
  std::int64_t output = -1;  // [hidden, query_width]
  std::int64_t output_bias = -1;
  std::int64_t norm2_gain = -1;
  std::int64_t norm2_bias = -1;
  std::int64_t up = -1;  // [up_width, hidden]: with a gate that first
  std::int64_t up_bias = -1;
  std::int64_t down = -1;  // [hidden, ffn]
  std::int64_t down_bias = -1;
};

// All matrices are [outputs, inputs], as PyTorch has them.
struct WeightOffsets {
  std::vector<Parameter> parameters;
  std::vector<LayerOffsets> layers;
  std::int64_t word = -1;      // [vocab_columns, hidden]
  std::int64_t position = -1;  // [positions, hidden]
  std::int64_t final_gain = -1;
  std::int64_t final_bias = -1;
  std::int64_t head = -1;  // [vocab_columns, hidden]; -1 where it is an embedding that lies elsewhere
  std::int64_t elements = 0;
};
WeightOffsets weight_offsets(const StageSpec& spec, const RankSizes& sizes);

}  // namespace sluice::kernels

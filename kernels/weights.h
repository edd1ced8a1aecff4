#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_sizes.h"
#include "kernels/stage.h"

namespace sluice::kernels {

// Sizes of the experts of a layer, per rank.
struct ExpertSizes {
  std::int64_t count = 0;      // of a layer; 0: none
  std::int64_t per_token = 0;  // k
  std::int64_t first = 0;      // of this rank
  std::int64_t local = 0;      // number on this rank
  std::int64_t ffn = 0;
  std::int64_t up_width = 0;    // ffn, or 2 ffn with a gate
  std::int64_t shared_ffn = 0;  // per tensor-parallel rank, as a dense MLP; 0: none
  std::int64_t shared_up_width = 0;
  std::int64_t ranks = 1;  // over which the experts are distributed
};

// Sizes per tensor-parallel rank.
struct RankSizes {
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t query_width = 0;    // heads x head_dim
  std::int64_t key_width = 0;      // kv_heads x head_dim, of keys and of values
  std::int64_t qkv_width = 0;      // query_width + 2 key_width
  std::int64_t ffn = 0;            // input columns of the MLP's last matrix
  std::int64_t up_width = 0;       // output columns of its first matrix: ffn, or 2 ffn with a gate
  std::int64_t vocab_columns = 0;  // including padding
  std::int64_t vocab_rows = 0;     // without padding: the first vocab_rows of vocab_columns
  std::int64_t first_token = 0;    // token of the first of these rows
  std::int64_t tensor_parallel = 1;
  ExpertSizes experts;

  // Maximum number of rows of a slice that this rank routes, and that its experts receive: each tensor-parallel rank of
  // a replica routes its shard of the rows, and all of them may choose experts of this rank.
  std::int64_t most_own_rows(std::int64_t rows) const { return (rows + tensor_parallel - 1) / tensor_parallel; }
  std::int64_t most_expert_rows(std::int64_t rows) const;
};

// Throws InputError for models that these kernels do not support.
RankSizes rank_sizes(const StageSpec& spec);
AttentionSizes attention_sizes(const RankSizes& sizes, const SliceShape& shape);

// Offsets of a layer's weights, in elements; those of a dense MLP or of experts; -1 for those that the model does not
// have.
struct LayerOffsets {
  std::int64_t norm1_gain = -1;
  std::int64_t norm1_bias = -1;
  std::int64_t qkv = -1;  // [qkv_width, hidden]
  std::int64_t qkv_bias = -1;
  std::int64_t output = -1;  // [hidden, query_width]
  std::int64_t output_bias = -1;
  std::int64_t norm2_gain = -1;
  std::int64_t norm2_bias = -1;
  std::int64_t up = -1;  // [up_width, hidden]: rows of the gate first
  std::int64_t up_bias = -1;
  std::int64_t down = -1;  // [hidden, ffn]
  std::int64_t down_bias = -1;
  std::int64_t router = -1;     // [experts, hidden]
  std::int64_t shared_up = -1;  // of the shared experts, as `up` and `down`
  std::int64_t shared_down = -1;
  std::int64_t shared_gate = -1;   // [1, hidden]
  std::int64_t expert_up = -1;     // [up_width, hidden] of this rank's first expert, as `up`
  std::int64_t expert_down = -1;   // [hidden, ffn]
  std::int64_t expert_stride = 0;  // from one expert's to the next one's
};

// Offsets of a stage's weights, in elements. Matrices are [outputs, inputs], as in PyTorch.
struct WeightOffsets {
  std::vector<Parameter> parameters;
  std::vector<LayerOffsets> layers;
  std::int64_t word = -1;      // [vocab_columns, hidden]
  std::int64_t position = -1;  // [positions, hidden]
  std::int64_t final_gain = -1;
  std::int64_t final_bias = -1;
  std::int64_t head = -1;           // [vocab_columns, hidden]; -1 if it is the embedding of another stage
  std::int64_t dense_elements = 0;  // before the first routed expert
  std::int64_t elements = 0;
};
WeightOffsets weight_offsets(const StageSpec& spec, const RankSizes& sizes);

// How the elements of a parameter are initialised: all to a constant if the deviation is 0, else to normal numbers,
// each a function of the key and its index in the whole matrix.
struct InitialValues {
  double constant = 0;
  double deviation = 0;
  std::uint64_t key = 0;
};
InitialValues initial_values(const StageSpec& spec, const Parameter& parameter, std::uint64_t seed);

// Implements Stage::initialise. Padding is set to zero.
template <class T>
void initialise_weights(const StageSpec& spec, const WeightOffsets& offsets, std::uint64_t seed, T* weights);

}  // namespace sluice::kernels

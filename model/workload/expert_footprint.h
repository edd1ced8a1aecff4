#pragma once

#include <cstdint>

#include "model/workload/training.h"
#include "model/workload/transformer.h"

namespace sluice::model {

// Activations of one layer and slice on one device without recomputation, by lifetime.
struct LayerBytes {
  std::int64_t input = 0;  // the layer's input only: a checkpoint
  std::int64_t to_input_gradient = 0;
  std::int64_t to_weight_gradient = 0;
  std::int64_t output_gradients = 0;  // I to W
  std::int64_t keys_values = 0;
  std::int64_t scores = 0;
};

// Activations that latent attention stores for `rows` tokens in addition to the queries, keys, values and output of any
// attention: inputs and outputs of the two latents' norms, and the positional part of the keys, equal on every tensor
// rank.
void add_latents(const Transformer& model, const Training& training, std::int64_t rows, LayerBytes& bytes);

// Activations that experts store for `rows` tokens in place of a dense MLP, 16-bit unless stated. Each row goes to
// per_token experts, which are assumed to be chosen evenly, so that a device receives as many rows as it sends: rows x
// per_token, of which the ranks of a tensor group have 1/tp each.
//   to the input gradient   inputs of the experts' activation; of the router, for each expert: logit, 32-bit score and
//                           probability, a byte that says whether, and two 32-bit places of the token in the permuted
//                           rows
//   to the weight gradient  the rows that have come, inputs of the experts' last matrix, the shared expert's
//   I to W only             output gradients of both matrices of the experts and the shared one, and of the router
void add_experts(const Transformer& model, const Training& training, std::int64_t rows, LayerBytes& bytes);

}  // namespace sluice::model

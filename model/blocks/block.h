#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/blocks/kernel_call.h"
#include "model/blocks/layer_tensors.h"
#include "model/schedule/op.h"
#include "model/workload/slice_shape.h"
#include "model/workload/training.h"

namespace sluice::model {

// Sizes of one slice on one device, in elements.
struct Sizes {
  double rows;    // tokens of all sequences, of this context-parallel rank
  double hidden;  // elements per row
  double split;   // rows of norms, dropout and residuals: split under sequence parallelism
  double mask;    // bytes of a dropout mask element, or 0
};

// The slice that a block computes.
struct BlockCall {
  const Training& training;
  SliceShape slice;
  Sizes sizes;
};

// Numbers of parameters.
struct BlockParameters {
  std::int64_t all = 0;     // weights, biases, norms
  std::int64_t linear = 0;  // weights of linear layers, whose GEMMs have the training's precision
  std::int64_t routed = 0;  // of experts that a router chooses between, which expert parallelism divides

  BlockParameters& operator+=(const BlockParameters& other) {
    all += other.all;
    linear += other.linear;
    routed += other.routed;
    return *this;
  }
};

// Over how many ranks the parameters of a block are distributed.
struct Shards {
  int tp = 1;
  int expert_ranks = 1;  // ranks with different experts, or parts of them
};

// A part of a layer between two additions to the residual stream: attention, a scan, an MLP, experts. Everything that
// depends on its shape is computed by it. h is the model's hidden size.
class Block {
 public:
  Block(int hidden, bool dropout) : hidden_(hidden), dropout_(dropout) {}
  virtual ~Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Its name in the registry (registry.h) and in model files.
  virtual std::string_view kind() const = 0;
  // Whether it mixes tokens: mixers precede the MLP of a layer.
  virtual bool mixes() const { return true; }
  // Whether it has its own norms and residual additions, so that a step with it adds none.
  virtual bool whole_step() const { return false; }

  // Of one device. Sizes that tensor parallelism does not divide are replicated.
  virtual BlockParameters parameters(const Shards& shards) const = 0;
  // Elements of the weight matrices that each token is multiplied with.
  virtual std::int64_t active_matrix_elements() const = 0;
  // Parameters that a token does not use: of the experts that are not chosen for it.
  virtual std::int64_t idle_parameters() const { return 0; }
  // Elements of one matrix of each shape on one device: of one expert of all.
  virtual std::int64_t matrices_of_each_shape(const Training& training) const = 0;

  // FLOPs of a forward besides those with weight matrices (of scores and values, of a scan): of a sequence of `tokens`
  // by the convention of papers and frameworks for MFU, which counts the full square of attention; and executed, of
  // `tokens` of one sequence after `context` others.
  virtual double core_model_flops(std::int64_t /*tokens*/) const { return 0; }
  virtual double core_flops(std::int64_t /*tokens*/, std::int64_t /*context*/) const { return 0; }

  // What tensor parallelism divides: its size must be a divisor (0: anything).
  virtual int tensor_units() const { return 0; }

  // Adds the kernels of F, I or W (B: of I and W) on one device, 16-bit unless stated, with collectives.
  virtual void add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const = 0;
  // Adds what its forward stores for its backward, from its normed input on, and the gradients that wait for W.
  virtual void add_tensors(const TensorCall& call, LayerTensors& out) const = 0;
  // An upper bound of the elements per token of these tensors.
  virtual double width() const = 0;

  // Throws InputError "/parallelism/KEY: MODEL: ..." if `training` cannot divide it.
  virtual void check(const std::string& /*model*/, const Training& /*training*/) const {}

  int hidden() const { return hidden_; }
  bool dropout() const { return dropout_; }

 private:
  int hidden_;
  bool dropout_;
};

using BlockPtr = std::shared_ptr<const Block>;

}  // namespace sluice::model

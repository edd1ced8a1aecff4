#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "exec/run/training_run.h"
#include "kernels/stage.h"
#include "model/workload/transformer.h"

namespace sluice::test {

// Tiny models of the two styles with the given number of layers.
Transformer small_gpt(int layers, bool tied = true);
Transformer small_llama(int layers);
// The same with 4 experts per layer, of which each token passes 2; the GPT also has a leading dense layer and shared
// experts with a gate.
Transformer small_mixtral(int layers);
Transformer small_expert_gpt(int layers);

// Whole parameters by name, in double.
using Weights = std::map<std::string, std::vector<double>>;

// Returns the maximum over parameters of max |a - b| / max |b|. Names must be equal. The gradient of the keys' bias is
// 0 up to rounding, since it does not change the softmax, and is compared with the bias of the queries.
double relative_difference(const Weights& a, const Weights& b);

// Adds the blocks of a stage to `all`; and writes them from `all`. `Scalar` is the stage's precision.
void add_blocks(const Stage& stage, const std::byte* data, Weights& all);
// Adds the weights of all chunks of a worker.
void add_weights(const RunPlan& plan, Worker& worker, Weights& all);
void set_blocks(const Stage& stage, const Weights& all, std::byte* data);

// A whole model as one unsliced stage, which calls the kernels in double precision without the executor.
class OneDevice {
 public:
  explicit OneDevice(const Transformer& model);

  Weights initial(std::uint64_t seed) const;
  struct Result {
    double loss = 0;  // sum over tokens
    Weights gradients;
  };
  // Returns the gradients of loss_scale x the loss of these sequences of a step's batch, computed one at a time.
  Result gradient(const Weights& weights, const TokenSource& tokens, std::int64_t step, int first_sequence,
                  int sequences, double loss_scale) const;
  // The same of sequences that pack documents of these lengths, each computed as a sequence of its own.
  Result gradient(const Weights& weights, const TokenSource& tokens, std::int64_t step,
                  const std::vector<std::vector<std::int64_t>>& sequences, double loss_scale,
                  int first_sequence = 0) const;

 private:
  std::unique_ptr<Stage> stage_;
};

// Trains with threads and returns the first replica's weights after the last run of the graph. Fails the test if
// replicas of a parameter, across data- or tensor-parallel ranks, are not bitwise equal.
struct Trained {
  TrainingReport report;
  Weights weights;
};
Trained train(const RunPlan& plan, const TokenSource& tokens, const TrainingOptions& options = {});

}  // namespace sluice::test

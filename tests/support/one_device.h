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

// Tiny models of the two styles, with so many layers.
Transformer small_gpt(int layers, bool tied = true);
Transformer small_llama(int layers);

// Whole parameters by name, in double.
using Weights = std::map<std::string, std::vector<double>>;

// The largest |a - b| over the largest |b| of each parameter, and of all parameters the largest. Names must agree. A
// bias of all keys moves no probability of the softmax, so that its gradient is 0 but for rounding: it is held against
// the bias of the queries.
double relative_difference(const Weights& a, const Weights& b);

// The blocks that a stage holds, added to `all`; and the other way round. `Scalar` is that of the stage.
void add_blocks(const Stage& stage, const std::byte* data, Weights& all);
void set_blocks(const Stage& stage, const Weights& all, std::byte* data);

// A whole model as one stage, unsliced, computed by straight calls of its kernels in double, with no executor.
class OneDevice {
 public:
  explicit OneDevice(const Transformer& model);

  Weights initial(std::uint64_t seed) const;
  struct Result {
    double loss = 0;  // sum over tokens
    Weights gradients;
  };
  // Of loss_scale x the loss over these sequences of a step's batch, one at a time.
  Result gradient(const Weights& weights, const TokenSource& tokens, std::int64_t step, int first_sequence,
                  int sequences, double loss_scale) const;

 private:
  std::unique_ptr<Stage> stage_;
};

// Trains with threads and gives the weights after the last run of the graph, as the first replica has them. Fails the
// test where replicas or tensor ranks that hold the same parameter differ in one bit.
struct Trained {
  TrainingReport report;
  Weights weights;
};
Trained train(const RunPlan& plan, const TokenSource& tokens, const TrainingOptions& options = {});

}  // namespace sluice::test

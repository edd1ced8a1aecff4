// Public header.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "model/cost/cost_model.h"

namespace sluice::model {

// What `--uniform` says, in seconds.
struct UniformTimes {
  // One entry: one microbatch's time in 1/num_ranks of the layers. Several: one a slice, taken as they stand for that
  // slice of one stage.
  std::vector<double> forward = {1};
  std::vector<double> input_gradient = {1};
  std::vector<double> weight_gradient = {1};
  std::optional<double> joint;        // an F with a B as one block; otherwise their sum
  double hop = 0;                     // latency between two ranks
  std::vector<double> stage_weights;  // relative work of each stage; empty: all 1
};

// Parses "f=1,b=1,w=1,fb=..,comm=.." (lists as "f=4:5:6:7"); what is not given keeps its default. Throws InputError
// naming the part.
UniformTimes parse_uniform(std::string_view text);

// The same time for every microbatch: an op of a stage with weight 1 takes 1/num_chunks of what is given, and a slice
// its share of the tokens; B takes the time of I and W.
class UniformCost : public CostModel {
 public:
  // Throws InputError if the lists or stage weights do not fit `schedule`.
  UniformCost(UniformTimes times, const Schedule& schedule);

  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  double joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                 int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const override;
  TransferTime transfer(int from, int to, std::int64_t bytes) const override;

 private:
  double scaled(const std::vector<double>& times, int stage, const MicrobatchShape& shape, int slice) const;
  double weight(int stage) const;

  UniformTimes times_;
  int num_chunks_;
};

}  // namespace sluice::model

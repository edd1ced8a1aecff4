// Public header.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/cost/cost_model.h"

namespace sluice::model {

// The times of the ops of one stage, in seconds per microbatch.
struct MeasuredStage {
  double forward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  double vocabulary = 0;           // S, of the first stage of a rank
  double vocabulary_gradient = 0;  // T
};

// The times of `--uniform`, in seconds.
struct UniformTimes {
  // One entry: the time of a microbatch in 1/num_ranks of the layers. Several: one per slice, the time of that slice on
  // one stage. Empty: not given (see complete).
  std::vector<double> forward = {1};
  std::vector<double> input_gradient = {1};
  std::vector<double> weight_gradient = {1};
  std::optional<double> joint;                // an F and a B as one block; by default their sum
  std::optional<double> vocabulary;           // S of a microbatch on each rank; by default that of the forward
  std::optional<double> vocabulary_gradient;  // the same for T
  std::optional<double> hop;                  // latency between two ranks; by default 0
  // A copy of what a microbatch stores in 1/num_ranks of the layers to the host, or back.
  std::optional<double> copy;
  std::vector<double> stage_weights;  // relative work of each stage; empty: all 1
  // Instead of all above but `hop`: the times of each stage, as measured. If the schedule has a multiple of this number
  // of stages, an entry is divided evenly over the stages that hold its layers.
  std::vector<MeasuredStage> stages;
  double optimizer = 0;  // of each stage, at the end
};

// Parses "f=1,b=1,w=1,s=..,t=..,fb=..,comm=..,copy=.." (lists as "f=4:5:6:7"); the times of missing parts are not
// given. Throws InputError naming the part.
UniformTimes parse_uniform(std::string_view text);

// Sets the times of ops that are not given, and returns what it assumes, as "w is half of b". Without w, b is the whole
// backward, half of it w; a missing f or b is the other, or w; without all, each is 1 s.
std::vector<std::string> complete(UniformTimes& times);

// The same time for every microbatch, or one in proportion to its tokens: an op of a stage with weight 1 takes
// 1/num_chunks of the specified time, and a slice a part in proportion to its tokens; B takes the time of I and W.
class UniformCost : public CostModel {
 public:
  // Completes the times, which are those of a microbatch of `tokens` tokens; 0: of any. Throws InputError if the lists
  // or stage weights do not match `schedule`.
  UniformCost(UniformTimes times, const Schedule& schedule, std::int64_t tokens = 0);

  double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const override;
  double joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                 int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const override;
  TransferTime transfer(int from, int to, std::int64_t bytes) const override;
  double optimizer_s(int /*stage*/) const override { return times_.optimizer; }
  double host_copy_s(int stage, const MicrobatchShape& shape, int slice, std::int64_t /*bytes*/) const override {
    return scaled({times_.copy.value_or(0)}, stage, shape, slice);
  }

 private:
  double measured(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const;
  double scaled(const std::vector<double>& times, int stage, const MicrobatchShape& shape, int slice) const;
  double weight(int stage) const;
  // Tokens of the microbatch that the times are of.
  double timed_tokens(const MicrobatchShape& shape) const {
    return static_cast<double>(tokens_ > 0 ? tokens_ : shape.tokens());
  }
  void merge_stages();

  UniformTimes times_;
  int num_chunks_;
  int num_stages_;
  std::int64_t tokens_;
};

}  // namespace sluice::model

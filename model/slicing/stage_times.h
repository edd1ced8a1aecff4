#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/slicing/slice_times.h"
#include "model/workload/training.h"

namespace sluice::model {

// How a sequence may be cut, and how much of it goes together.
struct SequenceCut {
  std::int64_t tokens = 0;
  std::int64_t granularity = 1;
  int sequences = 1;            // of a microbatch
  bool split_backward = false;  // I and W are ops of their own
  bool forward_only = false;    // nothing is asked about backwards
};

// Calls a body for 0 to count - 1, in any order, several at a time if it can.
using ForEach = std::function<void(std::int64_t count, const std::function<void(std::int64_t)>& body)>;

// What every stage takes for every slice of a sequence, by a cost model: F, and the backward with what is recomputed
// before it. Tabulated when made; stages that are alike have one table.
class StageTimes {
 public:
  // `stages`: what they hold, where that decides what they take; empty without a model. `for_each` asks the cost model
  // for all slices that begin at one place. Throws InputError as the cost model does, for a sequence or granularity
  // that check_problem refuses, and for more than 4096 granules.
  StageTimes(const CostModel& cost, int num_stages, std::span<const StageContents> stages, const SequenceCut& cut,
             const ForEach& for_each);

  const SequenceCut& cut() const { return cut_; }
  int num_stages() const { return static_cast<int>(table_of_.size()); }
  std::int64_t granules() const { return granules_; }

  // Of `granules` that begin at granule `begin`.
  Duration forward(int stage, std::int64_t begin, std::int64_t granules) const;
  Duration gradient(int stage, std::int64_t begin, std::int64_t granules) const;   // B, or I where W is apart
  Duration weight(int stage, std::int64_t begin, std::int64_t granules) const;     // W where it is apart
  Duration recompute(int stage, std::int64_t begin, std::int64_t granules) const;  // before B or I
  // All of the backward: the last three.
  Duration backward(int stage, std::int64_t begin, std::int64_t granules) const;

  // t_fwd of eq. 5 for cells that are not equal: the slowest stage's, for each slice. Refers to this object.
  SliceTimes slowest_forward() const;
  SliceTimes slowest_backward() const;

 private:
  struct Times {
    Duration forward{}, gradient{}, weight{}, recompute{};
    Duration backward() const { return gradient + weight + recompute; }
  };
  using Table = std::vector<Times>;  // by begin and granules; see place

  std::size_t place(std::int64_t begin, std::int64_t granules) const {
    return static_cast<std::size_t>(begin * granules_ - begin * (begin - 1) / 2 + granules - 1);
  }
  const Times& times(int stage, std::int64_t begin, std::int64_t granules) const {
    return tables_[table_of_[stage]][place(begin, granules)];
  }

  SequenceCut cut_;
  std::int64_t granules_;
  std::vector<std::size_t> table_of_;  // by stage
  std::vector<Table> tables_;
};

}  // namespace sluice::model

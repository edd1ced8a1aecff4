#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/slicing/slice_times.h"
#include "model/workload/training.h"

namespace sluice::model {

// How a sequence may be cut, and what is computed together.
struct SequenceCut {
  std::int64_t tokens = 0;
  std::int64_t granularity = 1;
  int sequences = 1;            // of a microbatch
  bool split_backward = false;  // I and W are separate ops
  bool forward_only = false;    // without backward times
};

// Calls a body for 0 to count - 1, in any order, concurrently if possible.
using ForEach = std::function<void(std::int64_t count, const std::function<void(std::int64_t)>& body)>;

// The ops of one slice on one stage.
struct SliceOpTimes {
  Duration forward{}, gradient{}, weight{}, recompute{};
  Duration backward() const { return gradient + weight + recompute; }
};

// Times of one slice on the slowest stage of each sweep: F, and the backward with its recomputation.
struct SlowestTimes {
  Duration forward{};
  Duration backward{};  // 0 if `cut.forward_only`
};

// Returns the times of the tokens `begin` to `end`, at any place, without a table.
SlowestTimes slowest_times(const CostModel& cost, int num_stages, const SequenceCut& cut, std::int64_t begin,
                           std::int64_t end);

// The times of every stage for every slice of a sequence, by a cost model: F, and the backward with its recomputation.
// Tabulated on construction; stages with the same contents share a table.
class StageTimes {
 public:
  // `stages`: their contents, where these determine the times; empty without a model. `for_each` queries the cost model
  // for all slices that start at one position. Throws InputError like the cost model, for a sequence or granularity
  // that check_problem rejects, for more than 4096 granules, and for times so short that rounding them to nanoseconds
  // changes them by more than 1 %.
  StageTimes(const CostModel& cost, int num_stages, std::span<const StageContents> stages, const SequenceCut& cut,
             const ForEach& for_each);

  const SequenceCut& cut() const { return cut_; }
  int num_stages() const { return static_cast<int>(table_of_.size()); }
  std::int64_t granules() const { return granules_; }

  // Times of `granules` granules that start at granule `begin`.
  Duration forward(int stage, std::int64_t begin, std::int64_t granules) const;
  Duration gradient(int stage, std::int64_t begin, std::int64_t granules) const;   // B, or I if W is separate
  Duration weight(int stage, std::int64_t begin, std::int64_t granules) const;     // W if it is separate
  Duration recompute(int stage, std::int64_t begin, std::int64_t granules) const;  // before B or I
  // The whole backward: the sum of the last three.
  Duration backward(int stage, std::int64_t begin, std::int64_t granules) const;

  // t_fwd of eq. 5 for cells that differ: the time of the slowest stage, for each slice. Refers to this object.
  SliceTimes slowest_forward() const;
  SliceTimes slowest_backward() const;

 private:
  using Times = SliceOpTimes;
  using Table = std::vector<Times>;  // by begin and granules; see place

  std::size_t place(std::int64_t begin, std::int64_t granules) const {
    return static_cast<std::size_t>(begin * granules_ - begin * (begin - 1) / 2 + granules - 1);
  }
  const Times& times(int stage, std::int64_t begin, std::int64_t granules) const {
    return tables_[table_of_[stage]][place(begin, granules)];
  }

  // Throws InputError if rounding changes the forward times of single granules by more than 1 %. `first_stages` has the
  // stage of each table.
  void check_rounding(const CostModel& cost, const std::vector<int>& first_stages) const;

  SequenceCut cut_;
  std::int64_t granules_;
  std::vector<std::size_t> table_of_;  // by stage
  std::vector<Table> tables_;
};

}  // namespace sluice::model

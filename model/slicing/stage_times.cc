#include "model/slicing/stage_times.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/errors.h"
#include "model/slicing/terapipe.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kMaxStageGranules = 4096;

// The slice as part of a whole sequence: what precedes it, itself, and what follows it.
struct Placed {
  MicrobatchShape shape;
  int slice = 0;
};

Placed placed(const SequenceCut& cut, std::int64_t begin, std::int64_t end) {
  Placed out{.shape = {.sequences = cut.sequences, .slice_lengths = {}}};
  if (begin > 0) out.shape.slice_lengths.push_back(begin);
  out.slice = out.shape.num_slices();
  out.shape.slice_lengths.push_back(end - begin);
  if (end < cut.tokens) out.shape.slice_lengths.push_back(cut.tokens - end);
  return out;
}

SliceOpTimes op_times(const CostModel& cost, const SequenceCut& cut, int stage, const Placed& at) {
  const auto rounded = [&](OpKind kind) {
    return from_seconds(cost.compute_s(kind, stage, at.shape, at.slice), "time of a slice");
  };
  SliceOpTimes times{.forward = rounded(OpKind::F)};
  if (cut.forward_only) return times;
  times.gradient = rounded(cut.split_backward ? OpKind::I : OpKind::B);
  if (cut.split_backward) times.weight = rounded(OpKind::W);
  times.recompute = from_seconds(cost.recompute_s(stage, at.shape, at.slice), "time of recomputation");
  return times;
}

}  // namespace

SlowestTimes slowest_times(const CostModel& cost, int num_stages, const SequenceCut& cut, std::int64_t begin,
                           std::int64_t end) {
  const Placed at = placed(cut, begin, end);
  SlowestTimes out;
  for (int stage = 0; stage < num_stages; ++stage) {
    const SliceOpTimes times = op_times(cost, cut, stage, at);
    out.forward = std::max(out.forward, times.forward);
    out.backward = std::max(out.backward, times.backward());
  }
  return out;
}

StageTimes::StageTimes(const CostModel& cost, int num_stages, std::span<const StageContents> stages,
                       const SequenceCut& cut, const ForEach& for_each)
    : cut_(cut) {
  const SliceTimes frame{.tokens = cut.tokens, .granularity = cut.granularity};
  check_problem({.forward = frame});
  granules_ = frame.granules();
  if (granules_ > kMaxStageGranules) {
    throw InputError(fmt::format("{} tokens at granularity {}: expected at most {} granules, got {}", cut.tokens,
                                 cut.granularity, kMaxStageGranules, granules_));
  }
  std::vector<int> first_stages;  // by table
  for (int stage = 0; stage < num_stages; ++stage) {
    const auto alike = [&](int other) {
      if (!stages.empty()) return stages[other] == stages[stage];
      return cost.alike(stage) == other;
    };
    const auto found = std::find_if(first_stages.begin(), first_stages.end(), alike);
    table_of_.push_back(static_cast<std::size_t>(found - first_stages.begin()));
    if (found == first_stages.end()) first_stages.push_back(stage);
  }
  tables_.assign(first_stages.size(), Table(place(granules_ - 1, 1) + 1));
  for_each(granules_, [&](std::int64_t begin) {
    for (std::int64_t end = begin + 1; end <= granules_; ++end) {
      const Placed at = placed(cut, frame.position(begin), frame.position(end));
      for (std::size_t i = 0; i < tables_.size(); ++i) {
        tables_[i][place(begin, end - begin)] = op_times(cost, cut, first_stages[i], at);
      }
    }
  });
  check_rounding(cost, first_stages);
}

void StageTimes::check_rounding(const CostModel& cost, const std::vector<int>& first_stages) const {
  const SliceTimes frame{.tokens = cut_.tokens, .granularity = cut_.granularity};
  Duration sum{0};
  for (const Table& table : tables_) {
    for (std::int64_t begin = 0; begin < granules_; ++begin) sum += table[place(begin, 1)].forward;
  }
  if (RoundingError::negligible(sum, static_cast<double>(granules_) * static_cast<double>(tables_.size()))) return;
  RoundingError error;
  for (std::int64_t begin = 0; begin < granules_; ++begin) {
    const Placed at = placed(cut_, frame.position(begin), frame.position(begin + 1));
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      error.add(cost.compute_s(OpKind::F, first_stages[i], at.shape, at.slice), tables_[i][place(begin, 1)].forward);
    }
  }
  error.check(fmt::format("slices of {} tokens", cut_.granularity));
}

Duration StageTimes::forward(int stage, std::int64_t begin, std::int64_t granules) const {
  return times(stage, begin, granules).forward;
}
Duration StageTimes::gradient(int stage, std::int64_t begin, std::int64_t granules) const {
  return times(stage, begin, granules).gradient;
}
Duration StageTimes::weight(int stage, std::int64_t begin, std::int64_t granules) const {
  return times(stage, begin, granules).weight;
}
Duration StageTimes::recompute(int stage, std::int64_t begin, std::int64_t granules) const {
  return times(stage, begin, granules).recompute;
}
Duration StageTimes::backward(int stage, std::int64_t begin, std::int64_t granules) const {
  return times(stage, begin, granules).backward();
}

SliceTimes StageTimes::slowest_forward() const {
  auto row = [this](std::int64_t context, std::span<Duration> out) {
    const std::size_t first = place(context / cut_.granularity, 1);
    for (std::size_t n = 0; n < out.size(); ++n) {
      out[n] = Duration{0};
      for (const Table& table : tables_) out[n] = std::max(out[n], table[first + n].forward);
    }
  };
  return {.tokens = cut_.tokens, .granularity = cut_.granularity, .row = std::move(row)};
}

SliceTimes StageTimes::slowest_backward() const {
  auto row = [this](std::int64_t context, std::span<Duration> out) {
    const std::size_t first = place(context / cut_.granularity, 1);
    for (std::size_t n = 0; n < out.size(); ++n) {
      out[n] = Duration{0};
      for (const Table& table : tables_) out[n] = std::max(out[n], table[first + n].backward());
    }
  };
  return {.tokens = cut_.tokens, .granularity = cut_.granularity, .row = std::move(row)};
}

}  // namespace sluice::model

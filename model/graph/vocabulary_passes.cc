#include "model/graph/vocabulary_passes.h"

#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr VertexId kMissing = ~VertexId{0};

}  // namespace

VocabularyPasses::VocabularyPasses(const Schedule& schedule, const Links& links)
    : ranks_(schedule.num_ranks()),
      root_(schedule.routes()[0].back()),
      root_stage_(static_cast<std::int16_t>(schedule.stages_of(root_).front())),
      microbatches_(schedule.num_microbatches()),
      barriers_(schedule.vocabulary_barriers()),
      from_root_(links.from_root),
      to_root_(links.to_root),
      result_lanes_(links.results) {
  if (barriers_ == 0) return;
  const auto cells = to_size(std::int64_t{microbatches_} * ranks_);
  for (Passed* passed : {&inputs_, &statistics_, &results_, &gradients_}) passed->resize(cells, kMissing);
  for (auto* count : {&statistics_count_, &gradients_count_}) count->resize(to_size(microbatches_), 0);
}

std::size_t VocabularyPasses::at(int microbatch, int rank) const {
  return to_size(std::int64_t{microbatch} * ranks_ + rank);
}

std::span<const VertexId> VocabularyPasses::all(const Passed& passed, int microbatch) const {
  return std::span(passed).subspan(at(microbatch, 0), to_size(ranks_));
}

bool VocabularyPasses::collect(const Op& op, int rank, std::vector<VertexId>& needs, int& num_needs) const {
  const int mb = op.microbatch;
  const bool statistics_there = statistics_count_[to_size(mb)] == ranks_;
  const auto add = [&](VertexId need) { needs[to_size(num_needs++)] = need; };
  switch (op.kind) {
    case OpKind::S: add(inputs_[at(mb, rank)]); return needs[to_size(num_needs - 1)] != kMissing;
    case OpKind::T:
      if (!statistics_there) return false;
      if (rank != root_) add(results_[at(mb, rank)]);
      for (const VertexId need : all(statistics_, mb)) {
        if (rank == root_) add(need);
      }
      return true;
    default: {
      const bool two = barriers_ == 2;
      if (!statistics_there || (two && gradients_count_[to_size(mb)] < ranks_)) return false;
      for (const VertexId need : all(two ? gradients_ : statistics_, mb)) add(need);
      return true;
    }
  }
}

bool VocabularyPasses::hand_over(const Op& op, int rank, VertexId id, const Emit& emit) {
  const int mb = op.microbatch;
  const auto send = [&](const Op& of, LaneId lane, std::span<const VertexId> needs) {
    return emit({.microbatch = mb,
                 .stage = of.stage,
                 .op = of.kind,
                 .kind = VertexKind::transfer,
                 .lane = lane,
                 .extra = static_cast<std::uint32_t>(needs.size() - 1)},
                needs);
  };
  const std::span<const VertexId> made(&id, 1);
  const auto from_root = [&](const Op& of, const std::vector<LaneId>& lanes, Passed& passed,
                             std::span<const VertexId> needs) {
    for (int peer = 0; peer < ranks_; ++peer) {
      passed[at(mb, peer)] = peer == root_ ? id : send(of, lanes[to_size(peer)], needs);
    }
  };
  const auto to_root = [&](Passed& passed, std::vector<int>& count) {
    passed[at(mb, rank)] = rank == root_ ? id : send(op, to_root_[to_size(rank)], made);
    return ++count[to_size(mb)] == ranks_;
  };
  if (op.kind == OpKind::F) {
    from_root(op, from_root_, inputs_, made);
    return true;
  }
  if (op.kind == OpKind::T) return barriers_ == 2 && to_root(gradients_, gradients_count_);
  if (op.kind != OpKind::S || !to_root(statistics_, statistics_count_)) return false;
  // A transfer's first need is an op of its sender.
  const VertexId own = statistics_[at(mb, root_)];
  std::vector<VertexId> needs = {own};
  for (const VertexId need : all(statistics_, mb)) {
    if (need != own) needs.push_back(need);
  }
  Op of = op;
  of.stage = root_stage_;
  from_root(of, result_lanes_, results_, needs);
  return true;
}

}  // namespace sluice::model

#include "model/schedule/schedule.h"

#include <fmt/format.h>

#include <numeric>
#include <set>

#include "model/errors.h"
#include "model/schedule/communication_check.h"

namespace sluice::model {
namespace {

void require(bool ok, const std::string& message) {
  if (!ok) throw ScheduleError(message);
}

[[noreturn]] void refuse_op(const Schedule& schedule, int rank, std::size_t index, const std::string& why) {
  const Op& op = schedule.ops(rank)[index];
  throw ScheduleError(fmt::format("{}: {}: {}", schedule.place(rank, index), to_string(op, schedule.sliced()), why));
}

// Without the encoder's stages and the ranks that have no others.
int chunks_of(const ScheduleParts& parts) {
  if (parts.encoder_stages == 0) return std::max(1, parts.num_stages / parts.num_ranks);
  const std::set ranks(parts.routes[0].begin() + parts.encoder_stages, parts.routes[0].end());
  return (parts.num_stages - parts.encoder_stages) / static_cast<int>(ranks.size());
}

}  // namespace

std::string to_string(const Op& op, bool sliced) {
  return sliced ? fmt::format("{}(stage {}, mb {}, slice {})", letter(op.kind), op.stage, op.microbatch, op.slice)
                : fmt::format("{}(stage {}, mb {})", letter(op.kind), op.stage, op.microbatch);
}

std::string to_string(WeightPolicy policy) {
  switch (policy) {
    case WeightPolicy::flush: return "flush";
    case WeightPolicy::stashed: return "stashed";
    case WeightPolicy::double_buffered: return "double-buffered";
  }
  return "?";
}

std::int64_t MicrobatchShape::tokens() const {
  return std::accumulate(slice_lengths.begin(), slice_lengths.end(), std::int64_t{0});
}

std::int64_t MicrobatchShape::context(int slice) const {
  return std::accumulate(slice_lengths.begin(), slice_lengths.begin() + slice, std::int64_t{0});
}

std::string Schedule::place(int rank) const {
  return read_from_table() ? fmt::format("row {}", rank + 1) : fmt::format("rank {}", rank);
}

std::string Schedule::place(int rank, std::size_t position) const {
  if (!read_from_table()) return fmt::format("rank {}, position {}", rank, position);
  return fmt::format("{}, cell {}", place(rank), parts_.cells[rank][position]);
}

std::string Schedule::communication_place(int rank, std::size_t index) const {
  if (!read_from_table()) return fmt::format("rank {}, communication {}", rank, index);
  return fmt::format("{}, cell {}", place(rank), parts_.communication_cells[rank][index]);
}

Schedule::Schedule(ScheduleParts parts) : parts_(std::move(parts)) {
  check_frame();
  stages_of_.resize(parts_.num_ranks);
  for (int stage = 0; stage < parts_.num_stages; ++stage) {
    for (const auto& route : parts_.routes) {
      auto& stages = stages_of_[route[stage]];
      if (stages.empty() || stages.back() != stage) stages.push_back(stage);
    }
  }
  num_chunks_ = chunks_of(parts_);
  for (const MicrobatchShape& shape : parts_.shapes) max_slices_ = std::max(max_slices_, shape.num_slices());
  const int total = total_microbatches();
  if (parts_.shape_of.empty() || parts_.shapes.size() == 1) {
    max_slices_ = parts_.shapes[0].num_slices();
    num_units_ = static_cast<std::int64_t>(total) * max_slices_;
  } else {
    first_unit_.reserve(total);
    for (int mb = 0; mb < total; ++mb) {
      first_unit_.push_back(num_units_);
      num_units_ += num_slices(mb);
    }
  }
  check_ops();
  if (has_communication()) check_communication(*this);
}

int Schedule::chunk_of(int rank, int stage) const {
  const auto stages = stages_of(rank);
  return static_cast<int>(std::find(stages.begin(), stages.end(), stage) - stages.begin());
}

bool Schedule::forward_only() const {
  return std::all_of(parts_.shapes.begin(), parts_.shapes.end(),
                     [](const MicrobatchShape& shape) { return shape.forward_only; });
}

void Schedule::resize(std::vector<MicrobatchShape> shapes) {
  const auto as_many = [](const auto& a, const auto& b) {
    return a.num_slices() == b.num_slices() && a.forward_only == b.forward_only;
  };
  if (!std::equal(shapes.begin(), shapes.end(), parts_.shapes.begin(), parts_.shapes.end(), as_many)) {
    throw ScheduleError("shapes: sizes may change, but not the number of shapes or of their slices");
  }
  std::swap(parts_.shapes, shapes);
  try {
    check_shapes();
  } catch (...) {
    std::swap(parts_.shapes, shapes);
    throw;
  }
}

void Schedule::check_frame() const {
  require(parts_.num_ranks >= 1 && parts_.num_ranks <= kMaxRanks,
          fmt::format("ranks: expected 1 to {}, got {}", kMaxRanks, parts_.num_ranks));
  require(parts_.num_stages >= 1 && parts_.num_stages <= kMaxStages,
          fmt::format("stages: expected 1 to {}, got {}", kMaxStages, parts_.num_stages));
  require(parts_.num_microbatches >= 1 && parts_.num_batches >= 1, "microbatches and batches: expected at least 1");
  const std::int64_t total = static_cast<std::int64_t>(parts_.num_microbatches) * parts_.num_batches;
  require(total <= kMaxOps, fmt::format("{} microbatches: more than {}", total, kMaxOps));
  check_shapes();
  require(
      parts_.shape_of.empty() || std::ssize(parts_.shape_of) == total,
      fmt::format("shape_of: expected one entry for each of {} microbatches, got {}", total, parts_.shape_of.size()));
  for (const int shape : parts_.shape_of) {
    require(shape >= 0 && shape < std::ssize(parts_.shapes), fmt::format("shape_of: there is no shape {}", shape));
  }
  require(!parts_.routes.empty() && parts_.routes.size() <= 255, "routes: expected 1 to 255");
  require(parts_.routes.size() == 1 || parts_.weight_policy == WeightPolicy::flush,
          "routes: stages on two ranks all-reduce their gradients at a flush, and this schedule has none");
  require(
      parts_.route_of.empty() || std::ssize(parts_.route_of) == total,
      fmt::format("route_of: expected one entry for each of {} microbatches, got {}", total, parts_.route_of.size()));
  for (const auto& route : parts_.routes) {
    require(std::ssize(route) == parts_.num_stages,
            fmt::format("placement: expected a rank for each of {} stages, got {}", parts_.num_stages, route.size()));
    for (std::size_t stage = 0; stage < route.size(); ++stage) {
      require(route[stage] >= 0 && route[stage] < parts_.num_ranks,
              fmt::format("placement: stage {} is on rank {}, of {} ranks", stage, route[stage], parts_.num_ranks));
    }
  }
  for (const std::uint8_t route : parts_.route_of) {
    require(route < parts_.routes.size(), fmt::format("route_of: there is no route {}", route));
  }
  require(
      std::ssize(parts_.orders) == parts_.num_ranks,
      fmt::format("orders: expected one list for each of {} ranks, got {}", parts_.num_ranks, parts_.orders.size()));
  const auto alike = [](const auto& cells, const auto& lists) {
    return cells.empty() || std::equal(cells.begin(), cells.end(), lists.begin(), lists.end(),
                                       [](const auto& a, const auto& b) { return a.size() == b.size(); });
  };
  require(alike(parts_.cells, parts_.orders), "cells: expected one for each op");
  require(!has_communication() || parts_.cells.empty() || !parts_.communication_cells.empty(),
          "cells: expected those of the communication too");
  require(!has_communication() || alike(parts_.communication_cells, parts_.communication),
          "cells: expected one for each communication");
  const int barriers = parts_.vocabulary_barriers;
  require(barriers >= 0 && barriers <= 2, fmt::format("vocabulary_barriers: expected 0 to 2, got {}", barriers));
  const bool plain = parts_.routes.size() == 1 && parts_.shapes.size() == 1 && parts_.shapes[0].num_slices() == 1 &&
                     !parts_.shapes[0].forward_only && parts_.weight_policy == WeightPolicy::flush;
  require(barriers == 0 || (plain && !has_communication()),
          "vocabulary_barriers: S and T need a schedule with a flush and backwards, equal microbatches, one slice per "
          "sequence and one route, without sends and receives");
  require(parts_.encoder_stages >= 0 && parts_.encoder_stages < parts_.num_stages,
          fmt::format("encoder_stages: expected 0 to {}, got {}", parts_.num_stages - 1, parts_.encoder_stages));
  require(parts_.encoder_stages == 0 || (barriers == 0 && parts_.weight_policy == WeightPolicy::flush),
          "encoder_stages: an encoder needs a schedule with a flush and without vocabulary passes");
  require(!parts_.frozen_encoder || (parts_.encoder_stages > 0 && !has_communication()),
          "frozen_encoder: requires encoder_stages, and a schedule without sends and receives");
  require(parts_.communication.empty() || std::ssize(parts_.communication) == parts_.num_ranks,
          fmt::format("communication: expected one list for each of {} ranks, got {}", parts_.num_ranks,
                      parts_.communication.size()));
}

void Schedule::check_shapes() const {
  require(!parts_.shapes.empty(), "shapes: expected at least one");
  for (const MicrobatchShape& shape : parts_.shapes) {
    require(shape.sequences >= 1, "shapes: a microbatch needs at least one sequence");
    const std::int64_t packed = std::accumulate(shape.documents.begin(), shape.documents.end(), std::int64_t{0});
    require(shape.documents.empty() || (shape.sequences == 1 && packed == shape.tokens()),
            "shapes: the documents of a microbatch add up to the tokens of its one sequence");
    require(shape.num_slices() >= 1 && shape.num_slices() <= kMaxSlices,
            fmt::format("shapes: expected 1 to {} slices, got {}", kMaxSlices, shape.num_slices()));
    std::int64_t tokens = 0;
    for (const std::int64_t length : shape.slice_lengths) {
      require(length >= 1 && length <= (std::int64_t{1} << 40), "shapes: a slice has 1 to 2^40 tokens");
      tokens += length;
    }
    require(tokens <= (std::int64_t{1} << 40), "shapes: a sequence has at most 2^40 tokens");
  }
}

void Schedule::check_ops() {
  for (const auto& order : parts_.orders) num_ops_ += std::ssize(order);
  const std::int64_t cells = num_units_ * num_stages();
  if (cells > kMaxOps || num_ops_ > kMaxOps) {
    throw ScheduleError(fmt::format("{} ops: more than {}", std::max(cells, num_ops_), kMaxOps));
  }
  if (num_ops_ < 2 * cells) {
    // Checked before the table of ops is allocated, so that its size is bounded by the file's.
    if (num_ops_ < cells / 4)
      throw ScheduleError(fmt::format("missing ops: {} given, at least {} needed", num_ops_, 2 * cells));
  }
  // One bit for each kind of op that was seen, by (stage, unit).
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(cells), 0);
  const auto in = [](int number, int count) { return number >= 0 && number < count; };
  std::uint8_t kinds = 0;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const auto list = ops(rank);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Op& op = list[i];
      const bool plain = !op.joined && in(op.stage, num_stages()) && in(op.microbatch, total_microbatches()) &&
                         in(op.slice, num_slices(op.microbatch)) && rank_of(op.stage, op.microbatch) == rank;
      if (!plain) check_op(rank, i);
      const auto bit = static_cast<std::uint8_t>(1U << static_cast<unsigned>(op.kind));
      auto& cell = seen[op.stage * num_units_ + first_unit(op.microbatch) + op.slice];
      if ((cell & bit) != 0) {
        const auto same = [&](const Op& other) {
          return other.kind == op.kind && other.stage == op.stage && other.microbatch == op.microbatch &&
                 other.slice == op.slice;
        };
        const auto first = std::find_if(list.begin(), list.end(), same) - list.begin();
        refuse_op(*this, rank, i,
                  fmt::format("occurs twice, first at {}", place(rank, static_cast<std::size_t>(first))));
      }
      cell |= bit;
      if ((cell & 0b0010) != 0 && (cell & 0b1100) != 0) {
        refuse_op(*this, rank, i, "both B and I or W for the same stage, microbatch and slice");
      }
      kinds |= bit;
      has_joint_blocks_ |= op.joined;
    }
  }
  split_backward_ = (kinds & 0b1000) != 0;
  constexpr unsigned kVocabulary = 0b110000;
  for (int rank = 0; (kinds & kVocabulary) != 0 && rank < num_ranks(); ++rank) {
    for (std::size_t i = 0; i < ops(rank).size(); ++i) {
      if (of_vocabulary(ops(rank)[i].kind)) check_op(rank, i);
    }
  }
  check_complete(seen);
}

// The numbers of an op, its rank, and the joint block that it begins.
void Schedule::check_op(int rank, std::size_t index) const {
  const auto list = ops(rank);
  const Op& op = list[index];
  const auto refuse = [&](const std::string& why) { refuse_op(*this, rank, index, why); };
  if (op.stage < 0 || op.stage >= num_stages()) refuse(fmt::format("there are stages 0 to {}", num_stages() - 1));
  if (op.microbatch < 0 || op.microbatch >= total_microbatches()) {
    refuse(fmt::format("there are microbatches 0 to {}", total_microbatches() - 1));
  }
  if (op.slice < 0 || op.slice >= num_slices(op.microbatch)) {
    refuse(fmt::format("there are slices 0 to {}", num_slices(op.microbatch) - 1));
  }
  if (rank_of(op.stage, op.microbatch) != rank) {
    refuse(fmt::format("the placement has this stage on rank {}", rank_of(op.stage, op.microbatch)));
  }
  if (of_vocabulary(op.kind) && !has_vocabulary(op.stage)) {
    refuse(vocabulary_barriers() == 0 ? "needs a schedule with vocabulary_barriers"
                                      : fmt::format("S and T of this rank have stage {}", stages_of(rank).front()));
  }
  if (!op.joined) return;
  const auto gradient = [](OpKind kind) { return kind == OpKind::B || kind == OpKind::I; };
  const bool last = index + 1 == list.size();
  if (last || list[index + 1].joined || (index > 0 && list[index - 1].joined) ||
      !((op.kind == OpKind::F && gradient(list[index + 1].kind)) ||
        (gradient(op.kind) && list[index + 1].kind == OpKind::F))) {
    refuse("a joint block is one F and one B or I, next to each other");
  }
}

// `seen` has a bit for each kind of op, by (stage, unit).
void Schedule::check_complete(const std::vector<std::uint8_t>& seen) const {
  constexpr std::uint8_t kForward = 0b0001;        // F
  constexpr std::uint8_t kWholeBackward = 0b0011;  // F, B
  constexpr std::uint8_t kSplitBackward = 0b1101;  // F, I, W
  constexpr std::uint8_t kVocabulary = 0b110000;   // S, T
  for (int stage = 0; stage < num_stages(); ++stage) {
    const std::uint8_t vocabulary = has_vocabulary(stage) ? kVocabulary : 0;
    for (int mb = 0; mb < total_microbatches(); ++mb) {
      const bool alone = !has_backward(stage, mb);
      for (int slice = 0; slice < num_slices(mb); ++slice) {
        const auto all = seen[stage * num_units_ + first_unit(mb) + slice];
        const auto cell = static_cast<std::uint8_t>(all ^ vocabulary);
        const bool complete = alone ? cell == kForward : cell == kWholeBackward || cell == kSplitBackward;
        if (!complete) refuse_cell(stage, mb, slice, all);
      }
    }
  }
}

// Names the op that is missing, or the backward of a microbatch that has none.
void Schedule::refuse_cell(int stage, int microbatch, int slice, std::uint8_t cell) const {
  Op op{.microbatch = microbatch, .stage = static_cast<std::int16_t>(stage), .slice = static_cast<std::int16_t>(slice)};
  const bool forward = (cell & 0b0001) != 0;
  const bool extra = forward && !has_backward(stage, microbatch);
  const bool input = (cell & 0b0100) != 0;
  const bool weight = (cell & 0b1000) != 0;
  const bool vocabulary = has_vocabulary(stage) && (cell & 0b110000) != 0b110000;
  op.kind = !forward                   ? OpKind::F
            : vocabulary               ? (cell & 0b010000) != 0 ? OpKind::T : OpKind::S
            : (extra ? weight : input) ? OpKind::W
            : (extra ? input : weight) ? OpKind::I
                                       : OpKind::B;
  throw ScheduleError(fmt::format("{}: {} {}", place(rank_of(stage, microbatch)), to_string(op, sliced()),
                                  !extra                           ? "is missing"
                                  : shape(microbatch).forward_only ? "is there, but its microbatch is forward-only"
                                                                   : "is there, but its encoder is frozen"));
}

void refuse_vocabulary(const Schedule& schedule, std::string_view what) {
  if (schedule.vocabulary_barriers() == 0) return;
  throw ScheduleError(fmt::format("{}: vocabulary passes (S, T): {}", schedule.family(), what));
}

int weight_version(const Schedule& schedule, int microbatch, int rank) {
  const int batch = microbatch / schedule.num_microbatches();
  switch (schedule.weight_policy()) {
    case WeightPolicy::flush: return batch;
    case WeightPolicy::double_buffered: return std::max(batch - 1, 0);
    case WeightPolicy::stashed: return std::max(0, microbatch - (schedule.num_ranks() - rank) + 1);
  }
  return 0;
}

int num_weight_versions(const Schedule& schedule, int rank) {
  switch (schedule.weight_policy()) {
    case WeightPolicy::flush: return 1;
    case WeightPolicy::double_buffered: return schedule.num_batches() > 1 ? 2 : 1;
    case WeightPolicy::stashed: {
      // The first p - r forwards all read the initial weights; from then on each reads another version.
      const int total = schedule.total_microbatches();
      const int in_flight = schedule.num_ranks() - rank;
      return total == 1 ? 1 : std::min(in_flight, std::max(total - in_flight, 0) + 2);
    }
  }
  return 1;
}

}  // namespace sluice::model

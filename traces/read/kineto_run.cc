// Combines the ranks of a pipeline: chooses an iteration, matches transfers, aligns clocks.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "model/errors.h"
#include "model/schedule/schedule.h"
#include "traces/read/clocks.h"
#include "traces/read/kineto.h"

namespace sluice::traces {
namespace {

using Kind = PipelineAction::Kind;
using Range = KinetoRank::Range;

class Pipeline {
 public:
  Pipeline(std::vector<KinetoRank> files, const TraceReadOptions& options)
      : files_(std::move(files)), options_(options), num_ranks_(static_cast<int>(files_.size())) {
    name_ = files_[0].source();
    if (num_ranks_ > 1) name_ += fmt::format(" and {} more", num_ranks_ - 1);
  }

  TraceRun run() {
    if (num_ranks_ > kMaxClocks) {
      throw InputError(fmt::format("{}: expected at most {} files, one per rank of one pipeline, got {}", name_,
                                   kMaxClocks, num_ranks_));
    }
    order_ranks();
    check_stages();
    check_clocks();
    choose_iteration();
    for (int rank = 0; rank < num_ranks_; ++rank) add_ops(rank);
    add_transfers();
    align();
    return std::move(out_);
  }

 private:
  void order_ranks() {
    const bool numbered = std::all_of(files_.begin(), files_.end(), [](const KinetoRank& f) { return f.rank(); });
    if (numbered) {
      std::stable_sort(files_.begin(), files_.end(),
                       [](const KinetoRank& a, const KinetoRank& b) { return *a.rank() < *b.rank(); });
      for (std::size_t i = 1; i < files_.size(); ++i) {
        if (files_[i].rank() != files_[i - 1].rank()) continue;
        throw InputError(
            fmt::format("{}: /distributedInfo/rank: expected the distinct ranks of one pipeline, got {} as in {}",
                        files_[i].source(), *files_[i].rank(), files_[i - 1].source()));
      }
    }
    const bool gpu = files_[0].on_gpu();
    for (const KinetoRank& file : files_) {
      if (file.on_gpu() == gpu) continue;
      throw InputError(fmt::format("{}: has {} ranges, but {} has {} ranges", file.source(), gpu ? "only CPU" : "GPU",
                                   files_[0].source(), gpu ? "GPU" : "only CPU"));
    }
    note(fmt::format("{} ranks, {}; {}", num_ranks_, numbered ? "numbered by distributedInfo" : "in file order",
                     files_[0].by_launches() ? "kernels launched in CPU ranges (user_annotation)"
                     : gpu                   ? "GPU ranges (gpu_user_annotation)"
                                             : "CPU ranges (user_annotation); with a GPU these are kernel launches"));
  }

  // Checks that each stage is on exactly one rank.
  void check_stages() {
    std::map<int, int> rank_of;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      std::set<int> stages;
      for (const Range& op : files_[rank].ops()) {
        stages.insert(op.action.op.stage);
        if (op.action.kind == Kind::joint) stages.insert(op.action.partner.stage);
      }
      first_stage_.push_back(*stages.begin());
      for (const int stage : stages) {
        const auto [at, fresh] = rank_of.try_emplace(stage, rank);
        if (fresh) continue;
        throw InputError(fmt::format("{}: stage {} is also in {}: expected the files of one pipeline, one per rank",
                                     files_[rank].source(), stage, files_[at->second].source()));
      }
    }
    int expected = 0;
    for (const auto& [stage, rank] : rank_of) {
      if (stage != expected) {
        throw InputError(fmt::format("{}: no file contains stage {}: is the file of a rank missing?", name_, expected));
      }
      ++expected;
    }
  }

  // Limits the differences of the clocks so that their sums over all ranks do not overflow.
  void check_clocks() const {
    constexpr Duration kMaxDistance = std::chrono::hours(24 * 100);
    Duration first = Duration::max();
    Duration last = Duration::min();
    for (const KinetoRank& file : files_) {
      for (const auto* list : {&file.ops(), &file.transfers(), &file.others()}) {
        for (const Range& range : *list) {
          first = std::min(first, range.start);
          last = std::max(last, range.end);
        }
      }
    }
    if (last - first > kMaxDistance) {
      throw InputError(name_ + ": expected the ranges of all ranks within 100 days");
    }
  }

  // Chooses an iteration: its number on each rank.
  void choose_iteration() {
    std::vector<std::vector<KinetoRank::Iteration>> whole;
    for (const KinetoRank& file : files_) {
      whole.push_back(file.whole_iterations());
      if (file.has_steps() != files_[0].has_steps()) {
        throw InputError(fmt::format("{}: has {}ProfilerStep ranges, but {} has {}", file.source(),
                                     file.has_steps() ? "" : "no ", files_[0].source(),
                                     file.has_steps() ? "none" : "some"));
      }
    }
    std::map<std::int64_t, std::vector<std::int64_t>> steps;  // by number: the number on each rank
    if (files_[0].has_steps()) {
      for (const auto& iteration : whole[0]) {
        const auto has = [&](const auto& list) {
          return std::any_of(list.begin(), list.end(), [&](const auto& i) { return i.number == iteration.number; });
        };
        if (!std::all_of(whole.begin(), whole.end(), has)) continue;
        steps[iteration.number].assign(num_ranks_, iteration.number);
      }
    } else {
      steps = matched(whole);
    }
    if (steps.empty()) throw InputError(name_ + ": expected an iteration that is complete on all ranks, got none");
    const std::int64_t chosen = options_.step.value_or(steps.rbegin()->first);
    const auto found = steps.find(chosen);
    if (found == steps.end()) {
      std::string numbers;
      for (const auto& [number, on_rank] : steps) numbers += (numbers.empty() ? "" : ", ") + std::to_string(number);
      throw InputError(fmt::format("{}: --step: expected one of {}, got {}", name_, numbers, chosen));
    }
    iteration_ = found->second;
    note(fmt::format("{} {}, {} complete on all ranks", files_[0].has_steps() ? "ProfilerStep" : "iteration", chosen,
                     steps.size()));
  }

  // Matches iterations that each rank numbers separately: in order if all ranks have the same number of them, otherwise
  // each iteration of rank 0 with the nearest in time on the other ranks.
  std::map<std::int64_t, std::vector<std::int64_t>> matched(
      const std::vector<std::vector<KinetoRank::Iteration>>& whole) const {
    std::map<std::int64_t, std::vector<std::int64_t>> steps;
    const bool alike =
        std::all_of(whole.begin(), whole.end(), [&](const auto& list) { return list.size() == whole[0].size(); });
    const auto middle = [](const KinetoRank::Iteration& i) { return i.start + (i.end - i.start) / 2; };
    for (std::size_t n = 0; n < whole[0].size(); ++n) {
      std::vector<std::int64_t> on_rank;
      for (const auto& list : whole) {
        if (list.empty()) return {};
        const auto distance = [&](const KinetoRank::Iteration& i) {
          return std::chrono::abs(middle(i) - middle(whole[0][n]));
        };
        const auto nearest = std::min_element(list.begin(), list.end(),
                                              [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
        const bool same = alike || distance(*nearest) < (whole[0][n].end - whole[0][n].start) / 2;
        if (same) on_rank.push_back(alike ? list[n].number : nearest->number);
      }
      if (on_rank.size() == whole.size()) steps[static_cast<std::int64_t>(n)] = on_rank;
    }
    return steps;
  }

  OpRow row_of(const Range& range, int rank, RowKind kind) const {
    return {.kind = kind,
            .rank = static_cast<std::int16_t>(rank),
            .op = range.action.op,
            .partner = range.action.partner,
            .start = range.start,
            .end = range.end};
  }

  void add_ops(int rank) {
    const KinetoRank& file = files_[rank];
    std::vector<OpRow>& rows = out_.run.rows;
    for (const Range& op : file.ops()) {
      if (op.iteration != iteration_[rank]) continue;
      rows.push_back(row_of(op, rank, op.action.kind == Kind::joint ? RowKind::joint : row_kind(op.action.op.kind)));
    }
    // The ranges of several optimizers, or of one reduction on several streams, are merged into one row.
    std::map<std::pair<RowKind, int>, OpRow> others;
    for (const Range& range : file.others()) {
      if (range.iteration != iteration_[rank]) continue;
      const bool reduce = range.action.kind == Kind::reduce;
      OpRow row = row_of(range, rank, reduce ? RowKind::collective : RowKind::optimizer);
      row.op = {.stage = static_cast<std::int16_t>(reduce ? range.action.op.stage : first_stage_[rank])};
      const auto [at, fresh] = others.try_emplace({row.kind, row.op.stage}, row);
      if (!fresh) at->second.end = std::max(at->second.end, row.end);
    }
    for (const auto& [key, row] : others) rows.push_back(row);
  }

  // Matches the sends on the GPU with the receives of the neighboring stage.
  void add_transfers() {
    if (!files_[0].on_gpu()) return;
    using Key = std::tuple<OpKind, int, int, int>;  // F or B, the sending stage, microbatch, slice
    struct Ends {
      const Range* send = nullptr;
      const Range* receive = nullptr;
      int from = 0;
      int to = 0;
    };
    std::map<Key, Ends> ends;
    std::int64_t unmatched = 0;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      for (const Range& range : files_[rank].transfers()) {
        if (range.iteration != iteration_[rank]) continue;
        const RowOp& op = range.action.op;
        const bool send = range.action.kind == Kind::send;
        const int sender = send ? op.stage : op.stage + (op.kind == OpKind::F ? -1 : 1);
        Ends& both = ends[{op.kind, sender, op.microbatch, op.slice}];
        (send ? both.send : both.receive) = &range;
        (send ? both.from : both.to) = rank;
      }
    }
    const std::set<Key> input_gradients = split_backwards();
    for (const auto& [key, both] : ends) {
      if (both.send == nullptr || both.receive == nullptr || both.from == both.to) {
        ++unmatched;
        continue;
      }
      messages_.push_back({both.from, both.to, both.send->end, both.receive->end});
      auto [kind, stage, microbatch, slice] = key;
      if (kind == OpKind::B && input_gradients.contains(key)) kind = OpKind::I;
      transfers_.push_back(
          {.kind = RowKind::transfer,
           .rank = static_cast<std::int16_t>(both.from),
           .peer = static_cast<std::int16_t>(both.to),
           .op = {microbatch, static_cast<std::int16_t>(stage), static_cast<std::int16_t>(slice), kind},
           .start = both.send->start,
           .end = both.send->end});
    }
    if (unmatched > 0) note(fmt::format("{} sends or receives without the other end ignored", unmatched));
    std::int64_t negative = 0;
    for (const KinetoRank& file : files_) negative += file.num_negative();
    if (negative > 0) note(fmt::format("{} durations below 0, the resolution of a clock: counted as 0", negative));
  }

  // Returns the keys of split backwards, whose gradients are sent by an I.
  std::set<std::tuple<OpKind, int, int, int>> split_backwards() const {
    std::set<std::tuple<OpKind, int, int, int>> out;
    for (const OpRow& row : out_.run.rows) {
      for (const RowOp& op : {row.op, row.partner}) {
        if (op.kind == OpKind::I) out.insert({OpKind::B, op.stage, op.microbatch, op.slice});
      }
    }
    return out;
  }

  // Puts all rows on one clock, with 0 at the first start.
  void align() {
    std::vector<OpRow>& rows = out_.run.rows;
    const ClockAlignment clocks = align_clocks(num_ranks_, rows, messages_);
    if (num_ranks_ > 1) note(clocks.describe());
    const auto offset = [&](int rank) { return clocks.offsets[rank]; };
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      OpRow& row = transfers_[i];
      // The receive ends when all data has arrived.
      row.latency = std::max(messages_[i].received + offset(row.peer) - (row.end + offset(row.rank)), Duration::zero());
      rows.push_back(row);
    }
    Duration first = Duration::max();
    for (const OpRow& row : rows) first = std::min(first, row.start + offset(row.rank));
    for (OpRow& row : rows) {
      row.start += offset(row.rank) - first;
      row.end += offset(row.rank) - first;
      out_.run.sliced |= row.op.slice > 0 || row.partner.slice > 0;
    }
    out_.run.num_ranks = num_ranks_;
  }

  void note(std::string text) { out_.notes.push_back(std::move(text)); }

  std::vector<KinetoRank> files_;
  TraceReadOptions options_;
  int num_ranks_;
  std::string name_;
  std::vector<int> first_stage_;         // by rank
  std::vector<std::int64_t> iteration_;  // by rank
  std::vector<MatchedMessage> messages_;
  std::vector<OpRow> transfers_;  // parallel to messages_
  TraceRun out_;
};

}  // namespace

TraceRun kineto_run(std::vector<KinetoRank> files, const TraceReadOptions& options) {
  return Pipeline(std::move(files), options).run();
}

}  // namespace sluice::traces

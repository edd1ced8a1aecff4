// Puts the ranks of a pipeline together: which iteration, which transfers, one clock.

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
    if (num_ranks_ > kMostClocks) {
      throw InputError(fmt::format("{}: expected at most {} files, one for each rank of one pipeline, got {}", name_,
                                   kMostClocks, num_ranks_));
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
        throw InputError(fmt::format("{}: /distributedInfo/rank: expected the ranks of one pipeline, got {} as in {}",
                                     files_[i].source(), *files_[i].rank(), files_[i - 1].source()));
      }
    }
    const bool gpu = files_[0].on_gpu();
    for (const KinetoRank& file : files_) {
      if (file.on_gpu() == gpu) continue;
      throw InputError(fmt::format("{}: ranges of the {}, where {} has those of the {}", file.source(),
                                   gpu ? "CPU alone" : "GPU", files_[0].source(), gpu ? "GPU" : "CPU alone"));
    }
    note(fmt::format("{} ranks, {}; {}", num_ranks_, numbered ? "numbered by distributedInfo" : "in the order of files",
                     gpu ? "ranges of the GPU (gpu_user_annotation)"
                         : "ranges of the CPU (user_annotation): with a GPU these are the launches"));
  }

  // Each stage on one rank, and none left out.
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
        throw InputError(fmt::format("{}: stage {} is in {} too: expected the files of one pipeline, one for each rank",
                                     files_[rank].source(), stage, files_[at->second].source()));
      }
    }
    int expected = 0;
    for (const auto& [stage, rank] : rank_of) {
      if (stage != expected) {
        throw InputError(fmt::format("{}: no file has stage {}: is that of a rank missing?", name_, expected));
      }
      ++expected;
    }
  }

  // Clocks may be far apart, but not so far that sums of their differences over all ranks would not fit.
  void check_clocks() const {
    constexpr Duration kMostApart = std::chrono::hours(24 * 100);
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
    if (last - first > kMostApart) {
      throw InputError(name_ + ": expected ranges within 100 days of each other, on the clocks of all ranks");
    }
  }

  // The number that a step of the pipeline has on each rank.
  void choose_iteration() {
    std::vector<std::vector<KinetoRank::Iteration>> whole;
    for (const KinetoRank& file : files_) {
      whole.push_back(file.whole_iterations());
      if (file.has_steps() != files_[0].has_steps()) {
        throw InputError(fmt::format("{}: {} ProfilerStep ranges, where {} has {}", file.source(),
                                     file.has_steps() ? "has" : "has no", files_[0].source(),
                                     file.has_steps() ? "none" : "some"));
      }
    }
    std::map<std::int64_t, std::vector<std::int64_t>> steps;  // by number: that on each rank
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
    if (steps.empty()) throw InputError(name_ + ": expected an iteration that is whole on all ranks, got none");
    const std::int64_t chosen = options_.step.value_or(steps.rbegin()->first);
    const auto found = steps.find(chosen);
    if (found == steps.end()) {
      std::string numbers;
      for (const auto& [number, on_rank] : steps) numbers += (numbers.empty() ? "" : ", ") + std::to_string(number);
      throw InputError(fmt::format("{}: --step: expected one of {}, got {}", name_, numbers, chosen));
    }
    iteration_ = found->second;
    note(fmt::format("{} {} of {} that are whole on all ranks", files_[0].has_steps() ? "ProfilerStep" : "iteration",
                     chosen, steps.size()));
  }

  // Iterations of ranks that number them each for itself: in their order where all have as many, else each of rank 0
  // with what is nearest in time on the others.
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
    // Ranges of several optimizers, or of one reduction on several streams, are one row.
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

  // Sends of the GPU and the receives of the neighbouring stage; both ends must be there.
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
    std::int64_t alone = 0;
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
        ++alone;
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
    if (alone > 0) note(fmt::format("{} sends or receives without their other end are left out", alone));
  }

  // Backwards that are split: what is sent is made by an I.
  std::set<std::tuple<OpKind, int, int, int>> split_backwards() const {
    std::set<std::tuple<OpKind, int, int, int>> out;
    for (const OpRow& row : out_.run.rows) {
      for (const RowOp& op : {row.op, row.partner}) {
        if (op.kind == OpKind::I) out.insert({OpKind::B, op.stage, op.microbatch, op.slice});
      }
    }
    return out;
  }

  // One clock, which is 0 at the first start.
  void align() {
    std::vector<OpRow>& rows = out_.run.rows;
    const ClockAlignment clocks = align_clocks(num_ranks_, rows, messages_);
    if (num_ranks_ > 1) note(clocks.describe());
    const auto offset = [&](int rank) { return clocks.offsets[rank]; };
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      OpRow& row = transfers_[i];
      // The receive ends when all has arrived.
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
  std::vector<Message> messages_;
  std::vector<OpRow> transfers_;  // beside messages_
  TraceRun out_;
};

}  // namespace

TraceRun kineto_run(std::vector<KinetoRank> files, const TraceReadOptions& options) {
  return Pipeline(std::move(files), options).run();
}

}  // namespace sluice::traces

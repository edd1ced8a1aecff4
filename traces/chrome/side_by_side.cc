#include "traces/chrome/side_by_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include "model/errors.h"
#include "model/to_size.h"
#include "traces/chrome/event_text.h"
#include "traces/chrome/gzip.h"
#include "traces/chrome/trace_tracks.h"

namespace sluice::traces {
namespace {

void check_names(const std::array<TraceSide, 2>& sides) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -._";
  for (const TraceSide& side : sides) {
    if (side.name.empty() || side.name.find_first_not_of(kAllowed) != std::string::npos) {
      throw InputError(
          fmt::format("trace of two runs: expected a name of letters, digits, spaces and - . _, got '{}'", side.name));
    }
  }
  if (sides[0].name == sides[1].name) {
    throw InputError(fmt::format("trace of two runs: expected two different names, got '{}' twice", sides[0].name));
  }
}

class Writer {
 public:
  explicit Writer(const ByteSink& sink) : text_(sink) {}

  std::int64_t write(const std::array<TraceSide, 2>& sides, const std::string& scenario) {
    text_ << R"({"sluice":{"schema":"sluice.trace/1","version":")" << SLUICE_VERSION << R"(","scenario":)"
          << (scenario.empty() ? std::string_view("null") : std::string_view(scenario)) << R"(,"sides":[)";
    for (std::size_t i = 0; i < sides.size(); ++i) {
      text_ << (i == 0 ? "" : ",") << R"({"name":")" << sides[i].name << R"(","ranks":)" << sides[i].run->num_ranks
            << "}";
    }
    text_ << "]},\n\"traceEvents\":[";
    first_pid_ = 1;
    for (std::size_t i = 0; i < sides.size(); ++i) {
      write_side(sides[i], static_cast<int>(i));
      first_pid_ += sides[i].run->num_ranks;
    }
    text_ << "\n]}\n";
    text_.flush();
    return events_;
  }

 private:
  void write_side(const TraceSide& side, int number) {
    run_ = side.run;
    const TraceTracks tracks(run_->num_ranks, run_->rows);
    tracks_ = &tracks;
    drawn_until_.clear();
    find_chunks();
    for (int rank = 0; rank < run_->num_ranks; ++rank) write_names(rank, side.name, number);

    // By start time, to detect overlaps; rows with equal starts keep their order.
    std::vector<std::int32_t> order(run_->rows.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return row(a).start < row(b).start; });
    for (const std::int32_t i : order) {
      if (row(i).kind == RowKind::transfer) {
        write_transfer(row(i));
      } else {
        write_work(row(i));
      }
      text_.flush_if_full();
    }
    for (int rank = 0; rank < std::min(run_->num_ranks, static_cast<int>(run_->memory.size())); ++rank) {
      write_memory_events(text_, pid(rank), run_->memory[rank], [this] { next_event(); });
    }
  }

  const OpRow& row(std::int32_t i) const { return run_->rows[i]; }
  int pid(int rank) const { return first_pid_ + rank; }

  // The chunk of a stage is its index among the stages of the rank.
  void find_chunks() {
    std::vector<std::set<int>> stages(to_size(run_->num_ranks));
    for (const OpRow& row : run_->rows) {
      if (!occupies_rank(row.kind)) continue;
      stages[row.rank].insert(row.op.stage);
      if (row.kind == RowKind::joint) stages[row.rank].insert(row.partner.stage);
    }
    chunks_.clear();
    for (int rank = 0; rank < run_->num_ranks; ++rank) {
      int chunk = 0;
      for (const int stage : stages[rank]) chunks_[{rank, stage}] = chunk++;
    }
  }

  int chunk_of(int rank, int stage) const {
    const auto chunk = chunks_.find({rank, stage});
    return chunk == chunks_.end() ? 0 : chunk->second;
  }

  void next_event() {
    text_ << (events_ == 0 ? "\n" : ",\n");
    ++events_;
  }

  void write_names(int rank, const std::string& side, int number) {
    next_event();
    text_ << R"({"ph":"M","pid":)" << pid(rank) << R"(,"name":"process_name","args":{"name":")" << side << " rank "
          << rank << R"("}})";
    next_event();
    text_ << R"({"ph":"M","pid":)" << pid(rank) << R"(,"name":"process_sort_index","args":{"sort_index":)"
          << 2 * rank + number << "}}";
    for (const auto& [track, name] : tracks_->named(rank)) {
      next_event();
      text_ << R"({"ph":"M","pid":)" << pid(rank) << R"(,"tid":)" << track
            << R"(,"name":"thread_name","args":{"name":")" << name << R"("}})";
      next_event();
      text_ << R"({"ph":"M","pid":)" << pid(rank) << R"(,"tid":)" << track
            << R"(,"name":"thread_sort_index","args":{"sort_index":)" << track << "}}";
    }
  }

  Duration& drawn_until(int rank, int track) { return drawn_until_[{rank, track}]; }

  template <typename WriteName>
  void open_slice(int rank, int track, std::string_view category, Duration start, Duration end, WriteName&& name) {
    next_event();
    text_ << R"({"ph":"X","pid":)" << pid(rank) << R"(,"tid":)" << track << R"(,"ts":)" << start << R"(,"dur":)"
          << end - start << R"(,"cat":")" << category << R"(","name":")";
    name();
    text_ << R"(","args":{)";
    drawn_until(rank, track) = end;
  }

  void close_slice(const OpRow& row) {
    if (row.need != kNoRow) text_ << R"(,"waited_for":")" << name_of(this->row(row.need), run_->sliced) << R"(")";
    text_ << "}}";
  }

  void op_args(const RowOp& op, int rank) {
    text_ << R"("stage":)" << int{op.stage} << R"(,"chunk":)" << chunk_of(rank, op.stage) << R"(,"microbatch":)"
          << op.microbatch << R"(,"slice":)" << int{op.slice};
  }

  void short_name(const RowOp& op) {
    const char letter_of[] = {letter(op.kind), '\0'};
    text_ << letter_of << op.microbatch;
  }

  void write_work(const OpRow& row) {
    const int track = row.kind == RowKind::optimizer    ? kOptimizerTrack
                      : row.kind == RowKind::collective ? kCollectiveTrack
                      : row.kind == RowKind::offload    ? copy_track(row.op.kind)
                                                        : kComputeTrack;
    const Duration start = std::max(row.start, drawn_until(row.rank, track));
    const Duration end = std::max(row.end, start);
    switch (row.kind) {
      case RowKind::optimizer:
        open_slice(row.rank, track, "opt", start, end, [&] { text_ << "optimizer " << row.op.microbatch; });
        text_ << R"("stage":)" << int{row.op.stage} << R"(,"chunk":)" << chunk_of(row.rank, row.op.stage)
              << R"(,"step":)" << row.op.microbatch;
        break;
      case RowKind::collective:
        open_slice(row.rank, track, "coll", start, end,
                   [&] { text_ << name_of(row.collective) << " " << row.op.microbatch; });
        if (row.op.stage >= 0) text_ << R"("stage":)" << int{row.op.stage} << ",";
        text_ << R"("step":)" << row.op.microbatch << R"(,"bytes":)" << row.bytes;
        break;
      case RowKind::offload:
        open_slice(row.rank, track, "host", start, end,
                   [&] { text_ << (row.op.kind == OpKind::F ? "offload F" : "reload F") << row.op.microbatch; });
        op_args(row.op, row.rank);
        text_ << R"(,"bytes":)" << row.bytes;
        break;
      default:
        open_slice(row.rank, track, "compute", start, end, [&] {
          if (row.kind == RowKind::recompute) {
            text_ << "R" << row.op.microbatch;
          } else {
            short_name(row.op);
          }
          if (row.kind != RowKind::joint) return;
          text_ << "+";
          short_name(row.partner);
        });
        op_args(row.op, row.rank);
        if (row.kind == RowKind::joint) {
          text_ << R"(,"with":{)";
          op_args(row.partner, row.rank);
          text_ << "}";
        }
    }
    close_slice(row);
  }

  void write_transfer(const OpRow& row) {
    const Lane link{.kind = LaneKind::link, .rank = row.rank, .peer = row.peer};
    const int send = tracks_->send_track(link, row.op.kind);
    const int recv = tracks_->recv_track(link, row.op.kind);
    const Duration start = std::max(row.start, drawn_until(row.rank, send));
    const Duration arrives = std::max(start + row.latency, drawn_until(row.peer, recv));
    const Duration end = std::max(row.end, start + Duration{1});
    ++flows_;
    write_end(row, row.rank, send, "send ", start, end - start, R"("s")");
    write_end(row, row.peer, recv, "recv ", arrives, end - start, R"("f","bp":"e")");
  }

  // Writes the slice at one end of a transfer, followed by that end of the flow.
  void write_end(const OpRow& row, int rank, int track, std::string_view verb, Duration start, Duration duration,
                 std::string_view phase) {
    open_slice(rank, track, "p2p", start, start + duration, [&] {
      text_ << verb;
      short_name(row.op);
    });
    op_args(row.op, row.rank);
    text_ << R"(,"bytes":)" << row.bytes;
    close_slice(row);
    next_event();
    text_ << R"({"ph":)" << phase << R"(,"id":)" << flows_ << R"(,"pid":)" << pid(rank) << R"(,"tid":)" << track
          << R"(,"ts":)" << start << R"(,"cat":"p2p","name":")";
    short_name(row.op);
    text_ << R"("})";
  }

  EventText text_;
  const RunRows* run_ = nullptr;
  const TraceTracks* tracks_ = nullptr;
  std::map<std::pair<int, int>, int> chunks_;            // (rank, stage)
  std::map<std::pair<int, int>, Duration> drawn_until_;  // (rank, track)
  int first_pid_ = 1;
  std::int64_t events_ = 0;
  std::int64_t flows_ = 0;
};

}  // namespace

std::int64_t write_side_by_side(const ByteSink& sink, const std::array<TraceSide, 2>& sides,
                                const std::string& scenario) {
  check_names(sides);
  return Writer(sink).write(sides, scenario);
}

std::int64_t write_side_by_side_file(const std::string& path, const std::array<TraceSide, 2>& sides,
                                     const std::string& scenario) {
  std::int64_t events = 0;
  write_maybe_zipped(path, [&](const ByteSink& sink) { events = write_side_by_side(sink, sides, scenario); });
  return events;
}

}  // namespace sluice::traces

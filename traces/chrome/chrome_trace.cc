#include "traces/chrome/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "model/timeline/causes.h"
#include "traces/chrome/event_text.h"
#include "traces/chrome/gzip.h"
#include "traces/chrome/trace_tracks.h"
#include "traces/rows/run_rows.h"

namespace sluice::traces {
namespace {

constexpr std::int64_t kWarnAbove = 1'000'000;

std::string_view op_letter(OpKind kind) { return kOpLetters.substr(static_cast<std::size_t>(kind), 1); }

std::int64_t num_changes(const RankMemory& memory) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < memory.samples.size(); ++i) count += changes(memory, i) ? 1 : 0;
  return count;
}

class TraceWriter {
 public:
  TraceWriter(const ByteSink& sink, const OpGraph& graph, const Timeline& timeline, const TraceOptions& options)
      : graph_(graph), timeline_(timeline), tracks_(graph, options), text_(sink), transfers_(graph, timeline) {
    text_ << R"({"sluice":{"schema":"sluice.trace/1","version":")" << SLUICE_VERSION << R"(","scenario":)"
          << (options.scenario.empty() ? std::string_view("null") : std::string_view(options.scenario));
    if (options.waited_for_cores) text_ << R"(,"waited_for_cores":true)";
    if (options.shared_cores) text_ << R"(,"shared_cores":true)";
    if (!options.ranks.empty()) {
      text_ << R"(,"world_ranks":[)";
      bool first = true;
      for (int rank = 0; rank < graph.schedule().num_ranks(); ++rank) {
        if (!tracks_.shown(rank)) continue;
        text_ << (first ? "" : ",") << tracks_.pid(rank) - 1;
        first = false;
      }
      text_ << "]";
    }
    text_ << "},\n\"traceEvents\":[";
  }

  std::int64_t write(std::span<const RankMemory> memory, const TraceOptions& options) {
    for (int rank = 0; rank < graph_.schedule().num_ranks(); ++rank) {
      if (tracks_.shown(rank)) write_names(rank);
    }
    for (VertexId v = 0; v < graph_.size(); ++v) {
      if (!options.ended.empty() && options.ended[v] == 0) continue;
      switch (graph_[v].kind) {
        case VertexKind::transfer: write_transfer(v); break;
        case VertexKind::collective: write_collective(v); break;
        case VertexKind::offload: write_copy(v); break;
        default: write_work(v);
      }
      text_.flush_if_full();
    }
    for (const PartRow& part : options.parts) {
      const bool ended = options.ended.empty() || options.ended[part.vertex] != 0;
      if (ended && tracks_.shown(part.rank)) write_part(part);
      text_.flush_if_full();
    }
    if (options.idle) {
      for (const IdleInterval& interval : idle_intervals(graph_, timeline_)) {
        if (tracks_.shown(interval.rank)) write_idle(interval);
        text_.flush_if_full();
      }
    }
    for (int rank = 0; rank < std::ssize(memory); ++rank) {
      if (!tracks_.shown(rank)) continue;
      write_memory_events(text_, tracks_.pid(rank), memory[rank], [this] { next_event(); });
    }
    text_ << "\n]}\n";
    text_.flush();
    return events_;
  }

 private:
  void next_event() {
    text_ << (events_ == 0 ? "\n" : ",\n");
    ++events_;
  }

  void write_names(int rank) {
    const int pid = tracks_.pid(rank);
    next_event();
    text_ << R"({"ph":"M","pid":)" << pid << R"(,"name":"process_name","args":{"name":"rank )" << pid - 1 << R"("}})";
    next_event();
    text_ << R"({"ph":"M","pid":)" << pid << R"(,"name":"process_sort_index","args":{"sort_index":)" << pid - 1 << "}}";
    for (const auto& [track, name] : tracks_.named(rank)) {
      next_event();
      text_ << R"({"ph":"M","pid":)" << pid << R"(,"tid":)" << track << R"(,"name":"thread_name","args":{"name":")"
            << name << R"("}})";
      next_event();
      text_ << R"({"ph":"M","pid":)" << pid << R"(,"tid":)" << track
            << R"(,"name":"thread_sort_index","args":{"sort_index":)" << track << "}}";
    }
  }

  // Writes a slice up to its args; `write_name` appends the name.
  template <typename WriteName>
  void open_slice(int rank, int track, std::string_view category, Duration start, Duration duration,
                  WriteName&& write_name) {
    next_event();
    text_ << R"({"ph":"X","pid":)" << tracks_.pid(rank) << R"(,"tid":)" << track << R"(,"ts":)" << start << R"(,"dur":)"
          << duration << R"(,"cat":")" << category << R"(","name":")";
    write_name();
    text_ << R"(","args":{)";
  }

  void close_slice(VertexId v) {
    if (const VertexId need = last_need(graph_, timeline_, v).vertex; need != kNoVertex) {
      text_ << R"(,"waited_for":")" << graph_.name(need) << R"(")";
    }
    text_ << "}}";
  }

  void op_args(const Vertex& op, int rank) {
    text_ << R"("stage":)" << op.stage << R"(,"chunk":)" << graph_.schedule().chunk_of(rank, op.stage)
          << R"(,"microbatch":)" << op.microbatch << R"(,"slice":)" << op.slice;
  }

  // Bytes that an F allocates and keeps until its backward.
  void kept_bytes(const Vertex& op) {
    if (!graph_.has_bytes() || op.op != OpKind::F) return;
    const SliceBytes& bytes = graph_.slice_bytes(op.stage, op.microbatch, op.slice);
    text_ << R"(,"bytes":)"
          << bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient + bytes.keys_values;
  }

  // Compute, joint blocks, recomputation, optimizer steps.
  void write_work(VertexId v) {
    const Vertex& op = graph_[v];
    const int rank = graph_.rank_of(v);
    if (!tracks_.shown(rank)) return;
    const Duration start = timeline_.start[v];
    const Duration duration = timeline_.end[v] - start;
    if (op.kind == VertexKind::optimizer) {
      open_slice(rank, kOptimizerTrack, "opt", start, duration, [&] { text_ << "optimizer " << op.microbatch; });
      text_ << R"("stage":)" << op.stage << R"(,"chunk":)" << graph_.schedule().chunk_of(rank, op.stage)
            << R"(,"step":)" << op.microbatch;
      return close_slice(v);
    }
    const Vertex* partner = op.kind == VertexKind::joint ? &graph_.joint_partner(op) : nullptr;
    open_slice(rank, kComputeTrack, "compute", start, duration, [&] {
      text_ << (op.kind == VertexKind::recompute ? "R" : op_letter(op.op)) << op.microbatch;
      if (partner != nullptr) text_ << "+" << op_letter(partner->op) << partner->microbatch;
    });
    op_args(op, rank);
    if (op.kind != VertexKind::recompute) kept_bytes(op);
    if (partner != nullptr) {
      text_ << R"(,"with":{)";
      op_args(*partner, rank);
      kept_bytes(*partner);
      text_ << "}";
    }
    close_slice(v);
  }

  // A part of an op: within the op's slice, or on the track of communication.
  void write_part(const PartRow& part) {
    const int track = communicates(part.part.part) ? kDispatchTrack : kComputeTrack;
    open_slice(part.rank, track, "part", part.start, part.end - part.start, [&] { text_ << to_string(part.part); });
    text_ << R"("layer":)" << part.layer << R"(,"op":")" << graph_.name(part.vertex) << R"("}})";
  }

  void write_collective(VertexId v) {
    const Vertex& vertex = graph_[v];
    const Collective collective = graph_.collective(vertex);
    const Duration start = timeline_.start[v];
    for (const int rank : collective.ranks) {
      if (!tracks_.shown(rank)) continue;
      open_slice(rank, kCollectiveTrack, "coll", start, timeline_.end[v] - start,
                 [&] { text_ << name_of(collective.kind) << " " << vertex.microbatch; });
      if (collective.stage >= 0) text_ << R"("stage":)" << collective.stage << ",";
      text_ << R"("step":)" << vertex.microbatch << R"(,"bytes":)" << collective.bytes;
      close_slice(v);
    }
  }

  void write_copy(VertexId v) {
    const Vertex& op = graph_[v];
    const int rank = graph_.rank_of(v);
    if (!tracks_.shown(rank)) return;
    const Duration start = timeline_.start[v];
    open_slice(rank, copy_track(op.op), "host", start, timeline_.end[v] - start,
               [&] { text_ << (op.op == OpKind::F ? "offload F" : "reload F") << op.microbatch; });
    op_args(op, rank);
    text_ << R"(,"bytes":)" << graph_.offload_bytes(op).sum();
    close_slice(v);
  }

  void write_transfer(VertexId v) {
    const Vertex& op = graph_[v];
    const Lane& link = graph_.lanes()[op.lane];
    const bool send_shown = tracks_.shown(link.rank);
    const bool recv_shown = tracks_.shown(link.peer);
    if (!send_shown && !recv_shown) return;

    const auto [start, end, arrives] = transfers_.draw(v);
    const bool flow = send_shown && recv_shown;
    if (flow) ++flows_;
    if (send_shown) {
      const int track = tracks_.send_track(link, op.op);
      transfer_slice(v, link.rank, track, "send ", start, end - start);
      if (flow) flow_end(link.rank, track, op, R"("s")", start);
    }
    if (recv_shown) {
      const int track = tracks_.recv_track(link, op.op);
      transfer_slice(v, link.peer, track, "recv ", arrives, end - start);
      if (flow) flow_end(link.peer, track, op, R"("f","bp":"e")", arrives);
    }
  }

  void transfer_slice(VertexId v, int rank, int track, std::string_view verb, Duration start, Duration duration) {
    const Vertex& op = graph_[v];
    open_slice(rank, track, "p2p", start, duration, [&] { text_ << verb << op_letter(op.op) << op.microbatch; });
    op_args(op, graph_.rank_of(v));
    text_ << R"(,"bytes":)" << graph_.transfer_bytes(op);
    close_slice(v);
  }

  // Perfetto pairs flow events by category, name and id. Each follows its slice, which must be open at that point.
  void flow_end(int rank, int track, const Vertex& op, std::string_view phase, Duration time) {
    next_event();
    text_ << R"({"ph":)" << phase << R"(,"id":)" << flows_ << R"(,"pid":)" << tracks_.pid(rank) << R"(,"tid":)" << track
          << R"(,"ts":)" << time << R"(,"cat":"p2p","name":")" << op_letter(op.op) << op.microbatch << R"("})";
  }

  void write_idle(const IdleInterval& interval) {
    const std::string_view cause = kIdleCauseNames[static_cast<std::size_t>(interval.cause)];
    open_slice(interval.rank, kComputeTrack, "idle", interval.start, interval.end - interval.start,
               [&] { text_ << "idle " << cause; });
    text_ << R"("cause":")" << cause << R"(")";
    if (interval.from_rank >= 0) text_ << R"(,"from_rank":)" << tracks_.pid(interval.from_rank) - 1;
    if (interval.next != kNoVertex) text_ << R"(,"next":")" << graph_.name(interval.next) << R"(")";
    if (interval.waits_for != kNoVertex) text_ << R"(,"waited_for":")" << graph_.name(interval.waits_for) << R"(")";
    text_ << "}}";
  }

  const OpGraph& graph_;
  const Timeline& timeline_;
  TraceTracks tracks_;
  EventText text_;
  TransferDrawing transfers_;
  std::int64_t events_ = 0;
  std::int64_t flows_ = 0;
};

}  // namespace

std::int64_t write_chrome_trace(const ByteSink& sink, const OpGraph& graph, const Timeline& timeline,
                                std::span<const RankMemory> memory, const TraceOptions& options) {
  return TraceWriter(sink, graph, timeline, options).write(memory, options);
}

std::int64_t write_trace_file(const std::string& path, const OpGraph& graph, const Timeline& timeline,
                              std::span<const RankMemory> memory, const TraceOptions& options) {
  std::int64_t events = 0;
  write_maybe_zipped(
      path, [&](const ByteSink& sink) { events = write_chrome_trace(sink, graph, timeline, memory, options); });
  return events;
}

std::int64_t count_trace_events(const OpGraph& graph, const Timeline& timeline, std::span<const RankMemory> memory,
                                const TraceOptions& options) {
  const TraceTracks tracks(graph, options);
  std::int64_t events = 0;
  for (int rank = 0; rank < graph.schedule().num_ranks(); ++rank) {
    if (!tracks.shown(rank)) continue;
    events += 2 + 2 * std::ssize(tracks.named(rank));
    if (rank < std::ssize(memory)) events += num_changes(memory[rank]);
  }
  for (const PartRow& part : options.parts) {
    events += tracks.shown(part.rank) && (options.ended.empty() || options.ended[part.vertex] != 0) ? 1 : 0;
  }
  if (options.idle) {
    for (const IdleInterval& interval : idle_intervals(graph, timeline)) events += tracks.shown(interval.rank) ? 1 : 0;
  }
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (!options.ended.empty() && options.ended[v] == 0) continue;
    const Vertex& vertex = graph[v];
    const Lane& lane = graph.lanes()[vertex.lane];
    if (vertex.kind == VertexKind::collective) {
      const auto ranks = graph.collective(vertex).ranks;
      events += std::count_if(ranks.begin(), ranks.end(), [&](int rank) { return tracks.shown(rank); });
    } else if (vertex.kind == VertexKind::transfer) {
      const int ends = (tracks.shown(lane.rank) ? 1 : 0) + (tracks.shown(lane.peer) ? 1 : 0);
      events += ends == 2 ? 4 : ends;
    } else if (tracks.shown(lane.rank)) {
      ++events;
    }
  }
  return events;
}

std::string trace_size_warning(std::int64_t events) {
  if (events <= kWarnAbove) return "";
  constexpr std::int64_t kBytesPerEvent = 155;  // measured on 1F1B: half of its events are slices, half flows
  return fmt::format(
      "the trace has {} events, about {} MB uncompressed; viewers become slow above a million events: write fewer "
      "ranks",
      events, events * kBytesPerEvent / 1'000'000);
}

}  // namespace sluice::traces

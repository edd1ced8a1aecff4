#include "traces/text/op_table.h"

#include <fmt/format.h>

#include <iterator>
#include <vector>

#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"

namespace sluice::traces {
namespace {

std::string what(const OpGraph& graph, const Vertex& vertex) {
  switch (vertex.kind) {
    case VertexKind::compute: return {letter(vertex.op)};
    case VertexKind::joint: return fmt::format("{}+{}", letter(vertex.op), letter(graph.joint_partner(vertex).op));
    case VertexKind::recompute: return "recompute";
    case VertexKind::transfer: return fmt::format("send {}", letter(vertex.op));
    case VertexKind::collective: return std::string(name_of(graph.collective(vertex).kind));
    case VertexKind::optimizer: return "optimizer";
    case VertexKind::offload: return vertex.op == OpKind::F ? "offload" : "reload";
  }
  return "?";
}

// Seconds with nine decimals.
std::string seconds(Duration time) {
  return fmt::format("{}.{:09}", time.count() / 1'000'000'000, time.count() % 1'000'000'000);
}

// Returns by op the root of the largest part of the idle time before it.
std::vector<RootedIdle> main_roots(const OpGraph& graph, const Timeline& timeline) {
  std::vector<RootedIdle> out(graph.size());
  for (const RootedIdle& part : idle_roots(graph, timeline)) {
    if (part.next != kNoVertex && part.idle > out[part.next].idle) out[part.next] = part;
  }
  return out;
}

}  // namespace

void write_op_table(const ByteSink& sink, const OpGraph& graph, const Timeline& timeline) {
  constexpr std::size_t kFlushAt = std::size_t{1} << 20;
  std::string out =
      "rank,peer,what,stage,chunk,microbatch,slice,start_s,end_s,slack_s,critical,bytes,waited_for,root\n";
  const auto to = std::back_inserter(out);
  const std::vector<Duration> free = slack(graph, timeline);
  const std::vector<RootedIdle> roots = main_roots(graph, timeline);
  std::vector<char> critical(graph.size(), 0);
  for (const VertexId v : critical_path(graph, timeline).vertices) critical[v] = 1;
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    const int rank = graph.rank_of(v);
    const bool transfer = vertex.kind == VertexKind::transfer;
    const bool collective = vertex.kind == VertexKind::collective;
    fmt::format_to(to, "{},", rank);
    if (transfer) fmt::format_to(to, "{}", graph.lanes()[vertex.lane].peer);
    fmt::format_to(to, ",{},", what(graph, vertex));
    if (vertex.stage >= 0) fmt::format_to(to, "{}", vertex.stage);
    out += ',';
    if (vertex.stage >= 0 && !collective) fmt::format_to(to, "{}", graph.schedule().chunk_of(rank, vertex.stage));
    fmt::format_to(to, ",{},{},{},{},{},{},", vertex.microbatch, vertex.slice, seconds(timeline.start[v]),
                   seconds(timeline.end[v]), seconds(free[v]), static_cast<int>(critical[v]));
    if (transfer) fmt::format_to(to, "{}", graph.transfer_bytes(vertex));
    if (collective) fmt::format_to(to, "{}", graph.collective(vertex).bytes);
    if (vertex.kind == VertexKind::offload) fmt::format_to(to, "{}", graph.offload_bytes(vertex).sum());
    const VertexId need = last_need(graph, timeline, v).vertex;
    // Names contain commas.
    if (need != kNoVertex) fmt::format_to(to, ",\"{}\"", graph.name(need));
    if (need == kNoVertex) out += ',';
    fmt::format_to(to, ",{}\n", roots[v].root.rank >= 0 ? to_string(roots[v].root) : "");
    if (out.size() < kFlushAt) continue;
    sink(out);
    out.clear();
  }
  sink(out);
}

}  // namespace sluice::traces

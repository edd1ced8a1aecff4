#include "traces/report/report_data.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "model/to_size.h"
#include "traces/report/part_data.h"

namespace sluice::traces {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kCollectiveKind = 16;
constexpr int kOptimizerKind = 17;
constexpr int kPassKind = 20;  // 18 and 19 are parts of layers
constexpr int kNumKinds = 24;

int kind_code(const Vertex& vertex) {
  const int op = static_cast<int>(vertex.op);
  if (of_vocabulary(vertex.op)) return kPassKind + op - 4 + (vertex.kind == VertexKind::transfer ? 2 : 0);
  switch (vertex.kind) {
    case VertexKind::compute: return op;
    case VertexKind::joint: return 4 + op;
    case VertexKind::recompute: return 8 + op;
    case VertexKind::transfer: return 12 + op;
    case VertexKind::collective: return kCollectiveKind;
    case VertexKind::optimizer: return kOptimizerKind;
    case VertexKind::offload: return 12 + op;  // on lanes of their own
  }
  return kOptimizerKind;
}

const char* collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::gradient_reduce: return "gradient reduce";
    case CollectiveKind::replica_reduce: return "replica reduce";
    case CollectiveKind::tied_embedding: return "tied embedding";
    case CollectiveKind::global_norm: return "global norm";
    case CollectiveKind::parameter_gather: return "parameter gather";
  }
  return "collective";
}

// Concatenates columns of numbers into one buffer.
class Columns {
 public:
  template <typename Number>
  void add(const char* name, const std::vector<Number>& values) {
    constexpr std::size_t kAlignment = 4;
    const std::size_t at = bytes_.size();
    bytes_.resize(at + (values.size() * sizeof(Number) + kAlignment - 1) / kAlignment * kAlignment);
    char* out = bytes_.data() + at;
    constexpr std::size_t kBytes = sizeof(Number) == 8 ? 4 : sizeof(Number);
    for (const Number value : values) out = put<kBytes>(static_cast<std::uint64_t>(value), out);
    if constexpr (sizeof(Number) == 8) {
      for (const Number value : values) out = put<4>(static_cast<std::uint64_t>(value) >> 32, out);
    }
    constexpr const char* kType = sizeof(Number) == 8   ? "i64"
                                  : sizeof(Number) == 4 ? "i32"
                                  : sizeof(Number) == 2 ? "i16"
                                                        : "u8";
    names_.push_back({name, kType, values.size()});
  }

  OrderedJson names() const { return names_; }
  std::string take() { return std::move(bytes_); }

 private:
  template <std::size_t Bytes>
  static char* put(std::uint64_t value, char* out) {
    for (std::size_t i = 0; i < Bytes; ++i) *out++ = static_cast<char>(value >> (8 * i) & 0xFF);
    return out;
  }

  OrderedJson names_ = OrderedJson::array();
  std::string bytes_;
};

// The vertices in the order of the report: lane by lane.
struct Order {
  std::vector<VertexId> vertices;
  std::vector<std::int64_t> lane_size;
  std::vector<std::int32_t> position;  // of a vertex: its first index in `vertices`
};

template <typename Visit>
void for_each_lane(const OpGraph& graph, const Vertex& vertex, const Visit& visit) {
  if (vertex.kind != VertexKind::collective) return visit(to_size(vertex.lane));
  for (const int rank : graph.collective(vertex).ranks) visit(to_size(graph.collective_lane(rank)));
}

Order order_of(const OpGraph& graph) {
  Order order;
  const std::size_t lanes = graph.lanes().size();
  order.lane_size.assign(lanes, 0);
  for (const Vertex& vertex : graph.vertices())
    for_each_lane(graph, vertex, [&](std::size_t lane) { ++order.lane_size[lane]; });
  std::vector<std::int64_t> next(lanes, 0);
  for (std::size_t lane = 1; lane < lanes; ++lane) next[lane] = next[lane - 1] + order.lane_size[lane - 1];
  order.vertices.resize(lanes == 0 ? 0 : to_size(next[lanes - 1] + order.lane_size[lanes - 1]));
  order.position.assign(graph.size(), -1);
  for (VertexId v = 0; v < graph.size(); ++v) {
    for_each_lane(graph, graph[v], [&](std::size_t lane) {
      if (order.position[v] < 0) order.position[v] = static_cast<std::int32_t>(next[lane]);
      order.vertices[next[lane]++] = v;
    });
  }
  return order;
}

// The columns of the second ops of joint blocks.
struct Partners {
  std::vector<std::uint8_t> kind;
  std::vector<std::int16_t> stage, slice;
  std::vector<std::int32_t> microbatch;

  void add(const Vertex& partner) {
    kind.push_back(static_cast<std::uint8_t>(partner.op));
    stage.push_back(partner.stage);
    slice.push_back(partner.slice);
    microbatch.push_back(partner.microbatch);
  }
  void add_to(Columns& columns) const {
    columns.add("partner_microbatch", microbatch);
    columns.add("partner_stage", stage);
    columns.add("partner_slice", slice);
    columns.add("partner_kind", kind);
  }
};

class RunEncoder {
 public:
  explicit RunEncoder(const DrawnRun& run)
      : run_(run), graph_(*run.graph), timeline_(*run.timeline), order_(order_of(graph_)) {}

  ReportData encode() {
    const Schedule& schedule = graph_.schedule();
    OrderedJson header;
    header["makespan"] = run_.metrics->makespan.count();
    header["ranks"] = schedule.num_ranks();
    header["microbatches"] = schedule.total_microbatches();
    header["sliced"] = schedule.sliced();
    OrderedJson stages = OrderedJson::array();
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) stages.push_back(schedule.stages_of(rank));
    header["stages_of"] = std::move(stages);
    header["capacity"] = run_.capacity_bytes ? OrderedJson(*run_.capacity_bytes) : OrderedJson(nullptr);
    add_ops(header);
    add_idle(header);
    if (!run_.memory.empty() && graph_.has_bytes()) add_memory(header);
    add_parts(header);
    header["columns"] = columns_.names();
    return {header.dump(), columns_.take()};
  }

 private:
  std::int32_t position(VertexId v) const { return v == kNoVertex ? -1 : order_.position[v]; }

  OrderedJson describe_lane(std::size_t l) const {
    constexpr const char* kLaneNames[] = {"compute", "collective", "link", "to host", "from host"};
    const Lane& lane = graph_.lanes()[l];
    OrderedJson row = {
        {"kind", kLaneNames[static_cast<int>(lane.kind)]}, {"rank", lane.rank}, {"ops", order_.lane_size[l]}};
    if (lane.kind == LaneKind::link) {
      row["peer"] = lane.peer;
      row["latency"] = timeline_.lane_latency[l].count();
    }
    return row;
  }

  void add_ops(OrderedJson& header) {
    const std::size_t n = order_.vertices.size();
    std::vector<Duration> slacks = slack(graph_, timeline_);
    std::vector<char> on_path(graph_.size(), 0);
    for (const VertexId v : critical_path(graph_, timeline_).vertices) on_path[v] = 1;
    std::vector<std::int64_t> gap(n), duration(n), slack_left(n);
    std::vector<std::uint8_t> kind(n), critical(n);
    std::vector<std::int16_t> stage(n), slice(n);
    std::vector<std::int32_t> microbatch(n), need(n);
    Partners partners;
    OrderedJson lanes = OrderedJson::array();
    OrderedJson collectives = OrderedJson::array();
    std::vector<std::int32_t> collective_index;  // by Vertex::extra
    std::size_t i = 0;
    for (std::size_t l = 0; l < graph_.lanes().size(); ++l) {
      lanes.push_back(describe_lane(l));
      Duration free{0};
      struct Last {
        std::int64_t microbatch = 0, need = 0, slack = 0;
      };
      std::array<Last, kNumKinds> last_of{};
      for (std::int64_t left = order_.lane_size[l]; left > 0; --left, ++i) {
        const VertexId v = order_.vertices[i];
        const Vertex& vertex = graph_[v];
        const int code = kind_code(vertex);
        gap[i] = (timeline_.start[v] - free).count();
        duration[i] = (timeline_.end[v] - timeline_.start[v]).count();
        free = timeline_.end[v];
        kind[i] = static_cast<std::uint8_t>(code);
        critical[i] = static_cast<std::uint8_t>(on_path[v]);
        stage[i] = vertex.stage;
        slice[i] = vertex.slice;
        if (code == kCollectiveKind) stage[i] = describe(vertex, collectives, collective_index);
        if (vertex.kind == VertexKind::joint) partners.add(graph_.joint_partner(vertex));
        Last& last = last_of[code];
        const Last now{vertex.microbatch, position(last_need(graph_, timeline_, v).vertex), slacks[v].count()};
        microbatch[i] = static_cast<std::int32_t>(now.microbatch - last.microbatch);
        need[i] = static_cast<std::int32_t>(now.need - last.need);
        slack_left[i] = now.slack - last.slack;
        last = now;
      }
    }
    header["lanes"] = std::move(lanes);
    header["collectives"] = std::move(collectives);
    columns_.add("gap", gap);
    columns_.add("duration", duration);
    columns_.add("slack", slack_left);
    columns_.add("microbatch", microbatch);
    columns_.add("need", need);
    columns_.add("stage", stage);
    columns_.add("slice", slice);
    columns_.add("kind", kind);
    columns_.add("critical", critical);
    partners.add_to(columns_);
  }

  // Returns the index of a collective's description; equal descriptions are stored once.
  std::int16_t describe(const Vertex& vertex, OrderedJson& descriptions, std::vector<std::int32_t>& known) const {
    if (vertex.extra >= known.size()) known.resize(vertex.extra + 1, -1);
    std::int32_t& at = known[vertex.extra];
    if (at < 0) {
      const Collective collective = graph_.collective(vertex);
      OrderedJson row = {
          {"name", collective_name(collective.kind)}, {"stage", collective.stage}, {"bytes", collective.bytes}};
      const auto found = std::find(descriptions.begin(), descriptions.end(), row);
      at = static_cast<std::int32_t>(found - descriptions.begin());
      if (found == descriptions.end()) descriptions.push_back(std::move(row));
    }
    return static_cast<std::int16_t>(at);
  }

  void add_idle(OrderedJson& header) {
    const std::vector<IdleInterval> intervals = idle_intervals(graph_, timeline_);
    const std::size_t n = intervals.size();
    std::vector<std::int64_t> gap(n), duration(n);
    std::vector<std::uint8_t> cause(n);
    std::vector<std::int32_t> from(n), next(n), need(n);
    std::vector<std::int64_t> count(to_size(graph_.schedule().num_ranks()), 0);
    for (std::size_t i = 0; i < n; ++i) {
      const IdleInterval& interval = intervals[i];
      const bool first = i == 0 || intervals[i - 1].rank != interval.rank;
      gap[i] = (interval.start - (first ? Duration{0} : intervals[i - 1].end)).count();
      duration[i] = (interval.end - interval.start).count();
      cause[i] = static_cast<std::uint8_t>(interval.cause);
      from[i] = interval.from_rank;
      next[i] = position(interval.next);
      need[i] = position(interval.waits_for);
      ++count[interval.rank];
    }
    header["idle"] = count;
    header["causes"] = kIdleCauseNames;
    columns_.add("idle_gap", gap);
    columns_.add("idle_duration", duration);
    columns_.add("idle_from", from);
    columns_.add("idle_next", next);
    columns_.add("idle_need", need);
    columns_.add("idle_cause", cause);
  }

  void add_memory(OrderedJson& header) {
    std::int64_t all = 0;
    std::array<bool, kNumMemoryClasses> occurs{};
    for (const RankMemory& memory : run_.memory) {
      all += std::ssize(memory.samples);
      for (const MemorySample& sample : memory.samples)
        for (std::size_t c = 0; c < occurs.size(); ++c) occurs[c] = occurs[c] || sample.bytes[c] != 0;
    }
    const bool reduce = all > kMaxReportSamples;
    std::vector<std::int64_t> count, time;
    std::array<std::vector<std::int64_t>, kNumMemoryClasses> bytes;
    for (const RankMemory& memory : run_.memory) {
      const std::vector<MemorySample> samples =
          reduce ? reduced(memory.samples, kMaxReportSamples / std::ssize(run_.memory)) : memory.samples;
      count.push_back(std::ssize(samples));
      MemorySample last;
      for (const MemorySample& sample : samples) {
        time.push_back((sample.time - last.time).count());
        for (std::size_t c = 0; c < bytes.size(); ++c)
          if (occurs[c]) bytes[c].push_back(sample.bytes[c] - last.bytes[c]);
        last = sample;
      }
    }
    OrderedJson classes = OrderedJson::array();
    columns_.add("memory_time", time);
    for (std::size_t c = 0; c < bytes.size(); ++c) {
      if (!occurs[c]) continue;
      classes.push_back(kMemoryClassNames[c]);
      columns_.add(("memory_" + std::string(kMemoryClassNames[c])).c_str(), bytes[c]);
    }
    header["memory"] = {{"classes", std::move(classes)}, {"samples", count}, {"thinned", reduce}};
  }

  void add_parts(OrderedJson& header) {
    const PartData parts = part_data(run_.parts, timeline_, graph_.schedule().num_ranks());
    if (parts.empty()) return;
    header["parts"] = {{"names", parts.names}, {"merged", parts.merged}};
    std::vector<std::int32_t> pattern;
    pattern.reserve(order_.vertices.size());
    for (const VertexId v : order_.vertices) pattern.push_back(parts.pattern_of[v]);
    columns_.add("part_pattern", pattern);
    columns_.add("pattern_parts", parts.num_parts);
    columns_.add("part_gap", parts.gap);
    columns_.add("part_duration", parts.duration);
    columns_.add("part_hidden", parts.hidden);
    columns_.add("part_layer", parts.layer);
    columns_.add("part_name", parts.name);
  }

  // Reduces samples to about `max_samples`: the first, the last, and the minimum and maximum of each of max_samples / 2
  // equally long sequences, which preserves the peak.
  static std::vector<MemorySample> reduced(const std::vector<MemorySample>& samples, std::int64_t max_samples) {
    if (std::ssize(samples) <= max_samples) return samples;
    const std::int64_t parts = std::max<std::int64_t>(1, max_samples / 2);
    const auto less = [](const MemorySample& a, const MemorySample& b) { return total(a.bytes) < total(b.bytes); };
    std::vector<MemorySample> kept = {samples.front()};
    const auto keep = [&kept](const MemorySample& sample) {
      if (sample.time > kept.back().time) kept.push_back(sample);
    };
    for (std::int64_t part = 0; part < parts; ++part) {
      const auto begin = samples.begin() + std::ssize(samples) * part / parts;
      const auto end = samples.begin() + std::ssize(samples) * (part + 1) / parts;
      const auto [least, greatest] = std::minmax_element(begin, end, less);
      keep(*std::min(least, greatest));
      keep(*std::max(least, greatest));
    }
    keep(samples.back());
    return kept;
  }

  const DrawnRun& run_;
  const OpGraph& graph_;
  const Timeline& timeline_;
  Order order_;
  Columns columns_;
};

}  // namespace

ReportData encode_run(const DrawnRun& run) { return RunEncoder(run).encode(); }

}  // namespace sluice::traces

#include "traces/read/trace_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/input/protected_files.h"
#include "model/to_size.h"
#include "traces/chrome/trace_events.h"
#include "traces/read/kineto.h"
#include "traces/read/sluice_trace.h"

namespace sluice::traces {
namespace {

bool is_op(RowKind kind) { return occupies_rank(kind) && kind != RowKind::recompute && kind != RowKind::optimizer; }

Op schedule_op(const RowOp& op, bool joined) {
  return {.microbatch = op.microbatch, .stage = op.stage, .slice = op.slice, .kind = op.kind, .joined = joined};
}

// Reconstructs the schedule of the rows: placement and order. Returns nullopt if some op is clearly missing; other
// missing ops are detected when a Schedule is built from it.
std::optional<ScheduleParts> parts_of(const RunRows& run) {
  std::vector<const OpRow*> ops;
  for (const OpRow& row : run.rows) {
    if (is_op(row.kind)) ops.push_back(&row);
  }
  std::stable_sort(ops.begin(), ops.end(), [](const OpRow* a, const OpRow* b) {
    return std::pair(a->start, a->end) < std::pair(b->start, b->end);
  });
  ScheduleParts parts{.family = "custom", .num_ranks = run.num_ranks, .num_stages = 0, .num_microbatches = 0};
  std::int64_t forwards = 0;
  bool passes = false;  // of the vocabulary, whose barriers rows do not name
  const auto each = [&](const auto& visit) {
    for (const OpRow* row : ops) {
      visit(*row, row->op);
      if (row->kind == RowKind::joint) visit(*row, row->partner);
    }
  };
  each([&](const OpRow&, const RowOp& op) {
    parts.num_stages = std::max(parts.num_stages, op.stage + 1);
    parts.num_microbatches = std::max(parts.num_microbatches, op.microbatch + 1);
    forwards += op.kind == OpKind::F ? 1 : 0;
    passes |= of_vocabulary(op.kind);
  });
  if (passes || forwards < std::int64_t{parts.num_stages} * parts.num_microbatches) return std::nullopt;

  // Microbatches with a different number of slices have their own shape, those on different ranks their own route.
  std::vector<int> slices(to_size(parts.num_microbatches), 1);
  std::vector<std::vector<int>> ranks(to_size(parts.num_microbatches), std::vector<int>(to_size(parts.num_stages), 0));
  each([&](const OpRow& row, const RowOp& op) {
    slices[op.microbatch] = std::max(slices[op.microbatch], op.slice + 1);
    ranks[op.microbatch][op.stage] = row.rank;
  });
  parts.shapes.clear();
  std::map<int, int> shape_of;
  std::map<std::vector<int>, std::uint8_t> route_of;
  for (int microbatch = 0; microbatch < parts.num_microbatches; ++microbatch) {
    const int num_slices = slices[microbatch];
    const auto [shape, new_shape] = shape_of.try_emplace(num_slices, static_cast<int>(parts.shapes.size()));
    if (new_shape) parts.shapes.push_back({.slice_lengths = std::vector<std::int64_t>(to_size(num_slices), 1)});
    parts.shape_of.push_back(shape->second);
    const auto [route, new_route] =
        route_of.try_emplace(ranks[microbatch], static_cast<std::uint8_t>(parts.routes.size()));
    if (new_route) parts.routes.push_back(ranks[microbatch]);
    if (parts.routes.size() > 2) return std::nullopt;
    parts.route_of.push_back(route->second);
  }
  parts.orders.resize(run.num_ranks);
  for (const OpRow* row : ops) {
    auto& order = parts.orders[row->rank];
    order.push_back(schedule_op(row->op, row->kind == RowKind::joint));
    if (row->kind == RowKind::joint) order.push_back(schedule_op(row->partner, false));
  }
  return parts;
}

LoweringOptions options_of(const RunRows& run) {
  LoweringOptions options;
  for (const OpRow& row : run.rows) {
    options.recompute |= row.kind == RowKind::recompute;
    if (row.kind != RowKind::collective) continue;
    if (row.collective == CollectiveKind::gradient_reduce) options.data_parallel = 2;
    options.gather_parameters |= row.collective == CollectiveKind::parameter_gather;
    options.tied_embedding |= row.collective == CollectiveKind::tied_embedding;
    options.global_norm |= row.collective == CollectiveKind::global_norm;
  }
  return options;
}

// Finds the row of a vertex of a graph.
class Lookup {
 public:
  explicit Lookup(const RunRows& run) : run_(run) {
    for (std::size_t i = 0; i < run.rows.size(); ++i) entries_.emplace_back(identity_of(run.rows[i]), i);
    std::sort(entries_.begin(), entries_.end());
  }

  const OpRow* find(const OpGraph& graph, VertexId v) const {
    OpRow wanted = row_of(graph, v);
    const auto found =
        std::lower_bound(entries_.begin(), entries_.end(), std::pair(identity_of(wanted), std::size_t{0}));
    if (found == entries_.end() || found->first != identity_of(wanted)) return nullptr;
    return &run_.rows[found->second];
  }

 private:
  const RunRows& run_;
  std::vector<std::pair<RowIdentity, std::size_t>> entries_;
};

Timeline timeline_of(const RunRows& run, const OpGraph& graph) {
  Timeline timeline;
  timeline.start.resize(graph.size());
  timeline.end.resize(graph.size());
  timeline.lane_latency.resize(graph.lanes().size(), Duration::zero());
  const Lookup rows(run);
  std::vector<char> unknown(graph.size(), 0);
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (const OpRow* row = rows.find(graph, v)) {
      timeline.start[v] = row->start;
      timeline.end[v] = row->end + row->latency;
    } else {
      Duration met{};
      for (const VertexId need : graph.needs(v)) met = std::max(met, timeline.end[need]);
      timeline.start[v] = timeline.end[v] = met;
      unknown[v] = 1;
    }
    // A transfer without a row ends when the vertex that depends on it starts.
    for (const VertexId need : graph.needs(v)) {
      if (unknown[need] == 0 || graph[need].kind != VertexKind::transfer || graph[v].lane == graph[need].lane) continue;
      timeline.end[need] = std::max(timeline.end[need], timeline.start[v]);
      unknown[need] = 0;
    }
  }
  return timeline;
}

bool adds_up(const RunRows& run, const std::vector<IdleByCause>& idle) {
  Duration makespan{};
  std::vector<Duration> sums(idle.size(), Duration::zero());
  for (const OpRow& row : run.rows) {
    makespan = std::max(makespan, row.end);
    if (occupies_rank(row.kind)) sums[row.rank] += row.end - row.start;
  }
  for (std::size_t r = 0; r < idle.size(); ++r) {
    if (std::accumulate(idle[r].begin(), idle[r].end(), sums[r]) != makespan) return false;
  }
  return true;
}

namespace fs = std::filesystem;

// Natural order: digits compare as numbers, so that "rank9" precedes "rank10".
bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto number = [&](const std::string& text, std::size_t& at) {
    const std::size_t begin = std::min(text.find_first_not_of('0', at), text.size());
    std::size_t end = std::max(begin, at);
    while (end < text.size() && digit(text[end])) ++end;
    at = end;
    return std::string_view(text).substr(std::min(begin, end), end - std::min(begin, end));
  };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const std::string_view x = number(a, i);
      const std::string_view y = number(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

bool is_trace_name(const std::string& name) { return name.ends_with(".json") || name.ends_with(".json.gz"); }

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_trace_name(entry.path().filename().string()) && entry.is_regular_file(error)) {
      files.push_back(entry.path().string());
    }
  }
  if (error) throw InputError(fmt::format("{}: {}", folder, error.message()));
  if (files.empty()) throw InputError(folder + ": expected files that end in .json or .json.gz, got none");
  std::sort(files.begin(), files.end(), natural_less);
  return files;
}

// Ensures that no sum of times overflows.
void check_sums(const RunRows& run, const std::string& source) {
  constexpr double kMaxNanoseconds = 4e18;
  double sum = 0;
  for (const OpRow& row : run.rows) {
    sum += static_cast<double>((row.end - row.start).count()) + static_cast<double>(row.latency.count());
  }
  for (const IdleByCause& idle : run.idle) {
    for (const Duration time : idle) sum += static_cast<double>(time.count());
  }
  if (sum > kMaxNanoseconds) throw InputError(source + ": the sum of all times exceeds 126 years");
}

TraceRun with_causes(TraceRun run, const TraceReadOptions& options, const std::string& source) {
  check_sums(run.run, source);
  if (options.causes && run.run.idle.empty()) run.run.idle = idle_of_rows(run.run);
  return run;
}

// The events of an array, which has no head: the first slice shows whether Sluice wrote it.
class HeadlessEvents {
 public:
  HeadlessEvents(KinetoRank& kineto, SluiceTraceReader& sluice) : kineto_(kineto), sluice_(sluice) {}

  void add(const TraceEvent& event) {
    if (!known_ && event.phase != "X") {
      if (early_.size() < kMaxEarly) early_.push_back(event);
      return;
    }
    if (!known_) {
      known_ = true;
      constexpr std::string_view kCategories[] = {"compute", "p2p", "coll", "opt", "part", "idle"};
      is_sluice_ = std::find(std::begin(kCategories), std::end(kCategories), event.category) != std::end(kCategories);
      // Kineto's readers use slices only.
      for (const TraceEvent& early : early_) {
        if (is_sluice_) add_early(early);
      }
      early_ = {};
    }
    is_sluice_ ? sluice_.add(event) : kineto_.add(event);
  }

  bool is_sluice() const { return is_sluice_; }

 private:
  static constexpr std::size_t kMaxEarly = 100'000;

  void add_early(const TraceEvent& event) {
    if (event.name == "process_name" && !event.args_name.starts_with("rank ")) {
      throw InputError(
          fmt::format("{}: event {}: expected a trace of one run with processes \"rank 0\", ..., got \"{}\"",
                      kineto_.source(), event.number, event.args_name));
    }
    sluice_.add(event);
  }

  KinetoRank& kineto_;
  SluiceTraceReader& sluice_;
  std::vector<TraceEvent> early_;
  bool known_ = false;
  bool is_sluice_ = false;
};

// Builds a run from the events of one or several sources, of which `next` returns the next one, or null.
template <typename Next>
TraceRun run_of(std::size_t num_files, const TraceReadOptions& options, Next&& next) {
  std::vector<KinetoRank> ranks;
  for (std::size_t i = 0; i < num_files; ++i) {
    const std::unique_ptr<TraceSource> own = next(i);
    TraceSource& source = *own;
    const std::string& path = source.name();
    KinetoRank kineto(path);
    SluiceTraceReader sluice(path);
    HeadlessEvents headless(kineto, sluice);
    TraceHead head = source.read([&](TraceEvent& event, const TraceHead& so_far) {
      if (so_far.is_array) return headless.add(event);
      so_far.is_sluice ? sluice.add(event) : kineto.add(event);
    });
    if (headless.is_sluice()) {
      head.is_sluice = true;
      head.schema = "sluice.trace/1";
    }
    if (!head.is_trace) throw InputError(path + ": expected a trace: an object with an array traceEvents, or an array");
    if (head.is_sluice) {
      if (num_files != 1) {
        throw InputError(
            fmt::format("{}: a Sluice trace contains all ranks: expected one file, got {}", path, num_files));
      }
      TraceRun run = std::move(sluice).finish(head, options);
      return with_causes(std::move(run), options, path);
    }
    kineto.finish(head);
    ranks.push_back(std::move(kineto));
  }
  const std::string first = ranks.front().source();
  return with_causes(kineto_run(std::move(ranks), options), options, first);
}

std::vector<std::string> named_files(const std::string& argument) {
  std::error_code error;
  if (fs::is_directory(argument, error)) return files_of(argument);
  if (fs::exists(argument, error) || argument.find(',') == std::string::npos) return {argument};
  std::vector<std::string> files;
  for (std::size_t begin = 0; begin <= argument.size();) {
    const std::size_t end = std::min(argument.find(',', begin), argument.size());
    files.push_back(argument.substr(begin, end - begin));
    if (!fs::exists(files.back(), error)) {
      throw InputError(fmt::format("{}: file '{}' does not exist", argument, files.back()));
    }
    begin = end + 1;
  }
  return files;
}

}  // namespace

std::vector<IdleByCause> idle_of_rows(const RunRows& run) {
  const auto later = [](const OpRow& row) { return row.kind == RowKind::optimizer && row.op.microbatch > 0; };
  if (std::any_of(run.rows.begin(), run.rows.end(), later)) return {};
  std::optional<ScheduleParts> parts = parts_of(run);
  if (!parts) return {};
  try {
    const Schedule schedule(std::move(*parts));
    const OpGraph graph = lower(schedule, options_of(run));
    std::vector<IdleByCause> idle = idle_by_cause(graph, timeline_of(run, graph));
    if (!adds_up(run, idle)) return {};
    return idle;
  } catch (const ScheduleError&) {
    return {};
  } catch (const InputError&) {
    return {};
  }
}

std::vector<std::string> trace_files(const std::string& argument) {
  std::vector<std::string> files = named_files(argument);
  // All of them, before one that cannot be read ends the command.
  for (const std::string& file : files) note_input(file);
  return files;
}

TraceRun read_trace_run(const std::vector<std::string>& paths, const TraceReadOptions& options) {
  return run_of(paths.size(), options, [&](std::size_t i) { return std::make_unique<TraceSource>(paths[i]); });
}

TraceRun read_trace_run(std::vector<std::unique_ptr<TraceSource>> sources, const TraceReadOptions& options) {
  return run_of(sources.size(), options, [&](std::size_t i) { return std::move(sources[i]); });
}

}  // namespace sluice::traces

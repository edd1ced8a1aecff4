#include "traces/text/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "model/to_size.h"
#include "traces/text/palette.h"

namespace sluice::traces {
namespace {

constexpr int kMinWidth = 10;

// The parts of a label, from most to least detailed.
enum class Label { slice, microbatch, last_digit };

struct Bar {
  std::int64_t start = 0;  // ns
  std::int64_t end = 0;
  VertexId vertex = 0;
};

// One column: an ASCII character of a label, or a continuation, and its colour.
struct Cell {
  char character = 0;  // 0: continuation
  bool idle = true;
  Rgb colour = palette::kIdle;
};

// `count` columns starting at `first` show `bar`.
struct Run {
  int first = 0;
  int count = 0;
  Bar bar;
};

// The time axis, which all runs have in common.
struct GanttScale {
  std::int64_t makespan = 0;         // ns
  std::optional<std::int64_t> unit;  // ns, if the drawing is exact
  std::int64_t columns_per_unit = 1;
  int columns = 0;
  Label label = Label::last_digit;
};

class Gantt {
 public:
  Gantt(const GanttRun& run, const GanttOptions& options) : run_(run), options_(options) {
    const OpGraph& graph = graph_;
    const Timeline& timeline = *run.timeline;
    const int ranks = graph.schedule().num_ranks();
    bars_.resize(ranks);
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (graph.lanes()[graph[v].lane].kind != LaneKind::compute) continue;
      const Bar bar{timeline.start[v].count(), timeline.end[v].count(), v};
      makespan_ = std::max(makespan_, bar.end);
      if (bar.end > bar.start) bars_[graph.rank_of(v)].push_back(bar);
    }
    makespan_ = std::max<std::int64_t>(makespan_, run.metrics->makespan.count());
    if (!run.parts.empty()) {
      parts_.resize(ranks);
      hidden_ = hidden_by_rank(run.parts, ranks);
    }
    for (const PartRow& part : run.parts) {
      if (communicates(part.part.part)) parts_[part.rank].push_back(&part);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      if (shown(rank)) rows_.push_back(rank);
    }
  }

  std::int64_t makespan() const { return makespan_; }
  bool sliced() const { return graph_.schedule().sliced(); }

  // Returns the largest unit of which `unit` and all times are multiples.
  std::int64_t common_unit(std::int64_t unit) const {
    for (const auto& bars : bars_) {
      for (const Bar& bar : bars) unit = std::gcd(std::gcd(unit, bar.start), bar.end);
    }
    return unit;
  }

  // Returns the fewest columns per unit that fit all labels.
  std::int64_t needed_columns(std::int64_t unit, Label label) const {
    std::int64_t most = 1;
    for (const int rank : rows_) {
      for (const Bar& bar : bars_[rank]) {
        const std::int64_t length = (bar.end - bar.start) / unit;
        const std::int64_t needed = std::ssize(vertex_label(bar.vertex, label));
        most = std::max(most, (needed + length - 1) / length);
      }
    }
    return most;
  }

  // Counts the ops that are drawn, and those whose labels fit.
  void count_fitting(const GanttScale& scale, Label label, std::int64_t& all, std::int64_t& fitting) const {
    for (const int rank : rows_) {
      for (const Run& run : runs(rank, scale)) {
        ++all;
        fitting += std::ssize(vertex_label(run.bar.vertex, label)) <= run.count ? 1 : 0;
      }
    }
  }

  std::string draw(const GanttScale& scale) {
    scale_ = scale;
    std::string text = run_.title.empty() ? "" : run_.title + "\n";
    std::size_t flight_width = 0;
    double most_busy = 0;
    for (const int rank : rows_) {
      flight_width = std::max(flight_width, in_flight(rank).size());
      most_busy = std::max(most_busy, busy_percent(rank));
    }
    const int rank_width = static_cast<int>(fmt::formatted_size("{}", graph_.schedule().num_ranks() - 1));
    int expected = 0;
    for (const int rank : rows_) {
      if (rank != expected) text += fmt::format("{:>{}} ({} ranks not shown)\n", "⋮", rank_width + 5, rank - expected);
      expected = rank + 1;
      text += fmt::format("rank {:>{}} │", rank, rank_width);
      append_cells(text, row_cells(rank));
      text += fmt::format("│ {} {:>{}.1f} %  {:>{}}{}\n", rank == rows_.front() ? "busy" : "    ", busy_percent(rank),
                          most_busy >= 99.95 ? 5 : 4, in_flight(rank), flight_width,
                          rank == rows_.front() ? " in flight" : "");
      if (!parts_.empty()) append_communication(text, rank, rank_width);
    }
    append_notes(text);
    return text;
  }

 private:
  bool shown(int rank) const {
    const int ranks = graph_.schedule().num_ranks();
    const int rows = std::max(options_.max_ranks, 2);
    return ranks <= rows || rank < (rows + 1) / 2 || rank >= ranks - rows / 2;
  }

  double busy_percent(int rank) const {
    if (metrics_.makespan.count() == 0) return 0;
    return 100.0 * static_cast<double>(metrics_.ranks[rank].busy.count()) /
           static_cast<double>(metrics_.makespan.count());
  }
  // At most two decimals, no trailing zeros.
  std::string in_flight(int rank) const {
    std::string text = fmt::format("{:.2f}", metrics_.ranks[rank].peak_in_flight);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return text;
  }

  // --- labels -------------------------------------------------------------------------------------------------

  // The letters of every other chunk are lower-case.
  std::string op_label(char kind, VertexId v, const Vertex& op, Label label) const {
    const bool odd = graph_.schedule().chunk_of(graph_.rank_of(v), op.stage) % 2 == 1;
    std::string text(1, odd ? static_cast<char>(std::tolower(kind)) : kind);
    text += label == Label::last_digit ? std::to_string(op.microbatch % 10) : std::to_string(op.microbatch);
    if (label == Label::slice && graph_.schedule().sliced() && op.slice < 26) {
      text += static_cast<char>('a' + op.slice);
    }
    return text;
  }

  std::string vertex_label(VertexId v, Label label) const {
    const Vertex& vertex = graph_[v];
    if (vertex.kind == VertexKind::optimizer) return "O";
    if (vertex.kind == VertexKind::recompute) return op_label('R', v, vertex, label);
    std::string own = op_label(letter(vertex.op), v, vertex, label);
    if (vertex.kind != VertexKind::joint) return own;
    const Vertex& partner = graph_.joint_partner(vertex);
    return own + "&" + op_label(letter(partner.op), v, partner, label);
  }

  // Returns the label that fits into `columns`, and how many of its characters belong to the first op of the vertex.
  std::pair<std::string, std::size_t> fitted_label(VertexId v, int columns, Label label) const {
    const auto fits = [columns](const std::string& text) { return std::ssize(text) <= columns; };
    std::string text = vertex_label(v, label);
    const std::size_t joint = text.find('&');
    if (joint == std::string::npos) {
      if (!fits(text)) text.resize(1);
      return {text, text.size()};
    }
    const std::string first = text.substr(0, joint);
    const std::string second = text.substr(joint + 1);
    if (fits(text)) return {text, first.size()};
    if (fits(first + second)) return {first + second, first.size()};
    if (columns >= 3) return {std::string{first[0], '&', second[0]}, 1};
    if (columns == 2) return {std::string{first[0], second[0]}, 1};
    return {"&", 1};
  }

  std::vector<Run> runs(int rank, const GanttScale& scale) const {
    std::vector<Run> result;
    if (scale.unit) {
      for (const Bar& bar : bars_[rank]) {
        result.push_back({static_cast<int>(bar.start / *scale.unit * scale.columns_per_unit),
                          static_cast<int>((bar.end - bar.start) / *scale.unit * scale.columns_per_unit), bar});
      }
      return result;
    }
    auto bar = bars_[rank].begin();
    const auto last = bars_[rank].end();
    for (int column = 0; column < scale.columns; ++column) {
      const double middle = (column + 0.5) / scale.columns * static_cast<double>(scale.makespan);
      while (bar != last && static_cast<double>(bar->end) <= middle) ++bar;
      if (bar == last) break;
      if (static_cast<double>(bar->start) > middle) continue;
      if (!result.empty() && result.back().bar.vertex == bar->vertex) {
        ++result.back().count;
      } else {
        result.push_back({column, 1, *bar});
      }
    }
    return result;
  }

  // --- drawing ------------------------------------------------------------------------------------------------

  std::vector<Cell> row_cells(int rank) {
    std::vector<Cell> cells(to_size(scale_.columns));
    for (const Run& run : runs(rank, scale_)) {
      const Vertex& vertex = graph_[run.bar.vertex];
      const auto [label, own] = fitted_label(run.bar.vertex, run.count, scale_.label);
      if (scale_.label == Label::last_digit && label.size() > 1) modulo_ = modulo_ || exceeds_nine(vertex);
      for (int i = 0; i < run.count; ++i) {
        Cell& cell = cells[run.first + i];
        cell.idle = false;
        cell.character = to_size(i) < label.size() ? label[i] : char{0};
        const bool second = vertex.kind == VertexKind::joint && to_size(i) >= own;
        cell.colour = second ? colour_of(graph_.joint_partner(vertex).op) : colour_of(vertex);
      }
    }
    return cells;
  }

  // The communication of experts, one character per column: that with the most time in it.
  void append_communication(std::string& text, int rank, int rank_width) const {
    constexpr std::string_view kLetters = "DCdc";
    std::vector<std::array<double, kLetters.size()>> times(to_size(scale_.columns));  // ns
    const double column_ns = static_cast<double>(scale_.makespan) / scale_.columns;
    for (const PartRow* part : parts_[rank]) {
      const std::size_t letter =
          (part->part.part == LayerPart::dispatch ? 0U : 1U) + (part->part.pass == OpKind::F ? 0U : 2U);
      const auto start = static_cast<double>(part->start.count());
      const auto end = static_cast<double>(part->end.count());
      for (auto column = static_cast<int>(start / column_ns); column < scale_.columns && column * column_ns < end;
           ++column) {
        times[to_size(column)][letter] += std::min(end, (column + 1) * column_ns) - std::max(start, column * column_ns);
      }
    }
    text += fmt::format("{:>{}} │", "", rank_width + 5);
    for (const auto& column : times) {
      const auto most = std::max_element(column.begin(), column.end());
      if (*most > 0.5) {  // ns; less is rounding at the edge of a column
        text += kLetters[to_size(most - column.begin())];
      } else {
        text += "·";
      }
    }
    text += fmt::format("│ {:.0f} % hidden\n", 100 * hidden_[rank].fraction());
  }

  bool exceeds_nine(const Vertex& vertex) const {
    return vertex.microbatch > 9 || (vertex.kind == VertexKind::joint && graph_.joint_partner(vertex).microbatch > 9);
  }

  // Returns the nearest colour of the 6x6x6 cube with levels 0, 95, 135, 175, 215, 255.
  static int ansi256(Rgb c) {
    const auto step = [](int x) { return x < 48 ? 0 : x < 115 ? 1 : (x - 35) / 40; };
    return 16 + 36 * step(c.red) + 6 * step(c.green) + step(c.blue);
  }
  std::string colour_code(const Cell& cell) const {
    if (cell.idle) return "\x1b[0m";
    const int text = is_dark(cell.colour) ? 97 : 30;  // white, black
    if (options_.colour == TextColour::ansi256) return fmt::format("\x1b[{};48;5;{}m", text, ansi256(cell.colour));
    return fmt::format("\x1b[{};48;2;{};{};{}m", text, cell.colour.red, cell.colour.green, cell.colour.blue);
  }

  void append_cells(std::string& text, const std::vector<Cell>& cells) const {
    const bool colours = options_.colour != TextColour::none;
    std::string last = colours ? "\x1b[0m" : "";
    for (const Cell& cell : cells) {
      if (colours) {
        if (std::string code = colour_code(cell); code != last) {
          text += code;
          last = std::move(code);
        }
      }
      if (cell.idle) {
        text += "·";
      } else if (cell.character == 0) {
        text += "─";
      } else {
        text += cell.character;
      }
    }
    if (colours && last != "\x1b[0m") text += "\x1b[0m";
  }

  void append_notes(std::string& text) const {
    std::vector<std::string> notes;
    if (!scale_.unit && scale_.makespan > 0) {
      const double column_s = to_seconds(Duration{scale_.makespan}) / scale_.columns;
      notes.push_back(column_s < 1
                          ? fmt::format("each column is {:.3g} ms and shows the op at its midpoint", column_s * 1e3)
                          : fmt::format("each column is {:.4g} s and shows the op at its midpoint", column_s));
    };
    if (modulo_) notes.emplace_back("microbatches modulo 10");
    std::size_t chunks = 1;
    for (const int rank : rows_) chunks = std::max(chunks, graph_.schedule().stages_of(rank).size());
    if (chunks > 1) notes.emplace_back(chunks == 2 ? "lower case: chunk 1" : "lower case: odd chunks");
    if (!notes.empty()) text += fmt::format("  ({})\n", fmt::join(notes, "; "));
    if (!parts_.empty()) {
      text += "  (D dispatch, C combine of forwards; d, c of backwards: that with the most time in a column)\n";
    }
  }

  const GanttRun& run_;
  const GanttOptions& options_;
  const OpGraph& graph_ = *run_.graph;
  const Metrics& metrics_ = *run_.metrics;
  std::vector<std::vector<Bar>> bars_;              // by rank, in time order
  std::vector<std::vector<const PartRow*>> parts_;  // by rank: those that communicate
  std::vector<HiddenCommunication> hidden_;         // by rank
  std::vector<int> rows_;                           // the ranks shown
  std::int64_t makespan_ = 0;
  GanttScale scale_;
  bool modulo_ = false;
};

bool any_sliced(const std::vector<Gantt>& drawings) {
  return std::any_of(drawings.begin(), drawings.end(), [](const Gantt& each) { return each.sliced(); });
}

// Chooses the most detailed label that fits nine in ten ops.
void choose_sampled_label(const std::vector<Gantt>& drawings, GanttScale& scale) {
  for (const Label label : {Label::slice, Label::microbatch, Label::last_digit}) {
    if (label == Label::slice && !any_sliced(drawings)) continue;
    scale.label = label;
    std::int64_t all = 0;
    std::int64_t fitting = 0;
    for (const Gantt& each : drawings) each.count_fitting(scale, label, all, fitting);
    if (10 * fitting >= 9 * all) return;
  }
}

// Chooses the fewest columns per unit that fit the most detailed label.
void choose_exact_label(const std::vector<Gantt>& drawings, int width, GanttScale& scale) {
  const std::int64_t units = scale.makespan / *scale.unit;
  for (const Label label : {Label::slice, Label::microbatch, Label::last_digit}) {
    if (label == Label::slice && !any_sliced(drawings)) continue;
    scale.label = label;
    scale.columns_per_unit = 1;
    for (const Gantt& each : drawings) {
      scale.columns_per_unit = std::max(scale.columns_per_unit, each.needed_columns(*scale.unit, label));
    }
    if (units * scale.columns_per_unit <= width) break;
  }
  scale.columns_per_unit = std::min(scale.columns_per_unit, width / units);
  scale.columns = static_cast<int>(units * scale.columns_per_unit);
}

GanttScale common_scale(const std::vector<Gantt>& drawings, int width) {
  GanttScale scale;
  for (const Gantt& each : drawings) scale.makespan = std::max(scale.makespan, each.makespan());
  if (scale.makespan == 0) return scale;
  std::int64_t unit = scale.makespan;
  for (const Gantt& each : drawings) unit = each.common_unit(unit);
  if (scale.makespan / unit > width) {
    scale.columns = width;
    choose_sampled_label(drawings, scale);
  } else {
    scale.unit = unit;
    choose_exact_label(drawings, width, scale);
  }
  return scale;
}

}  // namespace

std::string text_gantt(std::span<const GanttRun> runs, const GanttOptions& options) {
  std::vector<Gantt> drawings;
  drawings.reserve(runs.size());
  for (const GanttRun& run : runs) drawings.emplace_back(run, options);
  const GanttScale scale = common_scale(drawings, std::max(options.width, kMinWidth));
  std::string text;
  for (Gantt& each : drawings) text += (text.empty() ? "" : "\n") + each.draw(scale);
  return text;
}

std::string text_gantt(const OpGraph& graph, const Timeline& timeline, const Metrics& metrics,
                       const GanttOptions& options) {
  const GanttRun run{.title = "", .graph = &graph, .timeline = &timeline, .metrics = &metrics, .parts = options.parts};
  return text_gantt(std::span(&run, 1), options);
}

}  // namespace sluice::traces

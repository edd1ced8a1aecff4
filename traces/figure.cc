#include "traces/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "model/errors.h"
#include "traces/quantity_text.h"
#include "traces/svg.h"

namespace sluice {
namespace {

constexpr double kLeft = 64;
constexpr double kRight = 16;
constexpr double kFont = 11;
constexpr double kMemoryHeight = 84;
constexpr double kNarrow = 0.5;  // px; narrower ops are not drawn one by one

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// What a rectangle can be; in the order of the legend.
enum Swatch : int { kForward, kBackward, kInputGradient, kWeightGradient, kRecompute, kOptimizer, kIdle, kNumSwatches };
constexpr std::array<std::string_view, kNumSwatches> kSwatchNames = {
    "F forward", "B backward", "I input gradient", "W weight gradient", "R recomputation", "O optimizer", "idle"};
constexpr std::array<Rgb, kNumSwatches> kSwatchColours = {
    palette::kForward,   palette::kBackward,  palette::kInputGradient, palette::kWeightGradient,
    palette::kRecompute, palette::kOptimizer, palette::kIdle};

Swatch swatch_of(const Vertex& op) {
  if (op.kind == VertexKind::recompute) return kRecompute;
  if (op.kind == VertexKind::optimizer) return kOptimizer;
  return static_cast<Swatch>(op.op);
}

// The ranks that get a row; -1 stands for those left out.
std::vector<int> rows_of(int ranks, int most) {
  std::vector<int> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    if (ranks > most && rank == most / 2) {
      rows.push_back(-1);
      rank = ranks - most / 2;
    }
    rows.push_back(rank);
  }
  return rows;
}

// Something that a rank holds, over time: rising times, each value until the next.
using Curve = std::vector<std::pair<Duration, double>>;

class Figure {
 public:
  Figure(std::span<const DrawnRun> runs, const FigureOptions& options) : runs_(runs), options_(options) {
    for (const DrawnRun& run : runs) longest_ = std::max(longest_, run.metrics->makespan);
    longest_ = std::max(longest_, Duration{1});
    unit_ = unit_for(longest_);
    plot_ = options.width - kLeft - kRight;
    double height = 8;
    for (const DrawnRun& run : runs) {
      Panel panel{.run = &run, .top = height, .rows = rows_of(run.graph->schedule().num_ranks(), options.max_ranks)};
      panel.row_height = panel.rows.size() <= 8 ? 22 : panel.rows.size() <= 16 ? 18 : 12;
      find_vertices(panel);
      panel.memory_top = panel.top + 24 + static_cast<double>(panel.rows.size()) * panel.row_height + 12;
      panel.bottom = panel.memory_top + kMemoryHeight;
      height = panel.bottom + 22;
      panels_.push_back(std::move(panel));
    }
    axis_y_ = panels_.back().bottom;
    height_ = height + 58;
  }

  std::string draw() {
    std::string title = panels_[0].run->title;
    if (panels_.size() > 1) title += " and " + panels_[1].run->title;
    Svg svg(options_.width, height_, title,
            "Pipeline schedule: a row a rank, time from left to right; below it what each rank holds.");
    for (const Panel& panel : panels_) {
      draw_grid(svg, panel);
      draw_rows(svg, panel);
      draw_memory(svg, panel);
    }
    draw_axis(svg);
    draw_legend(svg);
    return std::move(svg).take();
  }

 private:
  struct Panel {
    const DrawnRun* run = nullptr;
    double top = 0;
    std::vector<int> rows;
    double row_height = 20;
    double memory_top = 0;
    double bottom = 0;
    std::vector<std::vector<VertexId>> vertices;  // by rank, of its compute lane
    int label_level = 3;
  };

  double x_of(Duration time) const {
    return kLeft + plot_ * static_cast<double>(time.count()) / static_cast<double>(longest_.count());
  }

  void find_vertices(Panel& panel) const {
    const OpGraph& graph = *panel.run->graph;
    panel.vertices.resize(index(graph.schedule().num_ranks()));
    for (VertexId v = 0; v < graph.size(); ++v) {
      const VertexKind kind = graph[v].kind;
      if (kind == VertexKind::transfer || kind == VertexKind::collective) continue;
      panel.vertices[index(graph[v].lane)].push_back(v);
    }
    panel.label_level = label_level(panel);
  }

  // Labels from long to short: "F3.1", "3.1", "3", none.
  static std::string label(const OpGraph& graph, const Vertex& op, int level) {
    if (level > 2) return "";
    const bool sliced = graph.schedule().sliced() && level < 2 && op.kind != VertexKind::optimizer;
    std::string out;
    if (op.kind == VertexKind::optimizer) return level == 0 ? "O" : "";
    if (level == 0) out += op.kind == VertexKind::recompute ? 'R' : letter(op.op);
    out += std::to_string(op.microbatch);
    if (sliced) out += "." + std::to_string(op.slice);
    return out;
  }

  double font(const Panel& panel) const { return std::min(kFont, panel.row_height * 0.62); }

  // The longest labels that fit in nearly all ops, so that a picture does not mix them more than it must.
  int label_level(const Panel& panel) const {
    const OpGraph& graph = *panel.run->graph;
    for (int level = 0; level < 3; ++level) {
      std::int64_t fit = 0;
      std::int64_t all = 0;
      for (const auto& list : panel.vertices) {
        for (const VertexId v : list) {
          if (graph[v].kind == VertexKind::optimizer) continue;
          ++all;
          const double width = x_of(panel.run->timeline->end[v]) - x_of(panel.run->timeline->start[v]);
          fit += text_width(label(graph, graph[v], level), font(panel)) + 1 <= width ? 1 : 0;
        }
      }
      if (10 * fit >= 9 * all) return level;
    }
    return 2;
  }

  void draw_grid(Svg& svg, const Panel& panel) const {
    const double step = tick_step(to_seconds(longest_) / unit_.seconds, 12);
    for (int i = 0; static_cast<double>(i) * step * unit_.seconds <= to_seconds(longest_) * (1 + 1e-9); ++i) {
      const double x = kLeft + plot_ * static_cast<double>(i) * step * unit_.seconds / to_seconds(longest_);
      svg.line(x, panel.top + 24, x, panel.bottom, "stroke=\"#d9d9d9\" stroke-width=\"0.5\"");
    }
  }

  void draw_rows(Svg& svg, const Panel& panel) {
    const Metrics& metrics = *panel.run->metrics;
    svg.text(kLeft, panel.top + 15, panel.run->title, 13, Svg::Anchor::start, "font-weight=\"bold\"");
    svg.text(options_.width - kRight, panel.top + 15,
             fmt::format("makespan {:.4g} {}, bubble {:.1f} %", to_seconds(metrics.makespan) / unit_.seconds,
                         unit_.name, 100 * metrics.bubble_fraction),
             kFont, Svg::Anchor::end);
    double y = panel.top + 24;
    for (const int rank : panel.rows) {
      if (rank < 0) {
        const auto shown = std::ssize(panel.rows) - 1;
        svg.text(kLeft + plot_ / 2, y + panel.row_height * 0.75,
                 fmt::format("({} ranks)", std::ssize(panel.vertices) - shown), font(panel), Svg::Anchor::middle);
      } else {
        draw_row(svg, panel, rank, y);
      }
      y += panel.row_height;
    }
  }

  void draw_row(Svg& svg, const Panel& panel, int rank, double y) {
    const double height = panel.row_height - 2;
    svg.text(kLeft - 8, y + height / 2 + kFont * 0.36, fmt::format("rank {}", rank), kFont, Svg::Anchor::end);
    const double end = x_of(panel.run->metrics->makespan);
    svg.rect(kLeft, y, end - kLeft, height, fmt::format("fill=\"{}\"", hex(palette::kIdle)));
    used_[kIdle] = true;
    const auto& list = panel.vertices[index(rank)];
    const Timeline& timeline = *panel.run->timeline;
    const auto narrow = std::count_if(list.begin(), list.end(), [&](VertexId v) {
      const double width = x_of(timeline.end[v]) - x_of(timeline.start[v]);
      return width > 0 && width < kNarrow;
    });
    if (4 * narrow > std::ssize(list)) {
      draw_columns(svg, panel, list, y, height);
      return;
    }
    for (const VertexId v : list) {
      if (timeline.end[v] > timeline.start[v]) draw_op(svg, panel, v, y, height);
    }
  }

  void draw_op(Svg& svg, const Panel& panel, VertexId v, double y, double height) {
    const OpGraph& graph = *panel.run->graph;
    const double x = x_of(panel.run->timeline->start[v]);
    const double width = x_of(panel.run->timeline->end[v]) - x;
    if (graph[v].kind != VertexKind::joint) return draw_half(svg, panel, graph[v], x, y, width, height);
    draw_half(svg, panel, graph[v], x, y, width, height / 2);
    draw_half(svg, panel, graph.joint_partner(graph[v]), x, y + height / 2, width, height / 2);
  }

  void draw_half(Svg& svg, const Panel& panel, const Vertex& op, double x, double y, double width, double height) {
    const Schedule& schedule = panel.run->graph->schedule();
    const Swatch swatch = swatch_of(op);
    used_[swatch] = true;
    const int chunks = static_cast<int>(schedule.stages_of(op.lane).size());
    const int chunk = schedule.chunk_of(op.lane, op.stage);
    shaded_ |= chunks > 1;
    const double shade = chunks > 1 ? 0.45 * chunk / (chunks - 1) : 0;
    const Rgb fill = lighter(kSwatchColours[static_cast<std::size_t>(swatch)], shade);
    svg.rect(x, y, width, height,
             fmt::format("fill=\"{}\"{}", hex(fill), width > 3 ? " stroke=\"#ffffff\" stroke-width=\"0.5\"" : ""));
    const double size = std::min(font(panel), height * 0.85);
    for (int level = panel.label_level; level < 3; ++level) {
      const std::string text = label(*panel.run->graph, op, level);
      if (text.empty() || text_width(text, size) + 1 > width) continue;
      svg.text(x + width / 2, y + height / 2 + size * 0.36, text, size, Svg::Anchor::middle,
               is_dark(fill) ? "fill=\"#ffffff\"" : "fill=\"#000000\"");
      return;
    }
  }

  // Each half pixel in the colour of what takes most of its time.
  void draw_columns(Svg& svg, const Panel& panel, const std::vector<VertexId>& list, double y, double height) {
    columns_drawn_ = true;
    const auto num_columns = static_cast<std::size_t>(std::ceil(plot_ / kNarrow));
    std::vector<std::array<float, kNumSwatches>> time(num_columns, std::array<float, kNumSwatches>{});
    const auto add = [&](Swatch swatch, double from, double to) {
      const double begin = (from - kLeft) / kNarrow;
      const double end = (to - kLeft) / kNarrow;
      for (auto c = static_cast<std::size_t>(begin); c < num_columns && static_cast<double>(c) < end; ++c) {
        const double column = static_cast<double>(c);
        time[c][index(swatch)] += static_cast<float>(std::min(end, column + 1) - std::max(begin, column));
      }
    };
    const OpGraph& graph = *panel.run->graph;
    for (const VertexId v : list) {
      const double from = x_of(panel.run->timeline->start[v]);
      const double to = x_of(panel.run->timeline->end[v]);
      add(swatch_of(graph[v]), from, graph[v].kind == VertexKind::joint ? (from + to) / 2 : to);
      if (graph[v].kind == VertexKind::joint) add(swatch_of(graph.joint_partner(graph[v])), (from + to) / 2, to);
    }
    const auto winner = [&](std::size_t column) {
      const auto& shares = time[column];
      float idle = 1;
      int best = kIdle;
      for (int s = 0; s < kIdle; ++s) idle -= shares[index(s)];
      for (int s = 0; s < kIdle; ++s) {
        if (shares[index(s)] > (best == kIdle ? idle : shares[index(best)])) best = s;
      }
      return best;
    };
    for (std::size_t begin = 0; begin < num_columns;) {
      const int swatch = winner(begin);
      std::size_t end = begin + 1;
      while (end < num_columns && winner(end) == swatch) ++end;
      if (swatch != kIdle) {
        used_[index(swatch)] = true;
        svg.rect(kLeft + static_cast<double>(begin) * kNarrow, y, static_cast<double>(end - begin) * kNarrow, height,
                 fmt::format("fill=\"{}\"", hex(kSwatchColours[index(swatch)])));
      }
      begin = end;
    }
  }

  // --- what ranks hold ----------------------------------------------------------------------------------------

  // Microbatches in flight, as Metrics counts them: an F's share from its start to the end of its B or W.
  static Curve in_flight(const Panel& panel, int rank) {
    const OpGraph& graph = *panel.run->graph;
    const Schedule& schedule = graph.schedule();
    const double whole =
        static_cast<double>(schedule.num_ranks()) / std::max(schedule.num_ranks(), schedule.num_stages());
    std::vector<std::pair<Duration, double>> changes;
    const auto change = [&](const Vertex& op, VertexId v) {
      if (op.op == OpKind::I) return;
      const MicrobatchShape& shape = schedule.shape(op.microbatch);
      const double share =
          whole * static_cast<double>(shape.slice_lengths[index(op.slice)]) / static_cast<double>(shape.tokens());
      const bool forward = op.op == OpKind::F;
      changes.emplace_back(forward ? panel.run->timeline->start[v] : panel.run->timeline->end[v],
                           forward ? share : -share);
    };
    for (const VertexId v : panel.vertices[index(rank)]) {
      if (graph[v].kind != VertexKind::compute && graph[v].kind != VertexKind::joint) continue;
      change(graph[v], v);
      if (graph[v].kind == VertexKind::joint) change(graph.joint_partner(graph[v]), v);
    }
    // At one instant what ends is given back first.
    std::sort(changes.begin(), changes.end());
    Curve curve = {{Duration{0}, 0}};
    double held = 0;
    for (const auto& [time, amount] : changes) {
      held += amount;
      if (curve.back().first == time) {
        curve.back().second = held;
      } else {
        curve.emplace_back(time, held);
      }
    }
    return curve;
  }

  static Curve bytes(const RankMemory& memory) {
    Curve curve;
    for (const MemorySample& sample : memory.samples) {
      curve.emplace_back(sample.time, static_cast<double>(total(sample.bytes)) / kGiB);
    }
    return curve;
  }

  static double peak(const Curve& curve) {
    double most = 0;
    for (const auto& [time, value] : curve) most = std::max(most, value);
    return most;
  }

  void draw_memory(Svg& svg, const Panel& panel) const {
    const DrawnRun& run = *panel.run;
    const bool has_bytes = run.graph->has_bytes() && !run.memory.empty();
    std::vector<Curve> curves;
    for (const int rank : panel.rows) {
      if (rank < 0) continue;
      curves.push_back(has_bytes ? bytes(run.memory[index(rank)]) : in_flight(panel, rank));
    }
    std::size_t worst = 0;
    double most = 0;
    for (std::size_t i = 0; i < curves.size(); ++i) {
      const double here = peak(curves[i]);
      if (here > most * (1 + 1e-12)) worst = i;
      most = std::max(most, here);
    }
    // 0: not known.
    const double capacity = has_bytes ? static_cast<double>(run.capacity_bytes.value_or(0)) / kGiB : 0;
    const double top = std::max({most, capacity, 1e-12}) * 1.06;
    const auto y_of = [&](double value) { return panel.bottom - kMemoryHeight * value / top; };
    const double step = tick_step(top, 5);
    for (int i = 0; static_cast<double>(i) * step <= top; ++i) {
      const double y = y_of(static_cast<double>(i) * step);
      svg.line(kLeft - 3, y, options_.width - kRight, y, "stroke=\"#d9d9d9\" stroke-width=\"0.5\"");
      svg.text(kLeft - 6, y + 3.5, fmt::format("{:.4g}", static_cast<double>(i) * step), 9, Svg::Anchor::end);
    }
    svg.raw(fmt::format(
        "<text transform=\"translate(14 {}) rotate(-90)\" font-size=\"9\" text-anchor=\"middle\">{}</text>\n",
        px(panel.bottom - kMemoryHeight / 2), has_bytes ? "GiB" : "in flight"));
    const double end = x_of(run.metrics->makespan);
    for (std::size_t i = 0; i < curves.size(); ++i) {
      if (i != worst) svg.path(steps(curves[i], y_of, end), "fill=\"none\" stroke=\"#888888\" stroke-width=\"0.6\"");
    }
    svg.path(steps(curves[worst], y_of, end), "fill=\"none\" stroke=\"#000000\" stroke-width=\"1.6\"");
    int worst_rank = 0;
    std::size_t row = 0;
    for (const int rank : panel.rows) {
      if (rank < 0) continue;
      if (row++ == worst) worst_rank = rank;
    }
    const std::string words =
        fmt::format("rank {}: at most {:.4g}{}", worst_rank, most, has_bytes ? " GiB" : " in flight");
    svg.text(options_.width - kRight - 4, y_of(most) - 3, words, 9, Svg::Anchor::end);
    if (capacity > 0) {
      const double y = y_of(capacity);
      svg.line(kLeft, y, options_.width - kRight, y, "stroke=\"#c00000\" stroke-width=\"1\" stroke-dasharray=\"5 3\"");
      svg.text(kLeft + 4, y - 3, fmt::format("capacity {:.4g} GiB", capacity), 9, Svg::Anchor::start,
               "fill=\"#c00000\"");
    }
  }

  // Steps, with the most within each half pixel kept where samples are closer.
  std::string steps(const Curve& curve, const auto& y_of, double end) const {
    std::string data;
    double last_x = -1;
    double last = 0;
    double most = 0;
    const auto to = [&](double x, double value) {
      data +=
          data.empty() ? fmt::format("M{} {}", px(x), px(y_of(value))) : fmt::format("H{}V{}", px(x), px(y_of(value)));
    };
    for (const auto& [time, value] : curve) {
      const double x = x_of(time);
      if (last_x >= 0 && x - last_x < kNarrow) {
        most = std::max(most, value);
        last = value;
        continue;
      }
      if (last_x >= 0 && most > last) to(last_x, last);
      to(x, value);
      last_x = x;
      last = most = value;
    }
    if (last_x >= 0) to(last_x, last);
    data += fmt::format("H{}", px(end));
    return data;
  }

  void draw_axis(Svg& svg) const {
    svg.line(kLeft, axis_y_, options_.width - kRight, axis_y_, "stroke=\"#000000\" stroke-width=\"0.8\"");
    const double step = tick_step(to_seconds(longest_) / unit_.seconds, 12);
    for (int i = 0; static_cast<double>(i) * step * unit_.seconds <= to_seconds(longest_) * (1 + 1e-9); ++i) {
      const double at = static_cast<double>(i) * step;
      const double x = kLeft + plot_ * at * unit_.seconds / to_seconds(longest_);
      svg.line(x, axis_y_, x, axis_y_ + 4, "stroke=\"#000000\" stroke-width=\"0.8\"");
      svg.text(x, axis_y_ + 15, fmt::format("{:.6g}", at), 10, Svg::Anchor::middle);
    }
    svg.text(kLeft + plot_ / 2, axis_y_ + 30, fmt::format("time ({})", unit_.name), kFont, Svg::Anchor::middle);
  }

  void draw_legend(Svg& svg) const {
    double x = kLeft;
    const double y = axis_y_ + 42;
    for (int s = 0; s < kNumSwatches; ++s) {
      if (!used_[index(s)]) continue;
      svg.rect(x, y, 12, 12,
               fmt::format("fill=\"{}\" stroke=\"#999999\" stroke-width=\"0.5\"", hex(kSwatchColours[index(s)])));
      svg.text(x + 16, y + 10, kSwatchNames[index(s)], 10);
      x += 16 + text_width(kSwatchNames[index(s)], 10) + 16;
    }
    std::string note;
    if (shaded_) note = "lighter: later chunks";
    if (columns_drawn_) note = "each half pixel shows what takes most of its time";
    if (!note.empty()) svg.text(options_.width - kRight, y + 26, note, 9, Svg::Anchor::end);
  }

  std::span<const DrawnRun> runs_;
  FigureOptions options_;
  std::vector<Panel> panels_;
  Duration longest_{};
  TimeUnit unit_;
  double plot_ = 0;
  double axis_y_ = 0;
  double height_ = 0;
  std::array<bool, kNumSwatches> used_{};
  bool shaded_ = false;
  bool columns_drawn_ = false;
};

}  // namespace

std::string svg_figure(std::span<const DrawnRun> runs, const FigureOptions& options) {
  if (runs.empty() || runs.size() > 2)
    throw InputError(fmt::format("a figure shows one or two runs, got {}", runs.size()));
  return Figure(runs, options).draw();
}

}  // namespace sluice

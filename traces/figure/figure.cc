#include "traces/figure/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "traces/figure/figure_rows.h"
#include "traces/figure/held.h"
#include "traces/figure/svg.h"
#include "traces/text/quantity_text.h"

namespace sluice::traces {
namespace {

constexpr double kLeft = 54;          // px to the left of the plot
constexpr double kRight = 14;         // px to the right of the plot
constexpr double kCaptionHeight = 9;  // between the rows and the memory plot, without the lines of the caption
constexpr double kCaptionLine = 11;
constexpr double kHeldHeight = 64;
constexpr double kRunGap = 14;  // between two runs
constexpr double kLane = 6;     // of dispatch and combine, with its gap
constexpr double kLegendLine = 17;
constexpr double kTitleSize = 12;
constexpr double kTextSize = 10;
constexpr double kSmallSize = 9;
constexpr const char* kBold = "font-weight=\"bold\"";
constexpr double kBoldWidth = 1.1;  // of bold text, at most, relative to text_width

class Figure {
 public:
  Figure(std::span<const DrawnRun> runs, const FigureOptions& options) : options_(options) {
    if (options_.title) {  // on one line
      const std::vector<std::string> line = wrapped(*options_.title, kTitleSize, HUGE_VAL);
      options_.title = line.empty() ? "" : line.front();
    }
    for (const DrawnRun& run : runs) scale_.longest = std::max(scale_.longest, run.metrics->makespan);
    scale_.left = kLeft;
    scale_.width = options.width - kLeft - kRight;
    unit_ = unit_for(scale_.longest);
    step_ = tick_step(longest(), static_cast<int>(scale_.width / 55));
    std::vector<FigureRows::Room> rooms;
    std::size_t rows = 0;
    bool joint = false;
    for (const DrawnRun& run : runs) {
      panels_.push_back(
          {.run = &run, .rows = FigureRows(run, static_cast<int>(panels_.size()) + 1, options.max_ranks), .held = {}});
      Panel& panel = panels_.back();
      std::vector<int> ranks;
      std::copy_if(panel.rows.rows().begin(), panel.rows.rows().end(), std::back_inserter(ranks),
                   [](int rank) { return rank >= 0; });
      if (options.memory) panel.held = held_over_time(run, ranks);
      panel.rows.add_rooms(scale_, rooms);
      rows += panel.rows.rows().size();
      joint |= panel.rows.has_joint_blocks();
    }
    const double pitch = std::clamp(std::floor(420.0 / static_cast<double>(rows)), 10.0, joint ? 24.0 : 18.0);
    labels_ = choose_labels(rooms, std::min(kTextSize, (joint ? 0.42 : 0.66) * pitch));
    const bool experts =
        std::any_of(panels_.begin(), panels_.end(), [](const Panel& panel) { return panel.rows.has_experts(); });
    sizes_ = {.pitch = pitch + (experts ? kLane : 0), .lane = experts ? kLane : 0};
  }

  std::string draw() {
    // The legend, and so the height of the page, depends on what was drawn: the body is drawn first.
    Svg body;
    double y = 4;
    if (options_.title && !options_.title->empty() && panels_.size() > 1) y = draw_bold(body, *options_.title, y) + 4;
    for (Panel& panel : panels_) {
      y = draw_title(body, panel, y);
      panel.rows.draw(body, y, sizes_, scale_, labels_, shown_);
      panel.rows.draw_experts(body, y, sizes_, scale_, shown_);
      if (options_.transfers) panel.rows.draw_communication(body, y, sizes_, scale_, shown_);
      y += sizes_.pitch * static_cast<double>(panel.rows.rows().size());
      if (panel.held.most > 0) {
        y += kCaptionHeight + kCaptionLine * static_cast<double>(caption(panel).size());
        draw_held(body, panel, y);
        y += kHeldHeight;
      }
      y += kRunGap;
    }
    y = draw_axis(body, y - kRunGap + (panels_.back().held.most > 0 ? 0 : 2));
    y = draw_legend(body, y);

    Svg page(options_.width, y, page_title(), description());
    if (!labels_.with_kind()) define_hatches(page);
    page.raw(std::move(body).body());
    return std::move(page).take();
  }

 private:
  struct Panel {
    const DrawnRun* run = nullptr;
    FigureRows rows;
    Held held;
  };

  double longest() const { return to_seconds(scale_.longest) / unit_.seconds; }
  double right() const { return options_.width - kRight; }

  // "makespan 33 s, bubble 27.3 %", with experts also "56 % of dispatch and combine hidden"; for other runs also
  // the difference from the first.
  std::string result(const Panel& panel) const {
    const Metrics& metrics = *panel.run->metrics;
    std::string text = fmt::format("makespan {:.4g} {}", to_seconds(metrics.makespan) / unit_.seconds, unit_.name);
    const double first = to_seconds(panels_.front().run->metrics->makespan);
    if (&panel != &panels_.front() && first > 0) {
      text += fmt::format(" ({:+.1f} %)", 100 * (to_seconds(metrics.makespan) / first - 1));
    }
    text += fmt::format(", bubble {:.1f} %", 100 * metrics.bubble_fraction);
    if (panel.rows.has_experts()) {
      const int ranks = panel.run->graph->schedule().num_ranks();
      text += fmt::format(", {:.0f} % of dispatch and combine hidden",
                          100 * hidden_of_run(panel.run->parts, ranks).fraction());
    }
    return text;
  }

  std::string page_title() const {
    if (options_.title && !options_.title->empty()) return *options_.title;
    std::string title = panels_.front().run->title;
    if (panels_.size() > 1) title += " above " + panels_.back().run->title;
    return title;
  }
  std::string description() const {
    std::string text = "Timeline of a pipeline schedule: one row per rank, time from left to right.";
    for (const Panel& panel : panels_) text += fmt::format(" {}: {}.", panel.run->title, result(panel));
    return text;
  }

  // The functions below draw text from `y` downwards and return the y position below it.

  static double draw_lines(Svg& svg, const std::vector<std::string>& lines, double y, double size,
                           const std::string& style = "") {
    for (const std::string& line : lines) {
      svg.text(kLeft, y + size + 2, line, size, Svg::Anchor::start, style);
      y += size + 3;
    }
    return y;
  }

  // Draws a title in the largest size in which it is one line, or in the smallest in several lines.
  double draw_bold(Svg& svg, const std::string& title, double y) const {
    const double room = (right() - kLeft) / kBoldWidth;
    double size = kTitleSize;
    while (size > kTextSize && text_width(title, size) > room) --size;
    return draw_lines(svg, wrapped(title, size, room), y, size, kBold);
  }

  // Draws the title and the result of a run, on one line if they fit.
  double draw_title(Svg& svg, const Panel& panel, double y) const {
    if (options_.title && options_.title->empty()) return y;
    const std::string& title = options_.title && panels_.size() == 1 ? *options_.title : panel.run->title;
    const std::string words = result(panel);
    constexpr double kBelow = 7;  // px between the title and the rows
    if (kBoldWidth * text_width(title, kTitleSize) + 12 + text_width(words, kTextSize) <= right() - kLeft) {
      svg.text(right(), y + kTitleSize + 2, words, kTextSize, Svg::Anchor::end);
      return draw_lines(svg, {title}, y, kTitleSize, kBold) + kBelow;
    }
    y = draw_bold(svg, title, y);
    return draw_lines(svg, wrapped(words, kTextSize, right() - kLeft), y, kTextSize) + kBelow;
  }

  template <typename Draw>
  void for_time_ticks(Draw draw) const {
    for (int i = 0; i * step_ <= longest() * (1 + 1e-9); ++i) {
      draw(i * step_, scale_.left + scale_.width * (i * step_ / longest()));
    }
  }

  // --- memory -------------------------------------------------------------------------------------------------

  // The maximum over all panels with this unit, which share a scale; includes the capacity if it is drawn.
  double most_held(bool bytes) const {
    double most = 0;
    for (const Panel& panel : panels_) {
      if (panel.held.bytes != bytes) continue;
      most = std::max({most, panel.held.most, capacity_line(panel)});
    }
    return most;
  }
  static double capacity(const Panel& panel) {
    return panel.held.bytes ? static_cast<double>(panel.run->capacity_bytes.value_or(0)) / kGiB : 0;
  }
  // 0 if the capacity is unknown, or so high that it would flatten the curves.
  static double capacity_line(const Panel& panel) {
    return capacity(panel) <= 3 * panel.held.most ? capacity(panel) : 0;
  }

  std::vector<std::string> caption(const Panel& panel) const {
    const Held& held = panel.held;
    std::string text = held.bytes ? "memory (GiB)" : "microbatches in flight";
    text += fmt::format(": peak on rank {}{}, {:.4g}", held.ranks[held.most_at], held.ranks.size() > 1 ? " (bold)" : "",
                        held.most);
    if (capacity(panel) > 0) {
      text += fmt::format(" of {:.4g}{}", capacity(panel), capacity_line(panel) > 0 ? " (dashed)" : "");
    }
    return wrapped(text, kSmallSize, right() - kLeft);
  }

  void draw_held(Svg& svg, const Panel& panel, double top) const {
    const Held& held = panel.held;
    const double bottom = top + kHeldHeight;
    const std::vector<std::string> lines = caption(panel);
    double baseline = top - 6 - kCaptionLine * static_cast<double>(std::ssize(lines) - 1);
    for (const std::string& line : lines) {
      svg.text(kLeft, baseline, line, kSmallSize);
      baseline += kCaptionLine;
    }
    const double highest = most_held(held.bytes) * 1.05;
    const double step = tick_step(highest, 4);
    const HeldScale scale{
        .left = scale_.left, .px_per_ns = scale_.px_per_ns(), .bottom = bottom, .px_per_unit = kHeldHeight / highest};
    for_time_ticks([&](double, double x) { svg.line(x, top, x, bottom, "stroke=\"#dddddd\" stroke-width=\"0.5\""); });
    for (int i = 0; i * step <= highest; ++i) {
      const double y = bottom - scale.px_per_unit * (i * step);
      svg.line(kLeft - 3, y, right(), y,
               i == 0 ? "stroke=\"#000000\" stroke-width=\"0.6\"" : "stroke=\"#dddddd\" stroke-width=\"0.5\"");
      svg.text(kLeft - 5, y + 0.36 * kSmallSize, tick_label(i * step, step), kSmallSize, Svg::Anchor::end);
    }
    const Duration end = panel.run->metrics->makespan;
    for (std::size_t i = 0; i < held.ranks.size(); ++i) {
      if (i == held.most_at) continue;
      svg.path(held_path(held.levels[i], end, scale), "fill=\"none\" stroke=\"#888888\" stroke-width=\"0.6\"");
    }
    svg.path(held_path(held.levels[held.most_at], end, scale),
             "fill=\"none\" stroke=\"#000000\" stroke-width=\"1.4\" stroke-linejoin=\"round\"");
    if (const double line = capacity_line(panel); line > 0) {
      const double y = bottom - scale.px_per_unit * line;
      svg.line(kLeft, y, right(), y, "stroke=\"#c00000\" stroke-width=\"1\" stroke-dasharray=\"5 3\"");
    }
  }

  // --- axis and legend ----------------------------------------------------------------------------------------

  // Both return the y position below what they draw.
  double draw_axis(Svg& svg, double y) const {
    svg.line(kLeft, y, right(), y, "stroke=\"#000000\" stroke-width=\"0.8\"");
    const std::string title = fmt::format("time ({})", unit_.name);
    for_time_ticks([&](double value, double x) {
      svg.line(x, y, x, y + 4, "stroke=\"#000000\" stroke-width=\"0.8\"");
      const std::string label = tick_label(value, step_);
      // Keeps the last label within the picture.
      const double half = text_width(label, kTextSize) / 2;
      svg.text(std::min(x, options_.width - 1 - half), y + 14, label, kTextSize, Svg::Anchor::middle);
    });
    svg.text(kLeft + scale_.width / 2, y + 27, title, kTextSize, Svg::Anchor::middle);
    return y + 34;
  }

  // Places items from left to right, with line breaks.
  struct Flow {
    double x = kLeft;
    double y = 0;
    double right = 0;
    void take(double width) {
      if (x > kLeft && x + width > right) {
        x = kLeft;
        y += kLegendLine;
      }
    }
  };

  double draw_legend(Svg& svg, double y) const {
    constexpr double kBoxWidth = 15;
    constexpr double kBoxHeight = 12;
    Flow flow{.y = y, .right = right()};
    const auto box = [&](double x, Rgb colour) {
      svg.rect(x, flow.y, kBoxWidth, kBoxHeight,
               fmt::format("fill=\"{}\" stroke=\"#999999\" stroke-width=\"0.5\"", hex(colour)));
    };
    const auto words = [&](double boxes, std::string_view text) {
      svg.text(flow.x + boxes + 4, flow.y + kBoxHeight / 2 + 0.36 * kTextSize, text, kTextSize);
      flow.x += boxes + 4 + text_width(text, kTextSize) + 12;
    };
    for (int s = 0; s < kNumSwatches; ++s) {
      if (!shown_.swatches[s]) continue;
      const SwatchLook& look = look_of(static_cast<Swatch>(s));
      flow.take(kBoxWidth + 4 + text_width(look.name, kTextSize));
      box(flow.x, look.colour);
      if (!labels_.with_kind() && !look.hatch.empty()) {
        svg.rect(flow.x, flow.y, kBoxWidth, kBoxHeight, fmt::format("fill=\"url(#{})\"", look.hatch));
      }
      if (labels_.with_kind() && look.letter != ' ') {
        svg.text(flow.x + kBoxWidth / 2, flow.y + kBoxHeight / 2 + 0.36 * kSmallSize, std::string(1, look.letter),
                 kSmallSize, Svg::Anchor::middle, is_dark(look.colour) ? "fill=\"#ffffff\"" : "fill=\"#000000\"");
      }
      words(kBoxWidth, look.name);
    }
    const auto shades = [&](int n, std::string_view what) {
      if (n < 2) return;
      const int boxes = std::min(n, 4);
      const double width = boxes * kBoxWidth;
      const bool letters = what == "slice" && n <= 26;  // as in the labels
      const std::string text = letters ? fmt::format("{} a to {:c}", what, static_cast<char>('a' + n - 1))
                                       : fmt::format("{} 0 to {}", what, n - 1);
      flow.take(width + 4 + text_width(text, kTextSize));
      for (int i = 0; i < boxes; ++i) box(flow.x + i * kBoxWidth, lighter(Rgb{0x44, 0x44, 0x44}, shade_of(i, boxes)));
      words(width, text);
    };
    shades(shown_.chunks, "chunk");
    shades(shown_.slices, "slice");
    if (shown_.experts) {
      for (const auto& [name, colour] : {std::pair("dispatch", palette::kDispatch), {"combine", palette::kCombine}}) {
        flow.take(kBoxWidth + 4 + text_width(name, kTextSize));
        box(flow.x, colour);
        words(kBoxWidth, name);
      }
    }
    if (shown_.communication) {
      constexpr std::string_view kWords = "communication";
      flow.take(kBoxWidth + 4 + text_width(kWords, kTextSize));
      svg.line(flow.x, flow.y + kBoxHeight / 2, flow.x + kBoxWidth, flow.y + kBoxHeight / 2,
               fmt::format("stroke=\"{}\" stroke-width=\"1.5\"", hex(palette::kCommunication)));
      words(kBoxWidth, kWords);
    }
    y = flow.y + kLegendLine;
    const auto note = [&](std::string_view text) {
      y = draw_lines(svg, wrapped(text, kSmallSize, right() - kLeft), y - 2, kSmallSize, "fill=\"#555555\"") + 3;
    };
    if (shown_.stacked) note("Where ops are too narrow to draw, the height of a color is its fraction of time.");
    if (shown_.too_many_transfers) note("Too many transfers to draw.");
    return y + 4;
  }

  FigureOptions options_;
  std::vector<Panel> panels_;
  TimeScale scale_;
  TimeUnit unit_;
  double step_ = 1;  // between ticks, in time units
  RowSizes sizes_;
  Labels labels_;
  Shown shown_;
};

}  // namespace

std::string svg_figure(std::span<const DrawnRun> runs, const FigureOptions& options) {
  if (runs.empty() || runs.size() > kMostFigureRuns) {
    throw InputError(fmt::format("figure: expected 1 to {} runs, got {}", kMostFigureRuns, runs.size()));
  }
  if (!(options.width >= 240 && options.width <= 20'000)) {
    throw InputError(fmt::format("figure: expected a width from 240 to 20000 px, got {:g}", options.width));
  }
  return Figure(runs, options).draw();
}

}  // namespace sluice::traces

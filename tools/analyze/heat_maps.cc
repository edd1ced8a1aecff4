#include "tools/analyze/heat_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "model/median.h"
#include "model/to_size.h"
#include "traces/figure/svg.h"

namespace sluice::tools {
namespace {

constexpr double kMargin = 16;
constexpr double kLabelSize = 11;
constexpr double kTitleSize = 14;
constexpr double kMostCell = 28;
constexpr double kLeastCell = 2;
constexpr double kMapWidth = 900;
constexpr double kStrongest = 0.25;  // the difference from 1 with the full colour
constexpr int kBarCells = 21;        // odd, so that one is white
constexpr double kBarCell = 12;
constexpr Rgb kSlow{202, 44, 44};
constexpr Rgb kFast{36, 98, 174};

// A table of ratios around 1.
struct HeatMap {
  std::string title;
  std::string rows;     // what a row is
  std::string columns;  // what a column is
  std::vector<std::string> row_names;
  std::vector<std::string> column_names;
  std::vector<double> values;  // by row
};

std::string colour_of(double ratio) {
  const double strength = std::min(1.0, std::abs(ratio - 1) / kStrongest);
  return fmt::format("fill=\"{}\"", hex(lighter(ratio >= 1 ? kSlow : kFast, 1 - strength)));
}

double cell_size(const HeatMap& map) {
  const double wide = kMapWidth / static_cast<double>(std::max<std::size_t>(map.column_names.size(), 1));
  return std::clamp(wide, kLeastCell, kMostCell);
}

double height_of(const HeatMap& map) {
  return 3 * kMargin + kTitleSize + 2 * kLabelSize + cell_size(map) * static_cast<double>(map.row_names.size());
}

double labels_of(const HeatMap& map) {
  double width = 0;
  for (const std::string& name : map.row_names) width = std::max(width, text_width(name, kLabelSize));
  return width + kMargin / 2;
}

void draw(Svg& svg, const HeatMap& map, double top) {
  const double cell = cell_size(map);
  const double left = kMargin + labels_of(map);
  svg.text(kMargin, top + kTitleSize, map.title, kTitleSize);
  const double first = top + kTitleSize + kMargin + 2 * kLabelSize;
  svg.text(left, first - kLabelSize - 8, map.columns, kLabelSize);
  svg.text(kMargin, first - kLabelSize - 8, map.rows, kLabelSize);
  // Labels that fit: every n-th.
  const auto every = [&](double size) { return to_size(static_cast<int>(std::max(1.0, std::ceil(size / cell)))); };
  const std::size_t row_step = every(kLabelSize + 2);
  double widest = 0;
  for (const std::string& name : map.column_names) widest = std::max(widest, text_width(name, kLabelSize));
  const std::size_t column_step = every(widest + 4);
  for (std::size_t column = 0; column < map.column_names.size(); column += column_step) {
    svg.text(left + (static_cast<double>(column) + 0.5) * cell, first - 4, map.column_names[column], kLabelSize,
             Svg::Anchor::middle);
  }
  for (std::size_t row = 0; row < map.row_names.size(); ++row) {
    const double y = first + static_cast<double>(row) * cell;
    if (row % row_step == 0) {
      svg.text(left - 4, y + cell / 2 + kLabelSize / 3, map.row_names[row], kLabelSize, Svg::Anchor::end);
    }
    for (std::size_t column = 0; column < map.column_names.size(); ++column) {
      const double value = map.values[row * map.column_names.size() + column];
      svg.raw(fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}><title>{}</title></rect>\n",
                          px(left + static_cast<double>(column) * cell), px(y), px(cell), px(cell), colour_of(value),
                          escaped_xml(fmt::format("{}, {} {}: {:.3f}", map.row_names[row], map.columns,
                                                  map.column_names[column], value))));
    }
  }
}

// The colours of ratios, with the ratios below them.
void draw_colour_bar(Svg& svg, double top) {
  svg.text(kMargin, top + kLabelSize, "time over the reference of the map; above 1 is slower", kLabelSize);
  const double y = top + kLabelSize + 6;
  for (int cell = 0; cell < kBarCells; ++cell) {
    const double ratio = 1 + kStrongest * (2.0 * cell / (kBarCells - 1) - 1);
    const double x = kMargin + (cell + 1) * kBarCell;
    svg.rect(x, y, kBarCell, kBarCell, colour_of(ratio));
    if (cell % 5 == 0) {
      const char* const beyond = cell == 0 ? "\u2264 " : cell == kBarCells - 1 ? "\u2265 " : "";
      svg.text(x + kBarCell / 2, y + kBarCell + kLabelSize + 2, fmt::format("{}{:.4g}", beyond, ratio), kLabelSize,
               Svg::Anchor::middle);
    }
  }
}

// Seconds of passes, by worker and step.
std::vector<std::vector<double>> pass_times(const MeasuredRun& run) {
  std::vector<std::vector<double>> times(to_size(run.workers()), std::vector<double>(run.steps.size(), 0));
  for (const MeasuredOp& op : run.ops) {
    if (is_pass(op.kind)) times[to_size(op.worker)][to_size(op.step)] += to_seconds(op.end - op.start);
  }
  return times;
}

HeatMap by_worker(const MeasuredRun& run, const std::vector<std::vector<double>>& times) {
  HeatMap map{
      .title = "Time of the passes by rank and replica, over the mean of all", .rows = "rank", .columns = "replica"};
  std::vector<double> medians;
  double mean = 0;
  for (const std::vector<double>& each : times) {
    medians.push_back(upper_median(each));
    mean += medians.back() / static_cast<double>(times.size());
  }
  for (int replica = 0; replica < run.replicas; ++replica) {
    for (int shard = 0; shard < run.shards; ++shard) {
      map.column_names.push_back(run.shards > 1 ? fmt::format("{}.{}", replica, shard) : fmt::format("{}", replica));
    }
  }
  for (int rank = 0; rank < run.ranks; ++rank) {
    map.row_names.push_back(fmt::format("rank {}", rank));
    for (int replica = 0; replica < run.replicas; ++replica) {
      for (int shard = 0; shard < run.shards; ++shard) {
        map.values.push_back(medians[to_size(run.worker(replica, rank, shard))] / mean);
      }
    }
  }
  return map;
}

HeatMap by_step(const MeasuredRun& run, const std::vector<std::vector<double>>& times) {
  HeatMap map{.title = "Time of the passes by worker and step, over the median step of the worker",
              .rows = "worker",
              .columns = "step"};
  for (const std::int64_t step : run.steps) map.column_names.push_back(fmt::format("{}", step));
  for (int worker = 0; worker < run.workers(); ++worker) {
    map.row_names.push_back(run.name_of(worker));
    const double usual = upper_median(times[to_size(worker)]);
    for (const double time : times[to_size(worker)]) map.values.push_back(usual > 0 ? time / usual : 1);
  }
  return map;
}

}  // namespace

std::string heat_maps(const Analysis& analysis) {
  const std::vector<std::vector<double>> times = pass_times(analysis.run);
  const HeatMap maps[] = {by_worker(analysis.run, times), by_step(analysis.run, times)};
  double width = 0;
  double height = kMargin;
  for (const HeatMap& map : maps) {
    width =
        std::max({width, 2 * kMargin + labels_of(map) + cell_size(map) * static_cast<double>(map.column_names.size()),
                  2 * kMargin + text_width(map.title, kTitleSize)});
    height += height_of(map);
  }
  width = std::max(width, 2 * kMargin + (kBarCells + 2) * kBarCell);
  Svg svg(width, height + 2 * kMargin + 2 * kLabelSize + kBarCell, "Time of passes",
          "Heat maps of the time of passes by rank and step");
  double top = kMargin;
  for (const HeatMap& map : maps) {
    draw(svg, map, top);
    top += height_of(map);
  }
  draw_colour_bar(svg, top);
  return std::move(svg).take();
}

}  // namespace sluice::tools

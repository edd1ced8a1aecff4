#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/figure/figure.h"
#include "traces/figure/svg.h"

namespace sluice::traces {

// The kinds of rectangles in a figure, in the order of the legend and, from the bottom, of stacked columns.
enum class Swatch : std::uint8_t {
  forward,
  backward,
  input_gradient,
  weight_gradient,
  vocabulary_s,
  vocabulary_t,
  recompute,
  optimizer,
  idle
};
inline constexpr int kNumSwatches = 9;
struct SwatchLook {
  char letter = ' ';
  std::string_view name;
  Rgb colour;
  std::string_view hatch;  // id of the pattern that distinguishes it without colour; empty = plain
};
const SwatchLook& look_of(Swatch swatch);

// Defines the patterns of SwatchLook::hatch.
void define_hatches(Svg& svg);

// Returns the shade of chunk or slice `i` of `n`: 0 is the colour itself, 1 is white.
double shade_of(int i, int n);

// Maps time to px for the whole figure.
struct TimeScale {
  double left = 0;
  double width = 0;
  Duration longest{1};

  double px_per_ns() const { return width / static_cast<double>(longest.count()); }
  double x(Duration time) const { return left + px_per_ns() * static_cast<double>(time.count()); }
};

// The parts of the labels of a figure, from most to least detailed. A slice is a letter after the microbatch (F0a,
// F0b), or a number if there are more than 26 (F0.27).
enum class LabelText : std::uint8_t { kind_and_slice, slice, microbatch };
struct Labels {
  LabelText text = LabelText::kind_and_slice;
  double size = 10;
  std::array<bool, kNumSwatches> shown{};  // whether ops of that kind are labelled
  bool with_kind() const { return text == LabelText::kind_and_slice; }
};

// The heights of the rows of a figure, in px.
struct RowSizes {
  double pitch = 18;  // from row to row
  double lane = 0;    // of it, below the ops: the lane of dispatch and combine with the gap above it
};

// What was drawn in a figure, for its legend.
struct Shown {
  std::array<bool, kNumSwatches> swatches{};
  int chunks = 1;
  int slices = 1;
  bool stacked = false;
  bool experts = false;  // dispatch and combine
  bool communication = false;
  bool too_many_transfers = false;
};

// The timeline of one run: one row per rank.
class FigureRows {
 public:
  // `number` identifies the run within the figure.
  FigureRows(const DrawnRun& run, int number, int max_ranks);

  // The ranks that have a row; -1 is the row for those not shown.
  const std::vector<int>& rows() const { return rows_; }
  bool has_joint_blocks() const { return joint_; }
  // Whether dispatch and combine are drawn.
  bool has_experts() const { return experts_; }

  // An op that can be labelled: its kind, its width in px, and the width of each text at font size 1.
  struct Room {
    Swatch swatch = Swatch::forward;
    double width = 0;
    std::array<double, 3> text{};  // by LabelText
  };
  void add_rooms(const TimeScale& scale, std::vector<Room>& rooms) const;

  // Draws the rows starting at `top`.
  void draw(Svg& svg, double top, const RowSizes& sizes, const TimeScale& scale, const Labels& labels,
            Shown& shown) const;
  // Draws a line from the start of each transfer to its arrival, and collectives as bands along the rows.
  void draw_communication(Svg& svg, double top, const RowSizes& sizes, const TimeScale& scale, Shown& shown) const;
  // Draws dispatch and combine of experts as a lane below the ops of each row.
  void draw_experts(Svg& svg, double top, const RowSizes& sizes, const TimeScale& scale, Shown& shown) const;

 private:
  class Painter;
  class ExpertLane;

  const DrawnRun& run_;
  int number_ = 0;
  std::vector<int> rows_;
  std::vector<std::vector<VertexId>>
      ops_;  // by rank: the ops of its compute lane in time order, except instantaneous ones
  bool joint_ = false;
  bool experts_ = false;
};

// Chooses the most detailed text, and the largest font size up to `largest`, that fits nine in ten ops. If none does:
// the shortest text, for the kinds of which it fits nine in ten.
Labels choose_labels(std::span<const FigureRows::Room> rooms, double largest);

}  // namespace sluice::traces

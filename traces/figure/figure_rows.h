#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/figure/drawn_run.h"
#include "traces/figure/svg.h"

namespace sluice::traces {

// What a rectangle of a figure can be; in the order of the legend, and from the bottom where shares are stacked.
enum class Swatch : std::uint8_t { forward, backward, input_gradient, weight_gradient, recompute, optimizer, idle };
inline constexpr int kNumSwatches = 7;
struct SwatchLook {
  char letter = ' ';
  std::string_view name;
  Rgb colour;
  std::string_view hatch;  // id of the pattern that tells it from others without colour; empty: plain
};
const SwatchLook& look_of(Swatch swatch);

// Adds the patterns that `hatch` of SwatchLook names.
void define_hatches(Svg& svg);

// The shade of entry `i` of `n`, chunks or slices: 0 is the colour itself, 1 white.
double shade_of(int i, int n);

// From time to px, for all that a figure shows.
struct TimeScale {
  double left = 0;
  double width = 0;
  Duration longest{1};

  double px_per_ns() const { return width / static_cast<double>(longest.count()); }
  double x(Duration time) const { return left + px_per_ns() * static_cast<double>(time.count()); }
};

// What labels say in one figure, from much to little; a slice is a letter behind the microbatch (F0a, F0b), or with
// more than 26 of them a number (F0.27).
enum class LabelText : std::uint8_t { kind_and_slice, slice, microbatch };
struct Labels {
  LabelText text = LabelText::kind_and_slice;
  double size = 10;
  std::array<bool, kNumSwatches> shown{};  // whether ops of that kind carry one
  bool with_kind() const { return text == LabelText::kind_and_slice; }
};

// What a figure has shown, for its legend.
struct Shown {
  std::array<bool, kNumSwatches> swatches{};
  int chunks = 1;
  int slices = 1;
  bool stacked = false;
  bool communication = false;
  bool too_many_transfers = false;
};

// The timeline of one run: a row a rank.
class FigureRows {
 public:
  // `number` tells the runs of a figure apart.
  FigureRows(const DrawnRun& run, int number, int max_ranks);

  // The ranks that get a row; -1 stands for those left out.
  const std::vector<int>& rows() const { return rows_; }
  bool has_joint_blocks() const { return joint_; }

  // For each op that can carry a label: which it is, how wide it is, and how wide each text would be at size 1.
  struct Room {
    Swatch swatch = Swatch::forward;
    double width = 0;
    std::array<double, 3> text{};  // by LabelText
  };
  void add_rooms(const TimeScale& scale, std::vector<Room>& rooms) const;

  // Draws them from `top` on, `pitch` px each.
  void draw(Svg& svg, double top, double pitch, const TimeScale& scale, const Labels& labels, Shown& shown) const;
  // What moves between ranks: a line from where a transfer starts to where it arrives; collectives along the rows.
  void draw_communication(Svg& svg, double top, double pitch, const TimeScale& scale, Shown& shown) const;

 private:
  class Painter;

  const DrawnRun& run_;
  int number_ = 0;
  std::vector<int> rows_;
  std::vector<std::vector<VertexId>> ops_;  // by rank, in time, of its compute lane; none of no length
  bool joint_ = false;
};

// The longest text, and the largest size up to `largest`, that nine in ten ops have room for; where none has, the
// shortest text, for the kinds of which nine in ten have the room.
Labels choose_labels(std::span<const FigureRows::Room> rooms, double largest);

}  // namespace sluice::traces

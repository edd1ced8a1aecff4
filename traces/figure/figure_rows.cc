#include "traces/figure/figure_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/to_size.h"

namespace sluice::traces {
namespace {

constexpr double kNarrow = 0.5;           // px; narrower ops are drawn as columns where there are many
constexpr std::ptrdiff_t kFewNarrow = 8;  // up to this many in sequence are drawn one by one
constexpr double kColumn = 1;             // px, width of a stacked column
constexpr double kOutlined = 5;           // px; narrower ops have no outline, which would hide their colour
constexpr double kHatched = 4;            // px, period of the hatches; narrower shapes have none
constexpr double kTouching = 0.005;       // px; ops with a smaller gap are drawn without one
constexpr double kLabelMargin = 1.5;      // px, total space between a label and the edges of its op
constexpr double kLaneGap = 1;            // px, between the ops and the lane of dispatch and combine
constexpr double kSmallestLabel = 6;
constexpr int kMaxTransfers = 4000;

Swatch swatch_of(const Vertex& op) {
  if (op.kind == VertexKind::recompute) return Swatch::recompute;
  if (op.kind == VertexKind::optimizer) return Swatch::optimizer;
  return static_cast<Swatch>(op.op);
}

// The height of the ops of a row, without the lane below them and the gap to the next row.
double ops_height(const RowSizes& sizes) {
  const double pitch = sizes.pitch - sizes.lane;
  return pitch - (pitch >= 14 ? 2 : 1);
}

// Path data of a box. Edges are rounded, not sizes, so that adjacent boxes touch.
std::string box(double from, double y, double to, double height) {
  const std::string width = px(std::round(to * 100) / 100 - std::round(from * 100) / 100);
  return fmt::format("M{} {}h{}v{}h-{}z", px(from), px(y), width, px(height), width);
}

std::string label_of(const Schedule& schedule, const Vertex& op, LabelText text) {
  const Swatch swatch = swatch_of(op);
  std::string label;
  if (text == LabelText::kind_and_slice || swatch == Swatch::optimizer) label += look_of(swatch).letter;
  if (swatch == Swatch::optimizer) return label;
  label += std::to_string(op.microbatch);
  if (text == LabelText::microbatch || !schedule.sliced()) return label;
  if (schedule.max_slices() <= 26) return label + static_cast<char>('a' + op.slice);
  return label + "." + std::to_string(op.slice);
}

}  // namespace

const SwatchLook& look_of(Swatch swatch) {
  static constexpr std::array<SwatchLook, kNumSwatches> kLooks = {
      {{'F', "forward", palette::kForward, ""},
       {'B', "backward", palette::kBackward, "hatch-b"},
       {'I', "input gradient", palette::kInputGradient, ""},
       {'W', "weight gradient", palette::kWeightGradient, "hatch-w"},
       {'S', "output layer", palette::kVocabulary, ""},
       {'T', "output layer, gradients", palette::kVocabularyGradient, ""},
       {'R', "recomputation", palette::kRecompute, "hatch-r"},
       {'O', "optimizer", palette::kOptimizer, ""},
       {' ', "idle", palette::kIdle, ""}}};
  return kLooks[static_cast<std::size_t>(swatch)];
}

void define_hatches(Svg& svg) {
  const auto pattern = [&](std::string_view id, std::string_view line) {
    svg.raw(
        fmt::format("<pattern id=\"{}\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\">"
                    "<path d=\"{}\" stroke=\"#ffffff\" stroke-width=\"0.6\" stroke-opacity=\"0.4\"/></pattern>\n",
                    id, line));
  };
  svg.raw("<defs>\n");
  pattern(look_of(Swatch::backward).hatch, "M-1 1l2 -2M0 4l4 -4M3 5l2 -2");
  pattern(look_of(Swatch::weight_gradient).hatch, "M3 -1l2 2M0 0l4 4M-1 3l2 2");
  pattern(look_of(Swatch::recompute).hatch, "M2 0v4");
  svg.raw("</defs>\n");
}

double shade_of(int i, int n) { return n > 1 ? 0.5 * i / (n - 1) : 0; }

// Draws one row.
class FigureRows::Painter {
 public:
  Painter(const FigureRows& rows, Svg& svg, const TimeScale& scale, const Labels& labels, Shown& shown)
      : rows_(rows), svg_(svg), scale_(scale), labels_(labels), shown_(shown) {}

  void draw(int rank, double y, double height) {
    y_ = y;
    height_ = height;
    svg_.raw(fmt::format("<g id=\"run{}-rank{}\">\n", rows_.number_, rank));
    svg_.rect(scale_.left, y, scale_.x(rows_.run_.metrics->makespan) - scale_.left, height,
              fmt::format("fill=\"{}\"", hex(palette::kIdle)));
    shown_.swatches[kNumSwatches - 1] = true;
    const std::span<const VertexId> ops = rows_.ops_[rank];
    for (auto op = ops.begin(); op != ops.end();) {
      const auto narrow_end = end_of_narrow_ops(op, ops.end());
      if (narrow_end - op > kFewNarrow) {
        draw_columns({op, narrow_end});
        op = narrow_end;
      } else {
        draw_op(*op++);
      }
    }
    for (Strip& strip : strips_) end_strip(strip);
    for (auto* paths : {&under_, &over_}) {
      for (const auto& [fill, data] : *paths) svg_.path(data, fmt::format("fill=\"{}\"", fill));
      paths->clear();
    }
    for (const auto& [hatch, data] : hatched_) svg_.path(data, fmt::format("fill=\"url(#{})\"", hatch));
    draw_texts(white_, "#ffffff");
    draw_texts(black_, "#000000");
    svg_.raw("</g>\n");
    hatched_.clear();
    white_.clear();
    black_.clear();
  }

 private:
  struct Text {
    double x = 0;
    double y = 0;
    std::string text;
    double size = 0;
  };

  // A sequence of narrow ops without gaps between them. Adjacent ops of one colour are one part.
  struct Part {
    const SwatchLook* look = nullptr;
    std::string fill;
    double from = 0;
    double to = 0;
  };
  struct Strip {
    double y = 0;
    double height = 0;
    std::vector<Part> parts;
  };

  double start(VertexId v) const { return scale_.x(rows_.run_.timeline->start[v]); }
  double end(VertexId v) const { return scale_.x(rows_.run_.timeline->end[v]); }

  // Returns the end of the sequence of narrow ops without visible gaps that starts at `op`.
  std::span<const VertexId>::iterator end_of_narrow_ops(std::span<const VertexId>::iterator op,
                                                        std::span<const VertexId>::iterator last) const {
    auto next = op;
    while (next != last && end(*next) - start(*next) < kNarrow &&
           (next == op || start(*next) - end(*(next - 1)) < kColumn)) {
      ++next;
    }
    return next;
  }

  void draw_op(VertexId v) {
    const OpGraph& graph = *rows_.run_.graph;
    if (graph[v].kind != VertexKind::joint) return draw_rectangle(graph[v], start(v), end(v), y_, height_);
    draw_rectangle(graph[v], start(v), end(v), y_, height_ / 2);
    draw_rectangle(graph.joint_partner(graph[v]), start(v), end(v), y_ + height_ / 2, height_ / 2);
  }

  double shade(const Vertex& op) {
    const Schedule& schedule = rows_.run_.graph->schedule();
    if (swatch_of(op) == Swatch::optimizer) return 0;
    const int chunks = static_cast<int>(schedule.stages_of(op.lane).size());
    if (chunks > 1) {
      shown_.chunks = std::max(shown_.chunks, chunks);
      return shade_of(schedule.chunk_of(op.lane, op.stage), chunks);
    }
    shown_.slices = std::max(shown_.slices, schedule.max_slices());
    return shade_of(op.slice, schedule.max_slices());
  }

  void draw_rectangle(const Vertex& op, double from, double to, double y, double height) {
    const Swatch swatch = swatch_of(op);
    const SwatchLook& look = look_of(swatch);
    shown_.swatches[static_cast<int>(swatch)] = true;
    const Rgb fill = lighter(look.colour, shade(op));
    if (to - from < kOutlined) return add_to_strip({&look, hex(fill), from, to}, y, height);
    svg_.rect(from, y, to - from, height,
              fmt::format("fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"0.5\"", hex(fill)));
    hatch(look, from, y, to - from, height);
    if (!labels_.shown[static_cast<int>(swatch)]) return;
    const double size = std::min(labels_.size, 0.85 * height);
    std::string text = label_of(rows_.run_.graph->schedule(), op, labels_.text);
    if (text_width(text, size) + kLabelMargin > to - from) return;
    // Digits and capitals are about 0.72 em high.
    (is_dark(fill) ? white_ : black_).push_back({(from + to) / 2, y + height / 2 + 0.36 * size, std::move(text), size});
  }

  void add_to_strip(Part part, double y, double height) {
    Strip& strip = strips_[y == y_ ? 0 : 1];
    if (!strip.parts.empty() && (strip.height != height || part.from - strip.parts.back().to > kTouching)) {
      end_strip(strip);
    }
    strip.y = y;
    strip.height = height;
    if (!strip.parts.empty() && strip.parts.back().fill == part.fill) {
      strip.parts.back().to = part.to;
    } else {
      strip.parts.push_back(std::move(part));
    }
  }

  // Draws a strip: a box in its most frequent colour, and on it the parts of other colours. Boxes side by side would
  // let the background through where they meet within a pixel.
  void end_strip(Strip& strip) {
    if (strip.parts.empty()) return;
    std::map<std::string, double> widths;
    for (const Part& part : strip.parts) widths[part.fill] += part.to - part.from;
    const auto narrower = [](const auto& a, const auto& b) { return a.second < b.second; };
    const std::string base = std::max_element(widths.begin(), widths.end(), narrower)->first;
    under_[base] += box(strip.parts.front().from, strip.y, strip.parts.back().to, strip.height);
    for (const Part& part : strip.parts) {
      if (part.fill != base) over_[part.fill] += box(part.from, strip.y, part.to, strip.height);
      if (part.to - part.from >= kHatched) hatch(*part.look, part.from, strip.y, part.to - part.from, strip.height);
    }
    strip.parts.clear();
  }

  void hatch(const SwatchLook& look, double x, double y, double width, double height) {
    if (labels_.with_kind() || look.hatch.empty()) return;
    hatched_[look.hatch] += box(x, y, x + width, height);
  }

  void draw_texts(const std::vector<Text>& texts, std::string_view colour) {
    if (texts.empty()) return;
    svg_.raw(fmt::format("<g fill=\"{}\" text-anchor=\"middle\">\n", colour));
    for (const Text& text : texts) svg_.text(text.x, text.y, text.text, text.size);
    svg_.raw("</g>\n");
  }

  // Draws ops that are too narrow to see as columns: the height of each colour is its fraction of time, idle time is on
  // top.
  void draw_columns(std::span<const VertexId> ops) {
    shown_.stacked = true;
    const double left = start(ops.front());
    const double right = end(ops.back());
    const double first = std::floor(left / kColumn);
    const auto columns = to_size(std::llround(std::ceil(right / kColumn) - first));
    std::vector<std::array<double, kNumSwatches>> time(columns, std::array<double, kNumSwatches>{});  // in px
    const OpGraph& graph = *rows_.run_.graph;
    for (const VertexId v : ops) {
      const bool joint = graph[v].kind == VertexKind::joint;
      const auto swatch = static_cast<std::size_t>(swatch_of(graph[v]));
      const auto partner = joint ? static_cast<std::size_t>(swatch_of(graph.joint_partner(graph[v]))) : swatch;
      for (double from = start(v); from < end(v);) {
        const double column = std::floor(from / kColumn);
        const double to = std::min(end(v), (column + 1) * kColumn);
        auto& column_time = time[std::min(to_size(std::llround(column - first)), columns - 1)];
        column_time[swatch] += (to - from) / 2;
        column_time[partner] += (to - from) / 2;
        if (to <= from) break;
        from = to;
      }
    }
    for (std::size_t s = 0; s + 1 < kNumSwatches; ++s) draw_swatch(s, time, first, left, right);
  }

  // Draws the parts of swatch `s` of all columns as one path.
  void draw_swatch(std::size_t s, const std::vector<std::array<double, kNumSwatches>>& time, double first, double left,
                   double right) {
    std::string data;
    double box_left = 0;
    double box_right = 0;
    std::string box_y;
    std::string box_height;
    const auto close = [&] {
      if (box_height.empty()) return;
      const std::string width = px(box_right - box_left);
      data += fmt::format("M{} {}h{}v{}h-{}z", px(box_left), box_y, width, box_height, width);
      box_height.clear();
    };
    for (std::size_t c = 0; c < time.size(); ++c) {
      const double from = std::max(left, (first + static_cast<double>(c)) * kColumn);
      const double to = std::min(right, (first + static_cast<double>(c) + 1) * kColumn);
      double below = 0;
      for (std::size_t other = 0; other < s; ++other) below += time[c][other];
      const double unit = height_ / (to - from);
      const std::string y = px(y_ + height_ - unit * (below + time[c][s]));
      std::string height = px(unit * time[c][s]);
      if (height == "0" || !(to > from)) {
        close();
      } else if (height == box_height && y == box_y) {
        box_right = to;
      } else {
        close();
        box_left = from;
        box_right = to;
        box_y = y;
        box_height = std::move(height);
      }
    }
    close();
    if (data.empty()) return;
    shown_.swatches[s] = true;
    const SwatchLook& look = look_of(static_cast<Swatch>(s));
    svg_.path(data, fmt::format("fill=\"{}\"", hex(look.colour)));
    if (!labels_.with_kind() && !look.hatch.empty()) hatched_[look.hatch] += data;
  }

  const FigureRows& rows_;
  Svg& svg_;
  const TimeScale& scale_;
  const Labels& labels_;
  Shown& shown_;
  double y_ = 0;
  double height_ = 0;
  std::array<Strip, 2> strips_;               // of whole ops or the first ops of joint blocks, and of their second ops
  std::map<std::string, std::string> under_;  // path data by colour
  std::map<std::string, std::string> over_;
  std::map<std::string_view, std::string> hatched_;
  std::vector<Text> white_;
  std::vector<Text> black_;
};

FigureRows::FigureRows(const DrawnRun& run, int number, int max_ranks) : run_(run), number_(number) {
  const OpGraph& graph = *run.graph;
  const int ranks = graph.schedule().num_ranks();
  const int most = std::max(max_ranks, 2);
  for (int rank = 0; rank < ranks; ++rank) {
    if (ranks > most && rank == (most + 1) / 2) {
      rows_.push_back(-1);
      rank = ranks - most / 2;
    }
    rows_.push_back(rank);
  }
  ops_.resize(ranks);
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph.lanes()[graph[v].lane].kind != LaneKind::compute) continue;
    joint_ |= graph[v].kind == VertexKind::joint;
    if (run.timeline->end[v] > run.timeline->start[v]) ops_[graph.rank_of(v)].push_back(v);
  }
  experts_ =
      std::any_of(run.parts.begin(), run.parts.end(), [](const PartRow& part) { return communicates(part.part.part); });
}

void FigureRows::add_rooms(const TimeScale& scale, std::vector<Room>& rooms) const {
  const OpGraph& graph = *run_.graph;
  const auto add = [&](const Vertex& op, double width) {
    Room room{.swatch = swatch_of(op), .width = width};
    for (std::size_t t = 0; t < room.text.size(); ++t) {
      room.text[t] = text_width(label_of(graph.schedule(), op, static_cast<LabelText>(t)), 1);
    }
    rooms.push_back(room);
  };
  for (const int rank : rows_) {
    if (rank < 0) continue;
    for (const VertexId v : ops_[rank]) {
      const double width = scale.x(run_.timeline->end[v]) - scale.x(run_.timeline->start[v]);
      add(graph[v], width);
      if (graph[v].kind == VertexKind::joint) add(graph.joint_partner(graph[v]), width);
    }
  }
}

void FigureRows::draw(Svg& svg, double top, const RowSizes& sizes, const TimeScale& scale, const Labels& labels,
                      Shown& shown) const {
  Painter painter(*this, svg, scale, labels, shown);
  const double height = ops_height(sizes);
  const double size = std::min(10.0, 0.9 * (sizes.pitch - sizes.lane));
  for (const int rank : rows_) {
    const double baseline = top + height / 2 + 0.36 * size;
    if (rank < 0) {
      const std::int64_t hidden = std::ssize(ops_) - (std::ssize(rows_) - 1);
      svg.text(scale.left, baseline, fmt::format("\u2026 {} ranks not shown", hidden), size, Svg::Anchor::start,
               "fill=\"#555555\"");
    } else {
      svg.text(scale.left - 6, baseline, fmt::format("rank {}", rank), size, Svg::Anchor::end);
      painter.draw(rank, top, height);
    }
    top += sizes.pitch;
  }
}

void FigureRows::draw_communication(Svg& svg, double top, const RowSizes& sizes, const TimeScale& scale,
                                    Shown& shown) const {
  const OpGraph& graph = *run_.graph;
  const double height = ops_height(sizes);
  std::vector<std::optional<double>> top_of(ops_.size());
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row] >= 0) top_of[rows_[row]] = top + sizes.pitch * static_cast<double>(row);
  }
  std::string lines;
  std::string bands;
  int transfers = 0;
  for (VertexId v = 0; v < graph.size(); ++v) {
    const double from = scale.x(run_.timeline->start[v]);
    if (graph[v].kind == VertexKind::collective) {
      for (const int rank : graph.collective(graph[v]).ranks) {
        const double width = scale.x(run_.timeline->end[v]) - from;
        if (!top_of[rank] || !(width > 0)) continue;
        const double band = std::min(3.0, height / 4);
        bands += fmt::format("M{} {}h{}v{}h-{}z", px(from), px(*top_of[rank] + height - band), px(width), px(band),
                             px(width));
      }
    } else if (graph[v].kind == VertexKind::transfer) {
      const Lane& lane = graph.lanes()[graph[v].lane];
      const auto sender = top_of[lane.rank];
      const auto receiver = top_of[lane.peer];
      if (!sender || !receiver || ++transfers > kMaxTransfers) continue;
      const double to = scale.x(run_.timeline->arrival(graph, v));
      const bool down = *receiver > *sender;
      const double y = down ? *receiver : *receiver + height;
      // An arrow head of two strokes.
      lines += fmt::format("M{} {}L{} {}m-1.2 {}l1.2 {}l1.2 {}", px(from), px(down ? *sender + height : *sender),
                           px(to), px(y), down ? -2.4 : 2.4, down ? 2.4 : -2.4, down ? -2.4 : 2.4);
    }
  }
  const std::string colour = hex(palette::kCommunication);
  shown.too_many_transfers |= transfers > kMaxTransfers;
  if (transfers > kMaxTransfers) lines.clear();
  shown.communication |= !lines.empty() || !bands.empty();
  if (!bands.empty()) svg.path(bands, fmt::format("fill=\"{}\"", colour));
  if (!lines.empty()) svg.path(lines, fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"0.7\"", colour));
}

// Draws the lane of one rank: a box per part, and where parts are too narrow to see, columns in which the height of
// each colour is its fraction of time.
class FigureRows::ExpertLane {
 public:
  ExpertLane(const TimeScale& scale, double top, double height) : scale_(scale), top_(top), height_(height) {}

  void add(const PartRow& part) {
    const double from = scale_.x(part.start);
    const double to = scale_.x(part.end);
    const std::size_t colour = part.part.part == LayerPart::dispatch ? 0 : 1;
    if (to - from >= kColumn) {
      boxes_[colour] += box(from, top_, to, height_);
      return;
    }
    for (double at = from; at < to;) {
      const double column = std::floor(at / kColumn);
      const double end = std::min(to, (column + 1) * kColumn);
      if (end <= at) break;
      if (columns_.empty() || columns_.back().index != column) columns_.push_back({column, {}});
      columns_.back().time[colour] += (end - at) / kColumn;
      at = end;
    }
  }

  // Returns whether something was drawn as columns.
  bool draw(Svg& svg, double end) {
    svg.path(box(scale_.left, top_, end, height_), fmt::format("fill=\"{}\"", hex(palette::kIdle)));
    const bool stacked = !columns_.empty();
    for (const Column& column : columns_) {
      double y = top_ + height_;
      for (std::size_t colour = 0; colour < kColours.size(); ++colour) {
        const double height = height_ * std::min(column.time[colour], 1.0);
        if (height <= 0) continue;
        y -= height;
        boxes_[colour] += box(column.index * kColumn, y, (column.index + 1) * kColumn, height);
      }
    }
    for (std::size_t colour = 0; colour < kColours.size(); ++colour) {
      if (!boxes_[colour].empty()) svg.path(boxes_[colour], fmt::format("fill=\"{}\"", hex(kColours[colour])));
    }
    return stacked;
  }

 private:
  static constexpr std::array<Rgb, 2> kColours = {palette::kDispatch, palette::kCombine};
  // Fractions of the time of a column.
  struct Column {
    double index = 0;
    std::array<double, 2> time{};
  };

  const TimeScale& scale_;
  double top_ = 0;
  double height_ = 0;
  std::array<std::string, 2> boxes_;  // path data by colour
  std::vector<Column> columns_;
};

void FigureRows::draw_experts(Svg& svg, double top, const RowSizes& sizes, const TimeScale& scale, Shown& shown) const {
  if (!experts_) return;
  std::vector<std::optional<ExpertLane>> lanes(ops_.size());
  const double below = ops_height(sizes) + kLaneGap;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row] < 0) continue;
    lanes[to_size(rows_[row])].emplace(scale, top + sizes.pitch * static_cast<double>(row) + below,
                                       sizes.lane - kLaneGap);
  }
  for (const PartRow& part : run_.parts) {
    std::optional<ExpertLane>& lane = lanes[to_size(part.rank)];
    if (lane && communicates(part.part.part)) lane->add(part);
  }
  for (const int rank : rows_) {
    if (rank < 0) continue;
    svg.raw(fmt::format("<g id=\"run{}-experts{}\">\n", number_, rank));
    shown.stacked |= lanes[to_size(rank)]->draw(svg, scale.x(run_.metrics->makespan));
    svg.raw("</g>\n");
  }
  shown.experts = true;
}

Labels choose_labels(std::span<const FigureRows::Room> rooms, double largest) {
  // Returns the largest font size that fits nine in ten ops.
  const auto size_for = [&](std::size_t text, std::optional<Swatch> of) {
    std::vector<double> sizes;
    for (const FigureRows::Room& room : rooms) {
      if (of && room.swatch != *of) continue;
      sizes.push_back((room.width - kLabelMargin) / room.text[text]);
    }
    if (sizes.empty()) return 0.0;
    const auto tenth = sizes.begin() + (std::ssize(sizes) - 1) / 10;
    std::nth_element(sizes.begin(), tenth, sizes.end());
    return std::min(largest, std::floor(2 * *tenth) / 2);
  };
  Labels labels;
  labels.shown.fill(true);
  for (const LabelText text : {LabelText::kind_and_slice, LabelText::slice, LabelText::microbatch}) {
    labels.text = text;
    labels.size = size_for(static_cast<std::size_t>(text), std::nullopt);
    // A more detailed text is preferred to a larger font, down to a minimum size.
    if (labels.size >= std::min(largest, text == LabelText::kind_and_slice ? 7.0 : kSmallestLabel)) return labels;
  }
  labels.size = std::min(largest, 7.0);
  for (int s = 0; s < kNumSwatches; ++s) {
    labels.shown[s] = size_for(static_cast<std::size_t>(LabelText::microbatch), static_cast<Swatch>(s)) >= labels.size;
  }
  return labels;
}

}  // namespace sluice::traces

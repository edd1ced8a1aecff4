#include "traces/figure/figure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "model/errors.h"
#include "tests/support/golden.h"
#include "tests/support/simulated.h"
#include "tests/support/svg_elements.h"
#include "traces/figure/svg.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The plot of a figure has margins of 54 px on the left and 14 px on the right.
constexpr double kPlotLeft = 54;
constexpr double kPlot = 720 - 54 - 14;

struct Drawn {
  test::Simulated run;
  Metrics metrics;
  std::vector<RankMemory> memory;
  DrawnRun drawn;
};

std::unique_ptr<Drawn> drawn(test::Simulated run, const std::string& title = "a run") {
  Metrics metrics = measure(run.graph, run.timeline);
  std::vector<RankMemory> memory = memory_over_time(run.graph, run.timeline, true);
  auto out = std::make_unique<Drawn>(Drawn{std::move(run), std::move(metrics), std::move(memory), {}});
  out->drawn = {.graph = &out->run.graph,
                .timeline = &out->run.timeline,
                .metrics = &out->metrics,
                .memory = out->memory,
                .title = title};
  return out;
}

std::string figure(const Drawn& one, const FigureOptions& options = {}) {
  return svg_figure(std::span(&one.drawn, 1), options);
}

// The rectangles of a row: its background, then its ops.
std::vector<SvgElement> row_rects(const std::vector<SvgElement>& elements, const std::string& row) {
  std::vector<SvgElement> rects;
  for (const SvgElement& element : elements) {
    if (element.name == "rect" && element.group == row) rects.push_back(element);
  }
  return rects;
}

std::string row_name(int rank, int run = 1) { return "run" + std::to_string(run) + "-rank" + std::to_string(rank); }

bool is_label(const SvgElement& element) { return element.name == "text" && element.group.starts_with("run"); }

// An op, or half of a joint block, that must be drawn.
struct Expected {
  Vertex op;
  VertexId at = 0;
  bool half = false;
};
std::vector<Expected> expected_of(const test::Simulated& run, int rank) {
  std::vector<Expected> out;
  for (VertexId v = 0; v < run.graph.size(); ++v) {
    const Vertex& vertex = run.graph[v];
    if (vertex.kind == VertexKind::transfer || vertex.kind == VertexKind::collective) continue;
    if (run.graph.rank_of(v) != rank || run.timeline.end[v] == run.timeline.start[v]) continue;
    const bool joint = vertex.kind == VertexKind::joint;
    out.push_back({vertex, v, joint});
    if (joint) out.push_back({run.graph.joint_partner(vertex), v, true});
  }
  return out;
}

TEST(Figure, OpsAreDrawnAtTheirTimesInTheirColours) {
  for (const Family& family : all_families()) {
    const auto one =
        drawn(simulated(make_schedule(family, {.ranks = 4, .microbatches = family.name == "hanayo" ? 4 : 8}),
                        "f=1,b=1.2,w=0.8,comm=0.1,fb=2.5"));
    const test::Simulated& run = one->run;
    const auto elements = svg_elements(figure(*one));
    const double per_ns = kPlot / static_cast<double>(one->metrics.makespan.count());
    for (int rank = 0; rank < 4; ++rank) {
      const auto rects = row_rects(elements, row_name(rank));
      const auto expected = expected_of(run, rank);
      ASSERT_EQ(rects.size(), 1 + expected.size()) << family.name << " rank " << rank;
      EXPECT_EQ(rects[0].get("fill"), "#f2f2f2");
      EXPECT_NEAR(rects[0].number("width"), kPlot, 0.006);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const SvgElement& rect = rects[i + 1];
        const auto& [op, at, half] = expected[i];
        const double start = kPlotLeft + per_ns * static_cast<double>(run.timeline.start[at].count());
        const double end = kPlotLeft + per_ns * static_cast<double>(run.timeline.end[at].count());
        EXPECT_NEAR(rect.number("x"), start, 0.006) << family.name;
        EXPECT_NEAR(rect.number("x") + rect.number("width"), end, 0.006) << family.name;
        EXPECT_NEAR(rect.number("height"), rects[0].number("height") / (half ? 2 : 1), 1e-9);
        // Chunks are shades up to half white; with one chunk, slices are.
        const auto chunks = static_cast<int>(run.schedule->stages_of(rank).size());
        const int slices = run.schedule->max_slices();
        const double shade = chunks > 1   ? 0.5 * run.schedule->chunk_of(rank, op.stage) / (chunks - 1)
                             : slices > 1 ? 0.5 * op.slice / (slices - 1)
                                          : 0;
        if (op.kind == VertexKind::optimizer) {
          EXPECT_EQ(rect.get("fill"), "#661100");
        } else {
          EXPECT_EQ(rect.get("fill"), hex(lighter(colour_of(op.op), shade))) << family.name;
        }
      }
    }
  }
}

TEST(Figure, LabelsAreInsideTheirOps) {
  for (const char* family : {"1f1b", "zb-v", "interleaved-1f1b", "seq1f1b", "dualpipe"}) {
    FamilyParams params{.ranks = 4, .microbatches = 10};
    if (std::string(family) == "seq1f1b") params.shape = {1, {1, 1, 1}};
    if (std::string(family) == "interleaved-1f1b") params.microbatches = 12;
    const auto one = drawn(simulated(family, params));
    for (const double width : {240.0, 400.0, 720.0, 2000.0}) {
      const auto elements = svg_elements(figure(*one, {.width = width}));
      for (int rank = 0; rank < 4; ++rank) {
        const auto rects = row_rects(elements, row_name(rank));
        for (const SvgElement& label : elements) {
          if (!is_label(label) || label.group != row_name(rank)) continue;
          EXPECT_EQ(label.get("text-anchor"), "middle");
          const double size = label.number("font-size");
          const double half = text_width(label.text, size) / 2;
          const auto inside = [&](const SvgElement& rect) {
            const double x = rect.number("x");
            const double y = rect.number("y");
            return rect.get("fill") != "#f2f2f2" && x <= label.number("x") - half &&
                   label.number("x") + half <= x + rect.number("width") && y <= label.number("y") - 0.72 * size &&
                   label.number("y") <= y + rect.number("height");
          };
          EXPECT_EQ(std::count_if(rects.begin(), rects.end(), inside), 1)
              << family << " at " << width << ": " << label.text;
        }
      }
    }
  }
}

// The parts of every op: half of it dispatch, of which compute hides half, then a quarter combine.
std::vector<PartRow> parts_of_all_ops(const test::Simulated& run) {
  std::vector<PartRow> parts;
  for (VertexId v = 0; v < run.graph.size(); ++v) {
    const Vertex& vertex = run.graph[v];
    if (vertex.kind != VertexKind::compute && vertex.kind != VertexKind::joint) continue;
    const Duration start = run.timeline.start[v];
    const Duration quarter = (run.timeline.end[v] - start) / 4;
    const auto add = [&](LayerPart part, int from, int to) {
      parts.push_back({.vertex = v,
                       .rank = run.graph.rank_of(v),
                       .part = {part, vertex.op},
                       .start = start + from * quarter,
                       .end = start + to * quarter});
    };
    add(LayerPart::attention, 0, 1);
    add(LayerPart::dispatch, 0, 2);
    add(LayerPart::combine, 2, 3);
  }
  return parts;
}

TEST(Figure, DispatchAndCombineHaveALaneBelowTheirRank) {
  // Wide parts, and parts of a hundredth of a px.
  for (const int microbatches : {10, 2000}) {
    const auto one = drawn(simulated("dualpipe", {.ranks = 4, .microbatches = microbatches}, "f=1,b=1,w=1,fb=2.5"));
    const std::string without = figure(*one);
    one->drawn.parts = parts_of_all_ops(one->run);
    const auto elements = svg_elements(figure(*one));
    const double per_ns = kPlot / static_cast<double>(one->metrics.makespan.count());
    double next_row = 0;
    for (int rank = 3; rank >= 0; --rank) {
      // The lane is between the ops of its rank and the next row.
      const auto rects = row_rects(elements, row_name(rank));
      const double bottom = rects[0].number("y") + rects[0].number("height");
      std::map<std::string, double> area;
      double height = 0;
      for (const SvgElement& element : elements) {
        if (element.name != "path" || element.group != "run1-experts" + std::to_string(rank)) continue;
        area[element.get("fill")] += area_of_boxes(element.get("d"));
        for (const SvgBox& box : boxes_of(element.get("d"))) {
          EXPECT_GT(box.y, bottom);
          EXPECT_TRUE(next_row == 0 || box.y + box.height < next_row);
          height = std::max(height, box.height);
        }
      }
      next_row = rects[0].number("y");
      const double busy = per_ns * height * static_cast<double>(one->metrics.ranks[rank].busy.count());
      ASSERT_GT(height, 3);
      EXPECT_NEAR(area["#f2f2f2"], kPlot * height, 0.1);
      EXPECT_NEAR(area["#9b59b6"], busy / 2, 0.02 * busy);
      EXPECT_NEAR(area["#d6a2e8"], busy / 4, 0.02 * busy);
    }
    // A quarter of three quarters is hidden.
    const std::string text = figure(*one);
    EXPECT_THAT(text, HasSubstr(", 33 % of dispatch and combine hidden</text>"));
    EXPECT_THAT(text, HasSubstr(">dispatch</text>"));
    EXPECT_THAT(text, HasSubstr(">combine</text>"));
    EXPECT_THAT(text, Not(HasSubstr(">communication</text>")));
    // Ops have the same size and labels as without.
    EXPECT_EQ(row_rects(elements, row_name(0)).front().get("height"),
              row_rects(svg_elements(without), row_name(0)).front().get("height"));
    EXPECT_THAT(without, Not(HasSubstr("dispatch")));
  }
}

TEST(Figure, LabelsAreAsDetailedAsFits) {
  const auto one = drawn(simulated("1f1b", {.ranks = 4, .microbatches = 8}));
  const auto labels = [&](double width) {
    std::map<std::string, int> count;
    for (const SvgElement& element : svg_elements(figure(*one, {.width = width})))
      count[element.text] += is_label(element) ? 1 : 0;
    return count;
  };
  // 33 s over 652 px: an F has 19.8 px, "F0" of 10 px takes 12.5.
  const auto wide = labels(720);
  for (int microbatch = 0; microbatch < 8; ++microbatch) {
    EXPECT_EQ(wide.at("F" + std::to_string(microbatch)), 4);
    EXPECT_EQ(wide.at("B" + std::to_string(microbatch)), 4);
  }
  EXPECT_THAT(figure(*one), Not(HasSubstr("hatch")));
  // Over 232 px an F has 7 px: space for a digit only, so that kinds are hatched.
  const auto narrow = labels(300);
  for (int microbatch = 0; microbatch < 8; ++microbatch) EXPECT_EQ(narrow.at(std::to_string(microbatch)), 8);
  EXPECT_THAT(figure(*one, {.width = 300}), HasSubstr("url(#hatch-b)"));
  // Over 172 px it has 5.2 px, too few for a digit of 6 px and the margin; a B has twice that.
  const auto tight = labels(240);
  for (int microbatch = 0; microbatch < 8; ++microbatch) EXPECT_EQ(tight.at(std::to_string(microbatch)), 4);
}

TEST(Figure, HatchesCoverTheirOps) {
  const auto one = drawn(simulated("zb-h1", {.ranks = 4, .microbatches = 8}));
  // 27 s over 172 px: too narrow for letters. W's hatch covers 8 s of each row.
  int rows = 0;
  for (const SvgElement& element : svg_elements(figure(*one, {.width = 240}))) {
    if (element.name != "path" || element.get("fill") != "url(#hatch-w)") continue;
    ++rows;
    EXPECT_NEAR(area_of_boxes(element.get("d")) / 16, 8 * 172.0 / 27, 0.1);  // rows of 18 px, 2 between them
  }
  EXPECT_EQ(rows, 4);
}

TEST(Figure, SlicesAreLettersThenNumbers) {
  const auto texts_of = [](int slices) {
    const auto run = drawn(simulated(
        "seq1f1b",
        {.ranks = 1, .microbatches = 1, .shape = {1, std::vector<std::int64_t>(static_cast<std::size_t>(slices), 1)}}));
    return figure(*run, {.width = 6000});
  };
  EXPECT_THAT(texts_of(26), HasSubstr(">F0z<"));
  EXPECT_THAT(texts_of(26), HasSubstr(">slice a to z<"));
  EXPECT_THAT(texts_of(27), HasSubstr(">F0.26<"));
  EXPECT_THAT(texts_of(27), HasSubstr(">slice 0 to 26<"));
}

TEST(Figure, TwoRunsHaveOneTimeAxis) {
  const auto slow = drawn(simulated("1f1b", {.ranks = 4, .microbatches = 8}), "slow");
  const auto fast = drawn(simulated("zb-h1", {.ranks = 4, .microbatches = 8}), "fast");
  const DrawnRun both[] = {slow->drawn, fast->drawn};
  const std::string svg = svg_figure(both);
  const auto elements = svg_elements(svg);
  // An F of either takes 1 s of 33; 1f1b ends at 33 s, zb-h1 at 27 (18.2 % less).
  for (const int run : {1, 2}) {
    for (int rank = 0; rank < 4; ++rank) {
      const auto rects = row_rects(elements, row_name(rank, run));
      EXPECT_NEAR(rects[0].number("width"), run == 1 ? kPlot : kPlot * 27 / 33, 0.011);
      for (const SvgElement& rect : rects) {
        if (rect.get("fill") != "#332288") continue;
        EXPECT_NEAR(rect.number("width"), kPlot / 33, 0.011);
      }
    }
  }
  EXPECT_LT(row_rects(elements, row_name(3, 1))[0].number("y"), row_rects(elements, row_name(0, 2))[0].number("y"));
  EXPECT_THAT(svg, HasSubstr("makespan 33 s, bubble 27.3 %"));
  EXPECT_THAT(svg, HasSubstr("makespan 27 s (-18.2 %), bubble 11.1 %"));
  EXPECT_THAT(svg, HasSubstr("<title>slow above fast</title>"));
}

// The vertical positions of the horizontal lines that begin 3 px left of the plot: the ticks of the memory plot.
std::vector<double> held_ticks(const std::vector<SvgElement>& elements) {
  std::vector<double> ticks;
  for (const SvgElement& element : elements) {
    if (element.name == "line" && element.number("x1") == kPlotLeft - 3) ticks.push_back(element.number("y1"));
  }
  return ticks;
}

TEST(Figure, TwoRunsHaveOneMemoryScale) {
  // gpipe has 8 microbatches in flight, 1f1b 4.
  const auto much = drawn(simulated("gpipe", {.ranks = 4, .microbatches = 8}));
  const auto little = drawn(simulated("1f1b", {.ranks = 4, .microbatches = 8}));
  const DrawnRun both[] = {much->drawn, little->drawn};
  const auto ticks = held_ticks(svg_elements(svg_figure(both)));
  // 0 to 8 in steps of 5 (at most 4 of them in 8.4) for both.
  ASSERT_EQ(ticks.size(), 4U);
  EXPECT_NEAR(ticks[0] - ticks[1], ticks[2] - ticks[3], 1e-9);
  EXPECT_NEAR(ticks[0] - ticks[1], 64 * 5 / 8.4, 0.011);
}

class GiBFootprint : public Footprint {
 public:
  StageBytes stage(int) const override { return {.weights = std::int64_t{1} << 30}; }
  SliceBytes slice(int, const MicrobatchShape&, int) const override {
    return {.activations_to_weight_gradient = std::int64_t{1} << 30};
  }
};

TEST(Figure, MemoryCaptionHasThePeakAndTheCapacity) {
  const GiBFootprint footprint;
  auto one = drawn(simulated("1f1b", {.ranks = 4, .microbatches = 8}, "f=1,b=1,w=1", {.footprint = &footprint}));
  // Rank 0 has its weights and four microbatches.
  one->drawn.capacity_bytes = std::int64_t{8} << 30;
  EXPECT_THAT(figure(*one), HasSubstr(">memory (GiB): peak on rank 0 (bold), 5 of 8 (dashed)<"));
  EXPECT_THAT(figure(*one), HasSubstr("stroke-dasharray"));
  // A much larger capacity is in the caption only; a line for it would flatten the curves.
  one->drawn.capacity_bytes = std::int64_t{80} << 30;
  EXPECT_THAT(figure(*one), HasSubstr(">memory (GiB): peak on rank 0 (bold), 5 of 80<"));
  EXPECT_THAT(figure(*one), Not(HasSubstr("stroke-dasharray")));
  // Without bytes: microbatches in flight.
  EXPECT_THAT(figure(*drawn(simulated("1f1b", {.ranks = 4, .microbatches = 8}))),
              HasSubstr(">microbatches in flight: peak on rank 0 (bold), 4<"));
}

TEST(Figure, ManyNarrowOpsKeepTheirFractionsOfTime) {
  // Ops of at most 0.05 px, with joint blocks, chunks and idle time.
  struct Case {
    const char* family;
    FamilyParams params;
  };
  const Case cases[] = {{"1f1b", {.ranks = 4, .microbatches = 4000}},
                        {"interleaved-1f1b", {.ranks = 4, .microbatches = 2000}},
                        {"zb-h1", {.ranks = 4, .microbatches = 3000}},
                        {"dualpipe", {.ranks = 4, .microbatches = 2000}}};
  for (const auto& [family, params] : cases) {
    const auto one = drawn(simulated(family, params, "f=1,b=1.1,w=0.9,comm=0.4,fb=2.7"));
    const std::string svg = figure(*one);
    EXPECT_LT(svg.size(), 1U << 20) << family;
    EXPECT_THAT(svg, HasSubstr("the height of a color is its fraction of time"));
    const auto elements = svg_elements(svg);
    for (int rank = 0; rank < 4; ++rank) {
      std::map<std::string, double> time;  // by colour, in px of plot
      double all = 0;
      for (const Expected& e : expected_of(one->run, rank)) {
        const auto length = one->run.timeline.end[e.at] - one->run.timeline.start[e.at];
        const double px_long = kPlot * to_seconds(length) / to_seconds(one->metrics.makespan) / (e.half ? 2 : 1);
        time[hex(colour_of(e.op.op))] += px_long;
        all += px_long;
      }
      std::map<std::string, double> area;
      double coloured = 0;
      const double height = row_rects(elements, row_name(rank))[0].number("height");
      for (const SvgElement& element : elements) {
        const std::string fill = element.get("fill");
        if (element.group != row_name(rank) || fill == "#f2f2f2" || fill.starts_with("url")) continue;
        double here = 0;
        if (element.name == "path") here = area_of_boxes(element.get("d")) / height;
        if (element.name == "rect") here = element.number("width") * element.number("height") / height;
        area[fill] += here;
        coloured += here;
      }
      // Rounding to 0.01 px: half of that for each of up to 652 columns, a 16 px row high.
      EXPECT_NEAR(coloured, all, 0.005 * kPlot) << family << " rank " << rank;
      EXPECT_NEAR(coloured / kPlot, to_seconds(one->metrics.ranks[rank].busy) / to_seconds(one->metrics.makespan),
                  0.005);
      for (const auto& [colour, length] : time) {
        // A few ops next to gaps are drawn one by one, in the shade of their chunk.
        EXPECT_NEAR(area[colour], length, 0.02 * kPlot) << family << " rank " << rank << " " << colour;
      }
    }
  }
}

TEST(Figure, NarrowOpsAmongWideOnesAreDrawn) {
  // A W of 0.01 of F, B + W 1.01: 0.2 px, alone between wide ops.
  const auto one = drawn(simulated("zb-h1", {.ranks = 2, .microbatches = 8}, "f=1,b=1,w=0.005"));
  const std::string svg = figure(*one);
  EXPECT_THAT(svg, Not(HasSubstr("fraction of time")));
  std::string boxes;
  for (const SvgElement& element : svg_elements(svg)) {
    if (element.group == row_name(0) && element.get("fill") == "#00735c") boxes += element.get("d");
  }
  EXPECT_EQ(std::count(boxes.begin(), boxes.end(), 'M'), 8);
}

// The colour at a position of a row: that of the last shape drawn there.
std::string colour_at(const std::vector<SvgElement>& elements, const std::string& row, double x, double y) {
  std::string colour;
  for (const SvgElement& element : elements) {
    if (element.group != row || element.get("fill").starts_with("url")) continue;
    const auto covers = [&](double left, double top, double width, double height) {
      return left <= x && x < left + width && top <= y && y < top + height;
    };
    if (element.name == "rect" &&
        covers(element.number("x"), element.number("y"), element.number("width"), element.number("height"))) {
      colour = element.get("fill");
    }
    for (const SvgBox& box : boxes_of(element.name == "path" ? element.get("d") : "")) {
      if (covers(box.x, box.y, box.width, box.height)) colour = element.get("fill");
    }
  }
  return colour;
}

TEST(Figure, NarrowOpsHaveTheirColoursWithoutOutlines) {
  // Ops of 1 to 5 px, with chunks, joint blocks and gaps.
  struct Case {
    const char* family;
    FamilyParams params;
    std::size_t most_bytes_per_op;
  };
  const Case cases[] = {{"1f1b", {.ranks = 16, .microbatches = 128}, 30},
                        {"zb-v", {.ranks = 4, .microbatches = 60}, 45},
                        {"interleaved-1f1b", {.ranks = 4, .microbatches = 80}, 45},
                        {"dualpipe", {.ranks = 4, .microbatches = 160}, 45}};
  for (const auto& [family, params, most_bytes_per_op] : cases) {
    const auto one = drawn(simulated(family, params, "f=1,b=1,w=1,comm=0.1,fb=2.5"));
    const test::Simulated& run = one->run;
    const std::string svg = figure(*one, {.memory = false});
    const auto elements = svg_elements(svg);
    std::size_t ops = 0;
    for (int rank = 0; rank < params.ranks; ++rank) {
      const SvgElement background = row_rects(elements, row_name(rank))[0];
      for (const SvgElement& element : elements) {
        EXPECT_FALSE(element.group == row_name(rank) && element.has("stroke")) << family;
      }
      const double per_ns = kPlot / static_cast<double>(one->metrics.makespan.count());
      bool second = false;
      for (const Expected& e : expected_of(run, rank)) {
        const double middle =
            kPlotLeft + per_ns / 2 * static_cast<double>((run.timeline.start[e.at] + run.timeline.end[e.at]).count());
        const auto chunks = static_cast<int>(run.schedule->stages_of(rank).size());
        const double shade = chunks > 1 ? 0.5 * run.schedule->chunk_of(rank, e.op.stage) / (chunks - 1) : 0;
        const double height = e.half ? (second ? 0.75 : 0.25) : 0.5;
        second = e.half && !second;
        if (e.op.kind == VertexKind::optimizer) continue;
        ++ops;
        EXPECT_EQ(
            colour_at(elements, row_name(rank), middle, background.number("y") + height * background.number("height")),
            hex(lighter(colour_of(e.op.op), shade)))
            << family << " rank " << rank << " " << run.graph.name(e.at);
      }
    }
    EXPECT_LT(svg.size(), 4000 + most_bytes_per_op * ops) << family;
  }
}

TEST(Figure, NothingShowsBetweenOpsThatTouch) {
  // The last rank of 1F1B is busy from its first F to its last B. A box of one colour lies under all of them.
  const auto one = drawn(simulated("1f1b", {.ranks = 4, .microbatches = 100}));
  const double second = kPlot / to_seconds(one->metrics.makespan);
  int found = 0;
  for (const SvgElement& element : svg_elements(figure(*one))) {
    if (element.name != "path" || element.group != row_name(3)) continue;
    for (const SvgBox& box : boxes_of(element.get("d"))) found += std::abs(box.width - 300 * second) < 0.02 ? 1 : 0;
  }
  EXPECT_EQ(found, 1);
}

// The lines in bold, with blanks between them.
std::string bold_text(const std::string& svg) {
  std::string out;
  for (const SvgElement& element : svg_elements(svg)) {
    if (element.has("font-weight")) out += (out.empty() ? "" : " ") + element.text;
  }
  return out;
}

TEST(Figure, NoTextIsTruncated) {
  const std::string title = "interleaved-1f1b, 8 ranks x 2 chunks, 32 microbatches of a model with a long name";
  auto one = drawn(simulated("interleaved-1f1b", {.ranks = 4, .microbatches = 4000}), title);
  const GiBFootprint footprint;
  auto two = drawn(simulated("1f1b", {.ranks = 4, .microbatches = 8}, "f=1,b=1,w=1", {.footprint = &footprint}),
                   std::string(200, 'x'));
  two->drawn.capacity_bytes = std::int64_t{8} << 30;
  for (const double width : {240.0, 336.0, 500.0, 720.0}) {
    const std::string svg = figure(*one, {.width = width});
    EXPECT_EQ(bold_text(svg), title) << width;
    std::string all;
    for (const std::string& part : {svg, figure(*two, {.width = width})}) {
      EXPECT_THAT(part, Not(HasSubstr("\u2026"))) << width;
      for (const SvgElement& element : svg_elements(part)) {
        if (element.name == "text") all += element.text + " ";
      }
    }
    // Captions, results and notes are wrapped.
    EXPECT_THAT(all, HasSubstr("memory (GiB): peak on rank 0 (bold), 5 of 8 (dashed)")) << width;
    EXPECT_THAT(all, HasSubstr("makespan 33 s, bubble 27.3 %")) << width;
    EXPECT_THAT(all, HasSubstr("the height of a color is its fraction of time.")) << width;
  }
  // A word that is wider than the picture is split.
  const std::string split = bold_text(figure(*two, {.width = 336}));
  EXPECT_EQ(std::count(split.begin(), split.end(), 'x'), 200);
}

TEST(Figure, TitlesAndMemoryAreOptional) {
  const auto slow = drawn(simulated("1f1b", {.ranks = 4, .microbatches = 8}), "slow");
  const auto fast = drawn(simulated("zb-h1", {.ranks = 4, .microbatches = 8}), "fast");
  const std::string named = figure(*slow, {.title = "Figure <1>"});
  EXPECT_EQ(bold_text(named), "Figure <1>");
  EXPECT_EQ(bold_text(figure(*slow, {.title = " two\nlines "})), "two lines");
  EXPECT_THAT(named, HasSubstr("<title>Figure &lt;1&gt;</title>"));
  EXPECT_THAT(named, HasSubstr(">makespan 33 s, bubble 27.3 %<"));
  const DrawnRun both[] = {slow->drawn, fast->drawn};
  EXPECT_EQ(bold_text(svg_figure(both, {.title = "Two schedules"})), "Two schedules slow fast");
  for (const std::string& bare :
       {figure(*slow, {.title = ""}), figure(*slow, {.title = " "}), svg_figure(both, {.title = ""})}) {
    EXPECT_EQ(bold_text(bare), "");
    EXPECT_THAT(bare, Not(HasSubstr(">makespan")));
    EXPECT_THAT(bare, HasSubstr("<title>slow"));  // for screen readers
  }
  // Without the title's line of 22 px. The caption and the plot of the memory have 84 px, 2 of which the axis keeps.
  const auto height = [](const std::string& svg) { return svg_elements(svg)[0].number("height"); };
  EXPECT_EQ(height(figure(*slow, {.title = ""})), height(figure(*slow)) - 22);
  EXPECT_EQ(height(figure(*slow, {.memory = false})), height(figure(*slow)) - 82);
  EXPECT_THAT(figure(*slow, {.memory = false}), Not(HasSubstr("in flight")));
  EXPECT_TRUE(held_ticks(svg_elements(figure(*slow, {.memory = false}))).empty());
}

TEST(Figure, FirstAndLastOfManyRanksAreShown) {
  const auto one = drawn(simulated("1f1b", {.ranks = 64, .microbatches = 4}));
  const std::string svg = figure(*one, {.max_ranks = 5});
  EXPECT_THAT(svg, HasSubstr(">\u2026 59 ranks not shown<"));
  for (const int rank : {0, 1, 2, 62, 63}) EXPECT_THAT(svg, HasSubstr(">rank " + std::to_string(rank) + "<"));
  EXPECT_THAT(svg, Not(HasSubstr(">rank 3<")));
  EXPECT_THAT(svg, Not(HasSubstr(">rank 61<")));
  EXPECT_THAT(figure(*one), HasSubstr("32 ranks not shown"));
}

TEST(Figure, TransfersAreDrawnOnRequest) {
  // 2 ranks, 3 microbatches: 3 activations down, 3 gradients up.
  const auto one = drawn(simulated("1f1b", {.ranks = 2, .microbatches = 3}, "f=1,b=1,w=1,comm=0.5"));
  EXPECT_THAT(figure(*one), Not(HasSubstr("#9b59b6")));
  const std::string svg = figure(*one, {.transfers = true});
  EXPECT_THAT(svg, HasSubstr(">communication<"));
  std::string lines;
  for (const SvgElement& element : svg_elements(svg)) {
    if (element.name == "path" && element.get("stroke") == "#9b59b6") lines += element.get("d");
  }
  EXPECT_EQ(std::count(lines.begin(), lines.end(), 'M'), 6);
  // The first leaves rank 0 at 1 s and arrives at 1.5.
  const double second = kPlot / to_seconds(one->metrics.makespan);
  EXPECT_THAT(lines, HasSubstr("M" + px(kPlotLeft + second) + " "));
  EXPECT_THAT(lines, HasSubstr("L" + px(kPlotLeft + 1.5 * second) + " "));
  // Thousands of transfers would hide the ops.
  const auto many = drawn(simulated("1f1b", {.ranks = 2, .microbatches = 2001}));
  EXPECT_THAT(figure(*many, {.transfers = true}), HasSubstr("Too many transfers to draw."));
}

TEST(Figure, LegendListsWhatOccurs) {
  const auto legend = [](const Drawn& one) {
    std::vector<std::string> names;
    for (const SvgElement& element : svg_elements(figure(one))) {
      for (const char* name : {"forward", "backward", "input gradient", "weight gradient", "recomputation", "optimizer",
                               "idle", "chunk 0 to 1"}) {
        if (element.name == "text" && element.text == name) names.emplace_back(name);
      }
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(legend(*drawn(simulated("1f1b", {.ranks = 2, .microbatches = 2}))), (Names{"forward", "backward", "idle"}));
  EXPECT_EQ(legend(*drawn(simulated("zb-v", {.ranks = 2, .microbatches = 4}))),
            (Names{"forward", "input gradient", "weight gradient", "idle", "chunk 0 to 1"}));
  // F, R, B, O one second each.
  auto run = simulated("1f1b", {.ranks = 1, .microbatches = 1}, "f=1,b=1,w=1", {.recompute = true});
  ASSERT_EQ(run.graph.size(), 4U);
  for (VertexId v = 0; v < 4; ++v) {
    run.timeline.start[v] = std::chrono::seconds(v);
    run.timeline.end[v] = std::chrono::seconds(v + 1);
  }
  const auto all = drawn(std::move(run));
  EXPECT_EQ(legend(*all), (Names{"forward", "backward", "recomputation", "optimizer", "idle"}));
  for (const char* label : {">F0<", ">R0<", ">B0<", ">O<"}) EXPECT_THAT(figure(*all), HasSubstr(label));
}

TEST(Figure, AllTextIsWithinThePicture) {
  const auto slow =
      drawn(simulated("interleaved-1f1b", {.ranks = 4, .microbatches = 8}),
            "a title that is much too long for the line on which it is drawn, repeated twice, repeated twice");
  const auto fast = drawn(simulated("zb-v", {.ranks = 4, .microbatches = 8}), "zb-v");
  const DrawnRun both[] = {slow->drawn, fast->drawn};
  for (const double width : {240.0, 500.0, 720.0}) {
    const auto elements = svg_elements(svg_figure(both, {.width = width}));
    const double height = elements[0].number("height");
    EXPECT_EQ(elements[0].get("viewBox"), "0 0 " + px(width) + " " + px(height));
    for (const SvgElement& element : elements) {
      if (element.name != "text") continue;
      const double bold = element.has("font-weight") ? 1.1 : 1;
      const double long_ = bold * text_width(element.text, element.number("font-size"));
      const std::string anchor = element.get("text-anchor");
      const double left = element.number("x") - (anchor == "end" ? long_ : anchor == "middle" ? long_ / 2 : 0);
      EXPECT_GE(left, 0) << element.text << " at " << width;
      EXPECT_LE(left + long_, width) << element.text << " at " << width;
      EXPECT_LE(element.number("y"), height) << element.text;
    }
  }
}

TEST(Figure, TitlesAreEscaped) {
  const std::string title = "1f1b <&> \"quoted\" 'x'";
  const auto one = drawn(simulated("1f1b", {.ranks = 1, .microbatches = 1}), title);
  int found = 0;
  for (const SvgElement& element : svg_elements(figure(*one))) found += element.text == title ? 1 : 0;
  EXPECT_EQ(found, 2);  // <title> and the text above the rows
}

TEST(Figure, OutputIsDeterministicAndMatchesGolden) {
  const auto one = drawn(simulated("seq1f1b", {.ranks = 2, .microbatches = 2, .shape = {1, {1, 1}}}), "seq1f1b");
  EXPECT_EQ(figure(*one), figure(*one));
  test::expect_golden("traces/figure/golden/seq1f1b-p2-m2-k2.svg", figure(*one));
}

TEST(Figure, InvalidNumberOfRunsOrWidthIsRejected) {
  EXPECT_THROW(svg_figure({}), InputError);
  const auto one = drawn(simulated("1f1b", {.ranks = 1, .microbatches = 1}));
  const std::vector<DrawnRun> most(kMostFigureRuns, one->drawn);
  EXPECT_NO_THROW(svg_figure(most));
  const std::vector<DrawnRun> too_many(kMostFigureRuns + 1, one->drawn);
  EXPECT_THROW(svg_figure(too_many), InputError);
  EXPECT_THROW(figure(*one, {.width = 239}), InputError);
  EXPECT_THROW(figure(*one, {.width = 1e9}), InputError);
  EXPECT_THROW(figure(*one, {.width = std::nan("")}), InputError);
}

TEST(Figure, RunOfLengthZeroIsDrawn) {
  auto run = simulated("1f1b", {.ranks = 1, .microbatches = 1});
  for (VertexId v = 0; v < run.graph.size(); ++v) run.timeline.start[v] = run.timeline.end[v] = Duration{0};
  EXPECT_NO_THROW(svg_elements(figure(*drawn(std::move(run)))));
}

}  // namespace
}  // namespace sluice::test

#include "traces/figure.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <map>
#include <regex>

#include "model/errors.h"
#include "model/timeline/memory.h"
#include "tests/support/golden.h"
#include "tests/support/simulated.h"
#include "traces/curve.h"
#include "traces/svg.h"

namespace sluice {
namespace {

// One element of an SVG: its name, attributes and the text in it.
struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;

  double number(const std::string& key) const { return std::stod(attributes.at(key)); }
};

// Parses the XML that we write, strictly: every tag is closed, attributes are quoted, nothing stands unescaped.
std::vector<Element> parsed(const std::string& svg) {
  std::vector<Element> elements;
  std::vector<std::string> open;
  std::size_t at = 0;
  const auto fail = [&](const std::string& what) { throw std::runtime_error(what + " at " + std::to_string(at)); };
  while (at < svg.size()) {
    if (svg[at] != '<') {
      const std::size_t end = std::min(svg.find('<', at), svg.size());
      const std::string text = svg.substr(at, end - at);
      if (text.find('>') != std::string::npos) fail("an unescaped >");
      for (std::size_t i = 0; (i = text.find('&', i)) != std::string::npos; ++i) {
        if (!std::regex_search(text.substr(i), std::regex("^&(amp|lt|gt|quot);"))) fail("an unescaped &");
      }
      if (!elements.empty() && text.find_first_not_of(" \n") != std::string::npos) elements.back().text += text;
      at = end;
      continue;
    }
    const std::size_t end = svg.find('>', at);
    if (end == std::string::npos) fail("an open tag");
    std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) fail("a closing tag without its opening one");
      open.pop_back();
    } else {
      const bool closed = tag.ends_with('/');
      if (closed) tag.pop_back();
      Element element;
      element.name = tag.substr(0, tag.find(' '));
      static const std::regex kAttribute(R"re( ([a-zA-Z0-9:-]+)="([^"<]*)")re");
      std::string rest = tag.substr(element.name.size());
      for (std::smatch match; std::regex_search(rest, match, kAttribute, std::regex_constants::match_continuous);) {
        if (!element.attributes.emplace(match[1], match[2]).second) fail("a double attribute");
        rest = match.suffix();
      }
      if (!rest.empty() && rest != " ") fail("what is no attribute: '" + rest + "'");
      if (!closed) open.push_back(element.name);
      elements.push_back(std::move(element));
    }
    at = end + 1;
  }
  if (!open.empty()) fail("an element that is not closed");
  return elements;
}

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

std::string figure(const Drawn& one) { return svg_figure(std::span(&one.drawn, 1)); }

std::vector<Element> rects(const std::vector<Element>& elements, Rgb colour) {
  std::vector<Element> out;
  for (const Element& element : elements) {
    // The legend's swatches have a grey edge.
    if (element.name == "rect" && element.attributes.at("fill") == hex(colour) &&
        (!element.attributes.contains("stroke") || element.attributes.at("stroke") == "#ffffff")) {
      out.push_back(element);
    }
  }
  return out;
}

TEST(Figure, DrawsEveryOpWhereItsTimeIs) {
  // 1f1b, p = 4, m = 8, f = 1, x = 2: 33 s over 960 - 64 - 16 px.
  const auto one = drawn(test::simulated("1f1b", {.ranks = 4, .microbatches = 8}));
  const auto elements = parsed(figure(*one));
  const double second = 880.0 / 33;
  const auto forwards = rects(elements, palette::kForward);
  const auto backwards = rects(elements, palette::kBackward);
  ASSERT_EQ(forwards.size(), 32U);
  ASSERT_EQ(backwards.size(), 32U);
  for (const Element& rect : forwards) EXPECT_NEAR(rect.number("width"), second, 0.011);
  for (const Element& rect : backwards) EXPECT_NEAR(rect.number("width"), 2 * second, 0.011);
  // Rank 0's first backward starts at 10 s, its last ends at 33.
  EXPECT_NEAR(backwards.front().number("x"), 64 + 10 * second, 0.011);
  EXPECT_NEAR(backwards[7].number("x") + backwards[7].number("width"), 64 + 880, 0.03);
  // Each label stands in the middle of its op and is narrower than it.
  std::map<std::string, int> labels;
  for (const Element& element : elements) {
    if (element.name == "text" && element.attributes.contains("fill") && element.attributes.at("fill") == "#ffffff") {
      ++labels[element.text];
      EXPECT_LT(text_width(element.text, element.number("font-size")), second);
    }
  }
  EXPECT_EQ(labels.size(), 16U);
  for (const auto& [label, count] : labels) EXPECT_EQ(count, 4) << label;
  EXPECT_EQ(labels.count("F7"), 1U);
}

TEST(Figure, TwoRunsStandOnOneAxis) {
  const auto slow = drawn(test::simulated("1f1b", {.ranks = 4, .microbatches = 8}), "1f1b <&>");
  const auto fast = drawn(test::simulated("zb-h1", {.ranks = 4, .microbatches = 8}), "zb-h1");
  const DrawnRun both[] = {slow->drawn, fast->drawn};
  const auto elements = parsed(svg_figure(both));
  // An F of either takes 1 s of 33.
  const auto forwards = rects(elements, palette::kForward);
  ASSERT_EQ(forwards.size(), 64U);
  for (const Element& rect : forwards) EXPECT_NEAR(rect.number("width"), 880.0 / 33, 0.011);
  // What is idle is drawn to the end of each run: 33 and 27 s.
  const auto idle = rects(elements, palette::kIdle);
  ASSERT_EQ(idle.size(), 8U);
  EXPECT_NEAR(idle.front().number("width"), 880, 0.011);
  EXPECT_NEAR(idle.back().number("width"), 880.0 * 27 / 33, 0.011);
  EXPECT_NE(svg_figure(both).find("1f1b &lt;&amp;&gt;"), std::string::npos);
}

TEST(Figure, JointBlocksAreTwoHalves) {
  const auto one = drawn(test::simulated("dualpipe-v", {.ranks = 2, .microbatches = 6}));
  int blocks = 0;
  for (const Vertex& vertex : one->run.graph.vertices()) blocks += vertex.kind == VertexKind::joint ? 1 : 0;
  ASSERT_GT(blocks, 0);
  int halves = 0;
  for (const Element& element : parsed(figure(*one))) {
    halves += element.name == "rect" && element.attributes.contains("stroke") &&
                      element.attributes.at("stroke") == "#ffffff" && element.number("height") == 10
                  ? 1
                  : 0;
  }
  EXPECT_EQ(halves, 2 * blocks);  // rows of up to 8 ranks are 22 - 2 px high
}

TEST(Figure, ManyOpsKeepTheirSharesAndTheFileSmall) {
  const auto one = drawn(test::simulated("1f1b", {.ranks = 4, .microbatches = 4000}));
  const std::string svg = figure(*one);
  EXPECT_LT(svg.size(), 2U << 20);
  const auto elements = parsed(svg);
  double forward = 0;
  double backward = 0;
  for (const Element& rect : rects(elements, palette::kForward)) forward += rect.number("width");
  for (const Element& rect : rects(elements, palette::kBackward)) backward += rect.number("width");
  // Columns are half a pixel, ops of 0.07 and 0.15 px: a column has about two thirds of backward, which wins it.
  EXPECT_NEAR((forward + backward) / (4 * 880), 1 - one->metrics.bubble_fraction, 0.01);
  EXPECT_GT(backward, 2 * forward);
  EXPECT_NE(svg.find("each half pixel shows what takes most of its time"), std::string::npos);
}

TEST(Figure, MemoryEndsAtItsPeakAndShowsTheCapacity) {
  class Footed : public Footprint {
   public:
    StageBytes stage(int) const override { return {.weights = std::int64_t{1} << 30}; }
    SliceBytes slice(int, const MicrobatchShape&, int) const override {
      return {.activations_to_weight_gradient = std::int64_t{1} << 30};
    }
  };
  const Footed footprint;
  auto one = drawn(test::simulated("1f1b", {.ranks = 4, .microbatches = 8}, "f=1,b=1,w=1", {.footprint = &footprint}));
  one->drawn.capacity_bytes = std::int64_t{8} << 30;
  const std::string svg = figure(*one);
  // Rank 0 holds its weights and four microbatches.
  EXPECT_NE(svg.find("rank 0: at most 5 GiB"), std::string::npos);
  EXPECT_NE(svg.find("capacity 8 GiB"), std::string::npos);
  EXPECT_NO_THROW(parsed(svg));
  // Without bytes, what is in flight.
  EXPECT_NE(
      figure(*drawn(test::simulated("1f1b", {.ranks = 4, .microbatches = 8}))).find("rank 0: at most 4 in flight"),
      std::string::npos);
}

TEST(Figure, OfManyRanksTheFirstAndLastAreShown) {
  const auto one = drawn(test::simulated("1f1b", {.ranks = 64, .microbatches = 4}));
  const std::string svg = figure(*one);
  EXPECT_NE(svg.find(">(32 ranks)<"), std::string::npos);
  EXPECT_NE(svg.find(">rank 15<"), std::string::npos);
  EXPECT_EQ(svg.find(">rank 16<"), std::string::npos);
  EXPECT_NE(svg.find(">rank 63<"), std::string::npos);
}

TEST(Figure, IsTheSameEachTimeAndAsItWas) {
  const auto one = drawn(test::simulated("seq1f1b", {.ranks = 2, .microbatches = 2, .shape = {1, {1, 1}}}), "seq1f1b");
  EXPECT_EQ(figure(*one), figure(*one));
  test::expect_golden("traces/golden/seq1f1b-p2-m2-k2.svg", figure(*one));
}

TEST(Figure, TakesOneRunOrTwo) {
  EXPECT_THROW(svg_figure({}), InputError);
  const auto one = drawn(test::simulated("1f1b", {.ranks = 1, .microbatches = 1}));
  const DrawnRun three[] = {one->drawn, one->drawn, one->drawn};
  EXPECT_THROW(svg_figure(three), InputError);
}

CurveChart chart() {
  return {.title = "a < b",
          .x_label = "mbs",
          .y_label = "tokens/s",
          .hollow_note = "does not fit",
          .x = {"1", "2", "4", "8"},
          .series = {{"pp 1", {{10.0}, {20.0}, {}, {40.0, true}}}, {"pp 2", {{5.0}, {6.0}, {7.0}, {8.0}}}}};
}

TEST(Curve, PlacesPointsByTheirValues) {
  const auto elements = parsed(svg_curve(chart()));
  std::vector<double> x;
  int hollow = 0;
  for (const Element& element : elements) {
    if (element.name != "circle") continue;
    hollow += element.attributes.at("fill") == "#ffffff" ? 1 : 0;
    if (element.number("cy") < 380) x.push_back(element.number("cx"));
  }
  // Three points of the first series (the third has no answer), on a logarithmic axis: 1, 2 and 8 at 0, 1/3 and 1.
  ASSERT_EQ(x.size(), 3U);
  EXPECT_NEAR((x[1] - x[0]) / (x[2] - x[0]), 1.0 / 3, 1e-3);
  EXPECT_EQ(hollow, 2);  // the point, and the legend's
  // The line is broken where there is no answer.
  std::string line;
  for (const Element& element : elements) {
    if (element.name == "path" && element.attributes.at("fill") == "none") {
      line = element.attributes.at("d");
      break;
    }
  }
  EXPECT_EQ(std::count(line.begin(), line.end(), 'M'), 2);
  EXPECT_EQ(std::count(line.begin(), line.end(), 'L'), 1);
}

TEST(Curve, WordsStandSideBySide) {
  CurveChart words = chart();
  words.x = {"1f1b", "gpipe", "zb-h1", "zb-v"};
  std::vector<double> x;
  for (const Element& element : parsed(svg_curve(words))) {
    if (element.name == "circle" && element.number("cy") < 380) x.push_back(element.number("cx"));
  }
  ASSERT_EQ(x.size(), 3U);
  EXPECT_NEAR((x[1] - x[0]) / (x[2] - x[0]), 1.0 / 3, 1e-3);
}

TEST(Curve, RefusesWhatItCannotDraw) {
  CurveChart empty = chart();
  for (CurveSeries& series : empty.series) series.points.assign(4, {});
  EXPECT_THROW(svg_curve(empty), InputError);
  CurveChart short_one = chart();
  short_one.series[0].points.pop_back();
  EXPECT_THROW(svg_curve(short_one), InputError);
}

TEST(Svg, TicksAreRound) {
  EXPECT_DOUBLE_EQ(tick_step(33, 12), 5);
  EXPECT_DOUBLE_EQ(tick_step(1, 10), 0.1);
  EXPECT_DOUBLE_EQ(tick_step(0.9, 4), 0.5);
  EXPECT_DOUBLE_EQ(tick_step(0, 4), 1);
}

}  // namespace
}  // namespace sluice

#include "traces/figure/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "model/errors.h"
#include "tests/support/simulated.h"
#include "tests/support/svg_elements.h"
#include "traces/figure/held.h"
#include "traces/figure/svg.h"

namespace sluice::test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

CurveChart chart() {
  return {.title = "a < b",
          .x_label = "mbs",
          .y_label = "tokens/s",
          .hollow_note = "does not fit",
          .gap_note = "infeasible",
          .x = {"1", "2", "4", "8"},
          .series = {{"pp 1", {{10.0}, {20.0}, {}, {40.0, true}}}, {"pp 2", {{5.0}, {6.0}, {7.0}, {8.0}}}}};
}

std::vector<std::string> texts(const std::vector<SvgElement>& elements) {
  std::vector<std::string> out;
  for (const SvgElement& element : elements) {
    if (element.name == "text") out.push_back(element.text);
  }
  return out;
}

// The points of the first series, which are circles, without those of the legend.
std::vector<SvgElement> circles(const std::vector<SvgElement>& elements) {
  std::vector<SvgElement> out;
  for (const SvgElement& element : elements) {
    if (element.name == "circle" && element.number("cy") < 294) out.push_back(element);  // the axis: 340 - 46
  }
  return out;
}

std::string first_line(const std::vector<SvgElement>& elements) {
  for (const SvgElement& element : elements) {
    if (element.name == "path" && element.get("fill") == "none") return element.get("d");
  }
  return "";
}

TEST(Curve, PlacesPointsByTheirValues) {
  const auto elements = svg_elements(svg_curve(chart()));
  const auto points = circles(elements);
  // The third is missing. On a logarithmic axis 1, 2 and 8 are at 0, 1/3 and 1.
  ASSERT_EQ(points.size(), 3U);
  const auto x = [&](int i) { return points[i].number("cx"); };
  const auto y = [&](int i) { return points[i].number("cy"); };
  EXPECT_NEAR((x(1) - x(0)) / (x(2) - x(0)), 1.0 / 3, 1e-3);
  // 5 is below 60 % of 40: the axis starts at 0, at y = 294, so that heights are proportional to 10, 20 and 40.
  EXPECT_NEAR((294 - y(1)) / (294 - y(0)), 2, 1e-3);
  EXPECT_NEAR((294 - y(2)) / (294 - y(0)), 4, 1e-3);
  EXPECT_EQ(points[0].get("fill"), "#332288");
  EXPECT_EQ(points[2].get("fill"), "#ffffff");
  // The line is interrupted at the missing value.
  const std::string line = first_line(elements);
  EXPECT_EQ(std::count(line.begin(), line.end(), 'M'), 2);
  EXPECT_EQ(std::count(line.begin(), line.end(), 'L'), 1);
  for (const char* text :
       {"a < b", "mbs", "tokens/s", "pp 1", "pp 2", "does not fit", "infeasible", "1", "2", "4", "8"}) {
    EXPECT_THAT(texts(elements), Contains(text));
  }
}

TEST(Curve, SlowlyGrowingNumbersHaveALinearAxis) {
  // The axis is from 2 to 5; the value at 4 is missing.
  CurveChart linear = chart();
  linear.x = {"2", "3", "4", "5"};
  const auto points = circles(svg_elements(svg_curve(linear)));
  ASSERT_EQ(points.size(), 3U);
  EXPECT_NEAR((points[1].number("cx") - points[0].number("cx")) / (points[2].number("cx") - points[0].number("cx")),
              1.0 / 3, 1e-3);
}

TEST(Curve, WordsAreEquidistantAndAllLabelled) {
  CurveChart words = chart();
  words.x = {"1f1b", "gpipe", "zb-h1", "zb-v"};
  const auto elements = svg_elements(svg_curve(words));
  const auto points = circles(elements);
  ASSERT_EQ(points.size(), 3U);
  EXPECT_NEAR((points[1].number("cx") - points[0].number("cx")) / (points[2].number("cx") - points[0].number("cx")),
              1.0 / 3, 1e-3);
  EXPECT_THAT(svg_curve(words), HasSubstr("stroke-dasharray"));
  EXPECT_THAT(svg_curve(chart()), Not(HasSubstr("stroke-dasharray")));

  // Names that do not fit next to each other are rotated, not omitted.
  CurveChart many = chart();
  many.x.clear();
  many.series = {{"", {}}};
  for (int i = 0; i < 20; ++i) {
    many.x.push_back("interleaved-1f1b-" + std::to_string(i));
    many.series[0].points.push_back({100.0 + i});
  }
  const auto rotated = svg_elements(svg_curve(many));
  int names = 0;
  for (const SvgElement& element : rotated) {
    if (!element.text.starts_with("interleaved-1f1b-")) continue;
    ++names;
    EXPECT_THAT(element.get("transform"), HasSubstr("rotate(-40)"));
  }
  EXPECT_EQ(names, 20);
}

TEST(Curve, AxisCoversANarrowBand) {
  CurveChart narrow = chart();
  narrow.series = {{"", {{30'000.0}, {26'000.0}, {24'000.0}, {22'000.0}}}};
  const auto elements = svg_elements(svg_curve(narrow));
  // The step for 1.3 * 8000 in at most 7 steps is 2000; the axis starts at the step below 22000 - 0.15 * 8000.
  EXPECT_THAT(texts(elements), Contains("20 000"));
  EXPECT_THAT(texts(elements), Not(Contains("0")));
  const auto points = circles(elements);
  ASSERT_EQ(points.size(), 4U);
  EXPECT_GT(points[3].number("cy") - points[0].number("cy"), 0.5 * (294 - 32));
  // With equal values the axis starts at 0.
  narrow.series = {{"", {{3.0}, {3.0}, {3.0}, {3.0}}}};
  EXPECT_THAT(texts(svg_elements(svg_curve(narrow))), Contains("0.0"));
}

TEST(Curve, MissingValuesAreCrossesInTheColourOfTheirSeries) {
  CurveChart with_gaps = chart();
  with_gaps.series[1].points[2] = {};
  const auto crosses = [](const CurveChart& of) {
    std::vector<std::string> colours;
    for (const SvgElement& element : svg_elements(svg_curve(of))) {
      if (element.get("d").find("l6 6m0 -6l-6 6") != std::string::npos) colours.push_back(element.get("stroke"));
    }
    return colours;
  };
  // The third points of both series, and the legend.
  EXPECT_THAT(crosses(with_gaps), ElementsAre("#332288", "#d55e00", "#777777"));
  with_gaps.gap_note.clear();
  EXPECT_THAT(crosses(with_gaps), ElementsAre());
}

TEST(Curve, InvalidChartsAreRejected) {
  CurveChart empty = chart();
  for (CurveSeries& series : empty.series) series.points.assign(4, {});
  EXPECT_THROW(svg_curve(empty), InputError);
  CurveChart short_series = chart();
  short_series.series[0].points.pop_back();
  EXPECT_THROW(svg_curve(short_series), InputError);
  for (const double wrong : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CurveChart bad = chart();
    bad.series[1].points[0].y = wrong;
    EXPECT_THROW(svg_curve(bad), InputError) << wrong;
  }
}

TEST(Curve, TitleIsWrapped) {
  CurveChart of = chart();
  of.title = "Throughput over the size of a microbatch for each number of pipeline ranks";
  for (const double width : {240.0, 336.0, 560.0}) {
    const auto elements = svg_elements(svg_curve(of, width));
    std::string title;
    double below = 0;
    for (const SvgElement& element : elements) {
      if (!element.has("font-weight")) continue;
      title += (title.empty() ? "" : " ") + element.text;
      below = element.number("y");
      EXPECT_LE(element.number("x") + 1.1 * text_width(element.text, 12), width);
    }
    EXPECT_EQ(title, of.title) << width;
    for (const SvgElement& circle : circles(elements)) EXPECT_GT(circle.number("cy"), below + 4) << width;
  }
  const auto height = [](const CurveChart& drawn) { return svg_elements(svg_curve(drawn))[0].number("height"); };
  const double one_line = height(chart());
  of.title = "";
  EXPECT_EQ(height(of), one_line - 15);
}

TEST(Svg, TextIsWrappedToWidth) {
  EXPECT_THAT(wrapped("one two  three", 10, 200), ElementsAre("one two three"));
  // "one two" has 7 characters of up to 0.82 em.
  EXPECT_THAT(wrapped("one two\nthree", 10, 45), ElementsAre("one two", "three"));
  EXPECT_THAT(wrapped("\u4e00\u4e01\u4e02", 10, 25), ElementsAre("\u4e00\u4e01", "\u4e02"));
  EXPECT_THAT(wrapped("a \u4e00\u4e01\u4e02", 10, 25), ElementsAre("a", "\u4e00\u4e01", "\u4e02"));
  EXPECT_THAT(wrapped("abc", 10, 1), ElementsAre("a", "b", "c"));
  EXPECT_THAT(wrapped("\xFF\xFF", 10, 100), ElementsAre("\xFF\xFF"));
  EXPECT_THAT(wrapped("", 10, 100), ElementsAre());
  EXPECT_THAT(wrapped("  ", 10, 100), ElementsAre());
}

TEST(Svg, TicksAreRoundWithEnoughDecimals) {
  EXPECT_DOUBLE_EQ(tick_step(33, 12), 5);
  EXPECT_DOUBLE_EQ(tick_step(1, 10), 0.1);
  EXPECT_DOUBLE_EQ(tick_step(0.9, 4), 0.5);
  EXPECT_DOUBLE_EQ(tick_step(0, 4), 1);
  EXPECT_EQ(tick_label(3 * 0.1, 0.1), "0.3");
  EXPECT_EQ(tick_label(1, 0.5), "1.0");
  EXPECT_EQ(tick_label(2000, 500), "2000");
  EXPECT_EQ(tick_label(36'760, 10), "36 760");
  EXPECT_EQ(tick_label(1'234'567, 1), "1 234 567");
}

TEST(Svg, LengthsHaveAtMostTwoDecimalsAndNoNegativeZero) {
  EXPECT_EQ(px(12), "12");
  EXPECT_EQ(px(0.126), "0.13");
  EXPECT_EQ(px(-0.001), "0");
  EXPECT_EQ(px(100), "100");
}

TEST(Svg, TextIsEscapedToValidXml) {
  const std::string text = "<a & \"b\"> \x01 \xC3\xA9 \xFF \xED\xA0\x80 \xC0\xAF \xF4\x90\x80\x80 ";
  Svg svg(10, 10, text, "");
  svg.text(0, 0, text, 9);
  // A control character, an invalid byte, a surrogate, an overlong encoding, beyond Unicode: U+FFFD per byte.
  const std::string replaced = "\xEF\xBF\xBD";
  const std::string expected = "<a & \"b\"> " + replaced + " \xC3\xA9 " + replaced + " " + replaced + replaced +
                               replaced + " " + replaced + replaced + " " + replaced + replaced + replaced + replaced +
                               " ";
  for (const SvgElement& element : svg_elements(std::move(svg).take())) {
    if (element.name != "text" && element.name != "title") continue;
    EXPECT_EQ(element.text, expected);
  }
}

TEST(Svg, TextIsTruncatedToWidth) {
  EXPECT_EQ(shortened("1f1b", 10, 100), "1f1b");
  const std::string cut = shortened("interleaved-1f1b, 16 ranks", 10, 100);
  EXPECT_TRUE(cut.ends_with("\u2026"));
  EXPECT_LE(text_width(cut, 10), 100);
  EXPECT_TRUE(std::string("interleaved-1f1b, 16 ranks").starts_with(cut.substr(0, cut.size() - 3)));
  // Truncates at characters: two of 3 bytes and the ellipsis are an em each.
  EXPECT_EQ(shortened("\u4e00\u4e01\u4e02\u4e03", 10, 30), "\u4e00\u4e01\u2026");
}

std::vector<int> all_ranks(const Schedule& schedule) {
  std::vector<int> ranks(static_cast<std::size_t>(schedule.num_ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

double peak(const std::vector<HeldLevel>& levels) {
  double most = 0;
  for (const HeldLevel& level : levels) most = std::max(most, level.amount);
  return most;
}

TEST(Held, WithoutBytesItMatchesMetrics) {
  for (const Family& family : all_families()) {
    const auto run = simulated(make_schedule(family, {.ranks = 4, .microbatches = family.name == "hanayo" ? 4 : 8}),
                               "f=1,b=1.3,w=0.7,comm=0.2");
    const Metrics metrics = measure(run.graph, run.timeline);
    const Held held =
        held_over_time({.graph = &run.graph, .timeline = &run.timeline, .metrics = &metrics}, all_ranks(*run.schedule));
    EXPECT_FALSE(held.bytes);
    ASSERT_EQ(held.levels.size(), 4U);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto& levels = held.levels[rank];
      EXPECT_NEAR(peak(levels), metrics.ranks[rank].peak_in_flight, 1e-9) << family.name << " rank " << rank;
      EXPECT_NEAR(levels.back().amount, 0, 1e-9) << family.name;  // all memory is released
      const auto not_later = [](const HeldLevel& a, const HeldLevel& b) { return a.time >= b.time; };
      EXPECT_EQ(std::adjacent_find(levels.begin(), levels.end(), not_later), levels.end()) << family.name;
    }
    EXPECT_DOUBLE_EQ(held.most, peak(held.levels[held.most_at]));
  }
}

TEST(Held, RankWithHighestPeakIsAlwaysIncluded) {
  // 1f1b: rank r has p - r microbatches in flight, so rank 0 has the highest peak.
  const auto run = simulated("1f1b", {.ranks = 4, .microbatches = 8});
  const Metrics metrics = measure(run.graph, run.timeline);
  const std::vector<int> requested = {2, 3};
  const Held held = held_over_time({.graph = &run.graph, .timeline = &run.timeline, .metrics = &metrics}, requested);
  EXPECT_EQ(held.ranks, (std::vector<int>{2, 3, 0}));
  EXPECT_EQ(held.most_at, 2U);
  EXPECT_EQ(held.most, 4);
}

TEST(Held, BytesAreInGiB) {
  const auto run = simulated("1f1b", {.ranks = 1, .microbatches = 1});
  // Without a footprint the graph has no bytes, and memory is ignored.
  const Metrics metrics = measure(run.graph, run.timeline);
  const std::vector<RankMemory> memory = memory_over_time(run.graph, run.timeline, true);
  const std::vector<int> requested = {0};
  EXPECT_FALSE(
      held_over_time({.graph = &run.graph, .timeline = &run.timeline, .metrics = &metrics, .memory = memory}, requested)
          .bytes);

  class HeldFootprint : public Footprint {
   public:
    StageBytes stage(int) const override { return {.weights = std::int64_t{1} << 30}; }
    SliceBytes slice(int, const MicrobatchShape&, int) const override {
      return {.activations_to_weight_gradient = std::int64_t{1} << 29};
    }
  };
  const HeldFootprint footprint;
  const auto with_bytes = simulated("1f1b", {.ranks = 1, .microbatches = 1}, "f=1,b=1,w=1", {.footprint = &footprint});
  const std::vector<RankMemory> bytes = memory_over_time(with_bytes.graph, with_bytes.timeline, true);
  const Held held = held_over_time(
      {.graph = &with_bytes.graph, .timeline = &with_bytes.timeline, .metrics = &metrics, .memory = bytes}, requested);
  EXPECT_TRUE(held.bytes);
  // Weights of 1 GiB, and half a GiB from the start of F to the end of B.
  EXPECT_EQ(held.most, 1.5);
  ASSERT_FALSE(held.levels[0].empty());
  EXPECT_EQ(held.levels[0].back().amount, 1);
}

constexpr HeldScale kScale{.left = 10, .px_per_ns = 1, .bottom = 100, .px_per_unit = 10};

TEST(HeldPath, IsAStepFunction) {
  const std::vector<HeldLevel> levels = {{Duration{0}, 1}, {Duration{3}, 2}, {Duration{5}, 0}};
  EXPECT_EQ(held_path(levels, Duration{8}, kScale), "M10 90H13V80H15V100H18");
}

TEST(HeldPath, LevelsInAColumnKeepTheirRangeAndLastValue) {
  // At 0.1 px per ns, 0 to 3 ns are in the same half px, and the last level continues.
  const std::vector<HeldLevel> levels = {{Duration{0}, 1}, {Duration{1}, 5}, {Duration{3}, 3}, {Duration{100}, 0}};
  HeldScale scale = kScale;
  scale.px_per_ns = 0.1;
  EXPECT_EQ(held_path(levels, Duration{120}, scale), "M10 90V50V70H20V100H22");
  // The last level of a column may be its maximum.
  const std::vector<HeldLevel> rising = {{Duration{0}, 1}, {Duration{1}, 5}, {Duration{100}, 0}};
  EXPECT_EQ(held_path(rising, Duration{120}, scale), "M10 90V50H20V100H22");
}

TEST(HeldPath, LengthIsBoundedForManyLevels) {
  std::vector<HeldLevel> levels;
  for (int i = 0; i < 200'000; ++i) levels.push_back({Duration{i}, i % 2 == 0 ? 1.0 : 2.0});
  HeldScale scale = kScale;
  scale.px_per_ns = 600.0 / 200'000;
  EXPECT_LT(held_path(levels, Duration{200'000}, scale).size(), 40'000U);
  EXPECT_EQ(held_path({}, Duration{1}, scale), "");
}

}  // namespace
}  // namespace sluice::test

#include "traces/text/gantt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string gantt_of(const Simulated& run, const GanttOptions& options = {}) {
  return text_gantt(run.graph, run.timeline, measure(run.graph, run.timeline), options);
}

// f = 1, x = b + w = 2: makespan (m+p-1)(f+x) = 33, busy 24 of 33, min(p-r, m) in flight.
TEST(Gantt, GoldenOneFOneB) {
  EXPECT_EQ(gantt_of(simulated("1f1b", {.ranks = 4, .microbatches = 8})),
            "rank 0 │F0F1F2F3············B0──F4B1──F5B2──F6B3──F7B4──··B5──··B6──··B7──│ busy 72.7 %  4 in flight\n"
            "rank 1 │··F0F1F2········B0──F3B1──F4B2──F5B3──F6B4──F7B5──··B6──··B7──····│      72.7 %  3\n"
            "rank 2 │····F0F1····B0──F2B1──F3B2──F4B3──F5B4──F6B5──F7B6──··B7──········│      72.7 %  2\n"
            "rank 3 │······F0B0──F1B1──F2B2──F3B3──F4B4──F5B5──F6B6──F7B7──············│      72.7 %  1\n");
}

TEST(Gantt, SplitBackward) {
  // ZB-H1, p = 2, m = 2: m(f+b+w) + (p-1)max(f+b-w, b, f) = 7, busy 6 of 7.
  EXPECT_EQ(gantt_of(simulated("zb-h1", {.ranks = 2, .microbatches = 2})),
            "rank 0 │F0F1··I0W0I1W1│ busy 85.7 %  2 in flight\n"
            "rank 1 │··F0I0F1I1W0W1│      85.7 %  2\n");
}

TEST(Gantt, MicrobatchesAboveNineAreWiderOrModuloTen) {
  // (11+2-1)*3 = 36 units: at three columns 108, at two 72.
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 11});
  const std::string wide = gantt_of(run, {.width = 108});
  EXPECT_THAT(wide, HasSubstr("F9─B8────F10B9────···B10───│"));
  EXPECT_THAT(wide, Not(HasSubstr("modulo")));
  const std::string narrow = gantt_of(run, {.width = 107});
  EXPECT_THAT(narrow, HasSubstr("F9B8──F0B9──··B0──│"));
  EXPECT_THAT(narrow, HasSubstr("\n  (microbatches modulo 10)\n"));
  // One column per unit: an F has only its letter.
  EXPECT_THAT(gantt_of(run, {.width = 40}), HasSubstr("FB8FB9·B0│"));
}

// A V of two stages: the chunk 1 of rank 0 is the last stage.
TEST(Gantt, OpsOfOddChunksAreLowerCase) {
  const std::string text = gantt_of(simulated("zb-v", {.ranks = 1, .chunks = 2, .microbatches = 1}));
  EXPECT_THAT(text, HasSubstr("rank 0 │F0f0i0w0I0W0│"));
  EXPECT_THAT(text, HasSubstr("\n  (lower case: chunk 1)\n"));
  const std::string four = gantt_of(simulated("interleaved-1f1b", {.ranks = 1, .chunks = 4, .microbatches = 1}));
  EXPECT_THAT(four, HasSubstr("│F0f0F0f0b0──B0──b0──B0──│"));
  EXPECT_THAT(four, HasSubstr("\n  (lower case: odd chunks)\n"));
}

TEST(Gantt, SlicesAreLetters) {
  const Simulated run = simulated("seq1f1b", {.ranks = 2, .microbatches = 1, .shape = {1, {1, 1}}}, "f=2,b=2,w=2");
  // Slices of 1 and 2 s for F and B: (mk+p-1)(f+x) = 9 units of three columns. Rank 0 has both slices in flight.
  EXPECT_EQ(gantt_of(run),
            "rank 0 │F0aF0b·········B0b───B0a───│ busy 66.7 %  1 in flight\n"
            "rank 1 │···F0aF0bB0b───B0a───······│      66.7 %  1\n");
  // Without space for the slice letters, slices differ only in order.
  EXPECT_THAT(gantt_of(run, {.width = 18}), HasSubstr("rank 0 │F0F0······B0──B0──│"));
}

TEST(Gantt, JointBlocksShowBothOps) {
  const Simulated run = simulated("dualpipe-v", {.ranks = 2, .microbatches = 8}, "f=2,b=2,w=2,fb=5");
  EXPECT_THAT(gantt_of(run, {.width = 200}), HasSubstr("F3&b1"));
}

TEST(Gantt, DispatchAndCombineAreBelowTheirRank) {
  // F 0 to 1.1 s, B 1.1 to 3 s, on 30 columns of 0.1 s.
  const Simulated run = simulated("1f1b", {.ranks = 1, .microbatches = 1}, "f=1.1,b=1,w=0.9");
  const auto part = [](VertexId vertex, LayerPart what, OpKind pass, int from_ms, int to_ms) {
    return PartRow{.vertex = vertex,
                   .part = {what, pass},
                   .start = std::chrono::milliseconds(from_ms),
                   .end = std::chrono::milliseconds(to_ms)};
  };
  GanttOptions options{.width = 30};
  EXPECT_THAT(gantt_of(run, options), Not(HasSubstr("dispatch")));
  options.parts = {
      part(0, LayerPart::dispatch, OpKind::F, 0, 200), part(0, LayerPart::attention, OpKind::F, 100, 250),
      // Two parts of 10 ms at the edges of a column, which the midpoint misses.
      part(0, LayerPart::combine, OpKind::F, 300, 310), part(0, LayerPart::combine, OpKind::F, 390, 400),
      part(1, LayerPart::combine, OpKind::B, 1100, 1160), part(1, LayerPart::dispatch, OpKind::B, 1160, 1200),
      part(1, LayerPart::dispatch, OpKind::B, 1200, 1230), part(1, LayerPart::combine, OpKind::B, 1230, 1270),
      part(1, LayerPart::dispatch, OpKind::B, 1270, 1295), part(1, LayerPart::dispatch, OpKind::B, 2980, 3000)};
  // 100 ms of 435 ms are hidden.
  EXPECT_EQ(gantt_of(run, options),
            "rank 0 │F0─────────B0─────────────────│ busy 100.0 %  1 in flight\n"
            "       │DD·C·······cd················d│ 23 % hidden\n"
            "  (D dispatch, C combine of forwards; d, c of backwards: that with the most time in a column)\n");
}

TEST(Gantt, UnevenTimesAreSampled) {
  // The unit is 1 ms. B0 starts at 2·1.001 + 2.03 = 4.032 s, between the middles of columns 7 and 8.
  const Simulated run = simulated("1f1b", {.ranks = 2, .microbatches = 2}, "f=1.001,b=1.017,w=1.013");
  const std::string text = gantt_of(run, {.width = 18});
  // makespan (2+2-1)(1.001+2.03) = 9.093 s; a column is 0.505 s.
  EXPECT_EQ(text,
            "rank 0 │F0F1····B0──··B1──│ busy 66.7 %  2 in flight\n"
            "rank 1 │··F0B0──F1B1──····│      66.7 %  1\n"
            "  (each column is 505 ms and shows the op at its midpoint)\n");
}

TEST(Gantt, ColoursAreOptional) {
  const Simulated run = simulated("1f1b", {.ranks = 1, .microbatches = 1});
  EXPECT_EQ(gantt_of(run), "rank 0 │F0B0──│ busy 100.0 %  1 in flight\n");
  // F #332288 and B #D55E00: both dark enough for white text.
  EXPECT_EQ(gantt_of(run, {.colour = TextColour::truecolor}),
            "rank 0 │\x1b[97;48;2;51;34;136mF0\x1b[97;48;2;213;94;0mB0──\x1b[0m│ busy 100.0 %  1 in flight\n");
  // The nearest of the 6x6x6 colours, levels 0 95 135 175 215 255: (1,0,2) and (4,1,0).
  EXPECT_EQ(gantt_of(run, {.colour = TextColour::ansi256}),
            "rank 0 │\x1b[97;48;5;54mF0\x1b[97;48;5;166mB0──\x1b[0m│ busy 100.0 %  1 in flight\n");
}

TEST(Gantt, FirstAndLastOfManyRanksAreShown) {
  const std::string text = gantt_of(simulated("1f1b", {.ranks = 12, .microbatches = 1}), {.max_ranks = 3});
  EXPECT_THAT(text, HasSubstr("rank  1 │"));
  EXPECT_THAT(text, HasSubstr("\n      ⋮ (9 ranks not shown)\nrank 11 │"));
  EXPECT_THAT(text, Not(HasSubstr("rank  2 │")));
}

TEST(Gantt, RecomputationAndOptimizerAreLetters) {
  Simulated run = simulated("1f1b", {.ranks = 1, .microbatches = 1}, "f=1,b=1,w=1", {.recompute = true});
  // F, R, B, O one second each.
  ASSERT_EQ(run.graph.size(), 4u);
  for (VertexId v = 0; v < 4; ++v) {
    run.timeline.start[v] = std::chrono::seconds(v);
    run.timeline.end[v] = std::chrono::seconds(v + 1);
  }
  EXPECT_THAT(gantt_of(run), HasSubstr("│F0R0B0O─│"));
}

TEST(Gantt, RowsHaveEqualWidth) {
  for (const Family& family : all_families()) {
    for (const int width : {10, 37, 100}) {
      const FamilyParams params{.ranks = 4, .microbatches = family.name == "hanayo" ? 4 : 8};
      const Simulated run = simulated(make_schedule(family, params));
      std::istringstream lines(gantt_of(run, {.width = width}));
      std::size_t expected = 0;
      for (std::string line; std::getline(lines, line) && line.starts_with("rank");) {
        std::size_t columns = 0;
        const std::size_t first = line.find("│") + 3;
        for (std::size_t i = first; i < line.find("│", first); ++i) columns += (line[i] & 0xC0) != 0x80 ? 1 : 0;
        if (expected == 0) expected = columns;
        EXPECT_EQ(columns, expected) << family.name << "\n" << line;
        EXPECT_LE(columns, static_cast<std::size_t>(width));
      }
      EXPECT_GT(expected, 0u);
    }
  }
}

}  // namespace
}  // namespace sluice::test

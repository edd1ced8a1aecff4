// `simulate --compare-with`.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kCompared = "simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1 ";
const std::string kLlama = "simulate " SLUICE_SOURCE_DIR "/examples/llama3-8b-zbv-h100.json ";

json comparison(const std::string& command) {
  return json::parse(run_sluice(words(command + " --json")).out).at("comparison");
}

// The closed forms: 1F1B (m + p - 1) (f + b + w) = 33 s, ZB-H1 m (f + b + w) + (p - 1) f = 27 s.
TEST(Comparison, RowsHaveTheResultsOfEachRun) {
  const json rows = comparison(std::string(kCompared) + "--compare-with zb-h1,interleaved-1f1b,hanayo");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].at("schedule"), "1f1b");
  EXPECT_EQ(rows[0].at("iteration_s"), 33);
  EXPECT_EQ(rows[0].at("relative_time"), 1);
  EXPECT_EQ(rows[1].at("iteration_s"), 27);
  EXPECT_DOUBLE_EQ(rows[1].at("relative_time"), 27.0 / 33);
  EXPECT_EQ(rows[2].at("chunks"), 2);
  EXPECT_THAT(rows[3].at("error").get<std::string>(), HasSubstr("expected 4 (as many as ranks), got 8"));
}

// Every named family is as fast as with the flags of its row alone, also the family of the file, whose layers per stage
// are chosen anew; the first run is that of the file.
TEST(Comparison, EveryFamilyHasItsOwnPartition) {
  const json rows = comparison(kLlama + "--compare-with zb-v,1f1b,interleaved-1f1b");
  EXPECT_EQ(rows[0].at("makespan_s"), json::parse(run_sluice(words(kLlama + "--json")).out).at("makespan_s"));
  EXPECT_LT(rows[1].at("makespan_s"), rows[0].at("makespan_s"));
  for (std::size_t i = 1; i < rows.size(); ++i) {
    std::string layers = rows[i].at("layers_per_stage").dump();
    layers = layers.substr(1, layers.size() - 2);
    const std::string alone = kLlama + "--schedule " + rows[i].at("schedule").get<std::string>() + " --vpp " +
                              rows[i].at("chunks").dump() + " --stage-layers " + layers + " --json";
    EXPECT_EQ(json::parse(run_sluice(words(alone)).out).at("makespan_s"), rows[i].at("makespan_s")) << alone;
    EXPECT_EQ(rows[i].at("inherited"), json::array());
  }
  // What a flag sets holds for all.
  for (const json& row : comparison(kLlama + "--vpp 2 --compare-with interleaved-1f1b")) {
    EXPECT_EQ(row.at("chunks"), 2);
  }
}

TEST(Comparison, TableHasTheSizesThatDiffer) {
  const std::string out = run_sluice(words(std::string(kCompared) + "--compare-with zb-h1,zb-v,hanayo")).out;
  EXPECT_THAT(out, HasSubstr("  zb-h1          27 s  0.818"));
  EXPECT_THAT(out, HasSubstr("2 chunks\n"));
  EXPECT_THAT(out, HasSubstr("not possible: microbatches: expected 4 (as many as ranks), got 8\n"));
  EXPECT_EQ(out.find("1 slice"), std::string::npos);
  EXPECT_THAT(run_sluice(words(std::string(kCompared) + "--compare-with 1f1b")).out, HasSubstr("  1f1b (given) "));
}

// A column of text is the same time in all runs: the last op of ZB-H1 ends at 27 of 33 units.
TEST(Comparison, TextTimelinesHaveOneAxis) {
  const std::string out =
      run_sluice(words(std::string(kCompared) + "--compare-with zb-h1 --gantt --width 66 --color never")).out;
  EXPECT_THAT(out, HasSubstr("\n1f1b, 4 ranks, 8 microbatches\n"
                             "rank 0 │F0F1F2F3············B0──F4B1──F5B2──F6B3──F7B4──··B5──··B6──··B7──│"));
  EXPECT_THAT(out, HasSubstr("\nzb-h1, 4 ranks, 8 microbatches\n"
                             "rank 0 │F0F1F2F3······I0W0F4I1W1F5I2W2F6I3W3F7I4W4I5W5I6W6I7W7············│"));
}

TEST(Comparison, PicturesShowEveryRun) {
  const TemporaryFolder folder;
  const std::string pictures = " --svg " + folder.path("a.svg") + " --report " + folder.path("a.html");
  const CommandResult result =
      run_sluice(words(std::string(kCompared) + "--compare-with zb-h1,zb-v,dualpipe,hanayo" + pictures));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* file : {"a.svg", "a.html"}) {
    const std::string text = read_file(folder.path(file));
    for (const char* run : {"1f1b, 4 ranks, 8", "zb-h1, 4 ranks, 8", "zb-v, 4 ranks x 2 chunks, 8", "dualpipe, 4"}) {
      EXPECT_THAT(text, HasSubstr(run));
    }
    EXPECT_EQ(text.find("hanayo, 4"), std::string::npos);
  }
}

TEST(Comparison, UnknownNamesAndImpossibleFamiliesAreErrors) {
  const CommandResult unknown = run_sluice(words(std::string(kCompared) + "--compare-with zb-h1,zb-q"));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err, HasSubstr("--compare-with zb-q: there is no schedule family 'zb-q'"));
  EXPECT_THAT(unknown.err, HasSubstr("auto, or a family: gpipe, 1f1b, "));
  const CommandResult none = run_sluice(words(std::string(kCompared) + "--compare-with hanayo"));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("expected 4 (as many as ranks), got 8"));
}

}  // namespace
}  // namespace sluice::test

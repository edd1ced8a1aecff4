// `simulate --report` and `--compare-with`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/report_text.h"
#include "tests/support/svg_elements.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kReportedRun = "simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1";

CommandResult run(const std::string& flags, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = words(flags);
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_sluice(arguments);
}

TEST(ReportCommand, WritesThePageWithoutChangingTheOutput) {
  const TemporaryFolder folder;
  const std::string path = folder.path("it's a report.html");
  const CommandResult result = run(kReportedRun, {"--report", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(result.out.starts_with(run(kReportedRun, {}).out)) << result.out;
  const std::string text = read_file(path);
  // (m + p - 1)(f + x) = 33 s, of it 9 s idle; half of that before the first backwards, half after the last forwards.
  EXPECT_THAT(text, HasSubstr("<dt>Iteration</dt><dd><strong>33 s</strong>"));
  EXPECT_THAT(text,
              HasSubstr("<strong>27.3 %</strong><small>idle fraction of all rank time: warm-up 50 %, drain 50 %"));
  // The printed command line can be pasted into a shell.
  const std::string quoted = "&#39;" + folder.path("it") + "&#39;\\&#39;&#39;s a report.html&#39;";
  EXPECT_THAT(text, HasSubstr(">sluice " + std::string(kReportedRun) + " --report " + quoted + "</pre>"));
  EXPECT_EQ(columns_of(text, 0).header.at("makespan"), 33'000'000'000);
}

TEST(ReportCommand, ShowsTheScenarioVerbatimUnlessFlagsChangedIt) {
  const TemporaryFolder folder;
  const std::string scenario =
      "{\"parallelism\": {\"pp\": 2},\n   \"batch\": {\"microbatches\": 3}, \"schedule\": \"gpipe\"}\n";
  write_file_whole(folder.path("s.json"), scenario);
  const auto shown = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"simulate", folder.path("s.json"), "--report", folder.path("r.html")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(run_sluice(arguments).exit_code, 0);
    return between(read_file(folder.path("r.html")), "<pre class=\"scenario\" tabindex=\"0\">", "</pre>");
  };
  std::string escaped = scenario;
  for (std::size_t at = 0; (at = escaped.find('"', at)) != std::string::npos;) escaped.replace(at, 1, "&quot;");
  EXPECT_EQ(shown({}), escaped);
  EXPECT_THAT(shown({"--pp", "3"}), HasSubstr("&quot;pp&quot;: 3"));
}

TEST(ReportCommand, ComparesWithAFamilyOrAScenario) {
  const TemporaryFolder folder;
  const std::string path = folder.path("r.html");
  // ZB-H1: m (f + b + w) + (p - 1) max(f + b - w, b, f) = 27 s.
  ASSERT_EQ(run(kReportedRun, {"--report", path, "--compare-with", "zb-h1"}).exit_code, 0);
  std::string text = read_file(path);
  EXPECT_THAT(text, HasSubstr("<strong>33 s</strong></dd>"));
  EXPECT_THAT(text, HasSubstr("<strong>27 s</strong> <span class=\"change\">-18.2 %</span></dd>"));
  EXPECT_EQ(columns_of(text, 1).header.at("makespan"), 27'000'000'000);

  // The number of chunks is adapted to the family.
  const std::string interleaved =
      "simulate --schedule interleaved-1f1b --vpp 2 --pp 4 --microbatches 8 --uniform f=1,b=1,w=1";
  const CommandResult adapted = run(interleaved, {"--report", path, "--compare-with", "1f1b"});
  ASSERT_EQ(adapted.exit_code, 0);
  EXPECT_EQ(adapted.err, "sluice: --compare-with 1f1b: vpp 2 -> 1\n");
  EXPECT_EQ(columns_of(read_file(path), 1).header.at("makespan"), 33'000'000'000);

  // Flags do not apply to the second scenario: GPipe with p = 2, m = 3 takes (3 + 2 - 1) 3 = 12 s.
  write_file_whole(folder.path("s.json"),
                   R"({"parallelism": {"pp": 2}, "batch": {"microbatches": 3}, "schedule": "gpipe"})");
  ASSERT_EQ(run(kReportedRun, {"--report", path, "--compare-with", folder.path("s.json")}).exit_code, 0);
  text = read_file(path);
  EXPECT_EQ(columns_of(text, 0).header.at("ranks"), 4);
  EXPECT_EQ(columns_of(text, 1).header.at("ranks"), 2);
  EXPECT_EQ(columns_of(text, 1).header.at("makespan"), 12'000'000'000);
}

TEST(ReportCommand, SchedulesAreNamedByTheirFilesOrAuto) {
  const TemporaryFolder folder;
  const std::string path = folder.path("r.html");
  const auto title_and_output = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = words("simulate --pp 2 --microbatches 3 --uniform f=1,b=1,w=1 --report");
    arguments.push_back(path);
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string result = test::output_of(arguments);
    return std::pair(between(read_file(path), "<title>", "</title>"), result);
  };
  // The family that the file specifies, or that it was made from, is not its name.
  ASSERT_EQ(
      run_sluice({"schedule", "zb-h1", "--pp", "2", "--microbatches", "3", "--output", folder.path("mine.v2.json")})
          .exit_code,
      0);
  auto [title, output] = title_and_output({"--schedule", folder.path("mine.v2.json"), "--compare-with", "zb-h1"});
  EXPECT_EQ(title, "mine.v2, 2 ranks, 3 microbatches against zb-h1, 2 ranks, 3 microbatches");
  EXPECT_TRUE(output.starts_with("mine.v2: 2 ranks")) << output;
  std::tie(title, output) = title_and_output({"--schedule", "auto", "--time-budget", "0.1"});
  EXPECT_TRUE(title.starts_with("auto, 2 ranks")) << title;
  EXPECT_TRUE(output.starts_with("auto: 2 ranks")) << output;
}

// The flags of the search belong to the automatic schedule, which is the second run.
TEST(ReportCommand, ComparesWithASearchThatHasItsOwnFlags) {
  const TemporaryFolder folder;
  const CommandResult result = run(kReportedRun, {"--report", folder.path("r.html"), "--compare-with", "auto",
                                                  "--time-budget", "0", "--memory-cap", "9mb"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with(run(kReportedRun, {}).out)) << result.out;
  EXPECT_THAT(read_file(folder.path("r.html")), HasSubstr(" against auto, "));
  EXPECT_THAT(
      run(kReportedRun, {"--report", folder.path("r.html"), "--compare-with", "gpipe", "--time-budget", "0"}).err,
      HasSubstr("--time-budget: only valid for the automatic schedule"));
}

TEST(ReportCommand, InvalidFlagsAreRejected) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<std::string>& more) {
    const CommandResult result = run(kReportedRun, more);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(folder.num_files(), 0);
    return result.err;
  };
  EXPECT_THAT(refused({"--report", folder.path("r.html"), "--compare-with", "zb-h"}),
              HasSubstr("--compare-with zb-h: there is no schedule family 'zb-h'"));
  EXPECT_THAT(refused({"--report", folder.path("r.html"), "--compare-with", folder.path("none.json")}),
              HasSubstr("none.json"));
  EXPECT_THAT(refused({"--report", folder.path("none/r.html")}), HasSubstr("none/r.html"));
}

TEST(ReportCommand, ReportsWhenItDoesNotFit) {
  const TemporaryFolder folder;
  const std::string path = folder.path("r.html");
  const CommandResult result =
      run_sluice({"simulate", std::string(SLUICE_SOURCE_DIR) + "/examples/gpt-2.7b-seq1f1b-a100.json", "--schedule",
                  "1f1b", "--slices", "1", "--report", path});
  EXPECT_EQ(result.exit_code, 3);
  const std::string text = read_file(path);
  EXPECT_THAT(text,
              HasSubstr(" GiB</strong> <span class=\"bad\">does not fit</span><small>of 80.0 GiB; peak on rank "));
  EXPECT_GT(columns_of(text, 0).header.at("capacity").get<double>(), 70e9);
}

// `simulate --compare-with`.

constexpr const char* kCompared = "simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1 ";
const std::string kZbVLlama = "simulate " SLUICE_SOURCE_DIR "/examples/llama3-8b-zbv-h100.json ";

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
  const json rows = comparison(kZbVLlama + "--compare-with zb-v,1f1b,interleaved-1f1b");
  EXPECT_EQ(rows[0].at("makespan_s"), json::parse(run_sluice(words(kZbVLlama + "--json")).out).at("makespan_s"));
  EXPECT_LT(rows[1].at("makespan_s"), rows[0].at("makespan_s"));
  for (std::size_t i = 1; i < rows.size(); ++i) {
    std::string layers = rows[i].at("layers_per_stage").dump();
    layers = layers.substr(1, layers.size() - 2);
    const std::string alone = kZbVLlama + "--schedule " + rows[i].at("schedule").get<std::string>() + " --vpp " +
                              rows[i].at("chunks").dump() + " --stage-layers " + layers + " --json";
    EXPECT_EQ(json::parse(run_sluice(words(alone)).out).at("makespan_s"), rows[i].at("makespan_s")) << alone;
    EXPECT_EQ(rows[i].at("inherited"), json::array());
  }
  // What a flag sets holds for all.
  for (const json& row : comparison(kZbVLlama + "--vpp 2 --compare-with interleaved-1f1b")) {
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

// Figures written by the command line.

using std::string_literals::operator""s;

std::vector<std::string> texts(const std::string& svg) {
  std::vector<std::string> out;
  for (const SvgElement& element : svg_elements(svg)) {
    if (element.name == "text") out.push_back(element.text);
  }
  return out;
}

std::string picture(const std::string& flags) {
  const TemporaryFolder folder;
  const std::string result = test::output_of(words("simulate " + flags + " --svg " + folder.path("picture.svg")));
  EXPECT_NE(result, "");
  return read_file(folder.path("picture.svg"));
}

constexpr const char* kSmallPicture = "--pp 4 --microbatches 8 --uniform f=1,b=1,w=1 ";

TEST(Picture, DrawsOneRunOrTwo) {
  EXPECT_THAT(texts(picture(std::string(kSmallPicture) + "--schedule 1f1b")), Contains("makespan 33 s, bubble 27.3 %"));
  // The closed forms: (8 + 3) 3 s, and zb-h1 6 s less.
  const auto both = texts(picture(std::string(kSmallPicture) + "--schedule 1f1b --compare-with zb-h1"));
  EXPECT_THAT(both, Contains("makespan 33 s, bubble 27.3 %"));
  EXPECT_THAT(both, Contains("makespan 27 s (-18.2 %), bubble 11.1 %"));
  EXPECT_EQ(read_file(SLUICE_SOURCE_DIR "/docs/figures/1f1b-above-zb-v.svg"),
            picture(std::string(kSmallPicture) + "--schedule 1f1b --compare-with zb-v"))
      << "the README's figure is another; make it again by the command that stands above it";
}

TEST(Picture, OtherFormatsAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.path("a.pdf");
  const CommandResult result = run_sluice(words("simulate " + std::string(kSmallPicture) + "--svg " + path));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--svg: " + path + ": expected another name than *.pdf: write " +
                                    folder.path("a.svg") + " and convert it, with 'rsvg-convert -f pdf -o "));
  EXPECT_EQ(folder.num_files(), 0);
}

TEST(Picture, DrawsMemoryWithAModel) {
  const std::string example = SLUICE_SOURCE_DIR "/examples/llama3-8b-zbv-h100.json";
  const auto all = texts(picture(example + " --svg-width 336 --svg-transfers"));
  EXPECT_THAT(all, Contains("zb-v, 8 ranks x 2 chunks, 32 microbatches"));
  EXPECT_THAT(all, Contains(HasSubstr("memory (GiB): peak on rank")));
  EXPECT_THAT(all, Contains("communication"));
  EXPECT_EQ(svg_elements(picture(example + " --svg-width 336"))[0].get("width"), "336");
}

TEST(Picture, DrawsACurveOfASweep) {
  const auto all = texts(picture(std::string(kSmallPicture) + "--sweep schedule=gpipe,1f1b,hanayo"));
  for (const char* text : {"schedule", "iteration (s)", "gpipe", "1f1b", "hanayo", "invalid"}) {
    EXPECT_THAT(all, Contains(text));  // hanayo needs as many microbatches as ranks
  }
}

TEST(Picture, TitleAndMemoryFollowTheFlags) {
  const auto with = [](const std::string& flags, const std::string& title) {
    const TemporaryFolder folder;
    std::vector<std::string> arguments = words("simulate " + std::string(kSmallPicture) + flags);
    for (const std::string& each : {"--svg-title"s, title, "--svg"s, folder.path("p.svg")}) arguments.push_back(each);
    const CommandResult result = run_sluice(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return texts(read_file(folder.path("p.svg")));
  };
  EXPECT_EQ(with("--schedule 1f1b", "a schedule")[1], "a schedule");
  EXPECT_EQ(with("--schedule 1f1b", "")[0], "rank 0");
  EXPECT_EQ(texts(picture(std::string(kSmallPicture) + "--schedule 1f1b --svg-title="))[0], "rank 0");
  EXPECT_EQ(with("--schedule 1f1b --compare-with zb-h1", "")[0], "rank 0");
  EXPECT_EQ(with("--sweep schedule=gpipe,1f1b", "two schedules")[0], "two schedules");
  EXPECT_THAT(with("--schedule 1f1b --svg-no-memory", "x"), Not(Contains(HasSubstr("in flight"))));
  EXPECT_THAT(with("--schedule 1f1b", "x"), Contains(HasSubstr("in flight")));
}

TEST(Picture, WidthAppliesToCurves) {
  const std::string sweep = std::string(kSmallPicture) + "--sweep schedule=gpipe,1f1b";
  EXPECT_EQ(svg_elements(picture(sweep))[0].get("width"), "560");
  EXPECT_EQ(svg_elements(picture(sweep + " --svg-width 336"))[0].get("width"), "336");
}

TEST(Picture, InvalidFlagsAreRejected) {
  const auto error = [](const std::string& flags) {
    const CommandResult result = run_sluice(words("simulate " + (kSmallPicture + flags)));
    EXPECT_EQ(result.exit_code, 2) << flags;
    return result.err;
  };
  for (const char* flag : {"--svg-transfers", "--svg-no-memory", "--svg-title x", "--svg-width 400"}) {
    EXPECT_EQ(error(flag), "sluice: simulate: " + words(flag)[0] + " needs --svg\n");
  }
  EXPECT_THAT(error("--sweep schedule=gpipe,1f1b --svg x.svg --svg-no-memory"), HasSubstr("--sweep excludes"));
  EXPECT_THAT(error("--svg x.svg --svg-width 100"), HasSubstr("--svg-width"));
  const TemporaryFolder folder;
  EXPECT_THAT(error("--svg " + folder.path("missing/x.svg")), HasSubstr("missing"));
  EXPECT_EQ(folder.num_files(), 0);
}

}  // namespace
}  // namespace sluice::test

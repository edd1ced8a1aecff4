// `simulate --report` and `--compare-with`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/report_text.h"

namespace sluice::test {
namespace {

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
    const CommandResult result = run_sluice(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(between(read_file(path), "<title>", "</title>"), result.out);
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

}  // namespace
}  // namespace sluice::test

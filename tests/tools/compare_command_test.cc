// `sluice compare` on the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/scenario/setup.h"
#include "sim/engine/predict.h"
#include "tests/support/command.h"
#include "tests/support/golden.h"
#include "tests/support/kineto_files.h"
#include "tests/support/trace_check.h"
#include "traces/read/trace_read.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Compare : public ::testing::Test {
 protected:
  // A trace of 1F1B on 2 ranks, 2 microbatches; f = 1, b + w = 2.
  std::string trace(const std::string& name, const std::string& flags = "") {
    const CommandResult made = run_sluice(
        words("simulate --schedule 1f1b --pp 2 --microbatches 2 --uniform f=1,b=1,w=1 --trace-idle --trace " +
              folder_.path(name) + " " + flags));
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return folder_.path(name);
  }
  std::string scenario(const std::string& schedule = "1f1b", int microbatches = 2) {
    write_file_whole(folder_.path("scenario.json"),
                     json{{"schema", "sluice.scenario/1"},
                          {"parallelism", {{"pp", 2}}},
                          {"batch", {{"microbatches", microbatches}}},
                          {"schedule", schedule},
                          {"cost", {{"kind", "uniform"}, {"f", 1}, {"b", 1}, {"w", 1}, {"comm", 0.1}}}}
                         .dump());
    return folder_.path("scenario.json");
  }
  // Returns the scenario's run as PyTorch's profiler would record it.
  std::string kineto(const std::string& file, const test::KinetoStyle& style = {}) {
    const model::Setup setup(scenario_from_json(parse_json(read_file(file), file), file, folder_.path()));
    const Prediction prediction = predict(setup);
    std::filesystem::create_directory(folder_.path("traces"));
    test::write_kineto_files(folder_.path("traces"), rows_of(setup.graph(), prediction.timeline), style);
    return folder_.path("traces");
  }
  // Returns the output without the name of the folder.
  std::string plain(std::string text) const {
    for (std::size_t at = 0; (at = text.find(folder_.path())) != std::string::npos;) {
      text.replace(at, folder_.path().size(), "");
    }
    return text;
  }

  TemporaryFolder folder_;
};

// Rank 1 takes 1.25 times as long: F0 there 1..2.25, B0 2.25..4.75, F1 4.75..6, B1 6..8.5; B1 on rank 0 8.5..10.5.
TEST_F(Compare, TableOfTwoTraces) {
  const CommandResult result =
      run_sluice({"compare", trace("predicted.json.gz"), trace("measured.json", "--slow-rank 1=1.25"), "--tolerance",
                  "20%", "--top", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  test::expect_golden("tools/golden/compare_1f1b.txt", plain(result.out));
}

TEST_F(Compare, JsonMatchesTheTable) {
  const CommandResult result =
      run_sluice({"compare", trace("predicted.json.gz"), trace("measured.json", "--slow-rank 1=1.25"), "--json",
                  "--tolerance", "0.1"});
  EXPECT_EQ(result.exit_code, 5);
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("schema"), "sluice.comparison/1");
  EXPECT_EQ(document.at("makespan_s").at("first"), 9.0);
  EXPECT_EQ(document.at("makespan_s").at("second"), 10.5);
  EXPECT_DOUBLE_EQ(document.at("makespan_s").at("relative").get<double>(), 1.5 / 9);
  EXPECT_EQ(document.at("tolerance"), 0.1);
  EXPECT_EQ(document.at("within_tolerance"), false);
  // Two F of four are a quarter longer.
  const json& forward = document.at("kinds").at(0);
  EXPECT_EQ(forward.at("kind"), "F");
  EXPECT_EQ(forward.at("count").at("first"), 4);
  EXPECT_EQ(forward.at("total_s").at("second"), 4.5);
  EXPECT_DOUBLE_EQ(forward.at("mean_s").at("second").get<double>(), 4.5 / 4);
  EXPECT_DOUBLE_EQ(forward.at("median_error").get<double>(), 0.125);
  EXPECT_DOUBLE_EQ(forward.at("mean_error").get<double>(), 0.125);
  EXPECT_DOUBLE_EQ(forward.at("total_error").get<double>(), 0.125);
  // Rank 1 waits 1 s at the start and, in the first run, from 7 to 9 until the end.
  const json& rank = document.at("ranks").at(1);
  EXPECT_EQ(rank.at("busy_s").at("first"), 6.0);
  EXPECT_EQ(rank.at("busy_s").at("second"), 7.5);
  EXPECT_EQ(rank.at("idle").at("first").at("warm_up_s"), 1.0);
  EXPECT_EQ(rank.at("idle").at("first").at("drain_s"), 2.0);
  EXPECT_EQ(rank.at("peak_memory_bytes").at("first"), nullptr);
  EXPECT_EQ(document.at("differing").at(0).at("op"), "B(stage 1, mb 0)");
  EXPECT_EQ(document.at("differing").at(0).at("duration_s").at("second"), 2.5);
  // 5 % of 9 s are 0.45 s: B0 of rank 0 starts at 4.75 instead of 4, and so does F1 of rank 1.
  EXPECT_EQ(document.at("falls_behind").at("op"), "F(stage 1, mb 1)");
  EXPECT_EQ(document.at("falls_behind").at("start_s").at("second"), 4.75);
  EXPECT_EQ(document.at("unpaired").at("first").at("count"), 0);
  EXPECT_EQ(document.at("sources").at("first").at("path"), folder_.path("predicted.json.gz"));
}

TEST_F(Compare, ToleranceIsRelativeToTheFirstRun) {
  const std::string a = trace("a.json");
  const std::string b = trace("b.json", "--slow-rank 1=1.25");  // 10.5 to 9 s: 16.7 % and -14.3 %
  EXPECT_EQ(run_sluice({"compare", a, b, "--tolerance", "16%"}).exit_code, 5);
  EXPECT_EQ(run_sluice({"compare", a, b, "--tolerance", "17 %"}).exit_code, 0);
  EXPECT_EQ(run_sluice({"compare", b, a, "--tolerance", "0.15"}).exit_code, 0);
  EXPECT_EQ(run_sluice({"compare", b, a, "--tolerance", "0.14"}).exit_code, 5);
  EXPECT_EQ(run_sluice({"compare", a, a, "--tolerance", "0"}).exit_code, 0);
  EXPECT_EQ(run_sluice({"compare", a, b}).exit_code, 0);
  // A number above 1 may be meant as either.
  for (const auto& [wrong, hint] : {std::pair("ten", ""),
                                    {"-1%", ""},
                                    {"10 percent", ""},
                                    {"nan", ""},
                                    {"nan%", ""},
                                    {"inf%", ""},
                                    {"10", ": write 10% or 0.1"},
                                    {"1.5", ": write 1.5% or 0.015"},
                                    {"1000", ": write 1000%"}}) {
    const CommandResult result = run_sluice({"compare", a, b, std::string("--tolerance=") + wrong});
    EXPECT_EQ(result.exit_code, 2) << wrong;
    EXPECT_EQ(result.err,
              std::string("sluice: compare: --tolerance: expected a percentage such as 10% or a fraction such "
                          "as 0.1, got '") +
                  wrong + "'" + hint + "\n");
  }
}

TEST_F(Compare, ScenariosAreSimulated) {
  const std::string file = scenario();
  const std::string both = folder_.path("both.json.gz");
  const json document = test::json_of({"compare", file, kineto(file), "--json", "--trace", both});
  EXPECT_EQ(document.at("makespan_s").at("relative"), 0.0);
  EXPECT_EQ(document.at("differing"), json::array());
  EXPECT_EQ(document.at("sources").at("second").at("notes").size(), 3U);
  // PyTorch traces do not contain optimizer steps that it did not run.
  EXPECT_EQ(document.at("unpaired").at("first").at("count"), 2);
  EXPECT_EQ(document.at("unpaired").at("first").at("names").at(0), "optimizer(stage 0, step 0)");
  // One trace with both: 4 processes.
  const CommandResult unzipped = test::run_program("/bin/sh", {"-c", "gzip -dc " + both});
  EXPECT_THAT(test::check_trace(unzipped.out), IsEmpty());
  for (const char* name : {"first rank 0", "first rank 1", "second rank 0", "second rank 1"}) {
    EXPECT_THAT(unzipped.out, HasSubstr(std::string("\"") + name + "\""));
  }
}

TEST_F(Compare, AcceptsAListOfFilesAndAStep) {
  const std::string file = scenario();
  const std::string traces = kineto(file, {.iterations = 3, .first_step = 5});
  const CommandResult result =
      run_sluice({"compare", file, traces + "/rank1.json," + traces + "/rank0.json", "--step", "6"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("; ProfilerStep 6, 3 complete on all ranks; clocks aligned by "));
  EXPECT_EQ(plain(run_sluice({"compare", file, traces, "--step", "8"}).err),
            "sluice: traces/rank0.json and 1 more: --step: expected one of 5, 6, 7, got 8\n");
  EXPECT_THAT(run_sluice({"compare", trace("one.json"), traces, "--step", "6", "--by-kind"}).out,
              HasSubstr(" ranks; one iteration, --step does not apply\n"));
}

TEST_F(Compare, DifferentSchedulesAreRejectedUnlessByKind) {
  const std::string a = trace("a.json");
  const std::string more = scenario("zb-h1", 3);
  const CommandResult refused = run_sluice({"compare", a, more});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(
      plain(refused.err),
      "sluice: compare: expected two runs with the same stages, microbatches and slices: scenario.json has F(stage "
      "0, mb 2) on rank 0, a.json does not; --by-kind compares only kinds of ops\n");
  EXPECT_EQ(refused.out, "");
  const std::string both = folder_.path("both.json");
  const CommandResult by_kind = run_sluice({"compare", a, more, "--by-kind", "--json", "--trace", both});
  EXPECT_EQ(by_kind.exit_code, 0) << by_kind.err;
  EXPECT_THAT(test::check_trace(read_file(both)), IsEmpty());
  const json document = json::parse(by_kind.out);
  EXPECT_EQ(document.at("by_kind"), true);
  EXPECT_EQ(document.at("pairs"), 0);
  EXPECT_EQ(document.at("kinds").at(0).at("count").at("second"), 6);
  EXPECT_EQ(document.at("kinds").at(0).at("median_error"), nullptr);
  // The same ops in another order can be compared.
  EXPECT_EQ(run_sluice({"compare", a, scenario("gpipe")}).exit_code, 0);
}

TEST_F(Compare, AcceptsPipes) {
  const std::string a = trace("a.json.gz");
  const std::string file = scenario();
  for (const std::string& piped : {a, file}) {
    const CommandResult result = test::run_program(
        "/bin/sh", {"-c", "cat \"$1\" | \"$0\" compare \"$1\" /dev/stdin --tolerance 0", SLUICE_COMMAND, piped});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  const CommandResult both = test::run_program(
      "/bin/bash", {"-c", "\"$0\" compare <(gzip -dc \"$1\") <(cat \"$2\")", SLUICE_COMMAND, a, file});
  EXPECT_EQ(both.exit_code, 0) << both.err;
}

TEST_F(Compare, ErrorsAreOneLine) {
  const std::string a = trace("a.json");
  const auto error = [&](const std::vector<std::string>& arguments) {
    const CommandResult result = run_sluice(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    return plain(result.err);
  };
  EXPECT_EQ(error({"compare", a, folder_.path("none.json")}),
            "sluice: none.json: cannot open: No such file or directory\n");
  write_file_whole(folder_.path("cut.json"), read_file(a).substr(0, 3000));
  EXPECT_THAT(error({"compare", a, folder_.path("cut.json")}), HasSubstr("sluice: cut.json: line "));
  write_file_whole(folder_.path("other.json"), R"({"traceEvents":[{"ph":"X","name":"aten::mm","cat":"cpu_op"}]})");
  EXPECT_EQ(error({"compare", a, folder_.path("other.json")}),
            "sluice: other.json: /traceEvents: expected pipeline op ranges (such as PP:0F0, category "
            "gpu_user_annotation or user_annotation), got none; sluice analyze --names reads other names\n");
  write_file_whole(folder_.path("wrong.json"), R"({"scheme":"sluice.scenario/1"})");
  EXPECT_THAT(error({"compare", a, folder_.path("wrong.json")}), HasSubstr("sluice: wrong.json: "));
  EXPECT_THAT(error({"compare", a, a, "--tolerence", "1%"}), HasSubstr("did you mean '--tolerance'?"));
  EXPECT_THAT(error({"compare", a}), HasSubstr("second is required"));
  const int files = folder_.num_files();
  EXPECT_THAT(error({"compare", a, a, "--trace", folder_.path("none/both.json")}),
              HasSubstr("sluice: none/both.json: "));
  EXPECT_EQ(folder_.num_files(), files);
}

TEST_F(Compare, ExamplesPrecedeOptions) {
  const std::string help = test::output_of({"compare", "--help"});
  const std::size_t examples = help.find("Examples:");
  ASSERT_NE(examples, std::string::npos);
  EXPECT_LT(examples, help.find("Options:"));
}

TEST_F(Compare, WaitsForCoresOfMeasuredRunsAreNamed) {
  const std::string a = trace("a.json");
  std::string text = read_file(a);
  const std::string scenario = "\"scenario\":";
  ASSERT_NE(text.find(scenario), std::string::npos);
  text.insert(text.find(scenario), "\"waited_for_cores\":true,");
  write_file_whole(folder_.path("waited.json"), text);
  const std::string result = test::output_of({"compare", a, folder_.path("waited.json"), "--tolerance", "1%"});
  EXPECT_THAT(result, HasSubstr("measured times include waits for cores; measure again on an idle machine"));
  EXPECT_EQ(run_sluice({"compare", a, a}).out.find("waits for cores"), std::string::npos);
}

// Two workers on one core.
TEST_F(Compare, RunsWithMoreWorkersThanCoresAllowNoVerdict) {
  cpu_set_t all, first;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  int core = 0;
  while (!CPU_ISSET(core, &all)) ++core;
  CPU_ZERO(&first);
  CPU_SET(core, &first);
  const std::string file = folder_.path("run.json");
  ASSERT_EQ(::sched_setaffinity(0, sizeof first, &first), 0);
  const CommandResult run = run_sluice(
      words("run --num-layers 2 --hidden-size 32 --num-attention-heads 1 --vocab-size 64 --max-position-embeddings 64 "
            "--seq-length 32 --pp 2 --microbatches 2 --steps 1 --trace " +
            file));
  ::sched_setaffinity(0, sizeof all, &all);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const CommandResult result = run_sluice({"compare", file, file, "--tolerance", "10%"});
  EXPECT_EQ(result.exit_code, 10);
  EXPECT_THAT(result.out, HasSubstr("measured with more workers than cores, which wait for each other"));
  EXPECT_THAT(result.out, HasSubstr("no verdict: a run was measured with more workers than cores"));
  const CommandResult document = run_sluice({"compare", file, file, "--tolerance", "10%", "--json"});
  EXPECT_EQ(document.exit_code, 10);
  EXPECT_TRUE(json::parse(document.out).at("within_tolerance").is_null());
  EXPECT_EQ(run_sluice({"compare", file, file}).exit_code, 0);  // asks for no verdict
}

}  // namespace
}  // namespace sluice::test

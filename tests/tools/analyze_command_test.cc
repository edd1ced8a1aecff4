// `sluice analyze` on the command line.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/svg_elements.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Analyze : public ::testing::Test {
 protected:
  static std::string sample(const std::string& name) {
    return std::string(SLUICE_SOURCE_DIR) + "/tests/traces/measured/samples/" + name;
  }
  CommandResult run(const std::string& flags) { return run_sluice(words("analyze " + flags)); }
  json document(const std::string& flags) {
    const CommandResult result = run(flags + " --json");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }

  TemporaryFolder folder_;
};

TEST_F(Analyze, PrintsSlowdownAndCauses) {
  const CommandResult result = run(sample("bytedance/timeline-ST.json.gz") + " --gpus 8");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("ByteDance timeline: 32 steps (number 23 to 1048), 2 replicas of 4 ranks, 4 microbatches"),
            HasSubstr("schedule: 1f1b\n"), HasSubstr("S, all ops"), HasSubstr("1.1787     1.1796"),
            HasSubstr("stage             rank 3: passes take longer than on other ranks (forward 2.07")));
  const CommandResult primus = run(sample("primus_pp8"));
  EXPECT_EQ(primus.exit_code, 0) << primus.err;
  EXPECT_THAT(primus.out,
              AllOf(HasSubstr("Primus pipeline log: 3 steps (number 2 to 4), 1 replica of 8 ranks"),
                    HasSubstr("note: no sends and receives were recorded"), HasSubstr("a warm-up, left out")));
  EXPECT_EQ(document(sample("primus_pp8") + " --all-steps")["timeline"]["steps"].size(), 4U);
}

TEST_F(Analyze, WritesOneDocument) {
  const json document = this->document(sample("bytedance/timeline-ST.json.gz") + " --gpus 16");
  EXPECT_EQ(document["schema"], "sluice.analysis/1");
  EXPECT_EQ(document["schedule"]["family"], "1f1b");
  EXPECT_EQ(document["timeline"]["ops"], 6784);
  EXPECT_NEAR(document["slowdown"]["early_receives"]["S"].get<double>(), 1.1787, 1e-4);
  EXPECT_EQ(document["slowdown"]["early_receives"]["worst_workers"][0],
            (json{{"replica", 1}, {"rank", 3}, {"tensor_rank", 0}}));
  const json& cause = document["causes"][0];
  EXPECT_EQ(cause["kind"], "stage");
  EXPECT_EQ(cause["rank"], 3);
  // 16 GPUs for a day, times the saved fraction of a step.
  EXPECT_NEAR(cause["gpu_hours_per_day"].get<double>(),
              16 * 24 * cause["saved_s"].get<double>() / document["mean_step"]["measured_s"].get<double>(), 1e-9);
}

// The measured times as a scenario: the schedule that was measured is predicted, others can be.
TEST_F(Analyze, WritesAScenarioAndHeatMaps) {
  const std::string scenario = folder_.path("measured.json");
  const std::string svg = folder_.path("heat.svg");
  const json analysis =
      document(sample("bytedance/timeline-ST.json.gz") + " --scenario " + scenario + " --heat-maps " + svg);
  const auto simulated = [&](const std::string& flags) {
    return test::json_of(words("simulate " + scenario + " --json " + flags))["makespan_s"].get<double>();
  };
  const double own = simulated("");
  const double measured = analysis["mean_step"]["no_delays_s"].get<double>();
  EXPECT_NEAR(own, measured, 0.02 * measured);
  EXPECT_GT(simulated("--schedule gpipe"), own * 0.99);
  EXPECT_LT(simulated("--schedule interleaved-1f1b --vpp 2"), own);
  // Two maps: 4 ranks by 2 replicas, 8 workers by 32 steps, in front of the background; and the bar of 21 colours.
  const std::string picture = model::read_file(svg);
  EXPECT_GE(svg_elements(picture).size(), 8U + 8 * 32 + 21);
  EXPECT_THAT(picture, AllOf(HasSubstr(">\u2264 0.75<"), HasSubstr(">\u2265 1.25<"), HasSubstr(">replica<"),
                             HasSubstr(">step<")));
}

TEST_F(Analyze, RecognisesSimulatedSchedules) {
  const std::pair<std::string, std::string> kSchedules[] = {{"1f1b", ""},       {"gpipe", ""},
                                                            {"eager-1f1b", ""}, {"interleaved-1f1b", "--vpp 2"},
                                                            {"zb-h1", ""},      {"zb-v", "--vpp 2"}};
  for (const auto& [name, flags] : kSchedules) {
    const std::string trace = folder_.path(name + ".json.gz");
    const CommandResult made =
        run_sluice(words("simulate --schedule " + name + " --pp 4 --microbatches 8 --uniform f=1,b=1,w=1,comm=0.1 " +
                         flags + " --trace " + trace));
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const json found = document(trace);
    EXPECT_EQ(found["schedule"]["family"], name);
    const double measured = found["mean_step"]["measured_s"].get<double>();
    EXPECT_NEAR(found["mean_step"]["no_delays_s"].get<double>(), measured, 1e-6 * measured) << name;
  }
}

// From interleaved stages to whole ones and back: neighbours are added, wholes divided.
TEST_F(Analyze, PredictsSchedulesWithOtherNumbersOfStages) {
  const std::string trace = folder_.path("interleaved.json.gz");
  const std::string scenario = folder_.path("interleaved.json");
  const auto makespan = [&](const std::string& flags) {
    return test::json_of(words("simulate " + flags + " --json"))["makespan_s"].get<double>();
  };
  const std::string base = "--pp 4 --microbatches 8 --uniform f=1,b=1,w=1 ";
  static_cast<void>(makespan(base + "--schedule interleaved-1f1b --vpp 2 --trace " + trace));
  document(trace + " --scenario " + scenario);
  for (const std::string schedule :
       {"1f1b --vpp 1", "zb-h1 --vpp 1", "interleaved-1f1b --vpp 2", "interleaved-1f1b --vpp 4"}) {
    EXPECT_NEAR(makespan(scenario + " --schedule " + schedule), makespan(base + "--schedule " + schedule), 1e-6)
        << schedule;
  }
  EXPECT_THAT(run_sluice(words("simulate " + scenario + " --pp 3 --vpp 1 --schedule 1f1b")).err,
              HasSubstr("/cost/stages: expected 3, one per stage, or a divisor or multiple of it, got 8"));
}

// A drawn step is the timeline that was read: compared op by op with the trace of the simulation.
TEST_F(Analyze, DrawsTheStepThatItRead) {
  for (const std::string schedule :
       {"1f1b", "gpipe", "interleaved-1f1b --vpp 2", "zb-h1", "zb-v --vpp 2", "v-half --vpp 2"}) {
    const std::string trace = folder_.path("simulated.json.gz");
    const std::string drawn = folder_.path("drawn.json.gz");
    const CommandResult made =
        run_sluice(words("simulate --pp 4 --microbatches 8 --uniform f=1,b=1,w=1,comm=0.1 --trace " + trace +
                         " --schedule " + schedule));
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const CommandResult analysed = run(trace + " --trace " + drawn);
    ASSERT_EQ(analysed.exit_code, 0) << analysed.err;
    EXPECT_THAT(analysed.out, ::testing::Not(HasSubstr("was moved"))) << schedule;
    const CommandResult compared = run_sluice(words("compare " + trace + " " + drawn + " --json --tolerance 1e-6"));
    EXPECT_EQ(compared.exit_code, 0) << schedule << compared.err << compared.out;
    const json comparison = json::parse(compared.out);
    for (const json& kind : comparison.at("kinds")) {
      EXPECT_EQ(kind["count"]["first"], kind["count"]["second"]) << schedule << kind;
    }
  }
}

TEST_F(Analyze, WritesPicturesOfAStep) {
  const std::string report = folder_.path("step.html");
  const std::string svg = folder_.path("step.svg");
  const std::string timeline = sample("bytedance/timeline-ST.json.gz");
  const CommandResult result = run(timeline + " --report " + report + " --svg " + svg + " --step 259 --replica 1");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string page = model::read_file(report);
  EXPECT_THAT(page, AllOf(HasSubstr("1f1b, 4 ranks, 4 microbatches, measured, step 259, replica 1"),
                          HasSubstr("--replica 1"), HasSubstr("mean times"), HasSubstr("idle fraction of all rank")));
  const std::string picture = model::read_file(svg);
  EXPECT_THAT(picture, AllOf(HasSubstr("measured, step 259, replica 1"), HasSubstr("1f1b, 4 ranks, 4 microbatches<")));
  const auto refused = [&](const std::string& flags, const std::string& what) {
    const CommandResult wrong = run(timeline + flags);
    EXPECT_EQ(wrong.exit_code, 2) << flags;
    EXPECT_THAT(wrong.err, HasSubstr(what)) << flags;
  };
  refused(" --svg " + svg + " --step 5", "--step 5: expected one of the 32 steps read, from 23 to 1048");
  refused(" --svg " + svg + " --replica 2", "--replica 2: expected 0 to 1");
  refused(" --layers 3", "--layers 3: expected at least one for each of 4 stages");
  refused(" --step 259", "--step needs --report, --svg or --trace");
  refused(" --replica 1", "--replica needs --report, --svg or --trace");
}

// A log of 11 iterations of pp 4, dp 2, tp 2, with `option` of --timing-log-option: pipeline rank 3 takes 1.2 times the
// compute of the others, rank 5 1.1 times that, and iteration 8 waits 0.3 s for receives.
std::string timer_log(const std::string& option, const std::string& prefix = "") {
  constexpr int kRanks = 16;
  std::vector<std::string> lines = {"  world_size ............... 16", "  pipeline_model_parallel_size ............ 4"};
  for (int i = 1; i <= 11; ++i) {
    lines.push_back(fmt::format(" iteration {}/11 | elapsed time per iteration (ms): {} | global batch size: 16 |", i,
                                i == 8 ? 1300 : 1000));
    lines.push_back("times across ranks (ms):");
    std::vector<double> compute;
    for (int rank = 0; rank < kRanks; ++rank) {
      compute.push_back(200 * (rank / 4 == 3 ? 1.2 : 1) * (rank == 5 ? 1.1 : 1) * (1 + 1e-3 * (rank % 3)));
    }
    for (const auto& [name, scale, more] : {std::tuple("forward-compute", 1.0, 0.0),
                                            {"backward-compute", 2.0, 0.0},
                                            {"forward-recv", 0.0, i == 8 ? 320.0 : 20.0},
                                            {"forward-backward", 0.0, 900.0}}) {
      if (option == "all") {
        lines.push_back(fmt::format("  {}:", name));
        for (int rank = 0; rank < kRanks; ++rank) {
          lines.push_back(fmt::format("     rank {:2d}: {:.2f}", rank, scale * compute[rank] + more));
        }
      } else {
        const auto [low, high] = std::minmax_element(compute.begin(), compute.end());
        lines.push_back(fmt::format("    {:.<40}: ({:.2f}, {:.2f})", name + std::string(" "), scale * *low + more,
                                    scale * *high + more));
      }
    }
  }
  std::string out;
  for (const std::string& line : lines) out += prefix + line + "\n";
  return out;
}

TEST_F(Analyze, NamesSlowRanksOfMegatronLogs) {
  const std::string log = folder_.path("train.log");
  for (const std::string prefix : {"", "[default7]:"}) {
    model::write_file_whole(log, timer_log("all", prefix));
    const json causes = document(log)["causes"];
    ASSERT_EQ(causes.size(), 3U) << causes;
    EXPECT_EQ(causes[0]["kind"], "stage");
    EXPECT_EQ(causes[0]["pipeline_rank"], 3);
    EXPECT_NEAR(causes[0]["excess_s"].get<double>(), 0.12, 0.002);
    EXPECT_EQ(causes[1]["kind"], "worker");
    EXPECT_EQ(causes[1]["rank"], 5);
    EXPECT_NEAR(causes[1]["excess_s"].get<double>(), 0.06, 0.002);
    EXPECT_EQ(causes[2]["iteration"], 8);
    EXPECT_NEAR(causes[2]["excess_s"].get<double>(), 0.3 / 11, 1e-9);
    EXPECT_THAT(causes[2]["what"].get<std::string>(), HasSubstr("forward-recv rose most, by 0.300 s"));
  }
  const json idle = document(log)["idle_fraction"];
  ASSERT_EQ(idle.size(), 4U);
  EXPECT_NEAR(idle[0].get<double>(), 1 - 600.0 / 900, 0.002);
  EXPECT_NEAR(idle[3].get<double>(), 1 - 720.0 / 900, 0.002);

  model::write_file_whole(log, timer_log("minmax"));
  const json extremes = document(log);
  EXPECT_EQ(extremes["causes"].size(), 1U);
  EXPECT_NEAR(extremes["timers"][0]["max_s"].get<double>(), 0.24, 0.002);
  EXPECT_THAT(run(log).out, HasSubstr("note: slow ranks can be named with --timing-log-option all"));
  EXPECT_THAT(run(log + " --svg x.svg").err, HasSubstr("train.log: --report, --svg and --trace need a timeline"));
  model::write_file_whole(log, "iteration 1/1 | elapsed time per iteration (ms): 10 |\n");
  EXPECT_THAT(run(log).err, HasSubstr("train.log: expected timers after the iterations, got none"));
}

// Recomputation is part of its backward, not a delay.
TEST_F(Analyze, CountsRecomputation) {
  const std::string trace = folder_.path("recompute.json.gz");
  const CommandResult made =
      run_sluice(words("simulate --model gpt2 --cluster dgx-a100-80gb --pp 4 --microbatches 8 --recompute full "
                       "--seq-length 1024 --trace " +
                       trace));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const json found = document(trace);
  const double measured = found["mean_step"]["measured_s"].get<double>();
  EXPECT_NEAR(found["mean_step"]["replayed_s"].get<double>(), measured, 0.01 * measured);
  EXPECT_LT(found["slowdown"]["ordered_receives"]["span_absolute_error"].get<double>(), 0.02);
}

TEST_F(Analyze, NamesWhatIsWrong) {
  const auto refused = [&](const std::string& flags, const std::string& what) {
    const CommandResult result = run(flags);
    EXPECT_EQ(result.exit_code, 2) << flags;
    EXPECT_THAT(result.err, HasSubstr(what)) << flags;
  };
  refused("missing.json", "missing.json");
  refused(sample("primus_pp8/pp_rank_0.json"), "pp_rank_1.json is missing");
  refused(sample("bytedance/timeline-ST.json.gz") + " --top 0", "--top");
  refused(sample("bytedance/timeline-ST.json.gz") + " --names " + sample("bytedance/ms-ST.json"), "/schema");
  model::write_file_whole(folder_.path("text.json"), "[{\"ph\": ");
  refused(folder_.path("text.json"), "text.json");
  model::write_file_whole(folder_.path("object.json"), "{}");
  refused(folder_.path("object.json"), "expected a timeline");
}

// The first lines are the causes, with remedies whose gain was replayed; JSON has the same.
TEST_F(Analyze, OpensWithTheAnswer) {
  const std::string st = sample("bytedance/timeline-ST.json.gz");
  const CommandResult result = run(st + " --layers 32");
  const std::string head = result.out.substr(0, result.out.find("\n\n"));
  EXPECT_LE(std::count(head.begin(), head.end(), '\n'), 5);
  EXPECT_THAT(head,
              AllOf(HasSubstr("why a step takes 2.2143 s"), HasSubstr("0.5258 s  rank 3: passes take longer"),
                    HasSubstr("; move 4 layers from rank 3 to ranks 0 (2 layers), 1 (1 layer), 2 (1 layer): -14.2 %")));
  const json document = this->document(st + " --layers 32");
  const json& first = document["answer"][0];
  EXPECT_EQ(first["kind"], "stage");
  EXPECT_EQ(first["s_per_step"], document["causes"][0]["saved_s"]);
  EXPECT_NEAR(first["gain"].get<double>(), 0.142, 0.001);
  EXPECT_NEAR(first["gain_s"].get<double>() / document["mean_step"]["measured_s"].get<double>(),
              first["gain"].get<double>(), 1e-12);
}

// The gain of moved layers is that of the pipeline in which they were moved: stages of 8, 8, 8 and 12 layers against 9
// each, simulated, written as traces and analyzed.
TEST_F(Analyze, GainsWhatMovedLayersGain) {
  const auto trace_of = [&](const std::string& name, const std::vector<double>& stages) {
    json scenario = {{"schema", "sluice.scenario/1"},
                     {"parallelism", {{"pp", 4}}},
                     {"batch", {{"microbatches", 8}}},
                     {"schedule", {{"name", "1f1b"}}},
                     {"cost", {{"kind", "uniform"}, {"stages", json::array()}, {"comm", 0.0}}}};
    for (const double layers : stages) {
      scenario["cost"]["stages"].push_back({{"f", layers / 100}, {"b", layers / 100}, {"w", layers / 100}});
    }
    model::write_file_whole(folder_.path(name), scenario.dump());
    const CommandResult made =
        run_sluice(words("simulate " + folder_.path(name) + " --json --trace " + folder_.path("trace-" + name)));
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return json::parse(made.out)["makespan_s"].get<double>();
  };
  const double uneven = trace_of("uneven.json", {8, 8, 8, 12});
  const double even = trace_of("even.json", {9, 9, 9, 9});
  const json found = document(folder_.path("trace-uneven.json") + " --layers 32")["answer"][0];
  EXPECT_EQ(found["remedy"], "move 3 layers from rank 3 to ranks 0 (1 layer), 1 (1 layer), 2 (1 layer)");
  EXPECT_NEAR(found["gain_s"].get<double>(), uneven - even, 1e-6);
}

// Traces of PyTorch's profiler without ranges of a pipeline: two ranks, of which one computes longer.
TEST_F(Analyze, ReadsKernelsOfPyTorch) {
  const auto write = [&](int rank, int compute) {
    json events = json::array();
    for (int step = 0; step < 3; ++step) {
      const auto add = [&](const char* category, const std::string& name, int stream, int start, int duration) {
        events.push_back({{"ph", "X"},
                          {"cat", category},
                          {"name", name},
                          {"pid", 0},
                          {"tid", stream},
                          {"ts", 1000 * step + start},
                          {"dur", duration}});
      };
      add("user_annotation", "ProfilerStep#" + std::to_string(step), 1, 0, 1000);
      add("kernel", "a_gemm_b", 7, 0, compute);
      add("kernel", "gelu", 7, compute, compute / 40);
      add("kernel", "ncclDevKernel_AllReduce_x", 20, compute, 800 - compute);
    }
    model::write_file_whole(folder_.path("rank" + std::to_string(rank) + ".json"),
                            json{{"distributedInfo", {{"rank", rank}}}, {"traceEvents", events}}.dump());
  };
  write(0, 400);
  write(1, 600);
  const json document = this->document(folder_.path());
  EXPECT_EQ(document["schema"], "sluice.profile/1");
  const json& rank = document["ranks"][0];
  EXPECT_EQ(rank["steps"].size(), 3U);
  // 410 us of compute, of which 10 beside the all-reduce from 400 to 800 us; then idle until 1,000.
  EXPECT_NEAR(rank["steps"][0]["compute_s"].get<double>(), 410e-6, 1e-12);
  EXPECT_NEAR(rank["steps"][0]["hidden_communication_s"].get<double>(), 10e-6, 1e-12);
  EXPECT_NEAR(rank["steps"][0]["exposed_communication_s"].get<double>(), 390e-6, 1e-12);
  EXPECT_NEAR(rank["steps"][0]["idle_s"].get<double>(), 200e-6, 1e-12);
  EXPECT_NEAR(rank["calls"]["waits_s"].get<double>(), 200e-6, 1e-12);
  EXPECT_NEAR(document["ranks"][1]["calls"]["others_wait_s"].get<double>(), 200e-6, 1e-12);
  EXPECT_EQ(document["calls"]["matched"], (json{{"all-reduce", 3}}));
  EXPECT_EQ(document["kernels"][0]["name"], "a_gemm_b");
  EXPECT_EQ(document["kernels"][0]["count"], 6);
  EXPECT_NEAR(document["kernels"][0]["total_s"].get<double>(), 3000e-6, 1e-12);
  // Without the 200 us of rank 1, the step of 800 us takes 600.
  const json& answer = document["answer"];
  const auto device =
      std::find_if(answer.begin(), answer.end(), [](const json& line) { return line["kind"] == "device"; });
  ASSERT_NE(device, answer.end());
  EXPECT_NEAR((*device)["gain"].get<double>(), 0.25, 1e-9);
  EXPECT_THAT(run(folder_.path()).out, AllOf(HasSubstr("rank 1 computes 1.50 times as long as the median rank"),
                                             HasSubstr("slowest: rank 1, for which the others wait 0.200 ms")));
  const CommandResult refused = run(folder_.path() + " --heat-maps x.svg");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--heat-maps needs a timeline of a pipeline; these traces have kernels only"));
}

TEST_F(Analyze, ComparesAStepWithAPrediction) {
  const std::string scenario = folder_.path("measured.json");
  document(sample("bytedance/timeline-ST.json.gz") + " --scenario " + scenario);
  const auto compared = [&](const std::string& flags) {
    return run_sluice(
        words("compare " + scenario + " " + sample("bytedance/timeline-ST.json.gz") + " --json " + flags));
  };
  const CommandResult result = compared("--step 259");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_THAT(document["sources"]["second"]["notes"].dump(), HasSubstr("step 259 of ByteDance timeline"));
  EXPECT_LT(std::abs(document["span_s"]["first"].get<double>() / document["span_s"]["second"].get<double>() - 1), 0.02);
  EXPECT_THAT(compared("--step 5").err, HasSubstr("step 5: expected one of 32 steps from 23 to 1048"));
}

}  // namespace
}  // namespace sluice::test

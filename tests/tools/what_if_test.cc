// Causes of idle time, stragglers, noise, sweeps and schedule checks on the command line.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/trace_check.h"
#include "tools/simulate/sweep.h"

namespace sluice::test {
namespace {

using nlohmann::json;

// The results, without the scenario.
json answer(const std::string& flags) {
  const CommandResult result = run_sluice(words("simulate --json " + flags));
  EXPECT_EQ(result.exit_code, 0) << flags << "\n" << result.err;
  if (result.exit_code != 0) return json::object();
  json document = json::parse(result.out);
  document.erase("scenario");  // which sweeps do not have
  return document;
}

std::string error_of(const std::string& flags) {
  const CommandResult result = run_sluice(words("simulate " + flags));
  EXPECT_EQ(result.exit_code, 2) << flags;
  EXPECT_EQ(result.out, "");
  return result.err;
}

TEST(Causes, AddUpToTheIdleTimeOfEachRank) {
  const json result = answer("--schedule zb-h1 --pp 4 --microbatches 8 --uniform f=1,b=1.5,w=0.5,comm=0.1");
  double all = 0;
  for (const json& rank : result.at("ranks")) {
    double idle = 0;
    for (const auto& [cause, seconds] : rank.at("idle").items()) idle += seconds.get<double>();
    EXPECT_NEAR(idle, result.at("makespan_s").get<double>() - rank.at("busy_s").get<double>(), 1e-9);
    all += idle;
  }
  double total = 0;
  for (const auto& [cause, seconds] : result.at("idle").items()) total += seconds.get<double>();
  EXPECT_NEAR(total, all, 1e-9);
  const json& path = result.at("critical_path");
  EXPECT_NEAR(path.at("compute_s").get<double>() + path.at("transfer_s").get<double>() +
                  path.at("latency_s").get<double>() + path.at("collective_s").get<double>() +
                  path.at("optimizer_s").get<double>(),
              result.at("makespan_s").get<double>(), 1e-9);
  EXPECT_EQ(path.at("ops").front().at("op"), "F(stage 0, mb 0)");
}

TEST(Causes, AppearInTheTraceAndTheOpTable) {
  const TemporaryFolder folder;
  const CommandResult result =
      run_sluice({"simulate", "--pp", "2", "--microbatches", "2", "--uniform", "f=1,b=1,w=1,comm=0.5", "--trace",
                  folder.path("t.json"), "--trace-idle", "--ops", folder.path("ops.csv")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string trace = read_file(folder.path("t.json"));
  EXPECT_EQ(test::check_trace(trace), std::vector<std::string>{});
  EXPECT_NE(trace.find("idle warm_up"), std::string::npos);
  EXPECT_NE(trace.find("idle link"), std::string::npos);
  const std::string ops = read_file(folder.path("ops.csv"));
  // 2 ranks x 2 microbatches x (F, B), a transfer for each but the ends (4), 2 optimizer steps; and the head.
  EXPECT_EQ(std::count(ops.begin(), ops.end(), '\n'), 8 + 4 + 2 + 1);
  // The first F of rank 1 waits 0.5 s for the output of rank 0, which took 1 s; no op on this path has slack.
  EXPECT_NE(ops.find("1,,F,1,0,0,0,1.500000000,2.500000000,0.000000000,1,,\"send F(stage 0, mb 0) 0->1\",rank 0\n"),
            std::string::npos)
      << ops;
}

TEST(Stragglers, SlowTheWholePipeline) {
  // 1f1b p = 2, m = 4: rank 1 at half speed works without idle time for 4 (2 + 4) between an F and a B of rank 0: 27.
  EXPECT_EQ(answer("--pp 2 --microbatches 4 --uniform f=1,b=1,w=1 --slow-rank 1=2").at("makespan_s"), 27.0);
  // gpipe p = 2, m = 1 with three times the hop of 0.5: 1 + 1.5 + 1 + 2 + 1.5 + 2.
  EXPECT_EQ(answer("--schedule gpipe --pp 2 --microbatches 1 --uniform f=1,b=1,w=1,comm=0.5 --slow-link 0-1=3")
                .at("makespan_s"),
            9.0);
  // A schedule without a flush: the slow rank sets the period, 8 (2 + 4) for 8 microbatches.
  EXPECT_EQ(
      answer("--schedule pipedream-2bw --pp 2 --microbatches 8 --uniform f=1,b=1,w=1 --slow-rank 1=2").at("period_s"),
      48.0);
  EXPECT_NE(error_of("--pp 2 --microbatches 4 --slow-rank 1").find("--slow-rank: expected a rank and a factor"),
            std::string::npos);
  EXPECT_NE(
      error_of("--pp 2 --microbatches 4 --slow-link 0-1-2=2").find("--slow-link: expected two ranks and a factor"),
      std::string::npos);
  EXPECT_NE(error_of("--pp 2 --microbatches 4 --slow-rank 1=0").find("--slow-rank: expected a factor from"),
            std::string::npos);
  EXPECT_NE(error_of("--pp 2 --microbatches 4 --slow-rank 2=2").find("--slow-rank: expected a rank from 0 to 1, got 2"),
            std::string::npos);
}

// 1f1b, p = 2, m = 2, rank 1 at half speed. Rank 1: F0 1-3, B0 3-7, F1 7-9, B1 9-13; rank 0: F0 0-1, F1 1-2, B0 7-9,
// B1 13-15. Rank 0 waits 5 + 4 s for ops that rank 1 starts as soon as it can, and rank 1 waits 1 s for F0. The last 2
// s of rank 1 are for B1 of rank 0, which rank 1 has delayed.
TEST(Stragglers, AreNamedAsTheRootOfIdleTime) {
  const std::string flags = "--pp 2 --microbatches 2 --uniform f=1,b=1,w=1 --slow-rank 1=2";
  EXPECT_EQ(answer(flags).at("idle_roots"),
            json::parse(R"([{"rank": 1, "idle_s": 11.0}, {"rank": 0, "idle_s": 1.0}])"));
  const std::string text = run_sluice(words("simulate " + flags)).out;
  EXPECT_NE(text.find("\n  waits for  rank 1 91.7 %   rank 0 8.3 %\n"), std::string::npos) << text;
  // The path is F0@0, the four ops of rank 1, B1@0. Without the straggler: (2 + 1) (1 + 2) s.
  EXPECT_NE(
      text.find("\n  rank 1 carries 4 of 6 ops of the critical path; without its slowdown the iteration takes 9 s\n"),
      std::string::npos)
      << text;
}

// In a longer run, a straggler is the root of most idle time although other ranks compute meanwhile.
TEST(Stragglers, AreTheRootOfMostIdleTimeInALongRun) {
  for (const char* slow : {"--slow-rank 5=1.2", "--slow-rank 2=1.2"}) {
    const json result = answer(std::string("--pp 8 --microbatches 64 ") + slow);
    double all = 0;
    for (const json& root : result.at("idle_roots")) all += root.at("idle_s").get<double>();
    EXPECT_EQ(result.at("idle_roots").front().at("rank"), slow[12] - '0');
    EXPECT_GT(result.at("idle_roots").front().at("idle_s").get<double>(), 0.5 * all) << slow;
  }
}

// The root of the wait of rank 0 is two ranks away: rank 1 only passes on what rank 2 delays.
TEST(Stragglers, AreFoundBehindTheNearestNeighbor) {
  const json result = answer("--pp 3 --microbatches 6 --uniform f=1,b=1,w=1 --slow-rank 2=3");
  EXPECT_EQ(result.at("idle_roots").front().at("rank"), 2);
  const TemporaryFolder folder;
  ASSERT_EQ(
      run_sluice(words("simulate --pp 3 --microbatches 6 --slow-rank 2=3 --ops " + folder.path("ops.csv"))).exit_code,
      0);
  EXPECT_NE(read_file(folder.path("ops.csv")).find(",\"send B(stage 1, mb 2) 1->0\",rank 2\n"), std::string::npos);
}

// gpipe, p = 2, m = 1: F 1 s, B 2 s, hop 0.5 s, or 5 s: 6 s of ops and two hops.
TEST(Stragglers, LinksAreNamedToo) {
  const std::string flags =
      "--schedule gpipe --pp 2 --microbatches 1 --uniform f=1,b=1,w=1,comm=0.5 --slow-link 0-1=10";
  // Rank 0 waits from 1 to 9 s for the B of rank 1, which starts immediately after its F, and then 5 s for the link.
  // Rank 1 waits 1 s for the F of rank 0 and 5 s for the link, and from 9 to 16 s for the B of rank 0, most of whose
  // wait was for rank 1.
  EXPECT_EQ(
      answer(flags).at("idle_roots"),
      json::parse(R"([{"rank": 1, "idle_s": 15.0}, {"link": [0, 1], "idle_s": 10.0}, {"rank": 0, "idle_s": 1.0}])"));
  const std::string text = run_sluice(words("simulate " + flags)).out;
  EXPECT_NE(
      text.find("\n  link 0-1 takes 62.5 % of the critical path, in 2 transfers; without its slowdown the iteration "
                "takes 7 s\n"),
      std::string::npos)
      << text;
  // Without a straggler and without a bottleneck, nothing is named.
  EXPECT_EQ(run_sluice(words("simulate --pp 4 --microbatches 8")).out.find(" carries "), std::string::npos);
}

const std::string kLlamaCase = "--model llama3-8b --cluster dgx-h100 --gbs 64 --seq-length 4096 ";

TEST(Gpus, TheFirstLineSaysHowManyAreUsed) {
  const auto first_line = [](const std::string& flags) {
    const std::string out = run_sluice(words("simulate " + kLlamaCase + flags)).out;
    return out.substr(0, out.find('\n'));
  };
  EXPECT_NE(first_line("--pp 4 --tp 2 --nodes 64").find("; 8 of 512 GPUs, 64 x "), std::string::npos);
  EXPECT_NE(first_line("--pp 4 --tp 2").find("; 8 GPUs, 1 x "), std::string::npos);
  const json result = answer(kLlamaCase + "--pp 4 --tp 2 --nodes 64");
  EXPECT_EQ(result.at("gpus"), (json{{"used", 8}, {"cluster", 512}}));
  EXPECT_DOUBLE_EQ(result.at("throughput").at("tokens_per_s_per_device").get<double>(),
                   result.at("throughput").at("tokens_per_s").get<double>() / 8);
}

TEST(Gpus, SetTheNumberOfReplicas) {
  const json by_dp = answer(kLlamaCase + "--pp 2 --tp 2 --dp 4");
  EXPECT_EQ(answer(kLlamaCase + "--pp 2 --tp 2 --gpus 16"), by_dp);
  const TemporaryFolder folder;
  write_file_whole(folder.path("s.json"), R"({"model": "llama3-8b", "cluster": "dgx-h100",
      "parallelism": {"pp": 2, "tp": 2, "dp": 2}, "batch": {"global_batch": 64, "sequence_length": 4096}})");
  EXPECT_EQ(answer(folder.path("s.json") + " --gpus 16"), by_dp);  // replaces dp
  EXPECT_EQ(error_of(kLlamaCase + "--pp 2 --tp 2 --gpus 18"),
            "sluice: --gpus: expected a multiple of tp x cp x pp = 2 x 1 x 2, got 18\n");
  EXPECT_EQ(error_of(kLlamaCase + "--pp 2 --gpus 8 --dp 4"), "sluice: --gpus: specify dp or gpus, not both, got 8\n");
  EXPECT_EQ(error_of(kLlamaCase + "--gpus 8"), "sluice: --gpus: requires pp, got 8\n");
}

TEST(Gpus, AppearInSweepsWhereTheirNumberVaries) {
  const std::string sweep = "simulate " + kLlamaCase + "--pp 2 --sweep tp=1,2";
  const std::string varies = run_sluice(words(sweep)).out;
  EXPECT_NE(varies.find("GPUs"), std::string::npos);
  EXPECT_NE(varies.find("tokens/s/GPU"), std::string::npos);
  const std::string printed = run_sluice(words(sweep + " --gpus 8")).out;
  const std::string same = printed.substr(0, printed.find("\n\n"));  // the table
  EXPECT_EQ(same.find("GPU"), std::string::npos) << same;
  const json points = json::parse(run_sluice(words(sweep + " --gpus 8 --json")).out).at("points");
  EXPECT_EQ(points.at(0).at("gpus"), 8);
  EXPECT_EQ(points.at(1).at("gpus"), 8);
}

// A node file has as many nodes as the run needs, like a node of the catalogue; a cluster file has its own.
TEST(Gpus, NodeFilesGrow) {
  const TemporaryFolder folder;
  write_file_whole(folder.path("node.json"), R"({"schema": "sluice.node/1", "name": "ours", "gpu": "a100-80gb",
      "gpus": 4, "intra_node": "nvlink3", "inter_node": "infiniband-hdr"})");
  write_file_whole(folder.path("cluster.json"),
                   R"({"schema": "sluice.cluster/1", "node": "dgx-a100-80gb", "nodes": 1})");
  const std::string flags = "--model gpt3-1b --gbs 32 --seq-length 2048 --pp 4 --tp 4 --cluster ";
  EXPECT_EQ(answer(flags + folder.path("node.json")).at("gpus").at("cluster"), 16);
  EXPECT_EQ(answer(flags + folder.path("node.json") + " --nodes 8").at("gpus").at("cluster"), 32);
  EXPECT_NE(error_of(flags + folder.path("cluster.json")).find("/cluster: tp 4 x dp 1 x pp 4 needs 16 GPUs"),
            std::string::npos);
}

TEST(Models, AreFoundByName) {
  const std::string rest = " --cluster dgx-h100 --gbs 64 --seq-length 4096 --pp 4";
  const std::string folder = SLUICE_SOURCE_DIR "/examples/models/llama3-8b";
  const json by_name = answer("--model llama3-8b" + rest);
  EXPECT_EQ(answer("--model " + folder + "/config.json" + rest), by_name);
  EXPECT_EQ(answer("--model " + folder + rest), by_name);  // a Hugging Face folder
  const std::string moe = " --cluster dgx-h100 --gbs 64 --seq-length 4096 --pp 4 --ep 8 --dp 8";
  EXPECT_EQ(answer("--model qwen3-30b" + moe), answer("--model qwen3-30b-a3b" + moe));
  EXPECT_THAT(error_of("--model gpt-oss" + rest), testing::HasSubstr("did you mean 'gpt-oss-"));  // two
  EXPECT_THAT(error_of("--model llama3-9b" + rest),
              testing::MatchesRegex("sluice: --model: expected a model file or one of the [0-9]+ models that 'sluice "
                                    "models' lists, got \"llama3-9b\"; did you mean 'llama3-8b'\\?\n"));
  EXPECT_EQ(error_of("--model no/such.json" + rest),
            "sluice: --model: expected a model file (there is no no/such.json), got \"no/such.json\"\n");
}

// A file in a folder that cannot be read is not a misspelled name. (A loop of links, because root may read any folder.)
TEST(Models, UnreadableFilesAreReportedAsSuch) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(folder.path("loop"), folder.path("loop"));
  const std::string rest = " --gbs 64 --seq-length 4096 --pp 4";
  for (const std::string flags : {"--cluster dgx-h100 --model ", "--model llama3-8b --cluster ",
                                  "--model llama3-8b --cluster dgx-h100 --software "}) {
    EXPECT_EQ(error_of(flags + folder.path("loop") + rest),
              "sluice: " + folder.path("loop") + ": cannot open: Too many levels of symbolic links\n");
  }
}

// A schedule that was written without a sequence length has the sizes of the scenario.
TEST(ScheduleFiles, WithoutSizesHaveThoseOfTheScenario) {
  const TemporaryFolder folder;
  for (const std::string shape : {"1f1b --pp 4", "seq1f1b --pp 4 --slices 4"}) {
    for (const char* file : {"s.json", "s.csv"}) {
      if (shape.starts_with("seq") && std::string(file) == "s.csv") continue;  // PyTorch has no slices
      ASSERT_EQ(run_sluice(words("schedule " + shape + " --microbatches 8 -o " + folder.path(file))).exit_code, 0);
      const std::string rest = " --model llama3-8b --cluster dgx-h100 --mbs 2 --seq-length 4096";
      const json direct = answer("--schedule " + shape + " --microbatches 8" + rest);
      const json read = answer("--schedule " + folder.path(file) + rest);
      EXPECT_EQ(read.at("makespan_s"), direct.at("makespan_s")) << shape;
      EXPECT_EQ(read.at("ranks"), direct.at("ranks")) << shape;
    }
  }
  // One with sizes must agree.
  ASSERT_EQ(
      run_sluice(words("schedule 1f1b --pp 2 --microbatches 2 --seq-length 512 --mbs 2 -o " + folder.path("s.json")))
          .exit_code,
      0);
  EXPECT_EQ(error_of("--seq-length 1024 --schedule " + folder.path("s.json")),
            "sluice: --seq-length: expected 512, as the schedule " + folder.path("s.json") + " has it, got 1024\n");
  EXPECT_EQ(error_of("--seq-length 512 --mbs 4 --schedule " + folder.path("s.json")),
            "sluice: --mbs: expected 2, as the schedule " + folder.path("s.json") + " has it, got 4\n");
}

TEST(Output, ValuesThatAreNotKnownAreNull) {
  const json result = answer("--pp 2 --microbatches 2 --uniform f=1,b=1,w=1");
  for (const char* key : {"peak_memory_bytes", "peak_memory_at_s", "memory_at_peak_bytes"}) {
    EXPECT_TRUE(result.at("ranks").at(0).at(key).is_null()) << key;
  }
  for (const auto& [key, value] : result.at("throughput").items()) EXPECT_TRUE(value.is_null()) << key;
  const json point =
      json::parse(run_sluice(words("simulate --microbatches 2 --sweep pp=2 --json")).out).at("points").at(0);
  for (const char* key : {"peak_memory_bytes", "tokens_per_s", "mfu"}) EXPECT_TRUE(point.at(key).is_null()) << key;
  EXPECT_GT(answer(kLlamaCase + "--pp 4").at("ranks").at(0).at("peak_memory_bytes"), 0);
}

TEST(Output, TheCriticalPathNamesChunks) {
  const std::string text = run_sluice({"simulate", SLUICE_SOURCE_DIR "/examples/gpt3-175b-a100.json"}).out;
  EXPECT_NE(text.find("optimizer@0:0 → optimizer@0:1 → optimizer@0:2   (op@rank:chunk; "), std::string::npos) << text;
}

TEST(Noise, GivesADistribution) {
  const std::string flags = "--pp 4 --microbatches 8 --jitter lognormal:0.05 --trials 300 --seed ";
  const json result = answer(flags + "2");
  EXPECT_EQ(result.at("makespan_s"), 33.0);  // without noise
  const json& jitter = result.at("jitter");
  EXPECT_EQ(jitter.at("jitter"), "lognormal:0.05");
  EXPECT_EQ(jitter.at("trials"), 300);
  double last = 0;
  for (const json& quantile : jitter.at("quantiles")) {
    EXPECT_GE(quantile.at("makespan_s").get<double>(), last);
    last = quantile.at("makespan_s").get<double>();
  }
  EXPECT_GT(jitter.at("mean_s").get<double>(), 33.0);
  EXPECT_EQ(answer(flags + "2"), result);
  EXPECT_NE(answer(flags + "3").at("jitter"), jitter);
}

TEST(Sweep, MatchesSeparateRuns) {
  const json sweep = answer("--microbatches 8 --uniform f=1,b=1,w=1 --sweep schedule=1f1b,zb-h1 --sweep pp=2,4,8");
  EXPECT_EQ(sweep.at("schema"), "sluice.sweep/1");
  EXPECT_EQ(sweep.at("keys"), (json{"schedule", "pp"}));
  ASSERT_EQ(sweep.at("points").size(), 6U);
  for (const json& point : sweep.at("points")) {
    const std::string schedule = point.at("values").at(0);
    const int pp = point.at("values").at(1);
    const json alone =
        answer("--microbatches 8 --uniform f=1,b=1,w=1 --schedule " + schedule + " --pp " + std::to_string(pp));
    EXPECT_EQ(point.at("makespan_s"), alone.at("makespan_s"));
    EXPECT_EQ(point.at("bubble_fraction"), alone.at("bubble_fraction"));
  }
}

// Keys that a family does not support are adapted to it in a sweep over schedules, and the changes are printed; keys
// that are swept themselves are not.
TEST(Sweep, OverSchedulesAdaptsOtherKeys) {
  const std::string flags =
      "simulate --pp 4 --vpp 3 --group 4 --microbatches 8 --sweep schedule=interleaved-1f1b,1f1b,zb-v,seq1f1b ";
  const json points = json::parse(run_sluice(words(flags + "--json")).out).at("points");
  EXPECT_FALSE(points.at(0).contains("adapted"));
  EXPECT_EQ(points.at(1).at("adapted"), (json{"vpp 3 -> 1", "group 4 -> none"}));
  EXPECT_EQ(points.at(2).at("adapted"), (json{"vpp 3 -> 2", "group 4 -> none"}));
  EXPECT_EQ(points.at(1).at("makespan_s"), 33.0);  // (m + p - 1) (f + x)
  const std::string text = run_sluice(words(flags)).out;
  EXPECT_NE(text.find("\n  adapted to zb-v: vpp 3 -> 2, group 4 -> none\n"), std::string::npos) << text;
  // Only what was adapted in points that succeeded; seq1f1b needs slices, and their number is not part of the note.
  const CommandResult failed =
      run_sluice(words("simulate --pp 4 --microbatches 8 --vpp 3 --sweep schedule=1f1b,zb-v --sweep slices=1,2"));
  EXPECT_EQ(failed.out.substr(failed.out.find("  adapted")),
            "  adapted to 1f1b: vpp 3 -> 1\n  adapted to zb-v: vpp 3 -> 2\n");
  const json whole = json::parse(run_sluice({"simulate", "--pp", "4", "--microbatches", "8", "--vpp", "3", "--sweep",
                                             R"(/schedule="1f1b",{"name":"1f1b","slices":4})", "--json"})
                                     .out);
  EXPECT_EQ(whole.at("points").at(0).at("adapted"), json{"vpp 3 -> 1"});
  EXPECT_EQ(whole.at("points").at(1).at("error"), "1f1b: does not slice sequences: expected 1 slice, got 4");
  EXPECT_FALSE(whole.at("points").at(1).contains("adapted"));
  const json swept = json::parse(
      run_sluice(words("simulate --pp 4 --microbatches 8 --sweep schedule=1f1b --sweep vpp=1,3 --json")).out);
  EXPECT_TRUE(swept.at("points").at(0).contains("makespan_s"));
  EXPECT_EQ(swept.at("points").at(1).at("error"), "1f1b: chunks (--vpp): its placement fixes 1, got 3");
  const json slices = json::parse(
      run_sluice(words("simulate --pp 4 --microbatches 8 --slices 4 --sweep schedule=seq1f1b,1f1b --json")).out);
  EXPECT_EQ(slices.at("points").at(1).at("adapted"), json{"slices 4 -> not sliced"});
}

// What another family takes over from the first is named, and a sliced family gets slices of its own.
TEST(Sweep, OverSchedulesNamesWhatIsInherited) {
  const std::string uniform = "simulate --pp 4 --microbatches 8 --uniform f=1,b=1,w=1 ";
  const json chunks = json::parse(run_sluice(words(uniform + "--schedule interleaved-1f1b --vpp 3 --sweep schedule="
                                                             "interleaved-1f1b,looped-bfs,1f1b,seq1f1b --json"))
                                      .out)
                          .at("points");
  EXPECT_FALSE(chunks.at(0).contains("inherited"));
  EXPECT_EQ(chunks.at(1).at("inherited"), json{"vpp 3"});
  EXPECT_FALSE(chunks.at(2).contains("inherited"));
  EXPECT_EQ(chunks.at(3).at("inherited"), json{"slices 1"});  // without a sequence length
  const std::string llama =
      "simulate --model llama3-8b --cluster dgx-h100 --pp 4 --microbatches 8 --seq-length 8192 --schedule 1f1b "
      "--decoder-first-pipeline-num-layers 9 --decoder-last-pipeline-num-layers 7 ";
  const json layers =
      json::parse(run_sluice(words(llama + "--slices 2 --sweep schedule=seq1f1b,gpipe,zb-v --json")).out).at("points");
  EXPECT_EQ(layers.at(0).at("inherited"), (json{"slices 2", "first_stage_layers 9", "last_stage_layers 7"}));
  EXPECT_EQ(layers.at(1).at("inherited"), (json{"first_stage_layers 9", "last_stage_layers 7"}));
  const TemporaryFolder folder;
  const std::string pair = run_sluice(words(llama + "--svg " + folder.path("a.svg") + " --compare-with zb-h1")).err;
  EXPECT_EQ(pair,
            "sluice: --compare-with zb-h1: inherits first_stage_layers 9\n"
            "sluice: --compare-with zb-h1: inherits last_stage_layers 7\n");
}

// What is left open is chosen for each schedule: the run is as fast as one with these flags, and no slower than one
// with the defaults.
TEST(Sweep, OverSchedulesChoosesForEach) {
  const std::string llama = "simulate --model llama3-8b --cluster dgx-h100 --pp 4 --gbs 16 --seq-length 8192 --json ";
  const json points =
      json::parse(run_sluice(words(llama + "--sweep schedule=1f1b,interleaved-1f1b,seq1f1b,zb-v")).out).at("points");
  const std::pair<const char*, const char*> expected[] = {{"1f1b", "stage_layers even -> "},
                                                          {"interleaved-1f1b", "vpp 2 -> "},
                                                          {"seq1f1b", "slices 1 -> "},
                                                          {"zb-v", "stage_layers even -> "}};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const auto& [schedule, change] = expected[i];
    SCOPED_TRACE(schedule);
    std::string flags = "--schedule " + std::string(schedule);
    const json plain = json::parse(run_sluice(words(llama + flags)).out);
    bool changed = false;
    for (const std::string each : points.at(i).at("adapted")) {
      changed |= each.starts_with(change);
      const std::string value = each.substr(each.find("-> ") + 3);
      if (each.starts_with("vpp ")) flags += " --vpp " + value;
      if (each.starts_with("slices ")) flags += " --slices " + value;
      if (each.starts_with("stage_layers ")) flags += " --stage-layers " + value.substr(1, value.size() - 2);
    }
    EXPECT_TRUE(changed) << points.at(i);
    EXPECT_EQ(points.at(i).at("makespan_s"), json::parse(run_sluice(words(llama + flags)).out).at("makespan_s"));
    EXPECT_LE(points.at(i).at("makespan_s").get<double>(), plain.at("makespan_s").get<double>());
  }
  // Both runs of a comparison get their own.
  const TemporaryFolder folder;
  const CommandResult pair = run_sluice(words(llama + "--svg " + folder.path("a.svg") + " --compare-with zb-v"));
  EXPECT_EQ(json::parse(pair.out).at("makespan_s"), points.at(0).at("makespan_s"));
  EXPECT_NE(pair.err.find("--compare-with: first run: stage_layers even -> ["), std::string::npos) << pair.err;
  EXPECT_NE(pair.err.find("--compare-with zb-v: stage_layers even -> ["), std::string::npos) << pair.err;
}

TEST(Sweep, EndsEarlyWithTheCombinationsThatAreDone) {
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)}) {
    // The second combination searches for a minute; the first may not be done when the signal comes.
    const CommandResult result =
        run_program_and_signal(SLUICE_COMMAND,
                               words("simulate --pp 8 --microbatches 64 --uniform f=10,b=12,w=8,comm=1 --sweep "
                                     "schedule=1f1b,auto --memory-cap 5mb "
                                     "--time-budget 60 --evaluations 1000000000 --json"),
                               signal);
    EXPECT_EQ(result.exit_code, code) << result.err;
    if (!result.out.empty()) {
      EXPECT_EQ(json::parse(result.out).at("points").at(1).at("error"), "interrupted");
    }
  }
  const std::atomic<bool> stop = true;
  const json base = {{"batch", {{"microbatches", 4}}}};
  const tools::Sweep sweep = tools::run_sweep(base, "", {tools::parse_sweep_axis("pp=2,4")}, &stop);
  for (const tools::SweepPoint& point : sweep.points) EXPECT_EQ(point.error, "interrupted");
}

TEST(Sweep, ReportsInvalidCombinations) {
  const TemporaryFolder folder;
  const CommandResult result =
      run_sluice({"simulate", "--pp", "4", "--microbatches", "8", "--sweep", "schedule=interleaved-1f1b", "--sweep",
                  "batch/microbatches=2,8", "--sweep", "vpp=2", "--csv", folder.path("s.csv")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("interleaved-1f1b: "), std::string::npos) << result.out;  // the error is in its row
  const std::string csv = read_file(folder.path("s.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_NE(csv.find("interleaved-1f1b,8,2,28.5,28.5,"), std::string::npos) << csv;  // (16 + 3) x 1.5
}

TEST(Sweep, AcceptsListsAndTheirElements) {
  const json sweep = answer(
      "--schedule seq1f1b --pp 2 --microbatches 2 --slow-rank 0=1 --sweep slice-lengths=[1,1],[3,1] --sweep "
      "perturbation/slow_ranks/0/factor=1,2");
  ASSERT_EQ(sweep.at("points").size(), 4U);
  EXPECT_EQ(sweep.at("points").at(2).at("values"), (json{{3, 1}, 1}));
  EXPECT_LT(sweep.at("points").at(0).at("makespan_s").get<double>(),
            sweep.at("points").at(1).at("makespan_s").get<double>());
}

// Otherwise rows would show values that the prediction does not have.
TEST(Sweep, KeysThatExcludeEachOtherAreRejected) {
  const std::string base = "--pp 2 --microbatches 4 ";
  for (const auto& [first, second] : {std::pair("gpus", "dp"),
                                      {"slices", "slice-lengths"},
                                      {"slicing", "slice-lengths"},
                                      {"microbatches", "gbs"},
                                      {"batch/microbatches", "--global-batch-size"},
                                      {"pp", "parallelism/pp"}}) {
    for (const auto& [one, other] : {std::pair(first, second), {second, first}}) {
      EXPECT_EQ(error_of(fmt::format("{}--sweep {}=1,2 --sweep {}=1,2", base, one, other)),
                fmt::format("sluice: --sweep: {} and {} exclude each other: sweep one of them\n", one, other));
    }
  }
  // Values that are objects.
  const json points =
      answer(R"(--pp 2 --sweep /batch={"microbatches":4},{"micro_batch":2} --sweep gbs=8 --sweep pp=2)").at("points");
  EXPECT_EQ(points.at(0).at("error"), "--sweep: /batch and gbs exclude each other: sweep one of them");
  EXPECT_EQ(points.at(1).at("makespan_s"), 15.0);  // 4 microbatches of 2 sequences: (4 + 2 - 1) x 3
  EXPECT_NE(error_of(base + R"(--sweep pp=2 --sweep /parallelism={"pp":4})").find("pp and /parallelism exclude each"),
            std::string::npos);
}

TEST(Sweep, InvalidFlagsAreRejected) {
  const std::string base = "--pp 4 --microbatches 8 ";
  EXPECT_NE(error_of(base + "--sweep ppp=1,2").find("did you mean 'pp'?"), std::string::npos);
  EXPECT_NE(error_of(base + "--sweep pp").find("--sweep: expected key=a,b,c, got 'pp'"), std::string::npos);
  EXPECT_NE(error_of(base + "--sweep pp=1,,2").find("expected values between the commas"), std::string::npos);
  EXPECT_NE(error_of(base + "--sweep pp=0,-1").find("no combination can be simulated; the first error: --pp:"),
            std::string::npos);
  EXPECT_NE(error_of(base + "--sweep parallelism/ppp=1").find("did you mean 'pp'?"), std::string::npos);
  EXPECT_NE(error_of(base + "--sweep pp=2,4 --gantt").find("--sweep excludes --gantt"), std::string::npos);
  EXPECT_NE(error_of(base + "--sweep pp=2,4 --chakra x").find("--sweep excludes --gantt, --trace, --chakra"),
            std::string::npos);
  EXPECT_NE(error_of(base + "--chakra /missing/x").find("/missing/x.0.et"), std::string::npos);
  EXPECT_NE(error_of(base + "--csv x.csv").find("--csv needs --sweep"), std::string::npos);
  EXPECT_NE(error_of(base + "--trace-idle").find("--trace-idle needs --trace"), std::string::npos);
  EXPECT_NE(error_of(base + "--trials 3").find("--trials: requires jitter"), std::string::npos);
}

TEST(ScheduleCheck, PrintsEveryVerdict) {
  const TemporaryFolder folder;
  const auto check = [&](const std::string& text, const std::string& more = "") {
    write_file_whole(folder.path("s.csv"), text);
    return run_sluice(words("schedule " + folder.path("s.csv") + " --check " + more));
  };
  const CommandResult good = check("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(std::count(good.out.begin(), good.out.end(), '\n'), 9);  // three, one per mapping, the coarsest
  EXPECT_EQ(good.out.find("error"), std::string::npos);

  // Both ranks send first, with an op between send and receive: they hang unless activations and gradients have
  // communicators of their own, and with a host that waits.
  const std::string text =
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RECV_F1,1F1,1RECV_F2,1F2,1B1,1SEND_B1,1B2,1SEND_B2\n";
  const CommandResult all = check(text, "--json");
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(json::parse(all.out).at("checks").back().at("detail"), "direction");
  const CommandResult hangs = check(text, "--communicators one");
  EXPECT_EQ(hangs.exit_code, 4);
  EXPECT_NE(hangs.out.find("ok    deadlock"), std::string::npos);
  const std::string cycle =
      "0SEND_F1 at row 1, cell 4 -[match]-> 1RECV_F1 at row 2, cell 6 -[queue pipeline]-> 1SEND_B0 at row 2, cell 4 "
      "-[match]-> 0RECV_B0 at row 1, cell 7 -[queue pipeline]-> 0SEND_F2 at row 1, cell 6 -[queue pipeline]-> 0SEND_F1 "
      "at row 1, "
      "cell 4";
  EXPECT_EQ(hangs.err, "sluice: hangs: " + cycle + "\n");
  const json found = json::parse(check(text, "--communicators one --json").out).at("checks").back();
  EXPECT_EQ(found.at("cycle").size(), 5U);
  EXPECT_EQ(found.at("cycle")[1].at("reason"), "queue pipeline");
  EXPECT_EQ(found.at("repaired_order").size(), 2U);
  EXPECT_EQ(check(text, "--wait host").exit_code, 4);
  EXPECT_EQ(check(text, "--communicators direction").exit_code, 0);
  EXPECT_EQ(check(text, "--communicators direction,serialized").exit_code, 4);

  // A repaired file passes with one queue per GPU and a host that waits.
  const std::string repaired = folder.path("repaired.csv");
  EXPECT_EQ(check(text, "--communicators one -o " + repaired).exit_code, 4);
  EXPECT_EQ(run_sluice(words("schedule " + repaired + " --check --communicators one --wait host")).exit_code, 0);

  const CommandResult twice = check("0F0,0F0,0B0\n", "--json");
  EXPECT_EQ(twice.exit_code, 4);
  const json document = json::parse(twice.out);
  EXPECT_EQ(document.at("schema"), "sluice.schedule_check/1");
  EXPECT_EQ(document.at("valid"), false);
  EXPECT_EQ(document.at("checks").back().at("verdict"), "error");
  EXPECT_NE(twice.err.find("row 1, cell 2: F(stage 0, mb 0): occurs twice, first at row 1, cell 1"), std::string::npos);

  // Text that does not parse is wrong input, not an invalid schedule.
  EXPECT_EQ(check("0F0,0Q0\n").exit_code, 2);
}

// PyTorch's defer_pp_recv swaps activations and gradients of zb-v on an edge; stages of their own cure it.
TEST(ScheduleCheck, PrintsSwaps) {
  const std::string check = "schedule zb-v --pp 4 --microbatches 8 --check --communicators deferred,";
  const CommandResult swaps = run_sluice(words(check + "edge"));
  EXPECT_EQ(swaps.exit_code, 4);
  EXPECT_NE(
      swaps.err.find("swaps 9 messages: on communicator 0->1 from rank 0 to rank 1, 0SEND_F6 on rank 0 is received "
                     "by 6RECV_B0 on rank 1"),
      std::string::npos)
      << swaps.err;
  EXPECT_EQ(run_sluice(words(check + "logical")).exit_code, 0);
  EXPECT_EQ(run_sluice(words(check + "edges")).exit_code, 2);
  EXPECT_EQ(run_sluice(words("schedule zb-v --pp 4 --microbatches 8 --wait host")).exit_code, 2);
}

TEST(ScheduleCheck, CommunicationRoundTripsThroughFiles) {
  const TemporaryFolder folder;
  ASSERT_EQ(
      run_sluice(words("schedule zb-h1 --pp 4 --microbatches 8 --communication -o " + folder.path("z.csv"))).exit_code,
      0);
  ASSERT_EQ(run_sluice(words("schedule " + folder.path("z.csv") + " -o " + folder.path("z.json"))).exit_code, 0);
  for (const char* file : {"z.csv", "z.json"}) {
    EXPECT_EQ(run_sluice(words("schedule " + folder.path(file) + " --check")).exit_code, 0);
    // Sends directly after their ops: the same times as the family's, 24 + 3 (closed form of zb-h1, all costs 1).
    EXPECT_EQ(answer("--schedule " + folder.path(file) + " --uniform f=1,b=1,w=1").at("makespan_s"), 27.0) << file;
  }
}

// Regression: a list took the scenario operand after it as one of its values.
TEST(Flags, ListsDoNotTakeTheFollowingScenario) {
  const std::string scenario = SLUICE_SOURCE_DIR "/examples/gpt-2.7b-seq1f1b-a100.json";
  const json before = answer(scenario + " --slice-lengths 16384,16384");
  const json behind = answer("--slice-lengths 16384,16384 " + scenario);
  EXPECT_EQ(before, behind);
  EXPECT_EQ(behind.at("schedule").at("slice_lengths"), (json{16384, 16384}));
}

}  // namespace
}  // namespace sluice::test

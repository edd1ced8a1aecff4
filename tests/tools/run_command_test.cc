// `sluice run` on the command line: training, checkpoints, processes, and failures.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/golden.h"
#include "tests/support/trace_check.h"
#include "tests/tools/runs.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

CommandResult run(const std::string& arguments) { return run_sluice(words(arguments)); }

TEST(RunCommand, ReportsLossesAndMetrics) {
  const json document = run_json(kTinyRun + "--steps 3 --pp 2");
  EXPECT_EQ(document.at("schema"), "sluice.run/1");
  EXPECT_EQ(document.at("schedule").at("family"), "1f1b");
  EXPECT_EQ(document.at("transport"), "threads");
  EXPECT_EQ(document.at("tokens_per_step"), 4 * 24);
  ASSERT_EQ(document.at("steps").size(), 3U);
  // Random weights predict uniformly: ln 64 = 4.159.
  EXPECT_NEAR(document.at("steps")[0].at("loss").get<double>(), 4.159, 0.05);
  EXPECT_EQ(document.at("workers").size(), 2U);
  for (const json& worker : document.at("workers")) {
    EXPECT_GT(worker.at("held_bytes"), 0);
    EXPECT_LE(worker.at("held_bytes"), worker.at("arena_bytes"));
  }
  const CommandResult text = run(kTinyRun + "--steps 2");
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("step     2  loss 4."));
  EXPECT_THAT(text.out, HasSubstr("tokens/s"));
}

// In float64 the losses do not depend on the schedule and the parallel sizes.
TEST(RunCommand, LossesAreEqualForAllSchedules) {
  const std::string tiny = kTinyRun + "--precision float64 --steps 4 ";
  const std::vector<double> one = losses_of_run(run_json(tiny + "--pp 1"));
  EXPECT_LT(one.back(), one.front());
  for (const char* cut :
       {"--pp 2", "--pp 4 --schedule gpipe", "--pp 2 --schedule seq1f1b --slices 3", "--pp 4 --schedule zb-h1",
        "--pp 2 --schedule interleaved-1f1b --vpp 2", "--pp 2 --tp 2", "--pp 2 --schedule zb-v --recompute full"}) {
    SCOPED_TRACE(cut);
    const std::vector<double> other = losses_of_run(run_json(tiny + cut));
    ASSERT_EQ(other.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i], one[i], 1e-9);
  }
  // Replicas share the batch: 2 x 2 microbatches are the same four sequences.
  const std::vector<double> replicas =
      losses_of_run(run_json(kShort + "--precision float64 --steps 4 --pp 2 --dp 2 --microbatches 2"));
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(replicas[i], one[i], 1e-9);
}

// On a text that every Debian machine has, the loss decreases from ln 256 = 5.55 nats per byte to below 2.5.
TEST(RunCommand, LossDecreasesOnText) {
  const char* const text = "/usr/share/common-licenses/GPL-3";
  if (!std::filesystem::exists(text)) GTEST_SKIP() << "SKIPPED: there is no " << text << " here";
  const bool small = std::getenv("SLUICE_TEST_SCOPE") != nullptr;
  const int steps = small ? 12 : 300;
  const std::string model =
      "run --num-layers 2 --hidden-size 64 --num-attention-heads 2 --vocab-size 256 --max-position-embeddings 64 "
      "--position-embedding-type learned_absolute --seq-length 64 --mbs 2 --microbatches 8 --lr 0.0012 "
      "--lr-warmup-steps 20 --data " +
      std::string(text) + " --steps ";
  const auto mean_of_last = [](const std::vector<double>& all) {
    const std::size_t count = std::min<std::size_t>(all.size(), 30);
    return std::accumulate(all.end() - static_cast<std::ptrdiff_t>(count), all.end(), 0.0) / static_cast<double>(count);
  };
  const std::vector<double> one = losses_of_run(run_json(model + std::to_string(steps) + " --pp 1"));
  EXPECT_NEAR(one.front(), 5.55, 0.1);
  if (!small) {
    EXPECT_LT(mean_of_last(one), 2.5);
  }
  for (const char* schedule : {"1f1b", "seq1f1b --slices 2", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    // Rounding errors in float32, 6e-8 per addition, grow with every step; observed: 1e-4 after 300 steps.
    const std::vector<double> other =
        losses_of_run(run_json(model + std::to_string(steps / 5) + " --pp 2 --schedule " + schedule));
    ASSERT_EQ(std::ssize(other), steps / 5);
    for (std::size_t i = 0; i < other.size(); ++i) EXPECT_NEAR(other[i], one[i], 1e-3) << "step " << i + 1;
  }
  // Weights from two batches earlier, without clipping: slower convergence. Observed: 2.69 instead of 2.41.
  const std::vector<double> late =
      losses_of_run(run_json(model + std::to_string(steps) + " --pp 2 --schedule pipedream-2bw"));
  EXPECT_NEAR(mean_of_last(late), mean_of_last(one), 0.4);
}

TEST(RunCommand, WritesTheMeasuredTimelineAsATrace) {
  const TemporaryFolder folder;
  const std::string path = folder.path("run.json");
  ASSERT_EQ(run(kTinyRun + "--steps 2 --pp 2 --schedule zb-h1 --dp 2 --trace " + path).exit_code, 0);
  const std::string trace = read_file(path);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  int ops = 0;
  const json document = json::parse(trace);
  for (const json& event : document.at("traceEvents")) ops += event.value("cat", "") == "compute" ? 1 : 0;
  EXPECT_EQ(ops, 2 * 4 * 3);  // F, I and W of four microbatches on two ranks
}

TEST(RunCommand, TracesShowThePartsOfLayersWithExperts) {
  const TemporaryFolder folder;
  const std::string path = folder.path("run.json");
  ASSERT_EQ(run(kExpertRun + "--steps 2 --pp 2 --dp 2 --ep 2 --schedule zb-h1 --trace " + path).exit_code, 0);
  const std::string trace = read_file(path);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  std::map<std::string, int> parts;
  // By rank: start and end of the ops with parts, F and I.
  std::map<int, std::vector<std::pair<double, double>>> ops;
  const json document = json::parse(trace);
  for (const json& event : document.at("traceEvents")) {
    if (event.value("cat", "") != "compute" || event.at("name").get<std::string>().starts_with("W")) continue;
    const double start = event.at("ts").get<double>();
    ops[event.at("pid").get<int>()].emplace_back(start, start + event.at("dur").get<double>());
  }
  for (const json& event : document.at("traceEvents")) {
    if (event.value("cat", "") != "part") continue;
    ++parts[event.at("name").get<std::string>()];
    const double start = event.at("ts").get<double>();
    const double end = start + event.at("dur").get<double>();
    const auto& of_rank = ops.at(event.at("pid").get<int>());
    EXPECT_TRUE(std::any_of(of_rank.begin(), of_rank.end(), [&](const auto& op) {
      return op.first <= start && end <= op.second + 1e-3;
    })) << event;
  }
  // Two layers per rank, in F and I of four microbatches on two ranks.
  for (const std::string part : {"attention", "dispatch", "experts", "combine"}) {
    for (const char* pass : {"(F)", "(B)"}) EXPECT_EQ(parts[part + pass], 2 * 4 * 2) << part << pass;
  }
  EXPECT_EQ(test::run_sluice({"compare", path, path}).exit_code, 0);  // reads it back
}

// Every exchange takes 2 ms longer than otherwise, so that there is something to hide.
TEST(RunCommand, HidesDispatchAndCombineInJointBlocks) {
  const TemporaryFolder folder;
  const std::string trace = folder.path("woven.json");
  const std::string arguments =
      kExpertRun + "--pp 2 --dp 2 --ep 2 --schedule dualpipe --steps 2 --fault latency:seconds=0.002 ";
  const json woven = run_json(arguments + "--trace " + trace);
  const json serial = run_json(arguments + "--joint-overlap none");
  EXPECT_EQ(losses_of_run(woven), losses_of_run(serial));
  ASSERT_EQ(woven.at("expert_exchange").size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const json& of_rank = woven.at("expert_exchange").at(rank);
    EXPECT_GT(of_rank.at("predicted_hidden_s").get<double>(), 0);
    EXPECT_LT(of_rank.at("predicted_hidden_s").get<double>(), of_rank.at("seconds").get<double>());
    EXPECT_LE(of_rank.at("hidden_s").get<double>(), of_rank.at("seconds").get<double>());
    EXPECT_EQ(serial.at("expert_exchange").at(rank).at("hidden_s").get<double>(), 0);
    EXPECT_EQ(serial.at("expert_exchange").at(rank).at("predicted_hidden_s").get<double>(), 0);
  }
  EXPECT_FALSE(run_json(kTinyRun).contains("expert_exchange"));
  EXPECT_THAT(run(arguments).out, HasSubstr("% hidden (predicted from the measured parts: "));

  // The parts of a block include weight gradients, and dispatch and combine have a track of their own.
  std::map<std::string, std::set<std::pair<int, int>>> tracks;  // by part: process and track
  const json document = json::parse(read_file(trace));
  for (const json& event : document.at("traceEvents")) {
    if (event.value("cat", "") != "part") continue;
    tracks[event.at("name").get<std::string>()].emplace(event.at("pid").get<int>(), event.at("tid").get<int>());
  }
  EXPECT_EQ(tracks.at("experts(W)"), tracks.at("attention(F)"));
  EXPECT_EQ(tracks.at("dispatch(B)"), tracks.at("combine(F)"));
  for (const auto& track : tracks.at("dispatch(F)")) EXPECT_EQ(tracks.at("experts(F)").count(track), 0U);
}

TEST(RunCommand, ResumesWithTheSameLosses) {
  const TemporaryFolder folder;
  const std::string saved = folder.path("half.safetensors");
  for (const char* schedule : {"1f1b", "seq1f1b --slices 2", "pipedream-2bw --checkpoint-every 3"}) {
    SCOPED_TRACE(schedule);
    const std::string tiny = kTinyRun + "--pp 2 --schedule " + schedule;
    const std::string whole_file = folder.path("whole.safetensors");
    const std::vector<double> whole = losses_of_run(run_json(tiny + " --steps 6 --checkpoint " + whole_file));
    std::vector<double> parts = losses_of_run(run_json(tiny + " --steps 3 --checkpoint " + saved));
    const json resumed = run_json(tiny + " --steps 3 --resume " + saved + " --checkpoint " + saved);
    for (const double loss : losses_of_run(resumed)) parts.push_back(loss);
    EXPECT_EQ(resumed.at("steps")[0].at("step"), 4);
    EXPECT_EQ(parts, whole);
    EXPECT_EQ(read_file(saved), read_file(whole_file));
  }
}

TEST(RunCommand, ResumesWithOtherDistributionsOfExperts) {
  const TemporaryFolder folder;
  const std::string saved = folder.path("half.safetensors");
  const std::string tiny = kExpertRun + "--precision float64 ";
  const std::vector<double> whole = losses_of_run(run_json(tiny + "--pp 1 --dp 4 --steps 4"));
  run_json(tiny + "--pp 2 --dp 4 --ep 4 --steps 2 --checkpoint " + saved);
  for (const char* flags : {"--pp 1 --dp 4", "--pp 2 --dp 4 --ep 2 --schedule zb-h1", "--pp 2 --dp 4 --tp 2 --ep 4"}) {
    SCOPED_TRACE(flags);
    const std::vector<double> rest = losses_of_run(run_json(tiny + flags + " --steps 2 --resume " + saved));
    ASSERT_EQ(rest.size(), 2U);
    EXPECT_NEAR(rest[0], whole[2], 1e-9);
    EXPECT_NEAR(rest[1], whole[3], 1e-9);
  }
}

TEST(RunCommand, ResumesWithOtherParallelSizes) {
  const TemporaryFolder folder;
  const std::string saved = folder.path("half.safetensors");
  const std::string tiny = kTinyRun + "--precision float64 ";
  const std::vector<double> whole = losses_of_run(run_json(tiny + "--pp 1 --steps 4"));
  run_json(tiny + "--pp 2 --tp 2 --steps 2 --checkpoint " + saved);
  const std::vector<double> rest =
      losses_of_run(run_json(tiny + "--pp 4 --schedule zb-h1 --steps 2 --resume " + saved));
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_NEAR(rest[0], whole[2], 1e-9);
  EXPECT_NEAR(rest[1], whole[3], 1e-9);
}

// A scenario file may name graphs for predictions; they are no flags of runs.
TEST(RunCommand, GraphsAreOnlyPredicted) {
  const TemporaryFolder folder;
  const std::string file = folder.path("f.json");
  write_file_whole(file, R"({"schema": "sluice.scenario/1", "batch": {"microbatches": 4},
                       "parallelism": {"pp": 2, "cuda_graph_impl": "full_iteration"}})");
  EXPECT_THAT(run("run " + file + " --steps 1").err, HasSubstr("run ignores /parallelism/cuda_graph_impl"));
  EXPECT_THAT(run(kExpertRun + "--cuda-graph-impl local").err, HasSubstr("run: --cuda-graph-impl has no effect"));
}

TEST(RunCommand, WeavesWithoutEffectAreReported) {
  const std::string ranks = "--steps 1 --dp 2 --ep 2 ";
  const std::pair<std::string, std::string> cases[] = {
      {kTinyRun + "--steps 1", "the model has no experts"},
      {kExpertRun + "--steps 1 --schedule dualpipe", "without expert parallelism (--ep) nothing is exchanged"},
      {kExpertRun + ranks + "--schedule 1f1b", "the schedule has no joint blocks"},
      {kExpertRun + ranks + "--schedule dualpipe --joint-overlap none", "with --joint-overlap none joint blocks run"},
      {kExpertRun + ranks + "--schedule dualpipe --recompute full", "with recomputation joint blocks run"},
      {kExpertRun + ranks + "--schedule dualpipe", ""},
  };
  for (const auto& [arguments, why] : cases) {
    SCOPED_TRACE(arguments);
    const CommandResult result = run(arguments + " --weave dualpipe");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string note = "note: --weave (/parallelism/weave) has no effect: " + why;
    EXPECT_EQ(result.err.find("has no effect") != std::string::npos, !why.empty()) << result.err;
    EXPECT_THAT(result.err, HasSubstr(why.empty() ? "" : note));
  }
  const CommandResult recomputed = run(kExpertRun + ranks + "--schedule dualpipe --recompute full");
  EXPECT_THAT(recomputed.out, HasSubstr("ms per rank in forwards; those of backwards that recompute are not measured"));
  EXPECT_EQ(recomputed.out.find("hidden"), std::string::npos);
}

// Values that runs refuse with a reason are not offered.
TEST(RunCommand, HelpShowsWhatRunsTake) {
  const std::string help = run("run --help-all").out;
  EXPECT_THAT(help, HasSubstr("--joint-overlap {none,experts}"));
  EXPECT_THAT(help, HasSubstr("{none,full}"));
  EXPECT_EQ(help.find("search (the"), std::string::npos);
}

TEST(RunCommand, InvalidFlagsAreReported) {
  const auto error = [](const std::string& arguments, int code) {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.exit_code, code) << arguments;
    EXPECT_THAT(result.out, IsEmpty()) << arguments;
    return result.err;
  };
  EXPECT_EQ(error(kTinyRun + "--sequence-parallel", 2),
            "sluice: run: --sequence-parallel has no effect on this command; flag of simulate, slice, weave, profile "
            "--like\n");
  EXPECT_THAT(error(kTinyRun + "--ep 2 --dp 2", 2), HasSubstr("expert-parallel size 2, but there are no experts"));
  EXPECT_THAT(error(kExpertRun + "--ep 2", 2), HasSubstr("expert-parallel size 2, expected a divisor of 1"));
  EXPECT_THAT(error(kExpertRun + "--ep 3 --dp 3", 2),
              HasSubstr("experts (4) must be a multiple of the expert-parallel size (3)"));
  EXPECT_THAT(error("run --num-layers 2 --hidden-size 16 --num-attention-heads 2 --vocab-size 64 --seq-length 8 "
                    "--position-embedding-type none",
                    2),
              HasSubstr("runs do not support models without position embeddings"));
  EXPECT_THAT(error("run --model gpt-oss-20b --pp 1 --microbatches 1 --seq-length 64", 2),
              HasSubstr("gpt-oss-20b: a run: attention with a window is not supported"));
  EXPECT_THAT(error(kExpertRun + "--etp 2", 2), HasSubstr("--etp: runs do not support it: expected 1, got 2"));
  EXPECT_THAT(error(kExpertRun + "--weave dualpip", 2), HasSubstr("did you mean 'dualpipe'"));
  EXPECT_THAT(error(kExpertRun + "--dp 2 --ep 2 --weave search", 2),
              HasSubstr("runs do not support a weave that is searched (/parallelism/weave)"));
  EXPECT_THAT(error(kExpertRun + "--joint-overlap all", 2),
              HasSubstr("runs do not support overlap of the collectives of tensor parallelism"));
  EXPECT_THAT(error(kExpertRun + "--dp 2 --fault latency:seconds=1", 2),
              HasSubstr("--fault 'latency:seconds=1': expected experts distributed over several ranks (--ep)"));
  EXPECT_THAT(error(kTinyRun + "--num-experts 4", 2), HasSubstr("the kernels do not support biases of experts"));
  EXPECT_THAT(error("profile" + kExpertRun.substr(std::string("run").size()) + "--recompute full", 2),
              HasSubstr("profiles do not support recomputation of layers with experts"));
  EXPECT_THAT(error(kTinyRun + "--schedule auto", 2), HasSubstr("runs do not support --schedule auto"));
  EXPECT_THAT(error(kTinyRun + "--pp 3 --tp 5", 2), HasSubstr("tensor"));
  EXPECT_THAT(error(kTinyRun + "--data /nowhere/text", 2), HasSubstr("/nowhere/text"));
  EXPECT_THAT(error(kRunModel + "--seq-length 25 --microbatches 4", 2), HasSubstr("24 learned positions"));
  EXPECT_THAT(error(kTinyRun + "--checkpoint /tmp", 2), HasSubstr("--checkpoint: /tmp: is a folder"));
  EXPECT_THAT(error(kTinyRun + "--trace /tmp", 2), HasSubstr("--trace: /tmp: is a folder"));
  if (has_mpi()) {
    EXPECT_THAT(error(kTinyRun + "--transport mpi", 2), HasSubstr("needs a launcher"));
  }
  EXPECT_THAT(error(kTinyRun + "--checkpoint-every 2", 2), HasSubstr("--checkpoint-every: needs --checkpoint"));
  EXPECT_THAT(error(kTinyRun + "--resume /nowhere/file", 2), HasSubstr("/nowhere/file"));
  EXPECT_THAT(error(kTinyRun + "--fault delay:rank=9,seconds=1", 2), StartsWith("sluice: --fault"));
  EXPECT_THAT(error(kTinyRun + "--schedule pipedream-2bw --batches 4 --steps 6", 2),
              HasSubstr("--steps: expected a multiple of the 4 batches of the schedule, got 6"));
  EXPECT_THAT(error("run --num-layers 400 --hidden-size 65536 --num-attention-heads 64 --vocab-size 64 --pp 2 "
                    "--microbatches 2 --seq-length 8 --mbs 1 --position-embedding-type rope",
                    3),
              HasSubstr("are available"));
  const TemporaryFolder folder;
  const std::string saved = folder.path("a.safetensors");
  ASSERT_EQ(run(kTinyRun + "--steps 1 --checkpoint " + saved).exit_code, 0);
  EXPECT_THAT(error(kTinyRun + "--seed 2 --resume " + saved, 2), HasSubstr("was written by a run with seed '1'"));
  std::ofstream(folder.path("b.safetensors")) << read_file(saved).substr(0, 1000);
  EXPECT_THAT(error(kTinyRun + "--resume " + folder.path("b.safetensors"), 2), HasSubstr("b.safetensors"));
  EXPECT_THAT(error(kTinyRun + "--steps 1 --checkpoint /nowhere/c.safetensors", 2),
              HasSubstr("/nowhere/c.safetensors"));
}

// The fault is detected and reported, and all ranks stop, within the deadline of 1 s plus 5 s, plus the start-up time
// on a busy machine.
struct FaultCase {
  const char* fault;
  int exit_code;
  const char* message;
};
const FaultCase kFaultCases[] = {
    {"stop:rank=1,op=B,mb=2,step=2", 7, "rank 1 has been inside B(stage 1, mb 2)"},
    {"delay:rank=0,op=F,mb=1,step=2,seconds=60", 7, "rank 0 has been inside F(stage 0, mb 1)"},
    {"drop:rank=1,op=B,mb=2,step=2", 7, "send B(stage 1, mb 2) 1->0, sent by rank 1 in step 2, is lost"},
    {"nan:rank=1,op=B,mb=1,step=2", 8, "B(stage 1, mb 1) of step 2 on rank 1 produced a value that is not finite"},
};

TEST(BrokenRun, IsStoppedAndReported) {
  for (const FaultCase& fault_case : kFaultCases) {
    SCOPED_TRACE(fault_case.fault);
    const TemporaryFolder folder;
    const CommandResult result = run(kTinyRun + "--pp 2 --steps 4 --deadline 1 --recorder " + folder.path("rec") +
                                     " --fault " + fault_case.fault);
    EXPECT_EQ(result.exit_code, fault_case.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(fault_case.message));
    const CommandResult said = run("run --post-mortem " + folder.path("rec"));
    EXPECT_EQ(said.exit_code, 0) << said.err;
    EXPECT_THAT(said.out, HasSubstr("rank 1 (pipeline 1, data 0, tensor 0)"));
  }
}

TEST(BrokenRun, PrintsTheWaitForChain) {
  const CommandResult result = run(kTinyRun + "--pp 4 --steps 4 --deadline 1 --fault stop:rank=2,op=F,mb=0,step=2");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err,
              HasSubstr("rank 0 waits for B(stage 0, mb 0) from rank 1, which waits for B(stage 1, mb 0) from "
                        "rank 2, which has been inside F(stage 2, mb 0) for "));
  EXPECT_THAT(result.err, HasSubstr("waiting for it: ranks 0, 1, 3"));
}

// On one rank the ops run in schedule order: F0 B0 F1 B1 have ended before F2.
TEST(BrokenRun, WritesAPartialTrace) {
  const TemporaryFolder folder;
  const std::string path = folder.path("part.json");
  EXPECT_EQ(run(kTinyRun + "--pp 1 --steps 3 --fault nan:op=F,mb=2,step=2 --trace " + path).exit_code, 8);
  const std::string trace = read_file(path);
  EXPECT_THAT(test::check_trace(trace), IsEmpty());
  std::vector<std::string> ops;
  const json document = json::parse(trace);
  for (const json& event : document.at("traceEvents")) {
    if (event.value("cat", "") == "compute") ops.push_back(event.at("name"));
  }
  EXPECT_THAT(ops, ::testing::ElementsAre("F0", "B0", "F1", "B1"));
}

TEST(BrokenRun, KeepsRecordersWhenKilled) {
  const TemporaryFolder folder;
  const CommandResult result =
      run(kTinyRun + "--pp 2 --steps 4 --recorder " + folder.path("rec") + " --fault kill:rank=1,op=B,mb=2,step=2");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_EQ(result.err, "sluice: --fault: rank 1 kills its process inside B(stage 1, mb 2) of step 2\n");
  const CommandResult said = run("run --post-mortem " + folder.path("rec"));
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("compute, step 2: working in B(stage 1, mb 2)"));
}

// The end of most cluster jobs: the step ends, the checkpoint is written, and the exit code names the signal. The BLAS
// may have threads that started before main: the signal must not end the process on one of them.
TEST(RunCommand, SignalEndsTheRunWithACheckpoint) {
  for (const auto& [signal, code] : {std::pair(SIGTERM, 143), std::pair(SIGINT, 130)}) {
    SCOPED_TRACE(signal);
    const test::TemporaryFolder folder;
    const std::string file = folder.path("ck.safetensors");
    const std::string training = kTinyRun + "--pp 2 --checkpoint " + file;
    const CommandResult result =
        test::run_program_and_signal(SLUICE_COMMAND, words(training + " --steps 10000000 --log-every 1"), signal, true);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(folder.num_files(), 1);
    // It resumes after the last step that was reported.
    std::istringstream out(result.out);
    int last = 0;
    std::string line;
    while (std::getline(out, line)) std::sscanf(line.c_str(), "step %d", &last);
    const json resumed = run_json(training + " --steps 2 --resume " + file);
    EXPECT_EQ(resumed.at("steps")[0].at("step"), last + 1);
  }
}

// Weights, gradients and optimizer states of 0.8 GB.
const std::string kLargeRun =
    "run --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 16 --vocab-size 256 "
    "--position-embedding-type rope --microbatches 2 --pp 2 --steps 100000 ";

// Nothing of the setup is worth waiting for, such as a pipe of text that nobody writes, or many weights.
TEST(RunCommand, SignalBeforeTheFirstStepEndsTheRunImmediately) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder.path("text");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [signal, code] : {std::pair(SIGTERM, 143), std::pair(SIGINT, 130)}) {
    SCOPED_TRACE(signal);
    CommandResult result = test::run_program_and_signal(SLUICE_COMMAND, words(kLargeRun + "--data " + pipe), signal);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(result.err, "");
    // The recorders exist when the workers initialize their weights.
    const std::string recorders = folder.path("rec" + std::to_string(signal));
    const std::string script = "\"$0\" " + kLargeRun + "--recorder " + recorders + " & until [ -s " + recorders +
                               "/rank-0001.rec ]; do sleep 0.01; done; kill -" + std::to_string(signal) +
                               " $!; wait $!";
    result = test::run_program("/bin/bash", {"-mc", script, SLUICE_COMMAND});
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("sluice: ")));
    EXPECT_EQ(result.out, "");
  }
}

// Each process gets the signal, as from srun.
TEST(RunCommand, SignalBeforeTheFirstStepEndsProcesses) {
  if (!has_mpi()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const test::TemporaryFolder folder;
  const std::string pipe = folder.path("text");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string catches = "(( 0x$(awk '/SigCgt/ {print $2}' /proc/$p/status) & 0x4000 ))";  // bit 14: SIGTERM
  const std::string signal_each = "p=$$; (until " + catches + "; do sleep 0.01; done; kill $p) & exec \"$0\" \"$@\"";
  const CommandResult result = run_processes(2, kLargeRun + "--data " + pipe, {"/bin/bash", "-c", signal_each});
  EXPECT_EQ(result.exit_code, 143) << result.err;
}

TEST(BrokenRun, StepLongerThanTheGracePeriodIsEnded) {
  CommandResult result;
  do {
    result =
        test::run_program_and_signal(SLUICE_COMMAND,
                                     words(kTinyRun + "--pp 2 --steps 100000 --log-every 20 --grace 1 --deadline 1000 "
                                                      "--fault delay:rank=1,op=F,mb=2,step=21,seconds=900"),
                                     SIGTERM, true);
  } while (result.exit_code == 143);  // the signal came before the step with the fault
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the step did not end within the grace period of 1 s"));
}

int num_recorder_folders(const test::TemporaryFolder& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    count += entry.path().filename().string().starts_with("sluice-run-") ? 1 : 0;
  }
  return count;
}

// A killed run cannot remove its recorders: the next one does. Those of a failed run were reported, and stay.
TEST(BrokenRun, TemporaryRecordersOfAKilledRunAreRemovedByTheNext) {
  const test::TemporaryFolder folder;
  const auto run_there = [&](const std::string& flags) {
    return test::run_program(SLUICE_COMMAND, words(kTinyRun + "--pp 2 --steps 2 " + flags),
                             {"TMPDIR=" + folder.path()});
  };
  EXPECT_EQ(run_there("--fault kill:rank=1,op=B,mb=2,step=2").exit_code, 128 + SIGKILL);
  EXPECT_EQ(num_recorder_folders(folder), 1);
  EXPECT_EQ(run_there("").exit_code, 0);
  EXPECT_EQ(num_recorder_folders(folder), 0);
  EXPECT_EQ(run_there("--fault nan:rank=1,op=B,mb=2,step=2").exit_code, 8);
  EXPECT_EQ(num_recorder_folders(folder), 1);
  // In use by a run: locked by it.
  const std::string used = folder.path("sluice-run-abcdef");
  std::filesystem::create_directory(used);
  const int lock = ::open(used.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  EXPECT_EQ(run_there("").exit_code, 0);
  EXPECT_EQ(num_recorder_folders(folder), 2);
  ::close(lock);
  // Two signals end a run without a message about its recorders.
  const std::string script = "\"$0\" " + kTinyRun +
                             "--pp 2 --steps 2 --fault delay:step=2,seconds=900 >\"$TMPDIR/out\" & " +
                             "until grep -q step \"$TMPDIR/out\"; do sleep 0.01; done; kill $!; kill -INT $!; wait $!";
  const CommandResult ended =
      test::run_program("/bin/bash", {"-mc", script, SLUICE_COMMAND}, {"TMPDIR=" + folder.path()});
  EXPECT_THAT(ended.exit_code, AnyOf(130, 143)) << ended.err;
  EXPECT_THAT(ended.err, Not(HasSubstr("sluice-run-")));
  EXPECT_EQ(num_recorder_folders(folder), 2);
  // Another file of that name is not a folder of recorders.
  std::ofstream(folder.path("sluice-run-file")) << "a";
  EXPECT_EQ(run_there("").exit_code, 0);
  EXPECT_EQ(num_recorder_folders(folder), 2);
}

// The search for folders of killed runs has a limit, and later runs continue it.
TEST(RunCommand, ManyStaleRecorderFoldersDoNotDelayARun) {
  const test::TemporaryFolder folder;
  constexpr int kFolders = 1100;
  for (int i = 0; i < kFolders; ++i) {
    std::filesystem::create_directory(folder.path("sluice-run-" + std::to_string(i)));
  }
  for (int before = kFolders; before > 0;) {
    const CommandResult result =
        test::run_program(SLUICE_COMMAND, words(kTinyRun + "--pp 2 --steps 1"), {"TMPDIR=" + folder.path()});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const int after = num_recorder_folders(folder);
    EXPECT_LT(after, before);
    EXPECT_GE(after, before - 1000);
    before = after;
  }
}

// A folder that cannot be opened ends the run; it does not try again for ever.
TEST(RunCommand, RecorderFolderThatCannotBeOpenedIsAnError) {
  const TemporaryFolder folder;
  for (const char* descriptors : {"6", "8", "12"}) {
    const CommandResult result = test::run_program(
        "/bin/bash", {"-c", std::string("ulimit -n ") + descriptors + "; export TMPDIR=" + folder.path() +
                                "; exec timeout -s KILL 20 " SLUICE_COMMAND " run --steps 1"});
    EXPECT_NE(result.exit_code, 137) << descriptors;
    EXPECT_LE(folder.num_files(), 3) << descriptors;
  }
  // The current folder was removed.
  const std::string enter = "mkdir " + folder.path("$$") + "; cd " + folder.path("$$") + "; ";
  const std::string script = enter + "rmdir " + folder.path("$$") + "; exec ";
  const std::string arguments = kTinyRun + "--pp 2 --steps 1 --recorder .";
  const CommandResult threads = test::run_program("/bin/bash", {"-c", script + SLUICE_COMMAND + " " + arguments});
  EXPECT_EQ(threads.exit_code, 2);
  EXPECT_EQ(threads.err, "sluice: --recorder: .: No such file or directory\n");
  if (has_mpi()) {
    const CommandResult processes = run_processes(2, arguments, {"/bin/bash", "-c", script + "\"$0\" \"$@\""});
    EXPECT_EQ(processes.exit_code, 2);
    EXPECT_THAT(processes.err, HasSubstr("sluice: --recorder: .: No such file or directory\n"));
    // Only rank 1 cannot write there: the others do not wait for it.
    const std::string one = enter + "[ $OMPI_COMM_WORLD_RANK = 0 ] || rmdir " + folder.path("$$") + "; exec ";
    const CommandResult failed = run_processes(2, arguments, {"/bin/bash", "-c", one + "\"$0\" \"$@\""});
    EXPECT_EQ(failed.exit_code, 2);
    EXPECT_THAT(failed.err, HasSubstr("sluice: rank 1: ./rank-0001.rec"));
  }
}

TEST(RunCommand, RecorderFolderBelongsToOneRun) {
  const test::TemporaryFolder folder;
  const std::string recorders = folder.path("rec");
  ASSERT_EQ(run(kTinyRun + "--pp 4 --steps 1 --recorder " + recorders).exit_code, 0);
  ASSERT_EQ(run(kTinyRun + "--pp 2 --steps 1 --recorder " + recorders).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(recorders + "/rank-0002.rec"));  // of the first run
  const int lock = ::open(recorders.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  const std::string refusal = "--recorder: " + recorders + ": is in use by another run";
  const CommandResult second = run(kTinyRun + "--pp 2 --steps 1 --recorder " + recorders);
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr(refusal));
  EXPECT_TRUE(std::filesystem::exists(recorders + "/rank-0001.rec"));
  if (has_mpi()) {
    const CommandResult processes = run_processes(2, kTinyRun + "--pp 2 --steps 1 --recorder " + recorders);
    EXPECT_EQ(processes.exit_code, 2);
    EXPECT_THAT(processes.err, HasSubstr(refusal));
  }
  ::close(lock);
}

TEST(BrokenRun, IsStoppedAndReportedOverMpi) {
  if (!has_mpi()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  for (const FaultCase& fault_case : kFaultCases) {
    SCOPED_TRACE(fault_case.fault);
    const CommandResult result =
        run_processes(2, kTinyRun + "--pp 2 --steps 4 --deadline 1 --fault " + fault_case.fault);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr(fault_case.message));
  }
}

// A full file system, or here the largest size of a file.
TEST(BrokenRun, CheckpointThatCannotBeWrittenEndsAllProcesses) {
  if (!has_mpi()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const test::TemporaryFolder folder;
  const std::string file = folder.path("ck.safetensors");
  const std::string model =
      "run --num-layers 2 --hidden-size 512 --num-attention-heads 4 --vocab-size 64 --max-position-embeddings 8 "
      "--position-embedding-type learned_absolute --seq-length 8 --microbatches 2 --steps 4 --deadline 2 --pp 2 ";
  const std::vector<std::string> limit = {"sh", "-c", "ulimit -f 60000; exec \"$0\" \"$@\""};
  const CommandResult result = run_processes(2, model + "--checkpoint-every 2 --checkpoint " + file, limit);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr(file + ": cannot write: File too large"));
  EXPECT_EQ(folder.num_files(), 0);
  // The same file, damaged: the rank that finds it says so, and no other waits for it.
  const CommandResult good = run_processes(2, model + "--checkpoint " + file);
  ASSERT_EQ(good.exit_code, 0) << good.err;
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(-1, std::ios::end);
  const int last = damaged.peek();
  damaged.seekp(-1, std::ios::end);
  damaged.put(static_cast<char>(last ^ 1));
  damaged.close();
  const CommandResult resumed = run_processes(2, model + "--resume " + file);
  EXPECT_EQ(resumed.exit_code, 2) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("damaged: its checksum is"));
}

TEST(RunCommand, MissingTemporaryFolderIsReported) {
  const CommandResult result = test::run_program(SLUICE_COMMAND, {"run", "--steps", "1"}, {"TMPDIR=/nowhere"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("TMPDIR=/nowhere: "));
}

TEST(BrokenRun, NamesTheProcessThatDied) {
  if (!has_mpi()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const CommandResult result =
      run_processes(2, kTinyRun + "--pp 2 --steps 4 --deadline 30 --fault kill:rank=1,op=B,mb=2,step=2");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("rank 1 died in step 2, inside B(stage 1, mb 2)"));
}

}  // namespace
}  // namespace sluice::test

// `sluice slice` on the command line, and its cuts in `simulate`.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kSliceModel =
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --vocab-size 32000 --max-position-embeddings 32768 "
    "--cluster dgx-a100-80gb --pp 4 --seq-length 16384 ";

class Slice : public testing::Test {
 protected:
  CommandResult run(const std::string& arguments) const { return run_sluice(words("slice " + arguments)); }
  json document(const std::string& arguments) const {
    const CommandResult result = run("--json " + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, testing::AnyOf("", HasSubstr(": slice ignores /")));  // keys of the file
    return json::parse(result.out);
  }
  std::string error_of(const std::string& arguments, int code = 2) const {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.exit_code, code) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }
  std::string write(const std::string& name, const std::string& text) const {
    write_file_whole(folder_.path(name), text);
    return folder_.path(name);
  }

  TemporaryFolder folder_;
};

// t(i, j) = 1 + i + j granules, in ms, of 4 granules of 8 tokens, on 3 cells: sum + 2 max.
//   1+1+1+1: 2 + 3 + 4 + 5 + 2 x 5 = 24   2+2: 3 + 5 + 2 x 5 = 18   4: 5 + 2 x 5 = 15   3+1: 4 + 5 + 10 = 19
constexpr const char* kTable = R"({"schema": "sluice.slice_times/1", "granularity": 8,
  "forward": [[2e-3, 3e-3, 4e-3, 5e-3], [3e-3, 4e-3, 5e-3], [4e-3, 5e-3], [5e-3]]})";

// t(i, j) = 1 + 4 i, whatever the context: 4 slices take 20 + 2 x 5 = 30, 2 slices 18 + 2 x 9 = 36, one 17 + 2 x 17
// = 51.
constexpr const char* kSteep = R"({"schema": "sluice.slice_times/1", "granularity": 8,
  "forward": [[5e-3, 9e-3, 13e-3, 17e-3], [5e-3, 9e-3, 13e-3], [5e-3, 9e-3], [5e-3]],
  "backward": [[10e-3, 18e-3, 26e-3, 34e-3], [10e-3, 18e-3, 26e-3], [10e-3, 18e-3], [10e-3]]})";

TEST_F(Slice, SolvesATableOfTimes) {
  const std::string file = write("t.json", kTable);
  const CommandResult result = run("--times " + file + " --pp 3");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "terapipe: 32 tokens in multiples of 8, 3 cells, 1 sequence per microbatch, forward only\n"
            "  1 slice: 32\n"
            "  time 15 ms    optimal: equal to the lower bound 15 ms\n"
            "  even, 1 slice                     15 ms  +0.0 %\n"
            "  best even, 1 slice                15 ms  +0.0 %\n"
            "  no slicing                        15 ms  +0.0 %\n");
  const std::string steep = write("s.json", kSteep);
  json found = document("--times " + steep + " --pp 3");
  EXPECT_EQ(found.at("slice_lengths"), json({8, 8, 8, 8}));
  EXPECT_DOUBLE_EQ(found.at("time_s").get<double>(), 30e-3);
  EXPECT_EQ(found.at("gap"), 0);
  EXPECT_DOUBLE_EQ(found.at("unsliced_s").get<double>(), 51e-3);
  found = document("--times " + steep + " --pp 3 --backward");
  EXPECT_DOUBLE_EQ(found.at("time_s").get<double>(), 90e-3);
  found = document("--times " + steep + " --pp 3 --max-slices 2");
  EXPECT_EQ(found.at("slice_lengths"), json({16, 16}));
  EXPECT_DOUBLE_EQ(found.at("time_s").get<double>(), 36e-3);
  EXPECT_DOUBLE_EQ(found.at("even_s").get<double>(), 36e-3);
  EXPECT_EQ(document("--times " + steep + " --pp 3 --slices 1").at("slices"), 1);
}

TEST_F(Slice, Algorithm1IsNoBetterAndReportsItsGap) {
  const std::string steep = write("s.json", kSteep);
  const json exact = document("--times " + steep + " --pp 3 --algorithm1 0");
  EXPECT_DOUBLE_EQ(exact.at("time_s").get<double>(), 30e-3);
  const json coarse = document("--algorithm1 5 --granularity 512 " + kSliceModel);
  const json best = document("--granularity 512 " + kSliceModel);
  EXPECT_EQ(coarse.at("method"), "algorithm1");
  EXPECT_GE(coarse.at("time_s"), best.at("time_s"));
  EXPECT_LE(coarse.at("lower_bound_s"), best.at("time_s"));
}

// One microbatch, forward and backward, on equal cells: `slice` and `simulate` predict the same time except for the
// transfers, which `slice` reports separately. Uniform costs, F 1 s and B 2 s per microbatch: even slices are best.
TEST_F(Slice, MatchesSimulate) {
  const std::string uniform = "--uniform f=1,b=1,w=1,comm=0.25 --pp 4 --seq-length 64 ";
  const json found = document(uniform + "--backward --granularity 8 --slices 4");
  EXPECT_EQ(found.at("slice_lengths"), json({16, 16, 16, 16}));
  // Sum 3 s, and 3 more of a quarter of it.
  EXPECT_DOUBLE_EQ(found.at("time_s").get<double>(), 3 + 3 * 0.75);
  EXPECT_DOUBLE_EQ(found.at("hop_latency_s").get<double>(), 6 * 0.25);
  const CommandResult simulated =
      run_sluice(words("simulate --json --schedule terapipe --slice-lengths 16,16,16,16 --microbatches 1 " + uniform));
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_DOUBLE_EQ(json::parse(simulated.out).at("makespan_s").get<double>(), 5.25 + 1.5);
}

TEST_F(Slice, JointCutBeatsBothSimpleCuts) {
  const json found = document("--joint 5 --granularity 1024 " + kSliceModel);
  EXPECT_EQ(found.at("method"), "joint");
  int sequences = 0;
  double sum = 0;
  for (const json& part : found.at("parts")) {
    sequences += part.at("sequences").get<int>();
    sum += part.at("time_s").get<double>();
  }
  EXPECT_EQ(sequences, 5);
  EXPECT_NEAR(found.at("time_s").get<double>(), sum, 1e-9);
  EXPECT_LE(found.at("time_s"), found.at("together_s"));
  EXPECT_LE(found.at("time_s"), found.at("apart_s"));
  EXPECT_THAT(run("--joint 2 --granularity 1024 " + kSliceModel).out, HasSubstr("one sequence per part"));
}

TEST_F(Slice, BalancedReportsTheSpreadOfItsSlices) {
  const json found = document("--equal-flops --slices 4 " + kSliceModel);
  EXPECT_EQ(found.at("granularity"), 128);
  EXPECT_EQ(found.at("slices"), 4);
  EXPECT_GT(found.at("flops_spread"), 0);
  EXPECT_LT(found.at("flops_spread"), 0.1);
  EXPECT_GE(found.at("time_s"), found.at("lower_bound_s"));
  const json fine = document(
      "--equal-flops --slices 4 --granularity 1 --seq-length 1024 --num-layers 8 --hidden-size 1024 "
      "--num-attention-heads 8 --vocab-size 32000 --max-position-embeddings 32768 --cluster "
      "dgx-a100-80gb --pp 4");
  EXPECT_LT(fine.at("flops_spread"), 0.02);
  // With many positions, the fastest cut is searched at fewer; the time of the slices themselves is that of simulate.
  const std::string wide = "--model llama3-8b --seq-length 65536 --cluster dgx-h100 --tp 8 --pp 4 --mbs 1 ";
  const json many = document("--equal-flops --slices 300 --granularity 1 " + wide);
  EXPECT_TRUE(many.at("lower_bound_s").is_null());
  EXPECT_EQ(many.at("fastest").at("granularity"), 128);
  EXPECT_GT(many.at("fastest").at("time_s"), 0);
  EXPECT_EQ(many.at("slice_lengths").size(), 300U);
  if (small_scope()) return;
  const json most = document("--equal-flops --slices 4097 --granularity 1 --seq-length 8192 " +
                             wide.substr(0, wide.find("--seq")) + wide.substr(wide.find("--cluster")));
  EXPECT_GT(most.at("even_s"), 0);
  const json four = document("--equal-flops --slices 4 --granularity 1 " + wide);
  const json table = document("--equal-flops --slices 4 --granularity 256 " + wide);
  EXPECT_NEAR(four.at("time_s").get<double>(), table.at("time_s").get<double>(),
              0.01 * table.at("time_s").get<double>());
  EXPECT_THAT(run("--equal-flops --slices 4 --granularity 1 " + wide).out,
              HasSubstr("the fastest cut in multiples of 256, "));
}

TEST_F(Slice, CutsForASchedule) {
  const std::string output = folder_.path("cut.json");
  const std::string flags = kSliceModel + "--gbs 4 --granularity 512 --max-slices 6 ";
  const json found = document("--for seq1f1b -o " + output + " " + flags);
  EXPECT_EQ(found.at("method"), "schedule");
  EXPECT_TRUE(found.at("fits"));
  EXPECT_GE(found.at("time_s"), found.at("lower_bound_s"));
  EXPECT_LT(found.at("time_s"), found.at("even_s"));
  // The written file gives the same time as a part of a scenario with the same flags.
  const json fragment = json::parse(read_file(output));
  EXPECT_EQ(fragment.at("schedule").at("name"), "seq1f1b");
  const std::string lengths = fragment.at("schedule").at("slice_lengths").dump();
  const std::string simulated =
      test::output_of(words("simulate --json --schedule seq1f1b --slice-lengths " +
                            lengths.substr(1, lengths.size() - 2) + " --gbs 4 " + kSliceModel));
  EXPECT_EQ(json::parse(simulated).at("makespan_s"), found.at("time_s"));
  // The comma-separated form.
  const std::string plain = folder_.path("cut.txt");
  ASSERT_EQ(run("--for seq1f1b --slices 3 -o " + plain + " " + flags).exit_code, 0);
  const std::string text = read_file(plain);
  EXPECT_EQ(std::count(text.begin(), text.end(), ','), 2);
  EXPECT_EQ(run_sluice(words("simulate --schedule seq1f1b --slice-lengths " + text.substr(0, text.size() - 1) +
                             " --gbs 4 " + kSliceModel))
                .exit_code,
            0);
}

TEST_F(Slice, ScenarioSlicesAreReplacedAndFlagsAreNot) {
  const std::string file = write("scenario.json", R"({"model": {"num_layers": 8, "hidden_size": 1024,
      "num_attention_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768}, "cluster": "dgx-a100-80gb",
      "parallelism": {"pp": 4}, "batch": {"microbatches": 2, "sequence_length": 16384},
      "schedule": {"name": "seq1f1b", "slices": 2}})");
  EXPECT_GT(document(file + " --granularity 512").at("slices"), 2);
  EXPECT_EQ(document(file + " --granularity 512 --slices 3").at("slices"), 3);
  EXPECT_EQ(document(file + " --granularity 1024 --for seq1f1b --slices 3").at("candidates").size(), 1U);
  EXPECT_GT(document(file + " --granularity 1024 --for seq1f1b").at("candidates").size(), 1U);
}

TEST(SliceCommand, PrintsTheBestSoFarWhenInterrupted) {
  const std::string flags = "slice --for seq1f1b --gbs 4 --granularity 64 " + kSliceModel;
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)}) {
    const CommandResult result = run_program_and_signal(SLUICE_COMMAND, words(flags), signal);
    EXPECT_EQ(result.exit_code, code);
    EXPECT_THAT(result.out, HasSubstr("interrupted: best so far"));
  }
}

TEST_F(Slice, ExitsWith3IfNoCutFits) {
  // 40 layers of width 8192 on four GPUs: 18 bytes per parameter exceed 80 GiB each, for every cut.
  const CommandResult result =
      run("--for seq1f1b --max-slices 2 --granularity 2048 --gbs 1 --num-layers 40 --hidden-size 8192 "
          "--num-attention-heads 64 --vocab-size 32000 --max-position-embeddings 32768 --cluster dgx-a100-80gb --pp 4 "
          "--seq-length 4096");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.out, HasSubstr("no cut fits in memory"));
}

// GPipe takes 3 (sum + max) on two ranks, in any order. Lines go to the replicas in turn: 4 and 4, 1 and 1, which take
// 36 and 9. Replicas with 4 and 1 take 27.
TEST_F(Slice, BalancesReplicas) {
  const std::string file = write("lengths.txt", "4\n1\n4\n1\n");
  const std::string flags = "--balance --for gpipe --pp 2 --dp 2 --uniform f=1,b=1,w=1 --lengths " + file;
  const json found = document(flags);
  EXPECT_EQ(found.at("pack"), "balanced");
  EXPECT_EQ(found.at("time_s"), 27);
  EXPECT_EQ(found.at("as_loaded_s"), 36);
  EXPECT_EQ(found.at("saved").at("all"), 0.25);
  EXPECT_EQ(found.at("saved").at("replicas"), 0.25);
  EXPECT_EQ(found.at("saved").at("packing"), 0.25);
  EXPECT_EQ(found.at("saved").at("order"), 0);
  EXPECT_THAT(run(flags).out, HasSubstr("balanced, given order: 27 s"));
  EXPECT_THAT(run(flags).out,
              HasSubstr("as loaded 36 s: saves 25.0 %; order alone 0.0 %, balanced replicas alone 25.0 %"));
  // Only what is asked for is compared.
  EXPECT_EQ(document(flags + " --pack greedy").at("candidates").size(), 8U);  // two packings in four orders
}

// The best order of these takes 37, ascending 39 (tests/sim/batch_setup_test.cc).
TEST_F(Slice, OrdersMicrobatches) {
  const std::string file = write("lengths.json", "[1, 2, 3, 4]");
  const json found = document("--balance --pp 2 --uniform f=1,b=1,w=1 --lengths " + file);
  EXPECT_EQ(found.at("schedule"), "1f1b");
  EXPECT_EQ(found.at("time_s"), 37);
  EXPECT_EQ(found.at("order_proven"), true);
  EXPECT_EQ(found.at("as_loaded_s"), 39);
  EXPECT_EQ(found.at("saved").at("order"), 1 - 37.0 / 39);
}

// The file that it writes has its time.
TEST_F(Slice, WritesTheBalancedBatch) {
  const std::string model =
      "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --vocab-size 1000 --max-position-embeddings 8192 "
      "--cluster dgx-h100 --pp 4 --dp 2 --seq-length 8192 ";
  for (const auto& [name, family] :
       in_scope(std::vector{std::pair("out.txt", "1f1b"), {"out.json", "zb-h1"}, {"out.json", "interleaved-1f1b"}})) {
    const std::string file = folder_.path(name);
    const std::string of = std::string(family) + " ";
    const json found = document("--balance --for " + of + "--microbatches 4 --lengths lognormal:900,1,8192,32 -o " +
                                file + " " + model);
    EXPECT_NE(found.at("pack"), "given");
    const CommandResult simulated =
        run_sluice(words("simulate --json --schedule " + of + "--lengths " + file + " " + model));
    ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
    EXPECT_EQ(json::parse(simulated.out).at("documents").at("makespan_s"), found.at("time_s")) << family;
    EXPECT_EQ(json::parse(simulated.out).at("documents").at("tokens"), found.at("tokens"));
    for (const json& each : found.at("candidates")) {
      if (each.contains("time_s") && each.at("fits")) {
        EXPECT_LE(found.at("time_s"), each.at("time_s"));
      }
    }
  }
}

TEST_F(Slice, BalanceStopsWhenTheTimeIsUp) {
  const std::string flags = "--uniform f=1,b=1,w=1,comm=0 --balance --pp 2 --dp 2 --microbatches 2 --lengths " +
                            write("lengths.txt", "4\n1\n4\n1\n");
  const json whole = document(flags);
  EXPECT_EQ(whole.at("out_of_time"), false);
  const json first = document(flags + " --time-budget 0");
  EXPECT_EQ(first.at("out_of_time"), true);
  ASSERT_EQ(first.at("candidates").size(), 1);
  EXPECT_EQ(first.at("time_s"), whole.at("as_loaded_s"));
  EXPECT_THAT(run(flags + " --time-budget 0").out, HasSubstr("time budget exhausted"));
}

TEST_F(Slice, BalanceRefusesWhatItDoesNotDo) {
  const std::string file = write("lengths.txt", "4\n1\n4\n1\n");
  const std::string flags = "--pp 2 --lengths " + file;
  EXPECT_EQ(error_of("--pp 2 --balance"), "sluice: slice: --balance needs the lengths of documents (--lengths)\n");
  EXPECT_EQ(error_of(flags), "sluice: slice: --lengths has no effect without --for or --balance\n");
  EXPECT_EQ(error_of(flags + " --balance --joint 2"),
            "sluice: slice: --balance takes --for, --time-budget and flags of the scenario alone\n");
  EXPECT_THAT(error_of(flags + " --for seq1f1b --seq-length 4"), HasSubstr("--lengths needs --balance"));
  EXPECT_THAT(error_of("--pp 2 --balance --lengths none.txt"), HasSubstr("none.txt"));
  EXPECT_THAT(error_of("--pp 2 --balance --lengths " + write("wrong.txt", "4 x\n")), HasSubstr("wrong.txt"));
  EXPECT_THAT(error_of(flags + " --balance --dp 8"), HasSubstr("got 4"));
  EXPECT_THAT(error_of(flags + " --balance --pack greed"), HasSubstr("--pack: "));
  EXPECT_THAT(error_of(flags + " --balance --for gpip"), HasSubstr("--for: "));
}

TEST_F(Slice, ErrorsAreOneLine) {
  const std::string uniform = "--pp 4 --seq-length 64 ";
  EXPECT_EQ(error_of(uniform + "--granularity 65"),
            "sluice: forward times: expected a granularity between 1 and the sequence's 64 tokens, got 65\n");
  EXPECT_EQ(error_of(uniform + "--granularity 16 --slices 5"),
            "sluice: expected between 1 and 4 slices of 64 tokens at granularity 16, got 5\n");
  EXPECT_EQ(error_of(uniform + "--microbatches 2 --for 1f1b"),
            "sluice: --for: 1f1b has no slices: expected one of terapipe, seq1f1b, "
            "eager-seq1f1b, seq1f1b-interleaved, seq1f1b-zb1p, seq1f1b-zb2p\n");
  EXPECT_THAT(error_of(uniform + "--microbatches 2 --for sec1f1b"), HasSubstr("did you mean 'seq1f1b'?"));
  EXPECT_EQ(error_of(uniform + "--microbatches 2 --for seq1f1b --granularity 16 --slices 5"),
            "sluice: command line: slices: expected at most 4 slices of 64 tokens at granularity 16, got 5\n");
  EXPECT_THAT(error_of("--pp 4"), HasSubstr("/batch/sequence_length: required (--seq-length)"));
  EXPECT_THAT(error_of("--seq-length 64"), HasSubstr("/parallelism/pp"));
  EXPECT_THAT(error_of(uniform + "--for seq1f1b --joint 2"), HasSubstr("exclude each other"));
  EXPECT_THAT(error_of(uniform + "--time-budget 3"), HasSubstr("--time-budget needs --for"));
  EXPECT_THAT(error_of(uniform + "--equal-flops --max-slices 2"), HasSubstr("--equal-flops needs --slices"));
  EXPECT_THAT(error_of(uniform + "--equal-flops"), HasSubstr("--equal-flops needs --slices, the number of slices"));
  EXPECT_THAT(error_of(uniform + "--equal-flops --slices 2"), HasSubstr("--equal-flops needs a model"));
  // The lengths are what the command finds.
  EXPECT_THAT(error_of(uniform + "--equal-flops --slices 2 --slice-lengths 32,32"),
              HasSubstr("slice: --slice-lengths has no effect"));
  EXPECT_THAT(error_of(uniform + "--slicing even"), HasSubstr("slice: --slicing has no effect"));
  EXPECT_THAT(error_of(uniform + "--algorithm1 0.1 --slices 2"), HasSubstr("excludes --slices"));
  EXPECT_THAT(error_of(uniform + "--algorithm1 -1"), HasSubstr("--algorithm1"));
  EXPECT_THAT(error_of(uniform + "--granularity 0"), HasSubstr("--granularity"));
  EXPECT_THAT(error_of(uniform + "--joint 2 -o x"), HasSubstr("--joint excludes -o"));
}

TEST_F(Slice, ScenarioErrorsMatchSimulate) {
  for (const std::string text : {R"({"parallelism": 3})", R"({"batch": []})", R"({"schedule": 1})",
                                 R"({"parallelism": {"pp": "x", "stage_layers": 2}})"}) {
    const std::string file = write("wrong.json", text);
    for (const std::string arguments : {"", " --for seq1f1b", " --equal-flops --slices 2", " --joint 2"}) {
      EXPECT_THAT(error_of(file + arguments), HasSubstr("wrong.json: /")) << text;
    }
  }
}

// A scenario with two chunks per rank is cut with one stage per cell.
TEST_F(Slice, AcceptsScenariosWithChunks) {
  const json found = document(SLUICE_SOURCE_DIR "/examples/llama3-8b-zbv-h100.json --granularity 256");
  EXPECT_EQ(found.at("cells"), 8);
  EXPECT_EQ(found.at("tokens"), 4096);
}

TEST_F(Slice, TableErrorsNameTheLocation) {
  const std::string good = write("t.json", kTable);
  EXPECT_THAT(error_of("--times " + good), HasSubstr("--times needs --pp, the number of cells"));
  EXPECT_EQ(error_of("--times " + good + " --pp 2 --backward"),
            "sluice: " + good + ": /backward: required key is missing (--backward)\n");
  EXPECT_THAT(error_of("--times " + good + " --pp 2 --granularity 8"), HasSubstr("--times excludes --granularity"));
  for (const char* const flag : {"--tp 2", "--model llama3-8b", "--seq-length 64", "--uniform f=1,b=2"}) {
    const std::string words = flag;
    EXPECT_EQ(error_of("--times " + good + " --pp 2 " + words),
              "sluice: " + words.substr(0, words.find(' ')) + ": has no effect on the times of --times\n");
  }
  EXPECT_THAT(error_of("--times " + good + " --pp 2 --joint 2"), HasSubstr("one number of sequences"));
  EXPECT_THAT(error_of("--times " + good + " --pp 0"), HasSubstr("--pp: expected a whole number of cells from 1 to"));
  const auto table = [&](const std::string& text) { return error_of("--times " + write("b.json", text) + " --pp 2"); };
  EXPECT_THAT(table(R"({"schema": "sluice.slice_times/1", "forward": []})"),
              HasSubstr("b.json: /forward: expected at least one row"));
  EXPECT_THAT(table(R"({"schema": "sluice.slice_times/1", "forward": [[1, 2], []]})"),
              HasSubstr("b.json: /forward/1: expected 1 times, of 1 to 1 granules after a prefix of 1 tokens"));
  EXPECT_THAT(table(R"({"schema": "sluice.slice_times/1", "tokens": 1, "forward": [[1, 2], [1]]})"),
              HasSubstr("b.json: /forward: expected 1 rows"));
  EXPECT_THAT(table(R"({"schema": "sluice.slice_times/1", "forward": [[-1]]})"), HasSubstr("/forward/0/0"));
  EXPECT_THAT(table(R"({"schema": "sluice.slice_times/1", "forward": [[1]], "rows": 1})"), HasSubstr("/rows"));
}

// Chunks of 1, 2 and 4 tokens for t = 4 + 2 n + (2 u n + n^2) / 8 s, on two cells of half that time.
TEST_F(Slice, ReadsMeasuredChunks) {
  std::string text = "tokens,context,seconds,ranks\n";
  for (const int n : {1, 2, 4}) {
    for (const int u : {0, 8}) text += fmt::format("{},{},{},2\n", n, u, (4 + 2 * n + (2 * u * n + n * n) / 8.0) * 2);
  }
  const std::string chunks = write("chunks.csv", text);
  const json found = document("--times " + chunks + " --pp 4 --seq-length 32 --granularity 1");
  EXPECT_EQ(found.at("time_s"), 308);
  EXPECT_EQ(found.at("slices"), 11);
  EXPECT_EQ(found.at("unsliced_s"), 4 * (4 + 2 * 32 + 32 * 32 / 8.0));
  EXPECT_NEAR(found.at("chunk_times").at("attention_s"), 0.125, 1e-9);
  EXPECT_EQ(error_of("--times " + write("bad.csv", "tokens,context,seconds\n1,0,no\n") + " --pp 2").find("sluice: "),
            0);
  EXPECT_THAT(error_of("--times " + chunks + " --pp 4 --backward"), HasSubstr("measured chunks have forwards alone"));
}

json forwards_of(const std::string& arguments) {
  const CommandResult result = run_sluice(words("simulate --json --pp 4 --gpus 4 " + arguments));
  EXPECT_THAT(result.exit_code, testing::AnyOf(0, 3)) << result.err;  // 3: does not fit
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("schedule").at("backward"), false);
  return document.at("ranks").at(0);
}
double peak_of(const std::string& arguments) {
  return forwards_of("--model llama3-8b --cluster dgx-h100 " + arguments).at("peak_memory_bytes");
}

// Nothing of a microbatch stays but keys and values, which prefill keeps and slices read: 2 x 1024 elements of 16 bits
// in each of 8 layers.
TEST(ForwardOnlyCommand, HoldsKeysAndValuesAlone) {
  const std::string sizes = "--seq-length 4096 --schedule 1f1b --microbatches ";
  const double layer = 4096 * 2 * 1024 * 2;
  EXPECT_EQ(peak_of(sizes + "4 --forward-only evaluation"), peak_of(sizes + "32 --forward-only evaluation"));
  EXPECT_EQ(peak_of(sizes + "12 --forward-only prefill") - peak_of(sizes + "4 --forward-only prefill"), 8 * 8 * layer);
  const CommandResult refused = run_sluice(words(
      "simulate --model llama3-8b --cluster dgx-h100 --pp 4 --forward-only prefill --recompute full " + sizes + "4"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--recompute: no effect without a backward"));
}

// Prefill keeps the latents of latent attention, here of 512 and 64 elements in each of 15 layers, and each slice makes
// the keys and values of its prefix again; that of other attention does the same work as evaluation.
TEST(ForwardOnlyCommand, PrefillKeepsLatents) {
  const std::string latent = "--model deepseek-v3 --cluster gb300-nvl72 --precision fp8 --seq-length 4096 ";
  const auto peak = [&](const std::string& microbatches) {
    return forwards_of(latent + "--schedule 1f1b --forward-only prefill --microbatches " + microbatches)
        .at("peak_memory_bytes")
        .get<double>();
  };
  EXPECT_EQ(peak("12") - peak("4"), 8.0 * 15 * 4096 * (512 + 64) * 2);
  const auto again = [&](const std::string& model, int slices) {
    const std::string cut =
        model + "--schedule terapipe --microbatches 1 --slices " + std::to_string(slices) + " --forward-only ";
    return forwards_of(cut + "prefill").at("busy_s").get<double>() -
           forwards_of(cut + "evaluation").at("busy_s").get<double>();
  };
  EXPECT_EQ(again(latent, 1), 0);
  // The prefixes of n equal slices have (n - 1) / 2 times the sequence.
  EXPECT_GT(again(latent, 2), 0);
  EXPECT_NEAR(again(latent, 4) / again(latent, 2), 3, 0.3);
  EXPECT_EQ(again("--model llama3-8b --cluster dgx-h100 --seq-length 4096 ", 4), 0);
}

// Weights of linear layers are held in the precision of their GEMMs alone.
TEST(ForwardOnlyCommand, PrefillHoldsNarrowWeightsOnce) {
  const std::string sizes = "--seq-length 4096 --schedule 1f1b --microbatches 4 --forward-only prefill --precision ";
  EXPECT_LT(peak_of(sizes + "fp8"), 0.7 * peak_of(sizes + "bf16"));
}

TEST(ForwardOnlyCommand, SlicesOfPromptsLackTheHead) {
  const std::string prompt = "slice --json --model deepseek-v3 --cluster gb300-nvl72 --pp 4 --seq-length 32768 ";
  const auto time = [&](const std::string& flags) {
    const CommandResult result = run_sluice(words(prompt + flags));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out).at("unsliced_s").get<double>();
  };
  EXPECT_LT(time("--forward-only prefill"), time("--forward-only evaluation"));
  EXPECT_EQ(time("--forward-only evaluation"), time(""));
  for (const std::string flags : {"--backward", "--for seq1f1b --gbs 8"}) {
    const CommandResult refused = run_sluice(words(prompt + "--forward-only prefill " + flags));
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("--forward-only: ex"));  // excludes; expected none
  }
}

}  // namespace
}  // namespace sluice::test

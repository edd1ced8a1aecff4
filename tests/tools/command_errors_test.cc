// Wrong input gives one line on standard error, nothing on standard output, and the documented exit code.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/support/command.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

void expect_refused(const std::vector<std::string>& arguments, int exit_code, const std::string& message) {
  const CommandResult result = run_sluice(arguments);
  EXPECT_EQ(result.exit_code, exit_code);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "sluice: " + message + "\n");
}

std::string write(const TemporaryFolder& folder, const std::string& name, const std::string& text) {
  std::ofstream(folder.path(name), std::ios::binary) << text;
  return folder.path(name);
}

TEST(CommandErrors, WrongUsage) {
  const std::pair<const char*, const char*> cases[] = {
      {"simulat", "unknown command 'simulat'; did you mean 'simulate'? ('sluice --help' lists the commands)"},
      {"slice --balanced", "slice: --balanced is now --equal-flops; --balance distributes documents"},
      {"simulate --shedule 1f1b", "simulate: unknown flag '--shedule'; did you mean '--schedule'?"},
      {"simulate --hiden-size 8", "simulate: unknown flag '--hiden-size'; did you mean '--hidden-size'?"},
      {"simulate --gpu4s 8", "simulate: unknown flag '--gpu4s'; did you mean '--gpus'?"},
      {"simulate --fp8", "simulate: unknown flag '--fp8'"},  // no flag is similar
      {"simulate --pp 4 --microbatches 4 --tp", "simulate: --tp: expected a whole number"},
      {"simulate --model llama3-8b --seq-length 2048 --pp 1 --microbatches 1 --cluster p4d.24xlarge "
       "--optimizer-cpu-offload",
       "--optimizer-cpu-offload: p4d.24xlarge has no host_link_bytes_per_s and "
       "host_memory_bytes_per_s: specify them in "
       "a node file (docs/formats.md, Cluster files)"},
      {"simulate --pp 1 --microbatches 1 --optimizer-cpu-offload --optimizer-offload-fraction 1.5",
       "--optimizer-offload-fraction: expected a number from 0 to 1, got 1.5"},
      {"simulate --pp 1 --dp 2 --microbatches 1 --zero-stage 3 --optimizer-cpu-offload --optimizer-offload-fraction "
       "0.5",
       "--optimizer-offload-fraction: expected 1 with zero 3, whose 32-bit parameters are on the host too, got 0.5"},
      {"simulate --pp four", "simulate: --pp: expected a whole number, got 'four'"},
      {"simulate --time-budget soon", "simulate: --time-budget: expected a number, got 'soon'"},
      {"simulate --slice-lengths 1,x",
       "simulate: --slice-lengths: expected whole numbers, separated by commas, got '1,x'"},
      {"simulate --width 5", "simulate: --width: expected a whole number from 10 to 100000, got '5'"},
      {"simulate --svg-width wide", "simulate: --svg-width: expected a number from 240 to 20000, got 'wide'"},
      {"simulate --color blu", "simulate: --color: expected one of auto, always, never, got 'blu'"},
      {"simulate --swiglu=maybe", "simulate: --swiglu: expected true or false, got 'maybe'"},
      {"simulate --pp 2 --pp 3", "simulate: --pp: given 2 times, expected once"},
      {"slice --granularity 0", "slice: --granularity: expected a whole number from 1 to 1073741824, got '0'"},
      {"plan --tp 1,5000", "plan: --tp: expected a whole number from 1 to 4096, got '5000'"},
      {"run --seed -1", "run: --seed: expected a whole number of at least 0, got '-1'"},
      {"compare a", "compare: second is required: Second run, by convention the measurement"},
      {"calibrate", "calibrate: measured is required: CSV tables, Megatron-LM logs, or kernel times (.json)"},
      {"simulate --pp 2 --microbatches 4 --model gpt2 --num-layers 4 --seq-length 128",
       "--model and --num-layers exclude each other: --num-layers describes a model without a file"},
      {"slice --for 1f1b --pp 2 --seq-length 1024 --microbatches 2",
       "--for: 1f1b has no slices: expected one of terapipe, seq1f1b, eager-seq1f1b, seq1f1b-interleaved, "
       "seq1f1b-zb1p, seq1f1b-zb2p"},
      {"simulate --trace= --pp 2 --microbatches 2", "simulate: --trace: expected a value, got ''"},
      {"plan --model-error 1",
       "plan: --model-error: expected a percentage such as 10% or a fraction such as 0.1, got '1': write 1% or 100%"},
      {"simulate --explain 0", "simulate: --explain: write the stage after '=', as in --explain=0"},
      {"simulate --explain-memory 0", "simulate: --explain-memory: write the rank after '=', as in --explain-memory=0"},
      {"simulate a.json --explain 3", "simulate: --explain: write the stage after '=', as in --explain=3"},
      {"simulate --explain 0 a.json", "simulate: --explain: write the stage after '=', as in --explain=0"},
      {"schedule 1f1b --schedule zb-v",
       "schedule: --schedule has no effect on this command; flag of simulate, weave, run, profile --like"},
      {"schedule 1f1 --pp 2",
       "there is no schedule family '1f1'; did you mean '1f1b'? ('sluice schedules' lists them)"},
      {"simulate seq1f1b --pp 2", "seq1f1b: expected a scenario file; --schedule seq1f1b selects the schedule family"},
      {"simulate a.json b.json", "simulate: unexpected argument 'b.json'"},
      {"simulate --pp 2 --microbatches 2 --json --gantt", "simulate: --json and --gantt exclude each other"},
      {"simulate --pp 2 --microbatches 2 --trace-ranks 2", "--trace-ranks: expected ranks 0 to 1, got 2"},
      {"schedule 1f1b --pp 2 --microbatches 2 -o x.txt",
       "-o: expected a name ending in .json, .csv or .dot, got 'x.txt'"},
  };
  for (const auto& [line, message] : cases) {
    SCOPED_TRACE(line);
    expect_refused(words(line), 2, message);
  }
}

// Bounds that CLI11 does not check for NaN.
TEST(CommandErrors, NumbersOfFlagsAreFinite) {
  const std::pair<const char*, const char*> cases[] = {
      {"plan --model-error", "plan: --model-error: expected a percentage such as 10% or a fraction such as 0.1"},
      {"run --deadline", "run: --deadline: expected a number from 0.01 to 1000000"},
      {"run --grace", "run: --grace: expected a number from 0.1 to 1000000"},
      {"run --lr", "run: --lr: expected a number of at least 0"},
      {"run --weight-decay", "run: --weight-decay: expected a number of at least 0"},
      {"run --clip-grad", "run: --clip-grad: expected a number of at least 0"},
      {"slice --algorithm1", "slice: --algorithm1: expected a number from 0 to 1000000000"},
      {"slice --time-budget", "slice: --time-budget: expected a number from 0 to 1000000"},
      {"profile --time-budget", "profile: --time-budget: expected a number from 0 to 1000000"},
      {"simulate --svg-width", "simulate: --svg-width: expected a number from 240 to 20000"},
  };
  for (const auto& [line, message] : cases) {
    for (const std::string value : {"nan", "inf", "-1", "-inf", "1x", "1e999"}) {
      SCOPED_TRACE(line);
      std::vector<std::string> arguments = words(line);
      arguments.back() += "=" + value;
      expect_refused(arguments, 2, std::string(message) + ", got '" + value + "'");
    }
  }
  expect_refused(
      words("plan --model-error 4"), 2,
      "plan: --model-error: expected a percentage such as 10% or a fraction such as 0.1, got '4': write 4% or "
      "0.04");
  expect_refused(words("plan --model-error 101%"), 2, "plan: --model-error: expected at most 100%, got '101%'");
  expect_refused(words("simulate --pp 2 --microbatches 2 --schedule auto --time-budget nan"), 2,
                 "--time-budget: expected a number from 0 to 1000000, got nan");
  expect_refused(words("simulate --pp 2 --microbatches 2 --stage-weights 1,nan"), 2,
                 "--stage-weights: expected a number from 0 to 100000000, got nan");
}

// Names that begin like a misspelled one are near, too.
TEST(CommandErrors, SuggestionsStandAfterTheValue) {
  for (const std::string name : {"dgx-a100", "dgx-a10", "dgxa100", "DGX-A100"}) {
    const CommandResult result = run_sluice(
        {"simulate", "--pp", "2", "--microbatches", "2", "--model", "gpt2", "--seq-length", "128", "--cluster", name});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.err.substr(result.err.find(", got ")), ", got \"" + name + "\"; did you mean 'dgx-a100-40gb'?\n");
  }
}

// Runs a shell command in which $0 is the program.
CommandResult run_shell(const std::string& line) { return run_program("/bin/sh", {"-c", line, SLUICE_COMMAND}); }

TEST(CommandErrors, ScenariosMayBePipesOfLimitedSize) {
  const TemporaryFolder folder;
  const std::string scenario = R"({\"parallelism\":{\"pp\":2},\"batch\":{\"microbatches\":4}})";
  const CommandResult read = run_shell("echo \"" + scenario + "\" | \"$0\" simulate /dev/stdin --trace " +
                                       folder.path("t.json") + " --report " + folder.path("r.html"));
  EXPECT_EQ(read.exit_code, 0) << read.err;
  const CommandResult endless = run_shell("\"$0\" simulate /dev/zero");
  EXPECT_EQ(endless.exit_code, 2);
  EXPECT_EQ(endless.err, "sluice: /dev/zero: larger than 268435456 bytes\n");
  // Paths in a pipe are relative to the current folder.
  ASSERT_EQ(run_sluice({"schedule", "1f1b", "--pp", "2", "--microbatches", "2", "-o", folder.path("s.json")}).exit_code,
            0);
  for (const char* how : {"echo '{\"schedule\": \"s.json\"}' | \"$0\" simulate /dev/stdin",
                          "echo '{\"schedule\": \"s.json\"}' > t; \"$0\" simulate /dev/stdin < t"}) {
    EXPECT_EQ(run_shell("cd " + folder.path() + "; " + how).exit_code, 0) << how;
  }
  EXPECT_EQ(run_shell("yes '' | \"$0\" compare /dev/stdin none.json").err,
            "sluice: /dev/stdin: event 0: a string or a blank is longer than 16 MiB\n");
}

#ifndef SLUICE_SANITIZED  // sanitizers reserve address space
TEST(CommandErrors, ExhaustedMemoryIsAttributedToOpsOnlyIfThereAreMany) {
  const CommandResult many = run_shell("ulimit -v 400000; \"$0\" simulate --pp 64 --microbatches 100000 --gantt");
  EXPECT_EQ(many.exit_code, 2);
  EXPECT_EQ(many.err,
            "sluice: command line: out of memory for a schedule of about 13 million ops: reduce the number of "
            "microbatches, slices or chunks\n");
  const CommandResult few = run_shell(
      "(printf '{\"a\":['; head -c 200000000 /dev/zero | tr '\\0' ' '; printf '1]}') | (ulimit -v 400000; \"$0\" "
      "simulate "
      "/dev/stdin)");
  EXPECT_EQ(few.exit_code, 2);
  EXPECT_EQ(few.err, "sluice: out of memory\n");
}
#endif

TEST(CommandErrors, LongValuesAreRejected) {
  const CommandResult result = run_sluice({"simulate", "--pp", std::string(100'000, 'x')});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_LT(result.err.size(), 2000U);
}

// A terminal would obey them, and a message is one line.
TEST(CommandErrors, ControlCharactersOfValuesAreEscaped) {
  expect_refused({"simulate", "--pp", "4\n4"}, 2, R"(simulate: --pp: expected a whole number, got '4\x0a4')");
  expect_refused({"simulate", "--pp", "4\t\x1b[1m"}, 2,
                 R"(simulate: --pp: expected a whole number, got '4\x09\x1b[1m')");
  expect_refused({"simulate", "--width", "5\n"}, 2,
                 R"(simulate: --width: expected a whole number from 10 to 100000, got '5\x0a')");
  expect_refused({"simulate", "--color", "re\nd"}, 2,
                 R"(simulate: --color: expected one of auto, always, never, got 're\x0ad')");
  expect_refused({"plan", "--model-error", "4\n"}, 2,
                 R"(plan: --model-error: expected a percentage such as 10% or a fraction such as 0.1, got '4\x0a')");
  expect_refused({"simu\nlate"}, 2,
                 R"(unknown command 'simu\x0alate'; did you mean 'simulate'? ('sluice --help' lists the commands))");
  expect_refused({"simulate", "--p\np=3"}, 2, R"(simulate: unknown flag '--p\x0ap'; did you mean '--pp'?)");
  expect_refused({"simulate", "a", "b\nc"}, 2, R"(simulate: unexpected argument 'b\x0ac')");
  expect_refused({"simulate", "--schedule", "1f\n1b", "--pp", "2", "--microbatches", "2"}, 2,
                 R"(--schedule: there is no schedule family '1f\x0a1b'; did you mean '1f1b'? ('sluice schedules' )"
                 "lists them)");
  expect_refused({"simulate", "a\nb.json"}, 2, R"(a\x0ab.json: cannot open: No such file or directory)");
}

TEST(CommandErrors, EmptyValuesAreRejected) {
  for (const char* flag : {"--trace", "--svg", "--report", "--ops", "--model", "--schedule"}) {
    expect_refused({"simulate", "--pp", "2", "--microbatches", "2", flag, ""}, 2,
                   std::string("simulate: ") + flag + ": expected a value, got ''");
  }
  expect_refused({"schedule", "1f1b", "--pp", "2", "--microbatches", "2", "-o", ""}, 2,
                 "schedule: --output: expected a value, got ''");
  expect_refused({"run", ""}, 2, "run: scenario: expected a value, got ''");
}

TEST(CommandErrors, WrongNumbers) {
  const std::pair<const char*, const char*> cases[] = {
      {"simulate --microbatches 4", "command line: /parallelism/pp: required: the number of pipeline ranks (--pp)"},
      {"simulate --pp 4", "command line: /batch: required: microbatches (--microbatches), or global_batch (--gbs)"},
      {"simulate --pp 0 --microbatches 4", "--pp: expected a whole number from 1 to 8192, got 0"},
      {"simulate --pp -4 --microbatches 4", "--pp: expected a whole number from 1 to 8192, got -4"},
      {"simulate --pp 4 --microbatches 4 --overlap-param-gather",
       "--overlap-param-gather: requires distributed_optimizer (or zero) and overlap_grad_reduce, got true"},
      {"simulate --pp 4 --microbatches 4 --zero-stage 4", "--zero-stage: expected a whole number from 0 to 3, got 4"},
      {"simulate --pp 4 --microbatches 4 --zero-stage 0 --use-distributed-optimizer",
       "--zero-stage: contradicts distributed_optimizer, which is true: expected 1, 2 or 3, got 0"},
      {"simulate --pp 4 --microbatches 4 --zero-stage 3 --use-distributed-optimizer=false",
       "--zero-stage: contradicts distributed_optimizer, which is false: expected 0, got 3"},
      {"simulate --pp 4 --microbatches 4 --dp 4 --zero-stage 1 --dp-shard 3",
       "--dp-shard: expected a divisor of dp 4, got 3"},
      {"simulate --pp 4 --microbatches 4 --dp 4 --dp-shard 2",
       "--dp-shard: requires zero 1, 2 or 3, or distributed_optimizer, got 2"},
      {"simulate --pp 4 --microbatches 4 --dp 4 --zero-stage 1 --dp-replicate 3",
       "--dp-replicate: expected a divisor of dp 4, got 3"},
      {"simulate --pp 4 --microbatches 4 --dp 4 --dp-replicate 2",
       "--dp-replicate: requires zero 1, 2 or 3, or distributed_optimizer, got 2"},
      {"simulate --pp 4 --microbatches 4 --dp 4 --zero-stage 1 --dp-replicate 2 --dp-shard 2",
       "--dp-replicate: specify dp_shard or dp_replicate, not both, got 2"},
      {"simulate --model llama3-8b --pp 4 --microbatches 4 --recompute selective --recompute-modules moe_act",
       "--recompute-modules: requires a model with experts, got \"moe_act\""},
      {"simulate --model llama3-8b --pp 4 --microbatches 4 --recompute selective --recompute-modules mlp,mla_up_proj",
       "--recompute-modules: requires a model with latent attention, got \"mla_up_proj\""},
      {"simulate --model llama3-8b --pp 4 --microbatches 4 --fused-grouped-mlp",
       "--fused-grouped-mlp: requires a model with experts, got true"},
      {"simulate --model qwen3-30b-a3b --pp 4 --microbatches 4 --tp 2 --etp 2 --fused-grouped-mlp",
       "--fused-grouped-mlp: requires etp 1, got true"},
      {"simulate --model llama3-8b --pp 4 --microbatches 4 --cuda-graph-modules attn",
       "--cuda-graph-modules: requires cuda_graph_impl local or transformer_engine, got [\"attn\"]"},
      {"simulate --model llama3-8b --pp 4 --microbatches 4 --cuda-graph-impl local --cuda-graph-modules moe_router",
       "--cuda-graph-modules: requires a model with experts, got \"moe_router\""},
      {"simulate --model qwen3-30b-a3b --pp 4 --microbatches 4 --cuda-graph-impl local --cuda-graph-modules "
       "moe,moe_router",
       "--cuda-graph-modules: moe excludes its parts moe_router and moe_preprocess, got [\"moe\",\"moe_router\"]"},
      {"simulate --model qwen3-30b-a3b --pp 4 --microbatches 4 --cuda-graph-impl local --cuda-graph-modules "
       "moe_preprocess",
       "--cuda-graph-modules: moe_preprocess requires moe_router, got [\"moe_preprocess\"]"},
      {"simulate --pp 4 --microbatches 4 --explain-memory=", "simulate: --explain-memory: expected a value after '='"},
      {"simulate scenario.json --explain=", "simulate: --explain: expected a value after '='"},
      {"simulate --pp 4 --microbatches 4 --zero-stage 2 --reshard-after-forward",
       "--reshard-after-forward: requires zero 3, got true"},
      {"simulate --pp 4 --microbatches 4 --cp-comm-type ring",
       "--cp-comm-type: expected one of p2p, a2a, got \"ring\""},
      {"simulate --schedule seq1f1b --slices 4 --pp 2 --microbatches 2 --cp 2 --seq-length 4096 --num-layers 4 "
       "--hidden-size 64 --num-attention-heads 4 --vocab-size 128 --max-position-embeddings 4096",
       "--cp: slices of a sequence are not modeled with context parallelism, got 2"},
      {"simulate --pp 4 --microbatches 0", "--microbatches: expected a whole number from 1 to 1000000000, got 0"},
      {"simulate --pp 4 --microbatches 1000000000000",
       "--microbatches: expected a whole number from 1 to 1000000000, got 1000000000000"},
      {"simulate --pp 4 --gbs 10 --mbs 4", "--gbs: expected a multiple of micro_batch x dp = 4 x 1, got 10"},
      {"simulate --pp 4 --gbs 8 --mbs 2 --microbatches 5",
       "--gbs: expected micro_batch x dp x microbatches = 2 x 1 x 5, got 8"},
      {"simulate --schedule seq1f1b --pp 2 --microbatches 2 --slices 3 --slice-lengths 1,2",
       "--slice-lengths: expected 3 lengths (slices), got [1,2]"},
      {"simulate --schedule seq1f1b --pp 2 --microbatches 2 --seq-length 10 --slice-lengths 4,5",
       "--slice-lengths: expected lengths that add up to the sequence length 10, got [4,5]"},
      {"simulate --schedule seq1f1b --pp 2 --microbatches 2 --seq-length 3 --slices 4",
       "--slices: expected at most one slice for each of 3 tokens, got 4"},
      {"simulate --pp 2 --microbatches 2 --uniform f=1,g=2",
       "--uniform: expected f=, b=, w=, s=, t=, fb=, comm= or copy=, got 'g=2'; did you mean 'f'?"},
      {"simulate --pp 2 --microbatches 2 --uniform f=nan",
       "--uniform: f: expected seconds between 0 and 1e8, got 'nan'"},
      {"simulate --pp 2 --microbatches 2 --uniform f=-1", "--uniform: f: expected seconds between 0 and 1e8, got '-1'"},
      {"simulate --pp 2 --microbatches 2 --uniform f=1x", "--uniform: f: expected seconds between 0 and 1e8, got '1x'"},
      {"simulate --pp 2 --microbatches 2 --uniform f=1,f=2", "--uniform: f is given twice"},
      {"simulate --pp 2 --microbatches 2 --uniform f=1:2",
       "--uniform: expected one value of f, or 1, one per slice, got 2"},
      {"simulate --pp 2 --microbatches 2 --stage-weights 1,2,3", "--stage-weights: expected 2, one per stage, got 3"},
      {"simulate --pp 4 --microbatches 1000 --uniform f=1e8,b=1,w=1",
       "the ops take up to 12684 years in all: more nanoseconds than fit in 64 bits"},
      // 1e-6 s / 10000 slices: 0.1 ns per F, 0.2 ns per B; both become 0.
      {"simulate --schedule seq1f1b --pp 2 --slices 10000 --microbatches 2 --uniform f=1e-6,b=1e-6,w=1e-6",
       "the ops take 1.5e-10 s on average, which rounding to whole nanoseconds changes by 100 %, more than 1 %: use a "
       "larger unit of time or fewer slices"},
      // Sums of rounded times may be right where none of the times is: F of 0.4 ns becomes 0, B of 1.6 ns becomes 2.
      {"simulate --pp 2 --microbatches 2 --uniform f=4e-10,b=8e-10,w=8e-10",
       "the ops take 1e-09 s on average, which rounding to whole nanoseconds changes by 40 %, more than 1 %: use a "
       "larger unit of time or fewer slices"},
      {"simulate --pp 2 --microbatches 2 --uniform f=1e-9,b=1e-9,w=1e-9 --slow-rank 0=0.01 --slow-rank 1=0.01",
       "with slow ranks and links, the ops take 1.5e-11 s on average, which rounding to whole nanoseconds changes by "
       "100 %, more than 1 %: use a larger unit of time or fewer slices"},
      {"slice --pp 2 --seq-length 1024 --uniform f=1e-9,b=1e-9,w=1e-9",
       "slices of 4 tokens take 3.91e-12 s on average, which rounding to whole nanoseconds changes by 100 %, more than "
       "1 %: use a larger unit of time or fewer slices"},
  };
  for (const auto& [line, message] : cases) {
    SCOPED_TRACE(line);
    expect_refused(words(line), 2, message);
  }
}

TEST(CommandErrors, UnsupportedFamilyParameters) {
  const std::pair<const char*, const char*> cases[] = {
      {"--schedule 1f1x --pp 4 --microbatches 8",
       "--schedule: there is no schedule family '1f1x'; did you mean '1f1b'? ('sluice schedules' lists them)"},
      {"--schedule 1f1b --pp 4 --microbatches 8 --slices 2", "1f1b: does not slice sequences: expected 1 slice, got 2"},
      {"--schedule 1f1b --pp 4 --microbatches 8 --batches 2",
       "1f1b: flushes after every batch: expected 1 batch, got 2 (period_s is the time per batch)"},
      {"--schedule 1f1b --pp 4 --microbatches 8 --group 4", "1f1b: group: only the interleaved families take one"},
      {"--schedule zb-v --pp 4 --microbatches 8 --vpp 3", "zb-v: chunks (--vpp): its placement fixes 2, got 3"},
      {"--schedule interleaved-1f1b --pp 4 --vpp 2 --microbatches 6",
       "interleaved-1f1b: microbatches: 6 in groups of 4 leave a last group of 2, less than the 4 ranks"},
      {"--schedule dualpipe --pp 3 --microbatches 8", "dualpipe: ranks: expected an even number, got 3"},
      {"--schedule pipedream-2bw --pp 8 --microbatches 4",
       "pipedream-2bw: microbatches: two versions of the weights need at least 7 per batch (ranks - 1), got 4"},
  };
  for (const auto& [line, message] : cases) {
    SCOPED_TRACE(line);
    std::vector<std::string> arguments = words(line);
    arguments.insert(arguments.begin(), "simulate");
    expect_refused(arguments, 2, message);
  }
  for (const char* command : {"run", "profile", "validate", "simulate"}) {
    expect_refused({command, "--schedule", "foo", "--pp", "2", "--microbatches", "2"}, 2,
                   "--schedule: there is no schedule family 'foo' ('sluice schedules' lists them)");
  }
  const TemporaryFolder folder;
  const std::string scenario = write(folder, "s.json", R"({"schedule": "foo"})");
  for (const char* command : {"run", "profile", "validate"}) {
    expect_refused({command, scenario}, 2,
                   scenario + ": /schedule/name: there is no schedule family 'foo' ('sluice schedules' lists them)");
  }
}

TEST(CommandErrors, HugeGraphsAreRejectedImmediatelyWithTheirSize) {
  const auto begin = std::chrono::steady_clock::now();
  expect_refused(words("simulate --pp 1000 --microbatches 1000000000"), 2,
                 "1f1b: 2000000000000 ops (1000 stages x 1000000000 microbatches x 1 batches x 1 slices x F, B): more "
                 "than 60000000");
  expect_refused(words("simulate --schedule zb-v --pp 8192 --microbatches 1000000"), 2,
                 "zb-v: 49152000000 ops (16384 stages x 1000000 microbatches x 1 batches x 1 slices x F, I, W): more "
                 "than 60000000");
  // Building such graphs would take minutes and terabytes.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(CommandErrors, ScenarioFiles) {
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  expect_refused({"simulate", folder.path("none.json")}, 2,
                 folder.path("none.json") + ": cannot open: No such file or directory");
  expect_refused({"simulate", folder.path()}, 2, folder.path() + ": is a folder, expected a file");
  const std::pair<const char*, const char*> cases[] = {
      {"[]", ": /: expected a scenario object"},
      {R"({"pp": 1})", ": /pp: unknown key"},
      {R"({"schema": "sluice.scenario/2"})", ": /schema: expected \"sluice.scenario/1\", got \"sluice.scenario/2\""},
      {R"({"parallelism": {"pp": 2}, "shedule": "1f1b"})", ": /shedule: unknown key; did you mean 'schedule'?"},
      {R"({"parallelism": {"pp": 2, "recompute": "ful"}})",
       ": /parallelism/recompute: expected one of none, selective, full, got \"ful\"; did you mean 'full'?"},
      {R"({"parallelism": {"pp": 2.5}})", ": /parallelism/pp: expected a whole number from 1 to 8192, got 2.5"},
      {R"({"parallelism": {"pp": 2, "pp": 3}})", ": key \"pp\" occurs twice in one object"},
      {R"({"parallelism": {"pp": 2}, "batch": {"microbatches": 2}, "cost": "analytic"})",
       ": /model: required by the analytic cost (--model)"},
      {R"({"model": "nowhere.json"})", nullptr},
      {R"({"cluster": "dgx-a100"})", nullptr},
      {R"({"batch": {"microbatches": 1)", nullptr},
      {"", nullptr},
      {"\xff\xfe", nullptr},
  };
  for (const auto& [text, message] : cases) {
    SCOPED_TRACE(text);
    write(folder, "s.json", text);
    if (message != nullptr) {
      expect_refused({"simulate", file}, 2, file + message);
      continue;
    }
    const CommandResult result = run_sluice({"simulate", file});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  write(folder, "deep.json", std::string(100000, '[') + std::string(100000, ']'));
  expect_refused({"simulate", folder.path("deep.json")}, 2, folder.path("deep.json") + ": nested deeper than 100");
}

// Flags are added to sections of the file: one of a wrong type is an error, whatever the flags replace.
TEST(CommandErrors, FlagsDoNotHideWrongTypes) {
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"schedule": 5})", "/schedule: expected a name or an object, got 5"},
      {R"({"parallelism": 5})", "/parallelism: expected an object, got 5"},
      {R"({"batch": "x"})", "/batch: expected an object, got \"x\""},
      {R"({"cost": [1]})", "/cost: expected a name or an object, got [1]"},
      {R"({"model": true})", "/model: expected a name or an object, got true"},
      {R"({"perturbation": 1})", "/perturbation: expected an object, got 1"},
      {R"({"parallelism": {"pp": "x"}})", "/parallelism/pp: expected a whole number"},
      {R"({"schedule": {"name": 5}})", "/schedule/name: expected a string, got 5"},
  };
  for (const auto& [text, message] : cases) {
    SCOPED_TRACE(text);
    write(folder, "s.json", text);
    for (const char* command : {"simulate", "plan", "slice", "run", "validate", "profile"}) {
      const char* const family = std::string(command) == "slice" ? "--for" : "--schedule";
      const CommandResult result = run_sluice({command, file, "--pp", "2", family, "1f1b"});
      EXPECT_EQ(result.exit_code, 2) << command;
      EXPECT_EQ(result.err.find("sluice: " + file + ": " + message), 0U) << command << ": " << result.err;
    }
  }
  write(folder, "s.json", R"({"perturbation": {"slow_ranks": 5}})");
  expect_refused({"simulate", file, "--pp", "2", "--microbatches", "2", "--slow-rank", "0=2"}, 2,
                 file + ": /perturbation/slow_ranks: expected an array, got 5");
  expect_refused(
      {"simulate", "--model", "llama3-8b", "--pp", "2", "--microbatches", "2", "--seq-length", "4096", "--recompute",
       "selective", "--sweep", "recompute-modules=[mlp,moe_act],[layernorm,moe_act]"},
      2,
      "--sweep: no combination can be simulated; the first error: --recompute-modules: requires a model with "
      "experts, got \"moe_act\"");
  expect_refused({"simulate", "--pp", "2", "--microbatches", "2", "--sweep", "/parallelism=5", "--sweep", "pp=2"}, 2,
                 "--sweep: no combination can be simulated; the first error: /parallelism: expected an object, got 5");
}

TEST(CommandErrors, IgnoredKeysAreCheckedAndReportedOnce) {
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"perturbation": {"jitter": "often"}})", "/perturbation/jitter: expected lognormal:S"},
      {R"({"calibration": {}})", "/schema: required key is missing"},
      {R"({"cost": {"kind": "uniform", "f": -1}})", "/cost/f: expected a number from 0"},
      {R"({"schedule": {"slices": 0}})", "/schedule/slices: expected a whole number from 1"},
  };
  for (const auto& [text, message] : cases) {
    SCOPED_TRACE(text);
    write(folder, "s.json", text);
    for (const char* command : {"plan", "slice", "run", "validate"}) {
      const CommandResult result = run_sluice({command, file});
      EXPECT_EQ(result.exit_code, 2) << command;
      EXPECT_NE(result.err.find(message), std::string::npos) << command << ": " << result.err;
    }
  }
  write(folder, "s.json", R"({"perturbation": {"slow_ranks": [{"rank": 0, "factor": 2}]}, "cost": {"kind": "uniform"},
                              "parallelism": {"pp": 1}, "batch": {"microbatches": 1}})");
  const CommandResult run = run_sluice({"run", file, "--steps", "1"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.err, "sluice: " + file + ": run ignores /cost, /perturbation\n");
  const CommandResult plan =
      run_sluice(words("plan " + file + " --gbs 8 --seq-length 512 --cluster dgx-a100-80gb " +
                       "--tp 1 --pp 1 --mbs 1 --model " SLUICE_SOURCE_DIR "/examples/models/gpt3-1b.json"));
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_EQ(plan.err, "sluice: " + file + ": plan ignores /parallelism/pp, /batch/microbatches, /perturbation\n");
}

// An error names the flag that set the value, also where the file has the same key.
TEST(CommandErrors, ValuesOfFlagsAreNotBlamedOnTheFile) {
  const TemporaryFolder folder;
  const std::string file =
      write(folder, "s.json", R"({"parallelism": {"pp": 2, "tp": 1, "cp": 0}, "batch": {"microbatches": 2}})");
  const auto refused = [&](const std::string& flags, const std::string& message) {
    SCOPED_TRACE(flags);
    expect_refused(words("simulate " + file + " " + flags), 2, message);
  };
  refused("--tp -1", "--tp: expected a whole number from 1 to 4096, got -1");
  refused("--pp 3", file + ": /parallelism/cp: expected a whole number from 1 to 4096, got 0");  // the file's
  refused("--cp 1 --stage-weights 1,-1", "--stage-weights: expected a number from 0 to 100000000, got -1.0");
  refused("--cp 1 --slow-rank 9999=2", "--slow-rank: expected a whole number from 0 to 8191, got 9999");
  refused("--cp 1 --slow-link 0-9999=2", "--slow-link: expected a whole number from 0 to 8191, got 9999");
  refused("--cp 1 --seq-length 4 --slice-lengths 2,0",
          "--slice-lengths: expected a whole number from 1 to 1073741824, got 0");
  refused("--cp 1 --gbs 7 --dp 2", "--gbs: expected a multiple of micro_batch x dp = 1 x 2, got 7");
  const std::string schedule = folder.path("schedule.json");
  ASSERT_EQ(run_sluice({"schedule", "1f1b", "--pp", "4", "--microbatches", "2", "-o", schedule}).exit_code, 0);
  refused("--cp 1 --schedule " + schedule,
          file + ": /parallelism/pp: expected 4, as the schedule " + schedule + " has it, got 2");
  refused("--cp 1 --pp 3 --schedule " + schedule, "--pp: expected 4, as the schedule " + schedule + " has it, got 3");
  refused("--cp 1 --sweep tp=-1",
          "--sweep: no combination can be simulated; the first error: --tp: expected a whole number from 1 to 4096, "
          "got -1");
}

std::string schedule_text(const std::string& order, int ranks = 2, int microbatches = 2, const char* lengths = "[1]") {
  std::string placement;
  for (int r = 0; r < ranks; ++r) placement += (r == 0 ? "" : ",") + std::to_string(r);
  return R"({"schema": "sluice.schedule/1", "ranks": )" + std::to_string(ranks) + R"(, "stages": )" +
         std::to_string(ranks) + R"(, "microbatches": )" + std::to_string(microbatches) + R"(, "placement": [[)" +
         placement + R"(]], "shapes": [{"slice_lengths": )" + lengths + R"(}], "order": )" + order + "}";
}

TEST(CommandErrors, InvalidSchedulesExitWith4) {
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  const auto refused = [&](const std::string& text, int exit_code, const std::string& message) {
    write(folder, "s.json", text);
    SCOPED_TRACE(text);
    expect_refused({"schedule", file}, exit_code, message);
    expect_refused({"simulate", "--schedule", file}, exit_code, message);
  };
  refused(schedule_text(R"([["0F0","0F1","0B0"],["1F0","1B0","1F1","1B1"]])"), 4,
          file + ": rank 0: B(stage 0, mb 1) is missing");
  refused(schedule_text(R"([["0F0","0F1","0B0","0B1","0B1"],["1F0","1B0","1F1","1B1"]])"), 4,
          file + ": rank 0, position 4: B(stage 0, mb 1): occurs twice, first at rank 0, position 3");
  refused(schedule_text(R"([["0F0","0F1","0B0","0B1"],["1F0","1B0","1F1","0B1"]])"), 4,
          file + ": rank 1, position 3: B(stage 0, mb 1): the placement has this stage on rank 0");
  refused(schedule_text(R"([["0F0","0F1","0B0","0B1"],["1F0","1B0","1F1","1B2"]])"), 4,
          file + ": rank 1, position 3: B(stage 1, mb 2): there are microbatches 0 to 1");
  refused(schedule_text(R"([["0F0","0F1","0B0","0B1"],["1F0","1B0","1F1","1B1","1W1"]])"), 4,
          file + ": rank 1, position 4: W(stage 1, mb 1): both B and I or W for the same stage, microbatch and slice");
  refused(schedule_text(R"([["0F0","0F1","0B0","0B1"],["1F0","1B0","1F1+1W1","1I1"]])"), 4,
          file + ": rank 1, position 2: F(stage 1, mb 1): a joint block is one F and one B or I, next to each other");
  // Text that does not parse is wrong input.
  refused(
      schedule_text(R"([["0F0junk","0F1","0B0","0B1"],["1F0","1B0","1F1","1B1"]])"), 2,
      file +
          R"(: /order/0/0: expected an op such as "2F0" or "2F0.1", a block "2F4+1B3", or communication such as "2SEND_F0", got "0F0junk")");
  refused(
      schedule_text(R"([[7]])"), 2,
      file +
          R"(: /order/0/0: expected an op such as "2F0" or "2F0.1", a block "2F4+1B3", or communication such as "2SEND_F0", got 7)");
}

TEST(CommandErrors, DeadlocksPrintTheShortestCycle) {
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  const auto refused = [&](const std::string& text, const std::string& cycle) {
    write(folder, "s.json", text);
    expect_refused({"schedule", file}, 4, file + ": deadlock, each waits for the next: " + cycle);
  };
  // B before its own F on rank 1.
  refused(schedule_text(R"([["0F0","0F1","0B0","0B1"],["1B0","1F0","1F1","1B1"]])"),
          "B(stage 1, mb 0) -> F(stage 1, mb 0) -> B(stage 1, mb 0)");
  // Rank 0 wants B0 back before it sends F1; rank 1 wants F1 before it does B0.
  refused(schedule_text(R"([["0F0","0B0","0F1","0B1"],["1F0","1F1","1B1","1B0"]])"),
          "B(stage 0, mb 0) -> B(stage 1, mb 0) -> F(stage 1, mb 1) -> F(stage 0, mb 1) -> B(stage 0, mb 0)");
  // Slices run last to first in the backward; here the first one stands first.
  refused(schedule_text(R"([["0F0.0","0F0.1","0B0.0","0B0.1"]])", 1, 1, "[1,1]"),
          "B(stage 0, mb 0, slice 0) -> B(stage 0, mb 0, slice 1) -> B(stage 0, mb 0, slice 0)");
  // An F cannot share a block with its own B.
  refused(schedule_text(R"([["0F0+0B0"]])", 1, 1),
          "F(stage 0, mb 0)+B(stage 0, mb 0) -> F(stage 0, mb 0)+B(stage 0, mb 0)");
}

// A standard error that is full or closed loses messages, not results.
TEST(CommandErrors, ABrokenStandardErrorLosesOnlyMessages) {
  for (const char* where : {"2>/dev/full", "2>&-"}) {
    SCOPED_TRACE(where);
    const TemporaryFolder folder;
    EXPECT_EQ(run_shell(std::string("$0 simulat ") + where).exit_code, 2);
    // The line about the search goes to standard error.
    const std::string file = folder.path("schedule.json");
    EXPECT_EQ(run_shell("$0 schedule auto --pp 2 --microbatches 4 --json " + (where + (" >" + file))).exit_code, 0);
    EXPECT_GT(std::filesystem::file_size(file), 100U);
  }
}

// What cannot be printed is an error of every command, also the shortest text.
TEST(CommandErrors, ABrokenStandardOutputIsAnError) {
  const TemporaryFolder folder;
  const std::string trace = folder.path("t.json");
  const std::string profile = folder.path("p.json");
  const std::string table = write(folder, "t.csv", "microbatches,iteration_s\n4,1\n");
  const std::string script = write(folder, "run.sh",
                                   "torchrun --nproc-per-node 2 a.py --num-layers 2 --hidden-size 64 "
                                   "--num-attention-heads 2 --seq-length 64 --max-position-embeddings 64 "
                                   "--micro-batch-size 1 --vocab-size 128 --bf16\n");
  const std::string simulate = "simulate --pp 2 --microbatches 4 ";
  const std::string small =
      "--pp 2 --microbatches 2 --num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 "
      "--max-position-embeddings 8 --vocab-size 32 ";
  ASSERT_EQ(run_sluice(words(simulate + "--trace " + trace)).exit_code, 0);
  ASSERT_EQ(run_sluice(words("profile --time-budget 0 " + small + "-o " + profile)).exit_code, 0);
  const std::vector<std::string> lines = {
      "",
      "--help",
      "--version",
      "--help-man",
      "help",
      "help run",
      "schedules",
      "models gpt2",
      "completion bash",
      "doctor",
      simulate,
      simulate + "--json",
      simulate + "--gantt",
      simulate + "--help",
      simulate + "--sweep pp=2,4",
      simulate + "--sweep pp=2,4 --json",
      "schedule 1f1b --pp 2 --microbatches 4",
      "schedule 1f1b --pp 2 --microbatches 4 --json",
      "schedule 1f1b --pp 2 --microbatches 4 --check",
      "plan --pp 2 --gpus 2 --gbs 4 --model gpt2 --cluster dgx-h100 --seq-length 128",
      "slice --pp 2 --seq-length 1024 --uniform f=1,b=1,w=1",
      "import " + script,
      "compare " + trace + " " + trace,
      "compare --json " + trace + " " + trace,
      "run --steps 1 " + small,
      "run --steps 1 --json " + small,
      "profile --time-budget 0 --json " + small,
      "fit --max-error 100000% " + profile,  // of a measurement without repetitions, on a busy machine
      "calibrate " + table + " --pp 2",
      "validate --steps 1 --profile " + profile + " " + small};
  for (const std::string& line : in_scope(lines)) {
    SCOPED_TRACE(line);
    EXPECT_NE(run_shell("$0 " + line + " >" + folder.path("out")).exit_code, 2);
    EXPECT_GT(std::filesystem::file_size(folder.path("out")), 0U);
    for (const auto& [where, reason] :
         {std::pair(" >/dev/full", "No space left on device"), {" >&-", "Bad file descriptor"}}) {
      const CommandResult result = run_shell("$0 " + line + where);
      EXPECT_EQ(result.exit_code, 2);
      const std::string expected = std::string("sluice: cannot write to standard output: ") + reason + "\n";
      EXPECT_EQ(result.err.substr(result.err.size() - std::min(result.err.size(), expected.size())), expected)
          << result.err;
    }
  }
}

// Files that are opened later do not become the standard input, output or error.
TEST(CommandErrors, ClosedStandardDescriptorsStayUnused) {
  const TemporaryFolder folder;
  const std::string trace = folder.path("trace.json");
  EXPECT_EQ(run_shell("$0 simulate --pp 2 --microbatches 4 --trace " + trace + " 0<&- 1>&- 2>&-").exit_code, 2);
  std::string text;
  std::getline(std::ifstream(trace), text, '\0');
  EXPECT_EQ(text.substr(0, 1), "{");
  EXPECT_EQ(text.find("makespan:"), std::string::npos);
  EXPECT_EQ(
      run_shell(
          "$0 run --pp 2 --microbatches 2 --steps 1 --num-layers 2 --hidden-size 16 "
          "--num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 --vocab-size 32 >/dev/null 0<&- 2>&-")
          .exit_code,
      0);
}

TEST(CommandErrors, AnOutputIsNotAnInputOrAnotherOutput) {
  const TemporaryFolder folder;
  const std::string scenario = write(folder, "s.json", R"({"parallelism": {"pp": 2}, "batch": {"microbatches": 2}})");
  const std::string figure = folder.path("x.svg");
  const std::string link = folder.path("link.json");
  std::filesystem::create_symlink(scenario, link);
  expect_refused({"simulate", scenario, "--trace", scenario}, 2,
                 "--trace: '" + scenario + "' is also the input '" + scenario + "'");
  expect_refused({"simulate", scenario, "--trace", link}, 2,
                 "--trace: '" + link + "' is also the input '" + scenario + "'");
  expect_refused({"simulate", scenario, "--trace", figure, "--svg", folder.path("./x.svg")}, 2,
                 "--trace: '" + figure + "' is also --svg '" + folder.path("./x.svg") + "'");
  std::filesystem::current_path(folder.path());
  expect_refused({"simulate", scenario, "--trace", "x.json", "--svg", "./x.json"}, 2,
                 "--trace: 'x.json' is also --svg './x.json'");
  EXPECT_EQ(run_sluice({"simulate", scenario, "--svg", "2", "--svg-title", "2", "--microbatches", "2"}).exit_code, 0);
  std::filesystem::remove("2");
  // The name of a schedule family is no input, whether a file has this name or not.
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(run_sluice(words("simulate --schedule 1f1b --pp 2 --microbatches 2 --trace 1f1b")).exit_code, 0);
    expect_refused(words("schedule 1f1b --pp 2 --microbatches 2 -o 1f1b"), 2,
                   "-o: expected a name ending in .json, .csv or .dot, got '1f1b'");
  }
  std::filesystem::remove("1f1b");
  std::filesystem::current_path("/");
  const std::string rows = write(folder, "rows.csv", "gbs,iteration_ms\n8,1\n");
  expect_refused({"calibrate", rows + "=" + scenario, "-o", scenario}, 2,
                 "--output: '" + scenario + "' is also the input '" + scenario + "'");
  EXPECT_EQ(folder.num_files(), 3);
  EXPECT_EQ(run_sluice({"simulate", scenario, "--trace", "/dev/null", "--svg", "/dev/null"}).exit_code, 0);
}

TEST(CommandErrors, FilesAreWrittenAtomically) {
  const TemporaryFolder folder;
  const std::string old = write(folder, "old.json", "old content");
  // After a failure before or during writing, the old content remains and no other file exists.
  EXPECT_EQ(run_sluice({"schedule", "dualpipe", "--pp", "3", "--microbatches", "8", "-o", old}).exit_code, 2);
  EXPECT_EQ(run_sluice(words("simulate --pp 2 --microbatches 2 --stage-weights 1 --trace " + old)).exit_code, 2);
  std::string content;
  std::getline(std::ifstream(old), content);
  EXPECT_EQ(content, "old content");
  EXPECT_EQ(folder.num_files(), 1);
  for (const std::string& target : {folder.path("no/such/x.json"), folder.path() + ".json/"}) {
    const CommandResult result = run_sluice({"simulate", "--pp", "2", "--microbatches", "2", "--trace", target});
    EXPECT_EQ(result.exit_code, 2) << target;
    EXPECT_THAT(result.err, HasSubstr(target));
  }
  EXPECT_EQ(run_sluice({"simulate", "--pp", "2", "--microbatches", "2", "--trace", folder.path()}).exit_code, 2);
  EXPECT_EQ(run_sluice({"simulate", "--pp", "2", "--microbatches", "2", "--trace", "/dev/full"}).exit_code, 2);
  EXPECT_EQ(folder.num_files(), 1);
}

TEST(CommandErrors, LargeSchedulesAndFormatsAreCheckedBeforeOpsAreMade) {
  const std::string sizes = " --pp 8 --microbatches 700000";
  const auto refusal = [](const std::string& command, const std::string& limit) {
    const CommandResult result = run_sluice(words(command), {"SLUICE_MEMORY_LIMIT=" + limit});
    return result.exit_code == 2 && result.out.empty() ? result.err : "";
  };
  EXPECT_THAT(refusal("simulate --uniform f=1,b=1,w=1 --schedule looped-bfs --trace /dev/null" + sizes, "512MiB"),
              HasSubstr("has 22 million ops, which take about 2.9 GiB of memory, more than the limit of 0.5 GiB"));
  EXPECT_THAT(refusal("schedule pipedream -o x.csv" + sizes, "512GiB"), HasSubstr("CSV has no schedules without a"));
  EXPECT_THAT(refusal("schedule 1f1b" + sizes, "much"), HasSubstr("SLUICE_MEMORY_LIMIT: expected bytes with a unit"));
}

}  // namespace
}  // namespace sluice::test

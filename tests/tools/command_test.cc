// Predictions of the command line, from flags to JSON, compared with closed forms and the longest-path oracle.

#include "tests/support/command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "model/input/files.h"
#include "model/schedule/family.h"
#include "model/schedule/schedule_file.h"
#include "tests/support/golden.h"
#include "tests/support/oracle.h"
#include "tests/support/trace_check.h"

namespace sluice::test {
namespace {

using nlohmann::json;

// The results, without the scenario.
json simulated(const std::string& flags) {
  std::vector<std::string> arguments = words("simulate --json " + flags);
  const CommandResult result = run_sluice(arguments);
  EXPECT_EQ(result.exit_code, 0) << flags << "\n" << result.err;
  if (result.exit_code != 0) return json::object();
  json document = json::parse(result.out);
  EXPECT_EQ(document.erase("scenario"), 1U);
  return document;
}

std::int64_t nanoseconds(const json& seconds) { return std::llround(seconds.get<double>() * 1e9); }
constexpr std::int64_t kSecond = 1'000'000'000;

struct Case {
  const char* flags;
  double makespan, span, period, peak;  // seconds; microbatches, maximum over the ranks
};

TEST(Simulate, MatchesClosedForms) {
  // Derivations: the closed forms of the papers, p = 4, m = 8; f, b, w for 1/p of the model.
  const Case cases[] = {
      // (m+p-1)(f+x) = 11 x 3; rank 0 spans all of it; p in flight.
      {"--schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1", 33, 33, 33, 4},
      {"--schedule gpipe --pp 4 --microbatches 8 --uniform f=1,b=1,w=1", 33, 33, 33, 8},
      // One op of 1/v: (mv+p-1)(f+x)/v = 19 x 1.5; ((v-1)p+2(p-1)+1)/v = 11/2.
      {"--schedule interleaved-1f1b --vpp 2 --pp 4 --microbatches 8 --uniform f=1,b=1,w=1", 28.5, 28.5, 28.5, 5.5},
      // m(f+b+w) + (p-1)max(f+b-w, b, f), span and period alike; p held until W.
      {"--schedule zb-h1 --pp 4 --microbatches 8 --uniform f=1,b=1,w=1", 27, 27, 27, 4},
      // m(f+b+w) + (p-1)max(f+b-2w, b-f, f); span + (p-1)max(f+b-2w, b-f, 0); 2(p-1)+1.
      {"--schedule zb-h2 --pp 4 --microbatches 8 --uniform f=1,b=1,w=1", 27, 24, 24, 7},
      // Worked example: k = 4 slices, one stage 8+8+8.
      {"--schedule seq1f1b-zb2p --pp 4 --microbatches 8 --slices 4 --uniform f=8,b=8,w=8", 198, 192, 192, 2.5},
      {"--schedule zb-v --pp 4 --microbatches 8 --uniform f=8,b=8,w=8", 204, 192, 192, 4},
      {"--schedule zb-v --vpp 2 --pp 4 --microbatches 8 --uniform f=8,b=8,w=8", 204, 192, 192, 4},
      // Latency: +2c[(p-1)+u-ceil(u/p)], u = (m-1)k = 28: 210 becomes 258 with c = 1 (half an F of 2).
      {"--schedule seq1f1b --pp 4 --microbatches 8 --slices 4 --uniform f=8,b=8,w=8,comm=0", 210, 210, 210, 1.75},
      // dualpipe-v in chunks of f=b=w=1/2, joint block 3/2: 2m(f+b+w) + (p-1)(F&B+x-3w) = 24 + 3 x 1; 2p+1 chunks.
      {"--schedule dualpipe-v --pp 4 --microbatches 8 --uniform f=1,b=1,w=1", 27, 25.5, 24.5, 4.5},
      // chimera, x = 2f: f(3m+(p-2)(1+m/p)) = 24 + 2 x 3.
      {"--schedule chimera --pp 4 --microbatches 8 --uniform f=1,b=1,w=1", 30, 30, 30, 4},
      // Without a flush: period m(f+x); whatever --batches says.
      {"--schedule pipedream-2bw --pp 4 --microbatches 8 --batches 1 --uniform f=1,b=1,w=1", 33, 33, 24, 4},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.flags);
    const json result = simulated(c.flags);
    EXPECT_EQ(nanoseconds(result.at("makespan_s")), std::llround(c.makespan * kSecond));
    double peak = 0;
    std::int64_t busy = 0;
    for (const json& rank : result.at("ranks")) {
      peak = std::max(peak, rank.at("peak_in_flight").get<double>());
      busy += nanoseconds(rank.at("busy_s"));
    }
    EXPECT_DOUBLE_EQ(peak, c.peak);
    EXPECT_NEAR(result.at("bubble_fraction").get<double>(), 1 - static_cast<double>(busy) / (4 * c.makespan * kSecond),
                1e-12);
    if (std::string_view(c.flags).find("dualpipe") != std::string_view::npos) continue;  // no form for its span
    EXPECT_EQ(nanoseconds(result.at("span_s")), std::llround(c.span * kSecond));
    if (std::string_view(c.flags).find("chimera") != std::string_view::npos) continue;  // nor for this period
    EXPECT_EQ(nanoseconds(result.at("period_s")), std::llround(c.period * kSecond));
  }
  const json slow = simulated("--schedule seq1f1b --pp 4 --microbatches 8 --slices 4 --uniform f=8,b=8,w=8,comm=1");
  EXPECT_EQ(nanoseconds(slow.at("makespan_s")), 258 * kSecond);
}

// Qi et al. 2024 (ICLR, arXiv:2401.10241), tables 5 and 6: times profiled on A100s in ms, and the bubble rates that the
// authors computed of them, 1 - work / span, to four decimals.
TEST(Simulate, ReproducesTheBubbleRatesOfTheZeroBubblePaper) {
  struct Row {
    int p, m;
    const char* uniform;
    double one_f_one_b, zb_h1, zb_h2;
  };
  const Row rows[] = {
      {8, 24, "f=0.018522,b=0.018086,w=0.009337,comm=0.000601", 0.2431, 0.1585, 0.1083},
      {8, 32, "f=0.018513,b=0.018086,w=0.009331,comm=0.000626", 0.1985, 0.1242, 0.0837},
      {8, 64, "f=0.018546,b=0.018097,w=0.009321,comm=0.000762", 0.1240, 0.0674, 0.0444},
      {16, 48, "f=0.011347,b=0.011248,w=0.008132,comm=0.000377", 0.2552, 0.1397, 0.0672},
      {16, 64, "f=0.011307,b=0.011254,w=0.008101,comm=0.000379", 0.2082, 0.1088, 0.0516},
      {16, 128, "f=0.011325,b=0.011308,w=0.008109,comm=0.000378", 0.1251, 0.0576, 0.0266},
  };
  for (const Row& row : rows) {
    for (const auto& [family, rate] :
         {std::pair("1f1b", row.one_f_one_b), std::pair("zb-h1", row.zb_h1), std::pair("zb-h2", row.zb_h2)}) {
      const json result = simulated(std::string("--schedule ") + family + " --pp " + std::to_string(row.p) +
                                    " --microbatches " + std::to_string(row.m) + " --uniform " + row.uniform);
      const double found = 1 - result.at("ideal_s").get<double>() / result.at("span_s").get<double>();
      EXPECT_NEAR(found, rate, 0.00005) << family << " p=" << row.p << " m=" << row.m;
    }
  }
}

// An independent implementation of --uniform and --stage-weights: seconds per op.
struct Times {
  std::vector<double> f, b, w;  // one value, or one per slice
  double joint = -1;
  double hop = 0;
  std::vector<double> weights;
  std::vector<double> lengths = {1};
  int chunks = 1;

  double one(const std::vector<double>& list, const Op& op) const {
    const double weight = weights.empty() ? 1 : weights.at(static_cast<std::size_t>(op.stage));
    if (list.size() > 1) return list.at(static_cast<std::size_t>(op.slice)) * weight;
    double tokens = 0;
    for (const double length : lengths) tokens += length;
    return list[0] * weight * lengths.at(static_cast<std::size_t>(op.slice)) / tokens / chunks;
  }
  std::int64_t op(const Op& op) const {
    switch (op.kind) {
      case OpKind::F: return std::llround(one(f, op) * 1e9);
      case OpKind::I: return std::llround(one(b, op) * 1e9);
      case OpKind::W: return std::llround(one(w, op) * 1e9);
      case OpKind::B: return std::llround((one(b, op) + one(w, op)) * 1e9);
      case OpKind::S:
      case OpKind::T: break;
    }
    return 0;
  }
};

struct OracleCase {
  const char* family;
  FamilyParams params;
  const char* flags;
  Times times;
};

TEST(Simulate, UnequalSlicesStagesGroupsAndLatencyMatchTheOracle) {
  const OracleCase cases[] = {
      {"1f1b",
       {.ranks = 4, .microbatches = 6},
       "--uniform f=2,b=3,w=1,comm=0.25 --stage-weights 1,2,0.5,1.25",
       {.f = {2}, .b = {3}, .w = {1}, .hop = 0.25, .weights = {1, 2, 0.5, 1.25}}},
      {"seq1f1b",
       {.ranks = 3, .microbatches = 5},
       "--uniform f=8,b=6,w=2,comm=0.5 --slice-lengths 5,2,1",
       {.f = {8}, .b = {6}, .w = {2}, .hop = 0.5, .lengths = {5, 2, 1}}},
      {"seq1f1b",
       {.ranks = 4, .microbatches = 3},
       "--uniform f=4:5:6:7,b=1,w=4 --slices 4",
       {.f = {4, 5, 6, 7}, .b = {1}, .w = {4}, .lengths = {1, 1, 1, 1}}},
      {"terapipe",
       {.ranks = 3, .microbatches = 4},
       "--uniform f=3:2:1,b=3:2:1,w=1:1:1 --slices 3 --stage-weights 1,3,2",
       {.f = {3, 2, 1}, .b = {3, 2, 1}, .w = {1, 1, 1}, .weights = {1, 3, 2}, .lengths = {1, 1, 1}}},
      {"seq1f1b-interleaved",
       {.ranks = 4, .chunks = 2, .microbatches = 8, .group = 8},
       "--uniform f=2,b=2,w=2,comm=0.125 --slices 2",
       {.f = {2}, .b = {2}, .w = {2}, .hop = 0.125, .lengths = {1, 1}, .chunks = 2}},
      {"interleaved-1f1b",
       {.ranks = 3, .chunks = 3, .microbatches = 8, .group = 4},
       "--uniform f=1,b=1,w=1 --stage-weights 1,1,1,2,1,1,1,1,3",
       {.f = {1}, .b = {1}, .w = {1}, .weights = {1, 1, 1, 2, 1, 1, 1, 1, 3}, .chunks = 3}},
      {"zb-v",
       {.ranks = 3, .microbatches = 7},
       "--uniform f=1,b=1.5,w=0.5,comm=0.1",
       {.f = {1}, .b = {1.5}, .w = {0.5}, .hop = 0.1, .chunks = 2}},
      {"dualpipe",
       {.ranks = 4, .microbatches = 10},
       "--uniform f=1,b=1,w=1,fb=2.5,comm=0.2",
       {.f = {1}, .b = {1}, .w = {1}, .joint = 2.5, .hop = 0.2}},
      {"dualpipe-v",
       {.ranks = 3, .microbatches = 8},
       "--uniform f=1,b=1,w=0.5,fb=2",
       {.f = {1}, .b = {1}, .w = {0.5}, .joint = 2, .chunks = 2}},
      {"hanayo",
       {.ranks = 4, .chunks = 4, .microbatches = 4},
       "--uniform f=1,b=1,w=1",
       {.f = {1}, .b = {1}, .w = {1}, .chunks = 4}},
      {"chimera",
       {.ranks = 4, .microbatches = 8},
       "--uniform f=1,b=2,w=1,comm=0.3",
       {.f = {1}, .b = {2}, .w = {1}, .hop = 0.3}},
      {"pipedream",
       {.ranks = 3, .microbatches = 4, .batches = 5},
       "--uniform f=1,b=2,w=1,comm=0.3",
       {.f = {1}, .b = {2}, .w = {1}, .hop = 0.3}},
      {"zb-h2", {.ranks = 1, .microbatches = 1}, "--uniform f=0.1,b=0.2,w=0.3", {.f = {0.1}, .b = {0.2}, .w = {0.3}}},
      {"interleaved-zb",
       {.ranks = 4, .chunks = 3, .microbatches = 8},
       "--uniform f=1,b=1,w=1",
       {.f = {1}, .b = {1}, .w = {1}, .chunks = 3}},
  };
  for (const OracleCase& c : cases) {
    SCOPED_TRACE(std::string(c.family) + " " + c.flags);
    FamilyParams params = c.params;
    params.shape.slice_lengths.assign(c.times.lengths.begin(), c.times.lengths.end());
    const Schedule schedule = make_schedule(find_family(c.family), params);
    test::OracleCosts costs;
    costs.op = [&](const Op& op) { return c.times.op(op); };
    costs.hop = std::llround(c.times.hop * 1e9);
    if (c.times.joint >= 0) {
      costs.joint = [&](const Op&, const Op&) { return std::llround(c.times.joint * 1e9 / c.times.chunks); };
    }
    const test::OracleTimes expected = test::longest_path(schedule, costs);
    std::string flags = std::string("--schedule ") + c.family + " " + c.flags;
    for (const auto& [flag, value] :
         {std::pair(" --pp ", params.ranks), std::pair(" --microbatches ", params.microbatches),
          std::pair(" --vpp ", params.chunks), std::pair(" --group ", params.group),
          std::pair(" --batches ", params.batches)}) {
      if (value != 0) flags += flag + std::to_string(value);
    }
    const json result = simulated(flags);
    EXPECT_EQ(nanoseconds(result.at("makespan_s")), expected.makespan());
    EXPECT_EQ(nanoseconds(result.at("span_s")), expected.largest_span());
    std::int64_t ideal = 0;
    for (int rank = 0; rank < params.ranks; ++rank) {
      EXPECT_EQ(nanoseconds(result.at("ranks").at(static_cast<std::size_t>(rank)).at("busy_s")), expected.busy(rank));
      ideal = std::max(ideal, expected.busy(rank));
    }
    EXPECT_EQ(nanoseconds(result.at("ideal_s")), ideal);
  }
}

// Times that some of the compared schedules have ops for are silent.
TEST(Simulate, NamesUniformTimesThatNoOpHas) {
  const auto note = [](const std::string& flags) {
    return run_sluice(words("simulate --pp 4 --microbatches 8 " + flags)).err;
  };
  const std::string all = "--uniform f=1,b=1,w=1,s=1,t=1,fb=2,copy=1 --schedule ";
  EXPECT_EQ(note(all + "1f1b"),
            "sluice: simulate ignores fb, s, t, copy of the uniform times: the schedule has no such ops\n");
  EXPECT_EQ(note(all + "1f1b-vocab-1"),
            "sluice: simulate ignores fb, copy of the uniform times: the schedule has no such ops\n");
  EXPECT_EQ(note(all + "1f1b --offload-activations 0.5"),
            "sluice: simulate ignores fb, s, t of the uniform times: the schedule has no such ops\n");
  EXPECT_THAT(
      note(all + "1f1b --compare-with dualpipe,1f1b-vocab-2"),
      testing::EndsWith("sluice: simulate ignores copy of the uniform times: the schedules have no such ops\n"));
  EXPECT_EQ(note("--uniform f=1,b=1,w=1,comm=1 --schedule 1f1b"), "");
}

TEST(Simulate, PeakInFlightCountsUnequalSlicesByTheirLength) {
  // seq1f1b, p = 2, lengths 5, 2, 1 of 8, in eighths. Rank 1 warms up with 2 slices: +5 +2, then +1 -1, then the next
  // microbatch's +5: 12. Rank 0 warms up with 3: 8, +5 -1, then +2: 14.
  const json result = simulated("--schedule seq1f1b --pp 2 --microbatches 3 --slice-lengths 5,2,1");
  EXPECT_DOUBLE_EQ(result.at("ranks").at(1).at("peak_in_flight").get<double>(), 1.5);
  EXPECT_DOUBLE_EQ(result.at("ranks").at(0).at("peak_in_flight").get<double>(), 1.75);
}

TEST(Schedule, FilesOfEveryFamilyRoundTripAndSimulateTheSame) {
  const TemporaryFolder folder;
  for (const Family& family : all_families()) {
    SCOPED_TRACE(family.name);
    const std::string file = folder.path("s.json");
    const std::string shape = "--pp 4 --microbatches " + std::string(family.name == "hanayo" ? "4" : "8") +
                              (family.sliced ? " --slice-lengths 3,2" : "");
    std::vector<std::string> make = words("schedule " + std::string(family.name) + " -o " + file + " " + shape);
    ASSERT_EQ(run_sluice(make).exit_code, 0);
    const std::string text = read_file(file);
    EXPECT_EQ(schedule_to_json(schedule_from_json(text, file)), text);
    EXPECT_EQ(run_sluice({"schedule", file, "--json"}).out, text);
    const std::string costs = " --uniform f=2,b=3,w=1,comm=0.5";
    const json direct = simulated("--schedule " + std::string(family.name) + " " + shape + costs);
    const json read = simulated("--schedule " + file + costs);
    EXPECT_EQ(direct, read);
  }
}

TEST(Simulate, HasAsManyNodesAsTheRanksOfAScheduleFile) {
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  ASSERT_EQ(run_sluice(words("schedule 1f1b --pp 4 --microbatches 8 -o " + file)).exit_code, 0);
  const std::string flags = "--model llama3-8b --cluster dgx-h100 --dp 8 --mbs 1 --seq-length 4096 --schedule " + file;
  EXPECT_EQ(simulated(flags), simulated(flags + " --pp 4"));
}

TEST(Simulate, TwoRunsAreByteIdentical) {
  const std::vector<std::string> line = words("simulate --schedule zb-v --pp 4 --microbatches 9 --uniform f=1,b=2,w=1");
  EXPECT_EQ(run_sluice(line).out, run_sluice(line).out);
  const TemporaryFolder folder;
  for (const char* name : {"a.json", "b.json"}) {
    std::vector<std::string> traced = line;
    traced.insert(traced.end(), {"--trace", folder.path(name)});
    ASSERT_EQ(run_sluice(traced).exit_code, 0);
  }
  EXPECT_EQ(read_file(folder.path("a.json")), read_file(folder.path("b.json")));
}

TEST(Examples, AllSimulateFitAndWriteValidTraces) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(SLUICE_SOURCE_DIR) + "/examples")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  EXPECT_GE(files.size(), 4U);
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : in_scope(files)) {
    SCOPED_TRACE(file.filename());
    const TemporaryFolder folder;
    const std::string trace = folder.path("t.json");
    const json prediction = test::json_of({"simulate", file.string(), "--json", "--trace", trace});
    EXPECT_TRUE(prediction.at("fits").get<bool>());
    EXPECT_LE(prediction.at("memory").at("needed_bytes"), prediction.at("memory").at("capacity_bytes"));
    // Published runs of such models reach 30 to 60 % of the peak; TeraPipe's V100 nodes on 25 Gb/s Ethernet 5 to 15 %.
    EXPECT_GT(prediction.at("throughput").at("mfu"), 0.04);
    EXPECT_LT(prediction.at("throughput").at("mfu"), 0.75);
    EXPECT_GE(prediction.at("makespan_s"), prediction.at("ideal_s"));
    const std::vector<std::string> breaches = test::check_trace(read_file(trace));
    EXPECT_TRUE(breaches.empty()) << breaches.front() << " and " << breaches.size() - 1 << " more";
  }
}

TEST(Experts, FlagsAndFileDescribeTheSameModel) {
  const std::string model = std::string(SLUICE_SOURCE_DIR) + "/examples/models/deepseek-v3/config.json";
  const std::string flags =
      "--num-layers 61 --hidden-size 7168 --num-attention-heads 128 --vocab-size 129280 --swiglu "
      "--ffn-hidden-size 18432 --position-embedding-type rope --untie-embeddings-and-output-weights "
      "--normalization RMSNorm --disable-bias-linear --num-experts 256 --moe-router-topk 8 "
      "--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --multi-latent-attention "
      "--mtp-num-layers 1 --qk-layernorm --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 "
      "--qk-pos-emb-head-dim 64 --v-head-dim "
      "128";
  std::string layers = "0,0,0";
  for (int i = 3; i < 61; ++i) layers += ",1";
  const std::vector<std::string> rest = words(
      "--cluster dgx-h100 --pp 4 --dp 64 --ep 64 --mbs 1 --gbs 512 --seq-length 4096 --json "
      "--use-distributed-optimizer --cost analytic");
  std::vector<std::string> by_file = {"simulate", "--model", model};
  std::vector<std::string> by_flags = words("simulate " + flags);
  by_flags.insert(by_flags.end(), {"--moe-layer-freq", layers});
  by_file.insert(by_file.end(), rest.begin(), rest.end());
  by_flags.insert(by_flags.end(), rest.begin(), rest.end());
  const json file = json::parse(run_sluice(by_file).out);
  json other = json::parse(run_sluice(by_flags).out);
  // Megatron-LM's default has dropout, DeepSeek none: only the dropout masks differ, which take a little time.
  EXPECT_GT(other.at("makespan_s"), file.at("makespan_s"));
  EXPECT_EQ(other.at("ranks").at(0).at("memory_at_peak_bytes").at("weights"),
            file.at("ranks").at(0).at("memory_at_peak_bytes").at("weights"));
}

TEST(Examples, ConfigurationsThatDoNotFitAreStillPredicted) {
  const std::string example = std::string(SLUICE_SOURCE_DIR) + "/examples/gpt-2.7b-seq1f1b-a100.json";
  const CommandResult result = run_sluice({"simulate", example, "--schedule", "1f1b", "--slices", "1", "--json"});
  EXPECT_EQ(result.exit_code, 3);
  const json prediction = json::parse(result.out);
  EXPECT_FALSE(prediction.at("fits").get<bool>());
  EXPECT_GT(prediction.at("makespan_s"), 0.0);
  EXPECT_GT(prediction.at("memory").at("needed_bytes"), prediction.at("memory").at("capacity_bytes"));
}

TEST(Help, ExamplesPrecedeOptions) {
  for (const char* line : {"--help", "simulate --help", "schedule --help", "schedules --help"}) {
    const CommandResult result = run_sluice(words(line));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    const std::size_t examples = result.out.find("Examples:\n  sluice ");
    ASSERT_NE(examples, std::string::npos) << line;
    EXPECT_LT(examples, result.out.find("Options:")) << line;
  }
  EXPECT_EQ(run_sluice({"--version"}).out.rfind("sluice ", 0), 0U);
}

TEST(Output, TableAndGanttMatchTheGoldenFiles) {
  const CommandResult result =
      run_sluice(words("simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1 --gantt"));
  EXPECT_EQ(result.err, "");
  test::expect_golden("tools/golden/simulate_1f1b.txt", result.out);
  test::expect_golden("tools/golden/schedules.txt", run_sluice({"schedules"}).out);
}

TEST(ModelsCommand, DescribesModels) {
  const CommandResult all = run_sluice({"models"});
  EXPECT_THAT(all.out,
              HasSubstr("qwen3.5-35b-a3b            40       34.7 B        3.5 B  30 x gated_delta_net, experts; "));
  const CommandResult one = run_sluice({"models", "gpt2", "gemma-4-26b-a4b"});
  EXPECT_THAT(one.out, HasSubstr("gpt2: 12 layers of 768, 124439808 parameters, 124439808 of them active\n"
                                 "    12 x attention, mlp (7087872 parameters each)\n"));
  EXPECT_THAT(one.out, HasSubstr("without its vision encoder"));
  const auto document = nlohmann::json::parse(run_sluice({"models", "deepseek-v3", "--json"}).out);
  EXPECT_EQ(document.at("schema"), "sluice.models/1");
  EXPECT_EQ(document.at("models")[0].at("kinds")[1].at("layers"), 58);
  EXPECT_EQ(document.at("models")[0].at("active_parameters"), 37'552'282'624);
  const CommandResult wrong = run_sluice({"models", "gpt-oss-12b"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("gpt-oss-120b"));
  EXPECT_EQ(run_sluice({"models", "gpt2"}).err, "");
  // A prediction says what is not part of it.
  const CommandResult simulated = run_sluice({"simulate", "--model", "qwen3-vl-8b", "--cluster", "dgx-h100", "--pp",
                                              "2", "--gbs", "4", "--seq-length", "1024"});
  EXPECT_THAT(simulated.out + simulated.err, HasSubstr("assumed: the model is without its vision encoder"));
}

TEST(Output, ColorsOnlyOnRequestWithoutATerminal) {
  const std::string flags = "simulate --pp 2 --microbatches 2 --gantt --color ";
  EXPECT_EQ(run_sluice(words(flags + "auto")).out.find('\x1b'), std::string::npos);
  EXPECT_NE(run_sluice(words(flags + "always")).out.find('\x1b'), std::string::npos);
  EXPECT_EQ(run_sluice(words(flags + "never")).out.find('\x1b'), std::string::npos);
}

TEST(ScheduleCommand, WritesItsGraphForGraphviz) {
  const TemporaryFolder folder;
  const std::string path = folder.path("graph.dot");
  ASSERT_EQ(run_sluice(words("schedule 1f1b --pp 2 --microbatches 1 -o " + path)).exit_code, 0);
  const std::string dot = read_file(path);
  EXPECT_EQ(dot.find("digraph"), 0U);
  EXPECT_NE(dot.find("send F(stage 0, mb 0) 0->1"), std::string::npos);
}

TEST(Simulate, MfuIsOfThePeakOfThePrecision) {
  const auto simulate = [](const std::string& flags) {
    return run_sluice(
        words("simulate --model llama3-8b --cluster dgx-b200 --gpus 8 --gbs 64 --seq-length 8192 --pp 1 " + flags));
  };
  for (const auto& [precision, peak] :
       {std::pair("bf16", 2250.0), std::pair("mxfp8", 4500.0), std::pair("nvfp4", 9000.0)}) {
    const json throughput = json::parse(simulate(std::string("--json --precision ") + precision).out).at("throughput");
    EXPECT_NEAR(throughput.at("mfu").get<double>(), throughput.at("model_tflops_per_device").get<double>() / peak,
                1e-9);
  }
  EXPECT_NE(simulate("--precision nvfp4").out.find(" % of the peak with 4 bits    memory"), std::string::npos);
  EXPECT_EQ(simulate("").out.find("of the peak with"), std::string::npos);
}

// With a pipeline, parameters are gathered before the first forward of each stage and gradients are reduced once; ranks
// wait for both.
TEST(Simulate, ShardsParameters) {
  const std::string base =
      "--model llama3-8b --cluster dgx-h100 --pp 2 --dp 8 --gbs 32 --seq-length 4096 --zero-stage ";
  const json whole = simulated(base + "1");
  const json sharded = simulated(base + "3");
  const json again = simulated(base + "3 --reshard-after-forward");
  EXPECT_GT(sharded.at("ranks").at(0).at("first_start_s"), 0);
  EXPECT_EQ(whole.at("ranks").at(0).at("first_start_s"), 0);
  EXPECT_EQ(again.at("ranks").at(0).at("first_start_s"), 0);
  EXPECT_GT(again.at("makespan_s"), sharded.at("makespan_s"));
  const auto bytes = [](const json& prediction, const char* what) {
    return prediction.at("ranks").at(0).at("memory_at_peak_bytes").at(what).get<std::int64_t>();
  };
  EXPECT_LT(bytes(again, "weights"), bytes(sharded, "weights"));
  EXPECT_LT(bytes(sharded, "optimizer"), bytes(whole, "optimizer"));
  const std::string text = run_sluice(words("simulate " + base + "3")).out;
  EXPECT_NE(text.find("critical path  parameter gather"), std::string::npos) << text;
}

// A file's distributed optimizer gives way to a stage of ZeRO on the command line.
TEST(Simulate, ReplacesTheDistributedOptimizerOfAFile) {
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  write_file_whole(file, R"({"model": "gpt2", "cluster": "dgx-h100", "parallelism": {"pp": 1, "dp": 8,
      "distributed_optimizer": true}, "batch": {"global_batch": 8, "sequence_length": 1024}})");
  const auto out = [&](const std::string& flags) {
    json prediction = simulated(flags + file);
    prediction.erase("assumptions");  // which name what is not specified
    return prediction.dump();
  };
  EXPECT_EQ(out("--zero-stage 1 "), out(""));
  EXPECT_EQ(out("--zero-stage 0 "), out("--use-distributed-optimizer=false "));
  EXPECT_EQ(out("--zero-stage 3 --dp-shard 8 --reshard-after-forward "), out("--zero-stage 3 "));
  EXPECT_NE(out("--zero-stage 3 "), out("--zero-stage 2 "));
  EXPECT_NE(out("--zero-stage 2 "), out(""));
}

}  // namespace
}  // namespace sluice::test

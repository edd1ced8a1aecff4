// Tests of the claims program: its measures on a claim with uniform costs and known closed forms, its error messages,
// and the claims of examples/claims.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// f = b = w = 1 s for 1/4 of the model, 4 ranks, 8 microbatches of one sequence.
json uniform_claim() {
  return json::parse(R"({
    "schema": "sluice.claim/1", "claim": "a claim", "source": "nowhere",
    "scenario": {
      "model": {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 128},
      "cluster": "p3.16xlarge",
      "parallelism": {"pp": 4},
      "batch": {"microbatches": 8, "sequence_length": 128},
      "schedule": "1f1b",
      "cost": {"kind": "uniform", "f": 1, "b": 1, "w": 1}
    },
    "runs": {
      "plain": {},
      "interleaved": {"schedule": "interleaved-1f1b", "parallelism": {"vpp": 2}},
      "gpipe": {"schedule": "gpipe"},
      "best": {"fastest_of": [[{"batch": {"microbatches": 4}}, {"batch": {"microbatches": 16}}, {"batch": {"microbatches": 8}}]]},
      "cut": {"schedule": "terapipe", "batch": {"microbatches": 1}, "cut": {"granularity": 32}},
      "early": {"schedule": {"name": "seq1f1b", "slice_lengths": [32, 96]}},
      "large": {"model": {"num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96}}
    },
    "measures": []
  })");
}

// The rows of a claim with these measures.
std::vector<json> rows_of(const json& claim) {
  const TemporaryFolder folder;
  write_file_whole(folder.path("claim.json"), claim.dump());
  const CommandResult result = run_program(SLUICE_CLAIMS, {folder.path("claim.json"), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out).at("claims").at(0).at("measures").get<std::vector<json>>();
}

json row_of(json measure) {
  json claim = uniform_claim();
  claim["measures"].push_back(std::move(measure));
  return rows_of(claim).at(0);
}

double value_of(json measure) { return row_of(std::move(measure)).at("value").get<double>(); }

TEST(Claims, MeasureTimes) {
  // (m + p - 1)(f + b + w) = 11 * 3; interleaved (m v + p - 1)(f + b + w) / v = 19 * 3 / 2.
  EXPECT_DOUBLE_EQ(value_of({{"measure", "iteration"}, {"of", "plain"}}), 33);
  EXPECT_DOUBLE_EQ(value_of({{"measure", "formula_ratio"}, {"of", "plain"}}), 1);
  EXPECT_DOUBLE_EQ(value_of({{"measure", "speedup"}, {"of", "interleaved"}, {"over", "plain"}}), 33 / 28.5);
  EXPECT_DOUBLE_EQ(value_of({{"measure", "largest_speedup"},
                             {"of", {"plain", "interleaved", "gpipe"}},
                             {"over", {"interleaved", "plain", "plain"}}}),
                   33 / 28.5);
  EXPECT_THAT(row_of({{"measure", "speedups"}, {"of", {"interleaved", "gpipe"}}, {"over", {"plain", "plain"}}})
                  .at("value")
                  .get<std::vector<double>>(),
              ElementsAre(testing::DoubleEq(33 / 28.5), testing::DoubleEq(1)));
  // Per second and device: of 8 sequences in 33 s, and of 16 in 19 * 3 s.
  EXPECT_DOUBLE_EQ(value_of({{"measure", "speedup"}, {"of", "best"}, {"over", "plain"}}), 16.0 / 57 / (8.0 / 33));
  EXPECT_EQ(value_of({{"measure", "best_value"}, {"of", "best"}, {"key", "/batch/microbatches"}}), 16);
  // 32 of 128 tokens.
  EXPECT_DOUBLE_EQ(
      value_of({{"measure", "op_ratio"}, {"of", "early"}, {"over", "plain"}, {"op", {{"kind", "F"}, {"stage", 1}}}}),
      0.25);
  // With costs that are linear in the tokens, the finest cut is optimal.
  EXPECT_EQ(row_of({{"measure", "slices"}, {"of", "cut"}}).at("ours"), "4 x 32");
}

TEST(Claims, MeasureWork) {
  // Sequences, layers, tokens, hidden size, vocabulary; without recomputation.
  constexpr double kLayers = 3 * 8 * 8 * (24.0 * 128 * 64 * 64 + 4.0 * 128 * 128 * 64);
  constexpr double kHead = 8 * 6.0 * 128 * 64 * 512;
  constexpr double kTera = (kLayers + kHead) / 33 / 4 / 1e12;
  EXPECT_NEAR(value_of({{"measure", "model_tflops"}, {"of", "plain"}}), kTera, 1e-12 * kTera);
  EXPECT_NEAR(value_of({{"measure", "hardware_tflops"}, {"of", "plain"}}), kTera, 1e-12 * kTera);
  EXPECT_NEAR(value_of({{"measure", "petaflops"}, {"of", "plain"}}), kTera * 4 / 1e3, 1e-12 * kTera);
  // 8 * 128 tokens in 33 s.
  EXPECT_DOUBLE_EQ(value_of({{"measure", "days"}, {"of", "plain"}, {"tokens", 1e9}}), 1e9 / (1024 / 33.0) / 86400);
  // 128 tokens of 64 elements of 2 bytes over 3 transfers, in both directions, 8 times.
  // 7 transfers instead of 3 with two chunks per rank.
  EXPECT_DOUBLE_EQ(value_of({{"measure", "transfer_ratio"}, {"of", "interleaved"}, {"over", "plain"}}), 7.0 / 3);
  EXPECT_NEAR(value_of({{"measure", "transfer_rate"}, {"of", "plain"}}), 128 * 64 * 2.0 * 3 * 2 * 8 / 33 / 1e9, 1e-18);
}

TEST(Claims, MeasureMemory) {
  // 1F1B's first rank holds 4 of 8 microbatches, gpipe's all of them.
  EXPECT_GT(value_of({{"measure", "memory_ratio"}, {"of", "gpipe"}, {"over", "plain"}}), 1);
  EXPECT_EQ(row_of({{"measure", "order"},
                    {"by", "memory"},
                    {"of", {"large", "gpipe", "plain"}},
                    {"published", {"plain", "large", "gpipe"}}})
                .at("ours"),
            "plain < gpipe < large");
  // 96 layers of 12 h^2 parameters, 16 bytes and more each, on 4 GPUs of 16 GiB.
  const json row = row_of({{"measure", "fits"}, {"of", "large"}, {"published", true}});
  EXPECT_EQ(row.at("value"), false);
  EXPECT_EQ(row.at("difference"), "differs");
  EXPECT_EQ(row_of({{"measure", "fits"}, {"of", "plain"}, {"published", true}}).at("difference"), "as published");
  EXPECT_EQ(row_of({{"measure", "iteration"}, {"of", "large"}}).at("fits"), false);
}

TEST(Claims, ReportTheDifference) {
  const auto difference = [](const json& published) {
    return row_of({{"measure", "iteration"}, {"of", "plain"}, {"published", published}})
        .at("difference")
        .get<std::string>();
  };
  EXPECT_EQ(difference(30), "+10.0 %");
  EXPECT_EQ(difference(0), "differs");
  EXPECT_EQ(difference({30, 35}), "as published");
  EXPECT_EQ(difference({22, 30}), "+10.0 %");
  EXPECT_EQ(difference({{"at_least", 33}}), "as published");
  EXPECT_EQ(difference({{"at_least", 66}}), "-50.0 %");
  EXPECT_EQ(difference({{"at_most", 30}}), "+10.0 %");
  const auto trend = [](const json& published) {
    return row_of({{"measure", "speedups"},
                   {"of", {"interleaved", "gpipe"}},
                   {"over", {"plain", "plain"}},
                   {"published", published}})
        .at("difference")
        .get<std::string>();
  };
  EXPECT_EQ(trend("falls"), "as published");
  EXPECT_EQ(trend("rises"), "differs");
  EXPECT_EQ(trend({33 / 28.5, 2}), "+0.0 %, -50.0 %");
  const json unknown = row_of({{"measure", "iteration"}, {"of", "plain"}});
  EXPECT_FALSE(unknown.contains("published"));
  EXPECT_FALSE(unknown.contains("difference"));
}

TEST(Claims, PrintATable) {
  json claim = uniform_claim();
  claim["why"] = "because";
  claim["assumed"] = "nothing";
  claim["measures"] = {{{"measure", "speedup"}, {"of", "gpipe"}, {"over", "plain"}, {"published", 1.25}},
                       {{"name", "the large one"}, {"measure", "iteration"}, {"of", "large"}}};
  const TemporaryFolder folder;
  write_file_whole(folder.path("some-claim.json"), claim.dump());
  const CommandResult plain = run_program(SLUICE_CLAIMS, {folder.path()});
  EXPECT_EQ(plain.out,
            "some-claim: a claim\n"
            "  gpipe          speedup    published 1.25       ours 1       -20.0 %\n"
            "  the large one  iteration  published -          ours 33 s *\n"
            "\n"
            "* a run does not fit in memory as predicted\n");
  const CommandResult explained = run_program(SLUICE_CLAIMS, {folder.path(), "--explain"});
  EXPECT_THAT(explained.out, HasSubstr("  from: nowhere\n  assumed: nothing\n"));
  EXPECT_THAT(explained.out, HasSubstr("  why: because\n"));
}

TEST(Claims, WriteScenariosWithTheSamePrediction) {
  json claim = uniform_claim();
  claim["measures"].push_back({{"measure", "iteration"}, {"of", "best"}});
  const TemporaryFolder folder;
  write_file_whole(folder.path("model.json"), claim["scenario"]["model"].dump());
  claim["scenario"]["model"] = "model.json";
  claim["runs"].erase("large");
  write_file_whole(folder.path("some.json"), claim.dump());
  const CommandResult written =
      run_program(SLUICE_CLAIMS, {folder.path("some.json"), "--write-scenarios", folder.path("runs")});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  const CommandResult simulated =
      run_program(SLUICE_COMMAND, {"simulate", folder.path("runs/some--best.json"), "--json"});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_DOUBLE_EQ(json::parse(simulated.out).at("makespan_s").get<double>(), 57);
}

TEST(Claims, RejectInvalidFiles) {
  const TemporaryFolder folder;
  const std::string file = folder.path("claim.json");
  const auto error_of = [&](const json& change) {
    json claim = uniform_claim();
    claim["measures"].push_back({{"measure", "iteration"}, {"of", "plain"}});
    claim.merge_patch(change);
    write_file_whole(file, claim.dump());
    const CommandResult result = run_program(SLUICE_CLAIMS, {file});
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  const auto with = [](const json& measure) { return json{{"measures", json::array({measure})}}; };
  const std::string at = "claims: " + file + ": ";
  EXPECT_EQ(error_of({{"schema", "sluice.claim/2"}}),
            at + "/schema: expected \"sluice.claim/1\", got \"sluice.claim/2\"\n");
  EXPECT_EQ(error_of({{"source", nullptr}}), at + "/source: required key is missing\n");
  EXPECT_EQ(error_of({{"asumed", "x"}}), at + "/asumed: unknown key; did you mean 'assumed'?\n");
  EXPECT_EQ(error_of({{"measures", json::array()}}), at + "/measures: expected at least one measure, got []\n");
  EXPECT_THAT(error_of(with({{"measure", "sped"}, {"of", "plain"}})),
              HasSubstr(at + "/measures/0/measure: expected one of speedup, "));
  EXPECT_EQ(error_of(with({{"measure", "iteration"}, {"of", "plian"}})),
            at + "/measures/0/of: expected the name of a run, got \"plian\"; did you mean 'plain'?\n");
  EXPECT_EQ(error_of(with({{"measure", "speedup"}, {"of", "plain"}})),
            at + "/measures/0/over: required key is missing\n");
  EXPECT_EQ(error_of(with({{"measure", "iteration"}, {"of", "plain"}, {"over", "gpipe"}})),
            at + "/measures/0/over: unknown key\n");
  EXPECT_EQ(error_of(with({{"measure", "speedups"}, {"of", {"plain"}}, {"over", {"plain", "gpipe"}}})),
            at + "/measures/0/over: expected 1 runs, as in of, got [\"plain\",\"gpipe\"]\n");
  EXPECT_EQ(error_of(with({{"measure", "fits"}, {"of", "plain"}, {"published", 1}})),
            at + "/measures/0/published: expected true or false, got 1\n");
  EXPECT_EQ(error_of(with({{"measure", "iteration"}, {"of", "plain"}, {"published", {3, 2}}})),
            at + "/measures/0/published: expected the lower end of the range first, got [3,2]\n");
  EXPECT_EQ(error_of(with({{"measure", "best_value"}, {"of", "plain"}, {"key", "batch"}})),
            at + "/measures/0/key: expected a place in the scenario, such as /batch/micro_batch, got \"batch\"\n");
  EXPECT_EQ(
      error_of(with({{"measure", "order"}, {"by", "time"}, {"of", {"plain", "gpipe"}}, {"published", {"plain"}}})),
      at + "/measures/0/published: expected each run of `of` once, got [\"plain\"]\n");
  EXPECT_EQ(error_of({{"runs", {{"gpipe", {{"fastest_of", json::array({json::array()})}}}}}}),
            at + "/runs/gpipe/fastest_of/0: expected at least one change, got []\n");
  // Errors in the scenario of a run name the run.
  EXPECT_EQ(error_of({{"runs", {{"cut", {{"cut", {{"granularity", 129}}}}}}}}),
            at + "run \"cut\": /cut/granularity: expected at most the sequence's 128 tokens, got 129\n");
  EXPECT_EQ(error_of({{"runs", {{"gpipe", {{"batch", {{"microbatch", 3}}}}}}}}),
            at + "run \"gpipe\": /batch/microbatch: unknown key; did you mean 'micro_batch'?\n");
  EXPECT_EQ(error_of(with({{"measure", "best_value"}, {"of", "plain"}, {"key", "/batch/global_batch"}})),
            at + "measure \"plain\": the scenario of run \"plain\" has no /batch/global_batch\n");
  EXPECT_EQ(error_of(with(
                {{"measure", "op_ratio"}, {"of", "plain"}, {"over", "gpipe"}, {"op", {{"kind", "F"}, {"stage", 4}}}})),
            at + "run \"plain\": op: expected one of 4 stages, counted from 0, got 4\n");
  EXPECT_EQ(run_program(SLUICE_CLAIMS, {folder.path("none.json")}).exit_code, 2);
  EXPECT_EQ(run_program(SLUICE_CLAIMS, {"--jsno"}).exit_code, 2);
}

TEST(Claims, OfAllPapersRun) {
  const CommandResult result = run_program(SLUICE_CLAIMS, {SLUICE_SOURCE_DIR "/examples/claims", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json claims = json::parse(result.out).at("claims");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/examples/claims")) {
    if (entry.path().extension() == ".json") ++files;
  }
  EXPECT_EQ(claims.size(), files);
  for (const json& claim : claims) {
    EXPECT_FALSE(claim.at("measures").empty()) << claim.at("file");
    EXPECT_TRUE(claim.contains("why")) << claim.at("file");
  }
}

}  // namespace
}  // namespace sluice::test

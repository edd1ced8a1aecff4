#include "sim/calibration/measured_iterations.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using Json = nlohmann::json;

Json base() {
  return Json::parse(
      R"({"model": {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 51200},
                         "batch": {"sequence_length": 1024, "microbatches": 3},
                         "cluster": "dgx-a100-80gb"})");
}

MeasuredIteration only(const std::string& text, const Json& from = base()) {
  return read_measured_iteration(CsvTable(text, "t.csv"), 0, from);
}

TEST(MeasuredIterations, OverrideTheScenarioByCells) {
  const MeasuredIteration row = only(
      "layers,hidden,heads,seq,vocab,tp,pp,dp,gpus,micro_batch,global_batch,schedule,recompute,iter_ms\n"
      "12,2048,16,512,1000,2,4,3,24,5,60,gpipe,full+sequence-parallel,1500\n");
  const Scenario& scenario = row.scenario;
  EXPECT_EQ(scenario.model->layers, 12);
  EXPECT_EQ(scenario.model->hidden, 2048);
  EXPECT_EQ(scenario.model->vocab, 1000);
  EXPECT_EQ(scenario.model->positions, 512);
  EXPECT_EQ(scenario.training.tp, 2);
  EXPECT_EQ(scenario.training.pp, 4);
  EXPECT_EQ(scenario.training.dp, 3);
  EXPECT_EQ(scenario.training.micro_batch, 5);
  EXPECT_EQ(scenario.microbatches, 4);  // 60 / (3 x 5)
  EXPECT_EQ(scenario.schedule, "gpipe");
  EXPECT_EQ(scenario.training.recompute, Training::Recompute::full);
  EXPECT_TRUE(scenario.training.sequence_parallel);
  EXPECT_EQ(row.seconds, 1.5);
  EXPECT_EQ(row.place, "t.csv: row 1");
}

TEST(MeasuredIterations, DeriveReplicasFromGpusAndTheFamilyFromChunks) {
  const Scenario scenario = only("pp,tp,gpus,interleave,iter_s\n2,2,16,4,1\n").scenario;
  EXPECT_EQ(scenario.training.dp, 4);
  EXPECT_EQ(scenario.schedule, "interleaved-1f1b");
  EXPECT_EQ(scenario.chunks, 4);
  EXPECT_EQ(only("pp,iter_s\n2,1\n").scenario.schedule, "1f1b");
}

TEST(MeasuredIterations, ReadAllUnitsOfTimeAndOutOfMemory) {
  EXPECT_EQ(only("pp,iteration_ms\n1,250\n").seconds, 0.25);
  EXPECT_EQ(only("pp,median_step_s\n1,2.5\n").seconds, 2.5);
  // 3 microbatches of 1,024 tokens at 2,048 per second.
  EXPECT_EQ(only("pp,tokens_per_s_thousands\n1,2.048\n").seconds, 1.5);
  EXPECT_TRUE(only("pp,tokens_per_s_thousands\n1,OOM\n").out_of_memory);
}

TEST(MeasuredIterations, DropSlicesOfTheBaseForFamiliesWithoutSlices) {
  Json sliced = base();
  sliced["schedule"] = {{"slices", 4}, {"slicing", "balanced"}};
  EXPECT_EQ(only("pp,schedule,iter_s\n2,seq1f1b,1\n", sliced).scenario.shape.num_slices(), 4);
  EXPECT_EQ(only("pp,schedule,iter_s\n2,1f1b,1\n", sliced).scenario.shape.num_slices(), 1);
}

TEST(MeasuredIterations, ErrorsNameRowAndColumn) {
  EXPECT_EQ(error_from([] { only("pp,tp\n1,1\n"); }),
            "t.csv: header: expected a column of measured times, such as iter_ms");
  EXPECT_EQ(error_from([] { only("pp,Iteration_s\n1,1\n"); }),
            "t.csv: header: expected a column of measured times, such as iter_ms; did you mean 'iteration_s'?");
  EXPECT_EQ(error_from([] { only("pp,iter_s\nx,1\n"); }), "t.csv: row 1, column pp: expected a whole number, got 'x'");
  EXPECT_EQ(error_from([] { only("pp,iter_s\n1,fast\n"); }),
            "t.csv: row 1, column iter_s: expected a number, got 'fast'");
  EXPECT_EQ(error_from([] { only("pp,tp,gpus,iter_s\n2,2,6,1\n"); }),
            "t.csv: row 1, column gpus: expected a multiple of tp x cp x pp = 4, got '6'");
  EXPECT_EQ(error_from([] { only("pp,tp,dp,gpus,iter_s\n2,2,2,6,1\n"); }),
            "t.csv: row 1, column gpus: expected tp x cp x pp x dp = 8, got '6'");
  EXPECT_NE(error_from([] { only("pp,schedule,iter_s\n2,1g1b,1\n"); }).find("did you mean '1f1b'"), std::string::npos);
  EXPECT_NE(error_from([] { only("pp,recompute,iter_s\n2,some,1\n"); }).find("t.csv: row 1: /parallelism/recompute"),
            std::string::npos);
}

TEST(MeasuredIterations, CellsReplaceKeysOfTheScenarioThatExcludeThem) {
  // The scenario has three microbatches.
  EXPECT_EQ(only("gbs,iter_s\n12,1\n").scenario.microbatches, 12);
  Json global = base();
  global["batch"] = {{"sequence_length", 1024}, {"global_batch", 12}};
  EXPECT_EQ(only("pp,microbatches,iter_s\n2,5,1\n", global).scenario.microbatches, 5);
  Json parallel = base();
  parallel["parallelism"] = {{"pp", 2}, {"cp", 2}, {"layers_per_virtual_stage", 2}};
  parallel["schedule"] = {{"name", "seq1f1b"}, {"slice_lengths", {512, 512}}};
  const Scenario scenario = only("vpp,cp,slices,iter_s\n1,1,4,1\n", parallel).scenario;
  EXPECT_EQ(scenario.chunks, 1);
  EXPECT_EQ(scenario.training.cp, 1);
  EXPECT_EQ(scenario.shape.num_slices(), 4);
}

TEST(MeasuredIterations, ContradictoryCellsAreErrors) {
  EXPECT_EQ(only("pp,mbs,microbatches,gbs,iter_s\n1,2,6,12,1\n").scenario.microbatches, 6);
  EXPECT_EQ(error_from([] { only("pp,mbs,microbatches,gbs,iter_s\n1,2,5,12,1\n"); }),
            "t.csv: row 1: /batch/global_batch: expected micro_batch x dp x microbatches = 2 x 1 x 5, got 12");
}

TEST(MeasuredIterations, CellsCannotChangeAFile) {
  Json file = base();
  file["model"] = "gpt.json";
  EXPECT_EQ(error_from([&] { only("pp,layers,iter_s\n1,4,1\n", file); }),
            "t.csv: row 1, column layers: cannot change a value of the scenario's /model, which is not an object, got "
            "'4'");
  Json list = base();
  list["batch"] = {1, 2};
  EXPECT_EQ(error_from([&] { only("pp,iter_s\n1,1\n", list); }), "t.csv: row 1: /batch: expected an object");
  Json words = base();
  words["parallelism"] = {{"tp", "two"}};
  words["schedule"] = {{"name", 7}};
  words["model"]["position_embedding_type"] = 7;
  EXPECT_THROW(only("pp,gpus,iter_s\n1,2,1\n", words), InputError);
}

TEST(MeasuredIterations, UnknownAndRepeatedColumnsAreErrors) {
  const auto error = [](const char* header) { return error_from([&] { check_columns(CsvTable(header, "t.csv")); }); };
  EXPECT_EQ(error("pp,microbaches,iter_s\n"),
            "t.csv: header: unknown column 'microbaches'; did you mean 'microbatches'? (--ignore-columns ignores it)");
  EXPECT_EQ(error("pp, gbs,iter_s\n"),
            "t.csv: header: unknown column ' gbs'; did you mean 'gbs'? (--ignore-columns ignores it)");
  EXPECT_EQ(error("iteration_s,gbs,iteration_ms\n"),
            "t.csv: header: columns 'iteration_s' and 'iteration_ms' have the same meaning: keep one");
  EXPECT_EQ(error("iter_s,tokens_per_s_thousands\n"),
            "t.csv: header: columns 'iter_s' and 'tokens_per_s_thousands' have the same meaning: keep one");
  EXPECT_EQ(error("mbs,micro_batch,iter_s\n"),
            "t.csv: header: columns 'micro_batch' and 'mbs' have the same meaning: keep one");
  EXPECT_EQ(error("microbatches,gbs,cp,gpus,schedule,recompute,source,note,iter_s\n"), "no error");
}

TEST(MeasuredIterations, ColumnsCanBeKeysOfTheScenario) {
  const MeasuredIteration row = only(
      "/parallelism/precision,/cluster,/batch/microbatches,pp,/name,iter_s\n"
      "fp8,\"{\"\"name\"\": \"\"dgx-h100\"\"}\",5,2,,1\n");
  EXPECT_EQ(row.scenario.training.precision, GemmPrecision::fp8);
  EXPECT_EQ(row.scenario.cluster->gpu.name, "H100-80GB");
  EXPECT_EQ(row.scenario.microbatches, 5);
  EXPECT_EQ(row.scenario.training.pp, 2);
  const auto error = [](const std::string& text) { return error_from([&] { only(text); }); };
  EXPECT_EQ(error("/cluster/name,pp,iter_s\ndgx-h100,1,1\n"),
            "t.csv: row 1, column /cluster/name: cannot set this key in the scenario, got 'dgx-h100'");
  EXPECT_EQ(error("/parallelism/~,pp,iter_s\n1,1,1\n"),
            "t.csv: row 1, column /parallelism/~: cannot set this key in the scenario, got '1'");
  EXPECT_EQ(error("/parallelism/precison,pp,iter_s\nfp8,1,1\n"),
            "t.csv: row 1: /parallelism/precison: unknown key; did you mean 'precision'?");
  EXPECT_EQ(error_from([&] { check_columns(CsvTable("/parallelism/tp,tp,iter_s\n", "t.csv")); }),
            "t.csv: header: columns 'tp' and '/parallelism/tp' have the same meaning: keep one");
}

}  // namespace
}  // namespace sluice::test

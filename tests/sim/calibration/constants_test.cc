#include "sim/calibration/constants.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "sim/engine/predict.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using Json = nlohmann::json;

const Json kBase = Json::parse(R"({
    "model": {"num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 51200,
              "max_position_embeddings": 1024},
    "cluster": {"name": "dgx-a100-80gb", "nodes": 8},
    "software": "megatron-deepspeed",
    "parallelism": {"flash_attention": false}, "schedule": {"name": "1f1b"}, "cost": "analytic"})");

// Rows whose times are predictions with other constants, which a fit must find.
MeasuredTable table_with(const std::vector<std::pair<std::string, double>>& truth) {
  MeasuredTable table{.name = "made"};
  for (const int tp : {1, 2, 8}) {
    for (const int micro_batch : {1, 4, 16}) {
      for (const int hidden : {1024, 4096}) {
        Json document = kBase;
        document["model"]["hidden_size"] = hidden;
        document["parallelism"]["tp"] = tp;
        document["parallelism"]["pp"] = 2;
        document["batch"] = {{"micro_batch", micro_batch}, {"microbatches", 4}, {"sequence_length", 1024}};
        MeasuredIteration row{.place = "row", .setting = std::to_string(table.rows.size())};
        row.scenario = scenario_from_json(document, "test", "");
        Scenario true_one = row.scenario;
        for (const auto& [name, value] : truth) {
          find_constant(name).value(*true_one.cluster, true_one.software) = value;
        }
        row.seconds = to_seconds(predict(model::Setup(true_one)).metrics.makespan);
        table.rows.push_back(std::move(row));
      }
    }
  }
  return table;
}

TEST(FitConstants, RecoversTheConstantsOfTheRows) {
  const std::vector<std::pair<std::string, double>> truth = {
      {"gpu/memory_efficiency", 0.5}, {"gpu/gemm/peak_fraction", 0.8}, {"software/issue_s", 9e-5}};
  const std::vector<MeasuredTable> tables = {table_with(truth)};
  std::vector<Constant> constants;
  for (const auto& [name, value] : truth) {
    constants.push_back(find_constant(name));
    constants.back().belief.spread = 2;  // the rows determine the value
  }
  const ConstantsFit found = fit_constants(tables, constants, 3);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    EXPECT_NEAR(found.fit.constants[i] / truth[i].second, 1, 0.01) << truth[i].first;
  }
  EXPECT_LT(found.in_sample[0].mean, 0.01);
  EXPECT_LT(found.held_out[0].mean, 0.02);
  const ConstantsFit again = fit_constants(tables, constants, 3);
  EXPECT_EQ(found.fit.constants, again.fit.constants);
  EXPECT_EQ(found.fit.predicted_held_out, again.fit.predicted_held_out);
}

TEST(FitConstants, OfOneTableApplyOnlyToThatTable) {
  // The hosts of the second table are half as fast, which needs one constant per table.
  const std::vector<MeasuredTable> tables = {table_with({{"software/issue_s", 6e-5}}),
                                             table_with({{"software/issue_s", 1.2e-4}})};
  std::vector<Constant> apart(2, find_constant("software/issue_s"));
  apart[0].table = 0;
  apart[1].table = 1;
  const ConstantsFit found = fit_constants(tables, apart, 2);
  EXPECT_NEAR(found.fit.constants[0], 6e-5, 1e-6);
  EXPECT_NEAR(found.fit.constants[1], 1.2e-4, 2e-6);
}

TEST(FitConstants, StaysWithinTheBoundsOfAConstant) {
  // Rows three times as fast as a GPU at its peak.
  MeasuredTable table = table_with({});
  for (MeasuredIteration& row : table.rows) row.seconds /= 5;
  const std::vector<Constant> constants = {find_constant("gpu/memory_efficiency"),
                                           find_constant("gpu/gemm/peak_fraction")};
  const ConstantsFit found = fit_constants(std::vector{table}, constants, 2);
  for (const double value : found.fit.constants) EXPECT_LE(value, 1);
}

TEST(FitConstants, RejectsTooFewRowsAndUnknownNames) {
  MeasuredTable table = table_with({});
  table.rows.resize(2);
  EXPECT_THROW(fit_constants(std::vector{table}, std::vector{find_constant("software/issue_s")}, 3), InputError);
  EXPECT_EQ(test::error_from([&] { find_constant("gpu/memory_eficiency"); }),
            "unknown constant 'gpu/memory_eficiency'; did you mean 'gpu/memory_efficiency'?");
}

TEST(ConstantsFiles, SurviveARoundTrip) {
  const std::vector<Constant> constants = {find_constant("gpu/memory_efficiency"),
                                           find_constant("gpu/gemm/peak_fraction"),
                                           find_constant("inter_node/latency_s"), find_constant("software/issue_s")};
  const std::vector<double> values = {0.51234, 0.777, 1.5e-5, 4e-5};
  const ConstantsFiles files = files_with_constants(kBase, "", constants, values, "a test");
  Json document = kBase;
  document["cluster"] = {{"node", Json::parse(files.node)}};
  document["software"] = Json::parse(files.software);
  document["parallelism"]["pp"] = 2;
  document["batch"] = {{"microbatches", 4}, {"sequence_length", 1024}};
  Scenario scenario = scenario_from_json(document, "test", "");
  EXPECT_EQ(scenario.cluster->gpu.memory_efficiency, 0.512);  // three digits
  EXPECT_EQ(scenario.cluster->gpu.gemm.peak_fraction, 0.777);
  EXPECT_EQ(scenario.cluster->inter_node.latency_s, 1.5e-5);
  EXPECT_EQ(scenario.software.issue_s, 4e-5);
  EXPECT_EQ(scenario.cluster->intra_node.name, "NVLink 3");  // unchanged
  EXPECT_NE(files.node.find("peak_fraction: a test"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test

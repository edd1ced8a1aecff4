#include <cmath>

#include "import/megatron_log.h"
#include "model/cluster/cluster.h"
#include "model/input/csv.h"
#include "model/input/json_reader.h"
#include "model/scenario/correction.h"
#include "model/scenario/scenario.h"
#include "model/scenario/setup.h"
#include "sim/calibration/kernel_fit.h"
#include "sim/calibration/link_fit.h"
#include "sim/calibration/measured_iterations.h"
#include "sim/engine/predict.h"
#include "tests/fuzz/targets.h"

namespace sluice::test::fuzz {
namespace {

Json base() {
  return Json::parse(R"({"model": {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 512},
                         "batch": {"sequence_length": 128, "microbatches": 2}, "parallelism": {"pp": 2},
                         "schedule": {"name": "seq1f1b", "slices": 2}, "cluster": "dgx-a100-80gb"})");
}

void try_kernels_and_links(const CsvTable& table) {
  if (has_measured_kernels(table)) {
    for (const auto& [gpu, measured] : read_measured_kernels(table)) {
      for (const MeasuredGemm& gemm : measured.gemms) require(gemm.seconds > 0, "a GEMM without a time");
    }
  } else if (has_measured_links(table)) {
    for (const auto& [link, measured] : read_measured_links(table)) {
      for (const MeasuredCollective& one : measured.all_reduces)
        require(one.seconds > 0, "an all-reduce without a time");
    }
  }
}

}  // namespace

void try_measured_table(std::string_view text) {
  accepts([&] {
    const CsvTable table(text, "input");
    accepts([&] { try_kernels_and_links(table); });
    accepts([&] { check_columns(table); });
    for (const MeasuredIteration& row : read_measured_iterations(table, base())) {
      require(row.out_of_memory || row.seconds > 0, "an iteration without a time");
    }
  });
}

void try_megatron_log(std::string_view text) {
  accepts([&] {
    const MegatronLog log = parse_megatron_log(text, "input");
    for (const double seconds : log.seconds) require(seconds > 0, "an iteration without a time");
    const Scenario scenario = scenario_from_json(base(), "base", "");
    accepts([&] { check_arguments(log, scenario, 0); });
    accepts([&] { check_arguments(log, scenario, 1'000'000); });
  });
}

void try_calibration(std::string_view text) {
  accepts([&] {
    const Json document = parse_json(text, "input");
    const Correction correction = correction_from_json(JsonReader(document, "input"));
    double last = 0;
    for (const double predicted : {1e-9, 1e-3, 1.0, 1e3, 1e8}) {
      const Correction::Interval at = correction.at(predicted);
      require(std::isfinite(at.high_s) && at.seconds >= last, "corrected times decrease");
      require(0 <= at.low_s && at.low_s <= at.seconds && at.seconds <= at.high_s, "an interval without its time");
      last = at.seconds;
    }
    other_origin(correction, {.model = "m", .parameters = 7, .framework = "f", .precision = "16-bit", .gpu = "g"});
    const std::string written = to_json_text(correction);
    try {
      const Json again = parse_json(written, "written");
      require(to_json_text(correction_from_json(JsonReader(again, "written"))) == written,
              "second output differs: " + written);
    } catch (const InputError& error) {
      require(false, error.what());
    }
  });
}

void try_software(std::string_view text) {
  accepts([&] {
    const Json document = parse_json(text, "input");
    software_from_json(JsonReader(document, "input"));
    Json scenario = base();
    scenario["software"] = document;
    const Setup setup(scenario_from_json(scenario, "input", ""));
    const Prediction prediction = predict(setup, {});
    require(prediction.metrics.makespan >= prediction.metrics.ideal, "a makespan below the work of the busiest rank");
  });
}

}  // namespace sluice::test::fuzz

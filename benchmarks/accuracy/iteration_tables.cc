#include "benchmarks/accuracy/iteration_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/slicing/balanced.h"
#include "sim/calibration/measured_iterations.h"
#include "sim/prediction.h"

namespace sluice::accuracy {
namespace {

using Json = nlohmann::json;

// What the tables do not say. Selene is a cluster of DGX A100.
const Json& vtrain_base() {
  static const Json base = Json::parse(R"({
    "model": {"vocab_size": 51200},
    "cluster": {"name": "dgx-a100-40gb"},
    "parallelism": {"flash_attention": false, "scatter_gather": false, "gradient_bytes": 2},
    "cost": "analytic"})");
  return base;
}

const Json& korthikanti_base() {
  static const Json base = Json::parse(R"({
    "cluster": "dgx-a100-80gb",
    "parallelism": {"flash_attention": false},
    "cost": "analytic"})");
  return base;
}

const Json& ptdp_base() {
  static const Json base = Json::parse(R"({
    "cluster": "dgx-a100-80gb",
    "parallelism": {"flash_attention": false, "recompute": "full"},
    "cost": "analytic"})");
  return base;
}

const Json& seq1f1b_base() {
  static const Json base = Json::parse(R"({
    "model": {"vocab_size": 50304},
    "cluster": "dgx-a100-80gb",
    "parallelism": {"sequence_parallel": true},
    "cost": "analytic"})");
  return base;
}

double seconds_of(const Scenario& scenario) { return to_seconds(predict(Setup(scenario)).metrics.makespan); }

// Reads the rows, one by one, so that one that cannot be read is only skipped.
template <typename Take>
void for_each_row(const CsvTable& table, const Json& base, TableScore& score, const Take& take) {
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      take(read_measured_iteration(table, row, base));
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
}

Figure time_figure(const MeasuredIteration& measured, double predicted_s, const char* group) {
  return {group, measured.place, measured.setting, measured.seconds, predicted_s, "s"};
}

}  // namespace

TableScore score_vtrain(const CsvTable& table) {
  TableScore score;
  for_each_row(table, vtrain_base(), score, [&](const MeasuredIteration& measured) {
    score.figures.push_back(time_figure(measured, seconds_of(measured.scenario), "iteration time"));
  });
  return score;
}

TableScore score_korthikanti(const CsvTable& table) {
  TableScore score;
  for_each_row(table, korthikanti_base(), score, [&](const MeasuredIteration& measured) {
    score.figures.push_back(time_figure(measured, seconds_of(measured.scenario), "iteration time"));
  });
  return score;
}

// Microbatch size and interleaving are not published: the fastest of the usual ones.
TableScore score_ptdp(const CsvTable& table) {
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    double best = 0;
    MeasuredIteration measured;
    std::string reason;
    for (const int micro_batch : {1, 2, 4, 8}) {
      for (const int chunks : {1, 2, 3, 4}) {
        Json base = ptdp_base();
        base["batch"]["micro_batch"] = micro_batch;
        if (chunks > 1) base["parallelism"]["vpp"] = chunks;
        try {
          MeasuredIteration one = read_measured_iteration(table, row, base);
          if (chunks > 1 && one.scenario.training.pp == 1) continue;
          const Prediction prediction = predict(Setup(one.scenario));
          if (prediction.fit && !prediction.fit->fits) continue;
          const double seconds = to_seconds(prediction.metrics.makespan);
          if (best > 0 && seconds >= best) continue;
          best = seconds;
          measured = one;
          measured.setting += fmt::format("; fastest: micro_batch {}, vpp {}", micro_batch, chunks);
        } catch (const InputError& error) {
          reason = error.what();  // sizes that do not divide
        }
      }
    }
    if (best > 0) {
      score.figures.push_back(time_figure(measured, best, "iteration time"));
    } else {
      score.skipped.push_back({table.place(row), reason});
    }
  }
  return score;
}

TableScore score_seq1f1b(const CsvTable& table) {
  constexpr int kSlices = 4;
  constexpr int kChunks = 2;
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      Json base = seq1f1b_base();
      const std::string& schedule = table.text(row, "schedule");
      if (schedule.find("interleaved") != std::string::npos) base["parallelism"]["vpp"] = kChunks;
      if (schedule.starts_with("seq1f1b")) {
        const MeasuredIteration plain = read_measured_iteration(table, row, base);
        base["schedule"]["slice_lengths"] =
            balanced_slices(*plain.scenario.model, plain.scenario.training.sequence_length, kSlices, 128);
      }
      const MeasuredIteration measured = read_measured_iteration(table, row, base);
      const Prediction prediction = predict(Setup(measured.scenario));
      score.verdicts.push_back(
          {measured.place, measured.setting, !measured.out_of_memory, prediction.fit && prediction.fit->fits});
      if (measured.out_of_memory) continue;
      score.figures.push_back(time_figure(measured, to_seconds(prediction.metrics.makespan), "iteration time"));
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

}  // namespace sluice::accuracy

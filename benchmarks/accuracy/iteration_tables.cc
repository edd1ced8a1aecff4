#include "benchmarks/accuracy/iteration_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "benchmarks/accuracy/scenarios.h"
#include "model/errors.h"
#include "sim/calibration/correction_fit.h"
#include "sim/calibration/measured_iterations.h"
#include "sim/engine/predict.h"

namespace sluice::bench::accuracy {
namespace {

double seconds_of(const Scenario& scenario) { return to_seconds(predict(Setup(scenario)).metrics.makespan); }

// Reads the rows one by one, so that invalid rows are skipped.
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

Comparison time_comparison(const MeasuredIteration& measured, double predicted_s, const char* group) {
  return with_scenario({group, measured.place, measured.setting, measured.seconds, predicted_s, "s"},
                       measured.scenario);
}

}  // namespace

TableScore score_vtrain(const CsvTable& table) {
  TableScore score;
  for_each_row(table, base_of("vtrain"), score, [&](const MeasuredIteration& measured) {
    score.comparisons.push_back(time_comparison(measured, seconds_of(measured.scenario), "iteration time"));
  });
  return score;
}

TableScore score_korthikanti(const CsvTable& table) {
  TableScore score;
  for_each_row(table, base_of("korthikanti"), score, [&](const MeasuredIteration& measured) {
    score.comparisons.push_back(time_comparison(measured, seconds_of(measured.scenario), "iteration time"));
  });
  return score;
}

// Microbatch size and interleaving are not published: uses the fastest of common values.
TableScore score_ptdp(const CsvTable& table) {
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    double best = 0;
    MeasuredIteration measured;
    std::string reason;
    for (const int micro_batch : {1, 2, 4, 8}) {
      for (const int chunks : {1, 2, 3, 4}) {
        Json base = base_of("ptdp");
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
      score.comparisons.push_back(time_comparison(measured, best, "iteration time"));
    } else {
      score.skipped.push_back({table.place(row), reason});
    }
  }
  return score;
}

TableScore score_seq1f1b(const CsvTable& table) {
  TableScore score;
  for_each_row(table, base_of("seq1f1b"), score, [&](const MeasuredIteration& measured) {
    const Prediction prediction = predict(Setup(measured.scenario));
    score.verdicts.push_back(
        {measured.place, measured.setting, !measured.out_of_memory, prediction.fit && prediction.fit->fits});
    if (measured.out_of_memory) return;
    score.comparisons.push_back(time_comparison(measured, to_seconds(prediction.metrics.makespan), "iteration time"));
  });
  return score;
}

// Time is linear in the number of microbatches. A scale and a fixed time are fitted to the rows with the fewest and the
// most microbatches, and predict the others. Each model is calibrated separately.
TableScore score_mlperf(const CsvTable& table) {
  struct Row {
    MeasuredIteration measured;
    double predicted_s = 0;
  };
  TableScore score;
  std::map<std::string, std::vector<Row>> models;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const bool llama = table.text(row, "benchmark").find("llama") != std::string::npos;
      Row one{read_measured_iteration(table, row, base_of(llama ? "mlperf-llama" : "mlperf"))};
      one.predicted_s = seconds_of(one.measured.scenario);
      score.comparisons.push_back(time_comparison(one.measured, one.predicted_s, "iteration time, uncalibrated"));
      models[table.text(row, "benchmark")].push_back(std::move(one));
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  for (auto& [name, rows] : models) {
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
      return std::pair(a.measured.scenario.microbatches, a.measured.seconds) <
             std::pair(b.measured.scenario.microbatches, b.measured.seconds);
    });
    // Of several rows with the same number of microbatches, the median one.
    const auto middle_of = [&](int microbatches) {
      const auto same = [&](const Row& row) { return row.measured.scenario.microbatches == microbatches; };
      const auto begin = std::find_if(rows.begin(), rows.end(), same);
      const auto end = std::find_if_not(begin, rows.end(), same);
      return begin + (end - begin - 1) / 2;
    };
    const auto least = middle_of(rows.front().measured.scenario.microbatches);
    const auto most = middle_of(rows.back().measured.scenario.microbatches);
    if (least == most) {
      score.skipped.push_back(
          {table.source(), name + ": calibration needs rows with different numbers of microbatches"});
      continue;
    }
    const Correction correction = fit_correction(std::vector<PredictedAndMeasured>{
        {least->predicted_s, least->measured.seconds}, {most->predicted_s, most->measured.seconds}});
    for (auto row = rows.begin(); row != rows.end(); ++row) {
      if (row == least || row == most) continue;
      score.comparisons.push_back(time_comparison(row->measured, correction.at(row->predicted_s).seconds,
                                                  "iteration time, calibrated on two rows"));
      score.comparisons.back().model.clear();  // is not calibrated again
    }
  }
  return score;
}

TableScore score_users_table(const CsvTable& table, const Json& base, const std::string& folder) {
  constexpr const char* kMemory = "peak_memory_gib";
  check_columns(table);
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const MeasuredIteration run = read_measured_iteration(table, row, base, folder);
      const Prediction prediction = predict(Setup(run.scenario));
      if (prediction.fit) {
        score.verdicts.push_back({run.place, run.setting, !run.out_of_memory, prediction.fit->fits});
      }
      if (run.out_of_memory) continue;
      const double seconds =
          prediction.corrected ? prediction.corrected->seconds : to_seconds(prediction.metrics.makespan);
      score.comparisons.push_back(time_comparison(run, seconds, "iteration time"));
      if (!table.has(kMemory) || table.text(row, kMemory).empty()) continue;
      std::int64_t peak = 0;
      for (const RankMemory& rank : prediction.memory) peak = std::max(peak, rank.peak_bytes);
      score.comparisons.push_back(
          with_scenario({"peak memory", run.place, run.setting, table.number(row, kMemory, 1e-6, 1e6),
                         static_cast<double>(peak) / (1 << 30), "GiB"},
                        run.scenario));
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

}  // namespace sluice::bench::accuracy

#include "benchmarks/accuracy/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "model/median.h"
#include "sim/planner/shortlist.h"

namespace sluice::bench::accuracy {
namespace {

// The sizes in a setting such as "hidden 2048, layers 24, tp 2".
std::map<std::string, std::string> cells_of(const std::string& setting) {
  std::map<std::string, std::string> cells;
  for (std::size_t begin = 0; begin < setting.size();) {
    const std::size_t end = std::min(setting.find_first_of(",;", begin), setting.size());
    const std::string cell = setting.substr(begin, end - begin);
    const std::size_t blank = cell.find(' ');
    if (blank != std::string::npos) cells[cell.substr(0, blank)] = cell.substr(blank + 1);
    begin = std::min(setting.size(), setting.find_first_not_of(",; ", end));
  }
  return cells;
}

// What is not chosen, with the number of GPUs.
std::string fixed_part(std::map<std::string, std::string> cells) {
  double gpus = 1;
  for (const char* size : {"tp", "pp", "dp"}) gpus *= cells.count(size) > 0 ? std::stod(cells[size]) : 1;
  if (cells.count("global_batch") > 0) cells.erase("microbatches");
  std::string out = fmt::format("gpus {}", gpus);
  for (const char* key : {"hidden", "layers", "seq", "global_batch", "microbatches"}) {
    if (cells.count(key) > 0) out += fmt::format(", {} {}", key, cells[key]);
  }
  return out;
}

// The loss of the best of the first `count` runs in this order that did not fail.
double loss_of(const std::vector<const MeasuredRun*>& order, int count, double best_s, int& skipped) {
  double chosen_s = INFINITY;
  for (const MeasuredRun* run : order) {
    if (count == 0) break;
    if (run->measured_s == 0) {
      ++skipped;
      continue;
    }
    chosen_s = std::min(chosen_s, run->measured_s);
    --count;
  }
  return chosen_s / best_s - 1;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// All runs of a set, in the order in which they would be measured.
std::vector<const MeasuredRun*> ordered(const std::vector<const MeasuredRun*>& runs, bool by_likelihood) {
  std::vector<const MeasuredRun*> out;
  for (const auto& [fits, tight] : {std::pair(true, false), std::pair(true, true), std::pair(false, true)}) {
    std::vector<const MeasuredRun*> part;
    std::vector<sim::Candidate> candidates;
    std::map<std::string, int> groups;
    for (const MeasuredRun* run : runs) {
      if (run->predicted_fits != fits || run->predicted_tight != tight) continue;
      part.push_back(run);
      const int group = groups.try_emplace(run->alike, static_cast<int>(groups.size())).first->second;
      candidates.push_back({run->predicted_s, group});
    }
    const sim::ChoiceErrors errors = by_likelihood ? sim::kMeasuredErrors : sim::ChoiceErrors{};
    for (const int index : sim::shortlist(candidates, static_cast<int>(part.size()), errors).chosen) {
      out.push_back(part[index]);
    }
  }
  return out;
}

std::map<std::string, std::vector<const MeasuredRun*>> sets_of(const std::vector<MeasuredRun>& runs) {
  std::map<std::string, std::vector<const MeasuredRun*>> sets;
  for (const MeasuredRun& run : runs) sets[run.set].push_back(&run);
  return sets;
}

}  // namespace

Regret regret_of(const std::vector<MeasuredRun>& runs) {
  Regret out;
  for (const auto& [name, set] : sets_of(runs)) {
    double best_s = INFINITY;
    for (const MeasuredRun* run : set) {
      if (run->measured_s > 0) best_s = std::min(best_s, run->measured_s);
    }
    if (best_s == INFINITY || set.size() < 2) continue;
    ++out.sets;
    int ignored = 0;
    out.first.push_back(loss_of(ordered(set, false), 1, best_s, out.skipped));
    out.of_five.push_back(loss_of(ordered(set, true), 5, best_s, ignored));
  }
  std::sort(out.first.begin(), out.first.end());
  std::sort(out.of_five.begin(), out.of_five.end());
  return out;
}

std::string regret_text(const Regret& regret) {
  if (regret.sets == 0) return "";
  std::string out;
  const auto line = [&](const char* what, const std::vector<double>& losses) {
    out += fmt::format("{:<22} {}: slower than the best of {} sets by {:.1f} % (median), {:.1f} % (mean)", "", what,
                       regret.sets, 100 * median(losses), 100 * mean(losses));
  };
  line("first choice", regret.first);
  out += fmt::format("; {} choices had failed\n", regret.skipped);
  line("best of five", regret.of_five);
  return out + "\n";
}

std::vector<MeasuredRun> runs_of(const TableScore& score) {
  if (!score.runs.empty()) return score.runs;
  std::vector<MeasuredRun> out;
  for (const Comparison& comparison : score.comparisons) {
    if (comparison.group != "iteration time") continue;
    auto cells = cells_of(comparison.setting);
    out.push_back({.set = fixed_part(cells),
                   .place = comparison.place,
                   .setting = comparison.setting,
                   .alike = fmt::format("tp {}, mbs {}", cells["tp"], cells["micro_batch"]),
                   .measured_s = comparison.measured,
                   .predicted_s = comparison.predicted});
  }
  return out;
}

std::string difference_text(const std::vector<MeasuredRun>& runs) {
  constexpr double kClose = 0.15;
  std::vector<double> off;
  for (const auto& [name, set] : sets_of(runs)) {
    for (std::size_t i = 0; i < set.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (set[i]->measured_s == 0 || set[j]->measured_s == 0) continue;
        const double predicted = std::log(set[i]->predicted_s / set[j]->predicted_s);
        if (std::abs(predicted) >= kClose) continue;
        off.push_back(std::abs(predicted - std::log(set[i]->measured_s / set[j]->measured_s)));
      }
    }
  }
  if (off.empty()) return "";
  return fmt::format("{:<22} median error of the difference of {} pairs: {:.1f} %\n", "", off.size(),
                     100 * median(off));
}

}  // namespace sluice::bench::accuracy

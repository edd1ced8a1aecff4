#include "benchmarks/accuracy/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace sluice::bench::accuracy {
namespace {

// "hidden 2048, layers 24, tp 2": what is chosen is taken out, and the GPUs put in.
std::string what_is_given(const std::string& setting) {
  std::map<std::string, std::string> cells;
  for (std::size_t begin = 0; begin < setting.size();) {
    const std::size_t end = std::min(setting.find_first_of(",;", begin), setting.size());
    const std::string cell = setting.substr(begin, end - begin);
    const std::size_t blank = cell.find(' ');
    if (blank != std::string::npos) cells[cell.substr(0, blank)] = cell.substr(blank + 1);
    begin = std::min(setting.size(), setting.find_first_not_of(",; ", end));
  }
  double gpus = 1;
  for (const char* size : {"tp", "pp", "dp"}) gpus *= cells.count(size) > 0 ? std::stod(cells[size]) : 1;
  if (cells.count("global_batch") > 0) cells.erase("microbatches");
  std::string out = fmt::format("gpus {}", gpus);
  for (const char* key : {"hidden", "layers", "seq", "global_batch", "microbatches"}) {
    if (cells.count(key) > 0) out += fmt::format(", {} {}", key, cells[key]);
  }
  return out;
}

}  // namespace

std::optional<Choices> choices_of(const TableScore& score) {
  std::map<std::string, std::vector<const Figure*>> sets;
  for (const Figure& figure : score.figures) {
    if (figure.group == "iteration time") sets[what_is_given(figure.setting)].push_back(&figure);
  }
  constexpr double kClose = 0.15;
  std::vector<double> off;
  std::vector<double> losses;
  for (const auto& [given, figures] : sets) {
    for (std::size_t i = 0; i < figures.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const double predicted = std::log(figures[i]->predicted / figures[j]->predicted);
        if (std::abs(predicted) >= kClose) continue;
        off.push_back(std::abs(predicted - std::log(figures[i]->measured / figures[j]->measured)));
      }
    }
    if (figures.size() < 3) continue;
    const auto by = [](double Figure::*time) {
      return [time](const Figure* a, const Figure* b) { return a->*time < b->*time; };
    };
    const Figure* chosen = *std::min_element(figures.begin(), figures.end(), by(&Figure::predicted));
    const Figure* best = *std::min_element(figures.begin(), figures.end(), by(&Figure::measured));
    losses.push_back(chosen->measured / best->measured - 1);
  }
  if (off.empty()) return std::nullopt;
  Choices out{.pairs = static_cast<int>(off.size()), .sets = static_cast<int>(losses.size())};
  const auto middle = off.begin() + std::ssize(off) / 2;
  std::nth_element(off.begin(), middle, off.end());
  out.median_difference = *middle;
  if (!losses.empty()) {
    out.mean_loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
    out.worst_loss = *std::max_element(losses.begin(), losses.end());
  }
  return out;
}

std::string choices_text(const Choices& choices) {
  std::string out = fmt::format("{:<22} difference of {} pairs off by {:.1f} % (median)", "", choices.pairs,
                                100 * choices.median_difference);
  if (choices.sets > 0) {
    out += fmt::format("; the choice of {} sets {:.1f} % slower than the best (mean), at most {:.1f} %", choices.sets,
                       100 * choices.mean_loss, 100 * choices.worst_loss);
  }
  return out + "\n";
}

}  // namespace sluice::bench::accuracy

#include "tools/analyze/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice::tools {
namespace {

constexpr std::size_t kMostAnswerLines = 5;  // below the title

}  // namespace

std::string StepUnit::text(double seconds) const { return fmt::format("{:.{}f}", per_second * seconds, decimals); }

StepUnit unit_of(double step_seconds) { return step_seconds < 0.5 ? StepUnit{1e3, "ms", 3} : StepUnit{}; }

std::string answer_text(const std::vector<AnswerLine>& lines, double step_seconds) {
  const StepUnit unit = unit_of(step_seconds);
  std::string out = fmt::format("why a step takes {} {}", unit.text(step_seconds), unit.name);
  if (lines.empty()) return out + ": no cause that a replay can remove costs 0.1 % of it\n\n";
  out += ", and what a replay with each remedy gains\n";
  for (std::size_t i = 0; i < std::min(lines.size(), kMostAnswerLines); ++i) {
    out += fmt::format("  {:>8} {}  {}; {}: {:+.1f} %\n", unit.text(lines[i].cause_seconds), unit.name, lines[i].cause,
                       lines[i].remedy, -100 * lines[i].gain_seconds / step_seconds);
  }
  return out + '\n';
}

nlohmann::ordered_json answer_document(const std::vector<AnswerLine>& lines, double step_seconds) {
  auto out = nlohmann::ordered_json::array();
  for (const AnswerLine& line : lines) {
    out.push_back({{"kind", line.kind},
                   {"cause", line.cause},
                   {"s_per_step", line.cause_seconds},
                   {"remedy", line.remedy},
                   {"gain_s", line.gain_seconds},
                   {"gain", line.gain_seconds / step_seconds}});
  }
  return out;
}

}  // namespace sluice::tools

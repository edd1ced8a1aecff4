#pragma once

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace sluice::tools {

// A cause of slow steps, with what ends it.
struct AnswerLine {
  std::string kind;
  std::string cause;
  std::string remedy;
  double cause_seconds = 0;  // mean per step that a replay without the cause saves
  double gain_seconds = 0;   // mean per step that a replay with the remedy saves
};

// The unit in which a text prints the times of a step: seconds, or milliseconds for short ones, and the decimals.
struct StepUnit {
  double per_second = 1;
  const char* name = "s";
  int decimals = 4;

  std::string text(double seconds) const;  // without the unit
};
StepUnit unit_of(double step_seconds);

// A text that grows line by line.
class TextLines {
 protected:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  std::string out_;
};

// The first lines of an analysis, at most six: the causes that cost most, with their remedies and gains.
std::string answer_text(const std::vector<AnswerLine>& lines, double step_seconds);
// [{"kind", "cause", "s_per_step", "remedy", "gain_s", "gain"}, ...]
nlohmann::ordered_json answer_document(const std::vector<AnswerLine>& lines, double step_seconds);

}  // namespace sluice::tools

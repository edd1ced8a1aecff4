#include "model/scenario/pipeline_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <numeric>
#include <system_error>
#include <utility>

#include "model/errors.h"
#include "model/schedule/schedule.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr int kMostRepeats = 100'000;
constexpr std::size_t kMostLetters = 10'000'000;

// Expands the repetitions of a layout.
class LayoutReader {
 public:
  explicit LayoutReader(std::string_view text) : text_(text) {}

  std::string letters() {
    std::string out;
    while (next() != '\0') {
      const std::string unit = next() == '(' ? group() : letter();
      append(unit, out);
    }
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) {
    const char found = next();
    throw InputError(fmt::format("position {}: expected {}, got {}", at_ + 1, expected,
                                 found == '\0' ? "the end" : fmt::format("'{}'", found)));
  }

  // The next character that counts, or 0 at the end.
  char next() {
    while (at_ < text_.size() && (text_[at_] == ',' || text_[at_] == ' ')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  std::string letter() {
    const char found = next();
    if (found == '\0' || std::string_view("EtmL|").find(found) == std::string_view::npos) fail("E, t, m, L, | or (");
    ++at_;
    return std::string(1, found);
  }

  std::string group() {
    ++at_;
    std::string inside;
    while (next() != ')') append(letter(), inside);
    ++at_;
    if (next() != '*') fail("* and a number after a group");
    return inside;
  }

  // Appends `unit` as often as the "*n" after it says.
  void append(const std::string& unit, std::string& out) {
    const auto times = static_cast<std::size_t>(repeats());
    if (unit.size() * times > kMostLetters - out.size()) fail("a shorter layout");
    for (std::size_t i = 0; i < times; ++i) out += unit;
  }

  // Reads "*n"; 1 without it.
  int repeats() {
    if (next() != '*') return 1;
    ++at_;
    next();
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    const std::string_view digits = text_.substr(begin, at_ - begin);
    int number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (!digits.empty() && (error != std::errc() || number > kMostRepeats)) {
      throw InputError(
          fmt::format("position {}: expected a number of at most {}, got {}", begin + 1, kMostRepeats, digits));
    }
    if (number == 0) fail("a positive number after *");
    return number;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

PipelineLayout read_layout(std::string_view text) {
  PipelineLayout out;
  std::vector<Predictions> predictions;
  int embeddings = 0;
  int losses = 0;
  int with_loss = 0;  // the last stage that has one
  const auto stage = [&] { return static_cast<int>(out.layers.size()) - 1; };
  const auto fail = [](int place, const char* rule) { throw InputError(fmt::format("stage {}: {}", place, rule)); };
  const auto add_stage = [&] {
    if (out.layers.size() == kMaxStages) throw InputError(fmt::format("more than {} stages", kMaxStages));
    out.layers.push_back(0);
    predictions.emplace_back();
  };
  constexpr const char* kLossLast = "expected the loss L at the end of the last stage";
  add_stage();
  for (const char letter : LayoutReader(text).letters()) {
    if (losses > 0 && letter != 'L' && letter != '|') fail(with_loss, kLossLast);
    switch (letter) {
      case '|': add_stage(); break;
      case 'E':
        if (out.layers.size() > 1 || out.layers.back() > 0 || embeddings > 0 || out.mtp_layers > 0) {
          fail(stage(), "expected one embedding E, at the begin of the first stage");
        }
        ++embeddings;
        break;
      case 'L':
        ++losses;
        ++predictions.back().losses;
        with_loss = stage();
        break;
      case 'm':
        if (out.mtp_layers == 0) out.mtp_stage = stage();
        ++out.mtp_layers;
        ++predictions.back().layers;
        break;
      default:
        if (out.mtp_layers > 0) fail(stage(), "expected transformer layers t before multi-token prediction m");
        ++out.layers.back();
    }
  }
  if (embeddings == 0) throw InputError("expected an embedding E in the first stage");
  if (losses == 0) throw InputError("expected a loss L in the last stage");
  if (with_loss != stage()) fail(with_loss, kLossLast);
  if (losses > 1 && losses != 1 + out.mtp_layers) {
    throw InputError(
        fmt::format("expected one loss L, or {} for the main model and each m, got {}", 1 + out.mtp_layers, losses));
  }
  const bool one_stage = predictions[to_size(out.mtp_stage)].layers == out.mtp_layers;
  if (losses > 1 && predictions.back().losses == losses) predictions.back().losses = losses = 1;
  if (!one_stage || losses > 1) {
    if (losses == 1) predictions.back().losses = 1 + out.mtp_layers;
    out.predictions = std::move(predictions);
  }
  return out;
}

std::string layout_of(std::span<const int> layers, int mtp_layers, int mtp_stage,
                      std::span<const Predictions> predictions) {
  std::vector<Predictions> of_stages(predictions.begin(), predictions.end());
  if (of_stages.empty()) {
    of_stages.resize(layers.size());
    of_stages[mtp_stage == kLastStage ? layers.size() - 1 : to_size(mtp_stage)].layers = mtp_layers;
  }
  const int all = std::accumulate(of_stages.begin(), of_stages.end(), 0,
                                  [](int sum, const Predictions& of) { return sum + of.layers; });
  if (of_stages.back().losses == 0 || of_stages.back().losses == 1 + all) of_stages.back().losses = 1;
  const auto letters = [](char letter, int count) {
    return count == 0 ? std::string() : count == 1 ? std::string(1, letter) : fmt::format("{}*{}", letter, count);
  };
  std::vector<std::string> stages;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    stages.push_back((i == 0 ? "E" : "") + letters('t', layers[i]) + letters('m', of_stages[i].layers) +
                     letters('L', of_stages[i].losses));
    if (i + 1 < layers.size()) stages.back() += '|';
  }
  std::string out;
  for (auto begin = stages.begin(); begin != stages.end();) {
    const auto end = std::find_if(begin, stages.end(), [&](const std::string& other) { return other != *begin; });
    out += end - begin == 1 ? *begin : fmt::format("({})*{}", *begin, end - begin);
    begin = end;
  }
  return out;
}

}  // namespace sluice::model

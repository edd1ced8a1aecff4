#include "model/scenario/pipeline_layout.h"

#include <fmt/format.h>

#include <cstddef>

#include "model/errors.h"
#include "model/schedule/schedule.h"

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
    if (found == 'm') fail("E, t, L or | (multi-token prediction is not modeled)");
    if (found == '\0' || std::string_view("EtL|").find(found) == std::string_view::npos) fail("E, t, L, | or (");
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
    int number = 0;
    while (next() >= '0' && next() <= '9') {
      number = 10 * number + (next() - '0');
      if (number > kMostRepeats) fail(fmt::format("a number of at most {}", kMostRepeats));
      ++at_;
    }
    if (number == 0) fail("a positive number after *");
    return number;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<int> layers_of_layout(std::string_view text) {
  std::vector<int> layers = {0};
  int embeddings = 0;
  int losses = 0;
  const auto stage = [&] { return fmt::format("stage {}", layers.size() - 1); };
  for (const char letter : LayoutReader(text).letters()) {
    if (losses > 0) {
      throw InputError(fmt::format("{}: expected the loss L at the end of the last stage", stage()));
    }
    switch (letter) {
      case '|':
        if (layers.size() == kMaxStages) throw InputError(fmt::format("more than {} stages", kMaxStages));
        layers.push_back(0);
        break;
      case 'E':
        if (layers.size() > 1 || layers.back() > 0 || embeddings > 0) {
          throw InputError(fmt::format("{}: expected one embedding E, at the begin of the first stage", stage()));
        }
        ++embeddings;
        break;
      case 'L': ++losses; break;
      default: ++layers.back();
    }
  }
  if (embeddings == 0) throw InputError("expected an embedding E in the first stage");
  if (losses == 0) throw InputError("expected a loss L in the last stage");
  return layers;
}

std::string layout_of(std::span<const int> layers) {
  std::string out;
  const auto letters = [](int count) {
    return count == 0 ? "" : count == 1 ? std::string("t") : fmt::format("t*{}", count);
  };
  for (std::size_t i = 0; i < layers.size();) {
    const bool first = i == 0;
    const bool last = i + 1 == layers.size();
    if (first || last) {
      out += (first ? "E" : "") + letters(layers[i]) + (last ? "L" : "|");
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end + 1 < layers.size() && layers[end] == layers[i]) ++end;
    const std::string one = letters(layers[i]) + "|";
    out += end - i == 1 ? one : fmt::format("({})*{}", one, end - i);
    i = end;
  }
  return out;
}

}  // namespace sluice::model

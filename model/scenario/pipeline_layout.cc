#include "model/scenario/pipeline_layout.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <system_error>

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
  PipelineLayout out{.layers = {0}};
  std::vector<int>& layers = out.layers;
  int embeddings = 0;
  int losses = 0;
  const auto stage = [&] { return static_cast<int>(layers.size()) - 1; };
  const auto fail = [&](const char* rule) { throw InputError(fmt::format("stage {}: {}", stage(), rule)); };
  for (const char letter : LayoutReader(text).letters()) {
    if (losses > 0) fail("expected the loss L at the end of the last stage");
    switch (letter) {
      case '|':
        if (layers.size() == kMaxStages) throw InputError(fmt::format("more than {} stages", kMaxStages));
        layers.push_back(0);
        break;
      case 'E':
        if (layers.size() > 1 || layers.back() > 0 || embeddings > 0 || out.mtp_layers > 0) {
          fail("expected one embedding E, at the begin of the first stage");
        }
        ++embeddings;
        break;
      case 'L': ++losses; break;
      case 'm':
        if (out.mtp_layers > 0 && out.mtp_stage != stage()) fail("expected all multi-token prediction m in one stage");
        ++out.mtp_layers;
        out.mtp_stage = stage();
        break;
      default:
        if (out.mtp_layers > 0) fail("expected transformer layers t before multi-token prediction m");
        ++layers.back();
    }
  }
  if (embeddings == 0) throw InputError("expected an embedding E in the first stage");
  if (losses == 0) throw InputError("expected a loss L in the last stage");
  return out;
}

std::string layout_of(std::span<const int> layers, int mtp_layers, int mtp_stage) {
  std::string out;
  const auto letters = [](char letter, int count) {
    return count == 0 ? std::string() : count == 1 ? std::string(1, letter) : fmt::format("{}*{}", letter, count);
  };
  const std::size_t with_mtp = mtp_layers == 0           ? layers.size()
                               : mtp_stage == kLastStage ? layers.size() - 1
                                                         : static_cast<std::size_t>(mtp_stage);
  for (std::size_t i = 0; i < layers.size();) {
    const bool first = i == 0;
    const bool last = i + 1 == layers.size();
    if (first || last || i == with_mtp) {
      out += (first ? "E" : "") + letters('t', layers[i]) + (i == with_mtp ? letters('m', mtp_layers) : "") +
             (last ? "L" : "|");
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end + 1 < layers.size() && end != with_mtp && layers[end] == layers[i]) ++end;
    const std::string one = letters('t', layers[i]) + "|";
    out += end - i == 1 ? one : fmt::format("({})*{}", one, end - i);
    i = end;
  }
  return out;
}

}  // namespace sluice::model

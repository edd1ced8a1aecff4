#include "import/layer_frequency.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/errors.h"

namespace sluice::imports {
namespace {

constexpr std::size_t kMostEntries = 1 << 16;
constexpr int kMostDepth = 50;
constexpr int kMostEntry = 1'000'000;

class FrequencyReader {
 public:
  explicit FrequencyReader(std::string_view text) : text_(text) {}

  nlohmann::json run() {
    nlohmann::json out;
    if (next() >= '0' && next() <= '9') {
      out = number();
    } else {
      out = sum(0);
    }
    if (next() != '\0') fail("the end");
    return out;
  }

 private:
  [[noreturn]] void fail(const char* expected) {
    const char found = next();
    throw InputError(fmt::format("position {}: expected {}, got {}", at_ + 1, expected,
                                 found == '\0' ? "the end" : fmt::format("'{}'", found)));
  }

  char next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  int number() {
    int value = 0;
    if (next() < '0' || next() > '9') fail("a number");
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = 10 * value + (text_[at_++] - '0');
      if (value > kMostEntry) fail("a smaller number");
    }
    return value;
  }

  std::vector<int> sum(int depth) {
    std::vector<int> out = product(depth);
    while (next() == '+') {
      ++at_;
      const std::vector<int> more = product(depth);
      if (out.size() + more.size() > kMostEntries) fail("a shorter list");
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }

  std::vector<int> product(int depth) {
    std::vector<int> one;
    if (next() == '(' && depth < kMostDepth) {
      ++at_;
      one = sum(depth + 1);
      if (next() != ')') fail("+ or )");
      ++at_;
    } else {
      one = list();
    }
    while (next() == '*') {
      ++at_;
      const auto times = static_cast<std::size_t>(number());
      if (!one.empty() && times > kMostEntries / one.size()) fail("a shorter list");
      const std::vector<int> repeated = std::move(one);
      one.clear();
      for (std::size_t i = 0; i < times; ++i) one.insert(one.end(), repeated.begin(), repeated.end());
    }
    return one;
  }

  std::vector<int> list() {
    std::vector<int> out;
    if (next() != '[') fail("a number, [ or (");
    ++at_;
    while (next() != ']') {
      out.push_back(number());
      if (next() == ',') {
        ++at_;
      } else if (next() != ']') {
        fail(", or ]");
      }
    }
    ++at_;
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

nlohmann::json layer_frequency(std::string_view text) { return FrequencyReader(text).run(); }

}  // namespace sluice::imports

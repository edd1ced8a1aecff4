#include "model/import/toml.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <utility>

#include "model/errors.h"

namespace sluice::model {
namespace {

constexpr int kMostTomlNesting = 20;

bool is_toml_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

class TomlReader {
 public:
  TomlReader(std::string_view text, std::string source) : text_(text), source_(std::move(source)) {}

  TomlFile run() {
    for (skip(true); !at_end(); skip(true)) {
      if (here() == '[') {
        table();
      } else {
        pair();
      }
      skip(false);
      if (!at_end() && here() != '\n') fail("the end of the line");
    }
    return std::move(out_);
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return at_end() ? '\0' : text_[at_]; }
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string found = at_end()         ? "the end"
                              : here() == '\n' ? "the end of the line"
                                               : fmt::format("'{}'", here());
    throw InputError(fmt::format("{}: line {}: expected {}, got {}", source_, line_, expected, found));
  }

  // Skips blanks and comments, with `lines` also ends of lines.
  void skip(bool lines) {
    while (!at_end()) {
      const char c = here();
      if (c == '#') {
        while (!at_end() && here() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r') {
        ++at_;
      } else if (c == '\n' && lines) {
        ++line_;
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string name(bool dots) {
    const std::size_t begin = at_;
    while (!at_end() && (is_toml_name(here()) || (dots && here() == '.'))) ++at_;
    if (at_ == begin) fail("a name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  void table() {
    ++at_;
    skip(false);
    table_ = name(true);
    skip(false);
    if (here() != ']') fail("]");
    ++at_;
  }

  void pair() {
    const std::int64_t line = line_;
    const std::string key = (table_.empty() ? "" : table_ + ".") + name(false);
    skip(false);
    if (here() != '=') fail("=");
    ++at_;
    skip(false);
    nlohmann::json read = value(0);
    if (!out_.emplace(key, TomlValue{std::move(read), line}).second) {
      throw InputError(fmt::format("{}: line {}: {} occurs twice", source_, line, key));
    }
  }

  nlohmann::json value(int depth) {
    if (here() == '"' || here() == '\'') return string();
    if (here() == '[' && depth < kMostTomlNesting) return array(depth);
    const std::size_t begin = at_;
    while (!at_end() && (is_toml_name(here()) || here() == '+' || here() == '.')) ++at_;
    std::string word(text_.substr(begin, at_ - begin));
    if (word == "true" || word == "false") return word == "true";
    std::erase(word, '_');
    const char* const first = word.data() + (word.starts_with('+') ? 1 : 0);
    const char* const last = word.data() + word.size();
    std::int64_t whole = 0;
    if (const auto [rest, error] = std::from_chars(first, last, whole); error == std::errc() && rest == last) {
      return whole;
    }
    double real = 0;
    if (const auto [rest, error] = std::from_chars(first, last, real); error == std::errc() && rest == last) {
      return real;
    }
    at_ = begin;
    fail("a string, number, boolean or array");
  }

  nlohmann::json array(int depth) {
    nlohmann::json out = nlohmann::json::array();
    ++at_;
    for (skip(true); here() != ']'; skip(true)) {
      out.push_back(value(depth + 1));
      skip(true);
      if (here() == ',') {
        ++at_;
      } else if (here() != ']') {
        fail(", or ]");
      }
    }
    ++at_;
    return out;
  }

  std::string string() {
    const char quote = here();
    ++at_;
    std::string out;
    while (here() != quote || at_end()) {
      if (at_end() || here() == '\n') fail(fmt::format("a closing {}", quote));
      if (here() == '\\' && quote == '"') {
        ++at_;
        if (here() != '"' && here() != '\\') fail("\" or \\ after a \\");
      }
      out += text_[at_++];
    }
    ++at_;
    return out;
  }

  std::string_view text_;
  std::string source_;
  std::string table_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
  TomlFile out_;
};

}  // namespace

TomlFile read_toml(std::string_view text, const std::string& source) { return TomlReader(text, source).run(); }

}  // namespace sluice::model

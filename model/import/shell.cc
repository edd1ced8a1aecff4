#include "model/import/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <optional>
#include <utility>

#include "model/errors.h"

namespace sluice::model {
namespace {

constexpr std::size_t kMostExpanded = std::size_t{1} << 24;  // characters
constexpr int kMostNested = 50;
constexpr std::array<std::string_view, 17> kControl = {"if",       "then",   "else", "elif", "fi",   "for",
                                                       "while",    "until",  "do",   "done", "case", "esac",
                                                       "function", "select", "[[",   "{",    "}"};

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_name(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

using ShellVariables = std::map<std::string, std::vector<std::string>>;

// Computes an integer expression of $((...)).
class ShellArithmetic {
 public:
  ShellArithmetic(std::string_view text, const ShellVariables& variables) : text_(text), variables_(variables) {}

  std::optional<std::int64_t> result() {
    const auto value = sum(0);
    return value && next() == '\0' ? value : std::nullopt;
  }

 private:
  char next() {
    while (at_ < text_.size() && (is_blank(text_[at_]) || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  static std::optional<std::int64_t> applied(char op, std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (op == '+' && !__builtin_add_overflow(a, b, &out)) return out;
    if (op == '-' && !__builtin_sub_overflow(a, b, &out)) return out;
    if (op == '*' && !__builtin_mul_overflow(a, b, &out)) return out;
    if ((op == '/' || op == '%') && b > 0) return op == '/' ? a / b : a % b;
    return std::nullopt;
  }

  std::optional<std::int64_t> sum(int depth) {
    auto value = product(depth);
    while (value && (next() == '+' || next() == '-')) {
      const char op = text_[at_++];
      const auto other = product(depth);
      value = other ? applied(op, *value, *other) : std::nullopt;
    }
    return value;
  }

  std::optional<std::int64_t> product(int depth) {
    auto value = operand(depth);
    while (value && (next() == '*' || next() == '/' || next() == '%')) {
      const char op = text_[at_++];
      const auto other = operand(depth);
      value = other ? applied(op, *value, *other) : std::nullopt;
    }
    return value;
  }

  std::optional<std::int64_t> operand(int depth) {
    if (next() == '(' && depth < kMostNested) {
      ++at_;
      const auto value = sum(depth + 1);
      if (!value || next() != ')') return std::nullopt;
      ++at_;
      return value;
    }
    if (next() == '$') ++at_;
    const bool brace = at_ < text_.size() && text_[at_] == '{';
    if (brace) ++at_;
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    std::string_view word = text_.substr(begin, at_ - begin);
    if (brace && (at_ >= text_.size() || text_[at_++] != '}')) return std::nullopt;
    if (!word.empty() && is_name_start(word.front())) {
      const auto found = variables_.find(std::string(word));
      if (found == variables_.end() || found->second.empty()) return std::nullopt;
      word = found->second.front();
    }
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || rest != word.data() + word.size()) return std::nullopt;
    return value;
  }

  std::string_view text_;
  const ShellVariables& variables_;
  std::size_t at_ = 0;
};

// The fields into which a word expands.
class ShellFields {
 public:
  void add(std::string_view text) {
    if (!open_) out_.emplace_back();
    open_ = true;
    out_.back() += text;
  }
  void split() { open_ = false; }
  std::vector<std::string> take() { return std::move(out_); }

 private:
  std::vector<std::string> out_;
  bool open_ = false;
};

class ShellReader {
 public:
  ShellReader(std::string_view text, std::string source, bool script)
      : text_(text), source_(std::move(source)), script_(script) {}

  ShellScript run() {
    while (!at_end()) step();
    end_command();
    return std::move(out_);
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return at_end() ? '\0' : text_[at_]; }
  char after(std::size_t n = 1) const { return at_ + n < text_.size() ? text_[at_ + n] : '\0'; }
  [[noreturn]] void fail(std::int64_t line, const std::string& what) const {
    throw InputError(script_ ? fmt::format("{}: line {}: {}", source_, line, what)
                             : fmt::format("{}: {}", source_, what));
  }
  char take() {
    if (here() == '\n') ++line_;
    return text_[at_++];
  }
  bool is_operator(char c) const { return script_ && std::string_view(";&|<>()").find(c) != std::string_view::npos; }
  bool ends_word() const { return at_end() || is_blank(here()) || here() == '\n' || is_operator(here()); }

  void end_command() {
    if (!command_.empty()) out_.commands.push_back(std::move(command_));
    command_.clear();
    exporting_ = false;
  }

  // Skips blanks, continued lines and comments. Returns whether it skipped anything.
  bool skip_blank() {
    if (is_blank(here())) {
      ++at_;
      return true;
    }
    if (here() == '\\' && (after() == '\n' || (after() == '\r' && after(2) == '\n'))) {
      at_ += after() == '\n' ? 2 : 3;
      ++line_;
      return true;
    }
    if (here() != '#' || !script_) return false;
    while (!at_end() && here() != '\n') ++at_;
    return true;
  }

  void step() {
    if (skip_blank()) return;
    if (here() == '\n') {
      take();
      if (script_) end_command();
      return;
    }
    if (script_ && redirection()) return;
    if (script_ && (here() == '(' || here() == ')')) fail(line_, unsupported(std::string(1, here())));
    if (is_operator(here())) {
      ++at_;
      return end_command();
    }
    if (script_ && command_.empty() && assignment()) return;
    const std::int64_t line = line_;
    const std::size_t begin = at_;
    std::vector<std::string> words = word_fields();
    const std::string_view raw = text_.substr(begin, at_ - begin);
    if (script_ && command_.empty() && !exporting_) {
      if (std::find(kControl.begin(), kControl.end(), raw) != kControl.end()) fail(line, unsupported(std::string(raw)));
      exporting_ = raw == "export" || raw == "declare" || raw == "local" || raw == "readonly" || raw == "typeset";
    }
    if (exporting_) return;
    for (std::string& word : words) command_.push_back({std::move(word), line});
  }

  static std::string unsupported(const std::string& what) {
    return fmt::format("'{}' is not supported: expected assignments, arrays and simple commands", what);
  }

  // Skips "> file", "2>&1", "&> file", "< file". Returns whether there is one.
  bool redirection() {
    std::size_t length = 0;
    while (after(length) >= '0' && after(length) <= '9' && length < 3) ++length;
    if (after(length) == '&' && length == 0) ++length;
    if (after(length) != '>' && after(length) != '<') return false;
    if (after(length) == '<' && after(length + 1) == '<') fail(line_, unsupported("<<"));
    at_ += length + 1;
    while (here() == '>' || here() == '&' || here() == '|') ++at_;
    while (is_blank(here())) ++at_;
    word_fields();
    return true;
  }

  // Reads NAME=word, NAME+=word or NAME=(words). Returns whether there is one.
  bool assignment() {
    std::size_t length = 0;
    if (!is_name_start(here())) return false;
    while (is_name(after(length))) ++length;
    const bool append = after(length) == '+' && after(length + 1) == '=';
    if (!append && after(length) != '=') return false;
    const std::string name(text_.substr(at_, length));
    at_ += length + (append ? 2 : 1);
    std::vector<std::string>& value = out_.variables[name];
    if (here() == '(') {
      std::vector<std::string> words = array();
      if (!append) value.clear();
      value.insert(value.end(), words.begin(), words.end());
    } else {
      const bool split = splitting_;
      splitting_ = false;
      std::string word = fmt::format("{}", fmt::join(word_fields(), " "));
      splitting_ = split;
      if (append && !value.empty()) {
        value.front() += word;
      } else {
        value = {std::move(word)};
      }
    }
    std::size_t size = 0;
    for (const std::string& each : value) size += each.size();
    count(size);
    return true;
  }

  std::vector<std::string> array() {
    const std::int64_t line = line_;
    ++at_;
    std::vector<std::string> out;
    while (here() != ')') {
      if (at_end()) fail(line, "expected ) at the end of the array");
      if (skip_blank()) continue;
      if (here() == '\n') {
        take();
        continue;
      }
      if (is_operator(here())) fail(line_, unsupported(std::string(1, here())));
      std::vector<std::string> words = word_fields();
      out.insert(out.end(), words.begin(), words.end());
    }
    ++at_;
    return out;
  }

  void count(std::size_t characters) {
    expanded_ += characters;
    if (expanded_ > kMostExpanded) fail(line_, "the variables are too long");
  }

  std::vector<std::string> word_fields() {
    ShellFields out;
    while (!ends_word()) {
      const char c = here();
      if (c == '\\') {
        ++at_;
        if (at_end()) break;
        if (here() == '\n') {
          take();
        } else {
          out.add(std::string(1, take()));
        }
      } else if (c == '\'') {
        single_quoted(out);
      } else if (c == '"') {
        double_quoted(out);
      } else if (c == '$' && script_) {
        dollar(out, false);
      } else if (c == '`' && script_) {
        out.add(backticks());
      } else {
        out.add(std::string(1, take()));
      }
    }
    std::vector<std::string> words = out.take();
    for (const std::string& word : words) count(word.size());
    return words;
  }

  void single_quoted(ShellFields& out) {
    const std::int64_t line = line_;
    ++at_;
    std::string text;
    while (here() != '\'' || at_end()) {
      if (at_end()) fail(line, "expected a closing '");
      text += take();
    }
    ++at_;
    out.add(text);
  }

  void double_quoted(ShellFields& out) {
    const std::int64_t line = line_;
    ++at_;
    const std::size_t begin = at_;
    bool only_list = true;  // "${A[@]}" of an empty array is no word
    while (here() != '"' || at_end()) {
      if (at_end()) fail(line, "expected a closing \"");
      if (here() == '\\' && std::string_view("\"\\$`\n").find(after()) != std::string_view::npos) {
        ++at_;
        const char c = take();
        if (c != '\n') out.add(std::string(1, c));
        only_list = false;
      } else if (here() == '$' && script_) {
        only_list = dollar(out, true) && only_list;
      } else if (here() == '`' && script_) {
        out.add(backticks());
        only_list = false;
      } else {
        out.add(std::string(1, take()));
        only_list = false;
      }
    }
    if (!only_list || at_ == begin) out.add("");
    ++at_;
  }

  // Returns a command substitution as it is written.
  std::string backticks() {
    const std::int64_t line = line_;
    std::string text(1, take());
    while (here() != '`' || at_end()) {
      if (at_end()) fail(line, "expected a closing `");
      text += take();
    }
    return text + take();
  }

  // Returns the text from here up to the parenthesis or brace that closes the first one.
  std::string enclosed(char open, char close) {
    const std::int64_t line = line_;
    std::string text;
    int depth = 0;
    do {
      if (at_end()) fail(line, fmt::format("expected a closing {}", close));
      if (here() == open) ++depth;
      if (here() == close) --depth;
      text += take();
    } while (depth > 0);
    return text;
  }

  // Adds the values of a variable: quoted as they are, otherwise split at blanks.
  void add_values(const std::vector<std::string>& values, bool list, bool quoted, ShellFields& out) {
    bool first = true;
    for (const std::string& value : values) {
      count(value.size());
      if (!first) {
        if (list && splitting_) {
          out.split();
        } else {
          out.add(" ");
        }
      }
      first = false;
      if (quoted || !splitting_) {
        out.add(value);
        continue;
      }
      bool blank_before = false;
      for (const char c : value) {
        const bool blank = is_blank(c) || c == '\n';
        if (blank) {
          out.split();
        } else {
          out.add(std::string(1, c));
        }
        blank_before = blank;
      }
      if (blank_before) out.split();
    }
  }

  // Expands what follows a '$'. Returns whether it was a list, such as ${A[@]} or $@.
  bool dollar(ShellFields& out, bool quoted) {
    if (after() == '(') {
      ++at_;
      const std::string text = enclosed('(', ')');
      const bool arithmetic = text.starts_with("((") && text.ends_with("))");
      const auto value =
          arithmetic ? ShellArithmetic(std::string_view(text).substr(2, text.size() - 4), out_.variables).result()
                     : std::nullopt;
      out.add(value ? std::to_string(*value) : "$" + text);
      return false;
    }
    if (after() == '{') {
      ++at_;
      const std::string text = enclosed('{', '}');
      return braces(std::string_view(text).substr(1, text.size() - 2), quoted, out);
    }
    ++at_;
    if (here() == '@' || here() == '*') {  // the script has no arguments
      ++at_;
      return true;
    }
    std::size_t length = 0;
    if (is_name_start(here())) {
      while (is_name(after(length))) ++length;
    } else if (here() >= '0' && here() <= '9') {
      length = 1;
    }
    const std::string name(text_.substr(std::min(at_, text_.size()), length));
    at_ += length;
    const auto found = out_.variables.find(name);
    if (found == out_.variables.end()) {
      out.add("$" + name);
    } else if (!found->second.empty()) {
      add_values({found->second.front()}, false, quoted, out);
    }
    return false;
  }

  // Expands the inside of ${...}. Returns whether it is a list.
  bool braces(std::string_view inside, bool quoted, ShellFields& out) {
    if (inside.starts_with('@') || inside.starts_with('*')) return true;  // the script has no arguments
    std::size_t length = 0;
    while (length < inside.size() && is_name(inside[length])) ++length;
    const std::string name(inside.substr(0, length));
    std::string_view rest = inside.substr(length);
    const bool list = rest == "[@]" || rest == "[*]";
    const auto found = out_.variables.find(name);
    const bool set = found != out_.variables.end();
    if (list) {
      if (set) {
        add_values(found->second, rest == "[@]" || !quoted, quoted, out);
      } else {
        out.add(fmt::format("${{{}}}", inside));
      }
      return set;
    }
    const bool empty = !set || found->second.empty() || found->second.front().empty();
    for (const std::string_view mark : {":-", ":=", "-", "="}) {
      if (name.empty() || !rest.starts_with(mark)) continue;
      if (mark.front() == ':' ? !empty : set) {
        rest = "";
        break;
      }
      add_values({expanded(rest.substr(mark.size()))}, false, quoted, out);
      return false;
    }
    if (!rest.empty() || name.empty() || !set) {
      out.add(fmt::format("${{{}}}", inside));
    } else if (!found->second.empty()) {
      add_values({found->second.front()}, false, quoted, out);
    }
    return false;
  }

  // Expands the default in ${A:-default}.
  std::string expanded(std::string_view word) {
    if (++nested_ > kMostNested) fail(line_, "the defaults of variables are nested too deeply");
    ShellReader reader(word, source_, script_);
    std::swap(reader.out_.variables, out_.variables);
    reader.line_ = line_;
    reader.nested_ = nested_;
    reader.expanded_ = expanded_;
    reader.splitting_ = false;
    std::string out;
    while (!reader.at_end()) {
      if (!reader.ends_word()) {
        out += fmt::format("{}", fmt::join(reader.word_fields(), " "));
      } else {
        out += reader.take();
      }
    }
    std::swap(reader.out_.variables, out_.variables);
    expanded_ = reader.expanded_;
    --nested_;
    return out;
  }

  std::string_view text_;
  std::string source_;
  bool script_;
  bool splitting_ = true;  // unquoted variables are split at blanks
  bool exporting_ = false;
  std::size_t at_ = 0;
  std::size_t expanded_ = 0;
  int nested_ = 0;
  std::int64_t line_ = 1;
  std::vector<ShellWord> command_;
  ShellScript out_;
};

}  // namespace

ShellScript read_shell(std::string_view text, const std::string& source) {
  return ShellReader(text, source, true).run();
}

std::vector<ShellWord> split_words(std::string_view text, const std::string& source) {
  ShellScript script = ShellReader(text, source, false).run();
  return script.commands.empty() ? std::vector<ShellWord>{} : std::move(script.commands.front());
}

}  // namespace sluice::model

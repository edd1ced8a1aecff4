#include "import/shell_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "model/errors.h"

namespace sluice::imports {
namespace {

constexpr std::size_t kMostExpanded = std::size_t{1} << 24;  // characters
constexpr int kMostNested = 50;

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_name(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }
bool is_shell_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

}  // namespace

void ShellWords::fail(std::int64_t line, const std::string& what) const {
  throw InputError(script_ ? fmt::format("{}: line {}: {}", source_, line, what)
                           : fmt::format("{}: {}", source_, what));
}

char ShellWords::take() {
  if (here() == '\n') ++line_;
  return text_[at_++];
}

bool ShellWords::ends_word() const {
  return at_end() || is_shell_blank(here()) || here() == '\n' || is_operator(here());
}

std::size_t ShellWords::name_length() const {
  std::size_t length = 0;
  if (!is_name_start(here())) return 0;
  while (is_name(after(length))) ++length;
  return length;
}

bool ShellWords::skip_blank() {
  if (is_shell_blank(here())) {
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

std::vector<std::string> ShellWords::array() {
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
    if (is_operator(here())) fail(line_, fmt::format("'{}' is not supported in an array", here()));
    std::vector<std::string> words = word_fields();
    out.insert(out.end(), words.begin(), words.end());
  }
  ++at_;
  return out;
}

void ShellWords::count(std::size_t characters) {
  expanded_ += characters;
  if (expanded_ > kMostExpanded) fail(line_, "the variables are too long");
}

std::vector<std::string> ShellWords::word_fields() {
  Fields out;
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
      add_unknown(backticks(), out);
    } else {
      out.add(std::string(1, take()));
    }
  }
  std::vector<std::string> words = out.take();
  for (const std::string& word : words) count(word.size());
  return words;
}

std::string ShellWords::whole_word() {
  const bool split = std::exchange(splitting_, false);
  std::string out = fmt::format("{}", fmt::join(word_fields(), " "));
  splitting_ = split;
  return out;
}

void ShellWords::single_quoted(Fields& out) {
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

void ShellWords::double_quoted(Fields& out) {
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
      add_unknown(backticks(), out);
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
std::string ShellWords::backticks() {
  const std::int64_t line = line_;
  std::string text(1, take());
  while (here() != '`' || at_end()) {
    if (at_end()) fail(line, "expected a closing `");
    text += take();
  }
  return text + take();
}

std::string ShellWords::enclosed(char open, char close) {
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

void ShellWords::add_unknown(const std::string& text, Fields& out) {
  known_ = false;
  out.add(text);
}

// Adds the values of a variable: quoted as they are, otherwise split at blanks.
void ShellWords::add_values(const std::vector<std::string>& values, bool list, bool quoted, Fields& out) {
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
      const bool blank = is_shell_blank(c) || c == '\n';
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

// Adds "$@": of a function; the script itself is assumed to have no arguments. Returns true: it is a list.
bool ShellWords::add_arguments(bool quoted, Fields& out) {
  if (arguments_ == nullptr) return true;
  std::vector<std::string> values;
  for (const ShellWord& word : *arguments_) {
    values.push_back(word.text);
    known_ = known_ && word.known;
  }
  add_values(values, true, quoted, out);
  return true;
}

bool ShellWords::add_argument(std::size_t number, bool quoted, Fields& out) {
  if (arguments_ == nullptr || number == 0) {
    add_unknown(fmt::format("${}", number), out);
  } else if (number <= arguments_->size()) {
    const ShellWord& word = (*arguments_)[number - 1];
    known_ = known_ && word.known;
    add_values({word.text}, false, quoted, out);
  }
  return false;
}

// Expands what follows a '$'. Returns whether it was a list, such as ${A[@]} or $@.
bool ShellWords::dollar(Fields& out, bool quoted) {
  if (after() == '(') {
    ++at_;
    const std::string text = enclosed('(', ')');
    const bool arithmetic = text.starts_with("((") && text.ends_with("))");
    const auto value =
        arithmetic ? shell_arithmetic(std::string_view(text).substr(2, text.size() - 4), variables_) : std::nullopt;
    if (value) {
      out.add(std::to_string(*value));
    } else {
      add_unknown("$" + text, out);
    }
    return false;
  }
  if (after() == '{') {
    ++at_;
    const std::string text = enclosed('{', '}');
    return braces(std::string_view(text).substr(1, text.size() - 2), quoted, out);
  }
  ++at_;
  if (here() == '@' || here() == '*') {
    ++at_;
    return add_arguments(quoted, out);
  }
  if (here() >= '0' && here() <= '9') return add_argument(static_cast<std::size_t>(take() - '0'), quoted, out);
  if (std::string_view("#?!-").find(here()) != std::string_view::npos && !at_end()) {
    const char c = take();
    if (c == '#' && arguments_ != nullptr) {
      out.add(std::to_string(arguments_->size()));
    } else {
      add_unknown(fmt::format("${}", c), out);
    }
    return false;
  }
  const std::string name(text_.substr(std::min(at_, text_.size()), name_length()));
  at_ += name.size();
  if (name.empty()) {
    out.add("$");
    return false;
  }
  const auto found = variables_.find(name);
  if (found == variables_.end()) {
    add_unknown("$" + name, out);
  } else if (!found->second.values.empty()) {
    known_ = known_ && found->second.known;
    add_values({found->second.values.front()}, false, quoted, out);
  }
  return false;
}

// Expands the inside of ${...}. Returns whether it is a list.
bool ShellWords::braces(std::string_view inside, bool quoted, Fields& out) {
  if (inside == "@" || inside == "*") return add_arguments(quoted, out);
  if (inside.starts_with('#') && inside.size() > 1) return counted(inside, out);
  if (inside.size() == 1 && inside[0] >= '0' && inside[0] <= '9') {
    return add_argument(static_cast<std::size_t>(inside[0] - '0'), quoted, out);
  }
  std::size_t length = 0;
  while (length < inside.size() && is_name(inside[length])) ++length;
  const std::string name(inside.substr(0, length));
  const std::string_view rest = inside.substr(length);
  const auto found = variables_.find(name);
  if (found == variables_.end()) {
    if (defaulted(name, rest, quoted, out)) return false;
    add_unknown(fmt::format("${{{}}}", inside), out);
    return false;
  }
  const ShellVariable& variable = found->second;
  if (rest == "[@]" || rest == "[*]") {
    known_ = known_ && variable.known;
    add_values(variable.values, rest == "[@]" || !quoted, quoted, out);
    return true;
  }
  const bool subscript = rest.size() > 2 && rest.starts_with('[') && rest.ends_with(']');
  const auto index = subscript ? shell_arithmetic(rest.substr(1, rest.size() - 2), variables_) : std::nullopt;
  if (index && *index >= 0) {
    known_ = known_ && variable.known;
    if (*index < std::ssize(variable.values)) {
      add_values({variable.values[static_cast<std::size_t>(*index)]}, false, quoted, out);
    }
  } else if (rest.empty()) {
    known_ = known_ && variable.known;
    if (!variable.values.empty()) add_values({variable.values.front()}, false, quoted, out);
  } else if (!defaulted(name, rest, quoted, out)) {
    add_unknown(fmt::format("${{{}}}", inside), out);
  }
  return false;
}

// Expands ${A:-word}, ${A:=word}, ${A:+word} and ${A:?word}, with and without the colon. Returns whether it is one.
bool ShellWords::defaulted(const std::string& name, std::string_view rest, bool quoted, Fields& out) {
  const bool colon = rest.starts_with(':');
  if (colon) rest.remove_prefix(1);
  if (name.empty() || rest.empty() || std::string_view("-=+?").find(rest.front()) == std::string_view::npos) {
    return false;
  }
  const char op = rest.front();
  rest.remove_prefix(1);
  const auto found = variables_.find(name);
  const bool set = found != variables_.end();
  const bool empty = set && (found->second.values.empty() || found->second.values.front().empty());
  if (op == '+') {
    if (!set) return false;  // the environment may set it
    if (!colon || !empty) add_values({expanded(rest, quoted)}, false, quoted, out);
    return true;
  }
  if (set && !(colon && empty)) {
    known_ = known_ && found->second.known;
    if (!empty) add_values({found->second.values.front()}, false, quoted, out);
    return true;
  }
  if (op == '?') return false;
  const std::string value = expanded(rest, quoted);
  if (op == '=') variables_[name] = {{value}, known_};
  add_values({value}, false, quoted, out);
  return true;
}

// Expands ${#A} and ${#A[@]}. Returns false: it is no list.
bool ShellWords::counted(std::string_view inside, Fields& out) {
  const bool all = inside.ends_with("[@]") || inside.ends_with("[*]");
  const std::string name(inside.substr(1, inside.size() - (all ? 4 : 1)));
  const auto found = variables_.find(name);
  if (found == variables_.end() || !found->second.known) {
    add_unknown(fmt::format("${{{}}}", inside), out);
  } else if (all) {
    out.add(std::to_string(found->second.values.size()));
  } else {
    out.add(std::to_string(found->second.values.empty() ? 0 : found->second.values.front().size()));
  }
  return false;
}

// Expands the word in ${A:-word}.
std::string ShellWords::expanded(std::string_view word, bool quoted) {
  if (++nested_ > kMostNested) fail(line_, "the defaults of variables are nested too deeply");
  if (quoted) {  // single quotes are ordinary within double quotes
    std::string text(word);
    std::erase(text, '"');
    text = expanded_text(text);
    --nested_;
    return text;
  }
  ShellWords reader(word, source_, script_);
  std::swap(reader.variables_, variables_);
  reader.arguments_ = arguments_;
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
  std::swap(reader.variables_, variables_);
  known_ = known_ && reader.known_;
  expanded_ = reader.expanded_;
  --nested_;
  return out;
}

std::string ShellWords::expanded_text(std::string_view text) {
  ShellWords reader(text, source_, script_);
  std::swap(reader.variables_, variables_);
  reader.arguments_ = arguments_;
  reader.line_ = line_;
  reader.nested_ = nested_;
  reader.expanded_ = expanded_;
  Fields out;
  out.add("");
  while (!reader.at_end()) {
    if (reader.here() == '$') {
      reader.dollar(out, true);
    } else if (reader.here() == '\\' && std::string_view("\\$`").find(reader.after()) != std::string_view::npos) {
      ++reader.at_;
      out.add(std::string(1, reader.take()));
    } else {
      out.add(std::string(1, reader.take()));
    }
  }
  std::swap(reader.variables_, variables_);
  known_ = known_ && reader.known_;
  expanded_ = reader.expanded_;
  return fmt::format("{}", fmt::join(out.take(), " "));
}

}  // namespace sluice::imports

#include "import/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <initializer_list>
#include <set>
#include <utility>

#include "model/errors.h"

namespace sluice::imports {
namespace {

constexpr std::size_t kMostExpanded = std::size_t{1} << 24;  // characters
constexpr int kMostTexts = 1000;                             // that are read within others

constexpr char kSplit = '\1';  // in expanded text: between two words

// What the readers of a script and of the texts in it share.
struct ShellState {
  std::string source;
  ShellScript script;
  std::set<std::string> functions;
  std::size_t expanded = 0;
  int texts = 0;
};

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns the number of characters of the name, or digit, at the beginning of a text.
std::size_t shell_name_length(std::string_view text) {
  const auto ends = [&](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_'; };
  if (!text.empty() && is_digit(text.front())) return 1;
  return static_cast<std::size_t>(std::find_if(text.begin(), text.end(), ends) - text.begin());
}

class ShellReader {
 public:
  // Without `script`, all characters but quotes and backslashes are ordinary. `outer` decides whether the text is read.
  ShellReader(std::string_view text, ShellState& state, std::int64_t line, bool script = true, ShellPlace outer = {})
      : text_(text), state_(state), line_(line), script_(script), outer_(std::move(outer)) {
    if (++state_.texts > kMostTexts) fail(line_, fmt::format("expected at most {} texts within others", kMostTexts));
  }

  void run() {
    while (!at_end()) next();
  }

  // Reads words up to a character, or to the end of the text.
  std::vector<ShellWord> words(char end) {
    std::vector<ShellWord> out;
    while (!at_end() && here() != end) {
      if (skip_blank()) continue;
      if (here() == '\n') {
        take();
      } else if (at_operator()) {
        fail(line_, fmt::format("'{}' is not supported in an array", here()));
      } else {
        add_word(out);
      }
    }
    return out;
  }

 private:
  [[noreturn]] void fail(std::int64_t line, const std::string& what) const {
    throw InputError(script_ ? fmt::format("{}: line {}: {}", state_.source, line, what)
                             : fmt::format("{}: {}", state_.source, what));
  }

  bool at_end() const { return at_ >= text_.size(); }
  char here(std::size_t n = 0) const { return at_ + n < text_.size() ? text_[at_ + n] : '\0'; }
  bool is_here(std::string_view characters) const {
    return !at_end() && characters.find(here()) != std::string_view::npos;
  }
  std::string_view rest() const { return text_.substr(std::min(at_, text_.size())); }
  char take() {
    if (here() == '\n') ++line_;
    return text_[at_++];
  }
  bool at_operator() const { return script_ && is_here(";&|<>()"); }
  bool ends_word() const { return at_end() || is_here(" \t\r\n") || at_operator(); }
  // Returns the word here as it is written.
  std::string_view raw() const { return rest().substr(0, rest().find_first_of(" \t\r\n;&|<>()")); }

  // Skips a blank, a continued line or a comment. Returns whether there was one.
  bool skip_blank() {
    const std::size_t begin = at_;
    if (is_here(" \t\r")) {
      ++at_;
    } else if (here() == '\\' && (here(1) == '\n' || (here(1) == '\r' && here(2) == '\n'))) {
      at_ += here(1) == '\n' ? 2 : 3;
      ++line_;
    } else if (script_ && here() == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    }
    return at_ > begin;
  }

  // Returns the text up to the character that closes what begins before it. Both are left out.
  std::string up_to(char close, char open = '\0') {
    const std::int64_t line = line_;
    std::string text;
    for (int depth = 1;; text += take()) {
      if (at_end()) fail(line, fmt::format("expected a closing {}", close));
      depth += here() == close ? -1 : here() == open ? 1 : 0;
      if (depth == 0) break;
    }
    ++at_;
    return text;
  }

  // Adds the words into which the one here expands. Empty ones are left out.
  void add_word(std::vector<ShellWord>& out) {
    const std::int64_t line = line_;
    const std::string text = expanded_word();
    for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
      end = std::min(text.find(kSplit, begin), text.size());
      if (end > begin) out.push_back({text.substr(begin, end - begin), line});
    }
  }
  std::string whole_word() { return unsplit(expanded_word()); }
  static std::string unsplit(std::string text) {
    std::replace(text.begin(), text.end(), kSplit, ' ');
    return text;
  }
  std::string expanded_word() {
    std::string out;
    while (!ends_word()) out += piece();
    state_.expanded += out.size();
    if (state_.expanded > kMostExpanded) fail(line_, "the variables are too long");
    return out;
  }

  // Expands a character, a quotation or an expansion outside double quotes.
  std::string piece() {
    const std::int64_t line = line_;
    const char c = take();
    if (c == '\\') return escaped();
    if (c == '\'') return up_to('\'');
    if (script_ && (c == '$' || c == '`')) return expansion(c, false);
    if (c != '"') return std::string(1, c);
    std::string text;
    while (here() != '"' || at_end()) {
      if (at_end()) fail(line, "expected a closing \"");
      text += quoted_piece();
    }
    ++at_;
    return text;
  }
  std::string quoted_piece() {
    const char c = take();
    if (script_ && (c == '$' || c == '`')) return expansion(c, true);
    return c == '\\' && is_here("\"\\$`\n") ? escaped() : std::string(1, c);
  }
  std::string escaped() {
    const char c = at_end() ? '\n' : take();
    return c == '\n' ? "" : std::string(1, c);
  }

  // Expands what follows '$' or '`'.
  std::string expansion(char mark, bool quoted) {
    if (mark == '`') return "`" + up_to('`') + "`";
    if (is_here("({")) {
      const char open = take();
      const char close = open == '(' ? ')' : '}';
      const std::string inside = up_to(close, open);
      const std::string written = fmt::format("${}{}{}", open, inside, close);
      return open == '(' ? written : value(inside, written, quoted);
    }
    const std::size_t length = std::max<std::size_t>(shell_name_length(rest()), is_here("@*#?!-$") ? 1 : 0);
    const std::string_view name = rest().substr(0, length);
    at_ += length;
    return value(name, fmt::format("${}", name), quoted);
  }

  // Returns the value of ${inside}; `written` if only a shell knows it. The script is assumed to have no arguments.
  std::string value(std::string_view inside, const std::string& written, bool quoted) {
    if (inside == "@" || inside == "*") {
      return place().line == 0 && !doubts().contains("@") ? "" : written;
    }
    const std::string name(inside.substr(0, shell_name_length(inside)));
    const std::string_view after = inside.substr(name.size());
    const bool colon = after.starts_with(":-");
    const bool has_default = !name.empty() && (colon || after.starts_with('-'));
    const bool list = after == "[@]" || after == "[*]";
    if (doubts().contains(name)) return "$" + name;
    const auto found = state_.script.variables.find(name);
    const bool set = found != state_.script.variables.end();
    if (has_default && (!set || (colon && first_of(found->second).empty()))) {
      std::string word(after.substr(colon ? 2 : 1));
      if (quoted) std::erase(word, '"');  // which are no part of the word, unlike '
      ShellReader inner(word, state_, line_, script_, place());
      std::string out;
      while (!inner.at_end()) {
        const bool blank = !quoted && inner.is_here(" \t\n");
        out += quoted ? inner.quoted_piece() : inner.piece();
        if (blank) out.back() = kSplit;
      }
      return out;
    }
    if (!set || !(after.empty() || list || has_default)) return written;
    return joined(list ? found->second : std::vector{first_of(found->second)}, list, quoted);
  }
  static std::string first_of(const std::vector<std::string>& values) { return values.empty() ? "" : values.front(); }

  // Returns values as one text: quoted ones as they are, others split at blanks.
  static std::string joined(const std::vector<std::string>& values, bool list, bool quoted) {
    std::string out;
    for (const std::string& value : values) {
      if (list && &value != &values.front()) out += kSplit;
      for (const char c : value) out += !quoted && (c == ' ' || c == '\t' || c == '\n') ? kSplit : c;
    }
    return out;
  }

  // Reads a separator, a word of control flow, or a simple command.
  void next() {
    const std::string word(raw());
    if (skip_blank()) return;
    if (here() == '\n') {
      newline();
    } else if (rest().starts_with("((")) {
      take();
      doubt_names(up_to(')', '('), place_or("(("));
    } else if (is_here(";&|()") && !rest().starts_with("&>")) {
      separator();
    } else if (is_one_of(word, {"then", "else", "elif", "do", "!", "function"})) {
      at_ += word.size();
    } else if (is_one_of(word, {"if", "while", "until", "case", "for", "select", "{"})) {
      at_ += word.size();
      open(word);
    } else if (is_one_of(word, {"fi", "done", "esac", "}"})) {
      at_ += word.size();
      if (depth_ > 0) --depth_;
    } else {
      simple_command();
    }
  }

  void open(const std::string& word) {
    if (depth_++ == 0) open_ = {line_, word};
  }

  void newline() {
    take();
    chain_ = 0;
    for (const std::string& delimiter : std::exchange(here_documents_, {})) {
      for (std::string_view row; row != delimiter && !at_end(); ++line_) {
        row = rest().substr(0, rest().find('\n'));
        at_ = std::min(at_ + row.size() + 1, text_.size());
        row.remove_prefix(std::min(row.find_first_not_of('\t'), row.size()));
        if (row.ends_with('\r')) row.remove_suffix(1);
      }
    }
  }

  void separator() {
    const std::int64_t line = line_;
    const bool chains = rest().starts_with("&&") || rest().starts_with("||");
    const char c = take();
    if (c == '(') {
      open("(");
      ++parentheses_;
    } else if (c == ')' && parentheses_ > 0) {  // of others, the words before are the pattern of a `case`
      --parentheses_;
      if (depth_ > 0) --depth_;
    } else if (chains) {
      for (++at_; skip_blank() || here() == '\n';) {
        if (here() == '\n') newline();
      }
      chain_ = line;
    } else if (c == ';' || c == '&') {
      chain_ = 0;
    }
  }

  // Returns what decides whether a command runs here, or how often.
  ShellPlace place() const { return depth_ > 0 ? open_ : chain_ > 0 ? ShellPlace{chain_, ShellPlace::kChain} : outer_; }
  ShellPlace place_or(const std::string& word) const { return place().line > 0 ? place() : ShellPlace{line_, word}; }

  std::map<std::string, ShellPlace>& doubts() { return state_.script.doubts; }
  void doubt_names(std::string_view text, const ShellPlace& why) {
    while (!text.empty()) {
      const std::size_t length = shell_name_length(text);
      if (length > 0) doubts().try_emplace(std::string(text.substr(0, length)), why);
      text.remove_prefix(std::max<std::size_t>(length, 1));
    }
  }

  // Reads NAME=word, NAME+=word or NAME=(words). Returns the name; "" if there is none.
  std::string assignment() {
    std::string name(rest().substr(0, shell_name_length(rest())));
    const bool append = rest().substr(name.size()).starts_with("+=");
    if (name.empty() || (!append && here(name.size()) != '=')) return "";
    if (name == "IFS") fail(line_, "IFS is not supported: sluice-args prints the arguments of a script");
    const std::int64_t line = line_;
    at_ += name.size() + (append ? 2 : 1);
    const auto found = state_.script.variables.find(name);
    auto values = found == state_.script.variables.end() ? std::vector<std::string>{} : found->second;
    if (here() == '(') {
      take();
      if (!append) values.clear();
      for (ShellWord& word : words(')')) values.push_back(std::move(word.text));
      if (at_end()) fail(line, "expected ) at the end of the array");
      take();
    } else {
      if (values.empty()) values.emplace_back();  // of an array, the first element
      values.front() = (append ? values.front() : "") + whole_word();
    }
    for (const std::string& value : values) state_.expanded += value.size();
    state_.script.variables[name] = std::move(values);
    if (place().line > 0) doubts().try_emplace(name, place());
    return name;
  }

  // Skips "> file", "2>&1", "&> file", "< file", "<<< word", "<(command)" and "<< END". Returns whether there is one.
  bool redirection() {
    std::size_t length = here() == '&' && here(1) == '>' ? 1 : 0;
    while (is_digit(here(length))) ++length;
    if (here(length) != '>' && here(length) != '<') return false;
    at_ += length;
    const bool document = rest().starts_with("<<") && here(2) != '<';
    while (is_here("<>&|")) ++at_;
    if (document && here() == '-') ++at_;
    while (skip_blank()) {
    }
    if (here() == '(') {
      take();
      up_to(')', '(');
    } else if (const std::string target = whole_word(); document) {
      here_documents_.push_back(target);
    }
    return true;
  }

  void simple_command() {
    ShellCommand command{{}, place()};
    std::vector<std::string> assigned;
    bool declares = false;
    while (!at_end() && here() != '\n') {
      if (skip_blank() || redirection()) continue;
      if (at_operator() || (command.words.size() == 1 && raw() == "{")) break;
      if (command.words.empty() || declares) {
        if (const std::string name = assignment(); !name.empty()) {
          assigned.push_back(name);
          continue;
        }
      }
      if (command.words.empty()) {
        for (const std::string& name : assigned)
          doubts().try_emplace(name, place_or(ShellPlace::kEnvironment));  // of its environment alone
        declares = is_one_of(raw(), {"export", "declare", "local", "readonly", "typeset"});
      }
      add_word(command.words);
    }
    if (command.words.empty() || declares || (here() == ')' && parentheses_ == 0)) return;
    if (here() == '(' || here() == '{') {
      state_.functions.insert(command.words.front().text);
    } else if (!state_.functions.contains(command.words.front().text)) {
      carry_out(command);
    }
  }

  // Follows the commands that change variables or end the script, and records the others but those that print.
  void carry_out(const ShellCommand& command) {
    const std::vector<ShellWord>& words = command.words;
    const std::string& name = words.front().text;
    const std::string second = words.size() > 1 ? words[1].text : "";
    std::string text;
    for (std::size_t i = 1; i < words.size(); ++i) text += words[i].text + " ";
    if (is_one_of(name, {"unset", "read", "mapfile", "readarray", "getopts", "let"}) ||
        (name == "printf" && second == "-v")) {
      doubt_names(text, place_or(name));
    } else if (second == "in") {
      doubt_names(name, place_or(second));  // of `for`
    } else if (name == "eval") {
      read_text(command, 0, text, place());
    } else if (name == "source" || name == ".") {
      state_.script.notes.push_back(
          fmt::format("line {}: '{} {}' is not read, which may set variables", words.front().line, name, second));
    } else if (name == "set" && second == "--") {
      doubts().try_emplace("@", place_or(name));
    } else if (!is_one_of(name, {"echo", "printf", "set", "trap", "shopt", "cat", "logger", "[", "test"})) {
      record(command);
      if (place().line == 0 && (name == "exit" || (name == "exec" && !text.empty()))) at_ = text_.size();
    }
  }

  // Records a command. `bash -c "..."` and a word with a program and arguments run the commands of a text.
  void record(const ShellCommand& command) {
    const std::vector<ShellWord>& words = command.words;
    if (command.within.line > 0 && words.front().text.starts_with('-')) return;  // the pattern of a `case`
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string& text = words[i].text;
      const bool c = i > 0 && text.size() > 1 && text[0] == '-' && text[1] != '-' && text.ends_with('c');
      const bool shell = c && words[i - 1].text.ends_with("sh") && i + 1 < words.size();
      const bool program = text.find(" --") != std::string::npos && text.find(".py") != std::string::npos;
      if (shell) return read_text(command, i - 1, words[i + 1].text, place_or(ShellPlace::kShell));
      if (program) return read_text(command, i, text, place_or(ShellPlace::kShell));
    }
    state_.script.commands.push_back(command);
  }

  // Records the commands of a text, each after the first words of the command that runs it.
  void read_text(const ShellCommand& command, std::size_t launcher, const std::string& text, ShellPlace outer) {
    const std::size_t first = state_.script.commands.size();
    ShellReader(text, state_, command.words.front().line, true, std::move(outer)).run();
    for (std::size_t i = first; i < state_.script.commands.size(); ++i) {
      std::vector<ShellWord>& words = state_.script.commands[i].words;
      words.insert(words.begin(), command.words.begin(), command.words.begin() + static_cast<std::ptrdiff_t>(launcher));
    }
  }

  std::string_view text_;
  ShellState& state_;
  std::int64_t line_;
  bool script_;
  ShellPlace outer_;
  ShellPlace open_;  // the outermost word of control flow
  int depth_ = 0;    // of control flow
  int parentheses_ = 0;
  std::int64_t chain_ = 0;  // line of the && or || before a command; 0: none
  std::size_t at_ = 0;
  std::vector<std::string> here_documents_;
};

}  // namespace

ShellScript read_shell(std::string_view text, const std::string& source) {
  ShellState state{.source = source};
  ShellReader(text, state, 1).run();
  return std::move(state.script);
}

std::vector<ShellWord> split_words(std::string_view text, const std::string& source) {
  ShellState state{.source = source};
  return ShellReader(text, state, 1, false).words('\0');
}

}  // namespace sluice::imports

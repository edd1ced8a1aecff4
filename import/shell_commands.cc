#include "import/shell_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "model/errors.h"

namespace sluice::imports {
namespace {

const std::string kFileVariable = "file ";  // begins the name under which a file is kept among the variables

bool is_word_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::vector<std::string> texts_of(std::span<const ShellWord> words) {
  std::vector<std::string> out;
  for (const ShellWord& word : words) out.push_back(word.text);
  return out;
}

void add_split(std::string_view text, std::vector<std::string>& out) {
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (text.empty()) return;
    const std::size_t end = std::min(text.find_first_of(" \t\r\n"), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

// Returns the length of the common beginning of two texts, which ends between words.
std::size_t common_words(std::string_view a, std::string_view b) {
  const auto ends = [](std::string_view text, std::size_t at) { return at == text.size() || text[at] == ' '; };
  const auto mismatch = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  auto length = static_cast<std::size_t>(mismatch - a.begin());
  while (length > 0 && !(ends(a, length) && ends(b, length))) --length;
  return length;
}

}  // namespace

void ShellCommands::unsupported(std::int64_t line, std::string_view what) const {
  fail(line, fmt::format("'{}' is not supported: put echo before the command that trains, run the script, and import "
                         "the line that it prints",
                         what));
}

std::string_view ShellCommands::raw() const {
  std::size_t end = at_;
  while (end < text_.size() && std::string_view(" \t\r\n;&|<>()").find(text_[end]) == std::string_view::npos) ++end;
  return text_.substr(std::min(at_, text_.size()), end - at_);
}

bool ShellCommands::takes(std::string_view word) {
  if (raw() != word) return false;
  at_ += word.size();
  return true;
}

void ShellCommands::blanks() {
  while (skip_blank()) {
  }
}

void ShellCommands::newline() {
  take();
  for (const Document& document : std::exchange(pending_, {})) {
    std::string body;
    const std::int64_t line = line_;
    while (true) {
      if (at_end()) fail(line - 1, fmt::format("expected a line {} after the here-document", document.delimiter));
      const std::size_t end = std::min(text_.find('\n', at_), text_.size());
      std::string_view row = text_.substr(at_, end - at_);
      at_ = std::min(end + 1, text_.size());
      ++line_;
      if (document.strip) row.remove_prefix(std::min(row.find_first_not_of('\t'), row.size()));
      if (row.ends_with('\r')) row.remove_suffix(1);
      if (row == document.delimiter) break;
      body.append(row).append("\n");
    }
    if (!document.target.empty() && !skipping_) write_file(document, body);
  }
}

// Files are kept as variables, so that those of branches become choices as well.
void ShellCommands::write_file(const Document& document, const std::string& body) {
  ShellVariable& file = variables_[kFileVariable + document.target];
  if (!document.append) file = {};
  const bool known = std::exchange(known_, true);
  if (file.values.empty()) file.values.emplace_back();
  file.values.front() += document.expand ? expanded_text(body) : body;
  known_ = known;
}

void ShellCommands::newlines() {
  for (blanks(); here() == '\n' && !at_end(); blanks()) newline();
}

void ShellCommands::separators() {
  while (!at_end()) {
    if (skip_blank()) continue;
    if (here() == '\n') {
      newline();
    } else if ((here() == ';' && after() != ';' && after() != '&') ||
               (here() == '&' && after() != '&' && after() != '>')) {
      ++at_;
    } else {
      return;
    }
  }
}

ShellCommands::Branch ShellCommands::branch() {
  std::size_t size = 0;
  for (const auto& [name, variable] : variables_) {
    size += name.size() + 1;
    for (const std::string& value : variable.values) size += value.size() + 1;
  }
  count(size / 8);
  return {variables_, ended_};
}

void ShellCommands::restore(const Branch& state) {
  variables_ = state.variables;
  ended_ = state.ended;
}

void ShellCommands::merge(std::vector<Branch> branches, std::int64_t line) {
  ended_ = std::all_of(branches.begin(), branches.end(), [](const Branch& each) { return each.ended; });
  if (!ended_) std::erase_if(branches, [](const Branch& each) { return each.ended; });
  variables_ = std::move(branches.front().variables);
  for (std::size_t i = 1; i < branches.size(); ++i) {
    std::set<std::string> names;
    for (const auto& [name, variable] : variables_) names.insert(name);
    for (const auto& [name, variable] : branches[i].variables) names.insert(name);
    for (const std::string& name : names) {
      const auto ours = variables_.find(name);
      const auto theirs = branches[i].variables.find(name);
      const bool both = ours != variables_.end() && theirs != branches[i].variables.end();
      if (both && ours->second == theirs->second) continue;
      choose(name, theirs == branches[i].variables.end() ? std::vector<std::string>{} : theirs->second.values, line);
    }
  }
}

void ShellCommands::choose(const std::string& name, const std::vector<std::string>& others, std::int64_t line) {
  ShellVariable& variable = variables_[name];
  std::vector<std::string>& values = variable.values;
  const std::string mark = "$" + name;
  std::vector<std::string> words;
  // What both begin with is certain.
  if (values.size() == 1 && others.size() == 1) {
    const std::size_t common = common_words(values[0], others[0]);
    add_split(std::string_view(values[0]).substr(common), words);
    add_split(std::string_view(others[0]).substr(common), words);
    values[0].resize(common);
    values[0] += (common > 0 ? " " : "") + mark;
  } else {
    const auto [end, other] = std::mismatch(values.begin(), values.end(), others.begin(), others.end());
    words.assign(end, values.end());
    words.insert(words.end(), other, others.end());
    values.erase(end, values.end());
    values.push_back(mark);
  }
  variable.known = false;
  if (skipping_) return;
  ShellChoice& choice = out_.choices[name];
  if (choice.line == 0) choice.line = line;
  for (const std::string& word : words) {
    count(word.size() + 1);
    if (word != mark) choice.words.push_back(word);
  }
}

// A word of a test or a pattern.
ShellOperand ShellCommands::operand() {
  const std::size_t begin = at_;
  const bool known = std::exchange(known_, true);
  ShellOperand out{whole_word()};
  out.known = std::exchange(known_, known);
  const std::string_view written = text_.substr(begin, at_ - begin);
  const bool wild = out.text.find_first_of("*?[") != std::string::npos;
  const bool quoted = written.find_first_of("'\"\\") != std::string_view::npos;
  out.pattern = wild && !quoted;
  // "a"* is half a pattern.
  if (wild && quoted && !written.starts_with('"') && !written.starts_with('\'')) out.known = false;
  if (wild && quoted && !written.ends_with('"') && !written.ends_with('\'')) out.known = false;
  return out;
}

ShellCommands::Status ShellCommands::simple_command() {
  ShellCommand command;
  Saved saved;
  std::vector<Document> documents;
  bool declares = false;
  const bool known = std::exchange(known_, true);
  const std::size_t begin = at_;
  written_.clear();
  while (!at_end() && here() != '\n') {
    if (skip_blank() || here_document(documents) || redirection()) continue;
    if (is_operator(here())) break;
    if ((command.words.empty() || declares) && assignment(saved)) continue;
    const std::int64_t line = line_;
    if (command.words.empty()) {
      leave_environment(command, saved);
      declares = is_word_of(raw(), {"export", "declare", "local", "readonly", "typeset"});
    }
    known_ = true;
    for (std::string& word : word_fields()) command.words.push_back({std::move(word), line, known_});
  }
  if (begin == at_) fail(line_, fmt::format("unexpected '{}'", here()));
  for (Document& document : documents) {
    document.target = skipping_ ? "" : written_;
    document.append = appends_;
    pending_.push_back(std::move(document));
  }
  const bool certain = std::exchange(known_, known);
  if (saved.contains("IFS") && !skipping_) unsupported(line_, "IFS");
  const bool local = declares && arguments_ != nullptr && command.words.front().text != "export" &&
                     command.words.front().text != "readonly";
  if (local) {
    for (auto& [name, variable] : saved) locals_.try_emplace(name, std::move(variable));
  }
  if (command.words.empty()) return certain ? Status(true) : std::nullopt;
  return carry_out(std::move(command));
}

// Variables that are assigned before a command are its environment: the script keeps the values of before.
void ShellCommands::leave_environment(ShellCommand& command, Saved& saved) {
  for (auto& [name, variable] : saved) {
    const std::vector<std::string>& values = variables_[name].values;
    command.environment[name] = values.empty() ? "" : values.front();
    if (variable) {
      variables_[name] = std::move(*variable);
    } else {
      variables_.erase(name);
    }
  }
  saved.clear();
}

ShellCommands::Status ShellCommands::carry_out(ShellCommand command) {
  const std::vector<ShellWord>& words = command.words;
  const std::string& name = words.front().text;
  const std::int64_t line = words.front().line;
  if (name == "[" || name == "test") return test_command(words);
  if (name == "true" || name == ":") return true;
  if (name == "false") return false;
  if (is_word_of(name, {"exit", "return", "break", "continue"})) return end(name, line);
  if (skipping_) {
    change_variables(words);
    return std::nullopt;
  }
  if (const auto found = functions_.find(name); found != functions_.end()) return call(found->second, words);
  if (change_variables(words)) return std::nullopt;
  if (is_word_of(name, {"export", "declare", "local", "readonly", "typeset"})) {
    if (name != "export" && name != "readonly") make_local(words);
    return true;
  }
  if (is_word_of(name, {"echo", "printf", "set", "trap", "shopt", "cat", "logger"})) return std::nullopt;
  if (name == "source" || name == ".") {
    out_.notes.push_back(
        fmt::format("line {}: '{}' is not read, which may set variables", line, fmt::join(texts_of(words), " ")));
    return std::nullopt;
  }
  const bool replaces = name == "exec" && words.size() > 1;
  record(std::move(command));
  ended_ = ended_ || replaces;
  return std::nullopt;
}

ShellCommands::Status ShellCommands::end(const std::string& name, std::int64_t line) {
  if (name == "exit" || (name == "return" && arguments_ == nullptr)) {
    ended_ = true;
  } else if (name == "return" && undecided_ == 0 && loops_ == 0) {
    ended_ = true;
    returned_ = !skipping_;
  } else if (!skipping_ && (name == "return" || loops_ == 0)) {
    unsupported(line, name);
  }
  // In a loop of unknown length, all variables that it sets are choices: break and continue change nothing.
  return true;
}

ShellCommands::Status ShellCommands::test_command(std::span<const ShellWord> words) {
  std::vector<ShellOperand> operands;
  for (const ShellWord& word : words.subspan(1)) operands.push_back({word.text, word.known});
  if (words.front().text == "[") {
    if (operands.empty() || operands.back().text != "]") fail(words.front().line, "'[' without ']'");
    operands.pop_back();
  }
  return shell_test(operands, variables_);
}

void ShellCommands::make_local(std::span<const ShellWord> words) {
  if (arguments_ == nullptr) return;
  for (const ShellWord& word : words.subspan(1)) {
    const auto found = variables_.find(word.text);
    locals_.try_emplace(word.text, found == variables_.end() ? std::nullopt : std::optional(found->second));
  }
}

// Carries out commands that change variables, in most cases to what only a shell knows. Returns whether it is one.
bool ShellCommands::change_variables(std::span<const ShellWord> words) {
  const std::string& name = words.front().text;
  const std::int64_t line = words.front().line;
  const auto set_unknown = [&](const std::string& variable) {
    remember(variable);
    choose(variable, {"$" + variable}, line);
  };
  if (name == "unset") {
    for (const ShellWord& word : words.subspan(1)) {
      remember(word.text);
      variables_.erase(word.text);
    }
    return true;
  }
  const bool replaces_arguments = name == "set" && words.size() > 1 && words[1].text == "--";
  if (name == "let" || replaces_arguments || (name == "shift" && arguments_ != nullptr)) {
    if (!skipping_) unsupported(line, name);
    return true;
  }
  if (name == "printf" && words.size() > 2 && words[1].text == "-v") {
    set_unknown(words[2].text);
    return true;
  }
  if (!is_word_of(name, {"read", "mapfile", "readarray", "getopts"})) return name == "shift";
  for (const ShellWord& word : words.subspan(1)) {
    if (!word.text.starts_with('-')) set_unknown(word.text);
  }
  return true;
}

// Keeps the names of the variables that a loop changes.
void ShellCommands::remember(const std::string& name) {
  if (assigned_ != nullptr) assigned_->insert(name);
}

// Records a command. `bash -c "..."`, eval and a word with a program and arguments run the commands of a text.
void ShellCommands::record(ShellCommand command) {
  const std::vector<ShellWord>& words = command.words;
  if (words.front().text == "eval") {
    return record_text(command, 0, fmt::format("{}", fmt::join(texts_of(std::span(words).subspan(1)), " ")));
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& text = words[i].text;
    const bool flag = i > 0 && text.size() > 1 && text[0] == '-' && text[1] != '-' && text.ends_with('c');
    if (flag && words[i - 1].text.ends_with("sh") && i + 1 < words.size()) {
      return record_text(command, i - 1, words[i + 1].text);
    }
    if (text.find(" --") != std::string::npos && text.find(".py") != std::string::npos) {
      return record_text(command, i, text);
    }
  }
  out_.commands.push_back(std::move(command));
}

// Records the commands of a text, each after the first words of the command that runs it.
void ShellCommands::record_text(const ShellCommand& command, std::size_t launcher, const std::string& text) {
  const auto first = command.words.begin();
  const std::int64_t line = first->line;
  ShellScript script = run_text(text, line);
  for (ShellCommand& each : script.commands) {
    for (ShellWord& word : each.words) word.line = line;
    each.words.insert(each.words.begin(), first, first + static_cast<std::ptrdiff_t>(launcher));
    each.environment.insert(command.environment.begin(), command.environment.end());
    out_.commands.push_back(std::move(each));
  }
  out_.choices.merge(script.choices);
  if (command.words.front().text == "eval") variables_ = std::move(script.variables);
}

// Skips "> file", "2>&1", "&> file", "< file", "<<< word". Returns whether there is one.
bool ShellCommands::redirection() {
  std::size_t length = 0;
  while (after(length) >= '0' && after(length) <= '9' && length < 3) ++length;
  const bool output = length == 0 || here() == '1';
  if (after(length) == '&' && length == 0) ++length;
  if (after(length) != '>' && after(length) != '<') return false;
  const bool writes = output && after(length) == '>';
  if (after(length + 1) == '(') unsupported(line_, text_.substr(at_, 2));
  at_ += length + 1;
  const bool append = here() == '>';
  while (std::string_view("<>&|").find(here()) != std::string_view::npos && !at_end()) ++at_;
  blanks();
  const std::string target = whole_word();
  if (writes) written_ = target;
  if (writes) appends_ = append;
  return true;
}

bool ShellCommands::here_document(std::vector<Document>& documents) {
  if (!starts("<<") || after(2) == '<') return false;
  Document out;
  at_ += 2;
  out.strip = here() == '-';
  if (out.strip) ++at_;
  blanks();
  const std::size_t begin = at_;
  out.delimiter = whole_word();
  out.expand = text_.substr(begin, at_ - begin).find_first_of("'\"\\") == std::string_view::npos;
  if (out.delimiter.empty()) fail(line_, "expected a word after <<");
  documents.push_back(std::move(out));
  return true;
}

// Reads NAME=word, NAME+=word or NAME=(words), and saves the value before it. Returns whether there is one.
bool ShellCommands::assignment(Saved& saved) {
  const std::size_t length = name_length();
  const bool append = after(length) == '+' && after(length + 1) == '=';
  if (length == 0 || (!append && after(length) != '=')) return false;
  const std::string name(text_.substr(at_, length));
  at_ += length + (append ? 2 : 1);
  remember(name);
  const auto found = variables_.find(name);
  const bool set = found != variables_.end();
  saved.try_emplace(name, set ? std::optional(found->second) : std::nullopt);
  ShellVariable value;
  if (append && set) value = found->second;
  known_ = true;
  if (here() == '(') {
    if (append && !set) value = {{"${" + name + "[@]}"}, false};  // of the environment
    const std::vector<std::string> words = array();
    value.values.insert(value.values.end(), words.begin(), words.end());
  } else {
    if (append && !set) value = {{"$" + name}, false};
    const std::string word = whole_word();
    if (value.values.empty()) value.values.emplace_back();
    value.values.front() += word;
  }
  value.known = value.known && known_;
  for (const std::string& each : value.values) count(each.size());
  variables_[name] = std::move(value);
  return true;
}

}  // namespace sluice::imports

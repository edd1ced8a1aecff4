#include "import/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "import/shell_commands.h"
#include "import/shell_test.h"
#include "model/errors.h"

namespace sluice::imports {
namespace {

constexpr int kMostShellDepth = 50;       // of compound commands and functions
constexpr int kMostShellSteps = 200'000;  // commands
constexpr std::size_t kMostLoops = 1000;  // of one `for`
constexpr int kMostPasses = 5;            // over the body of a loop of unknown length

// Reads compound commands.
class ShellReader final : public ShellCommands {
 public:
  using ShellCommands::ShellCommands;

  ShellScript run() {
    list({});
    if (!at_end() && !ended_) fail(line_, fmt::format("unexpected '{}'", here()));
    std::erase_if(variables_, [&](auto& entry) {
      auto& [name, variable] = entry;
      if (!name.starts_with("file ")) return false;
      if (variable.known) out_.files[name.substr(5)] = std::move(variable.values.front());
      return true;
    });
    out_.variables = std::move(variables_);
    return std::move(out_);
  }

  std::vector<ShellWord> words() {
    std::vector<ShellWord> out;
    while (!at_end()) {
      if (skip_blank()) continue;
      if (here() == '\n') {
        take();
        continue;
      }
      const std::int64_t line = line_;
      for (std::string& word : word_fields()) out.push_back({std::move(word), line});
    }
    return out;
  }

 private:
  void expect(std::string_view word, std::string_view what, std::int64_t line) {
    separators();
    if (!takes(word)) fail(line, fmt::format("'{}' without '{}'", what, word));
  }

  // Runs commands until one of these words, which is not taken, or the end. Returns the status of the last.
  Status list(std::initializer_list<std::string_view> ends) {
    if (++depth_ > kMostShellDepth) fail(line_, "commands are nested too deeply");
    Status status = true;
    for (separators(); !at_end(); separators()) {
      const bool ends_here = std::find(ends.begin(), ends.end(), raw()) != ends.end() && !raw().empty();
      if (ends_here || here() == ')' || (here() == ';' && (after() == ';' || after() == '&'))) break;
      if (!ended_ || skipping_) {
        status = and_or();
      } else if (depth_ == 1) {
        break;
      } else {
        skip([&] { and_or(); });
      }
    }
    --depth_;
    return status;
  }

  Status and_or() {
    Status status = pipeline();
    while (true) {
      blanks();
      const bool both = starts("&&");
      if (!both && !starts("||")) return status;
      at_ += 2;
      newlines();
      const std::int64_t line = line_;
      if ((ended_ && !skipping_) || (status && *status != both)) {
        skip([&] { pipeline(); });
      } else if (status) {
        status = pipeline();
      } else {
        Branch without = branch();
        ++undecided_;
        pipeline();
        --undecided_;
        Branch with = branch();
        merge({std::move(without), std::move(with)}, line);
      }
    }
  }

  Status pipeline() {
    blanks();
    const bool inverted = takes("!");
    if (inverted) blanks();
    Status status = command();
    for (blanks(); here() == '|' && after() != '|'; blanks()) {
      at_ += after() == '&' ? 2 : 1;
      newlines();
      const Branch before = branch();  // what follows is a subshell
      command();
      restore(before);
      status = std::nullopt;
    }
    return inverted && status ? Status(!*status) : status;
  }

  Status command() {
    if (++steps_ > kMostShellSteps) fail(line_, "the script has too many commands");
    const std::int64_t line = line_;
    const std::string_view word = raw();
    Status status;
    if (starts("((")) {
      status = arithmetic_command(line);
    } else if (here() == '(') {
      status = subshell(line);
    } else if (word == "{") {
      ++at_;
      status = list({"}"});
      expect("}", "{", line);
    } else if (word == "[[") {
      status = double_bracket(line);
    } else if (word == "if") {
      if_command(line);
    } else if (word == "case") {
      case_command(line);
    } else if (word == "for") {
      for_command(line);
    } else if (word == "while" || word == "until") {
      while_command(line);
    } else if (word == "function" || defines_function()) {
      define(word == "function", line);
      return true;
    } else if (word == "select" || word == "coproc") {
      unsupported(line, word);
    } else {
      for (const char* each : {"then", "else", "elif", "fi", "do", "done", "esac", "}"}) {
        if (word == each) fail(line, fmt::format("unexpected '{}'", each));
      }
      return simple_command();
    }
    while (skip_blank() || redirection()) {
    }
    return status;
  }

  Status subshell(std::int64_t line) {
    ++at_;
    const Branch before = branch();
    const Status status = list({});
    if (here() != ')') fail(line, "'(' without ')'");
    ++at_;
    restore(before);
    return status;
  }

  Status arithmetic_command(std::int64_t line) {
    const std::string text = enclosed('(', ')');
    if (text.size() < 4 || !text.ends_with("))")) fail(line, "'((' without '))'");
    const std::string_view inside = std::string_view(text).substr(2, text.size() - 4);
    for (std::size_t i = 0; i < inside.size(); ++i) {
      const char before = i > 0 ? inside[i - 1] : ' ';
      const char next = i + 1 < inside.size() ? inside[i + 1] : ' ';
      const bool compares = std::string_view("=!<>").find(before) != std::string_view::npos || next == '=';
      const bool sets = inside[i] == '=' ? !compares : (inside[i] == '+' || inside[i] == '-') && next == inside[i];
      if (sets && !skipping_) unsupported(line, text);
    }
    const auto value = shell_arithmetic(inside, variables_);
    return value ? Status(*value != 0) : std::nullopt;
  }

  Status double_bracket(std::int64_t line) {
    at_ += 2;
    std::vector<ShellOperand> operands;
    while (true) {
      if (at_end()) fail(line, "'[[' without ']]'");
      if (skip_blank()) continue;
      if (here() == '\n') {
        newline();
        continue;
      }
      if (takes("]]")) break;
      if (is_operator(here())) {
        const std::size_t length = starts("&&") || starts("||") ? 2 : 1;
        operands.push_back({std::string(text_.substr(at_, length))});
        at_ += length;
        continue;
      }
      operands.push_back(operand());
      if (operands.back().text != "=~") continue;
      while (!at_end() && here() != '\n' && !starts(" ]]")) ++at_;  // a regular expression is no word
      operands.push_back({"", false});
    }
    return shell_test(operands, variables_);
  }

  // Runs a branch as far as its condition allows, collects its effects, and restores the state before it.
  template <typename Work>
  void alternative(const Status& runs, const Work& work, std::vector<Branch>& branches) {
    if (runs == false) return skip(work);
    const Branch before = branch();
    undecided_ += runs ? 0 : 1;
    work();
    undecided_ -= runs ? 0 : 1;
    branches.push_back(branch());
    restore(before);
  }

  // Returns whether the branches after one are reached, where `open` tells it for that one.
  static Status still_open(const Status& open, const Status& holds) {
    if (open == false || holds == true) return open == true || open == false ? Status(false) : std::nullopt;
    return holds == false ? open : std::nullopt;
  }

  // Returns whether a branch runs that is reached and whose condition holds.
  static Status both(const Status& open, const Status& holds) {
    if (open == false || holds == false) return false;
    return open && holds ? Status(true) : std::nullopt;
  }

  void if_command(std::int64_t line) {
    std::vector<Branch> branches;
    Status open = true;
    const char* word = "if";
    at_ += 2;
    do {
      const std::int64_t test_line = line_;
      Status holds = false;
      if (open == false) {
        skip([&] { list({"then"}); });
      } else {
        holds = list({"then"});
      }
      expect("then", word, test_line);
      alternative(
          both(open, holds),
          [&] {
            list({"elif", "else", "fi"});
          },
          branches);
      open = still_open(open, holds);
      separators();
      word = "elif";
    } while (takes("elif"));
    if (takes("else")) {
      alternative(
          open, [&] { list({"fi"}); }, branches);
      open = false;
    }
    expect("fi", "if", line);
    if (open != false) branches.push_back(branch());
    merge(std::move(branches), line);
  }

  void case_command(std::int64_t line) {
    at_ += 4;
    blanks();
    const ShellOperand word = operand();
    separators();
    if (!takes("in")) fail(line, "'case' without 'in'");
    std::vector<Branch> branches;
    Status open = true;
    for (separators(); !takes("esac"); separators()) {
      if (at_end()) fail(line, "'case' without 'esac'");
      if (here() == '(') ++at_;
      Status holds = false;
      do {
        blanks();
        const ShellOperand pattern = operand();
        const Status one = pattern.pattern && pattern.text == "*" ? Status(true) : shell_matches(word, pattern);
        holds = holds == true || one == true ? Status(true) : holds && one ? Status(false) : std::nullopt;
        blanks();
      } while (here() == '|' && at_++ < text_.size());
      if (here() != ')') fail(line_, "expected ) after the pattern");
      ++at_;
      alternative(
          both(open, holds), [&] { list({"esac"}); }, branches);
      open = still_open(open, holds);
      separators();
      if (starts(";;&") || starts(";&")) unsupported(line_, ";&");
      if (starts(";;")) at_ += 2;
    }
    if (open != false) branches.push_back(branch());
    merge(std::move(branches), line);
  }

  void for_command(std::int64_t line) {
    at_ += 3;
    blanks();
    if (here() == '(') {
      enclosed('(', ')');
      return loop_of_unknown_length(line, {});
    }
    const std::string name(text_.substr(at_, name_length()));
    if (name.empty()) fail(line, "expected a name after 'for'");
    at_ += name.size();
    blanks();
    std::vector<std::string> words;
    const bool known = std::exchange(known_, true);
    if (takes("in")) {
      for (blanks(); !ends_word(); blanks()) {
        std::vector<std::string> fields = word_fields();
        words.insert(words.end(), fields.begin(), fields.end());
      }
    } else {
      known_ = false;  // the arguments
    }
    const bool files = std::any_of(words.begin(), words.end(), [](const std::string& word) {
      return word.find_first_of("*?[{") != std::string::npos;
    });
    if (!std::exchange(known_, known) || files || words.size() > kMostLoops) {
      choose(name, {"$" + name}, line);
      return loop_of_unknown_length(line, {name});
    }
    if (words.empty()) return skip([&] { body(line); });
    if (skipping_) words.resize(1);
    if (assigned_ != nullptr) assigned_->insert(name);
    separators();
    const std::size_t begin = at_;
    const std::int64_t begin_line = line_;
    for (const std::string& word : words) {
      if (ended_ && !skipping_) return;
      at_ = begin;
      line_ = begin_line;
      variables_[name] = {{word}};
      body(line);
    }
  }

  void body(std::int64_t line) {
    expect("do", "for", line);
    list({"done"});
    expect("done", "do", line);
  }

  void while_command(std::int64_t line) {
    const bool until = takes("until");
    if (!until) at_ += 5;
    std::set<std::string> assigned;
    std::set<std::string>* const outer = std::exchange(assigned_, &assigned);
    const Branch before = branch();
    const Status condition = list({"do"});
    restore(before);
    assigned_ = outer;
    if (condition && *condition == until) {
      skip([&] { body(line); });
    } else {
      loop_of_unknown_length(line, std::move(assigned));
    }
  }

  // Reads the body of a loop until no more variables are found that it sets. All of them become choices.
  void loop_of_unknown_length(std::int64_t line, std::set<std::string> assigned) {
    separators();
    const std::size_t begin = at_;
    const std::int64_t begin_line = line_;
    const std::size_t commands = out_.commands.size();
    std::set<std::string>* const outer = std::exchange(assigned_, &assigned);
    skip([&] { body(line); });  // visits all branches
    const Branch before = branch();
    std::size_t known = 0;
    for (int pass = 0; pass < kMostPasses && (pass == 0 || assigned.size() > known); ++pass) {
      known = assigned.size();
      restore(before);
      for (const std::string& name : assigned) choose(name, {"$" + name}, line);
      out_.commands.resize(commands);
      at_ = begin;
      line_ = begin_line;
      ++loops_;
      body(line);
      --loops_;
    }
    const Branch after = branch();
    restore(before);
    assigned_ = outer;
    for (const std::string& name : assigned) {
      const auto set = after.variables.find(name);
      choose(name, set == after.variables.end() ? std::vector<std::string>{} : set->second.values, line);
      if (outer != nullptr) outer->insert(name);
    }
  }

  // Whether "name ()" is here.
  bool defines_function() const {
    const std::string_view name = raw();
    if (name.empty() || name.find_first_of("$\"'`=") != std::string_view::npos) return false;
    std::string_view rest = text_.substr(at_ + name.size());
    for (const char each : {'(', ')'}) {
      rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
      if (!rest.starts_with(each)) return false;
      rest.remove_prefix(1);
    }
    return true;
  }

  void define(bool keyword, std::int64_t line) {
    if (keyword) at_ += 8;
    blanks();
    const std::string name(raw());
    at_ += name.size();
    blanks();
    if (here() == '(') enclosed('(', ')');
    newlines();
    if (raw() != "{") unsupported(line, name + "()");
    ++at_;
    if (!skipping_) functions_[name] = {at_, line_};
    skip([&] { list({"}"}); });
    expect("}", "{", line);
  }

  Status call(const Function& function, const std::vector<ShellWord>& words) override {
    const std::vector<ShellWord> given(words.begin() + 1, words.end());
    const std::vector<ShellWord>* const outer_arguments = std::exchange(arguments_, &given);
    const std::size_t at = std::exchange(at_, function.at);
    const std::int64_t line = std::exchange(line_, function.line);
    Saved outer_locals = std::exchange(locals_, {});
    const int undecided = std::exchange(undecided_, 0);
    const int loops = std::exchange(loops_, 0);
    list({"}"});
    for (auto& [name, variable] : locals_) {
      if (variable) {
        variables_[name] = std::move(*variable);
      } else {
        variables_.erase(name);
      }
    }
    if (std::exchange(returned_, false)) ended_ = false;
    undecided_ = undecided;
    loops_ = loops;
    locals_ = std::move(outer_locals);
    arguments_ = outer_arguments;
    at_ = at;
    line_ = line;
    return std::nullopt;  // the number that `return` returns is not followed
  }

  ShellScript run_text(const std::string& text, std::int64_t line) override {
    if (depth_ > kMostShellDepth / 2) fail(line, "commands are nested too deeply");
    ShellReader inner(text, source_, true);
    inner.variables_ = variables_;
    inner.line_ = line;
    inner.depth_ = depth_ + kMostShellDepth / 10;
    return inner.run();
  }

  int depth_ = 0;
  int steps_ = 0;
};

}  // namespace

ShellScript read_shell(std::string_view text, const std::string& source) {
  return ShellReader(text, source, true).run();
}

std::vector<ShellWord> split_words(std::string_view text, const std::string& source) {
  return ShellReader(text, source, false).words();
}

}  // namespace sluice::imports

// The script of each shell contains the whole command tree, so that completing does not run the command.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "tools/completion/completion.h"

namespace sluice::tools {
namespace {

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
  return text;
}

// Return text in single quotes, for bash and zsh, and for fish, where backslashes inside are special.
std::string shell_quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }
std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

template <typename Visit>
void for_each_command(const CommandEntry& command, const Visit& visit) {
  visit(command);
  for (const CommandEntry& sub : command.subcommands) for_each_command(sub, visit);
}

std::vector<std::string> subcommand_names(const CommandEntry& command) {
  std::vector<std::string> names;
  for (const CommandEntry& sub : command.subcommands) names.push_back(last_word(sub.path));
  return names;
}

// Returns the bash commands that complete the current word.
std::string bash_reply(const std::vector<std::string>& words, bool files) {
  std::string out;
  if (!words.empty()) {
    out = fmt::format("compgen -W {} -- \"$word\"", shell_quoted(fmt::format("{}", fmt::join(words, " "))));
  }
  if (files) out += fmt::format("{}compgen -f -- \"$word\"", out.empty() ? "" : "; ");
  return out.empty() ? "return" : fmt::format("mapfile -t COMPREPLY < <({})", out);
}

}  // namespace

std::string bash_completion(const CommandEntry& command) {
  const std::string name = last_word(command.path);
  std::string paths;
  std::string values;
  std::string commands;
  for_each_command(command, [&](const CommandEntry& each) {
    for (const CommandEntry& sub : each.subcommands) paths += (paths.empty() ? "" : " | ") + shell_quoted(sub.path);
    std::vector<std::string> flags;
    for (const OptionEntry& option : each.options) {
      std::string patterns;
      for (const std::string& flag : option.names) {
        flags.push_back(flag);
        patterns += (patterns.empty() ? "" : " | ") + shell_quoted(each.path + " " + flag);
      }
      if (option.type.empty()) continue;
      const std::string reply = bash_reply(option.words, option.files);
      values +=
          fmt::format("    {})\n      {}\n      ;;\n", patterns, reply == "return" ? reply : reply + "\n      return");
    }
    std::vector<std::string> words = subcommand_names(each);
    bool files = false;
    for (const OptionEntry& operand : each.operands) {
      words.insert(words.end(), operand.words.begin(), operand.words.end());
      files |= operand.files;
    }
    commands += fmt::format(
        "    {})\n      if [[ $word == -* ]]; then\n        {}\n      else\n        {}\n      fi\n      ;;\n",
        shell_quoted(each.path), bash_reply(flags, false), bash_reply(words, files));
  });
  return fmt::format(
      R"(# bash completion for {0}, printed by '{0} completion bash'.
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} path={0} i
  # bash splits --flag=value into three words.
  if [[ $word == = ]]; then
    word=
  elif [[ $before == = ]]; then
    before=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$path ${{COMP_WORDS[i]}}" in
      {1}) path="$path ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$path $before" in
{2}  esac
  case $path in
{3}  esac
}}
complete -o filenames -F _{0} {0}
)",
      name, paths, values, commands);
}

namespace {

// Returns text escaped for the brackets of a specification of zsh's _arguments.
std::string zsh_text(const std::string& text) {
  std::string out = replaced(text, "\\", "\\\\");
  for (const char* special : {"[", "]", ":"}) out = replaced(out, special, std::string("\\") + special);
  return out;
}

// Returns ":type:action" for a value.
std::string zsh_value(const OptionEntry& option) {
  std::string action = " ";
  if (option.files) action = "_files";
  if (!option.words.empty()) {
    action = fmt::format("({})", fmt::join(option.words, " "));
    if (option.files) {
      action = fmt::format("{{_sluice_words_or_files {}}}", fmt::join(option.words, " "));
    }
  }
  const std::string& type = option.type.empty() ? option.names[0] : option.type;
  return fmt::format(":{}:{}", zsh_text(type), action);
}

void append_zsh(const CommandEntry& command, std::string& out) {
  std::string function = "_" + replaced(command.path, " ", "_");
  std::string specifications;
  for (const OptionEntry& option : command.options) {
    for (const std::string& flag : option.names) {
      std::string line = option.names.size() > 1 ? fmt::format("({})", fmt::join(option.names, " ")) : "";
      line += flag;
      if (!option.type.empty() && flag.starts_with("--")) line += "=";
      line += fmt::format("[{}]", zsh_text(first_sentence(option.description)));
      if (!option.type.empty()) line += zsh_value(option);
      specifications += fmt::format(" \\\n    {}", shell_quoted(line));
    }
  }
  for (std::size_t i = 0; i < command.operands.size(); ++i) {
    const OptionEntry& operand = command.operands[i];
    const std::string place = operand.repeated ? "*" : std::to_string(i + 1);
    specifications += fmt::format(" \\\n    {}", shell_quoted(place + ":" + zsh_value(operand)));
  }
  if (command.subcommands.empty()) {
    out += fmt::format("{}() {{\n  _arguments -s{}\n}}\n\n", function, specifications);
    return;
  }
  std::string commands;
  std::string branches;
  for (const CommandEntry& sub : command.subcommands) {
    append_zsh(sub, out);
    commands += fmt::format(
        "    {}\n", shell_quoted(last_word(sub.path) + ":" + replaced(first_sentence(sub.description), ":", "\\:")));
    branches += fmt::format("        {}) _{} ;;\n", last_word(sub.path), replaced(sub.path, " ", "_"));
  }
  out += fmt::format(
      "{}() {{\n  local context curcontext=$curcontext state line\n  typeset -A opt_args\n"
      "  local -a commands=(\n{}  )\n  _arguments -C{} \\\n    '1: :->command' '*:: :->rest'\n"
      "  case $state in\n    command) _describe command commands ;;\n"
      "    rest)\n      case $words[1] in\n{}      esac\n      ;;\n  esac\n}}\n\n",
      function, commands, specifications, branches);
}

}  // namespace

std::string zsh_completion(const CommandEntry& command) {
  const std::string name = last_word(command.path);
  std::string functions;
  append_zsh(command, functions);
  return fmt::format(
      "#compdef {0}\n# zsh completion for {0}, printed by '{0} completion zsh'.\n\n"
      "_{0}_words_or_files() {{\n  _alternative \"words:word:($*)\" 'files:file:_files'\n}}\n\n{1}"
      "if [[ $funcstack[1] == _{0} ]]; then\n  _{0} \"$@\"\nelse\n  compdef _{0} {0}\nfi\n",
      name, functions);
}

std::string fish_completion(const CommandEntry& command) {
  const std::string name = last_word(command.path);
  std::string out =
      fmt::format("# fish completion for {0}, printed by '{0} completion fish'.\ncomplete -c {0} -f\n", name);
  const auto to = std::back_inserter(out);
  for_each_command(command, [&](const CommandEntry& each) {
    // Completions of a command apply after all words of its path and before any of its subcommands.
    std::string condition;
    const auto require = [&](const std::string& test) { condition += (condition.empty() ? "" : "; and ") + test; };
    for (std::size_t at = each.path.find(' '); at != std::string::npos; at = each.path.find(' ', at + 1)) {
      require("__fish_seen_subcommand_from " + each.path.substr(at + 1, each.path.find(' ', at + 1) - at - 1));
    }
    if (each.path == command.path && !each.subcommands.empty()) {
      require("__fish_use_subcommand");
    } else if (!each.subcommands.empty()) {
      require(fmt::format("not __fish_seen_subcommand_from {}", fmt::join(subcommand_names(each), " ")));
    }
    const std::string begin =
        fmt::format("complete -c {}{}", name, condition.empty() ? "" : " -n " + fish_quoted(condition));
    for (const CommandEntry& sub : each.subcommands) {
      fmt::format_to(to, "{} -a {} -d {}\n", begin, last_word(sub.path), fish_quoted(first_sentence(sub.description)));
    }
    for (const OptionEntry& operand : each.operands) {
      if (operand.files) fmt::format_to(to, "{} -F\n", begin);
      if (!operand.words.empty()) {
        fmt::format_to(to, "{} -a {}\n", begin, fish_quoted(fmt::format("{}", fmt::join(operand.words, " "))));
      }
    }
    for (const OptionEntry& option : each.options) {
      out += begin;
      for (const std::string& flag : option.names) {
        const bool is_long = flag.starts_with("--");
        fmt::format_to(to, " {} {}", is_long ? "-l" : "-s", flag.substr(is_long ? 2 : 1));
      }
      if (!option.type.empty()) out += option.files ? " -r -F" : " -x";
      if (!option.words.empty()) {
        fmt::format_to(to, " -a {}", fish_quoted(fmt::format("{}", fmt::join(option.words, " "))));
      }
      fmt::format_to(to, " -d {}\n", fish_quoted(first_sentence(option.description)));
    }
  });
  return out;
}

}  // namespace sluice::tools

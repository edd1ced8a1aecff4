#include "tools/command/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "model/scenario/settings.h"

namespace sluice::tools {
namespace {

constexpr std::size_t kLineColumns = 100;
constexpr std::size_t kOptionIndent = 2;
constexpr std::size_t kTextColumn = 32;  // where the descriptions of options begin

// Breaks `text` at blanks into lines of at most `columns` characters; a longer word stays whole.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (lines.empty() || lines.back().size() + 1 + word.size() > columns) {
      lines.push_back(word);
    } else {
      lines.back() += " " + word;
    }
  }
  return lines;
}

std::string paragraphs(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool example = line.starts_with("  ");
    out += example ? line : fmt::format("{}", fmt::join(wrapped(line, kLineColumns), "\n"));
    out += '\n';
  }
  return out;
}

// "  --name TEXT     description", with the description on the next line where the name is long.
std::string entry_text(const std::string& name, const std::string& description, std::size_t column) {
  std::string out = std::string(kOptionIndent, ' ') + name;
  bool fresh = out.size() + 2 > column;
  if (fresh) out += '\n';
  for (const std::string& line : wrapped(description, kLineColumns - column)) {
    const std::size_t used = fresh ? 0 : out.size() - (out.rfind('\n') + 1);
    out += std::string(column - used, ' ') + line + '\n';
    fresh = true;
  }
  return out.ends_with('\n') ? out : out + '\n';
}

std::string name_text(const OptionEntry& option) {
  std::string out = fmt::format("{}", fmt::join(option.names, ", "));
  const bool flag = option.names[0].starts_with("-");
  if (flag && !option.type.empty()) {
    out += " " + (option.closed ? fmt::format("{{{}}}", fmt::join(option.words, ",")) : option.type);
  }
  if (option.repeated) out += flag ? ",..." : " ...";
  return out;
}

std::string usage(const CommandEntry& command) {
  std::string out = "Usage: " + command.path;
  if (!command.subcommands.empty()) return out + " <command> [options]\n";
  out += " [options]";
  for (const OptionEntry& operand : command.operands) {
    const std::string name = operand.names[0] + (operand.repeated ? "..." : "");
    out += operand.required ? " " + name : " [" + name + "]";
  }
  return out + "\n";
}

// Entries under their groups' headings, the groups in the order of their first entries.
template <typename Entry, typename Text>
std::string grouped_text(const std::vector<Entry>& entries, const Text& text) {
  std::vector<std::string> groups;
  for (const Entry& entry : entries) {
    if (std::find(groups.begin(), groups.end(), entry.group) == groups.end()) groups.push_back(entry.group);
  }
  std::string out;
  for (const std::string& group : groups) {
    out += "\n" + group + ":\n";
    for (const Entry& entry : entries) {
      if (entry.group == group) out += text(entry);
    }
  }
  return out;
}

// Returns a description without its default and details, at most `columns` long.
std::string clause(const std::string& description, std::size_t columns) {
  std::string out = description.substr(0, std::min({description.find(" (default"), description.find(" (required"),
                                                    description.find("; "), description.find(". ")}));
  while (out.size() > columns) {
    const std::size_t end = std::max(out.rfind(", ") + 1, out.rfind(" (") + 1);
    if (end == 0) return wrapped(out, columns - 4).front() + " ...";
    const std::string_view before = std::string_view(out).substr(0, end - 1);
    const bool inside = std::count(before.begin(), before.end(), '(') > std::count(before.begin(), before.end(), ')');
    out.resize(inside ? out.rfind(" (") : end - 1);
  }
  return out;
}

std::string short_help(const CommandEntry& command) {
  constexpr std::size_t kColumn = 28;
  const std::size_t own = command.description.find("\n\n", command.description.find("Examples:"));
  std::string out = usage(command) + "\n" + paragraphs(command.description.substr(0, own)) + "\nOptions:\n";
  const auto add = [&](OptionEntry option) {
    if (option.names.size() > 1) option.names.resize(option.names[0].starts_with("--") ? 1 : 2);  // without aliases
    option.closed = false;
    out += entry_text(name_text(option), clause(option.description, kLineColumns - kColumn), kColumn);
  };
  int hidden = 0;
  for (const OptionEntry& operand : command.operands) add(operand);
  for (const OptionEntry& option : command.options) option.common ? add(option) : static_cast<void>(++hidden);
  out += fmt::format("\n'sluice {} --help-all' has {} more options, all ranges and all defaults.\n",
                     last_word(command.path), hidden);
  return command.footer.empty() ? out : out + paragraphs(command.footer);
}

}  // namespace

std::string help_text(const CommandEntry& command, bool all) {
  constexpr std::size_t kCommandColumn = 14;
  const bool brief =
      !all && command.subcommands.empty() &&
      !std::all_of(command.options.begin(), command.options.end(), [](const auto& each) { return each.common; });
  if (brief) return short_help(command);
  const auto option_text = [](const OptionEntry& option) {
    return entry_text(name_text(option), option.description, kTextColumn);
  };
  std::string out = usage(command) + "\n" + paragraphs(command.description);
  out += grouped_text(command.subcommands, [](const CommandEntry& sub) {
    return entry_text(last_word(sub.path), first_sentence(sub.description), kCommandColumn);
  });
  if (!command.operands.empty()) out += "\nArguments:\n";
  for (const OptionEntry& operand : command.operands) out += option_text(operand);
  out += grouped_text(command.options, option_text);
  if (!command.footer.empty()) out += "\n" + paragraphs(command.footer);
  return out;
}

std::string settings_table() {
  constexpr std::pair<Commands, std::string_view> kReaders[] = {
      {kSimulate, "simulate"}, {kPlan, "plan"}, {kSlice, "slice"},           {kWeave, "weave"},
      {kSchedule, "schedule"}, {kRun, "run"},   {kKernels, "profile --like"}};
  const auto cell = [](std::string text) {
    for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
    return text;
  };
  std::string out = "| key | flags | meaning | default | read by |\n|---|---|---|---|---|\n";
  for (const Setting& row : settings()) {
    std::string meaning(row.help);
    if (const std::size_t at = meaning.find("{}"); at != std::string::npos) meaning.replace(at, 2, row.range());
    if (!row.details.empty()) meaning += fmt::format(". {}", row.details);
    std::vector<std::string_view> readers;
    for (const auto& [reader, name] : kReaders) {
      if ((row.reads & reader) != 0) readers.push_back(name);
    }
    std::vector<std::string> flags = split_words(row.flags);
    for (std::string& flag : flags) {
      flag.insert(0, "`");
      flag += '`';
    }
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.pointer.substr(1), fmt::join(flags, ", "), cell(meaning),
                       cell(row.fallback_text()), fmt::join(readers, ", "));
  }
  return out;
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string /*name*/, CLI::AppFormatMode mode) const {
  return help_text(command_tree(*app), mode == CLI::AppFormatMode::All);
}

}  // namespace sluice::tools

#include <fmt/format.h>

#include <iterator>
#include <sstream>

#include "tools/command/command.h"
#include "tools/command/version.h"
#include "tools/completion/completion.h"

namespace sluice::tools {
namespace {

// Returns text escaped for roff.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool line_begins = out.empty() || out.back() == '\n';
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    switch (c) {
      case '\\': out += "\\e"; break;
      case '-': out += "\\-"; break;
      case '\'': out += "\\(aq"; break;
      case '`': out += "\\(ga"; break;
      case '^': out += "\\(ha"; break;
      case '~': out += "\\(ti"; break;
      default: out += c;
    }
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

// Returns the paragraphs of a help text: an empty line ends a paragraph, indented lines are examples.
std::string body(const std::string& description) {
  std::string out;
  std::istringstream lines(description);
  bool example = false;
  bool fresh = false;  // a new paragraph begins
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      fresh = true;
      continue;
    }
    const bool indented = line.starts_with("  ");
    if (example && !indented) out += ".fi\n.RE\n";
    if (fresh && !indented) out += ".PP\n";
    if (indented && !example) out += ".PP\n.RS 4\n.nf\n";
    out += escaped(indented ? line.substr(2) : line) + "\n";
    example = indented;
    fresh = false;
  }
  if (example) out += ".fi\n.RE\n";
  return out;
}

std::string names_of(const OptionEntry& option) {
  std::string out;
  for (const std::string& name : option.names) out += (out.empty() ? "" : ", ") + bold(name);
  if (!option.type.empty()) out += " " + italic(option.type) + (option.repeated ? " ..." : "");
  return out;
}

std::string items(const std::vector<OptionEntry>& options) {
  std::string out;
  std::string group;
  for (const OptionEntry& option : options) {
    if (option.group != group && option.group != "Options") out += fmt::format(".PP\n{}:\n", escaped(option.group));
    group = option.group;
    std::string text = option.description;
    if (!option.words.empty()) {
      text += fmt::format("{}One of: {}{}.", text.ends_with('.') ? " " : ". ", fmt::join(option.words, ", "),
                          option.files ? ", or a file" : "");
    }
    out += fmt::format(".TP\n{}\n{}\n", names_of(option), escaped(text));
  }
  return out;
}

std::string synopsis(const CommandEntry& command) {
  std::string out = fmt::format("{} [{} ...]", bold(command.path), italic("option"));
  for (const OptionEntry& operand : command.operands) out += fmt::format(" [{}]", italic(operand.names[0]));
  return out;
}

void append_commands(const std::vector<CommandEntry>& commands, std::string& out) {
  for (const CommandEntry& command : commands) {
    out += fmt::format(".SS {}\n{}\n.PP\n{}", escaped(command.path), synopsis(command),
                       body(command.description + (command.footer.empty() ? "" : "\n\n" + command.footer)));
    std::vector<OptionEntry> operands = command.operands;
    for (OptionEntry& operand : operands) operand.group = "Operands";
    out += items(operands);
    if (!operands.empty() && !command.options.empty()) out += ".PP\nOptions:\n";
    out += items(command.options);
    append_commands(command.subcommands, out);
  }
}

}  // namespace

std::string man_page(const CommandEntry& command) {
  const std::string name = last_word(command.path);
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string summary = first_sentence(command.description);
  if (const std::size_t verb = summary.find(' '); verb != std::string::npos) summary = summary.substr(verb + 1);
  std::string out = fmt::format(
      ".TH {} 1 \"{}\" \"{} {}\" \"User Commands\"\n.nh\n.ad l\n.SH NAME\n{} \\- {}\n"
      ".SH SYNOPSIS\n{} {} [{} ...]\n.SH DESCRIPTION\n{}",
      upper, kDate, name, kVersion, name, escaped(summary), bold(name), italic("command"), italic("option"),
      body(command.description));
  out += ".SH OPTIONS\n" + items(command.options);
  out += ".SH COMMANDS\n";
  append_commands(command.subcommands, out);
  const std::pair<int, const char*> codes[] = {
      {kDone, "Success."},
      {kInternalError, "Internal error."},
      {kWrongInput, "Wrong usage or input. One line on standard error names the location and the rule."},
      {kNotFeasible, "No feasible configuration: it does not fit in memory."},
      {kInvalidSchedule, "Invalid schedule: an op is duplicate, missing or misplaced, or there is a deadlock."},
      {kOutsideTolerance, "A result is outside the requested tolerance."},
      {kWorkerLost, "A worker process died."},
      {kRunStuck, "An op exceeded its deadline, or ranks wait for each other."},
      {kNotFinite, "An op produced a number that is not finite."},
      {kStoppedByAnother, "Another process failed, and reports why."},
      {kMachineBusy, "The machine is too busy for a verdict."},
      {kInterrupted, "Interrupted."},
      {kTerminated, "Ended by SIGTERM."}};
  out += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : codes) out += fmt::format(".TP\n.B {}\n{}\n", code, escaped(meaning));
  out += fmt::format(
      ".SH ENVIRONMENT\n"
      ".TP\n.B NO_COLOR\nIf set and not empty, disables color unless {} is given.\n"
      ".TP\n.B COLORTERM\n{} or {} enables 24-bit color; otherwise 256 colors are used.\n"
      ".TP\n.B TERM\n{} disables color.\n"
      ".TP\n.B SLUICE_MEMORY_LIMIT\nMemory that the simulation of a schedule may take, such as 64GiB; by default a\n"
      "quarter of the machine's.\n",
      bold("--color always"), bold("truecolor"), bold("24bit"), bold("dumb"));
  out +=
      ".SH FILES\nScenarios, schedules, models, clusters and measured costs are JSON files (a schedule also a CSV);\n"
      "their keys are described in\n.I formats.md\nof the documentation. Installed under the prefix of the "
      "command:\n"
      ".TP\n.I share/sluice/examples/\nScenarios of published configurations, and models.\n"
      ".TP\n.I share/doc/sluice/\nThe documentation.\n";
  return out;
}

void add_man_flag(CLI::App& app) {
  const auto print = [&app](std::int64_t) {
    fmt::print("{}", man_page(command_tree(app)));
    throw CLI::Success();
  };
  app.add_flag_function("--help-man", print, "Print the manual page in roff and exit")->trigger_on_parse()->group("");
}

}  // namespace sluice::tools

// The help of every command and option: present, complete, short, and free of the phrases that the project has banned
// from its texts.

#include "tools/command/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tools/command/command_tree.h"
#include "tools/commands.h"

namespace sluice::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Phrases with a plain equivalent, in lower case: "dealt out" is "distributed", "at once" is "immediately" or
// "concurrently", "so many" is "number of".
constexpr std::array kBannedPhrases = {
    "answer is no",
    "at once",
    "behind j others",
    "dealt evenly",
    "dealt out",
    "flags are laid over",
    "groupsum",
    "in the mean",
    "laid over it",
    "matrix product",
    "matrix products",
    "nine times of ten",
    "nothing can beat",
    "one behind the other",
    "really runs",
    "really trains",
    "ring of ops",
    "rules bite",
    "so many",
    "suffers a",
    "the machine at hand",
    "way there and back",
    "what is not given",
    "what is not said",
    "who waits for whom",
};

// Returns lower-case text with every run of blanks, line breaks and Markdown emphasis as one blank.
std::string normalized(std::string_view text) {
  std::string out = " ";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool blank = std::isspace(byte) != 0 || c == '*';
    if (!blank) {
      out += static_cast<char>(std::tolower(byte));
    } else if (out.back() != ' ') {
      out += ' ';
    }
  }
  return out + " ";
}

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Returns the banned phrases in a text, as whole words.
std::vector<std::string> banned_phrases_in(std::string_view text) {
  const std::string searched = normalized(text);
  std::vector<std::string> found;
  for (const std::string_view phrase : kBannedPhrases) {
    for (std::size_t at = 0; (at = searched.find(phrase, at)) != std::string::npos; ++at) {
      if (is_letter(searched[at - 1]) || is_letter(searched[at + phrase.size()])) continue;
      found.emplace_back(phrase);
      break;
    }
  }
  return found;
}

// Returns a Markdown text without the tables that list banned phrases beside what to write.
std::string without_word_lists(const std::string& text) {
  std::string out;
  bool in_list = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    in_list = line.starts_with('|') && (in_list || normalized(line).starts_with(" | instead of | write |"));
    if (!in_list) out += line + '\n';
  }
  return out;
}

// Returns the rules that a command, its options and its subcommands break.
std::vector<std::string> help_problems(const CommandEntry& command) {
  constexpr std::size_t kSummaryColumns = 84;  // beside the command's name in `sluice --help`
  std::vector<std::string> found;
  const auto check = [&](bool good, const std::string& name, const char* rule) {
    if (!good) found.push_back(command.path + (name.empty() ? "" : " " + name) + ": " + rule);
  };
  check(!command.description.empty(), "", "no description");
  check(first_sentence(command.description).size() <= kSummaryColumns, "", "the first sentence is too long");
  for (const std::vector<OptionEntry>* entries : {&command.options, &command.operands}) {
    for (const OptionEntry& option : *entries) {
      const std::string& name = option.names.back();
      const std::string& text = option.description;
      check(!text.empty(), name, "no help text");
      check(!text.ends_with('.'), name, "the help text ends with a full stop");
      if (option.type != "INT" && option.type != "UINT" && option.type != "FLOAT") continue;
      const bool has_default = text.find("default") != std::string::npos || text.find("required") != std::string::npos;
      check(has_default, name, "a number without a default");
    }
  }
  for (const CommandEntry& sub : command.subcommands) {
    for (std::string& problem : help_problems(sub)) found.push_back(std::move(problem));
  }
  return found;
}

template <typename Visit>
void for_each_command(const CommandEntry& command, const Visit& visit) {
  visit(command);
  for (const CommandEntry& sub : command.subcommands) for_each_command(sub, visit);
}

CommandEntry sluice_tree() {
  CLI::App app;
  const std::vector<Subcommand> commands = add_commands(app, {"sluice", "--help-man"});
  EXPECT_EQ(commands.size(), app.get_subcommands({}).size());
  return command_tree(app);
}

TEST(Help, EveryCommandAndOptionHasAHelpText) { EXPECT_THAT(help_problems(sluice_tree()), IsEmpty()); }

TEST(Help, MissingTextsAndDefaultsAreRejected) {
  CLI::App app{"Does nothing."};
  app.name("ex");
  int number = 0;
  bool flag = false;
  app.add_flag("--silent", flag, "");
  app.add_option("--size", number, "Size in bytes");
  app.add_option("--width", number, "Width in columns (default 80).");
  app.add_subcommand("inner", "")->add_option("--depth", number, "Depth, at least 1 (default 1)");
  EXPECT_THAT(help_problems(command_tree(app)),
              ElementsAre("ex --silent: no help text", "ex --size: a number without a default",
                          "ex --width: the help text ends with a full stop", "ex inner: no description"));
}

TEST(Help, NoCommandUsesABannedPhrase) {
  for_each_command(sluice_tree(), [](const CommandEntry& command) {
    EXPECT_THAT(banned_phrases_in(help_text(command, true)), IsEmpty()) << command.path;
  });
}

TEST(Help, NoDocumentUsesABannedPhrase) {
  namespace fs = std::filesystem;
  const fs::path root = SLUICE_SOURCE_DIR;
  std::vector<fs::path> documents;
  for (const fs::path& folder : {root, root / "docs"}) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".md") documents.push_back(entry.path());
    }
  }
  EXPECT_GE(documents.size(), 5U) << "the documents were not found";
  for (const fs::path& document : documents) {
    EXPECT_THAT(banned_phrases_in(without_word_lists(read_file(document.string()))), IsEmpty()) << document;
  }
}

TEST(Help, BannedPhrasesAreFoundInAnyCaseAndAcrossLines) {
  EXPECT_THAT(banned_phrases_in("Slices are dealt out, all\nat *once*."), ElementsAre("at once", "dealt out"));
  EXPECT_THAT(banned_phrases_in("So many tokens.\nWho waits for\n  whom?"),
              ElementsAre("so many", "who waits for whom"));
  for (const std::string_view phrase : kBannedPhrases) {
    EXPECT_THAT(banned_phrases_in(std::string("(") + std::string(phrase) + ")"), Not(IsEmpty())) << phrase;
  }
}

TEST(Help, BannedPhrasesAreAcceptedOnlyInATableOfWords) {
  const std::string list = "| Instead of | Write |\n|---|---|\n| dealt out | distributed |\n";
  EXPECT_THAT(banned_phrases_in(without_word_lists(list)), IsEmpty());
  EXPECT_THAT(banned_phrases_in(without_word_lists(list + "\n| dealt out | 4 |\n")), ElementsAre("dealt out"));
}

TEST(Help, PhrasesInsideOfWordsAreAccepted) {
  EXPECT_THAT(banned_phrases_in("What oncoming layers need: also manyfold, cutoff bytes, all ranks concurrently."),
              IsEmpty());
}

TEST(Help, TheListOfCommandsFitsOnOneScreen) {
  const std::string result = test::output_of({"--help"});
  EXPECT_LE(std::count(result.begin(), result.end(), '\n'), 45) << result;
  EXPECT_EQ(result, help_text(sluice_tree(), true)) << "tools/commands.cc names, groups and summarizes all commands";
}

TEST(Help, WithoutACommandIsTheListOfCommands) {
  const std::string list = test::run_sluice({"--help"}).out;
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{}, {"help"}}) {
    const std::string result = test::output_of(arguments);
    EXPECT_EQ(result, list);
  }
  EXPECT_EQ(test::run_sluice({"help", "simulate"}).out, test::run_sluice({"simulate", "--help"}).out);
  EXPECT_EQ(test::run_sluice({"help", "help"}).out, test::run_sluice({"help", "--help"}).out);
  EXPECT_EQ(test::run_sluice({"help", "simulat"}).exit_code, 2);
}

TEST(Help, TheTableOfSettingsIsThatOfTheDocuments) {
  const std::string table = test::run_sluice({"help", "settings"}).out;
  EXPECT_THAT(read_file(SLUICE_SOURCE_DIR "/docs/formats.md"), HasSubstr("\n\n" + table + "\n"))
      << "insert the output of 'sluice help settings' into docs/formats.md";
}

TEST(Help, EveryCommandListsItsExitCodes) {
  for (const CommandEntry& command : sluice_tree().subcommands) {
    EXPECT_THAT(command.footer, HasSubstr("Exit codes: 0 ")) << command.path;
  }
}

// Runs refuse whatever value these have, except those that turn a key of a scenario file off.
TEST(Help, OfRunsHasNoFlagsThatAllRunsRefuse) {
  for (const char* command : {"run", "validate", "profile"}) {
    const std::string help = test::run_sluice({command, "--help-all"}).out;
    for (const char* flag : {"--zero-stage", "--dp-shard", "--dp-replicate", "--reshard-after-forward",
                             "--optimizer-cpu", "--optimizer-offload", "--overlap-cpu", "--torch-pipelining",
                             "--gathered-inputs", "--cross-entropy", "--wgrad-deferral"}) {
      EXPECT_THAT(help, testing::Not(HasSubstr(flag))) << command;
      EXPECT_THAT(test::run_sluice({"simulate", "--help-all"}).out, HasSubstr(flag));
    }
  }
  EXPECT_THAT(test::run_sluice({"run", "--zero-stage", "1"}).err,
              HasSubstr("--zero-stage: runs do not support it: expected 0, got 1"));
  EXPECT_EQ(test::run_sluice({"run", "--steps", "1", "--zero-stage", "0"}).exit_code, 0);
}

TEST(Help, LinesAreWrappedExceptExamplesAndLongWords) {
  CLI::App app{"Do this. " + std::string(120, 'x') + " and that.\n\nExamples:\n  " + std::string(110, 'y')};
  app.name("ex");
  int number = 0;
  app.add_option("--some-option-with-a-long-name", number, "One " + std::string(60, 'a') + " " + std::string(60, 'b'));
  const std::string indent(32, ' ');
  EXPECT_THAT(
      help_text(command_tree(app), true),
      HasSubstr("Do this.\n" + std::string(120, 'x') + "\nand that.\n\nExamples:\n  " + std::string(110, 'y') + "\n"));
  EXPECT_THAT(help_text(command_tree(app), true),
              HasSubstr("\n  --some-option-with-a-long-name INT\n" + indent + "One " + std::string(60, 'a') + "\n" +
                        indent + std::string(60, 'b') + "\n"));
}

}  // namespace
}  // namespace sluice::tools

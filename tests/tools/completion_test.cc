// The manual page and the completion scripts contain all commands and flags, with special characters escaped.

#include "tools/completion/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tests/support/command.h"
#include "tools/command/command_tree.h"
#include "tools/commands.h"

namespace sluice::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every --flag in a text.
std::set<std::string> flags_in(const std::string& text) {
  std::set<std::string> flags;
  for (std::size_t at = 0; (at = text.find("--", at)) != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at), text.size());
    if (end > at + 2) flags.insert(text.substr(at, end - at));
    at = end;
  }
  return flags;
}

std::string without_backslashes(std::string text) {
  std::erase(text, '\\');
  return text;
}

TEST(Completion, ManPageAndScriptsContainEveryFlag) {
  const std::string page = without_backslashes(test::run_sluice({"--help-man"}).out);
  const std::string bash = test::run_sluice({"completion", "bash"}).out;
  const std::string zsh = test::run_sluice({"completion", "zsh"}).out;
  const std::string fish = test::run_sluice({"completion", "fish"}).out;
  std::size_t count = 0;
  for (const char* command : {"schedules", "schedule", "simulate", "completion"}) {
    const std::string help = test::output_of({command, "--help-all"});
    EXPECT_THAT(page, HasSubstr(std::string(".SS sluice ") + command));
    for (const std::string& flag : flags_in(help)) {
      SCOPED_TRACE(command + flag);
      ++count;
      EXPECT_THAT(page, HasSubstr(flag));
      EXPECT_THAT(zsh, HasSubstr(flag));
      EXPECT_THAT(fish, HasSubstr("-l " + flag.substr(2)));
      EXPECT_THAT(bash, HasSubstr(flag));
    }
  }
  EXPECT_GT(count, 60U);
}

// Only options that take a file complete file names; words with known values complete these.
TEST(Completion, CompletesFileNamesOnlyForFiles) {
  const auto option = [](const std::string& command, const std::string& name) {
    CLI::App app;
    const std::vector<Subcommand> commands = add_commands(app, {"sluice", "--help-man"});
    const CommandEntry tree = command_tree(*app.get_subcommand(command));
    const auto named = [&](const OptionEntry& each) {
      return std::find(each.names.begin(), each.names.end(), name) != each.names.end();
    };
    const auto found = std::find_if(tree.options.begin(), tree.options.end(), named);
    EXPECT_NE(found, tree.options.end()) << name;
    return found == tree.options.end() ? OptionEntry{} : *found;
  };
  EXPECT_THAT(option("simulate", "--recompute").words, ElementsAre("none", "selective", "full"));
  EXPECT_TRUE(option("simulate", "--recompute").closed);
  EXPECT_THAT(option("simulate", "--model").words, ::testing::Contains("llama3-8b"));
  EXPECT_THAT(option("simulate", "--software").words, ::testing::Contains("megatron-lm"));
  for (const char* name : {"--recompute", "--slicing", "--uniform", "--jitter", "--memory-cap", "--slow-rank"}) {
    EXPECT_FALSE(option("simulate", name).files) << name;
  }
  for (const char* name : {"--model", "--cluster", "--schedule", "--trace", "--ops", "--svg", "--report", "--cost",
                           "--software", "--calibration", "--compare-with", "--csv"}) {
    EXPECT_TRUE(option("simulate", name).files) << name;
  }
  for (const char* name : {"--data", "--trace", "--checkpoint", "--resume"}) {
    EXPECT_TRUE(option("run", name).files) << name;
  }
}

TEST(Completion, RejectsUnknownShells) {
  const test::CommandResult result = test::run_sluice({"completion", "csh"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "sluice: completion: shell: expected one of bash, zsh, fish, got 'csh'; did you mean 'zsh'?\n");
}

struct Example {
  CLI::App app{"Doesn't do much. Really.\n\nExamples:\n  x 'y' \\z\n\n.hidden request"};
  std::string text;
  bool quiet = false;
  std::vector<int> many;

  Example() {
    app.name("ex");
    app.add_flag("-q,--quiet", quiet, "say [nothing]: it's \\ fine");
    app.add_flag("--secret", quiet, "hidden")->group("");
    app.add_option("--mode", text, "")->check(CLI::IsMember({"a", "b"}));
    CLI::App* outer = app.add_subcommand("outer", "Out.");
    outer->add_option("--many", many, "numbers");
    outer->add_subcommand("inner", "In.")->add_option("file", text, "an operand");
  }
};

TEST(CommandTree, MatchesTheParser) {
  const Example example;
  const CommandEntry tree = command_tree(example.app);
  ASSERT_EQ(tree.options.size(), 3U);  // with --help, without --secret
  EXPECT_THAT(tree.options[1].names, ElementsAre("-q", "--quiet"));
  EXPECT_EQ(tree.options[1].type, "");
  EXPECT_THAT(tree.options[2].words, ElementsAre("a", "b"));
  EXPECT_FALSE(tree.options[2].files);
  ASSERT_EQ(tree.subcommands.size(), 1U);
  const CommandEntry& outer = tree.subcommands[0];
  EXPECT_EQ(outer.options[1].type, "INT");
  EXPECT_TRUE(outer.options[1].repeated);
  EXPECT_FALSE(outer.options[1].files);
  ASSERT_EQ(outer.subcommands.size(), 1U);
  EXPECT_EQ(outer.subcommands[0].path, "ex outer inner");
  EXPECT_THAT(outer.subcommands[0].operands[0].names, ElementsAre("file"));
  EXPECT_TRUE(outer.subcommands[0].operands[0].files);
}

TEST(ManPage, EscapesRoffControlCharacters) {
  const Example example;
  const std::string page = man_page(command_tree(example.app));
  EXPECT_THAT(page, HasSubstr(".SH NAME\nex \\- do much\n"));
  EXPECT_THAT(page, HasSubstr(".nf\nx \\(aqy\\(aq \\ez\n.fi"));
  EXPECT_THAT(page, HasSubstr("\n\\&.hidden request\n"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-q\\fR, \\fB\\-\\-quiet\\fR\nsay [nothing]: it\\(aqs \\e fine\n"));
  EXPECT_THAT(page, HasSubstr(".SS ex outer inner\n"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("secret")));
}

TEST(Completion, QuotesForEachShell) {
  const Example example;
  const CommandEntry tree = command_tree(example.app);
  EXPECT_THAT(bash_completion(tree), HasSubstr("'ex outer' | 'ex outer inner') path="));
  EXPECT_THAT(bash_completion(tree), HasSubstr("compgen -W 'a b' -- \"$word\""));
  EXPECT_THAT(zsh_completion(tree), HasSubstr(R"('(-q --quiet)--quiet[say \[nothing\]\: it'\''s \\ fine]')"));
  EXPECT_THAT(fish_completion(tree), HasSubstr(R"(-s q -l quiet -d 'say [nothing]: it\'s \\ fine')"));
  EXPECT_THAT(fish_completion(tree),
              HasSubstr("-n '__fish_seen_subcommand_from outer; and __fish_seen_subcommand_from inner' -F"));
}

}  // namespace
}  // namespace sluice::tools

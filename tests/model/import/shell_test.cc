#include "model/import/shell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/errors.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> word_texts(const std::vector<ShellWord>& words) {
  std::vector<std::string> out;
  for (const ShellWord& word : words) out.push_back(word.text);
  return out;
}

// The words of the last command of a script.
std::vector<std::string> last_command(const std::string& text) {
  const ShellScript script = read_shell(text, "run.sh");
  return script.commands.empty() ? std::vector<std::string>{} : word_texts(script.commands.back());
}

std::string shell_error(const std::string& text) {
  try {
    read_shell(text, "run.sh");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Shell, SplitsWordsAndRemovesQuotes) {
  EXPECT_THAT(last_command("a 'b c' \"d $ e\"f\\ g\\\"h ''"), ElementsAre("a", "b c", "d $ ef g\"h", ""));
  EXPECT_THAT(last_command("a \\\n  b # c\n"), ElementsAre("a", "b"));
  EXPECT_THAT(last_command("a b#c"), ElementsAre("a", "b#c"));
  EXPECT_THAT(last_command("first; second x && third y | tee log"), ElementsAre("tee", "log"));
  EXPECT_THAT(last_command("a b > log 2>&1 c &> other"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(word_texts(split_words("a 'E|t' E|(t|)*2tL $X\nb", "line")),
              ElementsAre("a", "E|t", "E|(t|)*2tL", "$X", "b"));
}

TEST(Shell, ExpandsVariablesAndArrays) {
  EXPECT_THAT(last_command("A=1\nexport B=\"x y\" C=z\necho $A ${B} \"$B\" ${C}s"),
              ElementsAre("echo", "1", "x", "y", "x y", "zs"));
  EXPECT_THAT(last_command("A=(\n --x 1 # no\n --y 'a b'\n)\nA+=(--z)\nrun \"${A[@]}\" ${A[*]}"),
              ElementsAre("run", "--x", "1", "--y", "a b", "--z", "--x", "1", "--y", "a", "b", "--z"));
  EXPECT_THAT(last_command("A=\"--x 1\"\nA+=\" --y\"\nA=\"$A --z\"\nrun $A"),
              ElementsAre("run", "--x", "1", "--y", "--z"));
  EXPECT_THAT(last_command("A=\nB=()\nrun $A \"$A\" \"${B[@]}\" $@ \"$@\""), ElementsAre("run", ""));
  EXPECT_THAT(last_command("A=2\nrun ${A:-3} ${B:-3} ${B:-\"x y\"} ${B:-$A}"),
              ElementsAre("run", "2", "3", "x", "y", "2"));
  EXPECT_THAT(last_command("N=4\nG=8\nW=$(($N * G + (2-1)))\nrun $W $((N/0))"), ElementsAre("run", "33", "$((N/0))"));
}

// What only a shell knows stays as it is written.
TEST(Shell, KeepsUnknownVariablesAndCommands) {
  EXPECT_THAT(last_command("run $1 $HOME/x \"${A%.*}\" $(date +%s) `date`"),
              ElementsAre("run", "$1", "$HOME/x", "${A%.*}", "$(date +%s)", "`date`"));
}

TEST(Shell, ErrorsNameTheLine) {
  EXPECT_EQ(shell_error("A=1\nif true; then\n"),
            "run.sh: line 2: 'if' is not supported: expected assignments, arrays and simple commands");
  EXPECT_EQ(shell_error("\n\nf() {\n"),
            "run.sh: line 3: '(' is not supported: expected assignments, arrays and simple "
            "commands");
  EXPECT_EQ(shell_error("cat <<END\nEND\n"),
            "run.sh: line 1: '<<' is not supported: expected assignments, arrays and simple commands");
  EXPECT_EQ(shell_error("a\nb 'c\n\n"), "run.sh: line 2: expected a closing '");
  EXPECT_EQ(shell_error("A=(\n1\n"), "run.sh: line 1: expected ) at the end of the array");
  std::string doubled = "A=xxxxxxxxxxxxxxxx\n";
  for (int i = 0; i < 40; ++i) doubled += "A=$A$A\n";
  // Line n has 16 x 2^(n - 1) characters, counted as two values, as a word and as a variable: 2^24 are exceeded by 19.
  EXPECT_EQ(shell_error(doubled), "run.sh: line 19: the variables are too long");
  std::string nested = "run ";
  for (int i = 0; i < 100; ++i) nested += "${X:-";
  EXPECT_EQ(shell_error(nested + std::string(100, '}')),
            "run.sh: line 1: the defaults of variables are nested too deeply");
}

TEST(Shell, EmptyScriptsHaveNoCommands) {
  EXPECT_THAT(last_command(""), IsEmpty());
  EXPECT_THAT(last_command("# only\n\n"), IsEmpty());
}

}  // namespace
}  // namespace sluice::test

#include "import/shell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
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
  return script.commands.empty() ? std::vector<std::string>{} : word_texts(script.commands.back().words);
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
  EXPECT_THAT(last_command("A=1\nexport B=\"x y\" C=z\nrun $A ${B} \"$B\" ${C}s"),
              ElementsAre("run", "1", "x", "y", "x y", "zs"));
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
  EXPECT_EQ(shell_error("A=1\nif true; then\n"), "run.sh: line 2: 'if' without 'fi'");
  EXPECT_EQ(shell_error("fi\n"), "run.sh: line 1: unexpected 'fi'");
  EXPECT_EQ(shell_error("\n\nf() {\n"), "run.sh: line 3: '{' without '}'");
  EXPECT_EQ(shell_error("cat <<END\nEN\n"), "run.sh: line 1: expected a line END after the here-document");
  EXPECT_EQ(shell_error("a\nselect x in 1 2; do y; done\n"),
            "run.sh: line 2: 'select' is not supported: put echo before the command that trains, run the script, and "
            "import the line that it prints");
  for (const char* text : {"((A += 1))", "((A++))", "let A=2", "set -- a b", "IFS=,", "for x in 1 2; do break; done",
                           "f() { shift; }\nf 1 2", "f() { if [ -d x ]; then return; fi; A=1; }\nf",
                           "case 1 in 1) A=1;& 2) A=2;; esac", "diff <(a) b", "f() ( a )"}) {
    EXPECT_NE(shell_error(text), "no error") << text;
  }
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

// What bash prints for `echo "$A"` after each script. All were compared with bash 5.2.
TEST(Shell, FollowsWhatCanBeDecided) {
  const std::pair<const char*, const char*> kScripts[] = {
      {"if [ 1 = 1 ]; then A=yes; else A=no; fi", "yes"},
      {"N=3; if [ $N -gt 4 ]; then A=a; elif [ \"$N\" -eq 3 ]; then A=b; else A=c; fi", "b"},
      {"N=3; if [[ $N == 4 || $N < 5 && 1 -eq 2 ]]; then A=a; else A=b; fi", "b"},
      {"N=7b; if [[ $N == 7* ]]; then A=a; else A=b; fi", "a"},
      {"N=7b; if [[ $N == \"7*\" ]]; then A=a; else A=b; fi", "b"},
      {"if [[ -z \"\" && ! -n \"\" ]]; then A=a; fi", "a"},
      {"if [ ! \"x\" ]; then A=a; else A=b; fi", "b"},
      {"if (( 3 * 2 == 6 && !(2 > 3) )); then A=a; else A=b; fi", "a"},
      {"A=1; [ $A = 2 ] && A=3", "1"},
      {"A=1; [ $A = 1 ] && A=3 || A=4", "3"},
      {"A=1; [ $A = 2 ] && A=3 || A=4", "4"},
      {"A=1; false || { A=2; }", "2"},
      {"A=1; true || A=2", "1"},
      {"A=1; (A=2)", "1"},
      {"A=1; A=2 true", "1"},
      {"A=1; true | A=2", "1"},
      {"N=7b; case $N in 7b|8b) A=small;; 70b) A=large ;; *) A=none; esac", "small"},
      {"N=70b; case \"$N\" in (7b) A=small;; 7?b) A=large ;; esac", "large"},
      {"N=9; case $N in 7b) A=small;; *) A=none; esac", "none"},
      {"A=; for x in a b c; do A=$A$x; done", "abc"},
      {"A=x; for x in; do A=y; done", "x"},
      {"A=; for x in 1 2; do for y in a b; do A+=$x$y; done; done", "1a1b2a2b"},
      {"A=1; while false; do A=2; done", "1"},
      {"f() { A=$1-$2-$#; }\nf x \"y z\"", "x-y z-2"},
      {"function f { local A=5; B=$A; }\nA=1; f; A=$A$B", "15"},
      {"f() { A=1; return 0; A=2; }\nf", "1"},
      {"f() { if [ $1 = x ]; then A=1; return; fi; A=2; }\nf x; B=$A; f y; A=$B$A", "12"},
      {"f() { local A; A=7; }\nA=1; f", "1"},
      {"f() { A=\"$*\"; }\nf a b", "a b"},
      {"A=${B:=4}; A=$A$B", "44"},
      {"B=1; A=${B:+x}${B+y}", "xy"},
      {"B=(a b c); A=${#B[@]}${B[1]}${B[$((1+1))]}", "3bc"},
      {"B=abcd; A=${#B}", "4"},
      {"A=$(( (2 + 3) * -4 % 3 ))", "-2"},
      {"A=1; unset A; A=${A:-2}", "2"},
      {"B=b; A=\"${B:-'c'}\"", "b"},
      {"A=\"${C:-'c'}\"", "'c'"},
      {"if true; then if false; then A=1; else A=2; fi; fi", "2"},
      {"if ! true; then A=1; elif ! false; then A=2; fi", "2"},
      {"A=1\nexit 0\nA=2", "1"},
      {"A=1; if [ $A -eq 1 ]; then exit; fi; A=2", "1"},
      {"eval A=3", "3"},
      {"A=1 # if\ncat <<'EOF' > /dev/null\nA=2\nif\nEOF\n", "1"},
  };
  for (const auto& [text, expected] : kScripts) {
    const ShellScript script = read_shell(text, "run.sh");
    ASSERT_TRUE(script.variables.contains("A")) << text;
    EXPECT_THAT(script.variables.at("A").values, ElementsAre(expected)) << text;
    EXPECT_TRUE(script.variables.at("A").known) << text;
  }
}

// Variables that depend on what only a shell knows are never one of the alternatives.
TEST(Shell, VariablesOfUndecidedBranchesAreChoices) {
  for (const char* text : {
           "A=1; if [ -d x ]; then A=2; fi",
           "A=1; if [ \"$X\" = y ]; then A=2; fi",
           "if [ -z \"$1\" ]; then A=1; else A=2; fi",
           "A=1; [ -d x ] && A=2",
           "A=1; grep -q a b || A=2",
           "A=1; B=$(nproc) || A=2",
           "case $X in 1) A=1;; *) A=2;; esac",
           "A=1; case $X in 1) A=2;; esac",
           "A=1; while read -r line; do A=2; done < file",
           "A=1; for x in *.json; do A=$x; done",
           "A=1; for ((i = 0; i < 2; i++)); do A=2; done",
           "A=1; I=0; while [ -d x ]; do if [ $I = 1 ]; then A=2; fi; I=1; done",
           "f() { A=2; }\nA=1; while [ -d x ]; do f; done",
           "read -r A",
           "printf -v A '%d' 3",
           "A=1; if [ -d x ]; then unset A; fi",
           "A=1; X=$(cat file); if [[ $X =~ a.*b ]]; then A=2; fi",
           "A=1; if [ -d x ]; then B=2; fi; if [ $B = 2 ]; then A=2; fi",
           "B=1; if [ -d x ]; then B=2; fi; A=$B",
           "A=1; if [ -d x ]; then eval A=2; fi",
       }) {
    SCOPED_TRACE(text);
    const ShellScript script = read_shell(text, "run.sh");
    ASSERT_TRUE(script.variables.contains("A"));
    EXPECT_FALSE(script.variables.at("A").known);
    EXPECT_THAT(last_command(std::string(text) + "\nrun $A"), ElementsAre("run", ::testing::StartsWith("$")));
  }
  // A branch that ends the script changes nothing after it; equal values are no choice.
  for (const char* text : {"A=1; if [ -d x ]; then A=2; exit 1; fi", "A=1; cd x || { A=2; exit 1; }",
                           "if [ -d x ]; then A=1; else A=1; fi"}) {
    EXPECT_THAT(read_shell(text, "run.sh").variables.at("A").values, ElementsAre("1")) << text;
  }
  // What the alternatives have in common is kept.
  const ShellScript script =
      read_shell("A=(--x 1)\nB='--x 1'\nif [ -d x ]; then\nA+=(--y 2)\nB=\"$B --y 2\"\nfi\n", "run.sh");
  EXPECT_THAT(script.variables.at("A").values, ElementsAre("--x", "1", "$A"));
  EXPECT_THAT(script.variables.at("B").values, ElementsAre("--x 1 $B"));
  EXPECT_EQ(script.choices.at("A").line, 3);
  EXPECT_THAT(script.choices.at("A").words, ElementsAre("--y", "2"));
  EXPECT_THAT(script.choices.at("B").words, ElementsAre("--y", "2"));
}

TEST(Shell, ReadsCommandsWithinCommands) {
  EXPECT_THAT(last_command("srun -n 2 bash -lc \"cd x && python a.py --b 1; echo done\""),
              ElementsAre("srun", "-n", "2", "python", "a.py", "--b", "1"));
  EXPECT_THAT(last_command("CMD=\"python a.py --b 'c d'\"\neval $CMD"), ElementsAre("python", "a.py", "--b", "c d"));
  EXPECT_THAT(last_command("exec python a.py --b\nother"), ElementsAre("exec", "python", "a.py", "--b"));
  const ShellScript script = read_shell(
      "W=2\nX=1 run a\ncat <<END > c.json\n{\"a\": $W}\nEND\ncat <<'END' >> c.json\n$W\nEND\n. ./env.sh\n", "run.sh");
  EXPECT_THAT(script.commands.front().environment,
              ::testing::Contains(std::pair<const std::string, std::string>("X", "1")));
  EXPECT_FALSE(script.variables.contains("X"));
  EXPECT_EQ(script.files.at("c.json"), "{\"a\": 2}\n$W\n");
  EXPECT_THAT(script.notes, ElementsAre("line 9: '. ./env.sh' is not read, which may set variables"));
}

// Deep and repeated commands end with an error, not with the stack or hours of work.
TEST(Shell, LimitsDepthAndWork) {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "if true; then ";
  EXPECT_THAT(shell_error(deep), ::testing::HasSubstr("nested too deeply"));
  EXPECT_THAT(shell_error("f() { f; }\nf"), ::testing::HasSubstr("nested too deeply"));
  std::string loops;
  for (int i = 0; i < 9; ++i) loops += "for i in 1 2 3 4 5 6 7 8 9; do ";
  EXPECT_THAT(shell_error(loops + "a" +
                          [] {
                            std::string ends;
                            for (int i = 0; i < 9; ++i) ends += "; done";
                            return ends;
                          }()),
              ::testing::HasSubstr("too many commands"));
}

TEST(Shell, EmptyScriptsHaveNoCommands) {
  EXPECT_THAT(last_command(""), IsEmpty());
  EXPECT_THAT(last_command("# only\n\n"), IsEmpty());
}

}  // namespace
}  // namespace sluice::test

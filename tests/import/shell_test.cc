// Scripts: what is read of them, and `sluice-args`, which lets a shell run them.

#include "import/shell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "import/import.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

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

template <typename Call>
std::string shell_error(const Call& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}
std::string reading_error(const std::string& text) {
  return shell_error([&] { read_shell(text, "run.sh"); });
}

TEST(Shell, SplitsWordsAndRemovesQuotes) {
  EXPECT_THAT(last_command("a 'b c' \"d $ e\"f\\ g\\\"h ''"), ElementsAre("a", "b c", "d $ ef g\"h"));
  EXPECT_THAT(last_command("a \\\n  b # c\n"), ElementsAre("a", "b"));
  EXPECT_THAT(last_command("a b#c"), ElementsAre("a", "b#c"));
  EXPECT_THAT(last_command("first; second x && third y | tee log"), ElementsAre("tee", "log"));
  EXPECT_THAT(last_command("a b > log 2>&1 c &> other < <(d e) f"), ElementsAre("a", "b", "c", "f"));
  EXPECT_THAT(last_command("a b\ncat <<END > file; cat <<-'E F'\nA=1\nif\nEND\nx\n\tE F\n"), ElementsAre("a", "b"));
  EXPECT_THAT(word_texts(split_words("a 'E|t' E|(t|)*2tL $X\nb", "line")),
              ElementsAre("a", "E|t", "E|(t|)*2tL", "$X", "b"));
  EXPECT_THAT(last_command(""), IsEmpty());
  EXPECT_THAT(last_command("# only\n\n"), IsEmpty());
}

TEST(Shell, ExpandsVariablesAndArrays) {
  EXPECT_THAT(last_command("A=1\nexport B=\"x y\" C=z\nrun $A ${B} \"$B\" ${C}s"),
              ElementsAre("run", "1", "x", "y", "x y", "zs"));
  EXPECT_THAT(last_command("A=(\n --x 1 # no\n --y 'a b'\n)\nA+=(--z)\nrun \"${A[@]}\" ${A[*]}"),
              ElementsAre("run", "--x", "1", "--y", "a b", "--z", "--x", "1", "--y", "a", "b", "--z"));
  EXPECT_THAT(last_command("A=\"--x 1\"\nA+=\" --y\"\nA=\"$A --z\"\nrun $A"),
              ElementsAre("run", "--x", "1", "--y", "--z"));
  EXPECT_THAT(last_command("A=\nB=()\nrun $A \"${B[@]}\" $@ \"$@\""), ElementsAre("run"));
  EXPECT_THAT(last_command("A=2\nrun ${A:-3} ${B:-3} ${B-\"x y\"} ${B:-$A} \"${B:-'c'}\" \"${B:-\"d e\"}\""),
              ElementsAre("run", "2", "3", "x y", "2", "'c'", "d e"));
  EXPECT_THAT(last_command("A=${A-3}\nB=$B\nC=(1 2)\nC=3\nrun $A $B ${C[@]}"), ElementsAre("run", "3", "$B", "3", "2"));
  EXPECT_THAT(last_command("srun -n 2 bash -lc \"cd x && python a.py --b 1; echo done\""),
              ElementsAre("srun", "-n", "2", "python", "a.py", "--b", "1"));
  EXPECT_THAT(last_command("CMD=\"python a.py --b 'c d'\"\neval $CMD"), ElementsAre("python", "a.py", "--b", "c d"));
  EXPECT_THAT(last_command("exec python a.py --b\nother"), ElementsAre("exec", "python", "a.py", "--b"));
  EXPECT_THAT(last_command("run\nexit 0\nother"), ElementsAre("exit", "0"));
  EXPECT_THAT(read_shell(". ./env.sh\n", "run.sh").notes,
              ElementsAre("line 1: '. ./env.sh' is not read, which may set variables"));
}

// What only a shell knows stays as it is written.
TEST(Shell, KeepsUnknownVariablesAndCommands) {
  EXPECT_THAT(last_command("N=2\nrun $1 $HOME/x \"${N%.*}\" $(date +%s) `date` $((N * 2)) ${#N} \"$?\""),
              ElementsAre("run", "$1", "$HOME/x", "${N%.*}", "$(date +%s)", "`date`", "$((N * 2))", "${#N}", "$?"));
}

// A variable that control flow may set is never one of the alternatives, whatever was or is assigned to it otherwise.
TEST(Shell, VariablesOfControlFlowAreDoubts) {
  for (const char* text : {
           "A=1; if [ -d x ]; then A=2; fi",
           "if [[ -z \"$1\" || 1 < 2 ]]; then\nA=1\nelse\nA=2\nfi",
           "A=1; [ -d x ] && A=2",
           "A=1; grep -q a b ||\n A=2",
           "case $X in 1) A=1;; *) A=2;; esac",
           "A=1; case $X in (1|2) B=1 ;; --num-layers|-l) A=2 ;; esac",
           "A=1; while read -r line; do A+=2; done < file",
           "A=1; while read -r A; do :; done",
           "A=1; for A in *.json; do :; done",
           "for ((A = 0; A < 2; A++)); do :; done",
           "((A = 2))",
           "let A=2",
           "A=1; (A=2)",
           "f() { A=2; }\nA=1; f",
           "function f {\n local A=2; }\nA=1",
           "read -r A",
           "printf -v A '%d' 3",
           "A=1; unset A",
           "A=1; [ -d x ] && eval A=2",
           "A=1; bash -c 'A=2'",
           "A=1; A=2 other",
       }) {
    SCOPED_TRACE(text);
    EXPECT_TRUE(read_shell(text, "run.sh").doubts.contains("A"));
    EXPECT_THAT(last_command(std::string(text) + "\nrun \"x$A\" ${A:-3} ${A[@]}"),
                ElementsAre("run", "x$A", "$A", "$A"));
  }
  // The place of the outermost word, and control flow without assignments.
  const ShellScript script =
      read_shell("A=1\nif [ -d x ]; then\n  for B in 1 2; do echo $B; done\n  run\nfi\nA=3\n", "run.sh");
  EXPECT_FALSE(script.doubts.contains("A"));
  EXPECT_EQ(script.doubts.at("B").line, 2);
  EXPECT_EQ(script.doubts.at("B").word, "if");
  EXPECT_EQ(script.commands.back().within.line, 2);
  EXPECT_EQ(read_shell("cd x && run\n", "run.sh").commands.back().within.word, ShellPlace::kChain);
  // Arguments are unknown within functions and after `set --`.
  EXPECT_THAT(last_command("f() {\n run $@\n}"), ElementsAre("run", "$@"));
  EXPECT_THAT(last_command("set -- a b\nrun \"$@\""), ElementsAre("run", "$@"));
}

TEST(Shell, ErrorsNameTheLine) {
  EXPECT_EQ(reading_error("a\nb 'c\n\n"), "run.sh: line 2: expected a closing '");
  EXPECT_EQ(reading_error("a\nb $(c\n\n"), "run.sh: line 2: expected a closing )");
  EXPECT_EQ(reading_error("A=(\n1\n"), "run.sh: line 1: expected ) at the end of the array");
  EXPECT_EQ(reading_error("A=(a;b)"), "run.sh: line 1: ';' is not supported in an array");
  EXPECT_EQ(reading_error("IFS=,"),
            "run.sh: line 1: IFS is not supported: sluice-args prints the arguments of a script");
  EXPECT_THAT(reading_error("A='eval $A'\neval $A"), HasSubstr("expected at most 1000 texts within others"));
  std::string doubled = "A=xxxxxxxxxxxxxxxx\n";
  for (int i = 0; i < 40; ++i) doubled += "A=$A$A\n";
  EXPECT_THAT(reading_error(doubled), HasSubstr("the variables are too long"));
  std::string nested = "run ";
  for (int i = 0; i < 2000; ++i) nested += "${X:-";
  EXPECT_THAT(reading_error(nested + std::string(2000, '}')), HasSubstr("texts within others"));
}

const std::string kArguments = SLUICE_SOURCE_DIR "/tools/sluice-args";

// Runs a script in a folder of its own, with a file pretrain_gpt.py. Returns what `sluice-args` prints.
CommandResult arguments_of(const std::string& text, const std::string& shell = "bash",
                           const std::vector<std::string>& environment = {}) {
  const TemporaryFolder folder;
  write_file_whole(folder.path("pretrain_gpt.py"), "raise SystemExit('this trains')\n");
  write_file_whole(folder.path("train.sh"), text);
  return run_program("/bin/sh", {"-c", "cd " + folder.path() + " && exec " + kArguments + " " + shell + " train.sh"},
                     environment);
}

const char* const kPlainScript = R"(#!/bin/bash
#SBATCH --nodes=2
set -e
export CUDA_DEVICE_MAX_CONNECTIONS=1
mkdir -p logs
cd logs && cd ..
GPUS_PER_NODE=8
NUM_NODES=${NNODES:-2}
MASTER_ADDR=$(echo localhost)
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<Specify path>
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048 --max-position-embeddings 2048 # of GPT-3
)
TRAINING_ARGS="
    --micro-batch-size 1 --global-batch-size 1536 \
    --fp16 --split '949,50,1'
"
PARALLEL=(--tensor-model-parallel-size 8)
PARALLEL+=("--pipeline-model-parallel-layout" "Et*47|t*49L" --pipeline-model-parallel-size 2)
if [ -n "$CHECKPOINT_PATH" ]; then echo "checkpoints are in $CHECKPOINT_PATH"; fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} $TRAINING_ARGS "${PARALLEL[@]}" "$@" \
    --tokenizer-type GPT2BPETokenizer --save "$CHECKPOINT_PATH" 2>&1 | tee logs/out
)";

const char* const kScriptWithQuotes =
    "A=\"a b\"\nexport WORLD_SIZE=16\npython -u pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads "
    "4 "
    "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --vocab-size 100 --bf16 --save \"it's $A\" "
    "--load "
    "'a\"b\\' --data-path a \\\n  'b  c' --num-experts 4 --moe-layer-freq \"([0]*1+[1]*3)\"\n";

const char* const kScriptOfSrun =
    "N=4\nLINE=\"torchrun --nproc_per_node $N pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads "
    "4\"\n"
    "srun -l --container-image 'x y' sh -c \"${LINE} --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 "
    "--vocab-size 100 --bf16\"\n";

// Where a script is read, the arguments that a shell would give the launcher are those that were read.
TEST(SluiceArgs, AgreesWithTheReader) {
  for (const char* text : {kPlainScript, kScriptWithQuotes, kScriptOfSrun}) {
    SCOPED_TRACE(text);
    const Imported read = import_text(text, "script");
    EXPECT_THAT(read.notes, IsEmpty());
    EXPECT_GT(read.scenario.at("parallelism").at("gpus"), 1);
    const CommandResult run = arguments_of(text);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(import_text(run.out, "script").scenario, read.scenario) << run.out;
  }
}

// Where it is not, the error says what to do, and that gives the arguments of the branches that were taken.
TEST(SluiceArgs, FollowsWhatTheReaderDoesNot) {
  const std::string folder = SLUICE_SOURCE_DIR "/tests/fuzz/corpus/import/";
  const std::string text = read_file(folder + "script_tests.sh");
  EXPECT_EQ(shell_error([&] { import_text(text, "run.sh"); }),
            "run.sh: line 76: $DTYPE_ARGS depends on 'if' in line 48, which only a shell can follow: 'sluice-args bash "
            "run.sh > args.txt' writes the arguments of the run, and sluice reads args.txt");
  const CommandResult run = arguments_of(text, "bash", {"WANDB_API_KEY="});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Imported imported = import_text(run.out, "args.txt");
  EXPECT_THAT(imported.notes, IsEmpty());
  EXPECT_EQ(imported.scenario.at("parallelism"), nlohmann::json::parse(R"({"tp": 2, "pp": 2, "gpus": 8,
                                                    "sequence_parallel": true, "flash_attention": true})"));
  EXPECT_EQ(imported.scenario.at("model").at("vocab_size"), 128256);
}

// Launchers are replaced also where the script changes PATH or runs another script; programs that compute run.
TEST(SluiceArgs, ReplacesLaunchersAlone) {
  const auto printed = [](const std::string& text, const std::string& shell = "bash") {
    return arguments_of(text, shell, {"PATH=/usr/bin:/bin"}).out;
  };
  EXPECT_EQ(printed("echo no; N=$(python3 -c 'print(3 + 1)'); export PATH=/bin:$PATH; torchrun a.py --n $N '' | cat"),
            "torchrun a.py --n 4 ''\n");
  EXPECT_EQ(printed("exec env X=1 mpirun -np 2 python3 a.py --n \"it's\ntwo\"", "sh"),
            "mpirun -np 2 python3 a.py --n 'it'\\''s\ntwo'\n");
  EXPECT_EQ(printed("WORLD_SIZE=8 deepspeed pretrain_gpt.py --num-layers 2"),
            "WORLD_SIZE=8 deepspeed pretrain_gpt.py --num-layers 2\n");
  EXPECT_EQ(printed("echo 'python pretrain_gpt.py --a' > inner.sh; bash inner.sh"), "python pretrain_gpt.py --a\n");
  EXPECT_EQ(arguments_of("exit 3").exit_code, 3);
  const CommandResult help = run_program(kArguments, {});
  EXPECT_EQ(help.exit_code, 2);
  EXPECT_THAT(help.err, StartsWith("sluice-args COMMAND..."));
}

}  // namespace
}  // namespace sluice::test

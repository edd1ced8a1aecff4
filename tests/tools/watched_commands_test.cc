// Runs and measurements whose processes stop, die or never come: every process ends, and its last line names that rank.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "model/input/files.h"
#include "tests/support/golden.h"
#include "tests/tools/runs.h"

namespace sluice::test {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns the last line that each process has printed on its standard error; those that ended silently are left out.
std::vector<std::string> last_lines(const TemporaryFolder& folder) {
  std::vector<std::string> lines;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (!entry.path().filename().string().starts_with("error-")) continue;
    std::istringstream text(read_file(entry.path().string()));
    std::string last;
    for (std::string line; std::getline(text, line);) last = line;
    if (!last.empty()) lines.push_back(last);
  }
  return lines;
}

// Matches a line that begins with a rank and what is wrong with it, a regular expression; of a process that the
// launcher terminates because of a death, after this.
auto names(int rank, const std::string& cause) {
  return ContainsRegex(fmt::format(
      "^sluice: (the launcher terminated the run \\(signal 15\\); )?rank {}( \\(pipeline [^)]*\\))? {}", rank, cause));
}

// Words before a command that write the standard error of each process to a file of its own, after `first`, a part of a
// shell script in which the world rank is $OMPI_COMM_WORLD_RANK and the process $$.
std::vector<std::string> apart(const TemporaryFolder& folder, const std::string& first = ":") {
  return {"/bin/bash", "-c", first + "\nexec \"$0\" \"$@\" 2>" + folder.path("error-") + "$OMPI_COMM_WORLD_RANK"};
}

// Each rank in turn dies or hangs, in several schedules. The launcher ends the others as soon as one of them has ended:
// what they see then is a consequence, and they repeat what the first one has found.
TEST(WatchedRun, LastLineOfEveryProcessNamesTheRankAtFault) {
  if (!has_mpi()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const std::vector<std::string> schedules = {"--pp 4", "--pp 2 --dp 2 --schedule zb-h1",
                                              "--pp 2 --tp 2 --schedule gpipe", "--pp 2 --dp 2 --schedule zb-v"};
  const int most = small_scope() ? 2 : 4;
  for (int rank = 0; rank < most; ++rank) {
    for (const std::string kind : {"kill", "stop"}) {
      const std::string& schedule = schedules[(rank + (kind == "kill" ? 0 : 1)) % schedules.size()];
      const std::string fault = fmt::format("{}:rank={},op=F,mb=2,step=2", kind, rank);
      SCOPED_TRACE(schedule + " " + fault);
      const TemporaryFolder folder;
      const CommandResult result = run_processes(
          4, fmt::format("{}--steps 4 --deadline 0.5 {} --fault {}", kTinyRun, schedule, fault), apart(folder));
      EXPECT_NE(result.exit_code, 0);
      const std::vector<std::string> lines = last_lines(folder);
      EXPECT_GE(lines.size(), 2U);
      const char* const cause = kind == "kill" ? "died in step 2, inside F\\(" : "has been inside F\\(";
      const std::string announced = fmt::format("sluice: --fault: rank {} kills its process inside F(", rank);
      for (const std::string& line : lines) EXPECT_THAT(line, AnyOf(names(rank, cause), StartsWith(announced)));
    }
  }
}

// A part of a shell script in which rank 1 gets `signal` when `begun` is true, a condition.
std::string signal_rank_1(const std::string& signal, const std::string& begun) {
  return fmt::format("p=$$; [ $OMPI_COMM_WORLD_RANK = 0 ] || (until {}; do sleep 0.01; done; kill -{} $p) &", begun,
                     signal);
}
std::string has_recorder(const std::string& folder) { return fmt::format("[ -s {}/rank-0001.rec ]", folder); }
std::string has_recorded(const std::string& folder, const std::string& what) {
  return fmt::format("{} run --post-mortem {}/rank-0001.rec 2>/dev/null | grep -q '{}'", SLUICE_COMMAND, folder, what);
}

const std::string kMeasured = kTinyRun.substr(std::string("run").size()) + "--pp 2 --deadline 0.5 ";
const std::string kEndlessProfile = "profile" + kMeasured + "--time-budget 1000 ";
const std::string kEndlessValidation = "validate" + kMeasured + "--schedule zb-h1,1f1b --steps 100000 --time-budget 1 ";

// In a profile, in the runs of a validation, and before the others know that the process has begun.
TEST(WatchedMeasurement, EndsWhenAProcessIsSuspendedOrDies) {
  if (!has_mpi()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  struct Case {
    std::string command;
    std::string signal;
    std::string begun;  // what rank 1 has recorded; empty: nothing yet
  };
  for (const Case& each :
       {Case{kEndlessProfile, "STOP", "at the measurement"}, Case{kEndlessProfile, "KILL", "at the measurement"},
        Case{kEndlessProfile, "STOP", ""}, Case{kEndlessValidation, "STOP", "working in F"},
        Case{kEndlessValidation, "KILL", "working in W"}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", each.command, each.signal, each.begun));
    const TemporaryFolder folder;
    const std::string recorders = folder.path("rec");
    const std::string begun = each.begun.empty() ? has_recorder(recorders) : has_recorded(recorders, each.begun);
    const CommandResult result =
        run_processes(2, each.command + "--recorder " + recorders, apart(folder, signal_rank_1(each.signal, begun)));
    EXPECT_TRUE(result.exit_code == 7 || (each.signal == "KILL" && result.exit_code != 0)) << result.err;
    const std::string cause = each.signal == "STOP" ? "has been suspended " : "died ";
    const std::vector<std::string> lines = last_lines(folder);
    EXPECT_GE(lines.size(), 1U);
    for (const std::string& line : lines) EXPECT_THAT(line, names(1, cause));
    EXPECT_THAT(run_sluice(words("run --post-mortem " + recorders)).out, HasSubstr("rank 1 " + cause));
  }
}

// Measurements on threads keep their results while they are watched, and leave no folder.
TEST(WatchedMeasurement, OnThreadsLeavesNothing) {
  const TemporaryFolder folder;
  const CommandResult result = run_program(
      SLUICE_COMMAND, words("profile" + kMeasured + "--time-budget 0 --tokens 12 -o " + folder.path("p.json")),
      {"TMPDIR=" + folder.path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(folder.num_files(), 1);
  const CommandResult kept = run_program(
      SLUICE_COMMAND, words("profile" + kMeasured + "--time-budget 0 --tokens 12 --recorder " + folder.path("rec")));
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  const CommandResult said = run_sluice(words("run --post-mortem " + folder.path("rec")));
  EXPECT_THAT(said.out, HasSubstr("between, at the measurement"));
}

// One process never calls MPI_Init: it is another program, or is suspended before.
TEST(ProcessStart, NamesTheProcessThatDoesNotCome) {
  if (!has_mpi()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const TemporaryFolder folder;
  const std::string other = "[ $OMPI_COMM_WORLD_RANK = 0 ] || ";
  for (const auto& [command, first] : {std::pair("run", "exec sleep 1000"), std::pair("profile", "kill -STOP $$"),
                                       std::pair("validate", "exec sleep 1000")}) {
    SCOPED_TRACE(command);
    const CommandResult result =
        run_processes(2, command + kMeasured + "--start-timeout 1", apart(folder, other + first));
    EXPECT_EQ(result.exit_code, 7) << result.err;
    EXPECT_EQ(read_file(folder.path("error-0")),
              "sluice: rank 0 has waited 1 s in MPI_Init for rank 1, which has not called MPI_Init or has ended\n");
  }
}

}  // namespace
}  // namespace sluice::test

#include "exec/watch/diagnosis.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include "tests/support/command.h"

namespace sluice::test {
namespace {

TEST(Diagnosis, IsReadAsItWasWritten) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_diagnosis(folder.path()));
  const RunFailure failure(FailureKind::stuck, 3, "rank 3 has been inside F\nrank 2 waits for it");
  for (const RunFailure& found : {agree_on_diagnosis(folder.path(), failure),
                                  agree_on_diagnosis(folder.path(), {FailureKind::lost, 1, "rank 1 died"}),
                                  read_diagnosis(folder.path()).value()}) {
    EXPECT_EQ(found.kind(), FailureKind::stuck);
    EXPECT_EQ(found.world_rank(), 3);
    EXPECT_STREQ(found.what(), failure.what());
  }
  EXPECT_EQ(folder.num_files(), 1);
  remove_diagnosis(folder.path());
  EXPECT_FALSE(read_diagnosis(folder.path()));
}

// The processes find different failures at the same moment: one of them is the diagnosis of all.
TEST(Diagnosis, ProcessesAgreeOnOne) {
  constexpr int kProcesses = 8;
  for (int round = 0; round < 20; ++round) {
    const TemporaryFolder folder;
    std::array<int, 2> gate{};
    ASSERT_EQ(::pipe(gate.data()), 0);
    std::array<pid_t, kProcesses> children{};
    for (int rank = 0; rank < kProcesses; ++rank) {
      children[rank] = ::fork();
      if (children[rank] != 0) continue;
      ::close(gate[1]);
      char opened = 0;
      [[maybe_unused]] const auto end_of_file = ::read(gate[0], &opened, 1);
      const std::string own(10000 + rank, static_cast<char>('a' + rank));
      const RunFailure found = agree_on_diagnosis(folder.path(), {FailureKind::stuck, rank, own});
      ::_exit(std::string(found.what()).size() == 10000U + found.world_rank() ? found.world_rank() : 99);
    }
    ::close(gate[0]);
    ::close(gate[1]);
    const auto result = [](pid_t child) {
      int status = 0;
      ::waitpid(child, &status, 0);
      return WEXITSTATUS(status);
    };
    const int first = result(children[0]);
    EXPECT_LT(first, kProcesses);
    for (int rank = 1; rank < kProcesses; ++rank) EXPECT_EQ(result(children[rank]), first);
    EXPECT_EQ(read_diagnosis(folder.path()).value().world_rank(), first);
    EXPECT_EQ(folder.num_files(), 1);
  }
}

// A process keeps its own failure where there is no folder, and where a file is not a diagnosis.
TEST(Diagnosis, WithoutAFolderTheOwnFailureIsReported) {
  const RunFailure own(FailureKind::lost, 1, "rank 1 died");
  EXPECT_EQ(agree_on_diagnosis("/nowhere", own).world_rank(), 1);
  for (const std::string text :
       {"", "sluice diagnosis 1\n", "sluice diagnosis 1\nstuck\nx\nrank 0", "other\nstuck\n0\n"}) {
    const TemporaryFolder folder;
    std::ofstream(folder.path(kDiagnosisName)) << text;
    EXPECT_FALSE(read_diagnosis(folder.path())) << text;
    EXPECT_EQ(agree_on_diagnosis(folder.path(), own).world_rank(), 1);
  }
}

}  // namespace
}  // namespace sluice::test

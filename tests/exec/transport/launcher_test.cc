// Detection of launchers, and how processes without MPI find each other.

#include "exec/transport/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <latch>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/transport/tcp.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/to_size.h"
#include "tests/support/command.h"
#include "tests/support/errors.h"
#include "tests/support/first_says.h"

namespace sluice::test {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;
using namespace exec;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;

Environment with(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

Variables operator+(Variables one, const Variables& other) {
  one.insert(other.begin(), other.end());
  return one;
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "3"},
                          {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "2"}, {"SLURM_NNODES", "2"}};
const Variables kTorch = {{"RANK", "6"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "2"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "abc"},
                          {"TORCHELASTIC_RESTART_COUNT", "0"}};

std::string refusal(const Variables& variables) {
  return test::error_from([&] { launched_rank(with(variables)); }, "not refused");
}

TEST(Launcher, WithoutLauncherIsOneProcess) {
  const LaunchedRank rank = launched_rank(with({}));
  EXPECT_EQ(rank.launcher, LaunchedRank::none);
  EXPECT_EQ(rank.rank, 0);
  EXPECT_EQ(rank.size, 1);
}

TEST(Launcher, DetectsMpirun) {
  const LaunchedRank open_mpi = launched_rank(with(kOpenMpi));
  EXPECT_EQ(open_mpi.launcher, LaunchedRank::mpirun);
  EXPECT_EQ(open_mpi.rank, 5);
  EXPECT_EQ(open_mpi.size, 8);
  EXPECT_EQ(open_mpi.local_rank, 1);
  EXPECT_EQ(open_mpi.local_size, 4);
  const LaunchedRank mpich =
      launched_rank(with({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}));
  EXPECT_EQ(mpich.launcher, LaunchedRank::mpirun);
  EXPECT_EQ(mpich.rank, 1);
  EXPECT_EQ(mpich.local_rank, 1);
}

TEST(Launcher, DetectsSrun) {
  const LaunchedRank rank = launched_rank(with(kSlurm));
  EXPECT_EQ(rank.launcher, LaunchedRank::srun);
  EXPECT_EQ(rank.rank, 3);
  EXPECT_EQ(rank.size, 16);
  EXPECT_EQ(rank.local_rank, 3);
  EXPECT_EQ(rank.local_size, 0);  // of two nodes
  EXPECT_EQ(rank.run, "slurm-77.2");
  // The step's tasks, where they are fewer than the job's; and Slurm's PMI is no mpirun.
  EXPECT_EQ(launched_rank(with(kSlurm + Variables{{"SLURM_STEP_NUM_TASKS", "4"}})).size, 4);
  EXPECT_EQ(launched_rank(with(kSlurm + Variables{{"PMI_RANK", "3"}, {"PMI_SIZE", "16"}})).launcher,
            LaunchedRank::srun);
}

TEST(Launcher, BatchScriptIsOneProcess) {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(launched_rank(with(batch)).size, 1);
  batch["SLURM_STEP_ID"] = "4294967291";  // the batch step
  EXPECT_EQ(launched_rank(with(batch)).size, 1);
}

TEST(Launcher, DetectsTorchrun) {
  const LaunchedRank rank = launched_rank(with(kTorch));
  EXPECT_EQ(rank.launcher, LaunchedRank::torchrun);
  EXPECT_EQ(rank.rank, 6);
  EXPECT_EQ(rank.local_rank, 2);
  EXPECT_EQ(rank.local_size, 4);
  EXPECT_EQ(rank.run, "torch-abc-0-node1-29500");
  EXPECT_EQ(launched_rank(with({{"RANK", "4"}})).size, 1);  // set by something else
}

TEST(Launcher, InnermostLauncherIsUsed) {
  EXPECT_EQ(launched_rank(with(kOpenMpi + kSlurm)).launcher, LaunchedRank::mpirun);
  EXPECT_EQ(launched_rank(with(kTorch + kSlurm)).launcher, LaunchedRank::torchrun);
}

TEST(Launcher, ContradictionsAreRejected) {
  EXPECT_EQ(refusal(kTorch + kOpenMpi), "torchrun reports rank 6 of 8, but mpirun reports rank 5 of 8");
  Variables copied = kTorch;
  copied.erase("TORCHELASTIC_RUN_ID");
  EXPECT_EQ(refusal(copied + kSlurm), "torchrun reports rank 6 of 8, but srun reports rank 3 of 16");
  EXPECT_EQ(refusal({{"OMPI_COMM_WORLD_RANK", "0"}}),
            "OMPI_COMM_WORLD_RANK is set but OMPI_COMM_WORLD_SIZE is not: expected both");
  EXPECT_EQ(refusal({{"RANK", "8"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "0"}}),
            "RANK: expected a number below 8 (WORLD_SIZE), got 8");
  EXPECT_EQ(refusal({{"RANK", "x"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "0"}}),
            "RANK: expected a number of at least 0, got 'x'");
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "8"}}),
            "RANK and WORLD_SIZE are set but LOCAL_RANK is not: expected all three, as set by torchrun");
  EXPECT_EQ(refusal({{"RANK", "4"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "4"}, {"LOCAL_WORLD_SIZE", "4"}}),
            "LOCAL_RANK: expected a number below 4 (LOCAL_WORLD_SIZE), got 4");
}

TEST(Launcher, VariablesAreListedOnce) {
  EXPECT_THAT(launcher_variables(with({{"RANK", "0"}, {"SLURM_PROCID", "3"}, {"HOME", "/x"}})),
              ElementsAre("SLURM_PROCID=3", "RANK=0"));
}

class Bootstrap : public ::testing::Test {
 protected:
  Bootstrap() {
    if (const char* const variable = std::getenv("TMPDIR")) before_ = variable;
    std::filesystem::create_directory(temporary_);
    ::setenv("TMPDIR", temporary_.c_str(), 1);
  }
  ~Bootstrap() override { before_ ? ::setenv("TMPDIR", before_->c_str(), 1) : ::unsetenv("TMPDIR"); }

  test::TemporaryFolder folder_;
  std::string temporary_ = folder_.path("tmp");

 private:
  std::optional<std::string> before_;
};

TEST_F(Bootstrap, DefaultPathNeedsOneHost) {
  LaunchedRank rank{.launcher = LaunchedRank::torchrun, .size = 4, .local_size = 4, .run = "torch-a/b:1"};
  EXPECT_THAT(bootstrap_path(rank), HasSubstr("/torch-a_b_1"));
  rank.local_size = 2;
  EXPECT_THROW(bootstrap_path(rank), InputError);
  EXPECT_THROW(bootstrap_path({.size = 2, .local_size = 2}), InputError);
}

// Anybody can guess the path: it must not be possible to put a file there.
TEST_F(Bootstrap, DefaultFolderIsPrivate) {
  const LaunchedRank rank{.launcher = LaunchedRank::torchrun, .size = 4, .local_size = 4, .run = "run"};
  const std::string own = std::filesystem::path(bootstrap_path(rank)).parent_path().string();
  EXPECT_EQ(own, temporary_ + "/sluice-" + std::to_string(::geteuid()));
  EXPECT_EQ(std::filesystem::status(own).permissions(), std::filesystem::perms::owner_all);
  EXPECT_EQ(bootstrap_path(rank), own + "/run");
  const auto error = [&] {
    try {
      return bootstrap_path(rank);
    } catch (const InputError& refused) {
      return std::string(refused.what());
    }
  };
  ::chmod(own.c_str(), 0770);
  EXPECT_THAT(error(), HasSubstr(own + ": expected a folder that only user"));
  std::filesystem::remove(own);
  std::filesystem::create_directory(folder_.path("elsewhere"));
  ::chmod(folder_.path("elsewhere").c_str(), 0700);
  std::filesystem::create_symlink(folder_.path("elsewhere"), own);
  EXPECT_THAT(error(), HasSubstr(own + ": expected a folder that only user"));
}

class BootstrapFile : public ::testing::Test {
 protected:
  std::string timeout_of(const std::string& run, std::size_t bytes = 3) {
    FileBootstrap bootstrap(path_, run, 1);
    std::vector<std::byte> read(bytes);
    return test::error_from([&] { bootstrap.broadcast(read, milliseconds(20)); }, "found");
  }
  test::TemporaryFolder folder_;
  std::string path_ = folder_.path("id");
};

TEST_F(BootstrapFile, ReachesAllRanks) {
  std::array<std::byte, 3> sent = {std::byte{0x00}, std::byte{0x7f}, std::byte{0xff}};
  std::vector<std::array<std::byte, 3>> read(3);
  {
    std::vector<std::jthread> threads;  // that wait before the file is there
    for (int rank = 1; rank < 4; ++rank) {
      threads.emplace_back(
          [&, rank] { FileBootstrap(path_, "run 1", rank).broadcast(read[rank - 1], milliseconds(120000)); });
    }
    std::this_thread::sleep_for(milliseconds(5));
    FileBootstrap root(path_, "run 1", 0);
    root.broadcast(sent, milliseconds(0));
    threads.clear();
    EXPECT_EQ(folder_.num_files(), 1);  // no temporary one is left
  }
  for (const auto& each : read) EXPECT_EQ(each, sent);
  EXPECT_EQ(folder_.num_files(), 0);
}

TEST_F(BootstrapFile, FileOfAnotherRunIsIgnored) {
  EXPECT_THAT(timeout_of("run 2"), HasSubstr("rank 1 of run 'run 2' has waited 0.0 s for rank 0: the file does not "
                                             "exist"));
  std::array<std::byte, 3> sent{};
  FileBootstrap old(path_, "run 1", 0);
  old.broadcast(sent, milliseconds(0));
  EXPECT_THAT(timeout_of("run 2"), HasSubstr("the file belongs to run 'run 1'"));
  EXPECT_THAT(timeout_of("run 1", 4), HasSubstr("expected 4 bytes, got 3"));
  EXPECT_EQ(timeout_of("run 1"), "found");
  FileBootstrap root(path_, "run 2", 0);
  root.broadcast(sent, milliseconds(0));
  EXPECT_EQ(timeout_of("run 2"), "found");
}

TEST_F(BootstrapFile, FileOfAnotherUserIsIgnored) {
  std::array<std::byte, 3> sent{};
  FileBootstrap root(path_, "run 1", 0);
  root.broadcast(sent, milliseconds(0));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path_.c_str(), 12345, static_cast<gid_t>(-1)), 0);
    EXPECT_THAT(timeout_of("run 1"), HasSubstr("the file belongs to user 12345"));
  } else {
    path_ = "/etc/passwd";
    EXPECT_THAT(timeout_of("run 1"), HasSubstr("the file belongs to user 0"));
  }
}

TEST_F(BootstrapFile, OtherFilesAreReported) {
  write_file_whole(path_, "something\nelse\n");
  EXPECT_THAT(timeout_of("run 1"), HasSubstr("not a bootstrap file"));
  write_file_whole(path_, "sluice bootstrap 1\nrun 1\n00zz11\n");
  EXPECT_THAT(timeout_of("run 1"), HasSubstr("the file is damaged"));
}

// Control messages over TCP, between ranks that are threads.

// Runs `work` on `ranks` of `size` ranks. Returns the errors, by rank.
std::vector<std::string> on_ranks(int size, const std::function<void(Transport&)>& work, int ranks = 0,
                                  milliseconds patience = milliseconds(60000)) {
  std::vector<std::string> errors(to_size(size));
  FirstSays said;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < (ranks > 0 ? ranks : size); ++rank) {
    threads.emplace_back([&, rank, broadcast = said.to(rank)] {
      try {
        work(*make_tcp_transport(rank, size, broadcast, patience));
      } catch (const std::exception& error) {
        errors[to_size(rank)] = error.what();
      }
    });
  }
  threads.clear();
  return errors;
}

std::vector<std::byte> bytes_of(int rank, std::size_t count) {
  std::vector<std::byte> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i % 251 + to_size(rank));
  return out;
}

TEST(Tcp, GathersAndBroadcastsAlongATree) {
  for (int size = 1; size <= 17; size += size < 9 ? 1 : 4) {
    // The bytes of a rank: none, few, or more than a socket holds.
    const auto count = [](int rank) { return rank % 3 == 0 ? std::size_t{0} : rank % 3 == 1 ? 17 : 3'000'000; };
    const auto errors = on_ranks(size, [&](Transport& transport) {
      for (int round = 0; round < 2; ++round) {
        const auto all = transport.gather(bytes_of(transport.rank(), count(transport.rank())));
        EXPECT_EQ(all.size(), transport.rank() == 0 ? to_size(size) : 0);
        for (std::size_t rank = 0; rank < all.size(); ++rank) {
          EXPECT_TRUE(all[rank] == bytes_of(static_cast<int>(rank), count(static_cast<int>(rank)))) << rank;
        }
        auto told = bytes_of(transport.rank(), 1'000'000);
        transport.broadcast(told);
        EXPECT_TRUE(told == bytes_of(0, told.size()));
        transport.barrier();
      }
    });
    EXPECT_THAT(errors, testing::Each("")) << size;
  }
}

TEST(Tcp, AnyTwoRanksHaveMessages) {
  constexpr int kSize = 5;
  const auto errors = on_ranks(kSize, [&](Transport& transport) {
    const int mine = transport.rank();
    for (int from = 0; from < kSize; ++from) {
      for (int to = 0; to < kSize; ++to) {
        std::vector<std::byte> bytes = bytes_of(mine, 1000);
        if (from != to && mine == from) transport.send(to, bytes);
        if (from != to && mine == to) transport.receive(from, bytes);
        if (mine == to) {
          EXPECT_TRUE(bytes == bytes_of(from, 1000));
        }
      }
    }
    transport.barrier();
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(Tcp, MissingRankIsNamed) {
  const auto errors = on_ranks(
      3, [](Transport&) {}, 2, milliseconds(300));
  EXPECT_THAT(errors[0], HasSubstr("rank 0 has waited 0.3 s for rank 2"));
}

TEST(Tcp, ProcessThatHasEndedIsNamed) {
  const auto errors = on_ranks(2, [](Transport& transport) {
    transport.barrier();
    if (transport.rank() == 0) transport.gather({});
  });
  EXPECT_THAT(errors[0], HasSubstr("from rank 1: its process has ended"));
}

TEST(Tcp, StopEndsAWait) {
  std::latch stopped(1);
  const auto errors = on_ranks(2, [&](Transport& transport) {
    if (transport.rank() == 1) return stopped.wait();
    bool elsewhere = false;
    transport.on_stop([&] { elsewhere = true; });
    {
      std::jthread stops([&] { transport.stop(); });
      std::byte never{};
      EXPECT_THROW(transport.receive(1, {&never, 1}), Stopped);
    }
    EXPECT_TRUE(elsewhere);
    stopped.count_down();
  });
  EXPECT_THAT(errors, testing::Each(""));
}

}  // namespace
}  // namespace sluice::test

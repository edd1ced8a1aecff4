// `sluice run` with MPI processes gives the bits of its threads.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/input/files.h"
#include "model/schedule/family.h"
#include "tests/support/golden.h"
#include "tests/tools/runs.h"

namespace sluice::test {
namespace {

// Weights and Adam moments after three steps depend on every gradient: processes and threads give the same bits.
TEST(RunCommand, GivesTheSameResultOverMpi) {
  if (!has_mpi()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const TemporaryFolder folder;
  const std::string by_threads = folder.path("threads.safetensors");
  const std::string by_processes = folder.path("processes.safetensors");
  struct Cut {
    const char* flags;
    int processes;
    bool experts = false;
  };
  int tried = 0;
  for (const Cut& cut :
       {Cut{"--pp 2 --schedule zb-v", 2}, Cut{"--pp 2 --schedule dualpipe --recompute full", 2},
        Cut{"--pp 2 --schedule interleaved-1f1b --vpp 2", 2}, Cut{"--pp 2 --schedule pipedream-2bw", 2},
        Cut{"--pp 2 --tp 2 --schedule seq1f1b --slice-lengths 11,8,5", 4},
        Cut{"--pp 2 --dp 2 --schedule zb-h1 --overlap-grad-reduce", 4},
        Cut{"--pp 2 --dp 2 --ep 2 --schedule zb-h1 --overlap-grad-reduce", 4, true},
        Cut{"--pp 2 --tp 2 --ep 2 --schedule seq1f1b --slice-lengths 11,8,5 --recompute full", 4, true},
        Cut{"--pp 1 --dp 2 --tp 2 --ep 4", 4, true}, Cut{"--pp 2 --dp 2 --ep 2 --schedule dualpipe", 4, true},
        Cut{"--pp 2 --tp 2 --ep 2 --schedule combined-1f1b --vpp 2 --weave whole-backward", 4, true}}) {
    SCOPED_TRACE(cut.flags);
    if (small_scope() && tried++ % 3 != 1) continue;  // also two with experts
    const std::string arguments = (cut.experts ? kExpertRun : kTinyRun) + "--steps 3 " + cut.flags;
    const std::vector<double> threads = losses_of_run(run_json(arguments + " --checkpoint " + by_threads));
    const CommandResult result = run_processes(cut.processes, arguments + " --json --checkpoint " + by_processes);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json document = json::parse(result.out);
    EXPECT_EQ(document.at("transport"), "mpi");
    EXPECT_EQ(losses_of_run(document), threads);
    EXPECT_EQ(read_file(by_processes), read_file(by_threads));
  }
}

// Experts over two replicas, their tokens exchanged between processes.
TEST(RunCommand, ExpertsOfEveryFamilyGiveTheSameResultOverMpi) {
  if (!has_mpi()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const TemporaryFolder folder;
  const std::string by_threads = folder.path("threads.safetensors");
  const std::string by_processes = folder.path("processes.safetensors");
  int number = 0;
  int tried = 0;
  for (const Family& family : all_families()) {
    if (family.asynchronous || family.vocabulary_barriers > 0 || (small_scope() && number++ % 7 != 4)) continue;
    SCOPED_TRACE(family.name);
    ++tried;
    const std::string arguments =
        fmt::format("{}{}--microbatches {} --steps 1 --pp 2 --dp 2 --ep 2 --schedule {}{}", kShort, kExperts,
                    family.name == "hanayo" ? 2 : 4, family.name, family.fixed_chunks == 0 ? " --vpp 2" : "");
    const std::vector<double> threads = losses_of_run(run_json(arguments + " --checkpoint " + by_threads));
    const CommandResult processes = run_processes(4, arguments + " --json --checkpoint " + by_processes);
    ASSERT_EQ(processes.exit_code, 0) << processes.err;
    EXPECT_EQ(losses_of_run(json::parse(processes.out)), threads);
    EXPECT_EQ(read_file(by_processes), read_file(by_threads));
  }
  EXPECT_GE(tried, small_scope() ? 3 : 20);
}

}  // namespace
}  // namespace sluice::test

// Runs of `sluice run` on a tiny model, with threads and with MPI processes.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/command.h"

namespace sluice::test {

using nlohmann::json;

// A model with steps of milliseconds, on four microbatches of 24 tokens.
inline const std::string kRunModel =
    "run --num-layers 4 --hidden-size 16 --num-attention-heads 2 --vocab-size 64 "
    "--max-position-embeddings 24 "
    "--position-embedding-type learned_absolute --mbs 1 ";
inline const std::string kShort = kRunModel + "--seq-length 24 ";
inline const std::string kTinyRun = kShort + "--microbatches 4 ";
// With 4 experts per layer, of which each token passes 2, and shared ones.
inline const std::string kExperts =
    "--disable-bias-linear --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 20 "
    "--moe-shared-expert-intermediate-size 12 --moe-shared-expert-gate ";
inline const std::string kExpertRun = kTinyRun + kExperts;

inline json run_json(const std::string& arguments) {
  const CommandResult result = run_sluice(words(arguments + " --json"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

inline std::vector<double> losses_of_run(const json& document) {
  std::vector<double> out;
  for (const json& step : document.at("steps")) out.push_back(step.at("loss").get<double>());
  return out;
}

// `before`: words before the command, such as a shell that sets a limit.
inline CommandResult run_processes(int processes, const std::string& arguments,
                                   const std::vector<std::string>& before = {}) {
  std::vector<std::string> all = {"-n", std::to_string(processes)};
  all.insert(all.end(), before.begin(), before.end());
  all.push_back(SLUICE_COMMAND);
  for (const std::string& word : words(arguments)) all.push_back(word);
  return test::run_program(
      SLUICE_MPIEXEC, all,
      {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1",
       "OMPI_MCA_btl_base_warn_component_unused=0", "ASAN_OPTIONS=detect_leaks=0"});
}
inline bool has_mpi() { return !std::string(SLUICE_MPIEXEC).empty(); }

}  // namespace sluice::test

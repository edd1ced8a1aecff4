// `sluice profile` and `sluice validate` on the command line. No test depends on the speed of this machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/trace_check.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kValidatedRun =
    " --num-layers 4 --hidden-size 16 --num-attention-heads 2 --vocab-size 32 --max-position-embeddings 64 "
    "--seq-length 16 --mbs 1 --microbatches 2";

class Validate : public testing::Test {
 protected:
  CommandResult run(const std::string& arguments) const { return run_sluice(words(arguments)); }
  json validated(const std::string& arguments, int exit_code) const {
    const CommandResult result = run("validate --max-wait 100% --json" + kValidatedRun + " " + arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    return json::parse(result.out);
  }
  std::string error_of(const std::string& arguments, int exit_code = 2) const {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }
  // A layer takes 1 s forward and 2 s backward, everything else no time: far from every run.
  std::string made_up_costs() const {
    const json none = {{"tokens", {16}}, {"seconds", {0}}};
    const json nothing = {{"F", none}, {"I", none}, {"W", none}};
    const json second = {{"tokens", {16}}, {"seconds", {1}}};
    const json costs = {
        {"schema", "sluice.cost/1"},
        {"parts",
         {{"embedding", nothing}, {"head", nothing}, {"layer", {{"F", second}, {"I", second}, {"W", second}}}}}};
    write_file_whole(folder_.path("cost.json"), costs.dump());
    return folder_.path("cost.json");
  }

  TemporaryFolder folder_;
};

// Keys that are not given, and nothing else.
TEST_F(Validate, NamesWhatItAssumes) {
  const auto settings = [](const json& document) {
    std::set<std::string> out;
    for (const json& each : document.at("assumptions")) out.insert(each.at("setting"));
    return out;
  };
  const std::string costs = "--steps 1 --tolerance 1000% --cost " + made_up_costs();
  const json document = validated(costs, 0);
  EXPECT_EQ(settings(document), (std::set<std::string>{"/parallelism/pp", "/schedule/name"}));
  EXPECT_EQ(document.at("not_modeled").size(), 2U);
  EXPECT_EQ(settings(validated("--pp 2 --schedule gpipe " + costs, 0)), std::set<std::string>());
  const std::string text = run("validate --max-wait 100%" + kValidatedRun + " " + costs).out;
  EXPECT_THAT(text, HasSubstr("\n  assumed      schedule/name 1f1b, parallelism/pp 2\n  not modeled  waits for cores"));
}

TEST_F(Validate, PredictionMatchesTheCostFile) {
  const json document = validated("--schedule gpipe,zb-h1 --steps 3 --tolerance 1000% --cost " + made_up_costs(), 0);
  EXPECT_EQ(document.at("schema"), "sluice.validation/1");
  EXPECT_EQ(document.at("costs"), folder_.path("cost.json"));
  ASSERT_EQ(document.at("validations").size(), 2U);
  const json& gpipe = document.at("validations").at(0);
  EXPECT_EQ(gpipe.at("schedule"), "gpipe");
  // Two layers per stage, two microbatches on two ranks: (2 + 2 - 1)(2 s + 4 s).
  EXPECT_EQ(gpipe.at("makespan").at("predicted_s"), 18.0);
  EXPECT_EQ(gpipe.at("makespan").at("runs_s").size(), 3U);
  EXPECT_DOUBLE_EQ(gpipe.at("makespan").at("difference"),
                   gpipe.at("makespan").at("measured_s").get<double>() / 18.0 - 1);
  EXPECT_DOUBLE_EQ(gpipe.at("bubble_fraction").at("predicted"), 1 - 24.0 / 36.0);
  ASSERT_EQ(gpipe.at("kinds").at(0).at("kind"), "F");
  EXPECT_EQ(gpipe.at("kinds").at(0).at("count"), 4);
  EXPECT_EQ(gpipe.at("kinds").at(0).at("predicted_s"), 8.0);
  EXPECT_GT(gpipe.at("kinds").at(0).at("measured_s"), 0.0);
  EXPECT_GT(gpipe.at("kinds").at(0).at("op_error"), 0.9);  // measured runs take milliseconds
  ASSERT_EQ(gpipe.at("ranks").size(), 2U);
  EXPECT_EQ(gpipe.at("ranks").at(0).at("busy_s").at("predicted"), 12.0);
  // I and W of 2 s per stage: rank 0 runs F F I W I W, and waits for its first I for rank 1's F and I after its own
  // first F: 2 + 2 + 2; then I W I W: 6 + 8.
  EXPECT_EQ(document.at("validations").at(1).at("makespan").at("predicted_s"), 14.0);
}

// The arena holds static memory, blocks, and received but unread messages; only the last depend on times. Two
// microbatches can be in flight to a rank, each 16 x 16 floats.
TEST_F(Validate, PredictsThePeakMemoryOfTheArena) {
  const json document = validated(
      "--schedule gpipe,1f1b,zb-h1,seq1f1b --slices 2 --steps 2 --tolerance 1000% --cost " + made_up_costs(), 0);
  for (const json& validation : document.at("validations")) {
    for (const json& rank : validation.at("ranks")) {
      const auto predicted = rank.at("predicted_peak_bytes").get<std::int64_t>();
      const auto held = rank.at("held_bytes").get<std::int64_t>();
      EXPECT_LE(std::abs(predicted - held), 2 * 16 * 16 * 4) << validation.at("schedule");
      EXPECT_LE(held, rank.at("arena_bytes").get<std::int64_t>());
      EXPECT_LE(predicted, rank.at("arena_bytes").get<std::int64_t>());
    }
  }
}

TEST_F(Validate, ExitsWith5OutsideTheTolerance) {
  const std::string costs = "--steps 1 --cost " + made_up_costs();
  EXPECT_FALSE(validated(costs + " --tolerance 0", 5).at("validations").at(0).at("within_tolerance").get<bool>());
  EXPECT_TRUE(validated(costs + " --tolerance 1000%", 0).at("validations").at(0).at("within_tolerance").get<bool>());
  // No run takes 18 s minus 1 %, and no error exceeds 100 %.
  validated(costs + " --tolerance 99%", 5);
  validated(costs + " --tolerance 100%", 0);
  EXPECT_EQ(validated(costs + " --tolerance 0.99", 5).at("tolerance"), 0.99);
  EXPECT_EQ(validated(costs + " --tolerance 100%", 0).at("tolerance"), 1.0);
}

TEST_F(Validate, ScheduleFilesHaveTheirNames) {
  const std::string file = folder_.path("mine.json");
  ASSERT_EQ(run_sluice(words("schedule gpipe --pp 2 --microbatches 2 -o " + file)).exit_code, 0);
  const json result = validated("--steps 1 --tolerance 1000% --cost " + made_up_costs() + " --schedule " + file, 0);
  EXPECT_EQ(result.at("validations").at(0).at("schedule"), "mine");
}

// Two processes on one core: each waits for the core while the other computes.
TEST_F(Validate, BusyMachineGivesNoVerdict) {
  if (std::string(SLUICE_MPIEXEC).empty()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  if (::access("/proc/thread-self/schedstat", R_OK) != 0) GTEST_SKIP() << "SKIPPED: this kernel has no schedstat";
  cpu_set_t all, first;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  int core = 0;
  while (!CPU_ISSET(core, &all)) ++core;
  CPU_ZERO(&first);
  CPU_SET(core, &first);
  ASSERT_EQ(::sched_setaffinity(0, sizeof first, &first), 0);
  const auto on_one_core = [](const std::string& flags) {
    return test::run_program(
        SLUICE_MPIEXEC,
        words("-n 2 --bind-to none " SLUICE_COMMAND
              " validate --json --num-layers 2 --hidden-size 128 --num-attention-heads 2 --vocab-size 64 "
              "--max-position-embeddings 64 --seq-length 64 --mbs 2 --microbatches 8 --steps 4 --time-budget 0 "
              "--tolerance 1000000% " +
              flags),
        {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1",
         "OMPI_MCA_btl_base_warn_component_unused=0", "ASAN_OPTIONS=detect_leaks=0"});
  };
  const CommandResult busy = on_one_core("");
  const CommandResult accepted = on_one_core("--max-wait 100%");
  ::sched_setaffinity(0, sizeof all, &all);
  EXPECT_EQ(busy.exit_code, 10) << busy.err;
  EXPECT_THAT(busy.err, HasSubstr("sluice: machine busy: no verdict: ranks waited for cores for more than 2 %"));
  const json validation = json::parse(busy.out).at("validations").at(0);
  EXPECT_TRUE(validation.at("within_tolerance").is_null());
  EXPECT_GT(validation.at("disturbed_runs"), 8);  // of 16
  EXPECT_GT(validation.at("longest_wait_s"), 0.0);
  EXPECT_GT(validation.at("involuntary_switches"), 0);
  EXPECT_EQ(accepted.exit_code, 0) << accepted.err;
  EXPECT_EQ(json::parse(accepted.out).at("validations").at(0).at("disturbed_runs"), 0);
}

TEST_F(Validate, MeasuresFitsPredictsAndRuns) {
  const json document =
      validated("--schedule gpipe,1f1b,seq1f1b,zb-h1 --slices 2 --steps 2 --time-budget 0 --tolerance 100000%", 0);
  EXPECT_EQ(document.at("costs"), "measured");
  EXPECT_EQ(document.at("transport"), "threads");
  ASSERT_EQ(document.at("validations").size(), 4U);
  for (const json& validation : document.at("validations")) {
    EXPECT_GT(validation.at("makespan").at("predicted_s"), 0.0);
    EXPECT_GT(validation.at("makespan").at("measured_s"), 0.0);
    for (const json& kind : validation.at("kinds")) {
      if (kind.at("kind") != "transfer") {
        EXPECT_GT(kind.at("predicted_s"), 0.0) << kind;
      }
    }
  }
  // 2 x 2 x 2 of each kind; a microbatch of two slices is two ops.
  EXPECT_EQ(document.at("validations").at(0).at("kinds").at(0).at("count"), 4);
  EXPECT_EQ(document.at("validations").at(2).at("kinds").at(0).at("count"), 8);
}

TEST_F(Validate, PrintsATableAndATraceOfBothTimelines) {
  const std::string trace = folder_.path("both.json");
  const CommandResult result =
      run("validate --max-wait 100%" + kValidatedRun + " --schedule zb-h1 --steps 2 --time-budget 0 --tolerance " +
          "100000% --trace " + trace);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("medians of 2 runs"));
  EXPECT_THAT(result.out, HasSubstr("\nzb-h1  "));
  EXPECT_THAT(result.out, HasSubstr("\n  W  "));
  EXPECT_THAT(result.out, HasSubstr("\n  rank 1"));
  const std::string text = read_file(trace, 1 << 26);
  EXPECT_THAT(test::check_trace(text), testing::IsEmpty());
  EXPECT_THAT(text, HasSubstr("predicted rank 0"));
  EXPECT_THAT(text, HasSubstr("measured rank 1"));
}

TEST_F(Validate, AcceptsAMeasuredProfile) {
  const std::string profile = folder_.path("profile.json");
  const std::string cost = folder_.path("cost.json");
  const CommandResult measured = run("profile" + kValidatedRun + " --time-budget 0 -o " + profile);
  EXPECT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_THAT(measured.out, HasSubstr("\nlayer "));
  EXPECT_THAT(measured.out, HasSubstr("\noptimizer "));
  const CommandResult fit = run("fit " + profile + " --max-error 100000% -o " + cost);
  EXPECT_EQ(fit.exit_code, 0) << fit.err;
  EXPECT_THAT(fit.out, HasSubstr("link threads: 4 sizes"));
  EXPECT_THAT(fit.out, HasSubstr("all-reduce over 2 ranks: 3 sizes"));
  const json by_profile = validated("--steps 1 --tolerance 100000% --profile " + profile, 0);
  const json by_cost = validated("--steps 1 --tolerance 100000% --cost " + cost, 0);
  const auto predicted = [](const json& of) {
    return of.at("validations").at(0).at("makespan").at("predicted_s").get<double>();
  };
  EXPECT_EQ(predicted(by_profile), predicted(by_cost));
  const CommandResult simulated = run("simulate --json --schedule 1f1b --pp 2 --cost " + cost + kValidatedRun);
  EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
}

TEST_F(Validate, MeasuresTheRequestedSlices) {
  const CommandResult result = run("profile --json" + kValidatedRun +
                                   " --time-budget 0 --tokens 16,5 --contexts 3,11 --schedule seq1f1b "
                                   "--slice-lengths 9,7");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json profile = json::parse(result.out);
  EXPECT_EQ(profile.at("schema"), "sluice.profile/1");
  std::vector<std::pair<int, int>> cells;
  for (const json& sample : profile.at("samples")) {
    if (sample.at("part") == "layer" && sample.at("kind") == "W") {
      cells.emplace_back(sample.at("tokens"), sample.at("context"));
    }
  }
  using Cell = std::pair<int, int>;
  EXPECT_THAT(cells, testing::ElementsAre(Cell{16, 0}, Cell{5, 0}, Cell{5, 3}, Cell{5, 11}, Cell{9, 0}, Cell{7, 0},
                                          Cell{7, 9}));
}

const std::string kExperts =
    " --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 --disable-bias-linear --dp 2 --ep 2";

// Every part of a layer with experts takes 1/4 s forward and, with 1/2 s of weight gradients of attention and experts,
// 1/4 s backward; everything else takes no time.
std::string expert_costs(const TemporaryFolder& folder, int expert_parallel) {
  const auto curve = [](double seconds) { return json{{"tokens", {16}}, {"seconds", {seconds}}}; };
  const json nothing = {{"F", curve(0)}, {"I", curve(0)}, {"W", curve(0)}};
  const json exchange = {{"F", curve(0.25)}, {"I", curve(0.25)}};
  const json compute = {{"F", curve(0.25)}, {"I", curve(0.25)}, {"W", curve(0.5)}};
  const json costs = {{"schema", "sluice.cost/1"},
                      {"expert_parallel", expert_parallel},
                      {"parts",
                       {{"embedding", nothing},
                        {"head", nothing},
                        {"attention", compute},
                        {"dispatch", exchange},
                        {"experts", compute},
                        {"combine", exchange}}}};
  write_file_whole(folder.path("experts.json"), costs.dump());
  return folder.path("experts.json");
}

// Two layers per stage, two microbatches on two ranks: (2 + 2 - 1)(2 s + 4 s).
TEST_F(Validate, PredictsLayersWithExpertsFromTheCostFile) {
  const json document = validated(
      "--schedule gpipe,combined-1f1b --steps 1 --tolerance 1000%" + kExperts + " --cost " + expert_costs(folder_, 2),
      0);
  const json& gpipe = document.at("validations").at(0);
  EXPECT_EQ(gpipe.at("makespan").at("predicted_s"), 18.0);
  ASSERT_EQ(gpipe.at("parts").size(), 2U);
  EXPECT_EQ(gpipe.at("parts").at(0).at("part"), "dispatch");
  // Two ranks, microbatches, layers and passes.
  EXPECT_EQ(gpipe.at("parts").at(0).at("predicted_s"), 16 * 0.25);
  EXPECT_EQ(gpipe.at("parts").at(1).at("part"), "combine");
  EXPECT_EQ(gpipe.at("parts").at(1).at("predicted_s"), 16 * 0.25);
  for (const json& part : gpipe.at("parts")) EXPECT_GT(part.at("measured_s"), 0.0) << part;
  for (const json& rank : gpipe.at("ranks")) {
    EXPECT_EQ(rank.at("exchange").at("seconds").at("predicted"), 16 * 0.25);
    EXPECT_EQ(rank.at("exchange").at("hidden").at("predicted"), 0.0);
    EXPECT_EQ(rank.at("exchange").at("hidden").at("measured"), 0.0);
    EXPECT_GT(rank.at("exchange").at("seconds").at("measured"), 0.0);
  }
  // The last rank of combined-1f1b has joint blocks.
  double hidden = 0;
  for (const json& rank : document.at("validations").at(1).at("ranks")) {
    hidden = std::max(hidden, rank.at("exchange").at("hidden").at("predicted").get<double>());
    EXPECT_LE(rank.at("exchange").at("hidden").at("measured"), 1.0);
  }
  EXPECT_GT(hidden, 0.0);
  EXPECT_LE(hidden, 1.0);
  const json serial = validated("--schedule combined-1f1b --joint-overlap none --steps 1 --tolerance 1000%" + kExperts +
                                    " --cost " + folder_.path("experts.json"),
                                0);
  for (const json& rank : serial.at("validations").at(0).at("ranks")) {
    EXPECT_EQ(rank.at("exchange").at("hidden").at("predicted"), 0.0);
    EXPECT_EQ(rank.at("exchange").at("hidden").at("measured"), 0.0);
  }
}

TEST_F(Validate, MeasuresFitsPredictsAndRunsExperts) {
  const CommandResult measured =
      run("profile" + kValidatedRun + kExperts + " --time-budget 0 -o " + folder_.path("profile.json"));
  EXPECT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_THAT(measured.out, HasSubstr("\ndispatch "));
  const CommandResult fit =
      run("fit --max-error 100000% " + folder_.path("profile.json") + " -o " + folder_.path("cost.json"));
  EXPECT_EQ(fit.exit_code, 0) << fit.err;
  EXPECT_THAT(fit.out, HasSubstr("\ncombine   I "));
  const CommandResult simulated =
      run("simulate --json --schedule 1f1b --pp 2 --cost " + folder_.path("cost.json") + kValidatedRun + kExperts);
  EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
  const json document =
      validated("--schedule 1f1b,zb-h1,combined-1f1b --steps 2 --time-budget 0 --tolerance 100000%" + kExperts, 0);
  for (const json& validation : document.at("validations")) {
    EXPECT_GT(validation.at("makespan").at("predicted_s"), 0.0);
    for (const json& part : validation.at("parts")) {
      EXPECT_GT(part.at("predicted_s"), 0.0) << part;
      EXPECT_GT(part.at("measured_s"), 0.0) << part;
    }
  }
  const CommandResult table = run("validate --max-wait 100% --steps 1 --time-budget 0 --tolerance 100000%" +
                                  kValidatedRun + kExperts + " --schedule combined-1f1b");
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("\n  dispatch, combine"));
  EXPECT_THAT(table.out, HasSubstr(" hidden "));
}

TEST_F(Validate, MeasuresExpertsOverMpi) {
  if (std::string(SLUICE_MPIEXEC).empty()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const CommandResult result = test::run_program(
      SLUICE_MPIEXEC,
      words("-n 2 --bind-to none " SLUICE_COMMAND
            " validate --json --max-wait 100% --steps 1 --time-budget 0 --tokens 16 "
            "--tolerance 1000000% --pp 1 --schedule combined-1f1b" +
            kValidatedRun + kExperts),
      {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1",
       "OMPI_MCA_btl_base_warn_component_unused=0", "ASAN_OPTIONS=detect_leaks=0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("transport"), "mpi");
  const json& validation = document.at("validations").at(0);
  for (const json& part : validation.at("parts")) EXPECT_GT(part.at("predicted_s"), 0.0) << part;
  EXPECT_GT(validation.at("ranks").at(0).at("exchange").at("seconds").at("measured"), 0.0);
}

TEST_F(Validate, ExplainsWhatExpertsDoNotSupport) {
  const std::string tiny = kValidatedRun + kExperts;
  EXPECT_THAT(error_of("validate" + tiny + " --cost " + expert_costs(folder_, 4)),
              HasSubstr("/expert_parallel: times are for expert-parallel size 4, got 2"));
  EXPECT_THAT(error_of("validate" + tiny + " --cost " + made_up_costs()), HasSubstr("times are of dense layers"));
  EXPECT_THAT(error_of("profile" + tiny + " --recompute full"),
              HasSubstr("profiles do not support recomputation of layers with experts"));
}

TEST_F(Validate, ErrorsAreOneLine) {
  const std::string cost = made_up_costs();
  const std::string tiny = "validate" + kValidatedRun;
  EXPECT_THAT(error_of(tiny + " --cost " + cost + " --profile p.json"), HasSubstr("--profile and --cost"));
  EXPECT_THAT(error_of(tiny + " --schedule gpipe,1f1b --trace t.json"), HasSubstr("--trace"));
  EXPECT_THAT(error_of(tiny + " --schedule gpipe,1f1c"), HasSubstr("1f1b"));
  EXPECT_THAT(error_of(tiny + " --schedule gpipe,1f1b --slices 2"), HasSubstr("does not slice sequences"));
  EXPECT_THAT(error_of(tiny + " --profile " + folder_.path("none.json")), HasSubstr("none.json"));
  EXPECT_THAT(error_of("validate --steps 1 --cost " + cost), HasSubstr("times are for microbatches of 1 sequences"));
  EXPECT_THAT(error_of(tiny + " --tolerance -1"), HasSubstr("--tolerance"));
  EXPECT_THAT(error_of(tiny + " --tolerance 10"), HasSubstr("--tolerance: expected a percentage such as 10% or a "
                                                            "fraction such as 0.1, got '10': write 10% or 0.1"));
  EXPECT_THAT(error_of(tiny + " --memory-tolerance nan"), HasSubstr("--memory-tolerance: expected a percentage"));
  EXPECT_THAT(error_of(tiny + " --tolerence 1"), HasSubstr("did you mean '--tolerance'?"));
  EXPECT_THAT(error_of("profile" + kValidatedRun + " --tokens 17"), HasSubstr("at most 16 tokens"));
  EXPECT_THAT(error_of("profile" + kValidatedRun + " --tp 3"), HasSubstr("3"));
}

}  // namespace
}  // namespace sluice::test

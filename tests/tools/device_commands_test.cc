// Commands on devices: with emulated devices instead of GPUs, and without any.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kTiny =
    " --num-layers 2 --hidden-size 16 --num-attention-heads 2 --vocab-size 64 --max-position-embeddings 24 "
    "--position-embedding-type learned_absolute --mbs 1 --seq-length 24 --microbatches 4 ";
const std::string kQuick = " --time-budget 0.1 --tokens 12,24 --contexts 12 ";
const std::string kDevices = " --backend cuda --devices green:2 ";

CommandResult emulated(const std::string& arguments) { return test::run_program(SLUICE_EMULATED, words(arguments)); }

json emulated_json(const std::string& arguments) {
  const CommandResult result = emulated(arguments + " --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

std::vector<double> losses(const json& document) {
  std::vector<double> out;
  for (const json& step : document.at("steps")) out.push_back(step.at("loss").get<double>());
  return out;
}

TEST(DeviceCommands, TrainingMatchesTheCpu) {
  const json cpu = json::parse(test::run_sluice(words("run" + kTiny + "--steps 3 --json")).out);
  for (const std::string schedule : {"1f1b", "seq1f1b --slices 3", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    const json run = emulated_json("run" + kTiny + kDevices + "--steps 3 --schedule " + schedule);
    EXPECT_EQ(run.at("precision"), "bfloat16");
    EXPECT_EQ(run.at("transport"), "inprocess");
    const std::vector<double> expected = losses(cpu);
    const std::vector<double> found = losses(run);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 0.02);
  }
  const json half = emulated_json("run" + kTiny + kDevices + "--steps 3 --precision fp16");
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses(half)[i], losses(cpu)[i], 0.01);
}

// Master weights are float32 on the CPU and on devices.
TEST(DeviceCommands, ResumesBetweenCpuAndDevices) {
  const TemporaryFolder folder;
  const std::string file = folder.path("a.safetensors");
  ASSERT_EQ(emulated("run" + kTiny + kDevices + "--steps 2 --checkpoint " + file).exit_code, 0);
  const json on_device = emulated_json("run" + kTiny + kDevices + "--steps 2 --resume " + file);
  const nlohmann::json cpu = test::json_of(words("run" + kTiny + "--steps 2 --json --resume " + file));
  const json whole = emulated_json("run" + kTiny + kDevices + "--steps 4");
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(losses(on_device)[i], losses(whole)[i + 2]);
    EXPECT_NEAR(losses(cpu)[i], losses(whole)[i + 2], 0.02);
  }
  ASSERT_EQ(test::run_sluice(words("run" + kTiny + "--steps 1 --checkpoint " + file)).exit_code, 0);
  EXPECT_EQ(emulated("run" + kTiny + kDevices + "--steps 1 --resume " + file).exit_code, 0);
}

const std::string kTinyExperts =
    " --num-layers 4 --hidden-size 16 --num-attention-heads 2 --vocab-size 64 --position-embedding-type rope "
    "--disable-bias-linear --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 24 --moe-layer-freq 1 --mbs 1 "
    "--seq-length 24 --microbatches 4 --pp 2 --dp 2 --ep 2 --schedule dualpipe ";

TEST(DeviceCommands, ExpertsTrainAndResumeBetweenCpuAndDevices) {
  const TemporaryFolder folder;
  const std::string file = folder.path("a.safetensors");
  const std::string devices = " --backend cuda --devices green:4 ";
  const json whole = emulated_json("run" + kTinyExperts + devices + "--steps 4");
  const json on_cpu = json::parse(test::run_sluice(words("run" + kTinyExperts + "--steps 4 --json")).out);
  ASSERT_EQ(emulated("run" + kTinyExperts + devices + "--steps 2 --checkpoint " + file).exit_code, 0);
  const json resumed = emulated_json("run" + kTinyExperts + devices + "--steps 2 --resume " + file);
  const nlohmann::json cpu = test::json_of(words("run" + kTinyExperts + "--steps 2 --json --resume " + file));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(losses(whole)[i], losses(on_cpu)[i], 0.02);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(losses(resumed)[i], losses(whole)[i + 2]);
    EXPECT_NEAR(losses(cpu)[i], losses(whole)[i + 2], 0.02);
  }
  ASSERT_EQ(test::run_sluice(words("run" + kTinyExperts + "--steps 1 --checkpoint " + file)).exit_code, 0);
  EXPECT_EQ(emulated("run" + kTinyExperts + devices + "--steps 1 --resume " + file).exit_code, 0);
}

// Times of emulated devices are meaningless; this checks that the commands work together.
TEST(DeviceCommands, ProfileFitAndValidateWorkTogether) {
  const TemporaryFolder folder;
  const std::string profile = folder.path("profile.json");
  const CommandResult measured =
      emulated("profile" + kTiny + kDevices + kQuick + "--schedule seq1f1b --slices 2 -o " + profile);
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_THAT(measured.out, HasSubstr("emulated GPU 0"));
  EXPECT_THAT(measured.out, HasSubstr("bfloat16"));
  const std::string cost = folder.path("cost.json");
  const CommandResult fitted = test::run_sluice(words("fit " + profile + " --max-error 100000% -o " + cost));
  ASSERT_EQ(fitted.exit_code, 0) << fitted.err;
  const CommandResult result = emulated("validate" + kTiny + kDevices +
                                        "--schedule 1f1b,seq1f1b --slices 2 --steps 2 --tolerance 1000000% --max-wait "
                                        "100% --memory-tolerance 5% --json --cost " +
                                        cost);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("transport"), "inprocess");
  EXPECT_EQ(document.at("precision"), "bfloat16");
}

// On an H100 backwards were priced with their recomputation, and the recomputation again.
TEST(DeviceCommands, RecomputationIsMeasuredApart) {
  const TemporaryFolder folder;
  const std::string profile = folder.path("profile.json");
  const CommandResult measured = emulated(
      "profile" + kTiny + kDevices + "--time-budget 0 --tokens 12,24 --contexts 12 --recompute full -o " + profile);
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  std::map<std::string, std::set<std::pair<int, int>>> cells;  // by part: tokens and context
  const json document = json::parse(read_file(profile));
  for (const json& sample : document.at("samples")) {
    cells[sample.at("part")].insert({sample.at("tokens"), sample.value("context", 0)});
  }
  EXPECT_EQ(cells["recompute"], cells["layer"]);
}

TEST(DeviceCommands, ValidateComparesThePartsOfExperts) {
  const json document = emulated_json("validate" + kTinyExperts +
                                      " --backend cuda --devices green:4 --time-budget 0 --tokens 24 --steps 1 "
                                      "--tolerance 1000000% --max-wait 100%");
  const json& validation = document.at("validations").at(0);
  ASSERT_EQ(validation.at("parts").size(), 2U);
  for (const json& part : validation.at("parts")) {
    EXPECT_GT(part.at("predicted_s"), 0.0) << part;
    EXPECT_GT(part.at("measured_s"), 0.0) << part;
  }
  for (const json& rank : validation.at("ranks")) EXPECT_GT(rank.at("exchange").at("seconds").at("measured"), 0.0);
}

TEST(DeviceCommands, FaultsAreReported) {
  const CommandResult stopped =
      emulated("run" + kTiny + kDevices + "--steps 4 --deadline 1 --fault stop:rank=0,op=F,mb=2,step=2");
  EXPECT_EQ(stopped.exit_code, 7) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("F(stage 1, mb 2)"));
  const CommandResult poisoned = emulated("run" + kTiny + kDevices + "--steps 4 --fault nan:rank=1,op=B,mb=1,step=3");
  EXPECT_EQ(poisoned.exit_code, 8) << poisoned.err;
  EXPECT_THAT(poisoned.err, HasSubstr("B(stage 1, mb 1) of step 3 on rank 1"));
}

TEST(DeviceCommands, AttentionByEveryImplementationTrainsTheSame) {
  const auto run = [](const std::string& choice) {
    return losses(emulated_json("run" + kTiny + kDevices + "--steps 2 --attention " + choice));
  };
  const std::vector<double> by_default = losses(emulated_json("run" + kTiny + kDevices + "--steps 2"));
  EXPECT_EQ(run("gemm"), by_default);
  EXPECT_EQ(run("cudnn"), by_default);  // the emulation has no library
}

TEST(DeviceCommands, InvalidFlagsAreReported) {
  const struct {
    std::string arguments;
    const char* message;
  } kWrong[] = {
      {"--backend cuda --devices green:3", "2 pipeline x 1 data x 1 tensor ranks need 2 devices"},
      {"--backend cuda --devices purple:2", "devices: expected gpu, gpu:N, green:N or stream:N"},
      {"--devices green:2", "--devices: needs --backend cuda"},
      {"--device-memory-margin 1GiB", "--device-memory-margin: needs --backend cuda"},
      {"--attention gemm", "--attention: needs --backend cuda"},
      {"--backend cuda --devices green:2 --attention fast", "--attention: expected one of cudnn, gemm, got 'fast'"},
      {"--backend cuda --devices green:2 --device-memory-margin 3mb",
       "--device-memory-margin: expected bytes with a unit, as in 512MiB, got '3mb'"},
      {"--backend cuda --devices green:2 --device-memory-margin -1B", "--device-memory-margin: expected bytes"},
      {"--backend cuda --transport threads", "expected inprocess, nccl or auto"},
      {"--transport inprocess", "needs --backend cuda"},
      {"--backend cuda --devices green:2 --transport nccl", "needs a launcher"},
      {"--backend cuda --devices green:2 --precision float64",
       "--precision: expected bf16 or fp16 with --backend cuda"},
      {"--precision fp16", "--precision: expected float32 or float64 on the CPU"},
      {"--backend cuda --devices green:2 --precision fp16 --schedule pipedream-2bw", "does not compute: use bfloat16"},
  };
  for (const auto& wrong : kWrong) {
    SCOPED_TRACE(wrong.arguments);
    const CommandResult result = emulated("run" + kTiny + "--steps 2 " + wrong.arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(wrong.message));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

// Skipped on a machine with a GPU, where these commands run.
TEST(DeviceCommands, MarginOfTheMemoryIsKept) {
  // An emulated GPU has 1 GiB.
  for (const std::string command : {"run --steps 1", "validate"}) {
    const CommandResult result = emulated(command + kTiny + kDevices + "--device-memory-margin 2GiB");
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_THAT(result.err, HasSubstr("GiB are free, of which 2.00 GiB are kept free (--device-memory-margin)"));
  }
}

TEST(DeviceCommands, MissingDevicesAreReported) {
  const nlohmann::json doctor = test::json_of({"doctor", "--json"});
  if (!doctor.at("devices").empty()) GTEST_SKIP() << "SKIPPED: there is a device here";
  for (const std::string command : {"run", "profile", "validate"}) {
    const CommandResult result = test::run_sluice({command, "--backend", "cuda"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("--backend cuda: "));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

}  // namespace
}  // namespace sluice::test

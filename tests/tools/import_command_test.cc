// Configurations of Megatron-LM in place of scenario files, and `sluice import`.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "import/import.h"
#include "import/megatron_arguments.h"
#include "import/nemo.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "sim/engine/predict.h"
#include "sim/planner/plan_space.h"
#include "tests/support/command.h"
#include "tools/plan/frameworks.h"

namespace sluice::tools {
namespace {

using nlohmann::json;
using test::CommandResult;
using test::run_sluice;
using test::TemporaryFolder;
using test::words;
using ::testing::HasSubstr;

const std::string kLine =
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--vocab-size 51200 --micro-batch-size 1 --bf16 --pipeline-model-parallel-size 4 --global-batch-size 16";

// The iteration time and the memory of the rank that needs most; the error if the scenario is invalid.
std::string outcome_of(const Scenario& scenario) {
  try {
    const Prediction prediction = predict(Setup(scenario));
    return fmt::format("{} ns, {} bytes", prediction.iteration.count(), prediction.fit->needed_bytes);
  } catch (const InputError&) {
    return "invalid";
  }
}

struct RoundTrip {
  const char* name;
  const char* scenario;  // without cluster
  std::int64_t gpus;
};

// A configuration that `plan` finds, and what it prints for Megatron-LM.
struct PrintedPoint {
  Scenario scenario;
  std::string line;
};

json document_of(const RoundTrip& trip) {
  json document = json::parse(trip.scenario);
  document["cluster"] = {{"name", "dgx-h100"}, {"nodes", (trip.gpus + 7) / 8}};
  return document;
}

// Returns some sixty configurations.
std::vector<PrintedPoint> printed_points(const RoundTrip& trip) {
  const Scenario base = scenario_from_json(document_of(trip), "base", "");
  PlanSpace space;
  space.gpus = trip.gpus;
  space.families = {"1f1b", "interleaved-1f1b"};
  space.recompute = {"none", "selective", "full"};
  space.micro_batch = {1, 2};
  if (base.model->has_experts()) space.etp = {1, 2};
  if (!base.training.overlap_grad_reduce) space.overlap_grad_reduce = space.overlap_param_gather = {false, true};
  const std::vector<PlanPoint> points = enumerate(base, space);
  const std::size_t step = std::max<std::size_t>(1, points.size() / 60) | 1;
  std::vector<PrintedPoint> out;
  for (std::size_t i = 0; i < points.size(); i += step) {
    if (!find_framework("megatron")->refusal(base, points[i]).empty()) continue;
    const Scenario scenario = scenario_of(base, space, points[i]);
    out.push_back({scenario, megatron_arguments(scenario)});
  }
  return out;
}

// Expects that what was printed for `scenario`, and imported, is this configuration on `cluster`. Returns its outcome.
std::string expect_read_back(Imported imported, const Scenario& scenario, const json& cluster) {
  EXPECT_TRUE(imported.notes.empty()) << imported.notes.front();
  imported.scenario["cluster"] = cluster;
  const std::string expected = outcome_of(scenario);
  std::string actual;
  try {
    actual = outcome_of(scenario_from_json(imported.scenario, "printed", ""));
  } catch (const InputError& error) {
    actual = expected == "invalid" ? "invalid" : error.what();
  }
  EXPECT_EQ(actual, expected);
  return expected;
}

// What `plan` prints for Megatron-LM is read as the configuration that it was printed for.
void expect_round_trips(const RoundTrip& trip) {
  std::set<std::string> outcomes;
  for (const auto& [scenario, line] : printed_points(trip)) {
    SCOPED_TRACE(line);
    Imported imported = import_megatron_line(line, "line");
    check_complete(imported.scenario, "line", imported);
    imported.scenario["parallelism"]["gpus"] = trip.gpus;
    outcomes.insert(expect_read_back(std::move(imported), scenario, document_of(trip).at("cluster")));
  }
  EXPECT_GT(outcomes.size(), 10U);
}

class PlanToMegatron : public ::testing::TestWithParam<RoundTrip> {};

TEST_P(PlanToMegatron, IsReadBackExactly) { expect_round_trips(GetParam()); }

const RoundTrip kRoundTrips[] = {
    {"Gpt2", R"({"model": "gpt2", "batch": {"global_batch": 32, "sequence_length": 1024}})", 16},
    {"Gpt2WithAllTrainingFlags",
     R"({"model": "gpt2", "batch": {"global_batch": 32, "sequence_length": 1024},
         "parallelism": {"overlap_transfers": false, "overlap_grad_reduce": true, "flash_attention": false, "fused_cross_entropy": true,
                         "cross_entropy_fusion_impl": "native",
                         "transformer_engine": true, "gradient_bytes": 2, "clip_gradients": false,
                         "scatter_gather": false, "recompute_layers": 2, "recompute": "full"}})",
     16},
    {"Llama", R"({"model": "llama3-8b", "batch": {"global_batch": 64, "sequence_length": 16384},
                  "parallelism": {"transformer_engine": true, "cp_comm_type": "a2a"}})",
     64},
    {"LlamaIn8Bits", R"({"model": "llama3-8b", "batch": {"global_batch": 64, "sequence_length": 8192},
                  "parallelism": {"transformer_engine": true, "precision": "fp8-current", "fp8_param_gather": true,
                                  "tp_comm_overlap": true}})",
     64},
    {"Qwen2", R"({"model": "qwen2-7b", "batch": {"global_batch": 32, "sequence_length": 4096}})", 16},
    {"LayersThatDoNotDivide",
     R"({"model": {"num_layers": 30, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 50000,
                   "kv_channels": 128, "max_position_embeddings": 2048},
         "batch": {"global_batch": 32, "sequence_length": 2048}})",
     32},
    {"Mixtral", R"({"model": "mixtral-8x7b", "batch": {"global_batch": 32, "sequence_length": 4096}})", 32},
    {"Qwen3Experts", R"({"model": "qwen3-30b-a3b", "batch": {"global_batch": 32, "sequence_length": 4096}})", 16},
    {"SharedExpertsWithAGate",
     R"({"model": {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 50000,
                   "position_embedding_type": "rope", "disable_bias_linear": true, "swiglu": true,
                   "ffn_hidden_size": 4096, "num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 1024,
                   "moe_shared_expert_intermediate_size": 2048, "moe_shared_expert_gate": true,
                   "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 1]},
         "batch": {"global_batch": 32, "sequence_length": 2048}})",
     16},
    {"DeepSeekV2", R"({"model": "deepseek-v2", "batch": {"global_batch": 64, "sequence_length": 4096},
                       "software": "megatron-lm"})",
     64},
    {"DeepSeekV3WithMultiTokenPrediction",
     R"({"model": "deepseek-v3", "batch": {"global_batch": 64, "sequence_length": 4096}})", 64},
    {"WindowsAndSinks", R"({"model": "gpt-oss-20b", "batch": {"global_batch": 32, "sequence_length": 4096}})", 32},
    {"SparseAttentionWithSharedIndices",
     R"({"model": "glm-5.2", "batch": {"global_batch": 64, "sequence_length": 4096}})", 64},
    {"LayersWithAScan", R"({"model": "qwen3.5-35b-a3b", "batch": {"global_batch": 32, "sequence_length": 4096}})", 32},
    {"PatternOfSingleBlocks",
     R"({"model": "nemotron-3-super", "batch": {"global_batch": 64, "sequence_length": 4096}})", 64},
};

INSTANTIATE_TEST_SUITE_P(Models, PlanToMegatron, ::testing::ValuesIn(kRoundTrips),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Import, RoundTripsHaveAllArgumentsOfAPlan) {
  std::set<std::string> names;
  for (const RoundTrip& trip : kRoundTrips) {
    for (const PrintedPoint& point : printed_points(trip)) {
      for (const std::string& word : words(point.line)) names.insert(word);
    }
  }
  const std::string expected =
      "--context-parallel-size --expert-model-parallel-size --expert-tensor-parallel-size "
      "--pipeline-model-parallel-layout --decoder-first-pipeline-num-layers --decoder-last-pipeline-num-layers "
      "--num-layers-per-virtual-pipeline-stage --no-overlap-p2p-communication --use-tp-pp-dp-mapping "
      "--sequence-parallel --use-distributed-optimizer --recompute-activations --recompute-granularity block "
      "uniform --multi-latent-attention --moe-layer-freq --moe-shared-expert-gate --grad-reduce-in-bf16 "
      "--fp8-format --fp8-recipe --fp8-param-gather --tp-comm-overlap --clip-grad --group-query-attention "
      "--kv-channels --add-qkv-bias --qk-layernorm --mtp-num-layers --overlap-grad-reduce --overlap-param-gather "
      "--window-attn-skip-freq --softmax-type --dsa-indexer-topk-freq --linear-attention-freq --attention-output-gate "
      "--hybrid-layer-pattern --moe-latent-size a2a";
  for (const std::string& name : words(expected)) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

// What `plan` prints for a framework, read by `read`, is the configuration that it was printed for.
void expect_read_back(const char* name, const json& document, std::int64_t gpus, const auto& read) {
  const Framework& framework = *find_framework(name);
  Scenario base = scenario_from_json(document, "base", "");
  PlanSpace space;
  space.gpus = gpus;
  space.micro_batch = {1, 2};
  restrict_to(framework, base, space);
  const std::vector<PlanPoint> points = enumerate(base, space);
  const std::size_t step = std::max<std::size_t>(1, points.size() / 60) | 1;
  std::set<std::string> outcomes;
  for (std::size_t i = 0; i < points.size(); i += step) {
    if (!framework.refusal(base, points[i]).empty()) continue;
    const std::string text = framework.configuration(base, space, points[i]);
    SCOPED_TRACE(text);
    outcomes.insert(expect_read_back(read(text), scenario_of(base, space, points[i]), document["cluster"]));
  }
  EXPECT_GT(outcomes.size(), 10U);
}

// What `plan` prints for Megatron-Bridge, for the same models as for Megatron-LM.
class PlanToBridge : public ::testing::TestWithParam<RoundTrip> {};

TEST_P(PlanToBridge, IsReadBackExactly) {
  const json document = document_of(GetParam());
  const Framework& framework = *find_framework("megatron-bridge");
  std::set<std::string> outcomes;
  for (const auto& [scenario, line] : printed_points(GetParam())) {
    const std::string yaml = bridge_overrides(line, scenario.chunks);
    SCOPED_TRACE(yaml);
    if (!scenario.training.scatter_gather) continue;
    Imported imported = import_text(yaml, "overrides.yaml");
    imported.scenario["parallelism"]["gpus"] = GetParam().gpus;
    outcomes.insert(expect_read_back(std::move(imported), scenario, document["cluster"]));
  }
  const bool refused =
      !framework.refusal(scenario_from_json(document, "base", ""), {.family = &find_family("1f1b")}).empty();
  EXPECT_EQ(outcomes.size() > 10, !refused);
}

INSTANTIATE_TEST_SUITE_P(Models, PlanToBridge, ::testing::ValuesIn(kRoundTrips),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Import, ReadsBackTheTomlOfAPlan) {
  for (const auto& [model, zero] :
       {std::pair("llama3-8b", 0), std::pair("mistral-7b", 3), std::pair("qwen3-30b-a3b", 0)}) {
    expect_read_back("torchtitan",
                     {{"model", model},
                      {"parallelism", {{"zero", zero}}},
                      {"cluster", {{"name", "dgx-h100"}, {"nodes", 1}}},
                      {"batch", {{"global_batch", 32}, {"sequence_length", 4096}}}},
                     8, [](const std::string& toml) { return import_text(toml, "run.toml"); });
  }
}

// The arguments and the JSON of DeepSpeed, on a line and as a file.
TEST(Import, ReadsBackTheArgumentsAndTheJsonOfAPlan) {
  for (const char* scenario :
       {R"({"model": "llama3-8b"})", R"({"model": "gpt2"})",
        R"({"model": "gpt2", "parallelism": {"flash_attention": false, "transformer_engine": true, "gradient_bytes": 2,
                                             "clip_gradients": false, "scatter_gather": false}})",
        R"({"model": {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 50000,
                      "kv_channels": 128, "num_query_groups": 4, "max_position_embeddings": 2048,
                      "disable_bias_linear": true}})"}) {
    json document = json::parse(scenario);
    document["cluster"] = {{"name", "dgx-h100"}, {"nodes", 2}};
    document["batch"] = {{"global_batch", 32}, {"sequence_length", 1024}};
    expect_read_back("deepspeed", document, 16, [](const std::string& text) {
      Imported imported = import_megatron_line(text, "line");
      EXPECT_EQ(import_text(text, "file").scenario, imported.scenario);
      return imported;
    });
  }
}

// The command's stage counts where the file is missing; keys of ZeRO that are not modeled are printed, unless they have
// no effect.
TEST(Import, NamesWhatZeroDoesNotModel) {
  const TemporaryFolder folder;
  const std::string script = folder.path("run.sh");
  std::ofstream(script)
      << "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --zero-stage 2 --deepspeed_config ds.json " << kLine
      << "\n";
  const CommandResult missing = run_sluice({"import", script});
  EXPECT_THAT(missing.err, HasSubstr("--deepspeed-config ds.json: not found, so that its ZeRO stage is assumed to be 2 "
                                     "(--zero-stage)\n"));
  EXPECT_EQ(json::parse(missing.out).at("parallelism").at("zero"), 2);
  std::ofstream(folder.path("ds.json")) << R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
      "mics_shard_size": 4, "zero_hpz_partition_size": 1, "zero_quantized_weights": true, "overlap_comm": false,
      "stage3_param_persistence_threshold": 1e5, "contiguous_gradients": true, "surprise": 1}})";
  const CommandResult read = run_sluice({"import", script});
  EXPECT_THAT(read.err,
              HasSubstr("not modeled, although they change time or memory: zero_optimization.mics_shard_size = "
                        "4, zero_optimization.stage3_param_persistence_threshold = 100000.0, "
                        "zero_optimization.zero_quantized_weights = true\n"));
  EXPECT_THAT(read.err, HasSubstr("unknown keys: zero_optimization.surprise\n"));
}

TEST(Import, ReadsConfigurationsOfDeepSpeed) {
  const TemporaryFolder folder;
  const std::string script = folder.path("run.sh");
  const std::string config = folder.path("ds.json");
  std::ofstream(script) << "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds.json " << kLine
                        << " --clip-grad 1.0\n";
  const CommandResult missing = run_sluice({"import", script});
  EXPECT_EQ(missing.exit_code, 0);
  EXPECT_EQ(missing.err, "sluice: " + script +
                             ": --deepspeed-config ds.json: not found, so that its ZeRO stage is assumed to be 0\n");
  EXPECT_FALSE(json::parse(missing.out).at("parallelism").contains("distributed_optimizer"));
  EXPECT_FALSE(json::parse(missing.out).at("parallelism").at("flash_attention"));
  std::ofstream(config) << R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1,
      "gradient_accumulation_steps": "auto", "bf16": {"enabled": true}, "odd": 1, "sparse_gradients": true,
      "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}})";
  const CommandResult read = run_sluice({"import", script});
  ASSERT_EQ(read.exit_code, 0) << read.err;
  EXPECT_EQ(read.err, "sluice: " + script +
                          ": DeepSpeed rejects ZeRO stage 2 with a pipeline\n"
                          "sluice: " +
                          config +
                          ": not modeled, although they change time or memory: sparse_gradients\n"
                          "sluice: " +
                          config +
                          ": unknown keys: odd\n"
                          "sluice: " +
                          script + ": ds.json: replaces --clip-grad 1.0 by 0\n");
  const json scenario = json::parse(read.out).at("parallelism");
  EXPECT_EQ(scenario.at("zero"), 2);
  EXPECT_FALSE(scenario.at("clip_gradients"));
  EXPECT_EQ(scenario.at("gradient_bytes"), 2);  // bf16 with ZeRO
  std::ofstream(config) << R"({"train_batch_size": 32})";
  EXPECT_EQ(run_sluice({"import", script}).err,
            "sluice: " + script + ": ds.json: sets --global-batch-size to 32, but the command to 16\n");
  std::ofstream(config) << R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}})";
  EXPECT_EQ(
      run_sluice({"import", script}).err,
      "sluice: " + config +
          ": /zero_optimization/offload_param/device: offloading of parameters is not modeled: expected \"none\", got "
          "\"cpu\"\n");
  std::ofstream(config) << R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme"}}})";
  EXPECT_EQ(run_sluice({"import", script}).err,
            "sluice: " + config +
                ": /zero_optimization/offload_optimizer/device: offloading to it is not modeled: expected \"none\" or "
                "\"cpu\", got \"nvme\"\n");
  for (const char* offload :
       {R"("offload_optimizer": {"device": "cpu", "pin_memory": true})", R"("cpu_offload": true)"}) {
    std::ofstream(config) << R"({"zero_optimization": {"stage": 1, )" << offload << "}}";
    const CommandResult offloaded = run_sluice({"import", script});
    EXPECT_EQ(json::parse(offloaded.out).at("parallelism").at("optimizer_cpu_offload"), true) << offloaded.err;
  }
  std::ofstream(config) << R"({"train_batch_size": 32, "zero_optimization": {"stage": 4}})";
  EXPECT_EQ(run_sluice({"import", script}).err,
            "sluice: " + config + ": /zero_optimization/stage: expected a whole number from 0 to 3, got 4\n");
}

TEST(Import, ReadsTorchtitanByContent) {
  const TemporaryFolder folder;
  const std::string file = folder.path("run.toml");
  std::ofstream(file)
      << "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 8\nseq_len = 4096\n"
         "[parallelism]\ndata_parallel_shard_degree = 1\npipeline_parallel_degree = 4\n"
         "tensor_parallel_degree = 2\n[activation_checkpoint]\nmode = \"none\"\n";
  const nlohmann::json simulated = test::json_of({"simulate", "--json", "--cluster", "dgx-h100", file});
  EXPECT_EQ(simulated.at("schedule").at("microbatches"), 8);
  EXPECT_EQ(json::parse(run_sluice({"import", file}).out).at("model"), "llama3-8b");
  std::ofstream(file) << "[model]\nflavor = \"debug\"\n[parallelism]\ndata_parallel_shard_degree = 1\n";
  EXPECT_THAT(run_sluice({"import", file}).err,
              HasSubstr("sluice: " + file +
                        ": line 2: model.flavor: the model 'debug' of llama3 is not known: specify --model, "));
  EXPECT_EQ(run_sluice({"import", file, "--model", "gpt2"}).exit_code, 0);
}

// Other files of the same formats are named by what they look like.
TEST(Import, NamesWhatAFileLooksLike) {
  const TemporaryFolder folder;
  const std::string file = folder.path("run");
  for (const char* command : {"import", "simulate", "run"}) {
    for (const char* toml : {"# a run\n[metrics]\nlog_freq = 1\n", "title = \"a --b\"\n"}) {
      std::ofstream(file) << toml;
      EXPECT_EQ(run_sluice({command, file}).err,
                "sluice: " + file +
                    ": expected a scenario in JSON, or a job configuration of torchtitan, which has a table model, "
                    "training or parallelism, got TOML without them\n");
    }
    for (const char* yaml : {"model: gpt2\nparallelism:\n  pp: 2\n", "---\n- 1\n", "model:\n  args: a --b\n"}) {
      std::ofstream(file) << yaml;
      EXPECT_EQ(run_sluice({command, file}).err,
                "sluice: " + file +
                    ": expected a scenario in JSON, or a configuration of NeMo or Megatron-Bridge, which has sections "
                    "model, and trainer or train, got YAML without them\n");
    }
  }
  for (const char* other : {"nonsense", "{\"schedule\": \"1f1b\"", "{\"a\" = 1}", "[1, 2"}) {
    std::ofstream(file) << other;
    EXPECT_THAT(run_sluice({"simulate", file}).err, HasSubstr("not JSON"));
  }
}

// The line that `plan` prints, word for word, gives the printed iteration.
TEST(Import, PlanPrintsALineThatSimulateReads) {
  const std::string model = "--model llama3-8b --cluster dgx-h100 --gpus 16 --gbs 64 --seq-length 8192 ";
  const json document = test::json_of(words("plan " + model + "--schedule megatron --tp 2 --pp 4 --top 1 --json"));
  const json& best = document.at("ranking").at(document.at("megatron").at("place").get<std::size_t>());
  const std::string line = document.at("megatron").at("arguments");
  const CommandResult result =
      run_sluice({"simulate", "--json", "--cluster", "dgx-h100", "--gpus", "16", "--megatron-args", line});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(json::parse(result.out).at("makespan_s"), best.at("makespan_s"));
}

// run, profile and validate take the flags that simulate and plan take.
TEST(Import, RunsReadConfigurationsOfFrameworks) {
  const std::string line =
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
      "--vocab-size 256 --micro-batch-size 1 --bf16 --pipeline-model-parallel-size 2 --global-batch-size 4 "
      "--num-virtual-stages-per-pipeline-rank 2";
  const json schedule = test::json_of({"run", "--json", "--steps", "1", "--megatron-args", line}).at("schedule");
  EXPECT_EQ(schedule.at("family"), "interleaved-1f1b");
  EXPECT_EQ(schedule.at("chunks"), 2);
  EXPECT_EQ(schedule.at("microbatches"), 4);
  EXPECT_EQ(run_sluice({"run", "--megatron-args", line + " --context-parallel-size 2"}).err,
            "sluice: --megatron-args: --context-parallel-size: runs do not support it: expected 1, got 2\n");
  EXPECT_EQ(run_sluice({"run", "--megatron-args", line + " --fp8-format hybrid"}).err,
            "sluice: --megatron-args: --fp8-format: runs do not support it: expected \"bf16\", got \"fp8\"\n");
}

TEST(Import, FlagsOverrideArguments) {
  const auto simulate = [](const std::string& flags) {
    std::vector<std::string> all = words("simulate --json --cluster dgx-h100 " + flags);
    all.insert(all.end(), {"--megatron-args", kLine + " --use-sharp --surprising 1"});
    return run_sluice(all);
  };
  const CommandResult plain = simulate("--gpus 8");
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(plain.err,
            "sluice: --megatron-args: not modeled, although they change time or memory: --use-sharp\n"
            "sluice: --megatron-args: unknown arguments: --surprising\n");
  EXPECT_EQ(json::parse(plain.out).at("schedule").at("microbatches"), 8);
  EXPECT_EQ(json::parse(simulate("--nodes 1").out).at("schedule").at("microbatches"), 8);
  EXPECT_EQ(json::parse(simulate("--dp 4 --gbs 32 --pp 2").out).at("schedule").at("ranks"), 2);
  const CommandResult unknown = simulate("");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.err,
            "sluice: --megatron-args: the number of GPUs is not known, which the launcher sets: specify --gpus, --dp, "
            "or --cluster and --nodes\n");
  EXPECT_EQ(simulate("--gpus 6").err,
            "sluice: --megatron-args: --pipeline-model-parallel-size: expected a divisor of the 6 GPUs, got 4\n");
  EXPECT_THAT(
      simulate("--gpus 12").err,
      HasSubstr("--megatron-args: --global-batch-size: expected a multiple of micro_batch x dp = 1 x 3, got 16"));
  EXPECT_THAT(simulate("scenario.json").err, HasSubstr("scenario excludes --megatron-args"));
}

TEST(Import, WritesScenariosOfScripts) {
  const TemporaryFolder folder;
  const std::string script = folder.path("run.sh");
  std::ofstream(script) << "#!/bin/bash\nARGS=(" << kLine
                        << ")\ntorchrun --nproc-per-node 8 pretrain_gpt.py ${ARGS[@]}\n";
  const std::string written = folder.path("scenario.json");
  const CommandResult result = run_sluice({"import", script, "--cluster", "dgx-h100", "-o", written});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out + result.err, "");
  const json from_scenario = json::parse(run_sluice({"simulate", "--json", written}).out);
  const json from_script = json::parse(run_sluice({"simulate", "--json", script, "--cluster", "dgx-h100"}).out);
  EXPECT_EQ(from_scenario, from_script);
  EXPECT_EQ(json::parse(run_sluice({"import", script}).out).at("parallelism").at("gpus"), 8);
  EXPECT_EQ(
      run_sluice({"import", written}).err,
      "sluice: " + written +
          ": expected a script that starts Megatron-LM, its printed arguments, a TOML file of torchtitan, or a YAML "
          "file of NeMo or Megatron-Bridge\n");
  EXPECT_EQ(run_sluice({"import"}).err, "sluice: import: expected a file or --megatron-args\n");
  const CommandResult plan = run_sluice(words("plan --cluster dgx-h100 --schedule 1f1b --json " + script));
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(plan.err, "sluice: " + script + ": plan ignores /schedule/name, /parallelism/pp\n");
  std::ofstream(script) << "#!/bin/bash\nif true; then N=2; fi\ntorchrun a.py --num-layers $N\n";
  EXPECT_EQ(run_sluice({"simulate", script}).err,
            "sluice: " + script +
                ": line 3: $N depends on 'if' in line 2, which only a shell can follow: 'sluice-args " + "bash " +
                script + " > args.txt' writes the arguments of the run, and sluice reads args.txt\n");
  const std::string report = folder.path("report.html");
  EXPECT_EQ(
      run_sluice({"simulate", "--cluster", "dgx-h100", "--gpus", "8", "--report", report, "--megatron-args", kLine})
          .err,
      "");
}

// Variables that the script does not set may hold any arguments.
TEST(Import, NamesWhatOnlyTheShellKnows) {
  const TemporaryFolder folder;
  const std::string script = folder.path("run.sh");
  write_file_whole(script, "torchrun --nproc_per_node 8 pretrain_gpt.py $FIRST " + kLine +
                               " --save $FOLDER \\\n  $EXTRA ${ARGS[@]} --swiglu $(cat more.txt)\n");
  const CommandResult result = run_sluice({"simulate", script, "--cluster", "dgx-h100"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("only the shell knows, so that arguments in them are missing: $FIRST (line 1), "
                                    "$EXTRA (line 2), ${ARGS[@]} (line 2), $(cat more.txt) (line 2)\n"));
  const CommandResult fp8 = run_sluice({"simulate", "--cluster", "dgx-h100", "--gpus", "4", "--megatron-args",
                                        kLine + " --fp8-hybrid --yaml-cfg x.yaml"});
  EXPECT_THAT(fp8.err, HasSubstr("not modeled, although they change time or memory: --fp8-hybrid, --yaml-cfg x.yaml"));
}

TEST(Import, LogsWithArgumentsNeedNoScenario) {
  const TemporaryFolder folder;
  const std::string log = folder.path("run.log");
  std::ofstream(log) << "------------------------ arguments ------------------------\n"
                        "  bf16 ................ True\n"
                        "  global_batch_size ... 16\n"
                        "  hidden_size ......... 1024\n"
                        "  max_position_embeddings ... 2048\n"
                        "  micro_batch_size .... 1\n"
                        "  num_attention_heads . 16\n"
                        "  num_attention_heads ... 16\n"
                        "  num_layers .......... 24\n"
                        "  pipeline_model_parallel_size ... 4\n"
                        "  seq_length .......... 2048\n"
                        "  world_size .......... 8\n"
                        "-------------------- end of arguments ---------------------\n"
                        " > padded vocab (size: 51200) with 0 dummy tokens (new size: 51200)\n"
                        " iteration 1/3 | elapsed time per iteration (ms): 900.0 |\n"
                        " iteration 2/3 | elapsed time per iteration (ms): 800.0 |\n"
                        " iteration 3/3 | elapsed time per iteration (ms): 700.0 |\n";
  const nlohmann::json result = test::json_of({"calibrate", log, "--cluster", "dgx-h100", "--fit", "scale", "--json"});
  const nlohmann::json simulated = test::json_of({"simulate", "--json", log, "--cluster", "dgx-h100"});
  EXPECT_NEAR(result.at("scale").get<double>(), 0.7 / simulated.at("makespan_s").get<double>(), 1e-6);
  EXPECT_THAT(run_sluice({"calibrate", log}).err, HasSubstr("/cluster"));
}

}  // namespace
}  // namespace sluice::tools

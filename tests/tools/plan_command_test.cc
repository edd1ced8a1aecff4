// `sluice plan` on the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kExamples = SLUICE_SOURCE_DIR "/examples/";
const std::string kLlama =
    "plan --model " + kExamples + "models/llama3-8b/config.json --cluster dgx-h100 --gbs 64 --seq-length 8192 ";

json without_seconds(const CommandResult& result) {
  json document = json::parse(result.out);
  document.erase("seconds");
  return document;
}

TEST(PlanCommand, RanksConfigurationsThatFit) {
  const TemporaryFolder folder;
  const CommandResult result =
      run_sluice(words(kLlama + "--schedule 1f1b,zb-v,seq1f1b --json --csv " + folder.path("all.csv")));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("schema"), "sluice.plan/1");
  const json& ranking = document.at("ranking");
  ASSERT_GT(ranking.size(), 10U);
  for (std::size_t i = 0; i < ranking.size(); ++i) {
    const json& row = ranking[i];
    int gpus = 1;
    for (const char* size : {"tp", "cp", "pp", "dp"}) gpus *= row.at(size).get<int>();
    EXPECT_EQ(gpus, 8);
    EXPECT_LE(row.at("needed_memory_bytes"), document.at("capacity_bytes"));
    const json& before = ranking[i > 0 ? i - 1 : 0];
    const bool marginal = row.at("within_memory_margin");
    EXPECT_EQ(marginal,
              row.at("needed_memory_bytes").get<double>() > 0.94 * document.at("capacity_bytes").get<double>());
    EXPECT_TRUE(marginal || !before.at("within_memory_margin"));
    EXPECT_TRUE(marginal != before.at("within_memory_margin") || row.at("iteration_s") >= before.at("iteration_s"));
  }
  EXPECT_FALSE(ranking[0].at("within_memory_margin"));
  // Without a margin the fastest is first, which is the first of the Pareto front. (Partitions are searched for the
  // first of each ranking only.)
  const std::string even = kLlama + "--schedule 1f1b,zb-v,seq1f1b --even-stages --json";
  const json with = json::parse(run_sluice(words(even)).out);
  const json without = json::parse(run_sluice(words(even + " --memory-margin 0%")).out);
  EXPECT_EQ(without.at("pareto").front(), 0);
  EXPECT_EQ(with.at("ranking")[with.at("pareto").front().get<std::size_t>()].at("iteration_s"),
            without.at("ranking")[0].at("iteration_s"));
  EXPECT_TRUE(ranking[0].at("within_model_error").get<bool>());
  const json& counts = document.at("counts");
  const int sum = counts.at("refused").get<int>() + counts.at("do_not_fit").get<int>() +
                  counts.at("certainly_worse").get<int>() + counts.at("simulated").get<int>();
  // Simulated configurations that do not fit are counted in both.
  EXPECT_GE(sum, counts.at("evaluated").get<int>());
  EXPECT_EQ(ranking.size() + document.at("others").size(), counts.at("evaluated").get<std::size_t>());
  EXPECT_EQ(document.at("others_left_out"), 0);
  for (const json& other : document.at("others")) {
    EXPECT_NE(other.at("status"), "simulated");
    EXPECT_EQ(other.contains("reason"), other.at("status") == "refused");
  }
  // The table has one row per configuration, with as many cells as the header.
  std::istringstream table(read_file(folder.path("all.csv")));
  std::string line;
  int rows = -1;
  while (std::getline(table, line)) ++rows;
  EXPECT_EQ(rows, counts.at("evaluated").get<int>());
}

// Gradient accumulation without a pipeline, which holds one microbatch at a time.
TEST(PlanCommand, ListsTheClosestOfManyConfigurations) {
  const CommandResult result =
      run_sluice(words("plan " SLUICE_SOURCE_DIR "/examples/gpt3-175b-a100.json --schedule megatron --json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  const json& counts = document.at("counts");
  const auto left_out = document.at("others_left_out").get<int>();
  EXPECT_EQ(document.at("others").size(), 10'000);
  EXPECT_EQ(static_cast<int>(document.at("ranking").size()) + 10'000 + left_out, counts.at("evaluated"));
  const auto listed = [&](const char* status) {
    return std::count_if(document.at("others").begin(), document.at("others").end(),
                         [&](const json& other) { return other.at("status") == status; });
  };
  EXPECT_EQ(listed("bounded"), counts.at("certainly_worse").get<int>());
  EXPECT_EQ(listed("refused"), 0);  // further away than what does not fit
}

TEST(PlanCommand, OneRankTriesAllFamilies) {
  const json document = test::json_of(
      words("plan --model " + kExamples +
            "models/llama3-8b/config.json --cluster dgx-h100 --gpus 8 --gbs 256 --seq-length 8192 --pp 1 --json"));
  const json& ranking = document.at("ranking");
  EXPECT_NEAR(ranking.at(0).at("iteration_s").get<double>(), 26.53, 0.01);
  EXPECT_EQ(ranking.at(document.at("megatron").at("place").get<std::size_t>()).at("schedule"), "1f1b");
}

TEST(PlanCommand, SearchesExpertsAndContext) {
  const nlohmann::json experts = test::json_of(
      words("plan --model deepseek-v3 --cluster dgx-h100 --gpus 512 --gbs 2048 --seq-length 4096 --tp 4 --pp 16 "
            "--mbs 1 --schedule zb-v --recompute none --even-stages --json"));
  EXPECT_GT(experts.at("ranking").at(0).at("ep"), 1);
  const std::string context = test::output_of(words(kLlama + "--cp 1,2 --schedule 1f1b --csv /dev/stdout"));
  for (const char* cell : {",1f1b,2,1,", ",1f1b,2,2,"}) EXPECT_NE(context.find(cell), std::string::npos) << cell;
}

// As in Megatron-LM: transfers of interleaved stages overlap unless a flag excludes it, and others block.
TEST(PlanCommand, FollowsMegatronsTransfers) {
  const std::string base =
      "plan --model llama3-8b --cluster dgx-h100 --gpus 8 --gbs 32 --seq-length 4096 --tp 2 --mbs 1 --pp 2,4 "
      "--recompute none --json ";
  const auto rows_of = [&](const std::string& flags) {
    const bool any = flags.find("--runs-on") != std::string::npos;
    return test::json_of(words(base + flags + (any ? "" : " --runs-on megatron"))).at("ranking");
  };
  int on_two_ranks = 0;
  for (const json& row : rows_of("")) {
    const bool interleaved = row.at("vpp") > 1;
    EXPECT_EQ(row.at("assumptions"), json({interleaved ? "sends overlap" : "sends block"})) << row;
    const std::string flags = row.at("flags");
    EXPECT_EQ(flags.find("--overlap-p2p-communication") != std::string::npos, interleaved) << flags;
    on_two_ranks += interleaved && row.at("pp") == 2 ? 1 : 0;
  }
  EXPECT_GT(on_two_ranks, 0);
  for (const json& row : rows_of("--runs-on any --schedule interleaved-1f1b,interleaved-zb,1f1b")) {
    const bool overlaps = row.at("schedule") == "interleaved-1f1b";
    EXPECT_EQ(row.at("assumptions"), json({overlaps ? "sends overlap" : "sends block"})) << row;
    EXPECT_EQ(row.at("runs_on").dump().find("megatron") == std::string::npos, row.at("schedule") == "interleaved-zb");
  }
  for (const json& row : rows_of("--overlap-p2p-communication=false")) {
    EXPECT_EQ(row.at("assumptions"), json({"sends block"}));
    EXPECT_TRUE(row.at("vpp") == 1 || row.at("pp") > 2) << row;
  }
  for (const json& row : rows_of("--overlap-p2p-communication")) {
    EXPECT_EQ(row.at("assumptions"), json({row.at("vpp") > 1 ? "sends overlap" : "sends block"}));
  }
}

TEST(PlanCommand, SearchesOverlapsAndPartsOfExperts) {
  const nlohmann::json result = test::json_of(
      words("plan --model mixtral-8x7b --cluster dgx-h100 --gpus 64 --gbs 256 --seq-length 4096 --tp 2 --pp 4 --mbs 1 "
            "--schedule interleaved-1f1b --vpp 2 --recompute none --ep 4 --etp 1,2 --use-distributed-optimizer yes "
            "--overlap-grad-reduce yes,no --overlap-param-gather yes,no --even-stages --all --runs-on any --json"));
  std::map<std::tuple<int, bool, bool>, double> times;
  const json document = result;
  for (const json& row : document.at("ranking")) {
    const std::tuple key(row.at("etp").get<int>(), row.at("overlap_grad_reduce").get<bool>(),
                         row.at("overlap_param_gather").get<bool>());
    times.try_emplace(key, row.at("iteration_s").get<double>());
    const std::string assumptions = row.at("assumptions").dump();
    EXPECT_EQ(assumptions.find("gradient reduction overlaps") != std::string::npos, std::get<1>(key));
    EXPECT_EQ(assumptions.find("parameter gather overlaps") != std::string::npos, std::get<2>(key));
  }
  ASSERT_EQ(times.size(), 6U);
  for (const int etp : {1, 2}) {
    EXPECT_LT(times.at({etp, true, false}), times.at({etp, false, false}));
    EXPECT_NE(times.at({etp, true, true}), times.at({etp, true, false}));
  }
}

// Stages that Megatron-LM cannot describe by numbers are printed as its layout, which `simulate` reads.
TEST(PlanCommand, PrintsLayoutsForMegatron) {
  const std::string base =
      "--num-layers 30 --hidden-size 2048 --num-attention-heads 16 --vocab-size 51200 --max-position-embeddings 2048 "
      "--cluster dgx-h100 --gbs 64 --seq-length 2048 ";
  const CommandResult result =
      run_sluice(words("plan " + base + "--tp 2 --pp 4 --vpp 4 --mbs 1 --schedule megatron --even-stages --json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  const std::string arguments = document.at("megatron").at("arguments");
  const std::string layout = "--pipeline-model-parallel-layout 'Et|(t*2|)*14tL'";
  EXPECT_NE(arguments.find(layout), std::string::npos) << arguments;
  const json& best = document.at("ranking").at(document.at("megatron").at("place").get<std::size_t>());
  std::vector<std::string> flags = words("simulate --json " + base + best.at("flags").get<std::string>());
  flags.insert(flags.end(), {"--pipeline-model-parallel-layout", "Et|(t*2|)*14tL"});
  const nlohmann::json simulated = test::json_of(flags);
  EXPECT_EQ(simulated.at("makespan_s"), best.at("makespan_s"));
  flags.back() = "Et|(t*2|)*14t*2L";
  EXPECT_EQ(run_sluice(flags).err,
            "sluice: --pipeline-model-parallel-layout: expected the model's 30 layers, not 31, got "
            "\"Et|(t*2|)*14t*2L\"\n");
}

// With a framework, all rows are configurations that it runs, and the first is printed for it in full.
TEST(PlanCommand, RanksOnlyWhatTheFrameworkRuns) {
  const std::string base = kLlama + "--gpus 8 --json --all --top 5 --mbs 1,2 --recompute none ";
  const auto schedules_of = [&](const std::string& flags) {
    const json document = test::json_of(words(base + flags));
    std::set<std::string> names;
    for (const char* rows : {"ranking", "others"}) {
      for (const json& row : document.at(rows)) {
        names.insert(row.at("schedule"));
        EXPECT_EQ(row.at("slices"), 1);
        if (document.at("runs_on") == "megatron") {
          EXPECT_TRUE(row.at("vpp") == 1 || row.at("pp") > 1) << row;
        }
        if (document.at("runs_on") == "torchtitan") {
          EXPECT_TRUE(row.at("dp") == 1 || (row.at("tp") == 1 && row.at("pp") == 1)) << row;
        }
      }
    }
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(schedules_of("--runs-on megatron"), (Names{"1f1b", "interleaved-1f1b"}));
  EXPECT_EQ(schedules_of("--schedule megatron"), (Names{"1f1b", "interleaved-1f1b"}));
  EXPECT_EQ(schedules_of("--runs-on deepspeed"), (Names{"1f1b"}));
  EXPECT_EQ(schedules_of("--runs-on torchtitan"),
            (Names{"gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-v", "interleaved-zb", "dualpipe-v"}));
  EXPECT_EQ(schedules_of("--runs-on torchtitan --schedule zb-v"), (Names{"zb-v"}));
}

TEST(PlanCommand, PrintsTheConfigurationOfTheFramework) {
  const std::string base = kLlama + "--gpus 8 --top 1 --mbs 1 --recompute full ";
  const std::string megatron = run_sluice(words(base + "--schedule megatron")).out;
  EXPECT_NE(megatron.find("run #1 with Megatron-LM:  --tensor-model-parallel-size "), std::string::npos) << megatron;
  EXPECT_EQ(megatron.find("does not support"), std::string::npos);
  const std::string torchtitan =
      run_sluice(words(base + "--runs-on torchtitan --schedule interleaved-1f1b --pp 4 --vpp 2 --even-stages")).out;
  EXPECT_NE(torchtitan.find("run #1 with torchtitan:\n"
                            "[model]\nname = \"llama3\"\nflavor = \"8B\"\n\n"
                            "[training]\nlocal_batch_size = 64\nglobal_batch_size = 64\nseq_len = 8192\n\n"
                            "[parallelism]\ndata_parallel_replicate_degree = 1\ndata_parallel_shard_degree = 1\n"
                            "tensor_parallel_degree = 2\ncontext_parallel_degree = 1\npipeline_parallel_degree = 4\n"
                            "pipeline_parallel_schedule = \"Interleaved1F1B\"\n"
                            "pipeline_parallel_microbatch_size = 1\npipeline_parallel_layers_per_stage = 4\n"
                            "pipeline_parallel_first_stage_less_layers = 0\n"
                            "pipeline_parallel_last_stage_less_layers = 0\n\n"
                            "[activation_checkpoint]\nmode = \"full\"\n"),
            std::string::npos)
      << torchtitan;
  const std::string deepspeed = run_sluice(words(base + "--runs-on deepspeed --pp 4 --tp 1")).out;
  EXPECT_NE(deepspeed.find("--checkpoint-activations"), std::string::npos) << deepspeed;
  EXPECT_NE(deepspeed.find("\"gradient_accumulation_steps\": 32,"), std::string::npos);
}

// The flags of a configuration do not contradict those of the plan.
TEST(PlanCommand, PrintsOneZeroStage) {
  const std::string out =
      run_sluice(words(kLlama +
                       "--gpus 8 --top 1 --mbs 1 --recompute full --schedule 1f1b --pp 4 --tp 1 --zero-stage 1 "
                       "--show 1 --use-distributed-optimizer no"))
          .out;
  EXPECT_THAT(out, testing::HasSubstr(" --zero-stage 0"));
  EXPECT_THAT(out, testing::Not(testing::HasSubstr("--use-distributed-optimizer=false")));
}

// The printed flags of `sluice run` train the model.
TEST(PlanCommand, PrintsFlagsThatRun) {
  const nlohmann::json plan = test::json_of(
      words("plan --num-layers 4 --hidden-size 64 --num-attention-heads 4 --num-query-groups 2 --ffn-hidden-size 96 "
            "--vocab-size 128 --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear "
            "--untie-embeddings-and-output-weights --seq-length 32 --gbs 8 "
            "--cluster dgx-h100 --gpus 2 --pp 2 --schedule interleaved-1f1b --vpp 2 --runs-on sluice --json"));
  const std::string flags = plan.at("configuration");
  const CommandResult run = run_sluice(words(flags + " --steps 1 --json"));
  EXPECT_EQ(run.exit_code, 0) << flags << run.err;
}

TEST(PlanCommand, RefusesByNameWhatTheFrameworkDoesNotRun) {
  const auto error = [](const std::string& flags, const std::string& model = "llama3-8b") {
    const CommandResult result = run_sluice(
        words("plan --cluster dgx-h100 --gpus 8 --gbs 64 --seq-length 1024 --model " + model + " --runs-on " + flags));
    EXPECT_EQ(result.exit_code, 2) << flags;
    return result.err;
  };
  EXPECT_EQ(
      error("megatron --schedule zb-v"),
      "sluice: --runs-on megatron: --schedule zb-v: its schedules are 1f1b, interleaved-1f1b and combined-1f1b\n");
  EXPECT_EQ(error("torchtitan --schedule zb-v --use-distributed-optimizer yes,no"),
            "sluice: --runs-on torchtitan: --use-distributed-optimizer yes: it has no distributed optimizer besides "
            "FSDP (--zero-stage 3)\n");
  EXPECT_EQ(
      error("torchtitan --cp 1,2"),
      "sluice: --runs-on torchtitan: --cp 2: it shards parameters over context-parallel ranks (--zero-stage 3)\n");
  EXPECT_EQ(error("torchtitan --tp 2 --pp 2"),
            "sluice: plan: no requested configuration can run: --runs-on torchtitan: with tensor or pipeline "
            "parallelism it shards parameters over replicas (--zero-stage 3)\n");
  EXPECT_EQ(error("megatron --zero-stage 3"),
            "sluice: --runs-on megatron: the scenario: its arguments are printed for the ZeRO stages 0 and 1 only\n");
  EXPECT_EQ(error("deepspeed --zero-stage 2"),
            "sluice: --runs-on deepspeed: the scenario: its pipeline engine has the ZeRO stages 0 and 1\n");
  EXPECT_EQ(error("torchtitan --zero-stage 3 --use-distributed-optimizer no"),
            "sluice: plan: --use-distributed-optimizer excludes --zero-stage 3, which shards optimizer states too\n");
  EXPECT_EQ(error("torchtitan", "gpt2"),
            "sluice: --runs-on torchtitan: the scenario: its models have rotary embeddings, RMSNorm, SwiGLU and no "
            "biases\n");
  // What is printed for other frameworks has no precision.
  EXPECT_EQ(error("torchtitan --precision fp8"),
            "sluice: --runs-on torchtitan: the scenario: its 8-bit linear layers are not modeled\n");
  EXPECT_EQ(error("deepspeed --precision fp8-current"),
            "sluice: --runs-on deepspeed: the scenario: its GEMMs have 16 bits\n");
  EXPECT_EQ(error("sluice --tp-comm-overlap"),
            "sluice: --runs-on sluice: the scenario: runs do not overlap tensor-parallel communication\n");
  EXPECT_EQ(error("deepspeed --schedule gpipe"),
            "sluice: --runs-on deepspeed: --schedule gpipe: the schedule of its pipeline engine is 1f1b\n");
  EXPECT_EQ(error("deepspeed --recompute selective"),
            "sluice: --runs-on deepspeed: --recompute selective: it does not recompute attention alone\n");
  EXPECT_EQ(
      error("torchtitan --zero-stage 3", "mixtral-8x7b"),
      "sluice: --runs-on torchtitan: the scenario: its models with experts have latent attention (deepseek_v3) or "
      "normalized queries and keys (qwen3)\n");
  EXPECT_EQ(error("sluice --etp 2", "mixtral-8x7b"),
            "sluice: --runs-on sluice: --etp 2: runs do not split experts over tensor-parallel ranks\n");
  EXPECT_EQ(error("sluice --joint-overlap all", "mixtral-8x7b"),
            "sluice: --runs-on sluice: the scenario: runs do not overlap collectives of tensor parallelism "
            "(--joint-overlap experts)\n");
  EXPECT_EQ(error("sluice --tp 8,3"),
            "sluice: --runs-on sluice: --tp 3: each tensor-parallel rank needs a key/value "
            "head\n");
  EXPECT_EQ(error("megatrn"),
            "sluice: --runs-on: expected one of megatron, megatron-bridge, torchtitan, deepspeed, sluice, any, got "
            "'megatrn'; did you mean 'megatron'?\n");
}

// mpiexec kills the other processes a second after one has died; here three, because machines are busy.
std::vector<std::string> mpi_environment(std::vector<std::string> more = {}) {
  for (const char* variable : {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                               "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_btl_base_warn_component_unused=0",
                               "OMPI_MCA_odls_base_sigkill_timeout=3", "ASAN_OPTIONS=detect_leaks=0"}) {
    more.emplace_back(variable);
  }
  return more;
}

// The words of flags as a shell reads them, whose only quotes are those around a layout.
std::vector<std::string> shell_words(std::string flags) {
  std::erase(flags, '\'');
  return words(flags);
}

// The printed metrics equal those of `simulate` with the printed flags.
TEST(PlanCommand, NamesTheAssumptionsOfARow) {
  const std::string space =
      "plan --model qwen3-30b-a3b --cluster dgx-h100 --gpus 16 --gbs 64 --seq-length 4096 --pp 2 --mbs 1 --tp 1 "
      "--cp 1 --recompute none --use-distributed-optimizer yes --even-stages ";
  const json found = json::parse(run_sluice(words(space + "--schedule dualpipe-v,1f1b --ep 8 --json")).out);
  std::set<std::string> families;
  for (const json& row : found.at("ranking")) {
    families.insert(row.at("schedule"));
    const bool joint = row.at("schedule") == "dualpipe-v";
    EXPECT_EQ(row.at("assumptions"),
              joint ? json({"sends block", "joint blocks hide dispatch and combine"}) : json({"sends block"}));
    EXPECT_EQ(row.at("runs_on"), joint ? json::array() : json({"megatron", "megatron-bridge"}));
  }
  EXPECT_EQ(families.size(), 2U);
  const CommandResult text =
      run_sluice(words(space + "--schedule dualpipe-v --ep 8 --overlap-p2p-communication --show 1"));
  EXPECT_THAT(text.out, HasSubstr("sends overlap, joint blocks hide dispatch and combine\n"));
  EXPECT_THAT(text.out, HasSubstr("Runs as it is, of those simulated: Megatron-LM none, Megatron-Bridge none"));
}

TEST(PlanCommand, NamesAShortlist) {
  const std::string space =
      "plan --model llama3-8b --cluster dgx-h100 --gpus 16 --gbs 64 --seq-length 8192 --schedule megatron --cp 1 " +
      std::string(test::small_scope() ? "--mbs 1 --recompute none " : "");
  const json found = test::json_of(words(space + "--shortlist 3 --json"));
  const json& places = found.at("shortlist").at("places");
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places.at(0), 0);
  for (const json& place : places)
    EXPECT_FALSE(found.at("ranking").at(place.get<std::size_t>()).at("within_memory_margin"));
  const json whole = json::parse(run_sluice(words(space + "--shortlist 24 --json")).out);
  const json& more = whole.at("shortlist");
  // Of configurations that differ in the layers of stages alone, one is named.
  std::set<std::string> kinds;
  for (const json& place : more.at("places")) {
    std::string kind;
    for (const char* size : {"schedule", "tp", "pp", "dp", "vpp", "micro_batch", "recompute"}) {
      kind += whole.at("ranking").at(place.get<std::size_t>()).at(size).dump() + " ";
    }
    EXPECT_TRUE(kinds.insert(kind).second) << kind;
  }
  EXPECT_GT(more.at("probability"), found.at("shortlist").at("probability"));
  EXPECT_LT(more.at("expected_loss"), found.at("shortlist").at("expected_loss"));
  EXPECT_LT(more.at("expected_loss"), 0.1);
  const CommandResult text = run_sluice(words(space + "--shortlist 2"));
  EXPECT_THAT(text.out, HasSubstr("shortlist: measure these 2; their fastest is expected to be within "));
  EXPECT_FALSE(json::parse(run_sluice(words(space + "--json")).out).contains("shortlist"));
}

TEST(PlanCommand, MatchesSimulateWithThePrintedFlags) {
  const std::string base =
      "--model " + kExamples + "models/llama3-8b/config.json --cluster dgx-h100 --gbs 64 --seq-length 8192 ";
  const std::string space = test::small_scope() ? "--schedule 1f1b,seq1f1b " : "";
  const json ranking = json::parse(run_sluice(words("plan --json " + space + base)).out).at("ranking");
  for (const std::size_t place : {std::size_t{0}, ranking.size() / 2, ranking.size() - 1}) {
    const json& row = ranking.at(place);
    const CommandResult result =
        run_sluice(shell_words("simulate --json " + base + row.at("flags").get<std::string>()));
    ASSERT_EQ(result.exit_code, 0) << result.err << row;
    const json simulated = json::parse(result.out);
    EXPECT_EQ(simulated.at("makespan_s"), row.at("makespan_s"));
    EXPECT_EQ(simulated.at("memory").at("needed_bytes"), row.at("needed_memory_bytes"));
    EXPECT_EQ(simulated.at("throughput").at("mfu"), row.at("mfu"));
  }
}

// The plan replaces the sizes and the schedule of a scenario, and its flags override those of the scenario.
TEST(PlanCommand, IgnoresTheSizesOfAScenario) {
  const std::string file = kExamples + "gpt3-175b-a100.json";
  const std::string space = test::small_scope() ? "--pp 8 --mbs 1 --recompute full " : "";
  const json document = json::parse(run_sluice(words("plan --json --schedule megatron --tp 8 " + space + file)).out);
  const json& best = document.at("ranking").at(0);
  const CommandResult result =
      run_sluice(shell_words("simulate --json " + file + " " + best.at("flags").get<std::string>()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at("makespan_s"), best.at("makespan_s"));
  const std::string arguments = document.at("megatron").at("arguments");
  EXPECT_NE(arguments.find("--tensor-model-parallel-size 8 "), std::string::npos) << arguments;
  EXPECT_NE(arguments.find("--global-batch-size 1536 "), std::string::npos);
  EXPECT_NE(arguments.find("--num-layers 96 --hidden-size 12288 --num-attention-heads 96 "), std::string::npos);
}

// The number of GPUs is not a size that the plan chooses.
TEST(PlanCommand, UsesTheGpusOfAScenario) {
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  std::ofstream(file) << R"({"model": "gpt2", "cluster": "dgx-h100", "parallelism": {"gpus": 4, "pp": 2},
                             "batch": {"global_batch": 8, "sequence_length": 128}})";
  for (const auto& [flags, gpus] : {std::pair("", 4), {"--gpus 2 ", 2}}) {
    const CommandResult result = run_sluice(words("plan --json --schedule 1f1b " + (flags + file)));
    EXPECT_EQ(result.err, "sluice: " + file + ": plan ignores /parallelism/pp\n");
    const json best = json::parse(result.out).at("ranking").at(0);
    EXPECT_EQ(best.at("tp").get<int>() * best.at("pp").get<int>() * best.at("dp").get<int>(), gpus);
  }
}

TEST(PlanCommand, CoversThePlannerOfPipeDream2bw) {
  const json best =
      test::json_of(
          words(
              "plan --num-layers 48 --hidden-size 1920 --num-attention-heads 20 --vocab-size 30522 "
              "--max-position-embeddings 512 --cluster p3.16xlarge --gbs 512 --seq-length 512 --schedule pipedream-2bw "
              "--tp 1 --use-distributed-optimizer no --even-stages --json"))
          .at("ranking")
          .at(0);
  EXPECT_EQ(best.at("schedule"), "pipedream-2bw");
  EXPECT_EQ(best.at("pp").get<int>() * best.at("dp").get<int>(), 8);
}

// The leaders get the best layers of their stages: no two numbers of layers are faster than those of the first.
TEST(PlanCommand, RefinesThePartitionOfTheLeaders) {
  const std::string base = "--model llama3-8b --cluster dgx-h100 --gbs 256 --seq-length 8192 ";
  const std::string plan = "plan --json --gpus 8 --pp 2 --tp 1 --cp 2 --mbs 1 --schedule zb-h1 --recompute none " +
                           base + "--use-distributed-optimizer yes --use-tp-pp-dp-mapping no ";
  const json best = json::parse(run_sluice(words(plan)).out).at("ranking").at(0);
  const json even = json::parse(run_sluice(words(plan + "--even-stages")).out).at("ranking").at(0);
  EXPECT_FALSE(even.contains("pipeline_layout"));
  EXPECT_EQ(best.at("pipeline_layout"), "Et*17|t*15L");
  EXPECT_LT(best.at("iteration_s"), even.at("iteration_s"));
  for (const char* layers : {"15,17", "16,16", "17,15", "18,14", "19,13"}) {
    const json other = json::parse(
        run_sluice(
            words("simulate --json --schedule zb-h1 --pp 2 --cp 2 --dp 2 --use-distributed-optimizer --stage-layers " +
                  (layers + (" " + base))))
            .out);
    EXPECT_GE(other.at("makespan_s"), best.at("makespan_s")) << layers;
  }
  // More than the outer stages.
  const std::string folded = "plan --json --gpus 8 --pp 2 --tp 1 --cp 2 --mbs 1 --schedule zb-v --recompute none " +
                             base + "--use-distributed-optimizer yes --use-tp-pp-dp-mapping no --top 1";
  const json first = json::parse(run_sluice(words(folded)).out).at("ranking").at(0);
  EXPECT_EQ(first.at("pipeline_layout"), "Et*9|t*9|t*8|t*6L");
  const json again =
      json::parse(run_sluice(shell_words("simulate --json " + base + first.at("flags").get<std::string>())).out);
  EXPECT_EQ(again.at("makespan_s"), first.at("makespan_s"));
  const std::string table = run_sluice(words(folded.substr(0, 5) + folded.substr(12) + " --csv /dev/stdout")).out;
  EXPECT_NE(table.find(",pipeline_layout,recompute_modules,reason\n1,simulated,zb-v,1,2,2,2,1,2,"), std::string::npos)
      << table;
  EXPECT_NE(table.find(",Et*9|t*9|t*8|t*6L,,\n"), std::string::npos) << table;
  EXPECT_NE(run_sluice(words(folded.substr(0, 5) + folded.substr(12) + " --show 1")).out.find("  Et*9|t*9|t*8|t*6L\n"),
            std::string::npos);
}

TEST(PlanCommand, SearchesThePartitionOfOneConfiguration) {
  const std::string base = "--model llama3-8b --cluster dgx-h100 --gbs 256 --seq-length 8192 ";
  const std::string one = "plan --partition --gpus 8 --pp 2 --tp 1 --cp 2 --mbs 1 --schedule zb-h1 --recompute none " +
                          base + "--use-tp-pp-dp-mapping no ";
  const json document = test::json_of(words(one + "--use-distributed-optimizer yes --json"));
  EXPECT_EQ(document.at("schema"), "sluice.partition/1");
  EXPECT_EQ(document.at("stage_layers"), (json{17, 15}));
  EXPECT_EQ(document.at("pipeline_layout"), "Et*17|t*15L");
  EXPECT_TRUE(document.at("proven"));
  EXPECT_EQ(document.at("lower_bound_s"), document.at("iteration_s"));
  EXPECT_EQ(document.at("even").at("pipeline_layout"), "Et*16|t*16L");
  EXPECT_GT(document.at("even").at("iteration_s"), document.at("iteration_s"));
  const json simulated =
      json::parse(run_sluice(shell_words("simulate --json " + base + document.at("flags").get<std::string>())).out);
  EXPECT_EQ(simulated.at("makespan_s"), document.at("iteration_s"));
  std::int64_t most = 0;
  for (const json& rank : document.at("ranks")) {
    most = std::max(most, rank.at("needed_memory_bytes").get<std::int64_t>());
  }
  EXPECT_EQ(most, simulated.at("memory").at("needed_bytes"));
  const std::string text = run_sluice(words(one + "--use-distributed-optimizer yes")).out;
  for (const char* part : {"layout     Et*17|t*15L\n", ", proven best\n",
                           "even split Et*16|t*16L: ", "  rank  peak GiB  of usable  layers by chunk\n     0 ",
                           " --pipeline-model-parallel-layout 'Et*17|t*15L'"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  }
  // 34 stages of 32 layers.
  const CommandResult deep =
      run_sluice(words("plan --partition --json --gpus 34 --pp 17 --vpp 2 --tp 1 --mbs 1 --schedule interleaved-1f1b "
                       "--recompute none --use-distributed-optimizer no --use-tp-pp-dp-mapping no --cp 1 --model "
                       "llama3-8b --cluster dgx-h100 --gbs 68 --seq-length 4096"));
  ASSERT_EQ(deep.exit_code, 0) << deep.err;
  EXPECT_EQ(json::parse(deep.out).at("stage_layers").size(), 34U);
  EXPECT_TRUE(json::parse(deep.out).at("even").is_null());
}

// The sizes come from the scenario; what it leaves open is named.
TEST(PlanCommand, PartitionNeedsOneConfiguration) {
  const std::string file = kExamples + "gpt3-175b-a100.json";
  EXPECT_EQ(run_sluice(words("plan --partition " + file)).err,
            "sluice: plan: --partition: expected one configuration, got 2: give one value each for "
            "--use-distributed-optimizer\n");
  EXPECT_EQ(run_sluice(words(kLlama + "--partition --pp 2 --tp 1 --schedule 1f1b,zb-v --recompute none --mbs 1")).err,
            "sluice: plan: --partition: expected one configuration, got 8: give one value each for --schedule, --cp, "
            "--dp, --vpp, --use-distributed-optimizer\n");
  const CommandResult fixed =
      run_sluice(words("plan --partition --use-distributed-optimizer no --decoder-last-pipeline-num-layers 5 " + file));
  EXPECT_EQ(fixed.exit_code, 2);
  EXPECT_EQ(fixed.err,
            "sluice: plan: --partition chooses the layers of all stages: remove --decoder-first-pipeline-num-layers "
            "and --decoder-last-pipeline-num-layers\n");
  for (const char* other : {"--all", "--even-stages", "--csv x"}) {
    EXPECT_EQ(run_sluice(words("plan --partition " + file + " " + other)).exit_code, 2) << other;
  }
  const CommandResult large = run_sluice(
      words("plan --partition --pp 8 --tp 1 --dp 1 --mbs 1 --num-layers 128 --hidden-size 25600 --num-attention-heads "
            "160 --vocab-size 51200 --max-position-embeddings 2048 --cluster dgx-a100-80gb --gbs 8 --seq-length 2048 "
            "--schedule 1f1b --recompute none"));
  EXPECT_EQ(large.exit_code, 3);
  EXPECT_EQ(large.err.find("sluice: plan: no partition fits in memory: the smallest found needs "), 0U) << large.err;
}

TEST(PlanCommand, InvalidFlagsAreReported) {
  const auto error = [](const std::string& flags, int code) {
    const CommandResult result = run_sluice(words(flags));
    EXPECT_EQ(result.exit_code, code) << flags << result.err;
    return result.err;
  };
  EXPECT_EQ(error("plan --model " + kExamples + "models/llama3-8b/config.json --gbs 8 --seq-length 8192", 2),
            "sluice: command line: /cluster: required (--cluster)\n");
  EXPECT_EQ(error(kLlama + "--tp 3", 2),
            "sluice: plan: no requested combination of tp x pp x dp equals 8 GPUs (--tp 3)\n");
  EXPECT_EQ(error(kLlama + "--schedule auto", 2),
            "sluice: plan: --schedule auto searches one configuration: use 'sluice simulate --schedule auto'\n");
  EXPECT_EQ(error(kLlama + "--use-distributed-optimizer maybe", 2),
            "sluice: --use-distributed-optimizer: expected yes or no, got 'maybe'\n");
  EXPECT_EQ(error(kLlama + "--schedul 1f1b", 2),
            "sluice: plan: unknown flag '--schedul'; did you mean '--schedule'?\n");
  // The flag was once accepted without effect.
  EXPECT_EQ(error(kLlama + "--group 2", 2).find("sluice: plan: --group has no effect on this command"), 0U);
  EXPECT_EQ(error(kLlama + "--microbatches 8", 2),
            "sluice: plan: --microbatches: specify --gbs or --microbatches, not both\n");
}

// All configurations are invalid: the message names the flags and keys that determine them.
TEST(PlanCommand, NamesWhatMakesAllConfigurationsInvalid) {
  const auto error = [](const std::string& arguments) {
    const CommandResult result = run_sluice(words(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  EXPECT_EQ(
      error(kLlama + "--schedule seq1f1b --slices 9000 --tp 8 --mbs 1"),
      "sluice: plan: every configuration of --schedule seq1f1b --tp 8 --mbs 1 --slices 9000, --gbs 64, --seq-length "
      "8192 is invalid; the first: expected at most 8192 slices of a sequence of 8192 tokens in multiples of 1, got "
      "9000\n");
  const std::string qwen = "plan --model qwen2-7b --cluster dgx-h100 --gpus 16 --gbs 64 --seq-length 8192 ";
  EXPECT_EQ(error(qwen + "--tp 8"),
            "sluice: plan: every configuration of --tp 8, --gbs 64, --seq-length 8192 is invalid; the first: qwen2-7b: "
            "attention heads (28) must be a multiple of the tensor-parallel size (8)\n");
  const TemporaryFolder folder;
  const std::string file = folder.path("s.json");
  std::ofstream(file) << R"({"model": "qwen2-7b", "cluster": {"name": "dgx-h100", "nodes": 2},
                             "parallelism": {"tp": 8, "first_stage_layers": 40},
                             "batch": {"global_batch": 64, "sequence_length": 8192}})";
  EXPECT_EQ(error("plan " + file + " --pp 4"),
            "sluice: " + file + ": plan ignores /parallelism/tp\nsluice: plan: every configuration of --pp 4, " + file +
                ": /parallelism/first_stage_layers 40, " + file + ": /batch/global_batch 64, " + file +
                ": /batch/sequence_length 8192 is invalid; the first: first stage 40, last stage 0 layers: the 3 other "
                "stages have -12 of the 28 layers of qwen2-7b\n");
}

TEST(PlanCommand, RepeatsTheModulesOfTheScenario) {
  const std::string plan = kLlama + "--gpus 16 --tp 2 --pp 4 --schedule 1f1b --json ";
  const json mlp = json::parse(run_sluice(words(plan + "--recompute selective --recompute-modules mlp")).out);
  ASSERT_FALSE(mlp.at("ranking").empty());
  const json none = json::parse(run_sluice(words(plan + "--recompute none")).out);
  EXPECT_GT(mlp.at("ranking")[0].at("iteration_s"), none.at("ranking")[0].at("iteration_s"));
}

TEST(PlanCommand, ReportsTheMissingMemory) {
  // 1T parameters on eight GPUs.
  const CommandResult result =
      run_sluice(words("plan --num-layers 128 --hidden-size 25600 --num-attention-heads 160 --vocab-size 51200 "
                       "--max-position-embeddings 2048 --cluster dgx-a100-80gb --gbs 8 --seq-length 2048"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.err.find("sluice: plan: no configuration fits in memory: the smallest needs "), 0U) << result.err;
  EXPECT_NE(result.out.find(" · simulated 0 · "), std::string::npos) << result.out;
  // The memory is that of the configuration that the message names.
  const std::string llama = "plan --model llama3-70b --cluster dgx-h100 --gpus 2 --gbs 8 --seq-length 8192 --pp 1,2";
  const std::string message = run_sluice(words(llama)).err;
  const std::size_t needs = message.find("needs ");
  const std::size_t flags = message.find("(--schedule");
  ASSERT_NE(needs, std::string::npos) << message;
  ASSERT_NE(flags, std::string::npos) << message;
  EXPECT_NE(message.find("--recompute full"), std::string::npos) << message;
  const std::string simulated =
      run_sluice(words("simulate --json --model llama3-70b --cluster dgx-h100 --seq-length 8192 --gbs 8 " +
                       message.substr(flags + 1, message.find(')') - flags - 1)))
          .out;
  double most = 0;
  const json prediction = json::parse(simulated);
  for (const auto& rank : prediction.at("ranks")) {
    most = std::max(most, rank.at("peak_memory_bytes").get<double>());
  }
  // The message counts reserved memory as well, some GiB.
  const double printed = std::stod(message.substr(needs + 6));
  EXPECT_GT(printed, most / 1073741824);
  EXPECT_LT(printed, 1.1 * most / 1073741824 + 4);
}

TEST(PlanCommand, PrintsTheBestSoFarWhenInterrupted) {
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)}) {
    const CommandResult result =
        test::run_program_and_signal(SLUICE_COMMAND, {"plan", kExamples + "gpt3-175b-a100.json", "--all"}, signal);
    EXPECT_EQ(result.exit_code, code);
    EXPECT_NE(result.out.find("interrupted: best so far"), std::string::npos);
  }
}

TEST(PlanCommand, PrintsNoDocumentOfConfigurationsThatAreAllInvalid) {
  for (const char* form : {"", "--json"}) {
    const CommandResult result = run_sluice(words(kLlama + "--schedule seq1f1b --tp 8 --mbs 1 --slices 9000 " + form));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err, "");
  }
}

// A process dies when all of them have a handler for SIGINT, which they have when the search begins.
TEST(PlanCommand, PrintsTheBestSoFarWhenAProcessDies) {
  if (std::string(SLUICE_MPIEXEC).empty()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const std::string rank_of_a_plan =
      "echo $$ > $FOLDER/$OMPI_COMM_WORLD_RANK\n"
      "[ $OMPI_COMM_WORLD_RANK = $VICTIM ] || exec \"$@\"\n"
      "\"$@\" & echo $! > $FOLDER/$VICTIM\n"
      "for rank in 0 1; do\n"
      "  until grep -qs '^SigCgt:.*[2367abef]$' /proc/$(cat $FOLDER/$rank)/status; do sleep 0.01; done\n"
      "done\n"
      "kill -KILL $!; wait $!";
  for (const std::string victim : {"0", "1"}) {
    SCOPED_TRACE(victim);
    const test::TemporaryFolder folder;
    const CommandResult result = test::run_program(SLUICE_MPIEXEC,
                                                   {"-n", "2", "sh", "-c", rank_of_a_plan, "sh", SLUICE_COMMAND, "plan",
                                                    kExamples + "gpt3-175b-a100.json", "--all"},
                                                   mpi_environment({"VICTIM=" + victim, "FOLDER=" + folder.path()}));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.out.find("interrupted: best so far"), std::string::npos) << result.out << result.err;
    const std::string line = "sluice: plan: the process of rank " + victim + " has died";
    EXPECT_NE(result.err.find(line), std::string::npos) << result.err;
  }
}

TEST(PlanCommand, GivesTheSameResultOverMpi) {
  if (std::string(SLUICE_MPIEXEC).empty()) GTEST_SKIP() << "SKIPPED: there is no MPI here";
  const std::string plan = kLlama + "--schedule 1f1b,interleaved-1f1b,zb-h1 --json";
  const json alone = without_seconds(run_sluice(words(plan)));
  for (const std::string& ranks : in_scope(std::vector<std::string>{"3", "2"})) {
    std::vector<std::string> arguments = {"-n", ranks, SLUICE_COMMAND};
    for (const std::string& word : words(plan)) arguments.push_back(word);
    const CommandResult result = test::run_program(SLUICE_MPIEXEC, arguments, mpi_environment());
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(without_seconds(result), alone);
  }
}

}  // namespace
}  // namespace sluice::test

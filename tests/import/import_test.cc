// Configurations of Megatron-LM as scenarios.

#include "import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "import/layer_frequency.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/scenario/scenario.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

const std::string kImportedModel =
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--vocab-size 51200 --micro-batch-size 1 --bf16 ";

Imported of_line(const std::string& line) { return import_megatron_line(line, "line"); }
Json imported_parallelism(const std::string& line) { return of_line(kImportedModel + line).scenario.at("parallelism"); }
Json imported_model(const std::string& line) { return of_line(kImportedModel + line).scenario.at("model"); }

template <typename Import>
std::string import_error(const Import& import) {
  try {
    import();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}
std::string line_error(const std::string& line) {
  return import_error([&] { of_line(kImportedModel + line); });
}

TEST(ImportMegatron, ReadsSizesModelAndBatch) {
  const Imported imported = of_line(
      kImportedModel +
      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size=4 --context-parallel-size 2 --global-batch-size "
      "64 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --swiglu --normalization RMSNorm "
      "--untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type rope "
      "--group-query-attention --num-query-groups 4 --hidden-dropout 0 --attention-dropout 0.0 --lr 1e-4 "
      "--transformer-impl transformer_engine");
  EXPECT_THAT(imported.notes, IsEmpty());
  EXPECT_EQ(imported.scenario, Json::parse(R"({
    "schema": "sluice.scenario/1",
    "model": {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "num_query_groups": 4,
              "ffn_hidden_size": 2688, "max_position_embeddings": 2048, "vocab_size": 51200, "swiglu": true,
              "normalization": "RMSNorm", "untie_embeddings_and_output_weights": true, "disable_bias_linear": true,
              "position_embedding_type": "rope", "hidden_dropout": 0.0, "attention_dropout": 0.0},
    "parallelism": {"tp": 2, "pp": 4, "cp": 2, "sequence_parallel": true, "distributed_optimizer": true,
                    "overlap_grad_reduce": true, "flash_attention": true, "transformer_engine": true},
    "batch": {"micro_batch": 1, "global_batch": 64, "sequence_length": 2048},
    "schedule": {"name": "1f1b"}})"));
  EXPECT_EQ(scenario_from_json(imported.scenario, "line", "").training.tp, 2);
}

TEST(ImportMegatron, AppliesTheDefaultsOfMegatron) {
  EXPECT_EQ(of_line(kImportedModel).scenario.at("batch").at("microbatches"), 1);
  EXPECT_EQ(imported_model("--multi-latent-attention").at("kv_lora_rank"), 32);
  EXPECT_EQ(imported_model("--multi-latent-attention").at("qk_head_dim"), 128);
  EXPECT_EQ(imported_model("--group-query-attention").at("num_query_groups"), 1);
  EXPECT_EQ(imported_model("--use-rotary-position-embeddings").at("position_embedding_type"), "rope");
  EXPECT_EQ(imported_model("--no-position-embedding").at("position_embedding_type"), "none");
  EXPECT_FALSE(imported_parallelism("--transformer-impl local").at("flash_attention"));
  EXPECT_FALSE(imported_parallelism("--attention-backend unfused").at("flash_attention"));
  EXPECT_FALSE(
      imported_parallelism("--sequence-parallel").contains("sequence_parallel"));  // with one tensor-parallel rank
  EXPECT_EQ(of_line(kImportedModel + "--make-vocab-size-divisible-by 1024").scenario.at("model").at("vocab_size"),
            51200);
  EXPECT_EQ(of_line(kImportedModel + "--make-vocab-size-divisible-by 1280").scenario.at("model").at("vocab_size"),
            51200);
  EXPECT_EQ(of_line(kImportedModel + "--make-vocab-size-divisible-by 20480").scenario.at("model").at("vocab_size"),
            61440);
}

TEST(ImportMegatron, PrecisionSetsTheBytesOfGradients) {
  const std::string line = "--num-layers 2 ";
  const auto bytes = [&](const std::string& flags) {
    return of_line(line + flags).scenario.at("parallelism").value("gradient_bytes", 4);
  };
  EXPECT_EQ(bytes("--bf16"), 4);
  EXPECT_EQ(bytes("--bf16 --grad-reduce-in-bf16"), 2);
  EXPECT_EQ(bytes("--fp16"), 2);
  EXPECT_EQ(bytes("--fp16 --accumulate-allreduce-grads-in-fp32"), 4);
  EXPECT_THAT(of_line(line).notes, ElementsAre("line: not modeled, although they change time or memory: 32-bit "
                                               "training (neither --bf16 nor --fp16)"));
}

TEST(ImportMegatron, DistributesLayersAsMegatronDoes) {
  EXPECT_EQ(
      imported_parallelism("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2").at("vpp"), 3);
  EXPECT_EQ(of_line(kImportedModel + "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 3")
                .scenario.at("schedule")
                .at("name"),
            "interleaved-1f1b");
  const Json uneven = imported_parallelism(
      "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 4 "
      "--decoder-last-pipeline-num-layers 6");
  EXPECT_EQ(uneven.at("first_stage_layers"), 4);
  EXPECT_EQ(uneven.at("last_stage_layers"), 6);
  // Each chunk of the first rank has half of its 4 layers, of the last half of its 6.
  EXPECT_EQ(imported_parallelism("--pipeline-model-parallel-size 3 --num-virtual-stages-per-pipeline-rank 2 "
                                 "--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 6")
                .at("stage_layers"),
            Json({2, 7, 3, 2, 7, 3}));
  // 24 layers, embedding and loss on 13 ranks of 2.
  Json layers = std::vector<int>(13, 2);
  layers.front() = layers.back() = 1;
  EXPECT_EQ(imported_parallelism("--pipeline-model-parallel-size 13 --account-for-embedding-in-pipeline-split "
                                 "--account-for-loss-in-pipeline-split")
                .at("stage_layers"),
            layers);
  EXPECT_EQ(
      imported_parallelism("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*5|(t*7|)*2t*5L'")
          .at("pipeline_layout"),
      "Et*5|(t*7|)*2t*5L");
}

TEST(ImportMegatron, ReadsRecomputation) {
  EXPECT_EQ(imported_parallelism("--recompute-activations").at("recompute"), "selective");
  EXPECT_EQ(imported_parallelism("--recompute-granularity selective").at("recompute"), "selective");
  EXPECT_EQ(imported_parallelism("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
                .value("recompute_layers", 0),
            0);
  EXPECT_EQ(imported_parallelism("--recompute-granularity full --recompute-method block --recompute-num-layers 3")
                .at("recompute_layers"),
            3);
  // As words, as Megatron-LM prints a list, and one that is not known.
  for (const char* modules : {"layernorm moe_act surprise", "[layernorm,moe_act,surprise]"}) {
    const Imported imported =
        of_line(kImportedModel + "--recompute-granularity selective --recompute-modules " + modules);
    EXPECT_EQ(imported.scenario.at("parallelism").at("recompute_modules"), Json::parse(R"(["layernorm", "moe_act"])"));
    EXPECT_THAT(imported.notes,
                ElementsAre("line: not modeled, although they change time or memory: --recompute-modules surprise"));
  }
}

TEST(ImportMegatron, ReadsExperts) {
  const Imported imported = of_line(kImportedModel +
                                    "--num-experts 8 --tensor-model-parallel-size 2 --expert-model-parallel-size 4 "
                                    "--moe-layer-freq ([0]*3+[1]*21) --moe-ffn-hidden-size 512");
  EXPECT_EQ(imported.scenario.at("model").at("moe_router_topk"), 2);
  EXPECT_EQ(imported.scenario.at("model").at("moe_layer_freq").size(), 24U);
  EXPECT_THAT(imported.notes,
              ElementsAre(HasSubstr("--moe-token-dispatcher-type allgather, the default (alltoall is assumed)")));
  EXPECT_EQ(imported.scenario.at("parallelism").at("etp"), 2);  // the default is the tensor-parallel size
  EXPECT_EQ(layer_frequency("([0] * 1 + [1, 1]) * 2"), Json({0, 1, 1, 0, 1, 1}));
  EXPECT_EQ(layer_frequency("1"), Json(1));
  EXPECT_EQ(import_error([] { layer_frequency("[0]*"); }), "position 5: expected a number, got the end");
  EXPECT_EQ(import_error([] { layer_frequency("[0]*99999*99999"); }), "position 10: expected a shorter list, got '*'");
}

// Each kind of argument is named once.
TEST(ImportMegatron, NamesWhatIsNotModeledAndUnknown) {
  const Imported imported = of_line(kImportedModel +
                                    "--foo 1 2 --use-sharp --lr 1 --bar --foo 3 --fp8-e4m3 --save x "
                                    "--optimizer adam --data-path 0.5 a 0.5 b");
  EXPECT_THAT(imported.notes, ElementsAre("line: not modeled, although they change time or memory: --use-sharp, "
                                          "--fp8-e4m3",
                                          "line: unknown arguments: --foo, --bar"));
}

TEST(ImportMegatron, ReadsWhatIsSharded) {
  const auto zero = [](const std::string& line) { return imported_parallelism(line).value("zero", 0); };
  EXPECT_EQ(zero("--use-torch-fsdp2"), 3);
  EXPECT_EQ(zero("--use-megatron-fsdp --use-distributed-optimizer"), 0);
  EXPECT_EQ(zero("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard"), 0);
  EXPECT_EQ(zero("--use-megatron-fsdp --data-parallel-sharding-strategy optim"), 1);
  EXPECT_EQ(zero("--use-custom-fsdp --data-parallel-sharding-strategy optim_grads"), 2);
  EXPECT_EQ(zero("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"), 3);
  EXPECT_EQ(zero("--data-parallel-sharding-strategy optim_grads_params"), 0);
  EXPECT_EQ(
      line_error(kImportedModel + "--use-megatron-fsdp --data-parallel-sharding-strategy all"),
      "line: --data-parallel-sharding-strategy: expected one of no_shard, optim, optim_grads, optim_grads_params, "
      "got 'all'");
  EXPECT_EQ(line_error(kImportedModel + "--use-torch-fsdp2 --pipeline-model-parallel-size 2"),
            "line: --use-torch-fsdp2: requires --pipeline-model-parallel-size 1");
  EXPECT_EQ(line_error(kImportedModel + "--use-torch-fsdp2 --use-distributed-optimizer"),
            "line: --use-torch-fsdp2: excludes --use-distributed-optimizer");
  EXPECT_EQ(zero("--deepspeed --zero-stage 2"), 2);
  EXPECT_EQ(zero("--deepspeed --zero-stage 3 --no-pipeline-parallel"), 3);
  EXPECT_EQ(imported_parallelism("--deepspeed --zero-stage 1").at("distributed_optimizer"), true);
  EXPECT_THAT(of_line(kImportedModel + "--deepspeed --zero-stage 2 --pipeline-model-parallel-size 2").notes,
              ::testing::Contains("line: DeepSpeed rejects ZeRO stage 2 with a pipeline"));
  EXPECT_EQ(line_error(kImportedModel + "--deepspeed --zero-stage 4"),
            "line: --zero-stage: expected a stage from 0 to 3, got 4");
}

TEST(ImportMegatron, ErrorsNameTheArgument) {
  EXPECT_EQ(line_error("--num-layers many"), "line: --num-layers: expected a whole number, got 'many'");
  EXPECT_EQ(line_error("--num-layers --bf16"), "line: --num-layers: expected a value");
  EXPECT_EQ(line_error("--swiglu yes"), "line: --swiglu: takes no value, got 'yes'");
  EXPECT_EQ(line_error("--num-layers 2 3"), "line: --num-layers: expected one value, got '3' as well");
  EXPECT_EQ(line_error("--num-layers $N"), "line: --num-layers: the value of $N is not known");
  EXPECT_EQ(line_error("--pipeline-model-parallel-size 5"),
            "line: --num-layers: 24 layers cannot be distributed evenly over 5 pipeline ranks");
  EXPECT_EQ(line_error("--pipeline-model-parallel-size 0"),
            "line: --pipeline-model-parallel-size: expected a positive number, got 0");
  EXPECT_EQ(line_error("--num-virtual-stages-per-pipeline-rank 2"),
            "line: --num-virtual-stages-per-pipeline-rank: requires --pipeline-model-parallel-size of at least 2");
  EXPECT_EQ(line_error("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5"),
            "line: --num-layers-per-virtual-pipeline-stage: expected a divisor of the 12 layers of a pipeline rank, "
            "got 5");
  EXPECT_EQ(line_error("--pipeline-model-parallel-layout Et*23mtL"),
            "line: --pipeline-model-parallel-layout: stage 0: expected transformer layers t before multi-token "
            "prediction m, got 'Et*23mtL'");
  EXPECT_EQ(line_error("--fp16"), "line: --fp16: excludes --bf16");
  EXPECT_EQ(line_error("--recompute-granularity most"),
            "line: --recompute-granularity: expected full or selective, got 'most'");
  EXPECT_EQ(import_error([] { of_line("train"); }),
            "line: expected arguments of Megatron-LM, such as --num-layers 32, got 'train'");
  Imported lacking = of_line("--num-layers 2 --hidden-size 64 --num-attention-heads 2");
  EXPECT_EQ(import_error([&] { check_complete(lacking.scenario, "line", lacking); }),
            "line: --vocab-size: required, because only the tokenizer of the run knows it");
  lacking.scenario["model"] = "llama3-8b";
  EXPECT_EQ(import_error([&] { check_complete(lacking.scenario, "line", lacking); }), "line: --seq-length: required");
  EXPECT_EQ(naming_arguments("line: /parallelism/tp: expected 1", "line", Imported{}),
            "line: --tensor-model-parallel-size: expected 1");
  EXPECT_EQ(naming_arguments("line: /cluster: expected 1", "line", Imported{}), "line: /cluster: expected 1");
}

const std::string kImportedScript =
    "#!/bin/bash\n"
    "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    "GPUS_PER_NODE=8\n"
    "NUM_NODES=2 # two\n"
    "DISTRIBUTED_ARGS=(\n"
    "    --nproc_per_node $GPUS_PER_NODE\n"
    "    --nnodes $NUM_NODES\n"
    ")\n"
    "GPT_ARGS=\"\n"
    "    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\\n"
    "    --seq-length 2048 --max-position-embeddings 2048\n"
    "\"\n"
    "mkdir -p logs\n"
    "torchrun \"${DISTRIBUTED_ARGS[@]}\" pretrain_gpt.py $GPT_ARGS --micro-batch-size 1 --fp16 \\\n"
    "    --pipeline-model-parallel-size 4 --tokenizer-type GPT2BPETokenizer --data-path $1 2>&1 | tee logs/a\n";

TEST(ImportMegatron, ReadsScripts) {
  ASSERT_TRUE(is_foreign(kImportedScript));
  const Imported imported = import_text(kImportedScript, "run.sh");
  EXPECT_THAT(imported.notes, IsEmpty());
  EXPECT_EQ(imported.scenario.at("parallelism").at("gpus"), 16);
  EXPECT_EQ(imported.scenario.at("parallelism").at("pp"), 4);
  EXPECT_EQ(imported.scenario.at("model").at("vocab_size"), 50257);
  const auto error = [](const std::string& text) { return import_error([&] { import_text(text, "run.sh"); }); };
  EXPECT_EQ(error("#!/bin/sh\npython a.py \\\n  --num-layers x\n"),
            "run.sh: line 3: --num-layers: expected a whole number, got 'x'");
  EXPECT_THAT(error("#!/bin/sh\npython a.py\n"), HasSubstr("run.sh: expected a scenario in JSON, a dump of"));
  EXPECT_EQ(error("a.py --num-layers 2\na.py --num-layers 3\n"),
            "run.sh: lines 1 and 2: expected one command with arguments of Megatron-LM: 'sluice-args bash run.sh > "
            "args.txt' writes the arguments of the run, and sluice reads args.txt");
  const auto gpus = [](const std::string& launcher) {
    return import_text(launcher + " pretrain.py --num-layers 2", "s").scenario.at("parallelism").value("gpus", 0);
  };
  EXPECT_EQ(gpus("torchrun --nproc-per-node=4"), 4);
  EXPECT_EQ(gpus("torchrun --nproc-per-node 4 --nnodes 1:4"), 0);
  EXPECT_EQ(gpus("mpirun -np 12 python"), 12);
  EXPECT_EQ(gpus("srun -N 2 --ntasks-per-node 4 python -u"), 8);
  EXPECT_EQ(gpus("deepspeed --num_gpus 4 --num_nodes 3"), 12);
  EXPECT_EQ(gpus("WORLD_SIZE=24\npython"), 24);
  EXPECT_EQ(import_text("srun bash -c \"torchrun --nproc-per-node 2 a.py --num-layers 2\"", "s")
                .scenario.at("parallelism")
                .at("gpus"),
            2);
}

// Control flow that may change the arguments is an error; other control flow is not.
TEST(ImportMegatron, ScriptsThatOnlyAShellCanFollowAreErrors) {
  const std::string folder = SLUICE_SOURCE_DIR "/tests/fuzz/corpus/import/";
  EXPECT_EQ(import_text(read_file(folder + "script_srun.sh"), "run.sh").scenario.at("parallelism"),
            Json::parse(R"({"tp": 2, "pp": 1, "gpus": 16, "flash_attention": true})"));
  const auto error = [](const std::string& text) { return import_error([&] { import_text(text, "run.sh"); }); };
  const std::string follow =
      ", which only a shell can follow: 'sluice-args bash run.sh > args.txt' writes the arguments of the run, and "
      "sluice "
      "reads args.txt";
  const std::string launch = "torchrun a.py --num-layers ";
  EXPECT_EQ(error("N=2\nif [ -d x ]; then N=4; fi\n" + launch + "$N"),
            "run.sh: line 3: $N depends on 'if' in line 2" + follow);
  EXPECT_EQ(error("[ -d x ] && MORE=--bf16\n" + launch + "2 $MORE"),
            "run.sh: line 2: $MORE depends on '&& or ||' in line 1" + follow);
  EXPECT_EQ(error("for N in 2 4; do\n" + launch + "2\ndone\n"),
            "run.sh: line 2: the command depends on 'for' in line 1" + follow);
  EXPECT_EQ(error("train() {\n" + launch + "2 $@\n}\ntrain --bf16"),
            "run.sh: line 2: the command depends on '{' in line 1" + follow);
  // Values of arguments that change neither time nor memory, launchers, and variables with a longer name.
  EXPECT_EQ(error("if [ -d x ]; then S=1; N=2; fi\nNN=2\ntorchrun --node_rank $N a.py --num-layers $NN --save=$S "
                  "--load $S/x --seed $S"),
            "no error");
  EXPECT_EQ(error("cd x && " + launch + "2"), "no error");
  EXPECT_EQ(error("N=$(nproc)\n" + launch + "$N"),
            "run.sh: line 2: --num-layers: the value of $(nproc) is not known: " + follow.substr(follow.find('\'')));
}

// The number of GPUs is not guessed where words of the launcher are not known.
TEST(ImportMegatron, UnknownWordsOfTheLauncherLeaveTheNumberOfGpusOpen) {
  for (const char* launcher : {"torchrun --nproc-per-node 8 $MORE", "torchrun --nproc-per-node 8 --nnodes $N",
                               "deepspeed --num_gpus 4 --num_nodes $N", "N=1; [ -d x ] && N=2; srun -n $N python",
                               "WORLD_SIZE=8; [ -d x ] && WORLD_SIZE=16; python"}) {
    EXPECT_FALSE(import_text(std::string(launcher) + " a.py --num-layers 2", "run.sh")
                     .scenario.at("parallelism")
                     .contains("gpus"))
        << launcher;
  }
  const auto gpus = [](const std::string& launcher) {
    return import_text(launcher + " --num-layers 2", "s").scenario.at("parallelism").value("gpus", 0);
  };
  EXPECT_EQ(gpus("torchrun --master_addr $ADDR --nproc-per-node 8 -m pretrain_gpt"), 8);
  EXPECT_EQ(gpus("WORLD_SIZE=24 python a.py"), 24);
}

const std::string kImportedDump =
    "using world size: 16\n"
    "------------------------ arguments ------------------------\n"
    "  add_bias_linear ................................. False\n"
    "  add_qkv_bias .................................... False\n"
    "  attention_backend ............................... AttnBackend.auto\n"
    "  bf16 ............................................ True\n"
    "  config_logger_dir ............................... \n"
    "  cp_comm_type .................................... ['p2p']\n"
    "  data_parallel_size .............................. 4\n"
    "  exp_avg_dtype ................................... torch.float32\n"
    "  ffn_hidden_size ................................. 4096\n"
    "  fp8 ............................................. None\n"
    "  global_batch_size ............................... 16\n"
    "  grad_reduce_in_bf16 ............................. False\n"
    "  gradient_accumulation_fusion .................... True\n"
    "  group_query_attention ........................... False\n"
    "  hidden_size ..................................... 1024\n"
    "  kv_lora_rank .................................... 32\n"
    "  max_position_embeddings ......................... 2048\n"
    "  micro_batch_size ................................ 1\n"
    "  moe_layer_freq .................................. 1\n"
    "  num_attention_heads ............................. 16\n"
    "  num_experts ..................................... None\n"
    "  num_layers ...................................... 24\n"
    "  num_query_groups ................................ 1\n"
    "  optimizer ....................................... adam\n"
    "  overlap_p2p_comm ................................ False\n"
    "  pipeline_model_parallel_size .................... 4\n"
    "  position_embedding_type ......................... rope\n"
    "  recompute_granularity ........................... None\n"
    "  seq_length ...................................... 2048\n"
    "  sequence_parallel ............................... False\n"
    "  surprising ...................................... 7\n"
    "  tensor_model_parallel_size ...................... 1\n"
    "  tp_comm_overlap ................................. True\n"
    "  transformer_impl ................................ transformer_engine\n"
    "  virtual_pipeline_model_parallel_size ............ 2\n"
    "  vocab_size ...................................... None\n"
    "  world_size ...................................... 16\n"
    "-------------------- end of arguments ---------------------\n"
    " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n"
    " loading ....... done\n";

TEST(ImportMegatron, ReadsDumpsOfTheArguments) {
  ASSERT_TRUE(is_foreign(kImportedDump));
  const Imported imported = import_text(kImportedDump, "run.log");
  EXPECT_THAT(imported.notes, ElementsAre("run.log: unknown arguments: --surprising"));
  const Json& scenario = imported.scenario;
  EXPECT_EQ(scenario.at("parallelism"), Json::parse(R"({"tp": 1, "pp": 4, "gpus": 16, "vpp": 2, "cp_comm_type": "p2p",
                                                        "overlap_transfers": false, "flash_attention": true,
                                                        "tp_comm_overlap": true,
                                                        "transformer_engine": true})"));
  EXPECT_EQ(scenario.at("model").at("vocab_size"), 50257);
  EXPECT_TRUE(scenario.at("model").at("disable_bias_linear"));
  EXPECT_FALSE(scenario.at("model").contains("kv_lora_rank"));
  EXPECT_EQ(scenario_from_json(scenario, "run.log", "").microbatches, 4);
  // The same lines after a launcher's prefix, as part of a log without the frame.
  std::string prefixed;
  for (std::size_t at = kImportedDump.find("  add"), end = 0; at < kImportedDump.find("-------------------- end");
       at = end + 1) {
    end = kImportedDump.find('\n', at);
    prefixed += "0: [node7]:" + kImportedDump.substr(at, end - at) + "\n";
  }
  Json without = scenario;
  without["model"].erase("vocab_size");
  EXPECT_EQ(import_text(prefixed, "run.log").scenario, without);
}

TEST(ImportMegatron, RejectsDumpsThatContradictThemselves) {
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string text = kImportedDump;
    text.replace(text.find(from), from.size(), to);
    return import_error([&] { import_text(text, "run.log"); });
  };
  EXPECT_EQ(changed("data_parallel_size .............................. 4", "data_parallel_size ...... 8"),
            "run.log: line 9: --data-parallel-size: 8 x tp x cp x pp = 8 x 1 x 1 x 4 is not the number of GPUs, 16");
  EXPECT_EQ(changed("  vocab_size ", "  hidden_size .................... 512\n  vocab_size "),
            "run.log: lines 17 and 38: hidden_size is '1024' and '512'");
  EXPECT_EQ(changed("  vocab_size ", "  hidden_size .................... 1024\n  vocab_size "), "no error");
  EXPECT_EQ(changed("-------------------- end of arguments ---------------------\n", ""),
            "run.log: line 2: the end of the arguments is missing");
  EXPECT_EQ(changed("------------------------ arguments ------------------------\n", ""),
            "run.log: line 39: the begin of the arguments is missing");
  // Megatron-LM prints the number of virtual stages that follows from the layers of each.
  EXPECT_EQ(changed("  num_query_groups ", "  num_layers_per_virtual_pipeline_stage .... 3\n  num_query_groups "),
            "no error");
  EXPECT_EQ(changed("  num_query_groups ", "  num_layers_per_virtual_pipeline_stage .... 2\n  num_query_groups "),
            "run.log: line 25: --num-layers-per-virtual-pipeline-stage: 2 layers are 3 virtual stages per rank, but 2 "
            "are printed");
  // A run that was started twice: its last dump counts.
  std::string twice = kImportedDump;
  twice.replace(twice.find("hidden_size ..................................... 1024"), 54, "hidden_size .... 512");
  EXPECT_EQ(import_text(twice + kImportedDump, "run.log").scenario, import_text(kImportedDump, "run.log").scenario);
}

// As argparse, with a note.
TEST(ImportMegatron, TheLastOfRepeatedArgumentsCounts) {
  const Imported imported = of_line(kImportedModel + "--seq-length 4096 --bf16 --global-batch-size 4");
  EXPECT_EQ(imported.scenario.at("batch").at("sequence_length"), 4096);
  EXPECT_THAT(imported.notes, ElementsAre("line: repeated, so that the last value counts: --seq-length 2048 and then "
                                          "--seq-length 4096"));
  EXPECT_EQ(line_error("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3 "
                       "--num-virtual-stages-per-pipeline-rank 2"),
            "line: --num-layers-per-virtual-pipeline-stage: excludes --num-virtual-stages-per-pipeline-rank");
  EXPECT_EQ(line_error("--world-size 8 --data-parallel-size 4 --tensor-model-parallel-size 4"),
            "line: --data-parallel-size: 4 x tp x cp x pp = 4 x 4 x 1 x 1 is not the number of GPUs, 8");
}

// The dump of a run with defaults has hundreds of attributes; none of them is worth a note.
TEST(ImportMegatron, DumpsOfDefaultsHaveNoNotes) {
  const std::string text = read_file(SLUICE_SOURCE_DIR "/tests/fuzz/corpus/import/dump_all.log");
  const Imported imported = import_text(text, "run.log");
  EXPECT_THAT(imported.notes, IsEmpty());
  EXPECT_EQ(scenario_from_json(imported.scenario, "run.log", "").microbatches, 16);
}

TEST(ImportMegatron, ScenariosAreNotForeign) {
  for (const char* text : {"", "{}", " {\"model\": \"--num-layers 2\"}", "[1, 2]", "nonsense", "\"--\""}) {
    EXPECT_FALSE(is_foreign(text)) << text;
  }
  EXPECT_TRUE(is_foreign("--num-layers 2"));
}

const std::string kImportedToml =
    "# a run\n"
    "[job]\ndescription = \"Llama 3 8B\"\n\n"
    "[model]\nname = \"llama3\"\nflavor = '8B'  # of three\nconverters = []\n\n"
    "[training]\nlocal_batch_size = 16\nglobal_batch_size = 32\nseq_len = 8_192\nsteps = 10\n\n"
    "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 1\n"
    "tensor_parallel_degree = 2\npipeline_parallel_degree = 4\n"
    "pipeline_parallel_schedule = \"Interleaved1F1B\"\npipeline_parallel_microbatch_size = 2\n\n"
    "[activation_checkpoint]\nmode = \"full\"\n";

TEST(ImportTorchtitan, ReadsJobConfigurations) {
  ASSERT_TRUE(is_foreign(kImportedToml));
  const Imported imported = import_text(kImportedToml, "run.toml");
  EXPECT_THAT(imported.notes, IsEmpty());
  // 32 layers, embedding and head on 8 stages: two have 5, less one for the embedding in the first; the last has 4 - 1.
  EXPECT_EQ(imported.scenario, Json::parse(R"({
    "schema": "sluice.scenario/1", "model": "llama3-8b",
    "parallelism": {"tp": 2, "pp": 4, "dp": 2, "vpp": 2, "sequence_parallel": true, "gathered_inputs": true,
                    "torch_pipelining": true, "recompute": "full",
                    "stage_layers": [4, 5, 4, 4, 4, 4, 4, 3], "cross_entropy_fusion_impl": "plain"},
    "batch": {"micro_batch": 2, "global_batch": 32, "sequence_length": 8192},
    "schedule": {"name": "interleaved-1f1b"}})"));
  EXPECT_EQ(scenario_from_json(imported.scenario, "run.toml", "").microbatches, 8);
}

TEST(ImportTorchtitan, NamesWhatIsNotModeledAndUnknown) {
  const Imported imported = import_text(
      "[model]\nflavor = \"8B\"\nconverters = [\"surprise\"]\n[parallelism]\nsurprising = 1\n[compile]\nenable = "
      "true\n",
      "run.toml");
  EXPECT_THAT(
      imported.notes,
      ElementsAre(
          "run.toml: not modeled, although they change time or memory: model.converters surprise, compile.enable",
          "run.toml: unknown keys: parallelism.surprising"));
  EXPECT_THAT(import_text("[model]\nname = \"llama3\"\n", "run.toml").notes,
              ElementsAre("run.toml: not modeled, although they change time or memory: activation_checkpoint.mode = "
                          "\"selective\" (none is assumed)"));
  const Imported copied =
      import_text("[model]\nflavor = \"8B\"\n[parallelism]\ndata_parallel_replicate_degree = 2\n", "run.toml");
  EXPECT_TRUE(copied.notes.empty());
  EXPECT_EQ(copied.scenario.at("parallelism").at("dp_replicate"), 2);
}

// PyTorch's loss is not fused, unless torch.compile includes it, as it does by default.
TEST(ImportTorchtitan, CompilesTheLoss) {
  const auto parallelism = [](const std::string& text) {
    return import_text("[model]\nflavor = \"8B\"\n" + text, "run.toml").scenario.at("parallelism");
  };
  for (const char* plain :
       {"", "[compile]\nenable = false\n", "[compile]\nenable = true\ncomponents = [\"model\"]\n"}) {
    EXPECT_EQ(parallelism(plain).at("cross_entropy_fusion_impl"), "plain") << plain;
    EXPECT_FALSE(parallelism(plain).contains("fused_cross_entropy")) << plain;
  }
  for (const char* fused : {"[compile]\nenable = true\n", "[compile]\nenable = true\ncomponents = [\"loss\"]\n"}) {
    EXPECT_EQ(parallelism(fused).at("cross_entropy_fusion_impl"), "te") << fused;
    EXPECT_EQ(parallelism(fused).at("fused_cross_entropy"), true) << fused;
  }
}

// torchtitan shards parameters over all data- and context-parallel ranks by default.
TEST(ImportTorchtitan, ShardsParameters) {
  const auto parallelism = [](const std::string& text) {
    return import_text("[model]\nflavor = \"8B\"\n[parallelism]\n" + text, "run.toml").scenario.at("parallelism");
  };
  EXPECT_EQ(parallelism(""), Json::parse(R"({"tp": 1, "pp": 1, "zero": 3, "recompute": "full", "recompute_layers": 16,
                            "cross_entropy_fusion_impl": "plain"})"));
  EXPECT_EQ(parallelism("[training]\nenable_cpu_offload = true\n").at("optimizer_cpu_offload"), true);
  EXPECT_FALSE(parallelism("[training]\nenable_cpu_offload = false\n").contains("optimizer_cpu_offload"));
  const Json copies = parallelism("data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n");
  EXPECT_EQ(copies.at("dp"), 8);
  EXPECT_EQ(copies.at("dp_shard"), 4);
  EXPECT_EQ(copies.at("zero"), 3);
  // Copies without shards are DDP, but context-parallel ranks share shards.
  EXPECT_FALSE(parallelism("data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 1\n").contains("zero"));
  EXPECT_EQ(parallelism("data_parallel_shard_degree = 1\ncontext_parallel_degree = 2\n").at("zero"), 3);
  EXPECT_FALSE(parallelism("fsdp_reshard_after_forward = 'default'\n").contains("reshard_after_forward"));
  EXPECT_EQ(parallelism("fsdp_reshard_after_forward = 'never'\n").at("reshard_after_forward"), false);
  EXPECT_EQ(parallelism("fsdp_reshard_after_forward = 'always'\n").at("reshard_after_forward"), true);
  EXPECT_EQ(import_error([&] { parallelism("fsdp_reshard_after_forward = 'no'\n"); }),
            "run.toml: line 4: parallelism.fsdp_reshard_after_forward: expected default, always or never, got 'no'");
}

TEST(ImportTorchtitan, ReadsCheckpointsConvertersAndOverlap) {
  const auto imported = [](const std::string& text) {
    return import_text("[model]\nflavor = \"8B\"\n" + text, "run.toml");
  };
  const auto recompute = [&](const std::string& option, const std::string& pipeline = "") {
    const Json found =
        imported(pipeline + "[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = '" + option + "'\n")
            .scenario.at("parallelism");
    return found.value("recompute", "none") + " " + std::to_string(found.value("recompute_layers", 0));
  };
  EXPECT_EQ(recompute("1"), "full 0");
  EXPECT_EQ(recompute("4"), "full 8");
  EXPECT_EQ(recompute("op"), "full 16");
  EXPECT_EQ(recompute("40"), "none 0");
  EXPECT_EQ(recompute("2", "[parallelism]\npipeline_parallel_degree = 4\n"), "full 4");
  EXPECT_EQ(
      import_error([&] { recompute("some"); }),
      "run.toml: line 5: activation_checkpoint.selective_ac_option: expected op or a number of layers, got 'some'");
  const Imported narrow = imported(
      "converters = ['quantize.linear.float8']\n[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n"
      "[parallelism]\ntensor_parallel_degree = 2\nenable_async_tensor_parallel = true\n");
  EXPECT_THAT(narrow.notes, IsEmpty());
  EXPECT_EQ(narrow.scenario.at("parallelism").at("precision"), "fp8-current");
  EXPECT_EQ(narrow.scenario.at("parallelism").at("fp8_param_gather"), true);
  EXPECT_EQ(narrow.scenario.at("parallelism").at("tp_comm_overlap"), true);
  EXPECT_THAT(imported("converters = ['float8']\n[float8]\nrecipe_name = 'rowwise'\n").notes,
              ElementsAre(HasSubstr("float8.recipe_name = \"rowwise\" (one scale per tensor is assumed)")));
  EXPECT_EQ(imported("converters = ['mx']\n").scenario.at("parallelism").at("precision"), "mxfp8");
}

TEST(ImportTorchtitan, ErrorsNameTheLine) {
  const auto error = [](const std::string& text) {
    return import_error([&] { import_text("[parallelism]\n" + text, "run.toml"); });
  };
  EXPECT_EQ(error("a = "), "run.toml: line 2: error while parsing key-value pair: encountered end-of-file");
  EXPECT_THAT(error("a = \"x\n"), HasSubstr("run.toml: line 2: error while parsing string: "));
  EXPECT_EQ(error("a = [1,\n 2\n 3]"),
            "run.toml: line 4: error while parsing array: expected comma or closing ']', saw '3'");
  EXPECT_EQ(error("a = 1\na = 2"),
            "run.toml: line 3: error while parsing key-value pair: cannot redefine existing integer 'a'");
  EXPECT_EQ(error("a = 1\n[parallelism]\nb = 2"),
            "run.toml: line 3: error while parsing table header: cannot redefine existing table 'parallelism'");
  EXPECT_EQ(error("a = 1 2"),
            "run.toml: line 2: error while parsing key-value pair: expected a comment or whitespace, saw '2'");
  EXPECT_EQ(error("a = \"\xff\""), "run.toml: line 2: encountered invalid utf-8 sequence");
  EXPECT_EQ(error("[= \"llama3\""), "run.toml: line 2: expected TOML");  // an assertion of toml++
  EXPECT_EQ(error(std::string(201, '.')), "run.toml: line 2: expected at most 200 dots");
  EXPECT_EQ(error("[[training]]\nseq_len = 2"), "run.toml: line 2: training: expected a table, got [{\"seq_len\":2}]");
  EXPECT_EQ(
      error("tensor_parallel_degree = 0"),
      "run.toml: line 2: parallelism.tensor_parallel_degree: expected a whole number from 1 to 1000000000, got 0");
  EXPECT_EQ(error("pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"ZB\""),
            "run.toml: line 3: parallelism.pipeline_parallel_schedule: expected one of 1F1B, GPipe, Interleaved1F1B, "
            "LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, got 'ZB'");
  EXPECT_EQ(error("pipeline_parallel_degree = 2"),
            "run.toml: model.flavor: required, because a pipeline needs the number of layers");
  EXPECT_EQ(error("pipeline_parallel_degree = 3\npipeline_parallel_layers_per_stage = 5\n[model]\nflavor = \"8B\""),
            "run.toml: line 3: parallelism.pipeline_parallel_layers_per_stage: 7 stages cannot be distributed evenly "
            "over 3 ranks");
}

// All forms of TOML that have the same meaning give the same scenario.
TEST(ImportTorchtitan, ReadsAllFormsOfToml) {
  const Json expected = import_text(kImportedToml, "run.toml").scenario;
  std::string windows;
  for (const char c : kImportedToml) windows += c == '\n' ? "\r\n" : std::string(1, c);
  const std::string dotted =
      "model.name = \"llama3\"\n\"model\".'flavor' = \"8B\"\n"
      "training = {local_batch_size = 16, global_batch_size = 0x20, seq_len = 8192}\n"
      "[ parallelism ]  # sizes\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 1\n"
      "tensor_parallel_degree = 2\npipeline_parallel_degree = 4\n"
      "pipeline_parallel_schedule = \"\"\"\nInterleaved1F1B\"\"\"\npipeline_parallel_microbatch_size = 2\n"
      "[activation_checkpoint]\nmode = 'full'\nstarted = 2026-01-01T00:00:00\n";
  for (const std::string& text : {"\xef\xbb\xbf" + kImportedToml, windows, dotted}) {
    SCOPED_TRACE(text);
    EXPECT_TRUE(is_foreign(text));
    EXPECT_EQ(import_text(text, "run.toml").scenario, expected);
  }
  for (const char* mark : {"\xff\xfe", "\xfe\xff", ""}) {
    std::string wide = mark;
    for (const char c : kImportedToml) wide += mark[0] == '\xfe' ? std::string{'\0', c} : std::string{c, '\0'};
    ASSERT_TRUE(is_foreign(wide));
    EXPECT_EQ(import_error([&] { import_text(wide, "run.toml"); }),
              "run.toml: expected UTF-8, got UTF-16: iconv -f UTF-16 -t UTF-8 run.toml converts it");
  }
}

TEST(ImportTorchtitan, TomlIsNoLineOfArguments) {
  EXPECT_EQ(import_error([] { of_line(kImportedToml); }),
            "line: expected arguments of Megatron-LM, such as --num-layers 32, got '#'");
  EXPECT_EQ(import_error([] { of_line("[training]\nsteps = 1 # --num-layers 3"); }),
            "line: expected arguments of Megatron-LM, such as --num-layers 32, got '[training]'");
}

TEST(ImportTorchtitan, ErrorsOfTheScenarioNameTheKey) {
  const Imported imported =
      import_text("[model]\nflavor = \"odd\"\n[parallelism]\ntensor_parallel_degree = 3\n", "run.toml");
  EXPECT_EQ(
      import_error([&] { check_complete(imported.scenario, "run.toml", imported); }),
      "run.toml: line 2: model.flavor: the model 'odd' of llama3 is not known: specify --model, or a flavor that is "
      "known: 8B of llama3, 70B of llama3, 236B of deepseek_v3, 671B of deepseek_v3, 30B-A3B of qwen3");
  EXPECT_EQ(naming_arguments("run.toml: /parallelism/tp: expected 1", "run.toml", imported),
            "run.toml: line 4: parallelism.tensor_parallel_degree: expected 1");
  EXPECT_EQ(naming_arguments("run.toml: /parallelism: expected 1", "run.toml", imported),
            "run.toml: /parallelism: expected 1");
}

// Damaged input is rejected or read, and never anything else.
TEST(ImportMegatron, RejectsDamagedInput) {
  std::mt19937 random(1);
  int accepted = 0;
  for (const std::string& text : {kImportedScript, kImportedDump, kImportedToml}) {
    for (int i = 0; i < 3000; ++i) {
      std::string damaged = text;
      const int changes = 1 + static_cast<int>(random() % 4);
      for (int change = 0; change < changes; ++change) {
        const std::size_t at = random() % damaged.size();
        const std::size_t length = std::min<std::size_t>(random() % 40, damaged.size() - at);
        switch (random() % 4) {
          case 0: damaged.erase(at, length); break;
          case 1: damaged[at] = "\"'`$(){}\\\n;|&<>*-=0\0#x"[random() % 23]; break;
          case 2: damaged.insert(at, damaged.substr(random() % damaged.size(), length)); break;
          default: damaged.insert(at, "99999999999"); break;
        }
        if (damaged.empty()) damaged = "x";
      }
      try {
        scenario_from_json(import_text(damaged, "text").scenario, "text", "");
        ++accepted;
      } catch (const InputError& error) {
        EXPECT_STRNE(error.what(), "");
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace sluice::test

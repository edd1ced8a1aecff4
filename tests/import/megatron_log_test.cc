#include "import/megatron_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "model/scenario/scenario.h"

namespace sluice::test {
namespace {

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

constexpr const char* kIterations =
    " iteration 1/9 | elapsed time per iteration (ms): 9000.0 | global batch size:   256 |\n"
    "  iteration 2/9 | elapsed time per iteration (ms): 800.5\r\n"
    "[default0]: iteration 3/9 | elapsed time per iteration (ms): 700 | global batch size:   512 | lm loss: 1.0 |\n";

TEST(MegatronLogs, AreReadInOlderAndNewerFormats) {
  const MegatronLog log = parse_megatron_log(
      "using world size: 16\n"
      "------------------------ arguments ------------------------\n"
      "  global_batch_size ............................... 512\n"
      "[default0]:  recompute_granularity ........................... None\n" +
          std::string(kIterations),
      "x.log");
  EXPECT_EQ(log.seconds, (std::vector<double>{9, 0.8005, 0.7}));
  ASSERT_EQ(log.arguments.size(), 2U);
  EXPECT_EQ(log.arguments[0].name, "global_batch_size");
  EXPECT_EQ(log.arguments[0].value, "512");
  EXPECT_EQ(log.arguments[0].line, 3);
  EXPECT_EQ(log.arguments[1].name, "recompute_granularity");
  EXPECT_EQ(log.arguments[1].value, "None");
}

TEST(MegatronLogs, ErrorsNameFileAndLine) {
  const auto error = [](const std::string& text) { return error_of([&] { parse_megatron_log(text, "x.log"); }); };
  EXPECT_EQ(error("nothing\n"),
            "x.log: expected a table (.csv), or a log with lines 'elapsed time per iteration (ms): ...'");
  for (const char* wrong : {"nan", "12.5abc", "10,5", "1 234.5", "-3", "inf", "0", "", "5 6"}) {
    EXPECT_EQ(
        error(std::string("a\nelapsed time per iteration (ms): ") + wrong + " | lm loss: 1 |\n"),
        std::string("x.log: line 2: expected milliseconds after 'elapsed time per iteration (ms):', then '|' or the "
                    "end of the line, got '") +
            wrong + "'");
  }
}

// The two forms of timers: extremes over the ranks, and a line for each rank; those of the setup belong to no
// iteration.
TEST(MegatronLogs, TimersAreRead) {
  const MegatronLog log = parse_megatron_log(
      "(min, max) time across ranks (ms):\n"
      "    model-and-optimizer-setup ......................: (1020.90, 1022.97)\n"
      " [2026-01-01 10:00:00] iteration        7/      50 | elapsed time per iteration (ms): 900 |\n"
      "INFO:megatron.core.timers:(min, max) time across ranks (ms):\n"
      "    forward-backward ...............................: (600.00, 800.50)\n"
      "    optimizer ......................................: 50.25\n"
      "  done: (not a timer)\n"
      "    all-grads-sync .................................: (1.00, 2.00)\n"
      "[default3]: iteration 8/50 | elapsed time per iteration (ms): 910 |\n"
      "[default3]:times across ranks (ms):\n"
      "[default3]:  forward-compute:\n"
      "[default3]:     rank  1: 20.00\n"
      "[default3]:     rank 12: 30.00\n",
      "x.log");
  EXPECT_EQ(log.iterations, (std::vector<std::int64_t>{7, 8}));
  ASSERT_EQ(log.tables.size(), 2U);
  EXPECT_EQ(log.tables[0].iteration, 0U);
  ASSERT_EQ(log.tables[0].timers.size(), 2U);
  EXPECT_EQ(log.tables[0].timers[0].name, "forward-backward");
  EXPECT_EQ(log.tables[0].timers[0].min_s, 0.6);
  EXPECT_EQ(log.tables[0].timers[0].max_s, 0.8005);
  EXPECT_EQ(log.tables[0].timers[1].min_s, 0.05025);
  EXPECT_EQ(log.tables[0].timers[1].max_s, 0.05025);
  ASSERT_EQ(log.tables[1].timers.size(), 1U);
  const LoggedTimer& by_rank = log.tables[1].timers[0];
  ASSERT_EQ(by_rank.ranks_s.size(), 13U);
  EXPECT_EQ(by_rank.ranks_s[0], 0);
  EXPECT_EQ(by_rank.ranks_s[1], 0.02);
  EXPECT_EQ(by_rank.ranks_s[12], 0.03);
  EXPECT_EQ(by_rank.min_s, 0.02);
  EXPECT_EQ(by_rank.max_s, 0.03);
  const auto error = [](const std::string& lines) {
    return error_of([&] {
      parse_megatron_log("iteration 1 | elapsed time per iteration (ms): 9 |\ntimes across ranks (ms):\n" + lines,
                         "x.log");
    });
  };
  EXPECT_EQ(error("  optimizer ......: (3.0, 2.0)\n"),
            "x.log: line 3: expected 'timer ...: (least, most)' or 'timer ...: most' in milliseconds, got 'optimizer "
            "......: (3.0, 2.0)'");
  EXPECT_EQ(error("  optimizer:\n   rank -1: 2.0\n"),
            "x.log: line 4: expected 'rank N: milliseconds', got 'rank -1: 2.0'");
  EXPECT_EQ(error("  optimizer:\n   rank 1: nan\n"),
            "x.log: line 4: expected 'rank N: milliseconds', got 'rank 1: nan'");
}

TEST(MegatronLogs, ArgumentsMustMatchTheScenario) {
  const Json document = Json::parse(
      R"({"model": {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 51200,
                    "max_position_embeddings": 1024},
          "batch": {"sequence_length": 1024, "global_batch": 512, "micro_batch": 2},
          "parallelism": {"pp": 4, "tp": 2, "dp": 2}, "cluster": "dgx-a100-80gb"})");
  const Scenario scenario = scenario_from_json(document, "s.json", "");
  const auto error = [&](const std::string& argument, const std::string& value, int skip = 2) {
    const std::string text = argument.empty() ? "" : "  " + argument + " ........ " + value + "\n";
    return error_of([&] { check_arguments(parse_megatron_log(text + kIterations, "x.log"), scenario, skip); });
  };
  EXPECT_EQ(error("", ""), "no error");
  EXPECT_EQ(error("", "", 0), "x.log: line 1: global batch size is 256, but the scenario (s.json) has 512");
  const std::pair<const char*, std::pair<const char*, const char*>> all[] = {
      {"global_batch_size", {"512", "1024"}},
      {"micro_batch_size", {"2", "1"}},
      {"seq_length", {"1024", "2048"}},
      {"num_layers", {"8", "16"}},
      {"hidden_size", {"1024", "2048"}},
      {"num_attention_heads", {"16", "8"}},
      {"ffn_hidden_size", {"4096", "8192"}},
      {"tensor_model_parallel_size", {"2", "1"}},
      {"pipeline_model_parallel_size", {"4", "2"}},
      {"data_parallel_size", {"2", "4"}},
      {"context_parallel_size", {"1", "2"}},
      {"world_size", {"16", "32"}},
      {"virtual_pipeline_model_parallel_size", {"None", "2"}},
      {"num_experts", {"None", "8"}},
      {"sequence_parallel", {"False", "True"}},
      {"use_distributed_optimizer", {"False", "True"}},
      {"swiglu", {"False", "True"}},
      {"recompute_granularity", {"selective", "full"}},
  };
  for (const auto& [name, values] : all) {
    EXPECT_EQ(error(name, values.first), "no error") << name;
    EXPECT_THAT(error(name, values.second), testing::StartsWith(std::string("x.log: line 1: ") + name + " is " +
                                                                values.second + ", but the scenario (s.json) has "));
  }
  EXPECT_EQ(error("global_batch_size", "1024"),
            "x.log: line 1: global_batch_size is 1024, but the scenario (s.json) has 512");
  EXPECT_EQ(error("lr_decay_style", "cosine"), "no error");
  // FSDP has an argument of its own.
  Scenario sharded = scenario;
  sharded.training.distributed_optimizer = true;
  sharded.training.zero = 3;
  for (const char* value : {"False", "True"}) {
    const std::string text = std::string("  use_distributed_optimizer ........ ") + value + "\n" + kIterations;
    EXPECT_NO_THROW(check_arguments(parse_megatron_log(text, "x.log"), sharded, 2)) << value;
  }
}

}  // namespace
}  // namespace sluice::test

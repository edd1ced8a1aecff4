// What commands derive from what a user gives, and name.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<std::string> quoted_words(const std::string& line) {
  const auto quote = line.find('\'');
  if (quote == std::string::npos) return words(line);
  const auto end = line.find('\'', quote + 1);
  std::vector<std::string> out = words(line.substr(0, quote));
  out.push_back(line.substr(quote + 1, end - quote - 1));
  for (std::string& word : words(line.substr(end + 1))) out.push_back(std::move(word));
  return out;
}

std::string written(const TemporaryFolder& folder, const std::string& name, const std::string& text) {
  std::string path = folder.path(name);
  model::write_file_whole(path, text);
  return path;
}

// Without w, b is the whole backward; missing times follow from the given ones, and the output names what it assumed.
TEST(Simulate, DerivesTimesThatAreNotGivenAndNamesThem) {
  const auto text_of = [](double f, double b, double w) {
    std::string out;
    for (const auto& [key, value] : {std::pair("f", f), {"b", b}, {"w", w}}) {
      if (value >= 0) out += fmt::format("{}{}={}", out.empty() ? "" : ",", key, value);
    }
    return out;
  };
  struct Case {
    double f, b, w;            // -1: not given
    double all[3];             // what they mean
    std::string_view assumed;  // in the text
  };
  const Case cases[] = {{0.25, 0.5, -1, {0.25, 0.25, 0.25}, "b is the whole backward"},
                        {0.25, 1, -1, {0.25, 0.5, 0.5}, "b is the whole backward"},
                        {-1, 0.5, -1, {0.25, 0.25, 0.25}, "f is half of b"},
                        {0.25, -1, -1, {0.25, 0.25, 0.25}, "b is f; w is f"},
                        {0.25, -1, 0.5, {0.25, 0.25, 0.5}, "b is f"},
                        {-1, -1, 0.5, {0.5, 0.5, 0.5}, "f is w; b is f"},
                        {-1, 0.25, 0.5, {0.25, 0.25, 0.5}, "f is b"},
                        {0.25, 0.5, 0.75, {0.25, 0.5, 0.75}, ""}};
  for (const Case& c : in_scope(cases)) {
    for (const char* family : {"1f1b", "zb-h1", "dualpipe-v"}) {
      const std::string run = fmt::format("simulate --schedule {} --pp 4 --microbatches 8 --uniform ", family);
      const std::string given = text_of(c.f, c.b, c.w);
      SCOPED_TRACE(run + given);
      const json document = json::parse(run_sluice(words(run + given + " --json")).out);
      const json all = json::parse(run_sluice(words(run + text_of(c.all[0], c.all[1], c.all[2]) + " --json")).out);
      EXPECT_EQ(document.at("makespan_s"), all.at("makespan_s"));
      EXPECT_EQ(document.at("ranks"), all.at("ranks"));
      EXPECT_THAT(document.at("assumptions").dump(), HasSubstr("comm is 0"));
      const std::string text = run_sluice(words(run + given)).out;
      EXPECT_THAT(text, HasSubstr(c.assumed));
      EXPECT_EQ(text.find("assumed") != std::string::npos, !c.assumed.empty());
      const TemporaryFolder folder;
      json cost = {{"kind", "uniform"}};
      for (const auto& [key, value] : {std::pair("f", c.f), {"b", c.b}, {"w", c.w}}) {
        if (value >= 0) cost[key] = value;
      }
      const std::string file = written(
          folder, "s.json",
          json{{"schedule", family}, {"parallelism", {{"pp", 4}}}, {"batch", {{"microbatches", 8}}}, {"cost", cost}}
              .dump());
      const json of_file = json::parse(run_sluice({"simulate", file, "--json"}).out);
      EXPECT_EQ(of_file.at("makespan_s"), document.at("makespan_s"));
      EXPECT_EQ(of_file.at("assumptions"), document.at("assumptions"));
    }
  }
  // Other commands with these costs say so beside their output.
  for (const char* line : {"slice --pp 4 --seq-length 64 --uniform f=1,b=2 --backward --granularity 8",
                           "simulate --pp 4 --uniform f=1,b=2 --sweep microbatches=4,8",
                           "schedule auto --pp 2 --microbatches 4 --uniform f=1,b=2 --time-budget 0.1"}) {
    EXPECT_THAT(run_sluice(words(line)).err, HasSubstr("b is the whole backward")) << line;
  }
}

// The GPUs of a plan follow from what is given: --gpus, the cluster's size, or tp x cp x pp x dp of flags and file.
TEST(PlanCommand, GpusFollowFromWhatIsGiven) {
  const TemporaryFolder folder;
  const auto file = [&](const char* name, const json& parallelism, int nodes = 0) {
    json cluster = {{"name", "dgx-h100"}};
    if (nodes > 0) cluster["nodes"] = nodes;
    return written(folder, name,
                   json{{"model", "llama3-8b"},
                        {"cluster", cluster},
                        {"parallelism", parallelism},
                        {"batch", {{"global_batch", 192}, {"sequence_length", 4096}}}}
                       .dump());
  };
  const std::string whole = file("whole.json", {{"tp", 4}, {"pp", 12}, {"dp", 8}});
  const std::string open = file("open.json", {{"tp", 4}, {"pp", 12}});
  const std::string sized = file("sized.json", {{"tp", 4}, {"pp", 12}, {"dp", 8}}, 3);
  const std::string counted = file("counted.json", {{"gpus", 24}, {"pp", 2}});
  const std::string flags = "--model llama3-8b --cluster dgx-h100 --gbs 192 --seq-length 4096 ";
  const std::string megatron =
      "--cluster dgx-h100 --megatron-args '--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length "
      "4096 "
      "--ffn-hidden-size 14336 --vocab-size 128256 --max-position-embeddings 4096 --bf16 --micro-batch-size 1 "
      "--global-batch-size 192 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel' ";
  struct Case {
    std::string given;
    std::string first;
    std::string note = {};  // about the keys of the file
  };
  const auto note = [](const std::string& path, const std::string& text) {
    return "sluice: " + path + ": plan " + text + "\n";
  };
  const auto gives_gpus = [&](const std::string& path, const std::string& keys) {
    return note(path, "takes the number of GPUs from " + keys + ", and searches these sizes unless flags set them");
  };
  const std::string sizes = "/parallelism/pp, /parallelism/tp, /parallelism/dp";
  const Case cases[] = {
      {whole, "384 of 384 GPUs, 48 x DGX H100", gives_gpus(whole, sizes)},
      {whole + " --tp 8", "384 of 384 GPUs, 48 x DGX H100",
       gives_gpus(whole, sizes)},  // another configuration of the same GPUs
      {whole + " --dp 4", "192 of 192 GPUs, 24 x DGX H100",
       gives_gpus(whole, "/parallelism/pp, /parallelism/tp") + note(whole, "ignores /parallelism/dp")},
      {whole + " --gpus 16", "16 of 16 GPUs, 2 x DGX H100", note(whole, "ignores " + sizes)},
      {whole + " --nodes 4", "32 of 32 GPUs, 4 x DGX H100", note(whole, "ignores " + sizes)},
      {open, "48 of 48 GPUs, 6 x DGX H100", gives_gpus(open, "/parallelism/pp, /parallelism/tp")},
      {open + " --dp 2", "96 of 96 GPUs, 12 x DGX H100", gives_gpus(open, "/parallelism/pp, /parallelism/tp")},
      {sized, "24 of 24 GPUs, 3 x DGX H100", note(sized, "ignores " + sizes)},
      {sized + " --gpus 12", "12 of 24 GPUs, 3 x DGX H100", note(sized, "ignores " + sizes)},
      {counted, "24 of 24 GPUs, 3 x DGX H100", note(counted, "ignores /parallelism/pp")},
      {flags, "8 of 8 GPUs, 1 x DGX H100"},
      {flags + "--tp 8 --pp 4", "32 of 32 GPUs, 4 x DGX H100"},
      {flags + "--tp 4 --pp 12 --dp 8", "384 of 384 GPUs, 48 x DGX H100"},
      {flags + "--dp 2 --pp 2", "4 of 8 GPUs, 1 x DGX H100"},
      {flags + "--dp 4 --pp 4 --cp 2", "32 of 32 GPUs, 4 x DGX H100"},
      {megatron + "--dp 8", "64 of 64 GPUs, 8 x DGX H100"},
  };
  for (const auto& [given, first, note_of_keys] : in_scope(cases)) {
    SCOPED_TRACE(given);
    const std::string plan = "plan --schedule 1f1b --mbs 1 --recompute full --even-stages " + given;
    const CommandResult text = run_sluice(quoted_words(plan));
    EXPECT_THAT(text.out, testing::StartsWith(first + " · evaluated "));
    if (given.find("--megatron-args") == std::string::npos) {
      EXPECT_EQ(text.err, note_of_keys);
    }
    const json document = json::parse(run_sluice(quoted_words(plan + " --json")).out);
    EXPECT_EQ(document.at("gpus").at("used").get<int>(), std::stoi(first));
    for (const char* list : {"ranking", "others"}) {
      for (const json& row : document.at(list)) {
        int product = 1;
        for (const char* size : {"tp", "cp", "pp", "dp"}) product *= row.at(size).get<int>();
        EXPECT_EQ(product, std::stoi(first));
      }
    }
  }
  const std::pair<std::string, std::string> contradictions[] = {
      {flags + "--gpus 64 --tp 4 --pp 12 --dp 8",
       "plan: no requested combination of tp x pp x dp equals 64 GPUs of --gpus (--tp 4 --pp 12 --dp 8)"},
      {flags + "--nodes 4 --tp 4 --pp 4 --dp 4",
       "plan: no requested combination of tp x pp x dp equals 32 GPUs of 4 x DGX H100 (--tp 4 --pp 4 --dp 4)"},
      {counted + " --tp 4 --pp 4 --dp 4",
       "plan: no requested combination of tp x pp x dp equals 24 GPUs of /parallelism/gpus (--tp 4 --pp 4 --dp 4)"},
      {whole + " --tp 5",
       "plan: no requested combination of tp x pp x dp equals 384 GPUs of the scenario's tp x cp x pp x dp (--tp 5)"},
      {flags + "--tp 2,4 --dp 8", "plan: --gpus: required, since --tp 2,4 --dp 8 fit several numbers of GPUs"},
      {flags + "--nodes 4 --gpus 64", "--gpus: expected at most the 32 of DGX H100, got 64"},
  };
  for (const auto& [given, message] : contradictions) {
    const CommandResult result = run_sluice(quoted_words("plan " + given));
    EXPECT_EQ(result.exit_code, 2) << given;
    EXPECT_THAT(result.err, HasSubstr("sluice: " + message + "\n")) << given;
  }
}

TEST(Suggestions, NamesWithTheWordComeBeforeTypos) {
  for (const auto& [word, suggestion] : {std::pair("h100", "; did you mean 'dgx-h100' or 'h100-96gb'?"),
                                         {"H200", "; did you mean 'dgx-h200'?"},
                                         {"b200", "; did you mean 'dgx-b200'?"},
                                         {"h80", "; did you mean 'h800'?"}}) {
    const std::string line = fmt::format("simulate --model llama3-8b --pp 2 --microbatches 4 --cluster {}", word);
    EXPECT_THAT(run_sluice(words(line)).err, HasSubstr(fmt::format("got \"{}\"{}\n", word, suggestion)));
  }
}

TEST(PlanCommand, NumbersOfGpusThatLeaveNoReplicasAreNamed) {
  const std::string plan = "plan --model llama3-8b --cluster dgx-h100 --gbs 64 --seq-length 8192 --gpus ";
  const std::pair<const char*, const char*> cases[] = {
      {"511", "496 or 512"}, {"509", "496 or 512"}, {"127", "124 or 128"}};
  for (const auto& [gpus, usable] : in_scope(cases)) {
    const CommandResult result = run_sluice(words(plan + gpus));
    EXPECT_EQ(result.err, fmt::format("sluice: plan: {} GPUs of --gpus leave no data-parallel size that divides the "
                                      "global batch 64: use {} GPUs, or another batch\n",
                                      gpus, usable));
  }
  EXPECT_EQ(run_sluice(words(plan + "496 --schedule 1f1b --mbs 1 --recompute full --even-stages")).exit_code, 0);
}

TEST(Inputs, YamlIsNamed) {
  const TemporaryFolder folder;
  const std::string yaml = "# a comment\nmodel: llama3-8b\n";
  for (const auto& [name, text] : {std::pair("a.yaml", yaml),
                                   {"b.yml", "- model\n- trainer\n"},
                                   {"c.yaml", "{model: llama3-8b}\n"},
                                   {"d", "---\nmodel: llama3-8b\n"},
                                   {"e.yaml", "\"model\": llama3-8b\n"},
                                   {"f.json", yaml}}) {
    const std::string file = written(folder, name, text);
    for (const std::string& line :
         {"simulate " + file, "plan " + file, "simulate --pp 2 --microbatches 2 --cluster " + file,
          "simulate --pp 2 --microbatches 2 --seq-length 64 --model " + file, "compare " + file + " " + file}) {
      if (std::string_view(name) == "d" && line.find("--") != std::string::npos) continue;
      const CommandResult result = run_sluice(words(line));
      EXPECT_EQ(result.exit_code, 2) << line;
      EXPECT_THAT(result.err, HasSubstr("YAML")) << line;
      EXPECT_THAT(result.err, testing::Not(HasSubstr("not JSON"))) << line;
    }
  }
}

// The flags that plan prints are valid after those that it was given, and mean the configuration of the row.
TEST(PlanCommand, PrintedFlagsMayFollowTheGivenOnes) {
  const std::string base = "--model llama3-8b --cluster dgx-h100 --gbs 32 --seq-length 4096 ";
  for (const std::string& flags : in_scope(std::vector<std::string>{
           "--zero-stage 0", "--zero-stage 1", "--zero-stage 1 | --use-distributed-optimizer no",
           "--zero-stage 1 | --dp 1", "--zero-stage 2", "--zero-stage 2 | --dp 1", "--zero-stage 3 | --dp 1",
           "--decoder-first-pipeline-num-layers 7", "--decoder-last-pipeline-num-layers 7",
           "--recompute-modules mlp | --recompute selective", "--overlap-p2p-communication"})) {
    SCOPED_TRACE(flags);
    const std::string given = flags.substr(0, flags.find('|'));
    const std::string searched = flags.find('|') == std::string::npos ? "" : flags.substr(flags.find('|') + 1);
    const json document = json::parse(
        run_sluice(words("plan --json --schedule 1f1b --mbs 1 --tp 1 --pp 4 --top 3 " + base + given + searched)).out);
    for (const json& row : document.at("ranking")) {
      const CommandResult result =
          run_sluice(quoted_words("simulate --json " + base + given + " " + row.at("flags").get<std::string>()));
      ASSERT_NE(result.out, "") << result.err;
      EXPECT_EQ(json::parse(result.out).at("makespan_s"), row.at("makespan_s"));
    }
  }
}

// An MFU above what the GPU sustains is remarked: by what counts, or as an error.
TEST(Throughput, ImpossibleMfuIsRemarked) {
  const std::string base = "--model llama3-8b --cluster dgx-a100-80gb --pp 1 --tp 8 --gbs 4 --seq-length ";
  const auto remark = [&](const std::string& line) {
    const json document = json::parse(run_sluice(words("simulate --json " + base + line)).out);
    const json& found = document.at("throughput").at("remark");
    const std::string text = run_sluice(words("simulate " + base + line)).out;
    std::string out = found.is_string() ? found.get<std::string>() : "";
    EXPECT_THAT(text, HasSubstr(out));
    return out;
  };
  EXPECT_EQ(remark("8192"), "");
  EXPECT_THAT(remark("8388608"), HasSubstr("since it counts attention as the full square"));
  EXPECT_THAT(remark("8192 --uniform f=0.0001,b=0.0002"),
              HasSubstr("an error of the cost model or of the given times"));
  const CommandResult sweep =
      run_sluice(words("simulate --uniform f=0.0001,b=0.0001,w=0.0001 --sweep gbs=4,8 " + base + "8192"));
  EXPECT_THAT(sweep.err, HasSubstr("an error of the cost model or of the given times"));
}

// Sharding more never needs more memory, with any number of replicas and pipeline ranks; nor do more replicas.
TEST(Memory, FallsWithTheStageOfZeroAndTheReplicas) {
  for (const std::string model : {"llama3-8b", "qwen3-30b-a3b"}) {
    for (const std::string& family : in_scope(std::vector<std::string>{"1f1b", "zb-h1", "gpipe"})) {
      for (const int pp : {1, 2, 4}) {
        std::int64_t of_fewer[3] = {};
        for (const int dp : {1, 2, 4}) {
          std::int64_t last = 0;
          for (const int stage : {0, 1, 2}) {
            const std::string line = fmt::format(
                "simulate --json --explain-memory --model {} --cluster dgx-b200 --schedule {} --pp {} --dp {} --mbs 1 "
                "--microbatches 4 --seq-length 8192 --recompute full --zero-stage {}",
                model, family, pp, dp, stage);
            SCOPED_TRACE(line);
            const json document = json::parse(run_sluice(words(line)).out);
            const auto needed = document.at("memory").at("needed_bytes").get<std::int64_t>();
            EXPECT_LE(needed, stage > 0 ? last : needed);
            EXPECT_LE(needed, dp > 1 ? of_fewer[stage] : needed);
            last = of_fewer[stage] = needed;
            std::int64_t sum = 0;
            for (const json& tensor : document.at("explain_memory").at("tensors")) {
              sum += tensor.at("bytes").get<std::int64_t>();
            }
            EXPECT_EQ(sum, document.at("explain_memory").at("bytes").get<std::int64_t>());
          }
        }
      }
    }
  }
}

// A number of microbatches gives the batch of a plan where dp and the micro batch are given.
TEST(PlanCommand, MicrobatchesGiveTheBatch) {
  const std::string plan =
      "plan --json --model llama3-8b --cluster dgx-h100 --seq-length 4096 --schedule 1f1b --recompute full --tp 2 --pp "
      "4 "
      "--use-distributed-optimizer no --use-tp-pp-dp-mapping no --recompute-num-layers 2 ";
  for (const char* more : {"", "--partition "}) {
    const json by_batch = json::parse(run_sluice(words(plan + more + "--dp 2 --mbs 2 --gbs 32")).out);
    for (const char* given : {"--dp 2 --mbs 2 --microbatches 8", "--gpus 16 --mbs 2 --microbatches 8"}) {
      const json found = json::parse(run_sluice(words(plan + more + given)).out);
      const char* key = *more == 0 ? "ranking" : "iteration_s";
      EXPECT_EQ(found.at(key), by_batch.at(key)) << more << given;
    }
  }
  EXPECT_THAT(run_sluice(words(plan + "--microbatches 8 --dp 2 --mbs 1,2")).err, HasSubstr("one value each of --mbs"));
  EXPECT_THAT(run_sluice(words("simulate --num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 64 "
                               "--position-embedding-type rope "
                               "--seq-length 64 --pp 8 --microbatches 8 --cluster dgx-h100"))
                  .err,
              HasSubstr("8 stages are more than the 4 layers of 64\n"));
}

}  // namespace
}  // namespace sluice::test

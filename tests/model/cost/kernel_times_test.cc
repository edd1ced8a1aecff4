#include "model/cost/kernel_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/cluster/cluster.h"
#include "model/cost/explain.h"
#include "model/cost/kernel_uses.h"
#include "model/input/json_reader.h"
#include "model/schedule/family.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

struct ListedKernels {
  Transformer model;
  Training training;
  std::vector<StageContents> stages;
  Schedule schedule;

  AnalyticCost cost(KernelTimes times = {}) const {
    return {model, training, stages, load_cluster("dgx-h100", 1), load_software("megatron-lm"), std::move(times)};
  }
  KernelUses uses(KernelTimes times = {}) const { return kernel_uses(cost(std::move(times)), schedule); }
};

// One stage with all layers and two microbatches of one sequence.
ListedKernels listed_kernels(const Transformer& model, Training training, const std::string& family = "1f1b") {
  training.pp = 1;
  FamilyParams params{.ranks = 1, .microbatches = 2};
  params.shape.slice_lengths = {training.sequence_length};
  return {model, training, split_layers(model, 1, {}, 0, 0), make_schedule(find_family(family), params)};
}

ListedKernels llama(int tp) {
  Training training;
  training.tp = tp;
  training.sequence_length = 8192;
  return listed_kernels(example("llama3-8b/config.json"), training);
}

ListedKernels mixtral(int tp, int ep) {
  Training training;
  training.tp = tp;
  training.ep = ep;
  training.sequence_parallel = tp > 1;
  training.dp = ep > tp ? ep / tp : 1;
  training.sequence_length = 4096;
  return listed_kernels(example("mixtral-8x7b/config.json"), training);
}

// "count x kernel" of each shape, with the type of the sum and whether the GEMMs are grouped.
std::vector<std::string> kernel_texts(const KernelUses& uses) {
  std::vector<std::string> out;
  for (const KernelUse& use : uses.shapes) {
    std::string text = std::to_string(use.count) + " x " + to_string(use.shape);
    if (use.shape.grouped) text += " grouped";
    if (use.shape.accumulate_bytes > 0) text += " +" + std::to_string(use.shape.accumulate_bytes);
    out.push_back(text);
  }
  return out;
}

// Rows 8,192; hidden 4,096; QKV 4,096 + 2 x 1,024; gated MLP 2 x 14,336; words 128,256. 32 layers, 2 microbatches: 64.
// The input gradient of [m, k] x [k, n] is [m, n] x [n, k], its weight gradient [k, m] x [m, n].
TEST(KernelShapes, AreTheGemmsAndAttentionOfADenseLayerAndTheHead) {
  EXPECT_THAT(
      kernel_texts(llama(1).uses()),
      UnorderedElementsAre(
          "64 x GEMM forward bf16 8192 x 6144 x 4096", "64 x GEMM forward bf16 8192 x 4096 x 4096",
          "64 x GEMM forward bf16 8192 x 28672 x 4096", "64 x GEMM forward bf16 8192 x 4096 x 14336",
          "2 x GEMM forward bf16 8192 x 128256 x 4096", "64 x GEMM input gradient bf16 8192 x 4096 x 6144",
          "64 x GEMM input gradient bf16 8192 x 4096 x 4096", "64 x GEMM input gradient bf16 8192 x 4096 x 28672",
          "64 x GEMM input gradient bf16 8192 x 14336 x 4096", "2 x GEMM input gradient bf16 8192 x 4096 x 128256",
          "64 x GEMM weight gradient bf16 4096 x 6144 x 8192 +4",
          "64 x GEMM weight gradient bf16 4096 x 4096 x 8192 +4",
          "64 x GEMM weight gradient bf16 4096 x 28672 x 8192 +4",
          "64 x GEMM weight gradient bf16 14336 x 4096 x 8192 +4",
          "2 x GEMM weight gradient bf16 4096 x 128256 x 8192 +4",
          "64 x attention forward bf16 1 x 8192 tokens, 32 heads of 128",
          "64 x attention backward bf16 1 x 8192 tokens, 32 heads of 128"));
}

// An eighth of the outputs (QKV, MLP in, head) or inputs (projection, MLP out); the vocabulary is padded to a multiple
// of 128 x 8: 129,024 / 8 = 16,128.
TEST(KernelShapes, AreDividedByTensorParallelism) {
  const KernelUses uses = llama(8).uses();
  EXPECT_THAT(
      kernel_texts(uses),
      UnorderedElementsAre(
          "64 x GEMM forward bf16 8192 x 768 x 4096", "64 x GEMM forward bf16 8192 x 4096 x 512",
          "64 x GEMM forward bf16 8192 x 3584 x 4096", "64 x GEMM forward bf16 8192 x 4096 x 1792",
          "2 x GEMM forward bf16 8192 x 16128 x 4096", "64 x GEMM input gradient bf16 8192 x 4096 x 768",
          "64 x GEMM input gradient bf16 8192 x 512 x 4096", "64 x GEMM input gradient bf16 8192 x 4096 x 3584",
          "64 x GEMM input gradient bf16 8192 x 1792 x 4096", "2 x GEMM input gradient bf16 8192 x 4096 x 16128",
          "64 x GEMM weight gradient bf16 4096 x 768 x 8192 +4", "64 x GEMM weight gradient bf16 512 x 4096 x 8192 +4",
          "64 x GEMM weight gradient bf16 4096 x 3584 x 8192 +4",
          "64 x GEMM weight gradient bf16 1792 x 4096 x 8192 +4",
          "2 x GEMM weight gradient bf16 4096 x 16128 x 8192 +4",
          "64 x attention forward bf16 1 x 8192 tokens, 4 heads of 128",
          "64 x attention backward bf16 1 x 8192 tokens, 4 heads of 128"));
  EXPECT_EQ(uses.shapes.back().shape.attention.kv_heads, 1);  // 8 / 8
}

std::vector<std::string> expert_texts(const KernelUses& uses) {
  std::vector<std::string> out;
  for (const std::string& text : kernel_texts(uses)) {
    if (text.find("grouped") != std::string::npos || text.find(" 8 ") != std::string::npos || text.ends_with(" 8") ||
        text.find(" x 8 x") != std::string::npos) {
      out.push_back(text);
    }
  }
  return out;
}

// 4,096 tokens, each to 2 of 8 experts: 1,024 per expert; hidden 4,096, gated experts of 2 x 14,336; 8 scores.
TEST(KernelShapes, OfExpertsAreGroupedAndHaveARouter) {
  EXPECT_THAT(
      expert_texts(mixtral(1, 1).uses()),
      UnorderedElementsAre("64 x GEMM forward bf16 4096 x 8 x 4096", "64 x GEMM input gradient bf16 4096 x 4096 x 8",
                           "64 x GEMM weight gradient bf16 4096 x 8 x 4096 +4",
                           "64 x GEMM forward bf16 8 of 1024 x 28672 x 4096 grouped",
                           "64 x GEMM forward bf16 8 of 1024 x 4096 x 14336 grouped",
                           "64 x GEMM input gradient bf16 8 of 1024 x 14336 x 4096 grouped",
                           "64 x GEMM input gradient bf16 8 of 1024 x 4096 x 28672 grouped",
                           "64 x GEMM weight gradient bf16 8 of 14336 x 4096 x 1024 grouped +4",
                           "64 x GEMM weight gradient bf16 8 of 4096 x 28672 x 1024 grouped +4"));
  // 512 tokens per rank, 1,024 copies to the one expert of each rank.
  EXPECT_THAT(
      expert_texts(mixtral(8, 8).uses()),
      UnorderedElementsAre("64 x GEMM forward bf16 512 x 8 x 4096", "64 x GEMM input gradient bf16 512 x 4096 x 8",
                           "64 x GEMM weight gradient bf16 4096 x 8 x 512 +4",
                           "64 x GEMM forward bf16 1024 x 28672 x 4096 grouped",
                           "64 x GEMM forward bf16 1024 x 4096 x 14336 grouped",
                           "64 x GEMM input gradient bf16 1024 x 14336 x 4096 grouped",
                           "64 x GEMM input gradient bf16 1024 x 4096 x 28672 grouped",
                           "64 x GEMM weight gradient bf16 14336 x 4096 x 1024 grouped +4",
                           "64 x GEMM weight gradient bf16 4096 x 28672 x 1024 grouped +4"));
}

TEST(KernelShapes, NarrowPrecisionsKeepAttentionAndTheHeadIn16Bits) {
  ListedKernels run = llama(1);
  run.training.precision = GemmPrecision::fp8_current;
  std::map<std::string, int> formats;
  for (const KernelUse& use : run.uses().shapes) ++formats[class_of(use.shape)];
  EXPECT_EQ(formats, (std::map<std::string, int>{{"GEMM forward fp8", 4},
                                                 {"GEMM input gradient fp8", 4},
                                                 {"GEMM weight gradient fp8", 4},
                                                 {"GEMM forward bf16", 1},
                                                 {"GEMM input gradient bf16", 1},
                                                 {"GEMM weight gradient bf16", 1},
                                                 {"attention forward bf16", 1},
                                                 {"attention backward bf16", 1}}));
  run.training.precision = GemmPrecision::fp16;
  for (const KernelUse& use : run.uses().shapes) EXPECT_EQ(use.shape.format, KernelFormat::fp16);
}

// Full recomputation executes the forward GEMMs of a layer twice, and not the head's.
TEST(KernelShapes, CountRecomputationAndSplitBackwards) {
  ListedKernels run = llama(1);
  const KernelUses once = run.uses();
  run.training.recompute = Training::Recompute::full;
  const KernelUses twice = run.uses();
  ASSERT_EQ(once.shapes.size(), twice.shapes.size());
  for (std::size_t i = 0; i < once.shapes.size(); ++i) {
    const KernelUse& use = once.shapes[i];
    const bool repeated = use.shape.pass == GemmPass::forward && use.count == 64;
    EXPECT_EQ(twice.shapes[i].count, repeated ? 128 : use.count) << to_string(use.shape);
  }
  Training training = run.training;
  training.recompute = Training::Recompute::none;
  EXPECT_EQ(kernel_texts(listed_kernels(run.model, training, "zb-h1").uses()), kernel_texts(once));
}

KernelTimes times_of(const KernelUses& uses, double ratio) {
  KernelTimes out{.gpu = "H100-80GB", .device = "NVIDIA H100 80GB HBM3", .library = "PyTorch 2.8.0", .times = {}};
  for (const KernelUse& use : uses.shapes) out.times[use.shape] = {.seconds = ratio * use.seconds};
  return out;
}

TEST(MeasuredKernels, TakeTheMeasuredTime) {
  for (const ListedKernels& run : {llama(8), mixtral(8, 8)}) {
    const KernelUses before = run.uses();
    const KernelTimes times = times_of(before, 1.5);
    const AnalyticCost plain = run.cost();
    const AnalyticCost measured = run.cost(times);
    const SliceShape slice = slice_shape(run.schedule.shape(0), 0);
    int found = 0;
    for (const OpKind kind : {OpKind::F, OpKind::B}) {
      for (const KernelPart& part : measured.parts(kind, 0, slice)) {
        for (const KernelCall& call : part.calls) {
          const auto shape = kernel_shape(run.training.precision, call);
          if (shape) {
            EXPECT_NEAR(measured.kernel_s(call) / (call.count * times.times.at(*shape).seconds), 1, 1e-14);
            ++found;
          } else if (call.name == "d attention, row sums") {  // part of the measurement
            EXPECT_EQ(measured.kernel_s(call), 0);
          } else {
            EXPECT_EQ(measured.kernel_s(call), plain.kernel_s(call)) << call.name;
          }
        }
      }
    }
    EXPECT_GE(found, 17);
    const KernelUses after = run.uses(times);
    EXPECT_TRUE(after.not_measured().empty());
    EXPECT_EQ(after.kernels, before.kernels);
    EXPECT_GT(after.measured_s / after.compute_s, 0.5);
    EXPECT_LT(after.measured_s / after.compute_s, 1);
  }
}

TEST(MeasuredKernels, OtherShapesKeepTheModelAndAreReported) {
  const ListedKernels run = llama(1);
  const KernelUses before = run.uses();
  KernelTimes times = times_of(before, 1);
  const KernelShape left_out = times.times.begin()->first;
  times.times.erase(times.times.begin());
  KernelShape other = left_out;
  other.accumulate_bytes = 4 - other.accumulate_bytes;  // not the same kernel
  times.times[other] = {.seconds = 1};
  const std::vector<KernelUse> missing = run.uses(times).not_measured();
  ASSERT_EQ(missing.size(), 1);
  EXPECT_EQ(missing[0].shape, left_out);
  EXPECT_EQ(missing[0].seconds, before.shapes[0].seconds);
}

TEST(MeasuredKernels, ExplanationsMarkThem) {
  const ListedKernels run = llama(1);
  const KernelTimes times = times_of(run.uses(), 2);
  const MicrobatchShape& shape = run.schedule.shape(0);
  const auto before = explain_stage(run.cost(), run.schedule, 0, shape);
  const auto after = explain_stage(run.cost(times), run.schedule, 0, shape);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t op = 0; op < before.size(); ++op) {
    for (std::size_t i = 0; i < before[op].kernels.size(); ++i) {
      const ExplainedKernel& old = before[op].kernels[i];
      const ExplainedKernel& now = after[op].kernels[i];
      EXPECT_FALSE(old.measured);
      const double ratio = now.measured ? (now.flops > 0 ? 2 : 0) : 1;  // 0: row sums
      EXPECT_NEAR(now.seconds / old.seconds, ratio, 1e-12) << now.name;
      EXPECT_TRUE(now.measured || now.flops == 0) << now.name;
    }
  }
}

nlohmann::json times_file() {
  return nlohmann::json::parse(R"({"schema": "sluice.kernel_times/1", "gpu": "H100-80GB",
    "device": "NVIDIA H100 80GB HBM3", "library": "PyTorch 2.8.0", "kernels": [
      {"kernel": "gemm", "pass": "weight_gradient", "format": "bf16", "m": 4096, "n": 6144, "k": 8192,
       "accumulate_bytes": 4, "seconds": 0.0006, "spread_s": 1e-6, "runs": 30, "count": 64, "predicted_s": 0.0005},
      {"kernel": "attention", "pass": "backward", "format": "bf16", "sequences": 1, "tokens": 8192, "context": 0,
       "heads": 32, "kv_heads": 8, "head_dim": 128, "value_head_dim": 128, "causal": true, "backend": "cuDNN",
       "seconds": 0.003}],
    "skipped": [{"kernel": "gemm", "reason": "FP8 needs a GPU"}]})");
}

KernelTimes parsed_times(const nlohmann::json& document) {
  return kernel_times_from_json(JsonReader(document, "times.json"));
}

TEST(KernelTimesFile, IsReadAndWrittenWithoutChange) {
  const KernelTimes times = parsed_times(times_file());
  EXPECT_EQ(times.gpu, "H100-80GB");
  EXPECT_EQ(times.library, "PyTorch 2.8.0");
  ASSERT_EQ(times.times.size(), 2);
  const auto& [shape, time] = *times.times.begin();
  EXPECT_EQ(to_string(shape), "GEMM weight gradient bf16 4096 x 6144 x 8192");
  EXPECT_EQ(time.seconds, 0.0006);
  EXPECT_EQ(time.predicted_s, 0.0005);
  const std::string text = to_json_text(times);
  EXPECT_EQ(to_json_text(parsed_times(nlohmann::json::parse(text))), text);
}

TEST(KernelTimesFile, ErrorsNameTheKernelAndTheKey) {
  const auto error = [](const auto& change) {
    nlohmann::json document = times_file();
    change(document);
    return error_of([&] { parsed_times(document); });
  };
  using J = nlohmann::json;
  EXPECT_THAT(error([](J& f) { f["schema"] = "sluice.kernel_times/2"; }),
              HasSubstr("times.json: /schema: expected \"sluice.kernel_times/1\", got \"sluice.kernel_times/2\""));
  EXPECT_THAT(error([](J& f) { f["kernels"][0]["seconds"] = 0; }), HasSubstr("times.json: /kernels/0/seconds"));
  EXPECT_THAT(error([](J& f) { f["kernels"][1]["seconds"] = -1e-3; }), HasSubstr("times.json: /kernels/1/seconds"));
  EXPECT_THAT(error([](J& f) { f["kernels"][1].erase("seconds"); }), HasSubstr("/kernels/1/seconds"));
  EXPECT_THAT(error([](J& f) { f["kernels"][0]["m"] = 0.5; }), HasSubstr("times.json: /kernels/0/m"));
  EXPECT_THAT(error([](J& f) { f["kernels"][0]["format"] = "float32"; }),
              HasSubstr("times.json: /kernels/0/format: expected"));
  EXPECT_THAT(error([](J& f) { f["kernels"][0]["pass"] = "backward"; }), HasSubstr("times.json: /kernels/0/pass"));
  EXPECT_THAT(error([](J& f) { f["kernels"][1]["causal"] = false; }), HasSubstr("times.json: /kernels/1/causal"));
  EXPECT_THAT(error([](J& f) { f["kernels"][0]["tokens"] = 8; }), HasSubstr("times.json: /kernels/0"));
  EXPECT_THAT(error([](J& f) { f["kernels"].push_back(f["kernels"][0]); }),
              HasSubstr("times.json: /kernels/2: the same kernel as /kernels/0"));
  EXPECT_THAT(error([](J& f) { f["kernels"] = J::array(); }), HasSubstr("times.json: /kernels: expected at least one"));
  EXPECT_THAT(error([](J& f) { f["kernels"] = "none"; }), HasSubstr("times.json: /kernels"));
  EXPECT_THAT(error([](J& f) { f["library"] = ""; }), HasSubstr("times.json: /library: expected a name"));
  EXPECT_THAT(error([](J& f) { f.erase("gpu"); }), HasSubstr("times.json: /gpu"));
  EXPECT_THAT(error([](J& f) { f["kernel"] = 1; }), HasSubstr("did you mean"));
}

TEST(KernelTimesFile, BelongsToTheGpuThatItNames) {
  const auto error = [](const char* gpu, const char* device) {
    nlohmann::json document = times_file();
    document["gpu"] = gpu;
    document["device"] = device;
    return error_of([&] { parsed_times(document); });
  };
  EXPECT_EQ(error("H100-80GB", "NVIDIA A100-SXM4-80GB"),
            "times.json: /device: expected the GPU H100-80GB (gpu), for which the shapes were listed, got "
            "\"NVIDIA A100-SXM4-80GB\"");
  for (const auto& [gpu, device] : {std::pair("A100-80GB", "NVIDIA A100-SXM4-80GB"),
                                    {"A100-40GB", "NVIDIA A100-SXM4-40GB"},
                                    {"A100-PCIe-80GB", "NVIDIA A100 80GB PCIe"},
                                    {"B200-180GB", "NVIDIA B200"},
                                    {"GB200-186GB", "NVIDIA GB200"},
                                    {"H200-141GB", "NVIDIA H200"},
                                    {"V100-32GB", "Tesla V100-SXM2-32GB"},
                                    {"our own GPU", "anything"}}) {
    EXPECT_EQ(error(gpu, device), "no error") << gpu;
  }
  for (const auto& [gpu, device] : {std::pair("A100-80GB", "NVIDIA A100-SXM4-40GB"),
                                    {"A100-80GB", "NVIDIA A100 80GB PCIe"},
                                    {"A100-PCIe-80GB", "NVIDIA A100-SXM4-80GB"},
                                    {"B200-180GB", "NVIDIA GB200"},
                                    {"H100-80GB", "NVIDIA H100 PCIe"},
                                    {"H100-80GB", "cpu"}}) {
    EXPECT_THAT(error(gpu, device), HasSubstr("times.json: /device")) << gpu << " on " << device;
  }
}

}  // namespace
}  // namespace sluice::test

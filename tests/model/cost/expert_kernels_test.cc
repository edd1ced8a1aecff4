#include <gtest/gtest.h>

#include <string>

#include "model/blocks/expert_routing.h"
#include "model/blocks/experts.h"
#include "model/cost/analytic.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

constexpr OpKind kOpKinds[] = {OpKind::F, OpKind::B, OpKind::I, OpKind::W};
constexpr std::int64_t kTokens = 4096;

Training training_of(int tp, int cp, int dp, int ep) {
  Training training;
  training.tp = tp;
  training.cp = cp;
  training.dp = dp;
  training.ep = ep;
  training.sequence_parallel = tp > 1;
  training.sequence_length = kTokens;
  return training;
}

AnalyticCost expert_cost_of(const Transformer& model, const Training& training, int nodes = 8) {
  return {model, training, split_layers(model, training.pp, {}, 0, 0), load_cluster("dgx-h100", nodes),
          load_software("megatron-lm")};
}

struct Sums {
  double products = 0;
  double attention = 0;
  double expert_bytes = 0;
  double context_bytes = 0;
};
Sums sums_of(const std::vector<KernelCall>& calls) {
  Sums sums;
  for (const KernelCall& call : calls) {
    switch (call.kind) {
      case KernelClass::gemm: sums.products += call.flops * call.count; break;
      case KernelClass::attention_forward:
      case KernelClass::attention_backward: sums.attention += call.flops * call.count; break;
      case KernelClass::expert_all_to_all: sums.expert_bytes += call.bytes * call.count; break;
      case KernelClass::context_all_to_all: sums.context_bytes += call.bytes * call.count; break;
      default: break;
    }
  }
  return sums;
}

TEST(ExpertKernels, ExecuteTheFlopsOfTheWorkload) {
  for (const char* name : {"mixtral-8x7b/config.json", "qwen3-30b-a3b/config.json", "deepseek-v2/config.json",
                           "deepseek-v3/config.json"}) {
    const Transformer model = example(name);
    for (const LayerKind layer : {LayerKind::dense, LayerKind::experts}) {
      const SliceFlops expected = layer_slice_flops(model, 1024, 2048, layer);
      for (const int tp : {1, 4}) {
        const Training training = training_of(tp, 1, 2, 8 / tp);
        const auto sums = [&](OpKind kind) {
          return sums_of(layer_kernels(model, training, kind, {1, 1024, 2048}, layer));
        };
        for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W}) {
          EXPECT_NEAR(sums(kind).products * tp / expected.matrices, 1, 1e-12) << name << letter(kind) << tp;
        }
        EXPECT_DOUBLE_EQ(sums(OpKind::F).attention * tp, expected.attention);
        // Of five GEMMs three have the head size of keys and two that of values.
        const double back =
            (3.0 * model.head_dim + 2.0 * model.value_head_dim()) / (model.head_dim + model.value_head_dim());
        EXPECT_DOUBLE_EQ(sums(OpKind::I).attention * tp, back * expected.attention);
      }
    }
  }
}

TEST(ExpertKernels, SendEveryTokenToItsExpertsAndBack) {
  // Each row of 4096 elements of 2 bytes goes to two experts; dispatch and combine in F and in I.
  const Transformer model = example("mixtral-8x7b/config.json");
  for (const int tp : {1, 4}) {
    for (const OpKind kind : kOpKinds) {
      const auto bytes = [&](int ep) {
        return sums_of(layer_kernels(model, training_of(tp, 1, 2, ep), kind, {3, kTokens, 0}, LayerKind::experts))
            .expert_bytes;
      };
      EXPECT_EQ(bytes(2), kind == OpKind::W ? 0 : 2.0 * 2 * 3 * 4096 * 4096 * 2 / tp) << letter(kind);
      EXPECT_EQ(bytes(1), 0);
    }
  }
}

TEST(ExpertKernels, OfOneRankHaveOneGemmPerExpert) {
  const Transformer model = example("deepseek-v3/config.json");
  for (const KernelCall& call :
       layer_kernels(model, training_of(1, 1, 8, 8), OpKind::F, {1, kTokens, 0}, LayerKind::experts)) {
    if (!call.gemm.apart) continue;
    EXPECT_EQ(call.gemm.batch, 256 / 8);
    EXPECT_EQ(call.gemm.m, 4096 * 8.0 / 256 * 8);  // its tokens' copies, as many from each of the 8 ranks, by expert
  }
}

TEST(ExpertKernels, IncludeTheLaunchOfEveryExpert) {
  // 256 experts with about one token each: the launches dominate the GEMMs.
  const Transformer model = example("deepseek-v3/config.json");
  const AnalyticCost cost = expert_cost_of(model, training_of(1, 1, 1, 1));
  const GemmShape tiny{.m = 1, .n = 16, .k = 16, .batch = 256, .apart = true};
  const KernelCall call{.name = "tiny", .kind = KernelClass::gemm, .gemm = tiny};
  const Gpu& gpu = cost.cluster().gpu;
  EXPECT_NEAR(cost.kernel_s(call), gpu.gemm.launch_s + 256 * gpu.gemm.group_s, 1e-5);
}

TEST(ExpertKernels, AreLaunchedOnceOrOncePerExpert) {
  const Transformer model = example("deepseek-v3/config.json");
  Training training = training_of(1, 1, 8, 8);  // 32 experts
  training.precision = GemmPrecision::mxfp8;
  const auto grouped = [&](OpKind kind) {
    int launches = 0;
    for (const KernelCall& call : layer_kernels(model, training, kind, {1, kTokens, 0}, LayerKind::experts)) {
      if (call.part == LayerPart::experts && (call.gemm.batch > 1 || call.kind == KernelClass::cast)) {
        launches += call.group > 0 ? call.group : call.count;
      }
    }
    return launches;
  };
  // Two GEMMs in each direction, with a cast each; the shared expert has two casts in F and two in I.
  EXPECT_EQ(grouped(OpKind::F), 4 * 32 + 2);
  EXPECT_EQ(grouped(OpKind::I), 4 * 32 + 2);
  EXPECT_EQ(grouped(OpKind::W), 2 * 32);
  training.fused_grouped_mlp = true;  // the second GEMM's operand is cast by the first
  EXPECT_EQ(grouped(OpKind::F), 3 + 2);
  EXPECT_EQ(grouped(OpKind::I), 3 + 2);
  EXPECT_EQ(grouped(OpKind::W), 2);
}

// A fused kernel writes what the separate ones would write last, and reads nothing that it has itself.
TEST(ExpertKernels, FusedMoveLess) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = training_of(1, 1, 8, 8);
  training.precision = GemmPrecision::mxfp8;
  training.token_dispatcher = Training::TokenDispatcher::hybridep;  // no padded copies
  const auto bytes = [&](OpKind kind) {
    double sum = 0;
    for (const KernelCall& call : layer_kernels(model, training, kind, {1, kTokens, 0}, LayerKind::experts)) {
      if (!is_collective(call.kind)) sum += call.bytes * call.count;
    }
    return sum;
  };
  constexpr double kRows = 8 * 4096;
  constexpr double kWidth = 768;
  constexpr double kCast = 2 * (1 + 1.0 / 32);  // both layouts
  const double forward = bytes(OpKind::F);
  const double backward = bytes(OpKind::I);
  training.fused_grouped_mlp = true;
  // Activation of 2 x 768 elements to 768, which are then cast; now only the cast ones are written.
  EXPECT_DOUBLE_EQ(forward - bytes(OpKind::F), kRows * kWidth * (2 * 3 + 2 + kCast - kCast));
  // The gradient of 768 elements is not written and read, those of 2 x 768 inputs are not written and read in 16 bits.
  EXPECT_DOUBLE_EQ(backward - bytes(OpKind::I), kRows * kWidth * (2 + 2 + 4 + 4));
}

// The bytes of all kernels of an op whose names contain `name`, and the number of their launches on the device.
struct Moved {
  double bytes = 0;
  int launches = 0;
};
Moved moved_by(const std::vector<KernelCall>& calls, std::string_view name) {
  Moved moved;
  for (const KernelCall& call : calls) {
    if (call.name.find(name) == std::string_view::npos) continue;
    moved.bytes += call.bytes * call.count;
    moved.launches += call.count;
  }
  return moved;
}

// DeepSeek-V3: 128 heads of 128 elements, 64 rotated ones and 128 of values. In a fused kernel, queries are rotated in
// place; of keys a part is read and all written, and values are read and written, as without it.
TEST(LatentAttention, MovesTheRotatedPartOfQueriesAloneInFusedKernels) {
  const Transformer model = example("deepseek-v3/config.json");
  Training training = training_of(1, 1, 64, 64);
  const SliceShape slice{.sequences = 1, .tokens = kTokens, .context = 0};
  const auto rotary = [&](OpKind kind) {
    return moved_by(layer_kernels(model, training, kind, slice, LayerKind::experts), "rotary");
  };
  const double both = 128 + 192 + 2 * 128;
  EXPECT_DOUBLE_EQ(rotary(OpKind::F).bytes, 2.0 * kTokens * 128 * (2 * 192 + both));
  training.fused_latent_rotary = true;
  for (const OpKind kind : {OpKind::F, OpKind::I}) {
    EXPECT_DOUBLE_EQ(rotary(kind).bytes, 2.0 * kTokens * 128 * (2 * 64 + both));
    EXPECT_EQ(rotary(kind).launches, 2);
  }
}

TEST(ExpertBiases, AreAddedInPyTorchUnlessExpertsAreFused) {
  const Transformer model = gpt_oss_120b();
  Training training = training_of(1, 1, 64, 64);
  const SliceShape slice{.sequences = 1, .tokens = kTokens, .context = 0};
  const auto kernels = [&](OpKind kind) { return layer_kernels(model, training, kind, slice, LayerKind::experts); };
  // Two experts on each rank, and on average as many rows as it sends.
  const double rows = 4.0 * kTokens;
  const double results = rows * 2880;
  const Moved forward = moved_by(kernels(OpKind::F), "biases of experts");
  EXPECT_DOUBLE_EQ(forward.bytes, 14 * results);
  EXPECT_EQ(forward.launches, 2 * 2);
  EXPECT_DOUBLE_EQ(moved_by(kernels(OpKind::F), "joined results").bytes, 14 * results);
  const Moved backward = moved_by(kernels(OpKind::B), "d biases of experts");
  EXPECT_DOUBLE_EQ(backward.bytes, 30 * results);
  EXPECT_EQ(backward.launches, 5 * 2);
  EXPECT_DOUBLE_EQ(moved_by(kernels(OpKind::B), "d biases into experts").bytes, 2 * rows * 5760);
  EXPECT_EQ(moved_by(kernels(OpKind::W), "bias").launches, 0);
  training.fused_grouped_mlp = true;
  EXPECT_EQ(moved_by(kernels(OpKind::F), "biases of experts").launches, 0);
  EXPECT_DOUBLE_EQ(moved_by(kernels(OpKind::B), "biases of experts").bytes, 2 * results);
  EXPECT_DOUBLE_EQ(moved_by(kernels(OpKind::B), "QKV bias").bytes, 2.0 * kTokens * (64 + 2 * 8) * 64);
}

// Either half is clamped, and both are joined; backward, both gradients are masked by the inputs and joined.
TEST(ExpertClamp, IsOfPyTorchUnlessExpertsAreFused) {
  const Transformer model = gpt_oss_120b();
  EXPECT_EQ(model.experts.clamp, 7);
  Training training = training_of(1, 1, 64, 64);
  training.recompute = Training::Recompute::selective;
  training.recompute_modules = RecomputeModules(RecomputeModule::activation);
  const SliceShape slice{.sequences = 1, .tokens = kTokens, .context = 0};
  const auto clamp = [&](OpKind kind) {
    return moved_by(layer_kernels(model, training, kind, slice, LayerKind::experts), "clamp of experts");
  };
  const auto repeated = [&] {
    return moved_by(recomputed_module_kernels(model, training, slice, LayerKind::experts), "clamp of experts");
  };
  const double inputs = 4.0 * kTokens * 5760;
  EXPECT_DOUBLE_EQ(clamp(OpKind::F).bytes, 8 * inputs);
  EXPECT_DOUBLE_EQ(clamp(OpKind::B).bytes, 10 * inputs);
  EXPECT_EQ(clamp(OpKind::F).launches + clamp(OpKind::B).launches, 6);
  EXPECT_EQ(clamp(OpKind::W).launches, 0);
  EXPECT_DOUBLE_EQ(repeated().bytes, 8 * inputs);
  training.fused_grouped_mlp = true;
  EXPECT_EQ(clamp(OpKind::F).launches + clamp(OpKind::B).launches, 0);
}

TEST(ExpertBiases, AreDividedWithTheirExperts) {
  const Transformer model = gpt_oss_120b();
  const std::int64_t expert = 3 * std::int64_t{2880} * 2880 + 3 * 2880;
  EXPECT_EQ(routed_expert_parameters(model), 128 * expert);
  const std::int64_t whole = layer_parameters_per_device(model, 1, LayerKind::experts, 1);
  EXPECT_EQ(whole, layer_parameters(model, LayerKind::experts));
  EXPECT_EQ(layer_parameters_per_device(model, 1, LayerKind::experts, 64), whole - 126 * expert);
  Training training = training_of(2, 1, 64, 32);
  training.etp = 2;
  EXPECT_EQ(error_of([&] { check_training(model, training); }),
            "/parallelism/etp: gpt-oss-120b: experts with biases and expert-tensor parallelism are not modeled");
}

TEST(CudaGraphs, SaveTheTimeOfTheHost) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = training_of(1, 1, 8, 8);
  const auto host_s = [&](OpKind kind) {
    const AnalyticCost cost = expert_cost_of(model, training);
    for (const KernelPart& part : cost.parts(kind, 0, {1, kTokens, 0})) {
      if (part.name != "MoE layer") continue;
      double seconds = cost.launches(part.calls) * cost.launch_s();
      for (const KernelCall& call : part.calls) {
        if (call.launched()) seconds -= (call.group > 0 ? call.group : call.count) * cost.launch_s();
        seconds += cost.issue_s(call);
      }
      return seconds;
    }
    return -1.0;
  };
  const AnalyticCost without = expert_cost_of(model, training);
  const double launch_s = without.launch_s();
  const double whole = host_s(OpKind::F);
  using enum GraphModule;
  training.graph_implementation = Training::GraphImplementation::transformer_engine;
  // Norm 1, QKV, two norms and two rotations, attention, projection, residual 1, norm 2 and residual 2 become one.
  training.graph_modules = attention;
  EXPECT_NEAR((whole - host_s(OpKind::F)) / launch_s, 11 - 1, 1e-9);
  // Besides router, six kernels of top-k, copies of tokens and their sum, which are part of the same graph, and two
  // fifths of the time of dispatch and of combine.
  const double exchanges = 2 * load_software("megatron-lm").dispatch_issue_s / without.cluster().host_speed;
  training.graph_modules = GraphModules(attention) | moe_router | moe_preprocess;
  EXPECT_NEAR((whole - 0.4 * exchanges - host_s(OpKind::F)) / launch_s, 20 - 1, 1e-9);
  training.graph_modules = moe;
  EXPECT_NEAR(host_s(OpKind::F) / launch_s, 11 + 1, 1e-9);
  training.graph_modules = mlp;  // of dense layers
  EXPECT_NEAR(host_s(OpKind::F), whole, 1e-12);
  training.graph_implementation = Training::GraphImplementation::full_iteration;
  EXPECT_EQ(host_s(OpKind::F), 0);
  EXPECT_EQ(host_s(OpKind::B), 0);
  // Then an op takes as long as its kernels.
  const AnalyticCost cost = expert_cost_of(model, training);
  double device = 0;
  for (const KernelPart& part : cost.parts(OpKind::F, 0, {1, kTokens, 0})) {
    for (const KernelCall& call : part.calls) device += part.repeats * cost.kernel_s(call);
  }
  EXPECT_NEAR(cost.compute_s(OpKind::F, 0, {1, {kTokens}}, 0) / device, 1, 1e-12);
}

TEST(CudaGraphs, IncludeWhatIsRecomputed) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = training_of(1, 1, 8, 8);
  training.recompute = Training::Recompute::full;
  training.graph_implementation = Training::GraphImplementation::full_iteration;
  const AnalyticCost cost = expert_cost_of(model, training);
  for (const KernelPart& part : cost.recompute_parts(0, {1, kTokens, 0})) EXPECT_EQ(cost.launches(part.calls), 0);
}

// A graph of a backward is launched once, also where the parts of its input and weight gradients are woven.
TEST(CudaGraphs, WovenPartsTakeAsLongAsTheirOps) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = training_of(1, 1, 8, 8);
  training.joint_overlap = Training::JointOverlap::none;
  const MicrobatchShape shape{1, {kTokens}};
  for (const auto implementation :
       {Training::GraphImplementation::none, Training::GraphImplementation::transformer_engine}) {
    training.graph_implementation = implementation;
    training.graph_modules = GraphModule::attention;
    const AnalyticCost cost = expert_cost_of(model, training);
    const double f = cost.compute_s(OpKind::F, 0, shape, 0);
    const double b = cost.compute_s(OpKind::B, 0, shape, 0);
    EXPECT_NEAR(cost.woven_op(OpKind::F, 0, shape, 0).seconds / f, 1, 1e-9);
    EXPECT_NEAR(cost.woven_op(OpKind::B, 0, shape, 0).seconds / b, 1, 1e-9);
    EXPECT_NEAR(cost.woven_joint(0, shape, 0, OpKind::B, 0, shape, 0).seconds / (f + b), 1, 1e-9);
  }
}

// Frameworks with grouped kernels launch all experts as one.
TEST(ExpertKernels, OfGroupedKernelsAreLaunchedOnce) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  const auto launches = [&](const char* software) {
    const Training training = training_of(1, 1, 8, 8);
    const AnalyticCost cost(model, training, split_layers(model, 1, {}, 0, 0), load_cluster("dgx-h100", 8),
                            load_software(software));
    for (const KernelPart& part : cost.parts(OpKind::F, 0, {1, kTokens, 0})) {
      if (part.name == "MoE layer") return cost.launches(part.calls);
    }
    return 0;
  };
  EXPECT_EQ(launches("nemo") - launches("torchtitan"), 2 * (16 - 1));
}

TEST(AllToAll, MovesAllButTheLocalShard) {
  const Transformer model = example("mixtral-8x7b/config.json");
  const Cluster cluster = load_cluster("dgx-h100", 2);
  const Training training = training_of(1, 1, 16, 8);
  const Collectives collectives(cluster, Placement(training, cluster));
  const Link& inside = cluster.intra_node;
  const Link& network = cluster.inter_node;
  const double near = inside.bandwidth_bytes_per_s * inside.exchange_efficiency;
  const double far = network.bandwidth_bytes_per_s * network.transfer_efficiency;
  EXPECT_DOUBLE_EQ(collectives.all_to_all_s({8, 1, 8}, 1e9),
                   inside.collective_latency_s + 7 * inside.collective_step_s + 1e9 * 7 / 8 / near);
  // Of 16 ranks on two nodes 8 are remote: the network dominates.
  EXPECT_GT(1.0 / 2 / far, 7.0 / 16 / near);
  EXPECT_DOUBLE_EQ(collectives.all_to_all_s({16, 2, 8}, 1e9),
                   network.collective_latency_s + 15 * network.collective_step_s + 1e9 / 2 / far);
  EXPECT_EQ(collectives.all_to_all_s({1, 1, 1}, 1e9), 0);
}

TEST(Groups, OfExpertsFollowEachOther) {
  const Cluster cluster = load_cluster("dgx-h100", 4);
  // tp 2 x cp 2 x dp 4 = 16 ranks per stage, two stages; a node has 8.
  Training training = training_of(2, 2, 4, 8);
  training.pp = 2;
  const Placement placement(training, cluster);
  const auto is = [](const Reach& reach, int size, int nodes, int per_node) {
    return reach.size == size && reach.nodes == nodes && reach.per_node == per_node;
  };
  EXPECT_TRUE(is(placement.tensor_group(), 2, 1, 2));
  EXPECT_TRUE(is(placement.context_group(), 2, 1, 2));      // ranks 0, 2
  EXPECT_TRUE(is(placement.data_group(), 8, 2, 4));         // 0, 2, .. 14
  EXPECT_TRUE(is(placement.expert_group(), 8, 1, 8));       // 0 to 7
  EXPECT_TRUE(is(placement.expert_data_group(), 2, 2, 1));  // 0, 8
  EXPECT_EQ(placement.replicas(), 16);
}

TEST(Groups, OfPartsOfExpertsAreNextToEachOther) {
  const Cluster cluster = load_cluster("dgx-h100", 4);
  // Megatron-LM's order within a stage: expert-tensor ranks, then expert ranks, then replicas of the experts.
  Training training = training_of(2, 1, 8, 4);
  training.etp = 2;
  const Placement placement(training, cluster);
  const auto is = [](const Reach& reach, int size, int nodes, int per_node) {
    return reach.size == size && reach.nodes == nodes && reach.per_node == per_node;
  };
  EXPECT_TRUE(is(placement.expert_tensor_group(), 2, 1, 2));  // 0, 1
  EXPECT_TRUE(is(placement.expert_group(), 4, 1, 4));         // 0, 2, 4, 6
  EXPECT_TRUE(is(placement.expert_data_group(), 2, 2, 1));    // 0, 8
}

// Each of etp ranks multiplies the rows of all of them with its part of the experts: the same FLOPs, in larger GEMMs,
// after an all-gather and before a reduce-scatter in each direction.
TEST(ExpertParts, GatherTheRowsOfTheirRanks) {
  const Transformer model = example("mixtral-8x7b/config.json");
  Training whole = training_of(2, 1, 4, 8);
  Training parts = training_of(2, 1, 4, 4);
  parts.etp = 2;
  const double sent = kTokens / 2.0 * 2;  // copies of the tokens of a rank, for two experts each
  for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W}) {
    double flops = 0;
    double gathered = 0;
    int gathers = 0;
    for (const KernelCall& call : layer_kernels(model, whole, kind, {1, kTokens, 0}, LayerKind::experts)) {
      flops += call.flops;
      EXPECT_NE(call.kind, KernelClass::expert_all_gather);
    }
    for (const KernelCall& call : layer_kernels(model, parts, kind, {1, kTokens, 0}, LayerKind::experts)) {
      flops -= call.flops;
      if (call.kind == KernelClass::gemm && call.gemm.apart && kind == OpKind::F) {
        EXPECT_EQ(call.gemm.m, 2 * sent / 2);  // two experts per rank
      }
      if (call.kind != KernelClass::expert_all_gather) continue;
      ++gathers;
      gathered += call.bytes;
    }
    EXPECT_NEAR(flops, 0, 1e-6 * kTokens * model.hidden);
    EXPECT_EQ(gathers, kind == OpKind::W ? 0 : 2);
    EXPECT_DOUBLE_EQ(gathered, kind == OpKind::W ? 0 : 2 * 2 * 2 * sent * model.hidden);
  }
  const MicrobatchShape shape{1, {kTokens}};
  EXPECT_GT(expert_cost_of(model, parts).compute_s(OpKind::F, 0, shape, 0),
            expert_cost_of(model, whole).compute_s(OpKind::F, 0, shape, 0));
}

TEST(Gradients, OfExpertsAreReducedOverTheirOwnRanks) {
  const Transformer model = example("mixtral-8x7b/config.json");
  Training training = training_of(1, 1, 16, 8);
  const AnalyticCost cost = expert_cost_of(model, training);
  const auto all = static_cast<double>(parameters(model));
  // On a rank: one of the 8 experts of each of 32 layers. 16 ranks have copies of the rest, two of the experts.
  const double experts = 32.0 * 3 * 4096 * 14336;
  const double rest = all - 8 * experts;
  const auto bytes = static_cast<std::int64_t>(4 * (experts + rest));
  const Collectives collectives(cost.cluster(), cost.placement());
  const double expected =
      collectives.all_reduce_s({16, 2, 8}, 4 * rest) + collectives.all_reduce_s({2, 2, 1}, 4 * experts);
  EXPECT_NEAR(cost.collective_s(CollectiveKind::gradient_reduce, 0, bytes) / expected, 1, 1e-9);
}

TEST(JointBlocks, HideDispatchAndCombine) {
  // One microbatch's all-to-alls overlap with the other's kernels, which get the multiprocessors that are left: the
  // work that these do meanwhile is saved.
  const Transformer model = example("mixtral-8x7b/config.json");
  Training training = training_of(1, 1, 8, 8);
  training.graph_implementation = Training::GraphImplementation::full_iteration;  // no time of the host
  const AnalyticCost cost = expert_cost_of(model, training);
  const MicrobatchShape shape{1, {kTokens}};
  double links = 0;
  for (const OpKind kind : {OpKind::F, OpKind::B}) {
    for (const KernelCall& call : layer_kernels(model, training, kind, {1, kTokens, 0}, LayerKind::experts)) {
      if (is_collective(call.kind)) links += 32 * cost.kernel_s(call);
    }
  }
  const double apart = cost.compute_s(OpKind::F, 0, shape, 0) + cost.compute_s(OpKind::B, 0, shape, 0);
  const WovenBlock block = cost.woven_joint(0, shape, 0, OpKind::B, 0, shape, 0);
  const double hidden = block.communication_s - block.exposed_s;
  const double saved = apart - cost.joint_s(0, shape, 0, OpKind::B, 0, shape, 0);
  EXPECT_GT(links, 0.01);
  EXPECT_NEAR(block.communication_s / links, 1, 1e-9);
  EXPECT_GT(hidden, 0.9 * links);
  // Less what contention costs, at most the half of the memory's bandwidth that is fair; without it all is saved.
  EXPECT_LT(saved, hidden);
  EXPECT_GT(saved, hidden * 0.5);
  Training alone_on_gpu = training;
  alone_on_gpu.communication_sms = 0;
  const AnalyticCost free_cost = expert_cost_of(model, alone_on_gpu);
  const WovenBlock free_block = free_cost.woven_joint(0, shape, 0, OpKind::B, 0, shape, 0);
  EXPECT_NEAR((apart - free_block.seconds) / (free_block.communication_s - free_block.exposed_s), 1, 1e-9);
  // Apart, the parts follow each other and hide nothing.
  for (const OpKind kind : {OpKind::F, OpKind::B, OpKind::I, OpKind::W}) {
    const WovenBlock alone = cost.woven_op(kind, 0, shape, 0);
    EXPECT_NEAR(alone.seconds / cost.compute_s(kind, 0, shape, 0), 1, 1e-9) << letter(kind);
    EXPECT_EQ(alone.exposed_s, alone.communication_s);
  }
}

// Seconds of [from, to] during which communication parts run.
double communicating_s(const WovenBlock& block, double from, double to) {
  double seconds = 0;
  for (const WovenPart& part : block.parts) {
    if (!communicates(part.part.part)) continue;
    seconds += std::max(0.0, std::min(to, part.end_s) - std::max(from, part.start_s));
  }
  return seconds;
}

// Every compute part of a joint block against its kernels: arithmetic has 112 of 132 multiprocessors while dispatch or
// combine runs, memory traffic what their bytes leave, each read and written once, and launches and collectives are as
// fast as alone.
TEST(JointBlocks, SlowKernelsByWhatBoundsThem) {
  const Transformer model = example("mixtral-8x7b/config.json");
  Training training = training_of(1, 1, 8, 8);
  training.graph_implementation = Training::GraphImplementation::full_iteration;  // no time of the host
  const AnalyticCost cost = expert_cost_of(model, training);
  const Gpu& gpu = cost.cluster().gpu;
  const MicrobatchShape shape{1, {kTokens}};
  const auto kernels = [&](OpKind kind) {
    return layer_kernels(model, training, kind, {1, kTokens, 0}, LayerKind::experts);
  };
  double sent = 0;
  double links = 0;
  for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W}) {
    for (const KernelCall& call : kernels(kind)) {
      if (call.kind != KernelClass::expert_all_to_all) continue;
      sent += 7.0 / 8 * call.bytes;  // to the other ranks of the node
      links += cost.kernel_s(call);
    }
  }
  const double memory = 2 * sent / links / (gpu.memory_bandwidth_bytes_per_s * gpu.memory_efficiency);
  EXPECT_GT(memory, 0.02);
  EXPECT_LT(memory, 0.5);
  const WovenBlock block = cost.woven_joint(0, shape, 0, OpKind::B, 0, shape, 0);
  int contended = 0;
  for (const WovenPart& part : block.parts) {
    if (communicates(part.part.part)) continue;
    double alone = 0;
    double beside = 0;
    for (const KernelCall& call : kernels(part.part.pass == OpKind::B ? OpKind::I : part.part.pass)) {
      if (call.part != part.part.part) continue;
      KernelTime time = cost.kernel_time(call);
      alone += call.count * time.seconds();
      time.compute_s *= 132.0 / 112;
      time.memory_s /= 1 - memory;
      beside += call.count * time.seconds();
    }
    const double both = communicating_s(block, part.start_s, part.end_s);
    EXPECT_NEAR((part.end_s - part.start_s) / (alone + both * (1 - alone / beside)), 1, 1e-9) << to_string(part.part);
    EXPECT_GT(beside, alone);
    EXPECT_LT(beside, alone * std::max(132.0 / 112, 1 / (1 - memory)));
    contended += both > 0 ? 1 : 0;
  }
  EXPECT_GT(contended, 32);
}

// Node-limited routing: 8 of 256 experts, of 4 of 8 groups. The expected numbers follow from counting.
TEST(Dispatch, SendsATokenOncePerNode) {
  Experts experts{.count = 256, .per_token = 8};
  EXPECT_DOUBLE_EQ(expected_parts(experts, 1), 1);
  EXPECT_NEAR(expected_parts(experts, 256), 8, 1e-9);
  // Each of 8 nodes is missed with probability C(224, 8) / C(256, 8).
  double missed = 1;
  for (int i = 0; i < 8; ++i) missed *= (224.0 - i) / (256.0 - i);
  EXPECT_NEAR(expected_parts(experts, 8), 8 * (1 - missed), 1e-9);
  experts.groups = 8;
  experts.groups_per_token = 4;
  missed = 1;
  for (int i = 0; i < 8; ++i) missed *= (96.0 - i) / (128.0 - i);
  EXPECT_NEAR(expected_parts(experts, 8), 4 * (1 - missed), 1e-9);
  EXPECT_NEAR(expected_parts(experts, 256), 8, 1e-9);
  // Two groups of eight, on four nodes of two groups each: both lie in the same node in 4 of 28 cases.
  experts.groups_per_token = 2;
  double both = 1;  // all experts in one of two chosen groups
  for (int i = 0; i < 8; ++i) both *= (32.0 - i) / (64.0 - i);
  EXPECT_NEAR(expected_parts(experts, 4), 4.0 / 28 + 24.0 / 28 * (2 - 2 * both), 1e-9);
}

// DeepEP and HybridEP deliver a token once to a rank that has several of its experts, where it is copied to them.
TEST(Dispatch, TokensAreCopiedToExpertsOnArrival) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = training_of(1, 1, 8, 8);
  const auto ordering = [&] {
    for (const KernelCall& call : layer_kernels(model, training, OpKind::F, {1, kTokens, 0}, LayerKind::experts)) {
      if (call.name == "copies in order") return call.bytes;
    }
    return 0.0;
  };
  constexpr double kCopies = 8.0 * kTokens * 2048 * 2;  // bytes
  EXPECT_DOUBLE_EQ(ordering(), 2 * kCopies);
  for (const auto dispatcher : {Training::TokenDispatcher::deepep, Training::TokenDispatcher::hybridep}) {
    training.token_dispatcher = dispatcher;
    EXPECT_DOUBLE_EQ(ordering(), (1 + expected_parts(model.experts, 8) / 8) * kCopies);
  }
}

TEST(Dispatch, HierarchicalMovesFewerBytesBetweenNodes) {
  const Transformer model = example("deepseek-v2/config.json");
  Training training = training_of(1, 1, 32, 32);
  const auto forward = [&] {
    double seconds = 0;
    const AnalyticCost cost = expert_cost_of(model, training);
    for (const KernelCall& call : layer_kernels(model, training, OpKind::F, {1, kTokens, 0}, LayerKind::experts)) {
      if (call.kind == KernelClass::expert_all_to_all) seconds += cost.kernel_s(call);
    }
    return seconds;
  };
  const double flat = forward();
  training.token_dispatcher = Training::TokenDispatcher::deepep;
  const double hierarchical = forward();
  EXPECT_LT(hierarchical, 0.7 * flat);
  training.fp8_dispatch = true;  // one of two directions in half the bytes
  EXPECT_NEAR(forward() / hierarchical, 0.76, 0.03);
  training.expert_imbalance = 1.5;
  training.fp8_dispatch = false;
  EXPECT_GT(forward(), 1.4 * hierarchical);  // all but the latency
  EXPECT_LT(forward(), 1.5 * hierarchical);
}

// Rows of the experts and bytes of the all-to-all on the busiest rank, over those of an even spread.
TEST(Dispatch, CapacityLimitsWhatTheBusiestRankGets) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  struct Case {
    int ep;
    double imbalance, capacity;
    bool pads;
    double copied, most;
  };
  for (const Case& each :
       {Case{8, 3, 0, false, 1, 3}, Case{8, 3, 1.25, false, 1, 1.25}, Case{8, 1.1, 1.25, false, 1, 1.1},
        Case{8, 3, 0.5, false, 0.5, 0.5}, Case{8, 1, 1.5, true, 1.5, 1.5}, Case{8, 3, 1.5, true, 1.5, 1.5},
        Case{1, 3, 1.5, false, 1, 1}, Case{1, 1, 1.5, true, 1.5, 1.5}}) {
    Training training = training_of(1, 1, 8, each.ep);
    training.expert_imbalance = each.imbalance;
    training.expert_capacity = each.capacity;
    training.pads_experts = each.pads;
    double rows = 0;
    double bytes = 0;
    double copied = 0;
    for (const KernelCall& call : layer_kernels(model, training, OpKind::F, {1, kTokens, 0}, LayerKind::experts)) {
      if (call.name == "experts in") rows = call.gemm.m * call.gemm.batch;
      if (call.kind == KernelClass::expert_all_to_all) bytes += call.bytes;
      if (call.name == "copies for experts") copied = call.bytes;
    }
    constexpr double kCopies = 8.0 * kTokens;
    EXPECT_NEAR(rows, each.most * kCopies, 1e-6) << each.imbalance << " " << each.capacity << " " << each.ep;
    EXPECT_NEAR(bytes, each.ep > 1 ? 2 * 2 * 2048 * each.most * kCopies : 0, 1e-3);
    EXPECT_NEAR(copied, 2 * 2048 * (kTokens + each.copied * kCopies), 1e-3);
  }
}

TEST(Recomputation, RepeatsExpertsAndTheirCommunication) {
  const Transformer model = example("deepseek-v2/config.json");
  Training training = training_of(1, 1, 8, 8);
  training.recompute = Training::Recompute::full;
  const AnalyticCost cost = expert_cost_of(model, training);
  const MicrobatchShape shape{1, {kTokens}};
  double layers = 0;
  for (const KernelPart& part : cost.parts(OpKind::F, 0, {1, kTokens, 0})) {
    if (part.is_layer()) layers += part.repeats * cost.part_s(part);
  }
  EXPECT_NEAR(cost.recompute_s(0, shape, 0) / layers, 1, 1e-9);
}

TEST(ContextParallel, DistributesTheCausalWorkEvenly) {
  const Transformer model = example("llama3-8b/config.json");
  const SliceFlops whole = layer_slice_flops(model, kTokens, 0);
  for (const auto exchange : {Training::ContextExchange::ring, Training::ContextExchange::all_to_all}) {
    Training training = training_of(2, 4, 1, 1);
    training.context_exchange = exchange;
    const auto sums = [&](OpKind kind) { return sums_of(layer_kernels(model, training, kind, {1, kTokens, 0})); };
    EXPECT_DOUBLE_EQ(sums(OpKind::F).attention * 8, whole.attention);
    EXPECT_DOUBLE_EQ(sums(OpKind::I).attention * 8, 2.5 * whole.attention);
    EXPECT_DOUBLE_EQ(sums(OpKind::W).products * 8, whole.matrices);
    // By heads: a rank's queries, keys and values of 4096 + 2 x 1024 elements, and outputs of 4096, split over tp 2.
    const bool heads = exchange == Training::ContextExchange::all_to_all;
    EXPECT_DOUBLE_EQ(sums(OpKind::F).context_bytes, heads ? 2.0 * kTokens / 4 * (4096 + 2048 + 4096) / 2 : 0);
    EXPECT_EQ(sums(OpKind::W).context_bytes, 0);
  }
}

TEST(ContextParallel, RingIsHiddenByLongAttention) {
  const Transformer model = example("llama3-8b/config.json");
  const auto exposed = [&](std::int64_t tokens, int cp) {
    Training training = training_of(1, cp, 1, 1);
    training.sequence_length = tokens;
    const AnalyticCost cost = expert_cost_of(model, training);
    double seconds = 0;
    for (const KernelCall& call : layer_kernels(model, training, OpKind::F, {1, tokens, 0})) {
      if (call.kind == KernelClass::context_ring) seconds += cost.kernel_s(call);
    }
    return seconds;
  };
  EXPECT_EQ(exposed(131072, 8), 0);
  // Two nodes: a step of 256 tokens sends 2 x 256 x 2048 bytes in some 20 us, and attention takes less.
  EXPECT_GT(exposed(4096, 16), 0);
}

TEST(ContextParallel, AndExpertsSplitTheTimeOfAStage) {
  // Twice the ranks per sequence take slightly more than half the time: launches and exchanges are not split.
  for (const char* name : {"mixtral-8x7b/config.json", "deepseek-v2/config.json"}) {
    Transformer model = example(name);
    model.layers = 4;
    const MicrobatchShape shape{1, {16384}};
    double before = 0;
    for (const int cp : {1, 2, 4}) {
      Training training = training_of(1, cp, 1, 1);
      training.sequence_length = 16384;
      const double now = expert_cost_of(model, training).compute_s(OpKind::B, 0, shape, 0);
      if (before > 0) {
        EXPECT_GT(now, before / 2) << name << cp;
        EXPECT_LT(now, before) << name << cp;
      }
      before = now;
    }
  }
}

}  // namespace
}  // namespace sluice::test

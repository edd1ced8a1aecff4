#include <gtest/gtest.h>

#include "model/cost/analytic.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

constexpr std::int64_t kLength = 4096;

Training on_eight_gpus() {
  Training training;
  training.dp = training.ep = 8;
  training.sequence_length = kLength;
  return training;
}

// The host launches 16 experts one after another, in a millisecond each, and takes no time for all else. It starts
// after dispatch, whose counts it reads, and the last expert ends a sixteenth of the kernels' time after its launch:
// what follows is not hidden behind these launches. Padded experts have constant sizes, and the host runs ahead.
TEST(HostTime, LaunchesNothingAheadOfTheCountsOfDispatch) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = on_eight_gpus();
  Software software = load_software("megatron-lm");
  software.issue_s = software.dispatch_issue_s = 0;
  constexpr double kIssue = 1e-3;
  const Cluster cluster = load_cluster("dgx-h100", 1);
  software.expert_issue_s = kIssue * cluster.host_speed;
  const auto part_of = [&](const AnalyticCost& cost) {
    for (KernelPart& part : cost.parts(OpKind::F, 0, {1, kLength, 0})) {
      if (part.name == "MoE layer") return part;
    }
    return KernelPart();
  };
  // Of the device, from the experts' last GEMMs to the next dispatch.
  const auto rest_of = [&](const AnalyticCost& cost) {
    double seconds = 0;
    bool follows = true;
    for (const KernelCall& call : part_of(cost).calls) {
      if (call.name == "dispatch") follows = false;
      if (follows) seconds += cost.kernel_s(call);
      if (call.name == "experts out") {
        follows = true;
        seconds += cost.kernel_s(call) / 16;
      }
    }
    return seconds;
  };
  const AnalyticCost cost(model, training, split_layers(model, 1, {}, 0, 0), cluster, software);
  EXPECT_NEAR(cost.part_s(part_of(cost)), 32 * kIssue + rest_of(cost), 1e-9);
  EXPECT_GT(rest_of(cost), 1e-3);
  // HybridEP's counts are there after dispatch, and the copies that it orders are part of it.
  training.token_dispatcher = Training::TokenDispatcher::hybridep;
  const AnalyticCost hybrid(model, training, split_layers(model, 1, {}, 0, 0), cluster, software);
  double dispatch = 0;
  for (const KernelCall& call : part_of(hybrid).calls) {
    if (call.name == "dispatch") dispatch = hybrid.kernel_s(call);
    EXPECT_TRUE(call.name != "copies in order" || call.part == LayerPart::dispatch);
  }
  EXPECT_GT(dispatch, 0);
  EXPECT_NEAR(hybrid.part_s(part_of(hybrid)), dispatch + 32 * kIssue + rest_of(hybrid), 1e-9);
  training.token_dispatcher = Training::TokenDispatcher::all_to_all;
  training.expert_capacity = 1;
  training.pads_experts = true;
  const AnalyticCost padded(model, training, split_layers(model, 1, {}, 0, 0), cluster, software);
  EXPECT_NEAR(padded.part_s(part_of(padded)), 32 * kIssue, 1e-9);
}

// Three fifths of an exchange's time are its calls: four of dispatch and combine with DeepEP, seven with NCCL's
// all-to-all, which has one for the probabilities and sorts what it receives. A graph may contain the rest.
TEST(HostTime, IsLongerForTheExchangesOfNccl) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = on_eight_gpus();
  const auto dispatch_s = [&] {
    const AnalyticCost cost(model, training, split_layers(model, 1, {}, 0, 0), load_cluster("dgx-h100", 1),
                            load_software("megatron-lm"));
    double seconds = 0;
    for (const KernelPart& part : cost.parts(OpKind::F, 0, {1, kLength, 0})) {
      for (const KernelCall& call : part.calls) seconds += call.name == "dispatch" ? cost.issue_s(call) : 0;
    }
    return seconds;
  };
  const double nccl_s = dispatch_s();
  training.token_dispatcher = Training::TokenDispatcher::deepep;
  const double deepep_s = dispatch_s();
  EXPECT_NEAR(nccl_s / deepep_s, 0.6 * 7 / 4 + 0.4, 1e-12);
  training.graph_implementation = Training::GraphImplementation::transformer_engine;
  training.graph_modules = GraphModule::moe_router;
  EXPECT_NEAR(dispatch_s() / deepep_s, 0.6, 1e-12);
  training.token_dispatcher = Training::TokenDispatcher::all_to_all;
  EXPECT_NEAR(dispatch_s() / deepep_s, 0.6 * 7 / 4, 1e-12);
}

TEST(JointBlocks, TakeAtLeastTheTimeOfTheHost) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = on_eight_gpus();
  const MicrobatchShape shape{.sequences = 1, .slice_lengths = {kLength}};
  Software software = load_software("megatron-lm");
  software.issue_s *= 20;
  software.part_issue_s = 0;  // of joint blocks alone: the next test
  double before = 0;
  for (const auto overlap : {Training::JointOverlap::experts, Training::JointOverlap::all}) {
    training.joint_overlap = overlap;
    for (const double imbalance : {1.0, 2.0, 4.0}) {
      training.expert_imbalance = imbalance;
      const AnalyticCost cost(model, training, split_layers(model, 1, {}, 0, 0), load_cluster("dgx-h100", 1), software);
      const double joint = cost.joint_s(0, shape, 0, OpKind::B, 0, shape, 0);
      const double apart = cost.compute_s(OpKind::F, 0, shape, 0) + cost.compute_s(OpKind::B, 0, shape, 0);
      EXPECT_LE(joint, apart * (1 + 1e-12));
      // The host limits both; a block in which it does not would be shorter by dispatch and combine.
      EXPECT_GE(joint, 0.99 * apart) << imbalance;
      EXPECT_GE(joint, before * (1 - 1e-12)) << imbalance;
      before = joint;
    }
    before = 0;
  }
}

// With four parts in F and four in B, whose launches the host cannot hide, a block of one layer is longer by eight
// calls; a graph of the whole iteration has none.
TEST(JointBlocks, TakeTheCallsOfTheirPartsOnTheHost) {
  const Transformer model = example("qwen3-30b-a3b/config.json");
  Training training = on_eight_gpus();
  const MicrobatchShape shape{.sequences = 1, .slice_lengths = {kLength}};
  Software software = load_software("megatron-lm");
  const Cluster cluster = load_cluster("dgx-h100", 1);
  const auto block_s = [&](double part_issue_s) {
    software.part_issue_s = part_issue_s * cluster.host_speed;
    const AnalyticCost cost(model, training, split_layers(model, 1, {}, 0, 0), cluster, software);
    return cost.joint_s(0, shape, 0, OpKind::B, 0, shape, 0);
  };
  constexpr double kCall = 0.1;  // of the host, which then limits everything
  EXPECT_NEAR((block_s(2 * kCall) - block_s(kCall)) / (8 * kCall * model.layers), 1, 1e-3);
  training.graph_implementation = Training::GraphImplementation::full_iteration;
  EXPECT_EQ(block_s(kCall), block_s(0));
}

}  // namespace
}  // namespace sluice::test

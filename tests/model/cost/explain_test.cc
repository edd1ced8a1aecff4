#include "model/cost/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/schedule/family.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;

struct Explained {
  AnalyticCost cost;
  Schedule schedule;
};

Explained explained(const std::string& family, const Training& training, const char* model = "gpt3-1b.json",
                    int slices = 1, double issue_s = 5e-5) {
  FamilyParams params{.ranks = training.pp, .microbatches = 2 * training.pp};
  params.shape.sequences = training.micro_batch;
  params.shape.slice_lengths.assign(slices, training.sequence_length / slices);
  Schedule schedule = make_schedule(find_family(family), params);
  Software software = load_software("megatron-lm");
  software.issue_s = issue_s;
  const Transformer transformer = example(model);
  AnalyticCost cost(transformer, training, split_layers(transformer, schedule.num_stages(), {}, 0, 0),
                    load_cluster("dgx-a100-80gb", 4), software);
  return {std::move(cost), std::move(schedule)};
}

Training training_of(int tp, int pp, std::int64_t tokens) {
  Training training;
  training.tp = tp;
  training.pp = pp;
  training.sequence_length = tokens;
  return training;
}

double priced(const Explained& run, const ExplainedOp& op, const MicrobatchShape& shape) {
  if (op.op == "recompute") return run.cost.recompute_s(op.stage, shape, op.slice);
  constexpr OpKind kKinds[] = {OpKind::F, OpKind::B, OpKind::I, OpKind::W};
  for (const OpKind kind : kKinds) {
    if (op.op[0] == letter(kind)) return run.cost.compute_s(kind, op.stage, shape, op.slice);
  }
  return -1;
}

TEST(Explain, RowsAddUpToThePriceOfTheOp) {
  for (const Training::Recompute recompute :
       {Training::Recompute::none, Training::Recompute::selective, Training::Recompute::full}) {
    for (const bool flash : {false, true}) {
      for (const int tp : {1, 4}) {
        // Four tokens, bound by the host, and a long sequence, which is not.
        for (const std::int64_t tokens : {std::int64_t{4}, std::int64_t{2048}}) {
          Training training = training_of(tp, 4, tokens);
          training.recompute = recompute;
          training.flash_attention = flash;
          const Explained run = explained("seq1f1b", training, "gpt3-1b.json", 2);
          const MicrobatchShape& shape = run.schedule.shape(0);
          for (int stage = 0; stage < 4; ++stage) {
            for (const ExplainedOp& op : explain_stage(run.cost, run.schedule, stage, shape)) {
              double sum = 0;
              for (const ExplainedKernel& kernel : op.kernels) {
                EXPECT_GT(kernel.seconds, 0) << kernel.name;
                sum += kernel.seconds;
              }
              EXPECT_DOUBLE_EQ(sum, op.seconds);
              EXPECT_NEAR(priced(run, op, shape) / op.seconds, 1, 1e-12) << op.op << " of " << stage;
            }
          }
        }
      }
    }
  }
}

// Rows of collectives that are hidden take no time.
TEST(Explain, RowsOfShardedParametersAddUpToo) {
  for (const int zero : {2, 3}) {
    for (const char* family : {"1f1b", "zb-h1"}) {
      Training training = training_of(1, 1, 2048);
      training.dp = 16;
      training.distributed_optimizer = true;
      training.zero = zero;
      training.recompute = Training::Recompute::full;
      training.recompute_layers = 10;
      const Explained run = explained(family, training);
      const MicrobatchShape& shape = run.schedule.shape(0);
      int gathers = 0;
      int reductions = 0;
      for (const ExplainedOp& op : explain_stage(run.cost, run.schedule, 0, shape)) {
        double sum = 0;
        for (const ExplainedKernel& kernel : op.kernels) {
          sum += kernel.seconds;
          gathers += kernel.name == "all-gather of parameters, exposed" ? 1 : 0;
          reductions += kernel.name == "reduction of gradients, exposed" ? 1 : 0;
        }
        EXPECT_DOUBLE_EQ(sum, op.seconds);
        EXPECT_NEAR(priced(run, op, shape) / op.seconds, 1, 1e-12) << op.op;
      }
      // Of F and of the backward's ops: B; or I, which gathers, and W, which reduces.
      EXPECT_EQ(gathers, zero == 3 ? 2 : 0) << family;
      EXPECT_EQ(reductions, 1) << family;
    }
  }
}

std::vector<std::string> names_of(const std::vector<ExplainedOp>& ops) {
  std::vector<std::string> out;
  for (const ExplainedOp& op : ops) out.push_back(op.op + std::to_string(op.slice));
  return out;
}

TEST(Explain, HasTheOpsOfTheSchedule) {
  const auto ops = [](const std::string& family, Training::Recompute recompute, int slices) {
    Training training = training_of(1, 4, 2048);
    training.recompute = recompute;
    const Explained run = explained(family, training, "gpt3-1b.json", slices);
    return names_of(explain_stage(run.cost, run.schedule, 1, run.schedule.shape(0)));
  };
  EXPECT_THAT(ops("1f1b", Training::Recompute::none, 1), ElementsAre("F0", "B0"));
  EXPECT_THAT(ops("zb-h1", Training::Recompute::none, 1), ElementsAre("F0", "I0", "W0"));
  EXPECT_THAT(ops("1f1b", Training::Recompute::full, 1), ElementsAre("F0", "B0", "recompute0"));
  EXPECT_THAT(ops("seq1f1b", Training::Recompute::none, 2), ElementsAre("F0", "B0", "F1", "B1"));
}

TEST(Explain, NamesTheBoundOfAKernel) {
  const auto limit = [](const Explained& run, const std::string& name) {
    const std::vector<ExplainedOp> ops = explain_stage(run.cost, run.schedule, 1, run.schedule.shape(0));
    for (const ExplainedKernel& kernel : ops[0].kernels) {
      if (kernel.name == name) return std::string(name_of(kernel.limit));
    }
    return std::string("none");
  };
  const Explained large = explained("1f1b", training_of(4, 4, 2048), "gpt3-175b.json");
  EXPECT_EQ(limit(large, "MLP in"), "tensor cores");
  EXPECT_EQ(limit(large, "norm 1"), "memory");
  EXPECT_EQ(limit(large, "all-reduce 1"), "link");
  EXPECT_EQ(limit(large, "waiting for the host"), "none");
  // Four tokens: a GEMM of 12288 x 12288 only moves its weights, a norm moves nearly nothing.
  const Explained few = explained("1f1b", training_of(4, 4, 4), "gpt3-175b.json");
  EXPECT_EQ(limit(few, "MLP in"), "memory");
  EXPECT_EQ(limit(few, "norm 1"), "launch");
  const Explained small = explained("1f1b", training_of(1, 4, 4), "gpt3-1b.json", 1, 1e-4);
  EXPECT_EQ(limit(small, "waiting for the host"), "host");
}

// Over 4 nodes, reduce-scatter and all-gather have 31 steps of a ring each, while an all-reduce has those of a tree: 2
// levels over the nodes and 7 GPUs, and back. Both move the same bytes at the same speed.
TEST(Analytic, SequenceParallelismHasRingsOverNodes) {
  const auto seconds = [](int tp, bool sequence_parallel) {
    Training training = training_of(tp, 1, 2048);
    training.sequence_parallel = sequence_parallel;
    const Explained run = explained("1f1b", training, "gpt3-175b.json");
    for (const KernelPart& part : run.cost.parts(OpKind::F, 0, {1, 2048, 0})) {
      for (const KernelCall& call : part.calls) {
        if (call.name == "all-reduce 1") return run.cost.kernel_s(call);
      }
    }
    return 0.0;
  };
  const Cluster cluster = load_cluster("dgx-a100-80gb", 4);
  const double tree = 2 * (2 * cluster.inter_node.collective_step_s + 7 * cluster.intra_node.collective_step_s);
  const double rings = 62 * cluster.inter_node.collective_step_s + cluster.inter_node.collective_latency_s;
  EXPECT_NEAR(seconds(32, true) - seconds(32, false), rings - tree, 1e-9);
  EXPECT_GT(seconds(8, false), 0);
  EXPECT_DOUBLE_EQ(seconds(8, true), seconds(8, false)) << "one node";
}

TEST(Explain, StagesAreDistinctByTheirContents) {
  const Explained run = explained("1f1b", training_of(1, 4, 2048));
  EXPECT_THAT(distinct_stages(run.cost, 4), ElementsAre(0, 1, 3));
}

}  // namespace
}  // namespace sluice::test

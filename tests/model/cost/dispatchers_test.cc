#include "model/cost/dispatchers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/cost/analytic.h"
#include "tests/model/workload/models.h"

namespace sluice::model {
namespace {

using enum Training::TokenDispatcher;

// 4,096 tokens of 7,168 elements in 16 bits, each for 8 of 8 * ranks experts at random, in one domain of Blackwell.
ExpertExchange published(int ranks, int multiprocessors, bool combines) {
  const double missed = std::pow(1 - 1.0 / ranks, 8);
  return {.tokens = 4096,
          .token_bytes = 2 * 7168,
          .copies = ranks * (1 - missed),
          .ranks = static_cast<double>(ranks),
          .multiprocessors = static_cast<double>(multiprocessors),
          .nvlink_bytes_per_s = 900e9,
          .combines = combines};
}

// GB/s of all copies, those that stay on their rank included, in calls of PyTorch. HybridEP's also copy between a
// tensor and its buffer, at about 6.5 TB/s.
double bandwidth(Training::TokenDispatcher dispatcher, const ExpertExchange& sent) {
  const double bytes = sent.tokens * sent.token_bytes * sent.copies;
  const double copied_s = dispatcher == hybridep ? 2 * bytes / 6.5e12 : 0;
  return bytes / (expert_exchange_s(dispatcher, sent) + copied_s) * 1e-9;
}

// DeepEP, docs/README_Hybrid-EP.md: calls in PyTorch. None of DeepEP's are part of the fit; of HybridEP, its kernels
// are.
TEST(Dispatchers, HaveTheirPublishedBandwidths) {
  struct Case {
    Training::TokenDispatcher dispatcher;
    int ranks;
    int multiprocessors;
    double dispatch;
    double combine;
  };
  for (const Case& known :
       {Case{deepep, 8, 16, 348, 302}, Case{deepep, 8, 24, 494, 420}, Case{deepep, 8, 32, 619, 524},
        Case{hybridep, 8, 16, 543, 535}, Case{hybridep, 8, 32, 546, 569}, Case{hybridep, 16, 16, 473, 474},
        Case{hybridep, 16, 32, 523, 522}, Case{hybridep, 36, 16, 470, 418}, Case{hybridep, 36, 32, 479, 448}}) {
    for (const bool combines : {false, true}) {
      const double measured = combines ? known.combine : known.dispatch;
      const double predicted = bandwidth(known.dispatcher, published(known.ranks, known.multiprocessors, combines));
      EXPECT_NEAR(predicted / measured, 1, known.dispatcher == hybridep ? 0.19 : 0.15)
          << known.ranks << " ranks, " << known.multiprocessors << (combines ? ", combine" : ", dispatch");
    }
  }
}

// HybridEP's kernels on 8 B200, 32 multiprocessors, 8,192 tokens of 512 elements, 8 of 256 experts each: dispatch 90
// us, combine 577 us. Combine waits for every copy that it reads, however small.
TEST(Dispatchers, CombineSmallTokensSlowly) {
  ExpertExchange small = published(8, 32, false);
  small.tokens = 8192;
  small.token_bytes = 2 * 512;
  const auto kernel_us = [&](bool combines) {
    small.combines = combines;
    ExpertExchange nothing = small;
    nothing.tokens = 0;
    return (expert_exchange_s(hybridep, small) - expert_exchange_s(hybridep, nothing)) * 1e6;
  };
  EXPECT_NEAR(kernel_us(false) / 90.3, 1, 0.2);
  EXPECT_NEAR(kernel_us(true) / 577.4, 1, 0.2);
}

TEST(Dispatchers, TakeLongerWithMoreToSend) {
  for (const Training::TokenDispatcher dispatcher : {deepep, hybridep}) {
    for (const bool combines : {false, true}) {
      const ExpertExchange one = published(8, 20, combines);
      const double seconds = expert_exchange_s(dispatcher, one);
      ExpertExchange more = one;
      more.tokens *= 2;
      EXPECT_GT(expert_exchange_s(dispatcher, more), seconds);
      more = one;
      more.multiprocessors = 10;
      EXPECT_GT(expert_exchange_s(dispatcher, more), seconds);
      more.multiprocessors = 0;  // no limit
      EXPECT_LT(expert_exchange_s(dispatcher, more), seconds);
      more = one;
      more.domains = 2;
      more.copies_to_other_domains = 1;
      more.network_bytes_per_s = 36e9;
      EXPECT_GE(expert_exchange_s(dispatcher, more), one.tokens * one.token_bytes / 36e9);
    }
  }
}

// Narrow GEMMs need padded rows, which are copied before the experts and back after them, in both directions.
TEST(Dispatchers, NarrowRowsArePaddedByCopiesUnlessByHybridEp) {
  const Transformer model = test::example("qwen3-30b-a3b/config.json");
  const auto padding = [&](Training::TokenDispatcher dispatcher, GemmPrecision precision, OpKind kind) {
    Training training;
    training.dp = training.ep = 8;
    training.sequence_length = 4096;
    training.precision = precision;
    training.token_dispatcher = dispatcher;
    double bytes = 0;
    for (const KernelCall& call : layer_kernels(model, training, kind, {1, 4096, 0}, LayerKind::experts)) {
      if (call.name.find("padd") != std::string_view::npos) bytes += call.bytes * call.count;
    }
    return bytes;
  };
  constexpr double kCopied = 8 * 4096 * 2048 * (2 + 2);  // rows x channels, read and written
  for (const OpKind kind : {OpKind::F, OpKind::I}) {
    EXPECT_DOUBLE_EQ(padding(all_to_all, GemmPrecision::mxfp8, kind), 2 * kCopied);
    EXPECT_DOUBLE_EQ(padding(deepep, GemmPrecision::mxfp8, kind), 2 * kCopied);
    EXPECT_EQ(padding(hybridep, GemmPrecision::mxfp8, kind), 0);
    EXPECT_EQ(padding(all_to_all, GemmPrecision::bf16, kind), 0);
  }
}

}  // namespace
}  // namespace sluice::model

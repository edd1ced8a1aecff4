#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/blocks/attention_core.h"
#include "model/cost/analytic.h"
#include "model/errors.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

// The kernels of attention alone, for one sequence.
Kernels attention_kernels(const Transformer& model, const Training& training, OpKind kind, std::int64_t tokens) {
  const AttentionCore core{.heads = model.heads,
                           .kv_heads = model.kv_heads,
                           .head_dim = model.head_dim,
                           .value_head_dim = model.head_dim,
                           .dropout = model.dropout};
  const SliceShape slice{.sequences = 1, .tokens = tokens};
  Kernels out;
  add_core(core, kind, {training, slice, kernel_parts::sizes_of(model.hidden, model.dropout, training, slice)}, out);
  return out;
}

TEST(NarrowAttention, IsFasterAndNeedsConstants) {
  const Transformer model = example("llama3-8b/config.json");
  Training training;
  training.sequence_length = 8192;
  training.precision = GemmPrecision::mxfp8;
  const auto cost_on = [&](const char* node) {
    return AnalyticCost(model, training, split_layers(model, 1, {}, 0, 0), load_cluster(node, 1),
                        load_software("nemo"));
  };
  const auto seconds_of = [&](const char* node, bool narrow, OpKind kind) {
    training.narrow_attention = narrow;
    double seconds = 0;
    const AnalyticCost cost = cost_on(node);
    for (const KernelCall& call : attention_kernels(model, training, kind, 8192)) seconds += cost.kernel_s(call);
    return seconds;
  };
  for (const char* node : {"dgx-b200", "gb200-nvl72", "gb300-nvl72"}) {
    for (const OpKind kind : {OpKind::F, OpKind::I}) {
      const double gain = seconds_of(node, false, kind) / seconds_of(node, true, kind);
      EXPECT_GT(gain, 1) << node;  // also with the casts
      EXPECT_LT(gain, 2) << node;
    }
  }
  // The casts: of Q, K and V, and of the output's gradient.
  const auto casts = [&](OpKind kind) {
    double elements = 0;
    for (const KernelCall& call : attention_kernels(model, training, kind, 8192)) {
      if (call.kind == KernelClass::cast)
        elements += call.count * call.bytes / traits_of(training.precision).input.bytes;
    }
    return elements;
  };
  EXPECT_DOUBLE_EQ(casts(OpKind::F), 8192.0 * (32 + 8 + 8) * 128);
  EXPECT_DOUBLE_EQ(casts(OpKind::I), 8192.0 * 32 * 128);
  training.precision = GemmPrecision::fp8;
  training.narrow_attention = true;
  try {
    cost_on("mi300x");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("fp8_dot_product_attention: MI300X"));
  }
}

// With tensor cores for any layout, gradients with a scale per tensor are read twice and written once.
TEST(NarrowFormats, WithAScalePerTensorHaveNoTransposedCopiesOnBlackwell) {
  const Transformer model = example("llama3-8b/config.json");
  Training training;
  training.sequence_length = 8192;
  training.any_layout = true;
  const double width = 2.0 * (model.hidden + model.ffn_hidden) + static_cast<double>(model.query_width()) +
                       static_cast<double>(model.key_value_width());
  for (const auto& [precision, bytes] :
       {std::pair(GemmPrecision::fp8_current, 5.0), std::pair(GemmPrecision::mxfp8, 4 + 2.0 / 32)}) {
    training.precision = precision;
    double cast = 0;
    for (const KernelCall& call : layer_kernels(model, training, OpKind::I, {1, 8192, 0})) {
      if (call.kind == KernelClass::cast) cast += call.count * call.bytes;
    }
    EXPECT_DOUBLE_EQ(cast, bytes * 8192 * width);
  }
}

}  // namespace
}  // namespace sluice::test

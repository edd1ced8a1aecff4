// Layers as the ops that a PyTorch module ran.

#include "model/blocks/traced.h"

#include <gtest/gtest.h>

#include <string>

#include "model/blocks/layer.h"
#include "model/blocks/model_files.h"
#include "model/blocks/stage_kernels.h"
#include "model/errors.h"

namespace sluice::test {
namespace {

// Two layers of h 512: attention of 8 heads on 2 of keys and values, and a gated MLP of 1024.
std::string traced_text(const std::string& layer) {
  return R"({"name": "m", "hidden_size": 512, "vocab_size": 1024, "kinds": {"layer": )" + layer +
         R"(}, "layers": ["layer", "layer"]})";
}

const char* const kOwn = R"([{"block": "attention", "heads": 8, "kv_heads": 2, "head_dim": 64},
                             {"block": "mlp", "width": 1024}])";

std::string traced(const std::string& more = "", const std::string& ops = "", const std::string& tensors = "") {
  return R"([{"block": "traced", )" + more + R"("parameters": {"all": 2229248, "linear": 2228224}, "ops": [)" + ops +
         R"(
    {"op": "memory", "name": "norm 1", "forward": 2048, "backward": 3072},
    {"op": "gemm", "name": "q, k, v", "k": 512, "n": 768},
    {"op": "attention", "heads": 8, "kv_heads": 2, "head_dim": 64},
    {"op": "gemm", "name": "o", "k": 512, "n": 512},
    {"op": "gemm", "name": "gate and up", "k": 512, "n": 2048},
    {"op": "gemm", "name": "down", "k": 1024, "n": 512}], "tensors": [)" +
         tensors + R"(
    {"name": "queries", "life": "input_gradient", "bytes": 1024},
    {"name": "keys and values", "life": "keys_values", "bytes": 512},
    {"name": "operands", "life": "weight_gradient", "bytes": 5120}]}])";
}

Model traced_model(const std::string& layer) { return parse_model(traced_text(layer), "m.json"); }

std::string traced_error(const std::string& layer) {
  try {
    traced_model(layer);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

double traced_flops(const Model& model, const Training& training, OpKind kind, KernelClass of) {
  double sum = 0;
  for (const KernelCall& call : layer_kernels(model, training, kind, {.sequences = 2, .tokens = 128, .context = 64})) {
    if (call.kind == of) sum += call.flops * call.count;
  }
  return sum;
}

TEST(Traced, HasTheWorkOfTheSameBlocks) {
  const Model ours = traced_model(kOwn);
  const Model model = traced_model(traced());
  const Training training{.sequence_length = 192};
  EXPECT_EQ(parameters(model), parameters(ours));
  EXPECT_EQ(layer_model_flops(model, 192), layer_model_flops(ours, 192));
  EXPECT_EQ(layer_slice_flops(model, 128, 64).forward(), layer_slice_flops(ours, 128, 64).forward());
  for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W}) {
    for (const KernelClass of : {KernelClass::gemm, KernelClass::attention_forward, KernelClass::attention_backward}) {
      EXPECT_EQ(traced_flops(model, training, kind, of), traced_flops(ours, training, kind, of));
    }
  }
  EXPECT_GT(traced_flops(model, training, OpKind::W, KernelClass::gemm), 0);
}

// 256 rows: the layer's input, the tensors of the file, and for W the gradients of 768 + 512 + 2048 + 512 columns.
TEST(Traced, StoresWhatTheFileLists) {
  const Model model = traced_model(traced());
  const Training training{.sequence_length = 128};
  const TensorCall call{.training = training, .hidden = 512, .tokens = 128, .rows = 256};
  std::int64_t stored = 0;
  std::int64_t gradients = 0;
  for (const LayerTensor& tensor : layer_tensors(model.kind(0), model.style(), call)) {
    (tensor.life == TensorLife::gradient ? gradients : stored) += tensor.bytes;
  }
  EXPECT_EQ(stored, 256 * (2 * 512 + 1024 + 512 + 5120));
  EXPECT_EQ(gradients, 256 * 2 * 3840);
}

// A scan of 100 FLOPs per token, a product of activations (2 x 4 x 8 x 16, 0.5 per token), a GEMM of 4 experts of which
// each token has one, and an all-reduce: of one of two tensor-parallel ranks.
TEST(Traced, CountsScansExpertsAndCollectives) {
  const std::string ops = R"({"op": "scan", "flops": 100, "fraction": 0.1, "forward": 8, "backward": 16, "state": 32},
    {"op": "batched_gemm", "m": 4, "k": 8, "n": 16, "batch": 0.5},
    {"op": "gemm", "name": "experts", "k": 16, "n": 32, "experts": 4, "rows": 1},
    {"op": "all_reduce", "forward": 1024, "backward": 2048},)";
  const Model without = traced_model(traced(R"("tensor_ranks": 2, )"));
  const Model model = traced_model(traced(R"("tensor_ranks": 2, )", ops));
  EXPECT_EQ(layer_slice_flops(model, 10, 0).attention - layer_slice_flops(without, 10, 0).attention,
            2 * 10 * (100 + 0.5 * 2 * 4 * 8 * 16));
  EXPECT_EQ(layer_slice_flops(model, 10, 0).matrices - layer_slice_flops(without, 10, 0).matrices,
            2 * 10 * 2 * 16 * 32);
  EXPECT_EQ(parameters(model) - active_parameters(model), 2 * 2 * 3 * 16 * 32);
  const Training training{.tp = 2, .sequence_length = 192};
  EXPECT_EQ(traced_flops(model, training, OpKind::F, KernelClass::rated), 256 * 100);
  EXPECT_EQ(traced_flops(model, training, OpKind::I, KernelClass::rated), 256 * 200);
  EXPECT_EQ(traced_flops(model, training, OpKind::W, KernelClass::rated), 0);
  double bytes = 0;
  for (const KernelCall& call : layer_kernels(model, training, OpKind::I, {.sequences = 1, .tokens = 8})) {
    if (call.kind == KernelClass::all_reduce) bytes += call.bytes;
  }
  EXPECT_EQ(bytes, 8 * 2048);
}

TEST(Traced, RefusesOtherTensorParallelSizes) {
  const Model model = traced_model(traced());
  try {
    model.kind(0).steps[0].blocks[0]->check("m", {.tp = 2, .sequence_length = 128});
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "/parallelism/tp: m: traced with a tensor-parallel size of 1, got 2");
  }
}

TEST(Traced, ErrorsNameTheKey) {
  const auto with = [](const std::string& op) { return traced_error(traced("", op + ",")); };
  EXPECT_EQ(traced_error(traced()), "no error");
  EXPECT_NE(with(R"({"op": "gemm", "k": 0, "n": 1})").find("m.json: /kinds/layer/0/ops/0/k: "), std::string::npos);
  EXPECT_NE(with(R"({"op": "gem", "k": 1, "n": 1})").find("m.json: /kinds/layer/0/ops/0/op: "), std::string::npos);
  EXPECT_NE(with(R"({"op": "memory", "bytes": 1})").find("/ops/0/bytes"), std::string::npos);
  EXPECT_NE(with(R"({"op": "attention", "heads": 3, "kv_heads": 2, "head_dim": 1})").find("/ops/0/kv_heads"),
            std::string::npos);
  EXPECT_NE(
      with(R"({"op": "gemm", "k": 1048576, "n": 1048576, "experts": 65536})").find("/ops: expected at most 1e+14"),
      std::string::npos);
  EXPECT_NE(traced_error(traced("", "", R"({"name": "a", "life": "long", "bytes": 1},)")).find("/tensors/0/life"),
            std::string::npos);
  const std::string beside = "[[" + traced().substr(1, traced().size() - 2) + R"(, {"block": "mlp", "width": 8}]])";
  EXPECT_NE(traced_error(beside).find("/kinds/layer/0/0: expected a block that can be beside another"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::test

// GEMMs with epilogues by a fake cublasLt, on emulated devices: what it is asked, and what happens when it fails.

#include "exec/device/cublaslt_gemms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device_kernels.h"
#include "kernels/emulation/block.h"
#include "kernels/emulation/device.h"
#include "kernels/stage.h"
#include "tests/kernels/device_training_run.h"
#include "tests/kernels/library_gemms.h"
#include "tests/kernels/stage_results.h"
#include "tests/support/fake_cublaslt.h"
#include "tests/support/golden.h"
#include "tests/support/test_device.h"

namespace sluice::test {

// Of all tests of this program.
std::unique_ptr<Device> make_test_device() { return emulation::make_device({.gemms = make_fake_gemms}); }

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Transformer aligned_gpt() {
  Transformer model = small_gpt();
  model.hidden = 64;
  model.head_dim = 16;
  model.ffn_hidden = 96;
  return model;
}

// h = 256 in heads of 64, f = 4 h.
Transformer wide_gpt() {
  Transformer model = small_gpt();
  model.hidden = 256;
  model.head_dim = 64;
  model.ffn_hidden = 1024;
  return model;
}

struct OpCounts {
  int launches = 0;
  double tensors = 0;  // bytes of kernels besides GEMMs, in tensors of [n, h] of 16 bits
};
using LayerCounts = std::array<OpCounts, 3>;  // F, I, W

// One stage with one layer, and the buffers of a slice of kRows tokens.
class OneLayer {
 public:
  static constexpr int kRows = 16;

  OneLayer(const Transformer& model, GemmChoice gemms, Device& device) : device_(device) {
    stage_ =
        device_kernels()->make_stage({.model = model, .contents = {.layers = 1}, .gemms = gemms}, Precision::bfloat16);
    stream_->on_launch([this] { ++launches_; });
    const SliceShape shape{.sequences = 1, .tokens = kRows};
    const SliceMemory sizes = stage_->slice_memory(shape);
    call_ = {.shape = shape,
             .weights = room(stage_->memory().weights),
             .gradients = room(stage_->memory().gradients),
             .scratch = room(stage_->scratch_bytes(shape)),
             .to_input_gradient = room(sizes.to_input_gradient),
             .to_weight_gradient = room(sizes.to_weight_gradient),
             .output_gradients = room(sizes.output_gradients),
             .keys_values = room(sizes.keys_values),
             .input = room(sizes.boundary),
             .output = room(sizes.boundary),
             .output_gradient = room(sizes.boundary),
             .input_gradient = room(sizes.boundary),
             .stream = stream_.get(),
             .device = &device_,
             .tables = room(stage_->table_bytes(shape.tokens))};
  }

  LayerCounts run() {
    return {count([this] { stage_->forward(call_); }), count([this] { stage_->input_gradient(call_); }),
            count([this] { stage_->weight_gradient(call_); })};
  }

 private:
  template <class Op>
  OpCounts count(const Op& op) {
    launches_ = 0;
    const std::int64_t before = emulation::kernel_work().bytes;
    op();
    device_.synchronize(*stream_);
    return {launches_, static_cast<double>(emulation::kernel_work().bytes - before) /
                           static_cast<double>(2 * kRows * stage_->spec().model.hidden)};
  }
  std::byte* room(std::int64_t bytes) { return device_.allocate(bytes); }

  Device& device_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<Stream> stream_ = device_.make_stream(StreamPriority::normal);
  int launches_ = 0;
  SliceCall call_;
};

LayerCounts counts_of(const Transformer& model, GemmChoice gemms) {
  const auto device = make_test_device();
  return OneLayer(model, gemms, *device).run();
}

// Fewer launches of a GPT's layer: in F the activation; in I its gradient and the column sums of four biases; in W one
// more, which adds the bias gradients. Without biases, those of the activation; with a gate and biases of the queries,
// keys and values, the column sums move from I to an addition in W. Bytes of kernels besides GEMMs, in tensors of
// [n, h] of 16 bits with f = 4 h: the activation reads pre and a bias per row and writes its output, 3 x 4; its
// gradient also reads that of the output, 4 x 4; the column sums read 1 + 4 + 1 + 3.
TEST(CublasLtGemms, WorkPerLayer) {
  Transformer unbiased = aligned_gpt();
  unbiased.qkv_bias = unbiased.projection_bias = unbiased.mlp_bias = false;
  Transformer biased = small_llama();
  biased.qkv_bias = true;
  const struct {
    const char* name;
    Transformer model;
    std::array<int, 3> more;
  } kCases[] = {{"gpt", wide_gpt(), {-1, -5, 1}},
                {"gpt without biases", unbiased, {-1, -1, 0}},
                {"llama", small_llama(), {0, 0, 0}},
                {"llama with qkv bias", biased, {0, -1, 1}}};
  for (const auto& of : kCases) {
    const LayerCounts before = counts_of(of.model, GemmChoice::cublas);
    const LayerCounts after = counts_of(of.model, GemmChoice::cublaslt);
    for (std::size_t i = 0; i < before.size(); ++i) {
      std::cout << of.name << ", "
                << "FIW"[i] << ": launches " << before[i].launches << " -> " << after[i].launches
                << ", bytes without GEMMs " << before[i].tensors << " -> " << after[i].tensors << " [n, h]\n";
      EXPECT_EQ(after[i].launches - before[i].launches, of.more[i]) << of.name;
    }
    if (of.model.hidden != 256) continue;
    EXPECT_EQ(before[0].tensors - after[0].tensors, 12);
    EXPECT_EQ(before[1].tensors - after[1].tensors, 16 + 9);
    EXPECT_EQ(before[2].tensors, 0);
    EXPECT_EQ(after[2].tensors, 0);  // vectors of float32
  }
}

// A GPT's layer has six: GELU, its gradient, and four weight gradients with biases.
TEST(CublasLtGemms, AnAlgorithmIsSelectedOncePerProblem) {
  const auto device = make_test_device();
  OneLayer layer(aligned_gpt(), GemmChoice::cublaslt, *device);
  FakeCublasLtState& state = fake_cublaslt_state();
  const int heuristics = state.heuristics;
  const int multiplied = state.multiplied;
  layer.run();
  EXPECT_EQ(state.heuristics - heuristics, 6);
  EXPECT_EQ(state.multiplied - multiplied, 6);
  const int objects = state.objects;
  const int calls = state.calls;
  layer.run();
  EXPECT_EQ(state.heuristics - heuristics, 6);
  EXPECT_EQ(state.multiplied - multiplied, 12);
  EXPECT_EQ(state.objects, objects);
  // The GEMM, and the pointers of its bias and its auxiliary matrix: one each, but two of GELU.
  EXPECT_EQ(state.calls - calls, 6 * 2 + 1);
  EXPECT_THAT(device->gemm_library()->notes(), IsEmpty());
}

TEST(CublasLtGemms, AnotherNumberOfMultiprocessorsSelectsAgain) {
  const auto library = make_fake_gemms();
  exec::CublasLtGemms* const gemms = library.get();
  FakeCublasLtState& state = fake_cublaslt_state();
  const auto device = emulation::make_device({});
  const auto stream = device->make_stream(StreamPriority::normal);
  DeviceMemory numbers(*device, *stream, 4096);
  const auto multiply = [&] {
    return gemms->multiply(
        {.rows = 16,
         .columns = 8,
         .inner = 16,
         .a = numbers.data(),
         .a_stride = 16,
         .a_transposed = true,
         .b = numbers.data(),
         .b_stride = 8,
         .c = numbers.data() + 1024,
         .c_stride = 8,
         .out = Element::float32},
        {.kind = GemmEpilogue::Kind::row_sums, .sums = reinterpret_cast<float*>(numbers.data() + 2048)}, *stream);
  };
  const int heuristics = state.heuristics;
  EXPECT_TRUE(multiply());
  gemms->set_multiprocessors(0);
  EXPECT_TRUE(multiply());
  EXPECT_EQ(state.heuristics - heuristics, 1);
  gemms->set_multiprocessors(2);
  EXPECT_TRUE(multiply());
  EXPECT_EQ(state.heuristics - heuristics, 2);
  device->synchronize(*stream);
}

TEST(CublasLtGemms, EpiloguesEqualNaive) {
  const auto device = make_test_device();
  for (const Element element : {Element::float16, Element::bfloat16}) {
    expect_epilogues_equal_naive({.element = element, .rows = 33, .outputs = 64, .inputs = 24}, *device);
    expect_epilogues_equal_naive({.element = element, .rows = 8, .outputs = 40, .inputs = 48}, *device);
  }
}

TrainingCase gpt_case() {
  const Transformer model = aligned_gpt();
  return {.model = model,
          .stages = {whole(model)},
          .precision = Precision::float16,
          .slices = {7},
          .microbatches = 2,
          .backward = TrainingCase::Backward::split,
          .gemms = GemmChoice::cublaslt};
}

// Whichever call fails, from loading on: the result is right, and nothing is left behind.
TEST(CublasLtGemms, FailedCallsFallBack) {
  const TrainingCase of = gpt_case();
  const Matrices weights = rounded(of.precision, tame_matrices(of.model));
  TrainingCase on_cpu = of;
  on_cpu.precision = Precision::float64;
  const TrainingResult reference = run(on_cpu, weights);
  FakeCublasLtState& state = fake_cublaslt_state();
  state.calls = 0;
  run_on_devices(of, weights);
  const int all = state.calls;
  ASSERT_GT(all, 100);
  for (int call = 1; call <= all; call += (call < 45 ? 1 : 17) * (small_scope() ? 4 : 1)) {
    SCOPED_TRACE(call);
    state.calls = 0;
    state.fails_at = call;
    expect_close(run_on_devices(of, weights), reference, allowed_of_stages(of.precision));
    EXPECT_EQ(state.objects, 0);
  }
  state.fails_at = 0;
}

TEST(CublasLtGemms, UnsupportedEpiloguesFallBackWithANote) {
  FakeCublasLtState& state = fake_cublaslt_state();
  const struct {
    cublasLtEpilogue_t epilogue;
    std::array<int, 3> more;  // launches than with all epilogues
    const char* note;
  } kCases[] = {{CUBLASLT_EPILOGUE_GELU_AUX_BIAS, {1, 0, 0}, "GPU 0: GEMM of 16 x 64 x 96 with bias and GELU: "},
                {CUBLASLT_EPILOGUE_DGELU, {0, 1, 0}, "GPU 0: GEMM of 16 x 64 x 96 with gradient of GELU: "},
                {CUBLASLT_EPILOGUE_BGRADB, {0, 0, 3}, "GPU 0: GEMM of 192 x 16 x 64 with gradient of the bias: "}};
  const LayerCounts all = counts_of(aligned_gpt(), GemmChoice::cublaslt);
  for (const auto& of : kCases) {
    state.unsupported = of.epilogue;
    const auto device = make_test_device();
    OneLayer layer(aligned_gpt(), GemmChoice::cublaslt, *device);
    const LayerCounts counts = layer.run();
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(counts[i].launches - all[i].launches, of.more[i]) << of.note;
    }
    layer.run();
    const std::vector<std::string>& notes = device->gemm_library()->notes();
    ASSERT_EQ(notes.size(), of.epilogue == CUBLASLT_EPILOGUE_BGRADB ? 4 : 1);  // not repeated
    EXPECT_EQ(notes[0], std::string(of.note) + "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED");
  }
  state.unsupported = 0;
}

TEST(CublasLtGemms, AMissingLibraryIsReportedOnce) {
  const auto load = []() -> const CublasLt& {
    static const CublasLt table = exec::load_cublaslt(999, std::vector<std::string>{"/nowhere"});
    return table;
  };
  const auto device = emulation::make_device({.gemms = [load] {
    return exec::make_cublaslt_gemms(load, {.name = "GPU 0", .workspace = [](Stream&) { return nullptr; }});
  }});
  OneLayer layer(aligned_gpt(), GemmChoice::cublaslt, *device);
  layer.run();
  layer.run();
  EXPECT_THAT(device->gemm_library()->notes(), ElementsAre(HasSubstr("GPU 0: cublasLt not found: libcublasLt.so.999")));
}

}  // namespace
}  // namespace sluice::test

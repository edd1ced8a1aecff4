// Compares a computation split in every way with the unsplit one; tests memory plans and rejected models.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "model/blocks/model.h"
#include "model/errors.h"
#include "tests/kernels/naive_model.h"
#include "tests/kernels/training_run.h"
#include "tests/support/count_allocations.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

double largest(const std::vector<double>& values) {
  double out = 0;
  for (const double value : values) out = std::max(out, std::abs(value));
  return out;
}

// Expects every gradient within `relative` of the largest of its matrix; vanishing ones (a GPT's key biases), within
// `relative` of a thousandth of the largest of all.
void expect_near_relative(const TrainingResult& result, const TrainingResult& reference, double relative) {
  EXPECT_TRUE(result.intact);
  EXPECT_NEAR(result.loss, reference.loss, relative * reference.loss);
  EXPECT_NEAR(result.squared_norm, reference.squared_norm, 2 * relative * reference.squared_norm);
  double all = 0;
  for (const auto& [name, gradient] : reference.gradients) all = std::max(all, largest(gradient));
  ASSERT_EQ(result.gradients.size(), reference.gradients.size());
  for (const auto& [name, gradient] : reference.gradients) {
    const std::vector<double>& other = result.gradients.at(name);
    ASSERT_EQ(other.size(), gradient.size()) << name;
    const double tolerance = relative * std::max(largest(gradient), 1e-3 * all);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(other[i], gradient[i], tolerance) << name << "[" << i << "]";
    }
  }
}

void expect_same_bits(const TrainingResult& result, const TrainingResult& reference) {
  EXPECT_TRUE(result.intact);
  EXPECT_EQ(result.loss, reference.loss);
  EXPECT_EQ(result.squared_norm, reference.squared_norm);
  EXPECT_EQ(result.gradients, reference.gradients);
}

std::vector<TrainingCase> all_models(Precision precision = Precision::float64) {
  std::vector<TrainingCase> out;
  for (const Transformer& model : {small_gpt(), small_llama(), small_expert_gpt(), small_expert_llama()}) {
    out.push_back({.model = model,
                   .stages = {whole(model)},
                   .precision = precision,
                   .slices = {13},
                   .sequences = 2,
                   .microbatches = 2,
                   .loss_scale = 0.25});
  }
  return out;
}

TEST(Slices, GradientsDoNotDependOnSlicing) {
  for (TrainingCase training : all_models()) {
    const Matrices weights = random_matrices(training.model, 3);
    const TrainingResult reference = run(training, weights);
    for (const std::vector<std::int64_t>& cut :
         {std::vector<std::int64_t>{5, 8}, {1, 1, 11}, {9, 3, 1}, {4, 3, 3, 3}}) {
      training.slices = cut;
      expect_near_relative(run(training, weights), reference, 1e-12);
    }
  }
}

// More tokens than a tile of attention has rows and columns.
TEST(Slices, LongSequencesUseSeveralTiles) {
  for (TrainingCase training : all_models()) {
    training.model.positions = training.model.positions > 0 ? 700 : 0;
    training.microbatches = 1;
    training.slices = {601};
    const Matrices weights = random_matrices(training.model, 3);
    const TrainingResult reference = run(training, weights);
    const double loss = naive_loss(training.model, weights, training.batch());
    EXPECT_NEAR(reference.loss, loss, 1e-12 * loss);
    training.slices = {290, 60, 140, 111};
    expect_near_relative(run(training, weights), reference, 1e-11);
  }
}

TEST(Backward, SplitBackwardIsBitwiseEqual) {
  for (const Precision precision : {Precision::float32, Precision::float64}) {
    for (TrainingCase training : all_models(precision)) {
      for (const bool recompute : {false, true}) {
        for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{13}, {5, 8}}) {
          training.recompute = recompute;
          training.slices = cut;
          const Matrices weights = random_matrices(training.model, 3);
          training.backward = TrainingCase::Backward::whole;
          const TrainingResult reference = run(training, weights);
          training.backward = TrainingCase::Backward::split;
          expect_same_bits(run(training, weights), reference);
        }
      }
    }
  }
}

TEST(Backward, WeightGradientsMayBeDelayed) {
  for (TrainingCase training : all_models()) {
    training.microbatches = 4;
    training.slices = {5, 8};
    // The gradient of a tied embedding comes from both ops, and so is added in another order.
    training.model.tied_embeddings = false;
    const Matrices weights = random_matrices(training.model, 3);
    const TrainingResult reference = run(training, weights);
    training.backward = TrainingCase::Backward::late;
    expect_same_bits(run(training, weights), reference);
    training.backward = TrainingCase::Backward::late_reversed;
    expect_near_relative(run(training, weights), reference, 1e-12);
  }
}

TEST(Recompute, IsBitwiseEqual) {
  for (const Precision precision : {Precision::float32, Precision::float64}) {
    for (TrainingCase training : all_models(precision)) {
      for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{13}, {5, 8}}) {
        training.slices = cut;
        training.recompute = false;
        const Matrices weights = random_matrices(training.model, 3);
        const TrainingResult reference = run(training, weights);
        EXPECT_EQ(reference.recompute_ns, 0);
        training.recompute = true;
        const TrainingResult again = run(training, weights);
        expect_same_bits(again, reference);
        EXPECT_GT(again.recompute_ns, 0);
      }
    }
  }
}

TEST(Stages, GradientsDoNotDependOnStageBoundaries) {
  for (TrainingCase training : all_models()) {
    training.slices = {6, 7};
    const Matrices weights = random_matrices(training.model, 3);
    const TrainingResult reference = run(training, weights);
    // Including a stage without layers at either end.
    for (const std::vector<int>& layers : {std::vector<int>{1, 1}, {2, 0}, {0, 2}, {0, 1, 1, 0}, {1, 0, 1}}) {
      training.stages.clear();
      int end = 0;
      for (const int count : layers) {
        end += count;
        const int experts = std::clamp(end - training.model.dense_layers(), 0, count);
        training.stages.push_back({.layers = count, .expert_layers = experts});
      }
      training.stages.front().embedding = true;
      training.stages.back().head = true;
      training.stages.back().tied_copy = training.model.tied_embeddings;
      for (const bool recompute : {false, true}) {
        for (const TrainingCase::Backward backward : {TrainingCase::Backward::whole, TrainingCase::Backward::late}) {
          training.recompute = recompute;
          training.backward = backward;
          for (const bool shares : {false, true}) {
            training.head_shares_embedding = shares;
            TrainingResult result = run(training, weights);
            // The gradients of the tied copy and the original are not added yet, so that the norm differs.
            if (training.model.tied_embeddings && !shares) result.squared_norm = reference.squared_norm;
            expect_near_relative(result, reference, 1e-12);
          }
        }
      }
    }
  }
}

TEST(TensorParallel, GradientsEqualThoseOfOneRank) {
  for (const Precision precision : {Precision::float64, Precision::float32}) {
    for (TrainingCase training : all_models(precision)) {
      training.model.kv_heads = 4;
      if (training.model.gated) training.model.heads = 8;
      training.slices = {6, 7};
      const Matrices weights = random_matrices(training.model, 3);
      const TrainingResult reference = run(training, weights);
      for (const int t : {2, 4}) {
        for (const bool recompute : {false, true}) {
          for (const TrainingCase::Backward backward : {TrainingCase::Backward::whole, TrainingCase::Backward::split}) {
            training.tensor_parallel = t;
            training.recompute = recompute;
            training.backward = backward;
            for (const int ep : {1, t}) {
              if (ep > 1 && !training.model.has_experts()) continue;
              SCOPED_TRACE(testing::Message() << training.model.name << ", t " << t << ", ep " << ep);
              training.expert_parallel = ep;
              TrainingResult result = run(training, weights);
              // The ranks' parts of the gradients of replicated experts are not added yet, so that the norm differs.
              if (training.model.has_experts() && ep == 1) result.squared_norm = reference.squared_norm;
              expect_near_relative(result, reference, precision == Precision::float64 ? 1e-12 : 2e-4);
            }
          }
        }
      }
      training.tensor_parallel = 1;
    }
  }
}

TEST(Parts, EqualWholeOps) {
  for (TrainingCase training : all_models()) {
    const Matrices weights = random_matrices(training.model, 3);
    for (const int ranks : {1, 2}) {
      for (const std::vector<std::int64_t>& slices : {std::vector<std::int64_t>{13}, {6, 7}}) {
        for (const TrainingCase::Backward backward : {TrainingCase::Backward::whole, TrainingCase::Backward::late}) {
          SCOPED_TRACE(testing::Message()
                       << training.model.name << ", " << ranks << " ranks, " << slices.size() << " slices");
          training.tensor_parallel = ranks;
          training.expert_parallel = training.model.has_experts() ? ranks : 1;
          training.slices = slices;
          training.backward = backward;
          training.in_parts = false;
          const TrainingResult whole = run(training, weights);
          training.in_parts = true;
          const TrainingResult parts = run(training, weights);
          expect_same_bits(parts, whole);
          if (ranks == 1) {
            EXPECT_EQ(parts.allocations, 0);
          }
        }
      }
    }
  }
}

// All logits are equal without a router: experts 0 and 1 are chosen for all tokens, on one of the ranks.
TEST(Experts, TiesAreBrokenByLowerIndex) {
  for (TrainingCase training : all_models()) {
    if (!training.model.has_experts()) continue;
    Matrices weights = random_matrices(training.model, 3);
    std::vector<double>& router = weights.at("layers.1.mlp.router.weight");
    std::fill(router.begin(), router.end(), 0.0);
    const TrainingResult reference = run(training, weights);
    const double loss = naive_loss(training.model, weights, training.batch());
    EXPECT_NEAR(reference.loss, loss, 1e-12 * loss);
    EXPECT_GT(largest(reference.gradients.at("layers.1.mlp.experts.1.down.weight")), 1e-3);
    EXPECT_EQ(largest(reference.gradients.at("layers.1.mlp.experts.2.down.weight")), 0);
    EXPECT_EQ(largest(reference.gradients.at("layers.1.mlp.experts.3.up.weight")), 0);
    training.tensor_parallel = 2;
    training.expert_parallel = 2;
    expect_near_relative(run(training, weights), reference, 1e-12);
  }
}

// Every rank of an expert group holds other experts, and the first group of two counts them.
TEST(Experts, AreDistributedOverConsecutiveRanks) {
  const Transformer model = small_expert_llama();
  std::map<std::string, std::vector<int>> holders;
  std::map<std::string, int> counted;
  for (int data = 0; data < 2; ++data) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      const StageSpec spec{.model = model,
                           .contents = whole(model),
                           .tensor_parallel = 2,
                           .tensor_rank = tensor,
                           .data_rank = data,
                           .expert_parallel = 2};
      const std::unique_ptr<Stage> stage = make_cpu_stage(spec, Precision::float32);
      for (const Parameter& p : stage->parameters()) {
        EXPECT_EQ(p.expert, p.name.find(".experts.") != std::string::npos) << p.name;
        EXPECT_EQ(p.expert, p.offset * 4 >= stage->memory().dense_gradients) << p.name;
        if (p.expert) holders[p.name].push_back(2 * data + tensor);
        if (p.counted) ++counted[p.name];
      }
    }
  }
  ASSERT_EQ(holders.size(), 12U);  // three matrices of four experts
  EXPECT_EQ(holders.at("layers.1.mlp.experts.0.gate.weight"), (std::vector<int>{0, 2}));
  EXPECT_EQ(holders.at("layers.1.mlp.experts.1.down.weight"), (std::vector<int>{0, 2}));
  EXPECT_EQ(holders.at("layers.1.mlp.experts.2.up.weight"), (std::vector<int>{1, 3}));
  EXPECT_EQ(counted.at("layers.1.mlp.experts.2.up.weight"), 1);
  EXPECT_EQ(counted.at("layers.1.mlp.router.weight"), 1);
  EXPECT_EQ(counted.at("layers.1.mlp.shared.up.weight"), 2);  // split over two tensor ranks
}

// Buffers are padded to multiples of 16 elements; all sizes of this test are.
TEST(Experts, MemoryIsThatOfTheWorstDistribution) {
  Transformer model = small_expert_llama();
  model.hidden = 31;  // with the probability 32 elements
  model.experts.ffn_hidden = 16;
  model.experts.shared_ffn_hidden = 0;
  const SliceShape shape{.sequences = 2, .tokens = 16};
  const auto memory = [&](int ep) {
    const StageSpec spec{.model = model, .contents = {.layers = 1, .expert_layers = 1}, .expert_parallel = ep};
    return make_cpu_stage(spec, Precision::float32)->slice_memory(shape);
  };
  // n = 32 rows with two experts each: one rank receives at most 64 rows for four experts, 2 x 64 for two of them, and
  // 4 x 32 for one.
  constexpr std::int64_t h = 31, f = 16;
  EXPECT_EQ(memory(2).to_input_gradient - memory(1).to_input_gradient, f * 2 * 64 * 4);
  EXPECT_EQ(memory(2).to_weight_gradient - memory(1).to_weight_gradient, (h + 1 + f) * 64 * 4);
  EXPECT_EQ(memory(2).output_gradients - memory(1).output_gradients, (2 * f + h) * 64 * 4);
  EXPECT_EQ(memory(4).to_weight_gradient, memory(2).to_weight_gradient);
}

// On two ranks, 300 tokens pad to 512, so that the second rank has tokens and padding.
TEST(TensorParallel, VocabularyIsSplitOverRanks) {
  for (TrainingCase training : all_models()) {
    training.model.vocab = 300;
    const Matrices weights = random_matrices(training.model, 3);
    const TrainingResult reference = run(training, weights);
    const double loss = naive_loss(training.model, weights, training.batch());
    EXPECT_NEAR(reference.loss, loss, 1e-12 * loss);
    training.tensor_parallel = 2;
    training.expert_parallel = training.model.has_experts() ? 2 : 1;
    expect_near_relative(run(training, weights), reference, 1e-12);
  }
}

TEST(TensorParallel, BlocksCoverEveryMatrixOnce) {
  for (Transformer model : {small_gpt(), small_llama(), small_expert_llama()}) {
    model.kv_heads = 4;
    model.vocab = 300;
    for (const int t : {1, 2, 4}) {
      std::map<std::string, std::vector<int>> covered;  // how often
      std::map<std::string, int> counted;               // number of ranks that count it
      std::vector<std::unique_ptr<Stage>> stages;
      for (int rank = 0; rank < t; ++rank) {
        const StageSpec spec{.model = model, .contents = whole(model), .tensor_parallel = t, .tensor_rank = rank};
        stages.push_back(make_cpu_stage(spec, Precision::float32));
        std::int64_t end = 0;
        for (const Parameter& p : stages.back()->parameters()) {
          EXPECT_GE(p.offset, end) << p.name;
          end = p.offset + p.size();
          std::vector<int>& times = covered[p.name];
          times.resize(p.all_rows * p.all_columns);
          for (std::int64_t row = p.first_row; row < p.first_row + p.rows; ++row) {
            for (std::int64_t column = p.first_column; column < p.first_column + p.columns; ++column) {
              ++times[row * p.all_columns + column];
            }
          }
          EXPECT_EQ(p.decays, p.all_columns > 1) << p.name;
          if (p.counted) ++counted[p.name];
        }
        EXPECT_LE(end * 4, stages.back()->memory().weights);
      }
      std::int64_t elements = 0;
      for (const auto& [name, times] : covered) {
        elements += static_cast<std::int64_t>(times.size());
        // Replicated on all ranks and counted by one, or split over all ranks and counted by all.
        const bool replicated = times.front() == t;
        for (const int count : times) ASSERT_EQ(count, replicated ? t : 1) << name;
        EXPECT_EQ(counted[name], replicated ? 1 : t) << name;
      }
      EXPECT_EQ(elements, parameters(model));
    }
  }
}

TEST(Memory, OpsDoNotAllocate) {
  ASSERT_GT(allocations(), 0) << "allocations are not counted";
  for (TrainingCase training : all_models()) {
    const int experts = training.model.has_experts() ? 1 : 0;
    training.stages = {{.layers = 1, .embedding = true},
                       {.layers = 1, .expert_layers = experts, .head = true, .tied_copy = true}};
    training.slices = {5, 8};
    for (const bool recompute : {false, true}) {
      for (const TrainingCase::Backward backward : {TrainingCase::Backward::whole, TrainingCase::Backward::late}) {
        training.recompute = recompute;
        training.backward = backward;
        const TrainingResult result = run(training, random_matrices(training.model, 3));
        EXPECT_EQ(result.allocations, 0);
        EXPECT_TRUE(result.intact);
      }
    }
  }
}

// Buffers are padded to multiples of 16 elements; the sizes of this test are such multiples.
TEST(Memory, EqualsTheDocumentedSizes) {
  Transformer model = small_gpt();
  model.hidden = 32;
  model.head_dim = 8;
  model.ffn_hidden = 64;
  const SliceShape shape{.sequences = 2, .tokens = 8};
  constexpr std::int64_t n = 16, h = 32, a = 4, f = 64, v = 128;  // 50 tokens pad to 128
  constexpr std::int64_t layers = 2;
  StageSpec spec{.model = model, .contents = {.layers = 2, .head = true, .tied_copy = true}, .sliced = true};
  const auto elements = [&] { return make_cpu_stage(spec, Precision::float32)->slice_memory(shape); };
  SliceMemory memory = elements();
  // Input, queries, second residual, pre-activation, mean and deviation of two norms, one log sum per head; and those
  // of the final norm.
  EXPECT_EQ(memory.to_input_gradient, 4 * (layers * n * (3 * h + f + 4 + a) + n * (h + 2)));
  // Inputs of the matrix multiplications; that of the head, and the gradient of its output.
  EXPECT_EQ(memory.to_weight_gradient, 4 * (layers * n * (3 * h + f) + n * (h + v)));
  EXPECT_EQ(memory.output_gradients, 4 * layers * n * (3 * h + h + f + h));
  EXPECT_EQ(memory.keys_values, 4 * layers * n * 2 * h);
  EXPECT_EQ(memory.keys_values_gradient, memory.keys_values);
  EXPECT_EQ(memory.boundary, 4 * n * h);
  const std::int64_t whole_scratch = make_cpu_stage(spec, Precision::float32)->scratch_bytes(shape);

  spec.recompute = true;
  memory = elements();
  EXPECT_EQ(memory.to_input_gradient, 4 * (layers * n * h + n * (h + 2)));
  EXPECT_EQ(memory.to_weight_gradient, 4 * n * (h + v));
  EXPECT_EQ(memory.output_gradients, 4 * layers * n * (5 * h + f + 3 * h + f));
  EXPECT_EQ(memory.keys_values, 4 * layers * n * 2 * h);
  // Recomputed activations of one layer, without its input.
  EXPECT_EQ(make_cpu_stage(spec, Precision::float32)->scratch_bytes(shape),
            whole_scratch + 4 * n * (2 * h + f + 4 + a + 3 * h + f));

  spec.sliced = false;
  EXPECT_EQ(elements().keys_values, 0);
  EXPECT_EQ(elements().keys_values_gradient, 0);
  spec.recompute = false;
  EXPECT_EQ(elements().keys_values, 4 * layers * n * 2 * h);
  EXPECT_EQ(elements().keys_values_gradient, 0);
}

TEST(Rejected, ModelsThatTheKernelsDoNotSupport) {
  const auto refusal = [](const std::function<void(StageSpec&)>& change) -> std::string {
    StageSpec spec{.model = small_llama(), .contents = whole(small_llama())};
    change(spec);
    return test::error_from([&] { make_cpu_stage(spec, Precision::float32); }, "nothing");
  };
  EXPECT_EQ(refusal([](StageSpec&) {}), "nothing");
  const auto with_experts = [&](const std::function<void(StageSpec&)>& change) {
    return refusal([&](StageSpec& spec) {
      spec.model = small_expert_llama();
      spec.contents = whole(spec.model);
      change(spec);
    });
  };
  EXPECT_EQ(with_experts([](StageSpec&) {}), "nothing");
  EXPECT_EQ(with_experts([](StageSpec& spec) { spec.model.mlp_bias = true; }),
            "small Llama with experts: the kernels do not support biases of experts (disable_bias_linear)");
  EXPECT_EQ(with_experts([](StageSpec& spec) { spec.expert_parallel = 3; }),
            "small Llama with experts: experts (4) must be a multiple of the expert-parallel size (3)");
  EXPECT_EQ(with_experts([](StageSpec& spec) {
              spec.tensor_parallel = 2;
              spec.model.experts.shared_ffn_hidden = 13;
            }),
            "small Llama with experts: size of the shared experts (13) must be a multiple of the tensor-parallel size "
            "(2)");
  EXPECT_THAT(refusal([](StageSpec& spec) { spec.model.latent.key_value_rank = 4; }), HasSubstr("latent attention"));
  EXPECT_THAT(refusal([](StageSpec& spec) { spec.model.qk_norm = true; }), HasSubstr("normalized queries and keys"));
  EXPECT_THAT(refusal([](StageSpec& spec) { spec.model.head_dim = 5; }), HasSubstr("odd head size"));
  EXPECT_EQ(refusal([](StageSpec& spec) { spec.tensor_parallel = 4; }),
            "small Llama: key/value heads (2) must be a multiple of the tensor-parallel size (4)");
}

TEST(Rejected, SliceAfterTheLastPosition) {
  TrainingCase training = all_models().front();
  training.slices = {40, 25};
  const Matrices weights = random_matrices(training.model, 3);
  EXPECT_THROW(run(training, weights), InputError);
}

// The ranks of a run are threads of one process, each with its own stage.
TEST(Threads, ConcurrentStagesAreBitwiseEqual) {
  for (const Precision precision : {Precision::float32, Precision::float64}) {
    std::vector<TrainingCase> cases = all_models(precision);
    for (const TrainingCase& training : all_models(precision)) {
      cases.push_back(training);
      cases.back().model.positions = training.model.positions > 0 ? 400 : 0;
      cases.back().slices = {150, 160};
    }
    std::vector<TrainingResult> alone;
    for (const TrainingCase& training : cases) alone.push_back(run(training, random_matrices(training.model, 3)));
    std::vector<TrainingResult> together(cases.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      threads.emplace_back([&, i] { together[i] = run(cases[i], random_matrices(cases[i].model, 3)); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < cases.size(); ++i) expect_same_bits(together[i], alone[i]);
  }
}

TEST(Precision, FloatIsCloseToDouble) {
  for (TrainingCase training : all_models()) {
    const Matrices weights = random_matrices(training.model, 3);
    const TrainingResult reference = run(training, weights);
    training.precision = Precision::float32;
    expect_near_relative(run(training, weights), reference, 2e-4);
  }
}

TEST(NotANumber, PropagatesToTheLossAndAllGradients) {
  for (const Precision precision : {Precision::float32, Precision::float64}) {
    for (const TrainingCase& training : all_models(precision)) {
      Matrices weights = random_matrices(training.model, 3);
      weights.at("layers.0.attention.query.weight")[5] = std::numeric_limits<double>::quiet_NaN();
      const TrainingResult result = run(training, weights);
      EXPECT_TRUE(std::isnan(result.loss));
      EXPECT_TRUE(std::isnan(result.squared_norm));
      const char* const last = training.model.has_experts() ? "layers.1.mlp.router.weight" : "layers.1.mlp.down.weight";
      EXPECT_TRUE(std::isnan(result.gradients.at(last).front()));
    }
  }
}

// Random small shapes, split into slices, stages, ranks and backward ops, equal the model of plain loops.
TEST(Property, RandomShapesEqualPlainLoops) {
  std::mt19937_64 random(20);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (int trial = 0; trial < 60; ++trial) {
    const int t = 1 << between(0, 2);
    Transformer model{.name = "random", .layers = between(1, 3), .hidden = between(1, 40)};
    model.kv_heads = t * between(1, 2);
    model.heads = model.kv_heads * between(1, 3);
    model.head_dim = 2 * between(1, 5);
    model.ffn_hidden = t * between(1, 20);
    model.gated = between(0, 1) == 1;
    model.vocab = between(2, 600);
    model.positions = between(0, 1) == 1 ? 40 : 0;
    model.tied_embeddings = between(0, 1) == 1;
    model.rms_norm = between(0, 1) == 1;
    model.qkv_bias = between(0, 1) == 1;
    model.projection_bias = between(0, 1) == 1;
    model.mlp_bias = between(0, 1) == 1;

    TrainingCase training{.model = model, .stages = {whole(model)}, .sequences = between(1, 2), .microbatches = 2};
    const int slices = between(1, 4);
    for (int i = 0; i < slices; ++i) training.slices.push_back(between(1, 9));
    TrainingCase unsliced = training;
    unsliced.slices = {training.tokens()};
    training.tensor_parallel = t;
    training.recompute = between(0, 1) == 1;
    training.backward = static_cast<TrainingCase::Backward>(between(0, 3));
    if (between(0, 1) == 1) {
      training.stages = {{.layers = 1, .embedding = true}, {.layers = model.layers - 1, .head = true}};
      training.head_shares_embedding = true;
    }
    SCOPED_TRACE(testing::Message() << "trial " << trial << ", t " << t << ", " << slices << " slices");
    const Matrices weights = random_matrices(model, static_cast<std::uint64_t>(trial));
    const TrainingResult result = run(training, weights);
    const double loss = naive_loss(model, weights, training.batch());
    EXPECT_NEAR(result.loss, loss, 1e-11 * loss);
    expect_near_relative(result, run(unsliced, weights), 1e-10);
  }
}

}  // namespace
}  // namespace sluice::test

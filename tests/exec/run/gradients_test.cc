// Gradients of the executor against those of one device without slices and stages.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <tuple>

#include "exec/plan/run_plan.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/schedule/forward_only.h"
#include "tests/support/all_schedules.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/one_device.h"

namespace sluice::test {
namespace {

constexpr std::int64_t kGradientTokens = 15;
constexpr double kTolerance = 1e-10;

// One step of gradient descent with rate 1 results in w - g, from which the gradient follows.
RunSpec descent(const Transformer& model, Precision precision = Precision::float64) {
  RunSpec spec{.model = model, .precision = precision};
  spec.optimizer.kind = OptimizerStep::Kind::sgd;
  spec.optimizer.learning_rate = 1;
  return spec;
}

Weights minus(const Weights& a, const Weights& b) {
  Weights out = a;
  for (auto& [name, values] : out) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= b.at(name)[i];
  }
  return out;
}

// k slices of 15 tokens, the first ones longer: 6 + 4 + 3 + 2, 7 + 5 + 3, 9 + 6.
MicrobatchShape uneven_microbatches(int k, int sequences = 1) {
  switch (k) {
    case 1: return {sequences, {15}};
    case 2: return {sequences, {9, 6}};
    case 3: return {sequences, {7, 5, 3}};
    default: return {sequences, {6, 4, 3, 2}};
  }
}

void expect_gradients(const RunSpec& spec, const Schedule& schedule) {
  const RunPlan plan(spec, schedule);
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), kGradientTokens, 7);
  const test::Trained trained = test::train(plan, tokens);
  const OneDevice device(spec.model);
  const Weights initial = device.initial(spec.seed);
  const OneDevice::Result reference =
      device.gradient(initial, tokens, 0, 0, plan.sequences_per_batch(), 1 / plan.tokens_per_batch());
  EXPECT_NEAR(trained.report.runs.at(0).losses.at(0), reference.loss / plan.tokens_per_batch(), 1e-11);
  const Weights gradients = minus(initial, trained.weights);
  EXPECT_LT(test::relative_difference(gradients, reference.gradients), kTolerance);
}

// Every family with a flush, p up to 4, v up to 2, k up to 4 with uneven slices, two model styles.
TEST(Gradients, MatchOneDevice) {
  int tried = 0;
  const test::Sizes sizes{
      .ranks = 4, .microbatches = small_scope() ? 4 : 8, .chunks = 2, .slices = 4, .vocabulary = false};
  test::for_each_schedule(sizes, [&](const Schedule& made) {
    if (made.weight_policy() != WeightPolicy::flush) return;
    if (small_scope() && (made.num_ranks() == 3 || made.num_microbatches() % 4 != 0)) return;
    SCOPED_TRACE(test::describe(made));
    Schedule schedule = made;
    schedule.resize({uneven_microbatches(made.max_slices())});
    const int layers = std::max(made.num_stages(), 2);
    expect_gradients(descent(test::small_gpt(layers)), schedule);
    expect_gradients(descent(test::small_llama(layers)), schedule);
    ++tried;
  });
  EXPECT_GT(tried, small_scope() ? 90 : 1000);
}

// Microbatches of 1 to 3 documents, 4 to 15 tokens in all, and slices that begin and end within documents. Not all
// documents have one token, which leaves no gradients of queries and keys.
struct PackedBatch {
  ScheduleParts parts;
  std::vector<std::vector<std::int64_t>> documents;
};
PackedBatch packed_batch(const Schedule& schedule, std::mt19937& random) {
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  PackedBatch out{.parts = schedule.parts(), .documents = {}};
  out.parts.shapes.clear();
  out.parts.shape_of.clear();
  for (int microbatch = 0; microbatch < schedule.num_microbatches(); ++microbatch) {
    const std::int64_t tokens = draw(4, kGradientTokens);
    auto& documents = out.documents.emplace_back();
    std::int64_t left = tokens;
    for (std::int64_t count = draw(1, 3); count > 1 && left > 1; --count) {
      documents.push_back(draw(1, left - 1));
      left -= documents.back();
    }
    documents.push_back(left);
    MicrobatchShape shape{.sequences = 1, .slice_lengths = {}};
    left = tokens;
    for (int slice = schedule.max_slices(); slice > 1; --slice) {
      shape.slice_lengths.push_back(draw(1, left - slice + 1));
      left -= shape.slice_lengths.back();
    }
    shape.slice_lengths.push_back(left);
    if (documents.size() > 1) shape.documents = documents;
    out.parts.shapes.push_back(shape);
    out.parts.shape_of.push_back(microbatch);
  }
  return out;
}

// Returns the loss per token and the gradients of the documents of all replicas on one device.
OneDevice::Result on_one_device(const RunPlan& plan, const TokenSource& tokens,
                                const std::vector<PackedBatch>& replicas) {
  const OneDevice device(plan.spec().model);
  const Weights initial = device.initial(plan.spec().seed);
  std::vector<std::vector<std::int64_t>> loaded;  // microbatches of one number follow each other
  for (std::size_t mb = 0; mb < replicas.front().documents.size(); ++mb) {
    for (const PackedBatch& replica : replicas) loaded.push_back(replica.documents[mb]);
  }
  OneDevice::Result out = device.gradient(initial, tokens, 0, loaded, 1 / plan.tokens_per_batch());
  out.loss /= plan.tokens_per_batch();
  return out;
}

// Every family with a flush: documents attend to themselves, positions start anew, and the loss is the mean over
// tokens, also of replicas with documents of their own.
TEST(Gradients, OfPackedDocumentsAreThoseOfDocumentsAlone) {
  int tried = 0;
  std::mt19937 random(3);
  const test::Sizes sizes{
      .ranks = small_scope() ? 2 : 4, .microbatches = 4, .chunks = 2, .slices = 3, .vocabulary = false};
  test::for_each_schedule(sizes, [&](const Schedule& made) {
    if (made.weight_policy() != WeightPolicy::flush || made.num_ranks() == 3 || made.num_batches() > 1) return;
    SCOPED_TRACE(test::describe(made));
    const int layers = std::max(made.num_stages(), 2);
    const Transformer model = tried % 2 == 0 ? test::small_gpt(layers) : test::small_llama(layers);
    for (const int data : {1, 2, 3}) {
      if (data > 1 && tried % 3 != data - 1) continue;
      RunSpec spec = descent(model);
      spec.data_parallel = data;
      spec.tensor_parallel = data == 2 && tried % 4 == 1 ? 2 : 1;
      std::vector<PackedBatch> batches;
      std::vector<Schedule> replicas;
      for (int replica = 0; replica < data; ++replica) {
        batches.push_back(packed_batch(made, random));
        replicas.emplace_back(batches.back().parts);
      }
      const RunPlan plan(spec, replicas);
      const TokenSource tokens = TokenSource::synthetic(static_cast<int>(model.vocab), plan.sequence_length(), 7);
      const test::Trained trained = test::train(plan, tokens);
      const OneDevice::Result reference = on_one_device(plan, tokens, batches);
      EXPECT_NEAR(trained.report.runs.at(0).losses.at(0), reference.loss, 1e-11);
      const Weights initial = OneDevice(model).initial(spec.seed);
      EXPECT_LT(test::relative_difference(minus(initial, trained.weights), reference.gradients), kTolerance);
    }
    ++tried;
  });
  EXPECT_GT(tried, small_scope() ? 20 : 100);
}

TEST(Gradients, ReplicasWithDocumentsOfTheirOwnHaveExpertsOfTheirOwn) {
  std::mt19937 random(5);
  const Schedule schedule = make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 4});
  const PackedBatch batches[] = {packed_batch(schedule, random), packed_batch(schedule, random)};
  RunSpec spec = descent(test::small_mixtral(2));
  spec.data_parallel = spec.tensor_parallel = spec.expert_parallel = 2;
  const std::vector<Schedule> replicas = {Schedule(batches[0].parts), Schedule(batches[1].parts)};
  const RunPlan plan(spec, replicas);
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), plan.sequence_length(), 7);
  const test::Trained trained = test::train(plan, tokens);
  const OneDevice::Result reference = on_one_device(plan, tokens, {batches[0], batches[1]});
  const Weights initial = OneDevice(spec.model).initial(spec.seed);
  EXPECT_LT(test::relative_difference(minus(initial, trained.weights), reference.gradients), kTolerance);
  spec.expert_parallel = 4;
  EXPECT_THROW(RunPlan(spec, replicas), InputError);
}

// Microbatches without a backward before those that train, in the family's order of forwards.
Schedule with_reference_pass(const Schedule& training) {
  ScheduleParts parts = training.parts();
  const ScheduleParts pass = without_backward(training).parts();
  const int microbatches = parts.num_microbatches;
  parts.num_microbatches *= 2;
  parts.cells.clear();
  const int shapes = static_cast<int>(parts.shapes.size());
  parts.shapes.insert(parts.shapes.begin(), pass.shapes.begin(), pass.shapes.end());
  for (int& shape : parts.shape_of) shape += shapes;
  parts.shape_of.insert(parts.shape_of.begin(), pass.shape_of.begin(), pass.shape_of.end());
  for (std::size_t rank = 0; rank < parts.orders.size(); ++rank) {
    for (Op& op : parts.orders[rank]) op.microbatch += microbatches;
    parts.orders[rank].insert(parts.orders[rank].begin(), pass.orders[rank].begin(), pass.orders[rank].end());
  }
  return Schedule(std::move(parts));
}

// Every family with a flush, of one route. Evaluation has the loss of one device and leaves the weights; a reference
// pass before training changes neither the gradients nor the loss, which is that of what trains.
TEST(Gradients, AreNotTouchedByWorkWithoutABackward) {
  int tried = 0;
  std::mt19937 random(4);
  const test::Sizes sizes{
      .ranks = small_scope() ? 2 : 4, .microbatches = 4, .chunks = 2, .slices = 3, .vocabulary = false};
  test::for_each_schedule(sizes, [&](const Schedule& made) {
    if (made.weight_policy() != WeightPolicy::flush || made.num_ranks() == 3 || made.num_batches() > 1) return;
    if (made.num_routes() > 1) return;
    SCOPED_TRACE(test::describe(made));
    const int layers = std::max(made.num_stages(), 2);
    const Transformer model = tried % 2 == 0 ? test::small_gpt(layers) : test::small_llama(layers);
    RunSpec spec = descent(model);
    spec.data_parallel = 1 + tried % 2;
    std::vector<PackedBatch> batches;
    std::vector<Schedule> evaluated;
    std::vector<Schedule> mixed;
    for (int replica = 0; replica < spec.data_parallel; ++replica) {
      batches.push_back(packed_batch(made, random));
      evaluated.push_back(without_backward(Schedule(batches.back().parts)));
      mixed.push_back(with_reference_pass(Schedule(batches.back().parts)));
    }
    const Weights initial = OneDevice(model).initial(spec.seed);
    const RunPlan evaluation(spec, evaluated);
    const TokenSource tokens = TokenSource::synthetic(static_cast<int>(model.vocab), evaluation.sequence_length(), 7);
    const test::Trained seen = test::train(evaluation, tokens);
    EXPECT_NEAR(seen.report.runs.at(0).losses.at(0), on_one_device(evaluation, tokens, batches).loss, 1e-11);
    EXPECT_EQ(seen.weights, initial);

    const RunPlan plan(spec, mixed);
    EXPECT_EQ(plan.tokens_per_batch(), evaluation.tokens_per_batch());
    const test::Trained trained = test::train(plan, tokens);
    // Sequences of a reference pass are numbered like those of training.
    for (PackedBatch& batch : batches) {
      batch.documents.insert(batch.documents.begin(), batch.documents.size(), std::vector<std::int64_t>());
    }
    const OneDevice::Result reference = on_one_device(plan, tokens, batches);
    EXPECT_NEAR(trained.report.runs.at(0).losses.at(0), reference.loss, 1e-11);
    EXPECT_LT(test::relative_difference(minus(initial, trained.weights), reference.gradients), kTolerance);
    ++tried;
  });
  EXPECT_GT(tried, small_scope() ? 20 : 80);
}

// Families that need different features of the executor: replicas, V-shaped and looped placements, split backwards.
const std::string kTypical[] = {"1f1b", "interleaved-1f1b", "seq1f1b-zb1p", "zb-v", "dualpipe", "chimera"};

Schedule typical(const std::string& name, int k, int sequences = 1, int m = 8, int chunks = 0) {
  const Family& family = find_family(name);
  FamilyParams params{.ranks = 4, .chunks = chunks, .microbatches = m};
  params.shape = uneven_microbatches(family.sliced ? k : 1, sequences);
  return make_schedule(family, params);
}

// Every family supports m = 4 or m = 8 on four ranks; hanayo needs m = ranks, and two chunks per wave.
Schedule of_family(const Family& family) {
  const bool hanayo = family.name == "hanayo";
  return typical(std::string(family.name), 3, 1, hanayo ? 4 : 8, hanayo ? 2 : 0);
}

TEST(Gradients, MatchOneDeviceWithDataAndTensorParallelism) {
  int tried = 0;
  for (const Family& family : all_families()) {
    if (family.asynchronous || family.vocabulary_barriers > 0) continue;
    ++tried;
    if (small_scope() && tried % 3 != 0) continue;
    const Schedule schedule = of_family(family);
    for (const int data : {1, 2}) {
      for (const int tensor : {1, 2}) {
        if (small_scope() && data * tensor != 4) continue;
        SCOPED_TRACE(std::string(family.name) + " d=" + std::to_string(data) + " t=" + std::to_string(tensor));
        for (const bool llama : {false, true}) {
          RunSpec spec =
              descent(llama ? test::small_llama(schedule.num_stages()) : test::small_gpt(schedule.num_stages()));
          spec.data_parallel = data;
          spec.tensor_parallel = tensor;
          expect_gradients(spec, schedule);
        }
      }
    }
  }
  EXPECT_GE(tried, 20);
}

// Experts over every divisor of the ranks of a stage: within tensor groups, within data groups, and across both.
TEST(Gradients, MatchOneDeviceWithExperts) {
  struct Ranks {
    int expert;
    int data;
    int tensor;
  };
  const std::vector<Ranks> all = {{1, 1, 1}, {1, 1, 2}, {1, 2, 2}, {2, 1, 2}, {2, 2, 1},
                                  {2, 4, 1}, {2, 2, 2}, {4, 4, 1}, {4, 2, 2}};
  int tried = 0;
  for (const Family& family : all_families()) {
    if (family.asynchronous || family.vocabulary_barriers > 0) continue;
    ++tried;
    if (small_scope() && tried % 3 != 1) continue;
    const Schedule schedule = of_family(family);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Ranks& ranks = all[i];
      if (small_scope() ? ranks.expert * ranks.data != 4 : (i + static_cast<std::size_t>(tried)) % 3 != 0) continue;
      SCOPED_TRACE(testing::Message() << family.name << " ep=" << ranks.expert << " d=" << ranks.data
                                      << " t=" << ranks.tensor);
      for (const bool gated : {false, true}) {
        RunSpec spec =
            descent(gated ? test::small_mixtral(schedule.num_stages()) : test::small_expert_gpt(schedule.num_stages()));
        spec.data_parallel = ranks.data;
        spec.tensor_parallel = ranks.tensor;
        spec.expert_parallel = ranks.expert;
        expect_gradients(spec, schedule);
      }
    }
  }
  EXPECT_GE(tried, 20);
}

TEST(Gradients, MatchOneDeviceWithExpertsAndRecomputationOrOverlap) {
  for (const std::string& name : kTypical) {
    const Schedule schedule = typical(name, 3);
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(testing::Message() << name << (recompute ? ", recomputation" : ", overlapped reductions"));
      RunSpec spec = descent(test::small_expert_gpt(schedule.num_stages() + 3));
      spec.data_parallel = 2;
      spec.expert_parallel = 2;
      spec.recompute = recompute;
      spec.overlap_grad_reduce = !recompute;
      expect_gradients(spec, schedule);
    }
  }
}

// Clipped to half its norm, the gradient is half as large.
TEST(Gradients, GlobalNormCountsEveryExpertOnce) {
  const Schedule schedule = typical("1f1b", 1);
  for (const auto& [expert, data, tensor] : {std::tuple(1, 2, 2), {2, 2, 1}, {2, 2, 2}, {4, 2, 2}, {4, 4, 1}}) {
    SCOPED_TRACE(testing::Message() << "ep=" << expert << " d=" << data << " t=" << tensor);
    RunSpec spec = descent(test::small_expert_gpt(schedule.num_stages()));
    spec.data_parallel = data;
    spec.tensor_parallel = tensor;
    spec.expert_parallel = expert;
    const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), kGradientTokens, 7);
    const OneDevice device(spec.model);
    const Weights initial = device.initial(spec.seed);
    const int sequences = 8 * data;
    Weights half =
        device.gradient(initial, tokens, 0, 0, sequences, 1.0 / static_cast<double>(sequences * kGradientTokens))
            .gradients;
    double squares = 0;
    for (auto& [name, values] : half) {
      for (double& value : values) {
        squares += value * value;
        value /= 2;
      }
    }
    spec.clip_gradients = std::sqrt(squares) / 2;
    const RunPlan plan(spec, schedule);
    const test::Trained trained = test::train(plan, tokens);
    EXPECT_NEAR(trained.report.runs.at(0).gradient_norm, std::sqrt(squares), 1e-11 * std::sqrt(squares));
    EXPECT_LT(test::relative_difference(minus(initial, trained.weights), half), kTolerance);
  }
}

TEST(Gradients, ExpertsAreDistributedOverDivisorsOfTheRanksOfAStage) {
  RunSpec spec = descent(test::small_mixtral(4));
  spec.data_parallel = 2;
  spec.expert_parallel = 4;
  EXPECT_EQ(test::error_from([&] { const RunPlan plan(spec, typical("1f1b", 1)); }),
            "small-mixtral: expert-parallel size 4, expected a divisor of 2, the product of the data- and "
            "tensor-parallel sizes");
}

TEST(Gradients, MatchOneDeviceWithFourTensorRanks) {
  RunSpec spec = descent(test::small_gpt(4, false));
  spec.tensor_parallel = 4;
  FamilyParams params{.ranks = 2, .microbatches = 3};
  params.shape = uneven_microbatches(3);
  expect_gradients(spec, make_schedule(find_family("seq1f1b"), params));
}

TEST(Gradients, MatchOneDeviceWithUnevenStages) {
  for (const std::string& name : kTypical) {
    SCOPED_TRACE(name);
    const Schedule schedule = typical(name, 4, 2);
    RunSpec spec = descent(test::small_gpt(0));
    for (int stage = 0; stage < schedule.num_stages(); ++stage) spec.stage_layers.push_back(stage % 3 == 1 ? 3 : 1);
    for (const int layers : spec.stage_layers) spec.model.layers += layers;
    expect_gradients(spec, schedule);
  }
}

TEST(Gradients, MatchOneDeviceWithRecomputation) {
  for (const std::string& name : kTypical) {
    SCOPED_TRACE(name);
    const Schedule schedule = typical(name, 3);
    RunSpec spec = descent(test::small_llama(schedule.num_stages() + 3));
    spec.recompute = true;
    expect_gradients(spec, schedule);
  }
}

// Rows of two sequences alternate in the buffers of keys and values; small_llama has grouped heads.
TEST(Gradients, MatchOneDeviceWithUnevenSlicesOfTwoSequences) {
  for (const char* name : {"seq1f1b", "seq1f1b-interleaved", "seq1f1b-zb2p"}) {
    const Schedule schedule = typical(name, 4, 2);
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(testing::Message() << name << (recompute ? ", recomputation" : ""));
      RunSpec spec = descent(test::small_llama(schedule.num_stages() + 1));
      spec.tensor_parallel = 2;
      spec.recompute = recompute;
      expect_gradients(spec, schedule);
    }
  }
}

TEST(Gradients, MatchOneDeviceWithOverlappedReductions) {
  for (const std::string& name : kTypical) {
    SCOPED_TRACE(name);
    const Schedule schedule = typical(name, 3);
    RunSpec spec = descent(test::small_gpt(schedule.num_stages()));
    spec.data_parallel = 2;
    spec.overlap_grad_reduce = true;
    expect_gradients(spec, schedule);
  }
}

// Finite differences of the loss: independent of any code for gradients.
TEST(Gradients, MatchFiniteDifferences) {
  for (const Transformer& model :
       {test::small_gpt(2), test::small_llama(2), test::small_expert_gpt(2), test::small_mixtral(2)}) {
    const RunSpec spec = descent(model);
    const TokenSource tokens = TokenSource::synthetic(37, kGradientTokens, 3);
    const OneDevice device(spec.model);
    const Weights initial = device.initial(spec.seed);
    const OneDevice::Result at = device.gradient(initial, tokens, 0, 0, 2, 1);
    for (const auto& [name, values] : initial) {
      const std::size_t element = values.size() / 3;
      const double step = 1e-5;
      Weights moved = initial;
      moved[name][element] += step;
      const double above = device.gradient(moved, tokens, 0, 0, 2, 1).loss;
      moved[name][element] -= 2 * step;
      const double below = device.gradient(moved, tokens, 0, 0, 2, 1).loss;
      // The loss is about 108 with a relative error of 1e-16, so the slope has an error of 1e-9; third derivatives add
      // 1e-10.
      EXPECT_NEAR((above - below) / (2 * step), at.gradients.at(name)[element], 1e-7) << name;
    }
  }
}

}  // namespace
}  // namespace sluice::test

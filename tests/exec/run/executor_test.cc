// Components of the executor, and runs that fail, inside one process.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "exec/measure/measured_timeline.h"
#include "exec/plan/host_memory.h"
#include "exec/plan/packing.h"
#include "exec/plan/rank_plan.h"
#include "exec/plan/run_plan.h"
#include "exec/run/op_outcome.h"
#include "exec/run/training_run.h"
#include "exec/transport/all_reduce.h"
#include "exec/transport/threads.h"
#include "exec/watch/failure.h"
#include "exec/watch/recorder_file.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/schedule/forward_only.h"
#include "model/timeline/causes.h"
#include "model/timeline/memory.h"
#include "model/timeline/metrics.h"
#include "model/to_size.h"
#include "tests/support/all_schedules.h"
#include "tests/support/command.h"
#include "tests/support/one_device.h"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Random allocations and releases: no two blocks share a byte, and the arena has the reported size.
TEST(Packing, KeepsBlocksApart) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    Packing packing;
    std::map<std::int64_t, std::int64_t> held;  // offset to bytes
    std::int64_t most = 0;
    for (int i = 0; i < 300; ++i) {
      if (!held.empty() && random() % 5 < 2) {
        const auto released = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
        packing.give(released->first, released->second);
        held.erase(released);
        continue;
      }
      const std::int64_t bytes = 1 + static_cast<std::int64_t>(random() % 1000);
      const std::int64_t offset = packing.take(bytes);
      EXPECT_EQ(offset % 64, 0);
      EXPECT_LE(offset + bytes, packing.size());
      const auto after = held.lower_bound(offset);
      if (after != held.end()) {
        EXPECT_LE(offset + bytes, after->first);
      }
      if (after != held.begin()) {
        EXPECT_LE(std::prev(after)->first + std::prev(after)->second, offset);
      }
      held[offset] = bytes;
      std::int64_t sum = 0;
      for (const auto& [at, size] : held) sum += aligned(size);
      EXPECT_EQ(packing.held(), sum);
      most = std::max(most, sum);
    }
    EXPECT_GE(packing.size(), most);
  }
}

// Blocks of one size, as even slices have, leave no gaps.
TEST(Packing, EqualBlocksLeaveNoGaps) {
  Packing packing;
  std::vector<std::int64_t> offsets;
  for (int i = 0; i < 4; ++i) offsets.push_back(packing.take(100));
  for (int i = 0; i < 100; ++i) {
    packing.give(offsets.front(), 100);
    offsets.erase(offsets.begin());
    offsets.push_back(packing.take(100));
  }
  EXPECT_EQ(packing.size(), 4 * 128);
}

// Whole numbers: sums in float are exact in any order, so every member must get the exact result.
TEST(AllReduceGroup, AllMembersGetTheExactResult) {
  constexpr int kMembers = 3;
  for (const std::int64_t count : {1, 2, 5, 1000, 200'000}) {
    ThreadFabric fabric(kMembers + 1);
    std::vector<std::vector<float>> values(kMembers);
    std::vector<std::vector<double>> most(kMembers);
    {
      std::vector<std::jthread> threads;
      for (int member = 0; member < kMembers; ++member) {
        threads.emplace_back([&, member] {
          auto& mine = values[member];
          auto& maximum = most[member];
          for (std::int64_t i = 0; i < count; ++i) {
            mine.push_back(static_cast<float>((i % 100) * (member + 1)));
            maximum.push_back(static_cast<double>((i * 7 + member * 5) % 11));
          }
          // Members are ranks 1 to 3 of 4.
          AllReduceGroup group(fabric.worker(member + 1), Channel::collective, {1, 2, 3}, 5);
          EXPECT_EQ(group.rank(), member);
          group.all_reduce_sum(mine.data(), count);
          group.all_reduce_max(maximum.data(), count);
        });
      }
    }
    for (int member = 0; member < kMembers; ++member) {
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(values[member][i], static_cast<float>((i % 100) * 6));
        ASSERT_EQ(most[member][i], static_cast<double>(std::max({(i * 7) % 11, (i * 7 + 5) % 11, (i * 7 + 10) % 11})));
      }
    }
  }
}

TEST(Finite, EveryElementIsChecked) {
  std::vector<double> values(17, 1e300);
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  EXPECT_TRUE(all_finite(data, 17, Precision::float64));
  for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    for (double& value : values) {
      value = bad;
      EXPECT_FALSE(all_finite(data, 17, Precision::float64));
      value = -1e-320;
    }
  }
}

RunSpec spec_of(int stages) { return {.model = test::small_llama(std::max(stages, 1))}; }

// The previous content of a buffer has been read by an op that precedes the next send to it: shown by running the steps
// in an order that favours senders as far as the graph allows.
TEST(RankPlan, BuffersAreReadBeforeTheNextSend) {
  int tried = 0;
  test::for_each_schedule(
      {.ranks = 4, .microbatches = 6, .chunks = 2, .slices = 3, .vocabulary = false}, [&](const Schedule& made) {
        SCOPED_TRACE(test::describe(made));
        Schedule schedule = made;
        std::vector<MicrobatchShape> shapes;
        for (const MicrobatchShape& shape : made.shapes()) shapes.push_back({1, shape.slice_lengths});
        schedule.resize(shapes);
        RunSpec spec = spec_of(schedule.num_stages());
        const RunPlan plan(spec, schedule);
        const OpGraph& graph = plan.graph();
        // For each rank as receiver: delay its own ops as long as anything else can run.
        for (int slow = 0; slow < schedule.num_ranks(); ++slow) {
          const RankPlan& rank = plan.rank(slow);
          std::map<VertexId, int> buffer_of;
          std::map<VertexId, VertexId> reader_of;  // transfer to op
          for (const PlannedMessage& receive : rank.receives) buffer_of[receive.vertex] = receive.buffer;
          for (const PlannedStep& step : rank.steps) {
            for (const OpPlan& op : step.ops) {
              if (op.receive != kNone) reader_of[rank.receives[op.receive].vertex] = step.vertex;
            }
          }
          ASSERT_EQ(reader_of.size(), buffer_of.size());
          std::map<int, VertexId> in_buffer;
          std::vector<char> done(graph.size(), 0);
          std::vector<VertexId> left(graph.size());
          for (VertexId v = 0; v < graph.size(); ++v) left[v] = v;
          while (!left.empty()) {
            std::vector<VertexId> held_back;
            bool moved = false;
            for (const VertexId v : left) {
              const auto needs = graph.needs(v);
              const bool ready =
                  std::all_of(needs.begin(), needs.end(), [&](VertexId need) { return done[need] != 0; });
              const bool own = graph[v].lane == slow;
              if (!ready || own) {
                held_back.push_back(v);
                continue;
              }
              done[v] = 1;
              moved = true;
              if (const auto found = buffer_of.find(v); found != buffer_of.end()) {
                const auto [at, empty] = in_buffer.try_emplace(found->second, v);
                ASSERT_TRUE(empty) << graph.name(v) << " overwrites " << graph.name(at->second);
              }
            }
            left = std::move(held_back);
            if (moved) continue;
            const auto next = std::find_if(left.begin(), left.end(), [&](VertexId v) { return graph[v].lane == slow; });
            ASSERT_NE(next, left.end());
            done[*next] = 1;
            std::erase_if(in_buffer, [&](const auto& held) { return reader_of.at(held.second) == *next; });
            left.erase(next);
          }
        }
        ++tried;
      });
  EXPECT_GT(tried, 300);
}

// The most messages that reach a rank while it executes one op.
int most_arrivals_in_an_op(const OpGraph& graph, const Timeline& timeline, int rank) {
  std::vector<Duration> arrivals;
  std::vector<VertexId> ops;
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].lane != graph.compute_lane(rank)) continue;
    ops.push_back(v);
    for (const VertexId need : graph.needs(v)) {
      if (graph[need].kind == VertexKind::transfer) arrivals.push_back(timeline.end[need]);
    }
  }
  std::int64_t most = 0;
  for (const VertexId op : ops) {
    most = std::max<std::int64_t>(most, std::count_if(arrivals.begin(), arrivals.end(), [&](Duration arrival) {
                                    return timeline.start[op] < arrival && arrival <= timeline.end[op];
                                  }));
  }
  return static_cast<int>(most);
}

// The memory model of the measured timeline agrees with the bytes held in the arena.
void expect_memory_of_the_model(const RunSpec& spec, const Schedule& schedule) {
  const RunPlan plan(spec, schedule);
  const TokenSource tokens = TokenSource::synthetic(37, 20, 1);
  TrainingOptions options{.keep_times = KeepTimes::last};
  TrainingReport report;
  train_with_threads(plan, tokens, options, report);
  const Timeline timeline = measured_timeline(plan.graph(), report.runs.back().clocks);
  const auto memory = memory_over_time(plan.graph(), timeline, false);
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    const WorkerReport& worker = report.workers[plan.layout().world_rank(static_cast<int>(rank), 0, 0)];
    // Messages that arrive while an op runs are counted at the start of the next op: several, if the system interrupts
    // the op.
    const auto message = static_cast<double>(20 * 16 * 4);
    const int arrivals = most_arrivals_in_an_op(plan.graph(), timeline, static_cast<int>(rank));
    EXPECT_NEAR(static_cast<double>(worker.held_bytes), static_cast<double>(memory[rank].peak_bytes),
                std::max(2, arrivals + 1) * message);
    EXPECT_LE(worker.held_bytes, worker.arena_bytes);
  }
}

TEST(Memory, AgreesWithTheModel) {
  for (const char* name :
       {"gpipe", "1f1b", "seq1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "dualpipe", "pipedream-2bw"}) {
    SCOPED_TRACE(name);
    const Family& family = find_family(name);
    FamilyParams params{.ranks = 2, .microbatches = 8, .batches = family.asynchronous ? 3 : 0};
    params.shape.slice_lengths = family.sliced ? std::vector<std::int64_t>{9, 6, 5} : std::vector<std::int64_t>{20};
    const Schedule schedule = make_schedule(family, params);
    expect_memory_of_the_model(spec_of(2 * schedule.num_stages()), schedule);
    if (!family.asynchronous) {
      expect_memory_of_the_model(spec_of(2 * schedule.num_stages()), without_backward(schedule));
    }
    RunSpec experts = spec_of(2 * schedule.num_stages());
    experts.model = test::small_expert_gpt(experts.model.layers);
    experts.data_parallel = 2;
    experts.expert_parallel = 2;
    expect_memory_of_the_model(experts, schedule);
  }
}

// Blocks that are held at the same time, by lifetime.
class HeldBlocks {
 public:
  explicit HeldBlocks(std::int64_t size) : size_(size) {}
  void take(std::int64_t offset, std::int64_t bytes) {
    if (bytes == 0) return;
    EXPECT_GE(offset, 0);
    EXPECT_LE(offset + bytes, size_);
    const auto after = held_.lower_bound(offset);
    if (after != held_.end()) {
      EXPECT_LE(offset + bytes, after->first);
    }
    if (after != held_.begin()) {
      EXPECT_LE(std::prev(after)->second, offset);
    }
    held_[offset] = offset + bytes;
    sum_ += bytes;
  }
  void give(std::int64_t offset, std::int64_t bytes) {
    if (bytes == 0) return;
    EXPECT_EQ(held_.erase(offset), 1U);
    sum_ -= bytes;
  }
  std::int64_t sum() const { return sum_; }

 private:
  std::map<std::int64_t, std::int64_t> held_;  // offset to end
  std::int64_t size_;
  std::int64_t sum_ = 0;
};

// Replays the lifetimes that kernels/stage.h documents.
void expect_separate_blocks(const RunPlan& plan, int rank) {
  const RankPlan& planned = plan.rank(rank);
  const Schedule& schedule = plan.schedule();
  HeldBlocks held(planned.blocks_bytes);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < planned.steps.size(); ++i) {
    const PlannedStep& step = planned.steps[i];
    const int ops = step.kind == PlannedStep::Kind::op ? step.num_ops : 0;
    for (const bool begins : {true, false}) {
      for (int j = 0; j < ops; ++j) {
        const OpPlan& op = step.ops[j];
        const MicrobatchShape& shape = schedule.shape(op.op.microbatch);
        const Stage& stage = plan.stage(0, op.op.stage);
        const SliceMemory bytes = stage.slice_memory(slice_shape(shape, op.op.slice));
        const SliceMemory all = stage.slice_memory({.sequences = shape.sequences, .tokens = shape.tokens()});
        const UnitBlocks& own = planned.blocks_of(op.chunk, op.unit, schedule.num_units());
        const UnitBlocks& first = planned.blocks_of(op.chunk, op.unit - op.op.slice, schedule.num_units());
        const bool gradient = op.op.op == OpKind::B || op.op.op == OpKind::I;
        if (begins) {
          if (op.op.op == OpKind::F) held.take(own.to_input_gradient, aligned(bytes.to_input_gradient));
          if (op.op.op == OpKind::F) held.take(own.to_weight_gradient, aligned(bytes.to_weight_gradient));
          if (op.op.op == OpKind::I) held.take(own.output_gradients, aligned(bytes.output_gradients));
          if (op.op.op == OpKind::F && op.op.slice == 0) held.take(first.keys_values, aligned(all.keys_values));
          if (gradient && op.op.slice + 1 == shape.num_slices()) {
            held.take(first.keys_values_gradient, aligned(all.keys_values_gradient));
          }
          continue;
        }
        if (gradient) held.give(own.to_input_gradient, aligned(bytes.to_input_gradient));
        if (op.op.op == OpKind::B || op.op.op == OpKind::W) {
          held.give(own.to_weight_gradient, aligned(bytes.to_weight_gradient));
        }
        if (op.op.op == OpKind::W) held.give(own.output_gradients, aligned(bytes.output_gradients));
        if (gradient && op.op.slice == 0) {
          held.give(first.keys_values, aligned(all.keys_values));
          held.give(first.keys_values_gradient, aligned(all.keys_values_gradient));
        }
      }
      if (begins) {
        EXPECT_EQ(planned.held_after_start[i], held.sum());
      }
      most = std::max(most, held.sum());
    }
  }
  EXPECT_EQ(planned.most_held_bytes, most);
  EXPECT_EQ(held.sum(), 0);
}

TEST(Memory, BlocksOfARankDoNotOverlap) {
  for (const char* name : {"1f1b", "seq1f1b", "seq1f1b-interleaved", "seq1f1b-zb1p", "seq1f1b-zb2p", "terapipe", "zb-v",
                           "dualpipe", "pipedream-2bw"}) {
    const Family& family = find_family(name);
    FamilyParams params{.ranks = 2, .microbatches = 8, .batches = family.asynchronous ? 3 : 0};
    params.shape = {2, family.sliced ? std::vector<std::int64_t>{9, 6, 5} : std::vector<std::int64_t>{20}};
    const Schedule schedule = make_schedule(family, params);
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(testing::Message() << name << (recompute ? ", recomputation" : ""));
      RunSpec spec = spec_of(2 * schedule.num_stages());
      spec.recompute = recompute;
      const RunPlan plan(spec, schedule);
      for (int rank = 0; rank < 2; ++rank) expect_separate_blocks(plan, rank);
    }
  }
}

TEST(Timeline, OfARunKeepsTheOrderOfTheGraph) {
  FamilyParams params{.ranks = 4, .microbatches = 8};
  params.shape.slice_lengths = {9, 6, 5};
  const Schedule schedule = make_schedule(find_family("seq1f1b-zb1p"), params);
  RunSpec spec = spec_of(4);
  spec.data_parallel = 2;
  spec.clip_gradients = 1;
  spec.recompute = true;
  const RunPlan plan(spec, schedule);
  const TokenSource tokens = TokenSource::synthetic(37, 20, 1);
  TrainingOptions options{.runs = 3, .keep_times = KeepTimes::all};
  TrainingReport report;
  train_with_threads(plan, tokens, options, report);
  ASSERT_EQ(report.runs.size(), 3U);
  for (const RunReport& run : report.runs) {
    const Timeline timeline = measured_timeline(plan.graph(), run.clocks);
    for (VertexId v = 0; v < plan.graph().size(); ++v) {
      EXPECT_LE(timeline.start[v], timeline.end[v]) << plan.graph().name(v);
      if (plan.graph()[v].kind == VertexKind::transfer || plan.graph()[v].kind == VertexKind::collective) continue;
      for (const VertexId need : plan.graph().needs(v)) {
        EXPECT_LE(timeline.end[need], timeline.start[v]) << plan.graph().name(need) << " " << plan.graph().name(v);
      }
    }
    EXPECT_EQ(measure(plan.graph(), timeline).makespan, Duration(static_cast<std::int64_t>(run.seconds * 1e9 + 0.5)));
  }
}

TEST(RunPlan, RejectsUnsupportedRuns) {
  FamilyParams params{.ranks = 2, .microbatches = 2};
  params.shape.slice_lengths = {65};
  RunSpec spec{.model = test::small_gpt(2)};
  EXPECT_THROW(RunPlan(spec, make_schedule(find_family("1f1b"), params)), InputError);  // 64 positions
  params.shape.slice_lengths = {64};
  spec.tensor_parallel = 3;
  EXPECT_THROW(RunPlan(spec, make_schedule(find_family("1f1b"), params)), InputError);
  spec.tensor_parallel = 1;
  const RunPlan plan(spec, make_schedule(find_family("1f1b"), params));
  const std::vector<int> workers = {1, 1};
  EXPECT_THROW(check_memory(plan, workers, 1000), DoesNotFit);
  check_memory(plan, workers, available_memory_bytes());
}

// --- runs that fail -------------------------------------------------------------------------------------------------

// Two ranks, four microbatches of 20 tokens, with flight recorders.
struct WatchedRun {
  explicit WatchedRun(const RunSpec& spec = spec_of(2), const char* family = "1f1b")
      : plan(spec, make_schedule(find_family(family), params())) {
    options.supervision.folder = folder.path();
  }
  static FamilyParams params() {
    FamilyParams out{.ranks = 2, .microbatches = 4};
    out.shape.slice_lengths = {20};
    return out;
  }
  void limit(std::chrono::milliseconds time) {
    options.supervision.limits.floor_ns = options.supervision.limits.control_ns = options.supervision.limits.start_ns =
        std::chrono::nanoseconds(time).count();
  }

  RunPlan plan;
  TokenSource tokens = TokenSource::synthetic(37, 20, 1);
  test::TemporaryFolder folder;
  TrainingOptions options{.runs = 3};
  TrainingReport report;
};

struct Broken {
  std::optional<FailureKind> kind;
  int rank = -1;
  std::string what;
};

template <typename Run>
Broken failure_of_run(const Run& run) {
  try {
    run();
  } catch (const RunFailure& failure) {
    return {failure.kind(), failure.world_rank(), failure.what()};
  }
  return {};
}

// Returns the result of `run` with a limit that finds what is `expected`. A busy machine may hold up something else for
// longer than a limit: then a longer one decides.
template <typename Run>
Broken with_limit(const Run& run, const ::testing::Matcher<const std::string&>& expected) {
  using namespace std::chrono_literals;
  Broken broken;
  for (const auto limit : {500ms, 4000ms, 32000ms}) {
    broken = run(limit);
    if (expected.Matches(broken.what)) break;
  }
  EXPECT_THAT(broken.what, expected);
  return broken;
}

struct FaultyRun {
  int data = 1;
  int tensor = 1;
  int expert = 0;  // 0: a dense model
  const char* family = "1f1b";
  double clip = 1;
};

std::optional<FailureKind> run_with_fault(const std::string& fault,
                                          const ::testing::Matcher<const std::string&>& expected,
                                          const FaultyRun& faulty = {}) {
  RunSpec spec = spec_of(2);
  spec.data_parallel = faulty.data;
  spec.tensor_parallel = faulty.tensor;
  spec.clip_gradients = faulty.clip;
  if (faulty.expert > 0) {
    spec.model = test::small_mixtral(spec.model.layers);
    spec.expert_parallel = faulty.expert;
  }
  const auto run = [&](std::chrono::milliseconds limit) {
    WatchedRun of(spec, faulty.family);
    of.options.faults = {parse_fault(fault)};
    of.limit(limit);
    const Broken broken = failure_of_run([&] { train_with_threads(of.plan, of.tokens, of.options, of.report); });
    if (broken.kind && expected.Matches(broken.what)) {
      EXPECT_EQ(of.report.runs.size(), 1U);  // the previous step
      EXPECT_EQ(open_recorders(of.folder.path()).size(), static_cast<std::size_t>(of.plan.layout().size()));
    }
    return broken;
  };
  return with_limit(run, expected).kind;
}

TEST(BrokenRun, FailureNamesRankAndOp) {
  EXPECT_EQ(run_with_fault("stop:rank=0,op=B,mb=1,step=2", HasSubstr("rank 0 has been inside B(stage 0, mb 1)")),
            FailureKind::stuck);
  EXPECT_EQ(run_with_fault("drop:rank=0,op=F,mb=3,step=2",
                           HasSubstr("send F(stage 0, mb 3) 0->1, sent by rank 0 in step 2, is lost")),
            FailureKind::stuck);
  EXPECT_EQ(run_with_fault("nan:rank=1,op=F,mb=2,step=2", HasSubstr("F(stage 1, mb 2) of step 2 on rank 1")),
            FailureKind::non_finite);
  for (const std::string op : {"W", "I"}) {  // the first stage has no input gradient
    EXPECT_EQ(run_with_fault(fmt::format("nan:rank=0,op={},mb=2,step=2", op),
                             HasSubstr(op + "(stage 0, mb 2) of step 2 on rank 0 produced a value that is not finite"),
                             {.family = "zb-h1"}),
              FailureKind::non_finite);
  }
}

// Before they are reduced: afterwards every rank has them.
TEST(BrokenRun, GradientsThatAreNotFiniteNameTheirRank) {
  for (const auto& [op, data, before] : {std::tuple("global-norm", 1, "global norm(step 0)"),
                                         {"gradient-reduce", 2, "gradient reduce(stage 0, step 0)"},
                                         {"optimizer", 1, "optimizer(stage 1, step 0)"}}) {
    SCOPED_TRACE(op);
    for (const double clip : {0.0, 1.0}) {
      if (clip == 0 && std::string(op) == "global-norm") continue;
      const std::string text = std::string("the gradients of rank 1 are not finite in step 2, before ") + before;
      EXPECT_EQ(run_with_fault(std::string("nan:rank=1,step=2,op=") + op, text, {.data = data, .clip = clip}),
                FailureKind::non_finite);
    }
  }
}

// A value that is not finite in a row of the input or in a column of the output gradient shows at an edge.
TEST(Finite, EdgesOfAllGradientsAreChecked) {
  const RunPlan plan(spec_of(1), make_schedule(find_family("1f1b"), {.ranks = 1, .microbatches = 1}));
  const Stage& stage = plan.stage(0, 0);
  std::vector<float> gradients(to_size(stage.memory().gradients / 4), 1.0F);
  const auto fine = [&](std::int64_t element, float value) {
    gradients[to_size(element)] = value;
    const bool finite = edges_finite(stage, reinterpret_cast<const std::byte*>(gradients.data()), Precision::float32);
    gradients[to_size(element)] = 1;
    return finite;
  };
  for (const Parameter& parameter : stage.parameters()) {
    SCOPED_TRACE(parameter.name);
    EXPECT_TRUE(fine(parameter.offset, 2));
    EXPECT_FALSE(fine(parameter.offset, HUGE_VALF));
    EXPECT_FALSE(fine(parameter.offset + parameter.columns - 1, std::nanf("")));
    const bool columns = parameter.name != kWordEmbedding;
    EXPECT_EQ(fine(parameter.offset + (parameter.rows - 1) * parameter.columns, HUGE_VALF), !columns);
  }
}

// Rank 1 never comes to the checkpoint.
TEST(BrokenRun, RankThatIsMissingAtTheCheckpointIsFound) {
  WorkerHooks hooks;
  hooks.after_run = [](Worker&, Transport& transport, std::int64_t) {
    if (transport.rank() == 1) transport.wait_until(Channel::control, [] { return false; });
    transport.barrier();
  };
  const auto run = [&](std::chrono::milliseconds limit) {
    WatchedRun of;
    of.limit(limit);
    return failure_of_run([&] { train_with_threads(of.plan, of.tokens, of.options, of.report, hooks); });
  };
  const Broken broken = with_limit(run, StartsWith("rank 1 has been at the checkpoint, after step 1, for "));
  EXPECT_EQ(broken.kind, FailureKind::stuck);
  EXPECT_EQ(broken.rank, 1);
}

// Rank 1 never arrives, or leaves after the first exchange.
TEST(BrokenRun, ProcessThatIsMissingAtTheStartIsFound) {
  for (const bool arrives : {false, true}) {
    const auto run = [&](std::chrono::milliseconds limit) {
      WatchedRun of;
      of.limit(limit);
      ThreadFabric fabric(2);
      bool late = false;
      Broken broken;
      {
        const std::jthread other([&] {
          std::vector<std::byte> owners(of.plan.layout().size() * 264);  // as exchange_owners sends them
          if (!arrives) return;
          try {
            fabric.worker(1).gather(std::span(owners).first(264));
            fabric.worker(1).broadcast(owners);
          } catch (const Stopped&) {
            late = true;
          }
        });
        broken = failure_of_run([&] { train_as_process(of.plan, fabric.worker(0), of.tokens, of.options, of.report); });
      }
      if (late) broken.what += " (the thread of rank 1 was late)";
      return broken;
    };
    const Broken broken =
        with_limit(run, ::testing::MatchesRegex("rank 0 has waited at the start of the run for rank 1 for [0-9.]+ s"));
    EXPECT_EQ(broken.kind, FailureKind::stuck);
    EXPECT_EQ(broken.rank, 1);
  }
}

TEST(BrokenRun, FaultsInCollectivesAndAllReducesAreFound) {
  EXPECT_EQ(run_with_fault("stop:rank=1,op=gradient-reduce,step=2",
                           StartsWith("the collective thread of rank 1 (pipeline 0, data 1, tensor 0) has been inside "
                                      "gradient reduce(stage 0"),
                           {.data = 2}),
            FailureKind::stuck);
  EXPECT_EQ(run_with_fault("stop:rank=1,op=global-norm,step=2",
                           StartsWith("the collective thread of rank 1 has been inside global norm(step 0)")),
            FailureKind::stuck);
  EXPECT_EQ(
      run_with_fault("stop:rank=3,op=F,mb=0,step=2", HasSubstr("rank 3 (pipeline 1, data 0, tensor 1)"), {.tensor = 2}),
      FailureKind::stuck);
  EXPECT_EQ(run_with_fault("stop:rank=1,op=optimizer,step=2", HasSubstr("optimizer(stage 1")), FailureKind::stuck);
  EXPECT_EQ(
      run_with_fault("stop:rank=1,op=F,mb=2,step=2",
                     AllOf(StartsWith("rank 1 (pipeline 0, data 1, tensor 0) has been inside F(stage 0, mb 2)"),
                           HasSubstr("rank 0 (pipeline 0, data 0, tensor 0), which exchanges tokens of experts in "
                                     "F(stage 0, mb 2) with rank 1")),
                     {.data = 2, .expert = 2}),
      FailureKind::stuck);
}

// In the block 1F3+0B0 of two ranks with DualPipe, whose communication lane waits for the missing rank.
TEST(BrokenRun, FaultsInWovenBlocksAreFound) {
  const FaultyRun dualpipe{.data = 2, .expert = 2, .family = "dualpipe"};
  EXPECT_EQ(run_with_fault("stop:rank=1,op=B,stage=0,mb=0,step=2",
                           AllOf(StartsWith("rank 1 (pipeline 0, data 1, tensor 0) has been inside F(stage 1, mb 3)"),
                                 HasSubstr("rank 0 (pipeline 0, data 0, tensor 0), which exchanges tokens of experts")),
                           dualpipe),
            FailureKind::stuck);
  EXPECT_EQ(run_with_fault("nan:rank=1,op=B,stage=0,mb=0,step=2", HasSubstr("on rank 1 produced a value that is not"),
                           dualpipe),
            FailureKind::non_finite);
}

TEST(BrokenRun, DelayWithinTheDeadlineIsNoFailure) {
  EXPECT_EQ(run_with_fault("delay:rank=0,op=B,mb=1,step=2,seconds=0.2", ""), std::nullopt);
}

}  // namespace
}  // namespace sluice::test

// Transfers that wait in the queues of communicators (model/graph/queue_waits.h), in the time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>

#include "model/errors.h"
#include "model/graph/host_program.h"
#include "model/scenario/setup.h"
#include "sim/engine/predict.h"
#include "sim/engine/shortened.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

// Times of ops in order F, B, I, W, and of a transfer, in seconds.
struct OpTimes {
  std::array<double, 4> op = {1, 2, 1, 1};
  double hop = 0;
};

Scenario scenario_of(const OpTimes& times, const CommunicatorOptions& options) {
  Scenario scenario{.source = "test"};
  scenario.uniform = {
      .forward = {times.op[0]}, .input_gradient = {times.op[2]}, .weight_gradient = {times.op[3]}, .hop = times.hop};
  scenario.communicators = options;
  return scenario;
}

// Executes the lists of the hosts item by item: repeats until nothing changes. Returns the end of the last op; nothing
// if items remain.
class HostExecution {
 public:
  HostExecution(const Schedule& schedule, const CommunicatorOptions& options, const OpTimes& times)
      : schedule_(schedule), options_(options), times_(times), program_(host_program(schedule, options.batched)) {
    const CommunicatorMapping mapping = communicator_mapping(options.communicators, "test");
    for (const Message& m : program_.messages) queue_.push_back(options.serialized ? "" : mapping.communicator(m));
    arrival_.resize(program_.messages.size());
    for (const auto& list : program_.ranks) {
      start_.emplace_back(list.size());
      end_.emplace_back(list.size());
    }
  }

  std::optional<double> run() {
    while (round()) {
    }
    double last = 0;
    for (std::size_t r = 0; r < end_.size(); ++r) {
      for (std::size_t i = 0; i < end_[r].size(); ++i) {
        if (!end_[r][i]) return std::nullopt;
        if (program_.ranks[r][i].kind == HostItem::Kind::compute) last = std::max(last, *end_[r][i]);
      }
    }
    return last;
  }

 private:
  using Time = std::optional<double>;

  bool round() {
    bool changed = false;
    for (std::size_t r = 0; r < start_.size(); ++r) {
      for (std::size_t i = 0; i < start_[r].size(); ++i) {
        if (!start_[r][i] && (start_[r][i] = start_of(r, i))) changed = true;
        if (start_[r][i] && !end_[r][i] && (end_[r][i] = end_of(r, i))) changed = true;
      }
    }
    return changed;
  }

  bool compute(std::size_t r, std::size_t i) const { return program_.ranks[r][i].kind == HostItem::Kind::compute; }

  bool on_queue(std::size_t r, std::size_t i, const std::string& queue) const {
    if (compute(r, i)) return false;
    const HostItem& item = program_.ranks[r][i];
    const auto posts = program_.posts.begin() + item.first;
    return std::any_of(posts, posts + item.count, [&](const Post& post) { return queue_[post.message] == queue; });
  }

  // When the item may start, if all that it waits for has ended.
  Time start_of(std::size_t r, std::size_t i) const {
    double start = 0;
    const auto wait_for = [&](std::size_t before) {
      if (end_[r][before]) start = std::max(start, *end_[r][before]);
      return end_[r][before].has_value();
    };
    for (const auto& [before, after] : program_.data[r]) {
      if (after == i && !wait_for(before)) return std::nullopt;
    }
    for (std::size_t before = 0; before < i; ++before) {
      bool waits = (compute(r, before) && (compute(r, i) || options_.wait == HostWait::stream)) ||
                   options_.wait == HostWait::host;
      if (!compute(r, i)) {
        const HostItem& item = program_.ranks[r][i];
        for (std::uint32_t k = item.first; k < item.first + item.count; ++k) {
          waits |= on_queue(r, before, queue_[program_.posts[k].message]);
        }
      }
      if (waits && !wait_for(before)) return std::nullopt;
    }
    return start;
  }

  Time end_of(std::size_t r, std::size_t i) {
    if (compute(r, i)) return *start_[r][i] + time_of(r, i);
    const HostItem& item = program_.ranks[r][i];
    double end = 0;
    for (std::uint32_t k = item.first; k < item.first + item.count; ++k) {
      const Time arrival = arrival_of(program_.posts[k].message);
      if (!arrival) return std::nullopt;
      end = std::max(end, *arrival);
    }
    return end;
  }

  // A message arrives `hop` after both its send and its receive have started.
  Time arrival_of(std::uint32_t message) const {
    double begin = 0;
    for (std::size_t r = 0; r < start_.size(); ++r) {
      for (std::size_t i = 0; i < start_[r].size(); ++i) {
        const HostItem& item = program_.ranks[r][i];
        if (item.kind == HostItem::Kind::compute) continue;
        const auto posts = program_.posts.begin() + item.first;
        if (std::none_of(posts, posts + item.count, [&](const Post& post) { return post.message == message; }))
          continue;
        if (!start_[r][i]) return std::nullopt;
        begin = std::max(begin, *start_[r][i]);
      }
    }
    return begin + times_.hop;
  }

  double time_of(std::size_t r, std::size_t i) const {
    std::size_t computes = 0;
    for (std::size_t before = 0; before < i; ++before) computes += compute(r, before) ? 1 : 0;
    const auto ops = schedule_.ops(static_cast<int>(r));
    std::size_t position = 0;
    for (; computes > 0; --computes) position += ops[position].joined ? 2 : 1;
    const auto time = [&](const Op& op) { return times_.op[static_cast<std::size_t>(op.kind)]; };
    const double own = time(ops[position]) + (ops[position].joined ? time(ops[position + 1]) : 0);
    return own / schedule_.num_chunks();
  }

  const Schedule& schedule_;
  const CommunicatorOptions& options_;
  const OpTimes& times_;
  HostProgram program_;
  std::vector<std::string> queue_;  // by message
  std::vector<Time> arrival_;
  std::vector<std::vector<Time>> start_;
  std::vector<std::vector<Time>> end_;
};

// The makespan, or nothing if the ranks hang.
std::optional<double> predicted(const Schedule& schedule, const CommunicatorOptions& options, const OpTimes& times) {
  try {
    const Setup setup(scenario_of(times, options), schedule);
    const Prediction prediction = predict(setup);
    // Transfers are latency alone: all waiting is for queues, and the path leads through it.
    EXPECT_EQ(prediction.critical_path.transfer + prediction.critical_path.idle, Duration{0});
    const std::vector<Duration> spare = slack(setup.graph(), prediction.timeline);
    EXPECT_GE(*std::min_element(spare.begin(), spare.end()), Duration{0});
    for (const VertexId v : prediction.critical_path.vertices) EXPECT_EQ(spare[v], Duration{0});
    return to_seconds(prediction.metrics.makespan);
  } catch (const ScheduleError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("hangs with the communicators"));
    return std::nullopt;
  }
}

TEST(QueueWaits, TimesEqualThoseOfTheHostsLists) {
  std::mt19937 random(36);
  const auto below = [&](std::size_t n) { return random() % n; };
  int ran = 0;
  int hung = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::span<const Family> families = all_families();
    const Family& family = families[below(families.size())];
    if (family.vocabulary_barriers > 0) continue;  // without sends and receives
    Shape shape{.p = 2 + static_cast<int>(below(3)), .m = 1 + static_cast<int>(below(6))};
    shape.v = family.fixed_chunks == 0 ? 1 + static_cast<int>(below(3)) : shape.v;
    const CommunicatorOptions options{.communicators = communicator_mappings()[below(5)].name,
                                      .wait = static_cast<HostWait>(below(3)),
                                      .serialized = below(4) == 0,
                                      .batched = below(3) == 0,
                                      .receives = static_cast<Receives>(below(3))};
    OpTimes times{.op = {1.0 + static_cast<double>(below(9)), 0, 1.0 + static_cast<double>(below(9)),
                         1.0 + static_cast<double>(below(9))},
                  .hop = static_cast<double>(below(4))};
    times.op[1] = times.op[2] + times.op[3];
    std::optional<Schedule> schedule;
    try {
      schedule = with_receives(make(std::string(family.name), shape), options.receives);
      static_cast<void>(lower_named(*schedule, {}, "test"));
    } catch (const std::exception&) {  // a shape that the family rejects, or an order that only buffers allow
      continue;
    }
    if (schedule->weight_policy() != WeightPolicy::flush) continue;
    SCOPED_TRACE(fmt::format("{} p={} m={} v={} {} wait {}{}{} receives {} {}", family.name, shape.p, shape.m, shape.v,
                             options.communicators, static_cast<int>(options.wait),
                             options.serialized ? " serialized" : "", options.batched ? " batched" : "",
                             static_cast<int>(options.receives), times.hop));
    const std::optional<double> expected = HostExecution(*schedule, options, times).run();
    const std::optional<double> found = predicted(*schedule, options, times);
    ASSERT_EQ(found.has_value(), expected.has_value());
    if (found) {
      ASSERT_NEAR(*found, *expected, 1e-6);
    }
    ++(found ? ran : hung);
  }
  EXPECT_GT(ran, 800);
  EXPECT_GT(hung, 100);
}

TEST(QueueWaits, AreSimulatedWhole) {
  Scenario scenario = scenario_of({}, {.communicators = "one"});
  scenario.training.pp = 4;
  scenario.microbatches = 4096;
  scenario.shape.slice_lengths = {1};
  EXPECT_FALSE(predict_shortened(scenario));
  scenario.communicators.reset();
  EXPECT_TRUE(predict_shortened(scenario));
}

// Receives where PyTorch's runtime posts them, computed by an independent model of the queues.
TEST(QueueWaits, CoarseQueuesOfInterleavedSchedulesCostTime) {
  const OpTimes times{.op = {2, 4, 2, 2}};  // per chunk, F takes 1 and B 2
  struct Case {
    Shape shape;
    double one, direction, edge;
  };
  for (const Case& each : {Case{{.p = 4, .m = 8, .v = 2}, 70, 69, 57}, Case{{.p = 8, .m = 16, .v = 2}, 172, 170, 117},
                           Case{{.p = 8, .m = 32, .v = 2}, 268, 266, 213}}) {
    const Schedule schedule = make("interleaved-1f1b", each.shape);
    EXPECT_EQ(predicted(schedule, {.communicators = "one"}, times), each.one);
    EXPECT_EQ(predicted(schedule, {.communicators = "direction"}, times), each.direction);
    EXPECT_EQ(predicted(schedule, {.communicators = "pair"}, times), each.edge);
    EXPECT_EQ(predicted(schedule, {.communicators = "edge"}, times), each.edge);
  }
}

}  // namespace
}  // namespace sluice::test

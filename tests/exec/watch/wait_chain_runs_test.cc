// Wait-for chains during simulated runs of schedules: the activities of all threads at every moment follow from list
// scheduling of the graph with random durations, as in the executor. Without a fault no worker is ever at fault; a
// fault is found as soon as its deadline has passed, and all unfinished workers wait for it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "exec/watch/wait_chain.h"
#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/to_size.h"
#include "tests/support/all_schedules.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAreArray;

constexpr std::int64_t kNever = std::int64_t{1} << 60;
constexpr std::int64_t kFloor = 1'000'000;
constexpr int kReplicas = 2;

std::int64_t later(std::int64_t time, std::int64_t by) { return time >= kNever || by >= kNever ? kNever : time + by; }

// A vertex on a thread: waits for `awaited` from `begin` on if necessary, and runs from `start` to `end`.
struct Segment {
  VertexId vertex = 0;
  VertexId awaited = 0;
  std::int64_t begin = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
};

// The vertex of one replica that never ends, or the message that is lost.
struct Trouble {
  VertexId vertex = 0;
  int replica = -1;
};

class VirtualRun {
 public:
  VirtualRun(const OpGraph& graph, const Trouble& trouble, std::uint64_t seed)
      : graph_(graph),
        trouble_(trouble),
        random_(seed),
        threads_(to_size(2 * kReplicas * graph.schedule().num_ranks())) {
    for (int rank = 0; rank < graph.schedule().num_ranks(); ++rank) {
      for (int replica = 0; replica < kReplicas; ++replica) {
        owners_.push_back({.world_rank = kReplicas * rank + replica, .pipeline_rank = rank, .data_rank = replica});
      }
    }
    done_.assign(kReplicas, std::vector<std::int64_t>(graph.size(), 0));
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (graph[v].kind == VertexKind::collective) {
        run_collective(v);
      } else {
        for (int replica = 0; replica < kReplicas; ++replica) run(v, replica);
      }
    }
  }

  const std::vector<RecorderOwner>& owners() const { return owners_; }
  std::int64_t makespan() const {
    std::int64_t last = 0;
    for (const auto& thread : threads_) last = std::max(last, thread.empty() ? 0 : thread.back().end);
    return last;
  }
  // The last moment at which anything happens.
  std::int64_t last_event() const {
    std::int64_t last = 0;
    for (const auto& thread : threads_) {
      for (const Segment& segment : thread) {
        for (const std::int64_t time : {segment.begin, segment.start, segment.end}) {
          if (time < kNever) last = std::max(last, time);
        }
      }
    }
    return last;
  }
  // When the fault begins: its op has started, or its message is sent and waited for.
  std::int64_t begins() const { return trouble_begins_; }

  std::vector<WorkerView> views(std::int64_t now) const {
    std::vector<WorkerView> views(owners_.size());
    for (std::size_t i = 0; i < views.size(); ++i) {
      views[i] = {.seen = true, .compute = doing(2 * i, now), .collective = doing(2 * i + 1, now)};
    }
    return views;
  }
  // World ranks whose compute thread has not finished by the last event.
  std::vector<int> unfinished() const {
    std::vector<int> ranks;
    for (std::size_t i = 0; i < owners_.size(); ++i) {
      const auto& thread = threads_[2 * i];
      if (!thread.empty() && thread.back().end >= kNever) ranks.push_back(static_cast<int>(i));
    }
    return ranks;
  }

 private:
  std::int64_t some(double least, double most) {
    return static_cast<std::int64_t>(std::uniform_real_distribution<>(least, most)(random_) * kFloor);
  }
  std::vector<Segment>& thread(int rank, int replica, bool collective) {
    return threads_[2 * (kReplicas * rank + replica) + (collective ? 1 : 0)];
  }
  static std::int64_t free_at(const std::vector<Segment>& thread) { return thread.empty() ? 0 : thread.back().end; }
  bool troubled(VertexId v, int replica) const { return trouble_.replica == replica && trouble_.vertex == v; }

  void run(VertexId v, int replica) {
    const Vertex& vertex = graph_[v];
    auto& own = thread(graph_.rank_of(v), replica, false);
    if (vertex.kind == VertexKind::transfer) {
      // Posted without waiting.
      if (troubled(v, replica)) trouble_begins_ = free_at(own);
      done_[replica][v] = troubled(v, replica) ? kNever : later(free_at(own), some(0, 0.5));
      return;
    }
    Segment segment{.vertex = v, .begin = free_at(own), .start = free_at(own)};
    for (const VertexId need : graph_.needs(v)) {
      if (done_[replica][need] <= segment.start) continue;
      segment.start = done_[replica][need];
      segment.awaited = need;
    }
    segment.end = troubled(v, replica) ? kNever : later(segment.start, some(0.05, 0.9));
    if (troubled(v, replica)) trouble_begins_ = segment.start;
    if (trouble_.replica == replica && graph_[trouble_.vertex].kind == VertexKind::transfer &&
        segment.awaited == trouble_.vertex && segment.start >= kNever) {
      trouble_begins_ = std::max(trouble_begins_, segment.begin);
    }
    done_[replica][v] = segment.end;
    own.push_back(segment);
  }

  void run_collective(VertexId v) {
    std::vector<char> placed(owners_.size(), 0);
    for (std::size_t first = 0; first < owners_.size(); ++first) {
      const auto ranks = graph_.collective(graph_[v]).ranks;
      if (placed[first] != 0 || std::find(ranks.begin(), ranks.end(), owners_[first].pipeline_rank) == ranks.end()) {
        continue;
      }
      const std::vector<int> members = collective_ranks(graph_, owners_, v, static_cast<int>(first));
      std::int64_t all_there = 0;
      for (const int member : members) {
        const RecorderOwner& owner = owners_[member];
        auto& own = thread(owner.pipeline_rank, owner.data_rank, true);
        Segment segment{.vertex = v, .begin = free_at(own), .start = free_at(own)};
        for (const VertexId need : graph_.needs(v)) {
          const bool ours = graph_[need].kind != VertexKind::collective && graph_.rank_of(need) == owner.pipeline_rank;
          if (!ours || done_[owner.data_rank][need] <= segment.start) continue;
          segment.start = done_[owner.data_rank][need];
          segment.awaited = need;
        }
        all_there = std::max(all_there, segment.start);
        own.push_back(segment);
        placed[member] = 1;
      }
      const std::int64_t end = later(all_there, some(0.05, 0.5));
      for (const int member : members) {
        const RecorderOwner& owner = owners_[member];
        thread(owner.pipeline_rank, owner.data_rank, true).back().end = end;
        // The same time for the replicas that share it.
        done_[owner.data_rank][v] = end;
      }
    }
  }

  Doing doing(std::size_t thread, std::int64_t now) const {
    const auto& segments = threads_[thread];
    const bool collective = thread % 2 == 1;
    for (const Segment& segment : segments) {
      if (segment.end <= now) continue;
      if (segment.start <= now) {
        return {collective ? Activity::exchanging : Activity::working, 0, segment.vertex, 0, segment.start};
      }
      return {Activity::waiting, 0, segment.vertex, segment.awaited, segment.begin};
    }
    if (segments.empty()) return {Activity::starting, 0, 0, 0, 0};
    return {Activity::between, 0, 0, 0, segments.back().end};
  }

  const OpGraph& graph_;
  Trouble trouble_;
  std::mt19937_64 random_;
  std::vector<std::vector<Segment>> threads_;
  std::vector<RecorderOwner> owners_;
  std::vector<std::vector<std::int64_t>> done_;  // by replica and vertex: when its result is complete
  std::int64_t trouble_begins_ = 0;
};

class WaitChainRuns : public ::testing::Test {
 protected:
  static WaitLimits limits() {
    WaitLimits limits;
    limits.floor_ns = kFloor;
    return limits;
  }

  // Calls `use` with the graphs of many schedules, with the collectives that each supports.
  template <typename Use>
  static int for_each_graph(const Use& use) {
    return test::for_each_schedule({.ranks = 3, .microbatches = 4, .chunks = 2, .slices = 2},
                                   [&](const Schedule& schedule) {
                                     SCOPED_TRACE(test::describe(schedule));
                                     const bool flush = schedule.weight_policy() == WeightPolicy::flush;
                                     use(lower(schedule, {.data_parallel = kReplicas,
                                                          .overlap_grad_reduce = schedule.num_ops() % 4 == 0,
                                                          .tied_embedding = flush,
                                                          .global_norm = flush}));
                                   });
  }

  // Examines the run periodically, like the watchdog. Returns the time of the first alarm, or kNever.
  static std::int64_t watch(const VirtualRun& run, WaitChains& chains, std::int64_t until, WaitReport& report) {
    for (std::int64_t now = 0; now <= until; now += kFloor / 8) {
      report = chains.examine(run.views(now), now);
      if (report.broken) return now;
    }
    return kNever;
  }

  std::mt19937_64 random_{7};
};

TEST_F(WaitChainRuns, RunWithoutFaultHasNoAlarm) {
  const int schedules = for_each_graph([&](const OpGraph& graph) {
    const VirtualRun run(graph, {}, random_());
    ASSERT_LT(run.makespan(), kNever);
    WaitChains chains(graph, run.owners(), limits());
    WaitReport report;
    EXPECT_EQ(watch(run, chains, run.makespan() + 3 * kFloor, report), kNever) << report.text();
  });
  EXPECT_GT(schedules, 100);
}

TEST_F(WaitChainRuns, HangingOpIsFoundAtItsDeadline) {
  int tried = 0;
  for_each_graph([&](const OpGraph& graph) {
    const auto v = static_cast<VertexId>(random_() % graph.size());
    const VertexKind kind = graph[v].kind;
    if (kind == VertexKind::transfer || kind == VertexKind::collective) return;
    ++tried;
    const Trouble trouble{v, static_cast<int>(random_() % kReplicas)};
    const VirtualRun run(graph, trouble, random_());
    SCOPED_TRACE(graph.name(v));
    WaitChains chains(graph, run.owners(), limits());
    WaitReport report;
    const std::int64_t alarm = watch(run, chains, run.last_event() + 5 * kFloor, report);
    EXPECT_GT(alarm, run.begins() + kFloor);
    EXPECT_LE(alarm, run.begins() + kFloor + kFloor / 8);
    EXPECT_EQ(report.cause, RootCause::slow);
    EXPECT_EQ(report.vertex, v);
    const int rank = kReplicas * graph.rank_of(v) + trouble.replica;
    EXPECT_EQ(report.world_rank, rank);
    // When everything that can run has ended, all unfinished workers wait for it.
    const std::int64_t end = run.last_event() + 2 * kFloor;
    report = chains.examine(run.views(end), end);
    std::vector<int> left = run.unfinished();
    std::erase(left, rank);
    EXPECT_THAT(report.waiting, ElementsAreArray(left)) << report.text();
  });
  EXPECT_GT(tried, 50);
}

TEST_F(WaitChainRuns, LostMessageIsFound) {
  int tried = 0;
  for_each_graph([&](const OpGraph& graph) {
    std::vector<VertexId> transfers;
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (graph[v].kind == VertexKind::transfer) transfers.push_back(v);
    }
    if (transfers.empty()) return;
    ++tried;
    const Trouble trouble{transfers[random_() % transfers.size()], static_cast<int>(random_() % kReplicas)};
    const VirtualRun run(graph, trouble, random_());
    SCOPED_TRACE(graph.name(trouble.vertex));
    WaitChains chains(graph, run.owners(), limits());
    WaitReport report;
    const std::int64_t alarm = watch(run, chains, run.last_event() + 5 * kFloor, report);
    EXPECT_GT(alarm, run.begins() + kFloor - kFloor / 8);
    // The send is visible when its sender begins its next op, at the latest a floor later, or at the end.
    EXPECT_LE(alarm, std::max(run.begins() + 2 * kFloor, run.last_event() + kFloor) + kFloor / 8);
    EXPECT_EQ(report.cause, RootCause::lost);
    EXPECT_EQ(report.vertex, trouble.vertex);
    const int sender = kReplicas * graph.rank_of(trouble.vertex) + trouble.replica;
    EXPECT_EQ(report.world_rank, sender);
    const std::int64_t end = run.last_event() + 2 * kFloor;
    report = chains.examine(run.views(end), end);
    std::vector<int> left = run.unfinished();
    std::erase(left, sender);
    EXPECT_THAT(report.waiting, ElementsAreArray(left)) << report.text();
  });
  EXPECT_GT(tried, 50);
}

}  // namespace
}  // namespace sluice::test

// Compares contention with SimGrid, whose fluid network model (CM02 without its TCP corrections) is also max-min fair.
// SimGrid actors run the same computations and transfers, and the end of every transfer is compared.

#include <gtest/gtest.h>

#ifndef SLUICE_SIMGRID

TEST(SimGrid, AgreesOnEveryTransfersEnd) {
  GTEST_SKIP() << "SKIPPED: SimGrid was not found (Debian: libsimgrid-dev); contention is not checked against it";
}

#else

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <simgrid/s4u.hpp>

#include "model/graph/lowering.h"
#include "model/scenario/setup.h"
#include "model/schedule/family.h"
#include "sim/engine/contention.h"
#include "sim/engine/engine.h"
#include "sim/engine/shared_links.h"

namespace sluice::test {
namespace {

namespace s4u = simgrid::s4u;

constexpr double kCapacity = 1e9;  // bytes/s of every resource
// Tolerance of the relative difference of ends: the models are the same, and differ in rounding to nanoseconds and
// bytes.
constexpr double kAgreement = 1e-5;

// One flow of a transfer: its resources, and its maximal rate as a fraction of kCapacity.
struct Flow {
  std::vector<std::string> resources;
  double speed = 1;
};

// Runs in a child process, as SimGrid has one engine per process. Returns `count` times in seconds.
template <typename Run>
std::vector<double> in_child(std::size_t count, const Run& run) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    try {
      const std::vector<double> times = run();
      std::size_t written = 0;
      while (written < count * sizeof(double)) {
        const ssize_t n =
            write(ends[1], reinterpret_cast<const char*>(times.data()) + written, count * sizeof(double) - written);
        if (n <= 0) _exit(1);
        written += static_cast<std::size_t>(n);
      }
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  close(ends[1]);
  std::vector<double> times(count, NAN);
  std::size_t got = 0;
  while (got < count * sizeof(double)) {
    const ssize_t n = read(ends[0], reinterpret_cast<char*>(times.data()) + got, count * sizeof(double) - got);
    if (n <= 0) break;
    got += static_cast<std::size_t>(n);
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw std::runtime_error("SimGrid's process failed");
  return times;
}

// A platform with a pair of hosts for every flow and a route without latency through its resources and through a link
// of its own, which limits it to its full speed.
class Platform {
 public:
  Platform() : engine_(make_engine()), zone_(s4u::create_full_zone("zone")) {}

  s4u::Host* host(const std::string& name) { return zone_->create_host(name, 1e9)->set_core_count(1)->seal(); }

  struct Pair {
    s4u::Host* from;
    s4u::Host* to;
    double bytes_per_s;
  };
  Pair pair(const Flow& flow) {
    const std::string name = "flow" + std::to_string(pairs_++);
    const Pair hosts{host(name + " from"), host(name + " to"), flow.speed * kCapacity};
    std::vector<s4u::LinkInRoute> route;
    for (const std::string& resource : flow.resources) route.emplace_back(link(resource, kCapacity));
    route.emplace_back(link(name, flow.speed * kCapacity));
    zone_->add_route(hosts.from->get_netpoint(), hosts.to->get_netpoint(), nullptr, nullptr, route, false);
    return hosts;
  }

  void run() {
    zone_->seal();
    engine_.run();
  }

 private:
  static s4u::Engine make_engine() {
    for (const char* option :
         {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "network/latency-factor:1",
          "network/bandwidth-factor:1", "network/weight-S:0", "contexts/factory:thread"}) {
      options_.push_back(std::string("--cfg=") + option);
    }
    options_.emplace_back("--log=root.thresh:error");
    static std::vector<char*> arguments = {options_.front().data()};
    for (std::string& option : options_) arguments.push_back(option.data());
    static int count = static_cast<int>(arguments.size());
    return s4u::Engine(&count, arguments.data());
  }

  s4u::Link* link(const std::string& name, double bytes_per_s) {
    s4u::Link*& found = links_[name];
    if (found == nullptr) {
      found =
          zone_->create_link(name, bytes_per_s)->set_latency(0)->set_sharing_policy(s4u::Link::SharingPolicy::SHARED);
      found->seal();
    }
    return found;
  }

  static inline std::vector<std::string> options_;
  s4u::Engine engine_;
  s4u::NetZone* zone_;
  std::map<std::string, s4u::Link*> links_;
  int pairs_ = 0;
};

// Moves the bytes of `seconds` at full speed over all flows of a transfer concurrently.
void transfer(const std::vector<Platform::Pair>& flows, double seconds) {
  std::vector<s4u::CommPtr> comms;
  for (const Platform::Pair& flow : flows) {
    s4u::CommPtr comm = s4u::Comm::sendto_init(flow.from, flow.to);
    comm->set_payload_size(static_cast<std::uint64_t>(std::llround(seconds * flow.bytes_per_s)));
    comm->start();
    comms.push_back(comm);
  }
  for (const s4u::CommPtr& comm : comms) comm->wait();
}

// Runs the graph with one actor per lane, which runs its vertices in order and waits for their dependencies. `flows`
// are by link lane. Returns the end of every vertex.
std::vector<double> simgrid_ends(const OpGraph& graph, const Prices& prices,
                                 const std::vector<std::vector<Flow> >& flows) {
  Platform platform;
  std::vector<double> ends(graph.size(), NAN);
  std::vector<std::vector<VertexId> > lists(graph.lanes().size());
  std::vector<int> consumers(graph.size(), 0);
  std::vector<s4u::SemaphorePtr> done;
  const auto lane_of = [&](VertexId v) { return static_cast<std::size_t>(graph[v].lane); };
  // Dependencies of `v` on other lanes; its own actor keeps the order.
  const auto awaited = [&](VertexId v) {
    std::vector<VertexId> out;
    for (const VertexId need : graph.needs(v)) {
      if (lane_of(need) != lane_of(v)) out.push_back(need);
    }
    return out;
  };
  for (VertexId v = 0; v < graph.size(); ++v) {
    lists[lane_of(v)].push_back(v);
    for (const VertexId need : awaited(v)) ++consumers[need];
    done.push_back(s4u::Semaphore::create(0));
  }
  for (std::size_t lane = 0; lane < lists.size(); ++lane) {
    const bool is_link = graph.lanes()[lane].kind == LaneKind::link;
    const std::size_t link = is_link ? lane - 2 * static_cast<std::size_t>(graph.schedule().num_ranks()) : 0;
    std::vector<Platform::Pair> pairs;
    if (is_link) {
      for (const Flow& flow : flows[link]) pairs.push_back(platform.pair(flow));
    }
    s4u::Host* host = platform.host("lane" + std::to_string(lane));
    const double wire = is_link ? prices.sharing.links[link].wire_fraction : 0;
    s4u::Actor::create("lane" + std::to_string(lane), host, [&, lane, pairs, host, wire] {
      for (const VertexId v : lists[lane]) {
        for (const VertexId need : awaited(v)) done[need]->acquire();
        const double seconds = to_seconds(prices.duration[v]);
        if (pairs.empty()) {
          s4u::this_actor::execute(seconds * 1e9);
        } else {
          transfer(pairs, wire * seconds);
          if (wire < 1) s4u::this_actor::sleep_for((1 - wire) * seconds);
        }
        ends[v] = s4u::Engine::get_clock();
        const auto hand_over = [&, v] {
          for (int i = 0; i < consumers[v]; ++i) done[v]->release();
        };
        if (prices.lane_latency[lane] == Duration{0}) {
          hand_over();
        } else {
          s4u::Actor::create("arrival", host, [&, lane, hand_over] {
            s4u::this_actor::sleep_for(to_seconds(prices.lane_latency[lane]));
            hand_over();
          });
        }
      }
    });
  }
  platform.run();
  return ends;
}

// Compares the end of every transfer. Returns the number of transfers that contention slows down.
int compare(const OpGraph& graph, const Prices& prices, const std::vector<std::vector<Flow> >& flows) {
  EXPECT_FALSE(prices.sharing.empty());
  const Timeline timeline = simulate(graph, prices);
  const std::vector<double> ends = in_child(graph.size(), [&] { return simgrid_ends(graph, prices, flows); });
  double worst = 0;
  int slowed = 0;
  int transfers = 0;
  for (VertexId v = 0; v < graph.size(); ++v) {
    const double ours = to_seconds(timeline.end[v]);
    EXPECT_NEAR(ours, ends[v], kAgreement * ends[v]) << graph.name(v);
    if (graph[v].kind != VertexKind::transfer) continue;
    ++transfers;
    worst = std::max(worst, std::abs(ours - ends[v]) / ends[v]);
    slowed += timeline.end[v] - timeline.start[v] > prices.duration[v] + Duration{1} ? 1 : 0;
  }
  testing::Test::RecordProperty("worst_relative_difference", fmt::format("{:.1e}", worst));
  fmt::print("  {} transfers, {} slowed down, worst relative difference of an end {:.1e}\n", transfers, slowed, worst);
  return slowed;
}

// Milliseconds for every op and link.
class LinkedStages : public CostModel {
 public:
  explicit LinkedStages(double transfer_ms, double latency_ms = 0)
      : transfer_ms_(transfer_ms), latency_ms_(latency_ms) {}
  double compute_s(OpKind kind, int stage, const MicrobatchShape&, int) const override {
    return (kind == OpKind::B ? 20e-3 : 10e-3) * (1 + 0.1 * stage);
  }
  TransferTime transfer(int from, int to, std::int64_t) const override {
    return {.occupied_s = transfer_ms_ * 1e-3 * (1 + 0.07 * from + 0.03 * to), .latency_s = latency_ms_ * 1e-3};
  }

 private:
  double transfer_ms_;
  double latency_ms_;
};

// Rank r sends and receives through card r modulo `cards`.
int compare_with_cards(int cards, const char* family, const FamilyParams& params, const CostModel& cost,
                       double wire_fraction) {
  const Schedule schedule = make_schedule(find_family(family), params);
  const OpGraph graph = lower(schedule, {.data_parallel = 2});
  Prices prices = price(graph, cost);
  prices.sharing.num_resources = 2 * cards;
  std::vector<std::vector<Flow> > flows;
  for (const Lane& lane : graph.lanes()) {
    if (lane.kind != LaneKind::link) continue;
    prices.sharing.links.push_back({.policy = Sharing::fair,
                                    .wire_fraction = wire_fraction,
                                    .uses = {{lane.rank % cards, 1}, {cards + lane.peer % cards, 1}}});
    flows.push_back(
        {{.resources = {fmt::format("out {}", lane.rank % cards), fmt::format("in {}", lane.peer % cards)}}});
  }
  return compare(graph, prices, flows);
}

TEST(SimGrid, OneForwardOneBackwardWithOneCardForBothDirections) {
  EXPECT_GT(compare_with_cards(4, "1f1b", {.ranks = 4, .microbatches = 8}, LinkedStages(14), 1), 10);
  EXPECT_GT(compare_with_cards(4, "1f1b", {.ranks = 4, .microbatches = 8}, LinkedStages(16, 2), 0.8), 5);
}

TEST(SimGrid, OtherSchedules) {
  EXPECT_GT(compare_with_cards(2, "gpipe", {.ranks = 4, .microbatches = 6}, LinkedStages(25), 1), 5);
  EXPECT_GT(
      compare_with_cards(4, "interleaved-1f1b", {.ranks = 4, .chunks = 2, .microbatches = 8}, LinkedStages(8, 1), 1),
      10);
  EXPECT_GT(compare_with_cards(4, "zb-h1", {.ranks = 4, .microbatches = 8}, LinkedStages(12), 1), 10);
  EXPECT_GT(compare_with_cards(4, "chimera", {.ranks = 4, .microbatches = 8}, LinkedStages(12), 1), 10);
}

// The graph of `sluice simulate`, with the cards of the nodes built from the layout instead of `prices.sharing`.
int compare_cluster(const std::string& scenario_text, int gpus_per_node) {
  const Scenario scenario =
      scenario_from_json(nlohmann::json::parse(scenario_text), "test", std::string(SLUICE_SOURCE_DIR) + "/examples");
  const model::Setup setup(scenario);
  const OpGraph& graph = setup.graph();
  Prices prices = price(graph, setup.cost());
  const int replicas = scenario.training.dp * scenario.training.tp;
  std::vector<std::vector<Flow> > flows;
  for (const Lane& lane : graph.lanes()) {
    if (lane.kind != LaneKind::link) continue;
    std::vector<Flow> parts;
    for (int replica = 0; replica < replicas; ++replica) {
      const int from = (lane.rank * replicas + replica) / gpus_per_node;
      const int to = (lane.peer * replicas + replica) / gpus_per_node;
      if (from != to) parts.push_back({.resources = {fmt::format("out {}", from), fmt::format("in {}", to)}});
    }
    for (Flow& flow : parts) flow.speed = 1.0 / static_cast<double>(parts.size());
    if (parts.empty()) parts.emplace_back();
    flows.push_back(parts);
  }
  return compare(graph, prices, flows);
}

TEST(SimGrid, TwoPipelineRanksOfANodeShareItsCard) {
  // p3.16xlarge, three nodes of eight GPUs: with four replicas, pipeline ranks 2 and 3 are on the middle node and send
  // to ranks 1 and 4 through one card.
  EXPECT_GT(compare_cluster(R"({"model": "models/gpt3-1b.json", "cluster": {"name": "p3.16xlarge", "nodes": 3},
        "parallelism": {"pp": 6, "dp": 4}, "batch": {"micro_batch": 1, "microbatches": 12, "sequence_length": 2048},
        "schedule": {"name": "1f1b"}})",
                            8),
            5);
  // Two nodes, two chunks per rank: each node's card carries 1->2 and 0->3, or 2->1 and 3->0.
  EXPECT_GT(compare_cluster(R"({"model": "models/gpt3-1b.json", "cluster": {"name": "p3.16xlarge", "nodes": 2},
        "parallelism": {"pp": 4, "dp": 4, "vpp": 2},
        "batch": {"micro_batch": 1, "microbatches": 8, "sequence_length": 2048},
        "schedule": {"name": "interleaved-1f1b"}})",
                            8),
            5);
}

TEST(SimGrid, RandomFlows) {
  int slowed = 0;
  double worst = 0;
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
    };
    struct Task {
      Duration came{};
      Duration work{};
    };
    LinkSharing sharing{.num_resources = pick(1, 6)};
    std::vector<std::vector<Flow> > flows;
    std::vector<std::vector<Task> > tasks(static_cast<std::size_t>(pick(3, 12)));
    for (auto& list : tasks) {
      std::set<int> through;
      for (int k = pick(1, 3); k > 0; --k) through.insert(pick(0, sharing.num_resources - 1));
      const int parts = pick(1, 2);
      SharedLink link{.policy = Sharing::fair, .speed = pick(1, 4) / 4.0 / parts};
      Flow flow{.speed = link.speed};
      for (const int resource : through) {
        link.uses.push_back({resource, parts * link.speed});
        flow.resources.push_back(fmt::format("r{}", resource));
      }
      sharing.links.push_back(link);
      flows.emplace_back(static_cast<std::size_t>(parts), flow);
      Duration at{0};
      for (int i = 0; i < 10; ++i) {
        at += std::chrono::microseconds(pick(0, 40'000));
        list.push_back({at, std::chrono::microseconds(pick(1'000, 30'000))});
      }
    }
    std::vector<std::int64_t> ours(10 * tasks.size());
    SharedLinks links(sharing);
    std::vector<std::size_t> next(tasks.size(), 0);
    const auto add = [&](std::size_t link) {
      const Task& task = tasks[link][next[link]];
      links.add(static_cast<int>(link), std::max(task.came, links.now()), task.work, 0);
    };
    for (std::size_t link = 0; link < tasks.size(); ++link) add(link);
    for (int ended = links.next_end(); ended >= 0; ended = links.next_end()) {
      const auto link = static_cast<std::size_t>(ended);
      slowed += links.now() - links.began(ended) > tasks[link][next[link]].work + Duration{1} ? 1 : 0;
      ours[10 * link + next[link]] = links.now().count();
      if (++next[link] < tasks[link].size()) add(link);
    }
    const std::vector<double> theirs = in_child(ours.size(), [&] {
      Platform platform;
      std::vector<double> ends(ours.size(), NAN);
      for (std::size_t link = 0; link < tasks.size(); ++link) {
        std::vector<Platform::Pair> pairs;
        for (const Flow& flow : flows[link]) pairs.push_back(platform.pair(flow));
        s4u::Actor::create(fmt::format("link {}", link), pairs.front().from, [&, link, pairs] {
          for (std::size_t i = 0; i < tasks[link].size(); ++i) {
            s4u::this_actor::sleep_until(to_seconds(tasks[link][i].came));
            transfer(pairs, to_seconds(tasks[link][i].work));
            ends[10 * link + i] = s4u::Engine::get_clock();
          }
        });
      }
      platform.run();
      return ends;
    });
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const double mine = static_cast<double>(ours[i]) * 1e-9;
      EXPECT_NEAR(mine, theirs[i], kAgreement * theirs[i]) << i;
      worst = std::max(worst, std::abs(mine - theirs[i]) / theirs[i]);
    }
  }
  fmt::print("  {} slowed down, worst relative difference of an end {:.1e}\n", slowed, worst);
  EXPECT_GT(slowed, 300);
}

}  // namespace
}  // namespace sluice::test

#endif

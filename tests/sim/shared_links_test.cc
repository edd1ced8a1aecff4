#include "sim/engine/shared_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace sluice::test {
namespace {

using std::chrono::nanoseconds;

SharedLink shared(Sharing policy, double speed, std::vector<ResourceUse> uses) {
  return {.policy = policy, .speed = speed, .uses = std::move(uses)};
}

struct Flow {
  int link = 0;
  int when = 0;
  int work = 0;
};

// The end of each flow, one per link.
std::vector<std::int64_t> ends_of(const LinkSharing& sharing, const std::vector<Flow>& flows) {
  SharedLinks links(sharing);
  std::uint64_t order = 0;
  for (const Flow& flow : flows) links.add(flow.link, nanoseconds(flow.when), nanoseconds(flow.work), order++);
  std::map<int, std::int64_t> ends;
  for (int link = links.next_end(); link >= 0; link = links.next_end()) ends[link] = links.now().count();
  std::vector<std::int64_t> out;
  for (const Flow& flow : flows) out.push_back(ends.at(flow.link));
  return out;
}

LinkSharing equals(Sharing policy, int links) {
  return {.num_resources = 1,
          .links = std::vector<SharedLink>(static_cast<std::size_t>(links), shared(policy, 1, {{0, 1}}))};
}

TEST(FairLinks, EqualFlowsThatStartTogetherTakeTwiceAsLong) {
  EXPECT_EQ(ends_of(equals(Sharing::fair, 2), {{0, 3, 10}, {1, 3, 10}}), (std::vector<std::int64_t>{23, 23}));
  // Thirds and sevenths are not exact in floating point; the times are.
  EXPECT_EQ(ends_of(equals(Sharing::fair, 3), {{0, 0, 10}, {1, 0, 10}, {2, 0, 10}}),
            (std::vector<std::int64_t>(3, 30)));
  std::vector<Flow> seven;
  for (int i = 0; i < 7; ++i) seven.push_back({i, 5, 1'000'001});
  EXPECT_EQ(ends_of(equals(Sharing::fair, 7), seven), (std::vector<std::int64_t>(7, 5 + 7 * 1'000'001)));
}

TEST(FairLinks, AFlowThatStartsHalfwaySlowsDownBothByHalf) {
  // A has moved 5 of 10 at time 5, then 5 at half speed: 15. B has moved 5 by then, and the rest at full speed: 20.
  EXPECT_EQ(ends_of(equals(Sharing::fair, 2), {{0, 0, 10}, {1, 5, 10}}), (std::vector<std::int64_t>{15, 20}));
}

TEST(FairLinks, AFlowBelowItsFairRateLeavesTheRemainderToTheOthers) {
  const LinkSharing sharing{.num_resources = 1,
                            .links = {shared(Sharing::fair, 0.2, {{0, 0.2}}), shared(Sharing::fair, 0.5, {{0, 0.5}}),
                                      shared(Sharing::fair, 1, {{0, 1}})}};
  // Max-min: 0.2, and (1 - 0.2) / 2 = 0.4 for each of the others: 1, 0.8 and 0.4 of full speed. The first ends at 100,
  // with 20 and 60 remaining for the others, which then get 0.5 each: full and half speed. The second ends at 120; the
  // third has 50 remaining, at full speed: 170.
  EXPECT_EQ(ends_of(sharing, {{0, 0, 100}, {1, 0, 100}, {2, 0, 100}}), (std::vector<std::int64_t>{100, 120, 170}));
}

TEST(FairLinks, AFlowThroughTwoResourcesHasTheLowerRate) {
  const LinkSharing sharing{.num_resources = 2,
                            .links = {shared(Sharing::fair, 1, {{0, 1}}), shared(Sharing::fair, 1, {{0, 1}, {1, 1}}),
                                      shared(Sharing::fair, 1, {{1, 1}}), shared(Sharing::fair, 1, {{1, 1}})}};
  // The three flows through resource 1 get a third each. The one that also uses resource 0 leaves two thirds of that to
  // the first flow: 60 / (2/3) = 90, and 3 x 60 = 180.
  EXPECT_EQ(ends_of(sharing, {{0, 0, 60}, {1, 0, 60}, {2, 0, 60}, {3, 0, 60}}),
            (std::vector<std::int64_t>{90, 180, 180, 180}));
  // When the flow through both ends first, the others speed up on both sides. It moves 10 in 30; until then the first
  // moves 20 of 60, the two others 10: 30 + 40 = 70, and 30 + 2 x 50 = 130.
  EXPECT_EQ(ends_of(sharing, {{0, 0, 60}, {1, 0, 10}, {2, 0, 60}, {3, 0, 60}}),
            (std::vector<std::int64_t>{70, 30, 130, 130}));
}

TEST(FairLinks, EachFlowOfATransferHasItsOwnFairRate) {
  // The transfer of the first link has two flows of half the card each, that of the second one flow of all of it. Three
  // flows get a third each: 2/3 and 1/3 of full speed. 60 / (2/3) = 90; the other has moved 30 by then: 120.
  const LinkSharing sharing{.num_resources = 1,
                            .links = {shared(Sharing::fair, 0.5, {{0, 1}}), shared(Sharing::fair, 1, {{0, 1}})}};
  EXPECT_EQ(ends_of(sharing, {{0, 0, 60}, {1, 0, 60}}), (std::vector<std::int64_t>{90, 120}));
  // Ends are rounded up: 5 / (2/3) = 7.5 is 8, when the other has moved 8/3 of 5 and ends 7/3 later, at 10 1/3: 11.
  EXPECT_EQ(ends_of(sharing, {{0, 0, 5}, {1, 0, 5}}), (std::vector<std::int64_t>{8, 11}));
}

TEST(FairLinks, ATransferThatEndsAndOneThatStartsTogetherDoNotOverlap) {
  EXPECT_EQ(ends_of(equals(Sharing::fair, 3), {{0, 0, 10}, {1, 10, 10}, {2, 20, 10}}),
            (std::vector<std::int64_t>{10, 20, 30}));
}

TEST(QueuedLinks, ServeInOrderOfArrival) {
  EXPECT_EQ(ends_of(equals(Sharing::queue, 3), {{2, 5, 10}, {0, 0, 10}, {1, 6, 1}}),
            (std::vector<std::int64_t>{20, 10, 21}));
  // Simultaneous arrivals are ordered by the given order, 2 before 1 before 0.
  EXPECT_EQ(ends_of(equals(Sharing::queue, 3), {{2, 5, 1}, {1, 5, 2}, {0, 5, 3}}),
            (std::vector<std::int64_t>{6, 8, 11}));
}

TEST(QueuedLinks, NoTransferOvertakesOneThatWaitsForTheSameResource) {
  const LinkSharing sharing{.num_resources = 3,
                            .links = {shared(Sharing::queue, 1, {{0, 1}}), shared(Sharing::queue, 1, {{0, 1}, {1, 1}}),
                                      shared(Sharing::queue, 1, {{1, 1}}), shared(Sharing::queue, 1, {{2, 1}})}};
  // The second waits for resource 0 until 10, and the third waits after it for the idle resource 1; the fourth does not
  // wait.
  EXPECT_EQ(ends_of(sharing, {{0, 0, 10}, {1, 2, 10}, {2, 3, 10}, {3, 4, 10}}),
            (std::vector<std::int64_t>{10, 20, 30, 14}));
}

// Random links through random resources, with the given number of successive flows.
struct RandomLinks {
  LinkSharing sharing;
  std::mt19937 random;

  explicit RandomLinks(std::uint32_t seed, bool queues) : random(seed) {
    const int links = pick(2, 12);
    sharing.num_resources = pick(1, 6);
    for (int i = 0; i < links; ++i) {
      const Sharing policy = queues ? Sharing::queue : Sharing::fair;
      SharedLink link = shared(policy, pick(1, 4) / 4.0, {});
      std::set<int> through;
      for (int k = pick(1, 3); k > 0; --k) through.insert(pick(0, sharing.num_resources - 1));
      for (const int resource : through) link.uses.push_back({resource, std::min(1.0, pick(1, 3) * link.speed)});
      sharing.links.push_back(link);
    }
  }
  int pick(int low, int high) { return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)); }
};

TEST(SharedLinks, RatesAreMaxMinAndWithinCapacity) {
  int checked = 0;
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomLinks world(seed, false);
    const auto num_links = world.sharing.links.size();
    SharedLinks links(world.sharing);
    struct Work {
      std::int64_t came = -1;  // -1: idle
      std::int64_t work = 0;
      double done = 0;
    };
    std::vector<Work> under_way(num_links);
    std::vector<int> left(num_links, 8);
    const auto add = [&](std::size_t link) {
      under_way[link] = {.came = links.now().count() + world.pick(0, 30), .work = world.pick(1, 60)};
      links.add(static_cast<int>(link), nanoseconds(under_way[link].came), nanoseconds(under_way[link].work), 0);
    };
    for (std::size_t link = 0; link < num_links; ++link) add(link);
    std::int64_t last = 0;
    for (int ended = links.next_end(); ended >= 0; ended = links.next_end()) {
      const std::int64_t now = links.now().count();
      if (now > last) {
        // The rates immediately before now, of the transfers that began earlier.
        std::vector<double> used(static_cast<std::size_t>(world.sharing.num_resources), 0);
        std::vector<double> fastest(used.size(), 0);
        const auto moving = [&](std::size_t i) { return under_way[i].came >= 0 && under_way[i].came < now; };
        for (std::size_t i = 0; i < num_links; ++i) {
          if (!moving(i)) continue;
          const SharedLink& link = world.sharing.links[i];
          const double rate = links.rate(static_cast<int>(i));
          ASSERT_GT(rate, 0);
          ASSERT_LE(rate, 1);
          for (const ResourceUse& use : link.uses) {
            const auto r = static_cast<std::size_t>(use.resource);
            used[r] += use.share * rate;
            fastest[r] = std::max(fastest[r], link.speed * rate);
          }
        }
        for (const double part : used) ASSERT_LE(part, 1 + 1e-9);
        for (std::size_t i = 0; i < num_links; ++i) {
          if (!moving(i) || links.rate(static_cast<int>(i)) == 1) continue;
          // A flow below full speed uses a full resource of which no flow has more.
          const SharedLink& link = world.sharing.links[i];
          const double mine = link.speed * links.rate(static_cast<int>(i));
          EXPECT_TRUE(std::any_of(link.uses.begin(), link.uses.end(), [&](const ResourceUse& use) {
            const auto r = static_cast<std::size_t>(use.resource);
            return used[r] > 1 - 1e-9 && mine > fastest[r] * (1 - 1e-9);
          }));
          ++checked;
        }
      }
      last = now;
      const auto link = static_cast<std::size_t>(ended);
      EXPECT_GE(now - links.began(ended).count(), under_way[link].work);
      EXPECT_EQ(links.began(ended).count(), under_way[link].came);
      under_way[link].came = -1;
      if (--left[link] > 0) add(link);
    }
    for (const int n : left) EXPECT_EQ(n, 0);
  }
  EXPECT_GT(checked, 10'000);
}

TEST(SharedLinks, QueuesRunOneTransferAtATimeAndAreNeverIdle) {
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomLinks world(seed, true);
    SharedLinks links(world.sharing);
    struct Served {
      int link;
      std::int64_t came, began, ended;
    };
    std::vector<Served> served;
    std::vector<std::int64_t> came(world.sharing.links.size());
    std::vector<int> left(world.sharing.links.size(), 6);
    const auto add = [&](std::size_t link) {
      came[link] = links.now().count() + world.pick(0, 30);
      links.add(static_cast<int>(link), nanoseconds(came[link]), nanoseconds(world.pick(1, 60)), link);
    };
    for (std::size_t link = 0; link < left.size(); ++link) add(link);
    for (int link = links.next_end(); link >= 0; link = links.next_end()) {
      const auto i = static_cast<std::size_t>(link);
      served.push_back({link, came[i], links.began(link).count(), links.now().count()});
      if (--left[i] > 0) add(i);
    }
    ASSERT_EQ(served.size(), 6 * left.size());
    const auto meet = [&](int a, int b) {
      for (const ResourceUse& x : world.sharing.links[a].uses) {
        for (const ResourceUse& y : world.sharing.links[b].uses) {
          if (x.resource == y.resource) return true;
        }
      }
      return false;
    };
    for (const Served& a : served) {
      std::int64_t earliest = a.came;  // end of the last earlier transfer that shares a resource
      for (const Served& b : served) {
        if (&a == &b || !meet(a.link, b.link)) continue;
        EXPECT_TRUE(a.ended <= b.began || b.ended <= a.began);
        if (std::pair(b.came, b.link) < std::pair(a.came, a.link)) earliest = std::max(earliest, b.ended);
      }
      EXPECT_EQ(a.began, earliest);
    }
  }
}

}  // namespace
}  // namespace sluice::test

#include "model/cost/sharing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "model/cost/analytic.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

Training sharing_sizes(int tp, int dp, int pp) {
  Training training;
  training.tp = tp;
  training.dp = dp;
  training.pp = pp;
  return training;
}

// The links between neighbors in a pipeline of `ranks`, in both directions: 0->1, 1->0, 1->2, 2->1, ...
std::vector<LinkEnds> chain(int ranks) {
  std::vector<LinkEnds> links;
  for (int r = 0; r + 1 < ranks; ++r) {
    links.push_back({r, r + 1});
    links.push_back({r + 1, r});
  }
  return links;
}

LinkSharing sharing_of(const Training& training, const Cluster& cluster) {
  return link_sharing(chain(training.pp), cluster, Placement(training, cluster));
}

// "link: resource fraction, ..." of shared resources.
std::vector<std::array<double, 3>> uses_of(const LinkSharing& sharing) {
  std::vector<std::array<double, 3>> out;
  for (std::size_t i = 0; i < sharing.links.size(); ++i) {
    for (const ResourceUse& use : sharing.links[i].uses) {
      out.push_back({static_cast<double>(i), static_cast<double>(use.resource), use.share});
    }
  }
  return out;
}

TEST(LinkSharingTest, OfANodesCardIsAmongItsPipelineRanks) {
  // p3.16xlarge: two ranks of four GPUs a node. Over node borders go 1->2, 2->1 (links 2, 3) and 3->4, 4->3 (6, 7).
  // The middle node's card sends 2->1 and 3->4 and receives 1->2 and 4->3; the outer cards serve one link each way.
  const LinkSharing sharing = sharing_of(sharing_sizes(1, 4, 6), load_cluster("p3.16xlarge", 3));
  EXPECT_EQ(sharing.num_resources, 2);
  EXPECT_EQ(uses_of(sharing), (std::vector<std::array<double, 3>>{{2, 0, 1}, {3, 1, 1}, {6, 1, 1}, {7, 0, 1}}));
  for (const std::size_t link : {2u, 3u, 6u, 7u}) {
    EXPECT_EQ(sharing.links[link].policy, Sharing::fair);
    EXPECT_EQ(sharing.links[link].speed, 0.25);  // four replicas send concurrently
  }
}

TEST(LinkSharingTest, OfCardsPerGpuIsAmongItsNeighbors) {
  // One rank per node. Its eight cards are equivalent, so they are one resource per direction; the outer ranks have one
  // neighbor and share nothing. Links: 0->1, 1->0, 1->2, 2->1, 2->3, 3->2.
  const LinkSharing sharing = sharing_of(sharing_sizes(8, 1, 4), load_cluster("dgx-a100-80gb", 4));
  EXPECT_EQ(sharing.num_resources, 4);
  // Into rank 1: links 0 and 3. Out of rank 1: 1 and 2. Into rank 2: 2 and 5. Out of rank 2: 3 and 4.
  EXPECT_EQ(uses_of(sharing),
            (std::vector<std::array<double, 3>>{
                {0, 0, 1}, {1, 1, 1}, {2, 1, 1}, {2, 2, 1}, {3, 0, 1}, {3, 3, 1}, {4, 3, 1}, {5, 2, 1}}));
  for (const SharedLink& link : sharing.links) EXPECT_EQ(link.speed, 1);
}

TEST(LinkSharingTest, IsThatOfTheLinkOfTheSlowestReplica) {
  // Four ranks of four GPUs over two nodes of eight: 0<->1 and 2<->3 through NVSwitch, 1<->2 through InfiniBand. No two
  // share a card, and no port of an NVSwitch has two neighbors in its node.
  EXPECT_TRUE(sharing_of(sharing_sizes(4, 1, 4), load_cluster("dgx-a100-80gb", 2)).empty());
  // Ranks of two GPUs: 1 and 2 have both neighbors in the node, and so have 5 and 6.
  EXPECT_EQ(sharing_of(sharing_sizes(2, 1, 8), load_cluster("dgx-a100-80gb", 2)).num_resources, 8);
  // The mesh of the V100 nodes has no shared links.
  EXPECT_TRUE(sharing_of(sharing_sizes(1, 1, 8), load_cluster("p3.16xlarge", 1)).empty());
}

TEST(LinkSharingTest, CountsTheFlowsOnEveryNode) {
  // Two ranks of eleven GPUs on nodes of eight, GPUs 0-10 and 11-21. 0->1: eight leave node 0 and set the price, three
  // node 1 (8-10); five arrive at node 1 (11-15), six at node 2. 1->0: five leave node 1, six node 2 and set the price;
  // eight arrive at node 0, three at node 1. Both links use node 1 in both directions:
  // out 3/8 + 5/6 > 1, in 5/8 + 3/6 > 1.
  const LinkSharing sharing = sharing_of(sharing_sizes(1, 11, 2), load_cluster("p3.16xlarge", 3));
  EXPECT_EQ(sharing.num_resources, 2);
  ASSERT_EQ(sharing.links.size(), 2u);
  EXPECT_EQ(sharing.links[0].speed, 1.0 / 8);
  EXPECT_EQ(sharing.links[1].speed, 1.0 / 6);
  ASSERT_EQ(sharing.links[0].uses.size(), 2u);
  EXPECT_DOUBLE_EQ(sharing.links[0].uses[0].share, 3.0 / 8);
  EXPECT_DOUBLE_EQ(sharing.links[0].uses[1].share, 5.0 / 8);
  EXPECT_DOUBLE_EQ(sharing.links[1].uses[0].share, 5.0 / 6);
  EXPECT_DOUBLE_EQ(sharing.links[1].uses[1].share, 3.0 / 6);
}

TEST(LinkSharingTest, FollowsTheClusterFile) {
  Cluster cluster = load_cluster("dgx-a100-80gb", 4);
  cluster.inter_node.sharing = Sharing::none;
  EXPECT_TRUE(sharing_of(sharing_sizes(8, 1, 4), cluster).empty());
  cluster.inter_node.sharing = Sharing::queue;
  const LinkSharing sharing = sharing_of(sharing_sizes(8, 1, 4), cluster);
  EXPECT_EQ(sharing.num_resources, 4);
  EXPECT_EQ(sharing.links[0].policy, Sharing::queue);
}

TEST(LinkSharingTest, ExcludesTheAllGatherAfterATransfer) {
  // Scatter/gather over eight tensor ranks: each sends x bytes at 25e9 x 0.9, then 7 x bytes come in over NVLink.
  const Transformer model = example("gpt3-1b.json");
  Training training = sharing_sizes(8, 1, 4);
  training.sequence_length = 2048;
  const auto fraction = [&] {
    const AnalyticCost cost(model, training, split_layers(model, 4, {}, 0, 0), load_cluster("dgx-a100-80gb", 4),
                            load_software("megatron-lm"));
    const std::vector<LinkEnds> links = chain(4);
    const LinkSharing sharing = cost.sharing(links);
    EXPECT_EQ(sharing.links.size(), links.size());
    return sharing.links[2].wire_fraction;
  };
  const Cluster cluster = load_cluster("dgx-a100-80gb", 4);
  const double wire = 1 / (25e9 * cluster.inter_node.transfer_efficiency);
  const double gather = 7 / (300e9 * cluster.intra_node.collective_efficiency);
  EXPECT_NEAR(fraction(), wire / (wire + gather), 1e-12);
  training.scatter_gather = false;
  EXPECT_EQ(fraction(), 1);
}

// Two replicas on two nodes for each of two pipeline ranks: transfers and collectives (links 2 and 3) share the cards
// of the rank that sends or receives. A ring of one member per node reaches collective_efficiency of a card.
TEST(LinkSharingTest, OfCollectivesIsWithTheirRanksTransfers) {
  Cluster cluster = load_cluster("dgx-h100", 4);
  const auto with_collectives = [&](const Training& training) {
    const std::vector<LinkEnds> links = {{0, 1}, {1, 0}, {0, 0}, {1, 1}};
    return link_sharing(links, cluster, Placement(training, cluster));
  };
  const LinkSharing sharing = with_collectives(sharing_sizes(8, 2, 2));
  const Link& network = cluster.inter_node;
  const double ring = std::min(1.0, network.collective_efficiency / network.transfer_efficiency);
  EXPECT_EQ(sharing.num_resources, 4);
  ASSERT_EQ(sharing.links.size(), 4u);
  EXPECT_EQ(sharing.links[0].uses.size(), 2u);
  ASSERT_EQ(sharing.links[3].uses.size(), 2u);
  EXPECT_DOUBLE_EQ(sharing.links[3].speed, ring);
  EXPECT_DOUBLE_EQ(sharing.links[3].uses[0].share, ring);
  // Replicas within a node use its ports, transfers the cards; nothing is shared, as without replicas.
  EXPECT_TRUE(with_collectives(sharing_sizes(4, 2, 2)).empty());
  EXPECT_TRUE(with_collectives(sharing_sizes(8, 1, 2)).empty());
  // Collectives do not queue.
  cluster.inter_node.sharing = Sharing::queue;
  EXPECT_TRUE(with_collectives(sharing_sizes(8, 2, 2)).empty());
}

}  // namespace
}  // namespace sluice::test

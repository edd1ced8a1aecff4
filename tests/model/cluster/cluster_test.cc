#include "model/cluster/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/cluster/catalogue.h"
#include "model/cluster/placement.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

Cluster from_text(const std::string& text) {
  const Json json = parse_json(text, "c.json");
  return cluster_from_json(JsonReader(json, "c.json"));
}

TEST(Catalogue, EveryNodeLoadsAndEveryFileIsUsed) {
  std::string used;
  for (const std::string& name : catalogue_nodes()) {
    const Cluster cluster = load_cluster(name, 2);
    EXPECT_EQ(cluster.nodes, 2) << name;
    EXPECT_EQ(cluster.num_gpus(), 2 * cluster.gpus_per_node) << name;
    EXPECT_GT(cluster.intra_node.bandwidth_bytes_per_s, cluster.inter_node.bandwidth_bytes_per_s) << name;
  }
  // GPUs and links load by name within an inline node.
  for (const CatalogueFile& file : catalogue_files()) {
    const std::string name(file.name.substr(file.name.find('/') + 1));
    const bool gpu = file.name.starts_with("gpus/");
    if (file.name.starts_with("nodes/") || file.name.starts_with("errors/")) continue;
    if (file.name.starts_with("failures/")) continue;  // loaded in tests/sim/goodput_test.cc
    if (file.name.starts_with("software/")) {
      EXPECT_FALSE(load_software(name).name.empty()) << name;
      continue;
    }
    const Cluster cluster =
        from_text(R"({"node": {"gpus": 1, "gpu": ")" + (gpu ? name : "a100-80gb") + R"(", "intra_node": ")" +
                  (gpu ? "nvlink3" : name) + R"(", "inter_node": "infiniband-hdr"}})");
    EXPECT_FALSE((gpu ? cluster.gpu.name : cluster.intra_node.name).empty()) << name;
  }
}

TEST(Catalogue, EveryConstantNamesItsSource) {
  for (const CatalogueFile& file : catalogue_files()) {
    const Json json = parse_json(file.text, std::string(file.name));
    if (file.name.starts_with("nodes/") || file.name.starts_with("errors/") || file.name.starts_with("failures/")) {
      EXPECT_TRUE(json.contains("source")) << file.name;
      continue;
    }
    for (const auto& [key, value] : json.items()) {
      EXPECT_TRUE(value.is_string() || (value.is_object() && value.contains("source"))) << file.name << " " << key;
    }
  }
}

// Every number with its key, in every file.
void check_sane(const Json& json, const std::string& place) {
  for (const auto& [key, value] : json.items()) {
    const std::string here = place + "/" + key;
    if (key == "source") {
      EXPECT_TRUE(value.is_string() && !value.get<std::string>().empty()) << here;
      continue;
    }
    if (value.is_object()) check_sane(value, here);
    const Json& number = value.is_object() && value.contains("value") ? value["value"] : value;
    if (!number.is_number()) continue;
    EXPECT_GE(number.get<double>(), 0) << here;
    if (key.ends_with("efficiency") || key.ends_with("fraction")) {
      EXPECT_GT(number.get<double>(), 0) << here;
      EXPECT_LE(number.get<double>(), 1) << here;
    }
    // No kernel, message or step has a latency of a millisecond.
    if (key.ends_with("_s") && !key.ends_with("per_s")) {
      EXPECT_LT(number.get<double>(), 1e-3) << here;
    }
  }
}

TEST(Catalogue, HasPhysicallyPlausibleConstants) {
  int files = 0;
  for (const CatalogueFile& file : catalogue_files()) {
    const std::string name(file.name);
    // The overheads of a framework, errors, and rates of failures are not bound by physics.
    if (name.starts_with("software/") || name.starts_with("errors/") || name.starts_with("failures/")) continue;
    ++files;
    check_sane(parse_json(file.text, name), name);
    if (name.starts_with("links/")) {
      // No ring collective or message exceeds the nominal bandwidth.
      const Link link = catalogue_link(name.substr(6));
      for (int gpus = 2; gpus <= 16; ++gpus) {
        EXPECT_LE(link.ring_bandwidth(gpus), link.bandwidth_bytes_per_s) << name << gpus;
      }
    }
  }
  EXPECT_GE(files, 30);
}

TEST(Catalogue, MatchesTheDataSheets) {
  const Cluster dgx = load_cluster("dgx-a100-80gb", 1);
  EXPECT_EQ(dgx.gpu.peak_flops_per_s, 312e12);
  EXPECT_EQ(dgx.gpu.memory_bytes, std::int64_t{80} << 30);
  EXPECT_EQ(dgx.inter_node.bandwidth_bytes_per_s, 25e9);
  EXPECT_TRUE(dgx.nic_per_gpu);
  EXPECT_FALSE(load_cluster("p3.16xlarge", 1).nic_per_gpu);
}

// An NVLink domain of 72 GPUs is a node, of which a scenario may use fewer.
TEST(Catalogue, DomainsOf72MayBeUsedInPart) {
  EXPECT_EQ(load_cluster("gb200-nvl72", 2).num_gpus(), 144);
  EXPECT_EQ(from_text(R"({"node": "gb300-nvl72", "nodes": 4, "gpus_per_node": 64})").num_gpus(), 256);
  EXPECT_THROW(from_text(R"({"node": "gb300-nvl72", "gpus_per_node": 73})"), InputError);
  // 256 GPUs fill four times 64, 144 two domains, 100 neither.
  const auto used = [&](const std::string& text, std::int64_t gpus) {
    Cluster cluster = from_text(text);
    cluster.use_for(gpus);
    return std::pair(cluster.gpus_per_node, cluster.nodes);
  };
  EXPECT_EQ(used(R"({"node": "gb300-nvl72"})", 256), std::pair(64, 4));
  EXPECT_EQ(used(R"({"node": "gb300-nvl72"})", 64), std::pair(72, 1));
  EXPECT_EQ(used(R"({"node": "gb300-nvl72"})", 144), std::pair(72, 2));
  EXPECT_EQ(used(R"({"node": "gb300-nvl72"})", 100), std::pair(72, 2));
  EXPECT_EQ(used(R"({"node": "gb300-nvl72", "gpus_per_node": 72})", 256), std::pair(72, 4));
  EXPECT_EQ(used(R"({"node": "gb300-nvl72", "nodes": 4})", 256), std::pair(72, 4));
  EXPECT_EQ(used(R"({"node": "dgx-h100"})", 20), std::pair(8, 3));
  EXPECT_THROW(from_text(R"({"node": "gb300-nvl72", "gpus_per_node": 0})"), InputError);
}

TEST(Catalogue, SuggestsTheNearestSoftware) {
  EXPECT_EQ(
      error_of([] { load_software("megatron"); }),
      "software: expected a file or one of megatron-deepspeed, megatron-lm, nanotron, nemo-2023, nemo-2024, nemo, "
      "torchtitan-eager, torchtitan-rowwise, torchtitan, got "
      "\"megatron\"; did you "
      "mean 'megatron-lm'?");
}

TEST(LoadCluster, SuggestsTheNearestName) {
  EXPECT_EQ(
      error_of([] { load_cluster("dgx-a100-80g", 1); }),
      "cluster: expected a file or one of a100-800g, a100-roce, dgx-a100-40gb, dgx-a100-80gb, dgx-b200, "
      "dgx-b300, dgx-h100, dgx-h200, gb200-nvl72, gb300-nvl72, h100-96gb, h800, mi300x, p3.16xlarge, p3dn.24xlarge, "
      "p4d.24xlarge, p4de.24xlarge, p5.48xlarge, got "
      "\"dgx-a100-80g\"; did you mean 'dgx-a100-80gb'?");
  EXPECT_EQ(error_of([] { load_cluster("no/such.json", 1); }), "no/such.json: cannot open: No such file or directory");
  EXPECT_EQ(error_of([] { load_cluster("dgx-h100", -1); }), "nodes: expected a whole number from 1 to 65536, got -1");
  EXPECT_EQ(error_of([] { from_text(R"({"node": "dgx-h100", "node_count": 4})"); }),
            "c.json: /node_count: unknown key");
  EXPECT_EQ(
      error_of([] { from_text(R"({"node": "dgx-h10", "nodes": 4})"); }),
      "c.json: /node: expected a node: a100-800g, a100-roce, dgx-a100-40gb, dgx-a100-80gb, dgx-b200, "
      "dgx-b300, dgx-h100, dgx-h200, gb200-nvl72, gb300-nvl72, h100-96gb, h800, mi300x, p3.16xlarge, p3dn.24xlarge, "
      "p4d.24xlarge, p4de.24xlarge, p5.48xlarge, got "
      "\"dgx-h10\"; did you mean 'dgx-h100'?");
  EXPECT_EQ(error_of([] { from_text(R"({"node": {"gpu": "a100-80gb", "gpus": 0}})"); }),
            "c.json: /node/gpus: expected a number from 1 to 1024, got 0");
}

TEST(LoadCluster, ReadsFilesOfNodesAndClusters) {
  const std::string path = testing::TempDir() + "sluice_cluster.json";
  write_file_whole(path, R"({"schema": "sluice.cluster/1", "node": {"gpu": "h100-80gb", "gpus": 4,
      "intra_node": "nvlink4", "inter_node": {"name": "mine", "latency_s": 1e-5, "bandwidth_bytes_per_s": 1e10}},
      "nodes": 3})");
  EXPECT_EQ(load_cluster(path, 0).num_gpus(), 12);
  EXPECT_EQ(load_cluster(path, 5).num_gpus(), 20);
  EXPECT_EQ(load_cluster(path, 0).inter_node.name, "mine");
  write_file_whole(path, R"({"gpu": "h100-80gb", "gpus": 4, "intra_node": "nvlink4", "inter_node": "ethernet-25"})");
  EXPECT_EQ(load_cluster(path, 0).num_gpus(), 4);
  std::remove(path.c_str());
}

TEST(LoadCluster, ReadsTheSharingOfLinks) {
  EXPECT_EQ(load_cluster("p3.16xlarge", 1).inter_node.sharing, Sharing::fair);
  EXPECT_EQ(load_cluster("p3.16xlarge", 1).intra_node.sharing, Sharing::none);
  EXPECT_EQ(load_cluster("dgx-h100", 1).intra_node.sharing, Sharing::fair);
  const auto shared = [](const std::string& word) {
    return from_text(R"({"node": {"gpu": "h100-80gb", "gpus": 4, "intra_node": "nvlink4",
        "inter_node": {"name": "mine", "latency_s": 1e-5, "bandwidth_bytes_per_s": 1e10)" +
                     word + "}}}")
        .inter_node.sharing;
  };
  EXPECT_EQ(shared(""), Sharing::none);
  EXPECT_EQ(shared(R"(, "sharing": "none")"), Sharing::none);
  EXPECT_EQ(shared(R"(, "sharing": "queue")"), Sharing::queue);
  EXPECT_EQ(shared(R"(, "sharing": {"value": "fair", "source": "one card"})"), Sharing::fair);
  EXPECT_EQ(error_of([&] { shared(R"(, "sharing": "fare")"); }),
            "c.json: /node/inter_node/sharing: expected one of none, fair, queue, got \"fare\"; did you mean 'fair'?");
}

Training cluster_sizes(int tp, int dp, int pp) {
  Training training;
  training.tp = tp;
  training.dp = dp;
  training.pp = pp;
  return training;
}

TEST(PlacementTest, IsMegatronsOrder) {
  // Two nodes of eight: tensor ranks 0-3 together, then two replicas, then two pipeline ranks.
  const Placement placement(cluster_sizes(4, 2, 2), load_cluster("dgx-a100-80gb", 2));
  EXPECT_EQ(placement.world_rank(1, 4 + 2), 14);
  EXPECT_EQ(placement.node_of(7), 0);
  EXPECT_EQ(placement.node_of(8), 1);
  EXPECT_EQ(placement.tensor_group().nodes, 1);
  EXPECT_EQ(placement.data_group().nodes, 1);
  EXPECT_EQ(placement.pair(0, 1).nodes, 2);
  EXPECT_EQ(placement.senders_per_node(0, 1), 8);
  EXPECT_EQ(placement.world_group().nodes, 2);
  EXPECT_EQ(placement.world_group().per_node, 8);
}

TEST(PlacementTest, SupportsThePipelineBeforeTheReplicas) {
  Training training = cluster_sizes(2, 4, 4);
  training.pipeline_before_data = true;
  // Two tensor ranks by four pipeline ranks fill a node of eight: one replica per node.
  const Placement placement(training, load_cluster("dgx-a100-80gb", 4));
  EXPECT_EQ(placement.world_rank(0, 1), 1);
  EXPECT_EQ(placement.world_rank(1, 0), 2);
  EXPECT_EQ(placement.world_rank(3, 3), 15);  // tensor rank 1 of replica 1
  EXPECT_EQ(placement.tensor_group().nodes, 1);
  EXPECT_EQ(placement.pair(0, 3).nodes, 1);
  EXPECT_EQ(placement.senders_per_node(0, 1), 1);
  EXPECT_EQ(placement.data_group().nodes, 4);
  EXPECT_EQ(placement.data_group().per_node, 1);
  // Megatron's order in reverse: replicas within a node, the pipeline across nodes.
  const Placement usual(cluster_sizes(2, 4, 4), load_cluster("dgx-a100-80gb", 4));
  EXPECT_EQ(usual.pair(0, 1).nodes, 2);
  EXPECT_EQ(usual.data_group().nodes, 1);
}

TEST(PlacementTest, IsABijectionInBothOrders) {
  for (const bool pipeline_before_data : {false, true}) {
    Training training = cluster_sizes(2, 3, 5);
    training.cp = 2;
    training.pipeline_before_data = pipeline_before_data;
    const Placement placement(training, load_cluster("dgx-a100-80gb", 8));
    std::set<int> seen;
    for (int pipeline = 0; pipeline < 5; ++pipeline) {
      for (int replica = 0; replica < placement.replicas(); ++replica) {
        const int rank = placement.world_rank(pipeline, replica);
        EXPECT_TRUE(seen.insert(rank).second);
        if (replica == 0) continue;
        EXPECT_GT(rank, placement.world_rank(pipeline, replica - 1));
      }
    }
    EXPECT_EQ(*seen.rbegin(), 59);
  }
}

TEST(PlacementTest, ReturnsTheWorstReplica) {
  const Placement across(cluster_sizes(16, 1, 1), load_cluster("dgx-a100-80gb", 2));
  EXPECT_EQ(across.tensor_group().nodes, 2);
  EXPECT_EQ(across.tensor_group().per_node, 8);
  // Sixteen replicas of two tensor ranks: four members of each data group on each node.
  const Placement wide(cluster_sizes(2, 16, 1), load_cluster("dgx-a100-80gb", 4));
  EXPECT_EQ(wide.data_group().nodes, 4);
  EXPECT_EQ(wide.data_group().per_node, 4);
  // Pipeline ranks inside a node, except where a node ends.
  const Placement deep(cluster_sizes(1, 1, 16), load_cluster("dgx-a100-80gb", 2));
  EXPECT_EQ(deep.pair(6, 7).nodes, 1);
  EXPECT_EQ(deep.pair(7, 8).nodes, 2);
  EXPECT_EQ(deep.senders_per_node(7, 8), 1);
  // Three tensor ranks do not fill nodes of eight: some group is cut.
  EXPECT_EQ(Placement(cluster_sizes(3, 5, 1), load_cluster("dgx-a100-80gb", 2)).tensor_group().nodes, 2);
}

// Nodes and smallest number of members on a node of the worst group of `size` replicas `stride` apart, rank by rank.
std::pair<int, int> worst_group(const Placement& placement, int pp, int size, int stride) {
  std::pair<int, int> worst(0, 0);
  for (int pipeline = 0; pipeline < pp; ++pipeline) {
    for (int replica = 0; replica < placement.replicas(); ++replica) {
      if (replica / stride % size != 0) continue;
      std::map<int, int> members;  // by node
      for (int i = 0; i < size; ++i) ++members[placement.node_of(placement.world_rank(pipeline, replica + i * stride))];
      const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
      const int least = std::min_element(members.begin(), members.end(), fewer)->second;
      const int nodes = static_cast<int>(members.size());
      if (nodes > worst.first || (nodes == worst.first && least < worst.second)) worst = {nodes, least};
    }
  }
  return worst;
}

// Largest number of replicas on one node whose pipeline rank `b` is on another one; at least `least`.
int most_senders(const Placement& placement, int a, int b, int least = 1) {
  std::map<int, int> senders;  // by node
  for (int replica = 0; replica < placement.replicas(); ++replica) {
    const int node = placement.node_of(placement.world_rank(a, replica));
    if (placement.node_of(placement.world_rank(b, replica)) != node) ++senders[node];
  }
  for (const auto& [node, number] : senders) least = std::max(least, number);
  return least;
}

TEST(PlacementTest, FindsTheWorstOfAllGroups) {
  const Cluster cluster = load_cluster("dgx-a100-80gb", 64);
  int checked = 0;
  for (const bool pipeline_before_data : {false, true}) {
    for (const auto& [tp, cp, dp, pp] : std::vector<std::array<int, 4>>{
             {2, 1, 48, 3}, {3, 1, 16, 5}, {1, 2, 24, 7}, {2, 2, 12, 10}, {1, 3, 8, 12}, {5, 1, 12, 4}, {4, 4, 4, 8}}) {
      for (const int ep : {1, 2, 3, 4, 8, 12}) {
        Training training = cluster_sizes(tp, dp, pp);
        training.cp = cp;
        training.ep = ep;
        training.pipeline_before_data = pipeline_before_data;
        if (tp * cp * dp % ep != 0) continue;
        const Placement placement(training, cluster);
        const auto check = [&, tp = tp, cp = cp, dp = dp, pp = pp](const Reach& found, int size, int stride) {
          if (size == 1) return;
          EXPECT_EQ(std::pair(found.nodes, found.per_node), worst_group(placement, pp, size, stride))
              << pipeline_before_data << " tp " << tp << " cp " << cp << " dp " << dp << " pp " << pp << " ep " << ep;
          ++checked;
        };
        for (int a = 0; a < pp; ++a) {
          const int b = (a + 1) % pp;
          EXPECT_EQ(placement.senders_per_node(a, b), most_senders(placement, a, b)) << a << tp << cp << dp << pp;
          EXPECT_EQ(placement.pair(a, b).nodes, most_senders(placement, a, b, 0) > 0 ? 2 : 1);
        }
        check(placement.tensor_group(), tp, 1);
        check(placement.context_group(), cp, tp);
        check(placement.data_group(), cp * dp, tp);
        check(placement.expert_group(), ep, 1);
        check(placement.expert_data_group(), tp * cp * dp / ep, ep);
      }
    }
  }
  EXPECT_GT(checked, 200);
}

TEST(PlacementTest, RefusesMoreRanksThanGpus) {
  EXPECT_EQ(error_of([] { Placement(cluster_sizes(8, 2, 2), load_cluster("dgx-h100", 2)); }),
            "tp 8 x dp 2 x pp 2 needs 32 GPUs, but DGX H100 has 16 (2 nodes of 8)");
  EXPECT_EQ(error_of([] { Placement(cluster_sizes(2, 2, 2), load_cluster("dgx-h100", 2)); }), "no error");
}

}  // namespace
}  // namespace sluice::test

// Execution traces of Chakra are read back: they are the graph.

#include "traces/chakra/chakra_trace.h"

#include <gmock/gmock.h>
#include <google/protobuf/io/coded_stream.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/scenario/scenario.h"
#include "model/scenario/setup.h"
#include "sim/engine/predict.h"
#include "tests/support/command.h"
#include "traces/chakra/execution_trace.pb.h"

namespace sluice::traces {
namespace {

using nlohmann::json;

struct NpuTrace {
  chakra::GlobalMetadata metadata;
  std::vector<chakra::Node> nodes;
};

NpuTrace read_npu(const std::string& path) {
  const std::string bytes = model::read_file(path);
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                                static_cast<int>(bytes.size()));
  NpuTrace out;
  bool first = true;
  std::uint32_t size = 0;
  while (stream.ReadVarint32(&size)) {
    const auto limit = stream.PushLimit(static_cast<int>(size));
    const bool good =
        first ? out.metadata.ParseFromCodedStream(&stream) : out.nodes.emplace_back().ParseFromCodedStream(&stream);
    EXPECT_TRUE(good && stream.BytesUntilLimit() == 0) << path;
    stream.PopLimit(limit);
    first = false;
  }
  EXPECT_EQ(stream.CurrentPosition(), static_cast<int>(bytes.size())) << path;
  return out;
}

const chakra::Attribute* find_attribute(const chakra::Node& node, const std::string& name) {
  for (const chakra::Attribute& each : node.attr()) {
    if (each.name() == name) return &each;
  }
  return nullptr;
}
std::int64_t number(const chakra::Node& node, const std::string& name) {
  const chakra::Attribute* found = find_attribute(node, name);
  if (found == nullptr) return -1;
  return found->value_case() == chakra::Attribute::kInt32Val ? found->int32_val() : found->int64_val();
}

class ChakraTrace : public ::testing::Test {
 protected:
  std::vector<NpuTrace> written(const json& scenario, int replicas = 1) {
    setup_.emplace(model::scenario_from_json(scenario, "test", ""));
    prediction_ = sim::predict(*setup_, {});
    const std::string prefix = folder_.path("trace");
    const int npus = setup_->schedule().num_ranks() * replicas;
    EXPECT_EQ(write_chakra_traces(prefix, setup_->graph(), prediction_.timeline, {.replicas = replicas}), npus + 1);
    std::vector<NpuTrace> out;
    for (int npu = 0; npu < npus; ++npu) out.push_back(read_npu(prefix + "." + std::to_string(npu) + ".et"));
    groups_ = json::parse(model::read_file(prefix + ".comm_groups.json"));
    return out;
  }

  test::TemporaryFolder folder_;
  std::optional<model::Setup> setup_;
  sim::Prediction prediction_;
  json groups_;
};

TEST_F(ChakraTrace, WritesAllFilesOrNone) {
  static_cast<void>(written({{"parallelism", {{"pp", 4}}}, {"batch", {{"microbatches", 4}}}}));
  const test::TemporaryFolder other;
  ASSERT_TRUE(std::filesystem::create_directory(other.path("t.2.et")));
  EXPECT_THROW(write_chakra_traces(other.path("t"), setup_->graph(), prediction_.timeline, {}), model::InputError);
  EXPECT_EQ(other.num_files(), 1);  // the folder
}

// Runs the nodes of all NPUs by their dependencies alone, with the durations in the files; a receive starts when its
// message is sent, a collective when all of its group have issued it. Expects the start of every node to be that in the
// files. Returns the last end in ns, or -1 if some node can never run.
std::int64_t replayed(const std::vector<NpuTrace>& npus, const json& groups) {
  std::map<std::pair<int, std::uint64_t>, std::int64_t> end;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::int64_t> sent;   // by source, destination, tag
  std::map<std::tuple<std::string, std::string>, std::map<int, std::int64_t>> joined;  // by group and name: NPU, ready
  std::int64_t last = 0;
  for (bool progress = true; progress;) {
    progress = false;
    for (int npu = 0; npu < std::ssize(npus); ++npu) {
      for (const chakra::Node& node : npus[npu].nodes) {
        if (end.contains({npu, node.id()})) continue;
        std::int64_t start = 0;
        bool runs = true;
        for (const std::uint64_t need : node.data_deps()) {
          const auto found = end.find({npu, need});
          runs = runs && found != end.end();
          if (runs) start = std::max(start, found->second);
        }
        if (!runs) continue;
        const std::tuple message{number(node, "comm_src"), number(node, "comm_dst"), number(node, "comm_tag")};
        if (node.type() == chakra::COMM_SEND_NODE) {
          EXPECT_TRUE(sent.emplace(message, start).second) << "two messages with the tag of " << node.name();
        } else if (node.type() == chakra::COMM_RECV_NODE) {
          const auto found = sent.find(message);
          if (found == sent.end()) continue;
          start = std::max(start, found->second);
        } else if (node.type() == chakra::COMM_COLL_NODE) {
          const std::string group = find_attribute(node, "pg_name")->string_val();
          auto& members = joined[{group, node.name()}];
          members[npu] = start;
          if (members.size() < (group == "0" ? npus.size() : groups.at(group).size())) continue;
          for (const auto& [member, ready] : members) start = std::max(start, ready);
        }
        EXPECT_EQ(start, number(node, "start_ns")) << "NPU " << npu << ": " << node.name();
        const std::int64_t done = end[{npu, node.id()}] = start + number(node, "duration_ns");
        last = std::max(last, done);
        progress = true;
      }
    }
  }
  for (int npu = 0; npu < std::ssize(npus); ++npu) {
    for (const chakra::Node& node : npus[npu].nodes) {
      if (!end.contains({npu, node.id()})) return -1;
    }
  }
  return last;
}

TEST_F(ChakraTrace, RunsAgainLikeTheSchedule) {
  for (const std::string schedule : {"1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe", "seq1f1b"}) {
    json scenario = {{"schedule", schedule},
                     {"parallelism", {{"pp", 4}}},
                     {"batch", {{"microbatches", 8}}},
                     {"cost", {{"kind", "uniform"}, {"f", 1.25}, {"b", 1}, {"w", 1}, {"comm", 0.125}}}};
    if (schedule == "interleaved-1f1b") scenario["parallelism"]["vpp"] = 2;
    if (schedule == "seq1f1b") scenario["schedule"] = {{"name", schedule}, {"slices", 2}};
    const std::vector<NpuTrace> npus = written(scenario);
    std::size_t nodes = 0;
    for (const NpuTrace& npu : npus) nodes += npu.nodes.size();
    std::size_t expected = 0;
    for (const model::Vertex& vertex : setup_->graph().vertices()) {
      expected += vertex.kind == model::VertexKind::transfer     ? 2
                  : vertex.kind == model::VertexKind::collective ? setup_->graph().collective(vertex).ranks.size()
                                                                 : 1;
    }
    EXPECT_EQ(nodes, expected) << schedule;
    EXPECT_EQ(replayed(npus, groups_), prediction_.metrics.makespan.count()) << schedule;
  }
}

// Both results of a joint block leave when it ends, and with V-shaped placement on one link: the second message leaves
// one latency before the first has arrived.
TEST_F(ChakraTrace, MessagesFollowEachOtherWithinTheirLatency) {
  for (const std::string schedule : {"dualpipe-v", "dualpipe", "combined-1f1b", "zb-v"}) {
    for (const bool overlap : {false, true}) {
      const json scenario = {{"schedule", schedule},
                             {"model", "gpt2"},
                             {"cluster", "dgx-a100-80gb"},
                             {"parallelism", {{"pp", 4}, {"overlap_transfers", overlap}}},
                             {"batch", {{"sequence_length", 1024}, {"microbatches", 8}}}};
      const std::vector<NpuTrace> npus = written(scenario);
      EXPECT_EQ(replayed(npus, groups_), prediction_.metrics.makespan.count()) << schedule;
    }
  }
}

// A model on a cluster with replicas: bytes, reductions over the replicas, and the embedding's over two stages.
TEST_F(ChakraTrace, HasBytesAndGroups) {
  const json scenario = {{"model", "gpt2"},
                         {"cluster", "dgx-a100-80gb"},
                         {"parallelism", {{"pp", 4}, {"dp", 2}}},
                         {"batch", {{"sequence_length", 1024}, {"microbatches", 8}}}};
  const std::vector<NpuTrace> npus = written(scenario, 2);
  ASSERT_EQ(npus.size(), 8U);
  EXPECT_EQ(npus[0].metadata.version(), "0.0.4");
  std::set<std::vector<int>> groups;
  for (const json& group : groups_) groups.insert(group.get<std::vector<int>>());
  // NPU = pipeline rank * 2 + replica: the reductions of four stages, and the tied embedding of each replica.
  EXPECT_EQ(groups, (std::set<std::vector<int>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 6}, {1, 7}}));
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>, int> messages;
  int sends = 0;
  for (int npu = 0; npu < 8; ++npu) {
    for (const chakra::Node& node : npus[npu].nodes) {
      EXPECT_FALSE(find_attribute(node, "is_cpu_op")->bool_val());
      EXPECT_NEAR(static_cast<double>(node.duration_micros()), static_cast<double>(number(node, "duration_ns")) / 1e3,
                  0.5);
      if (node.type() == chakra::COMM_SEND_NODE || node.type() == chakra::COMM_RECV_NODE) {
        const bool send = node.type() == chakra::COMM_SEND_NODE;
        EXPECT_EQ(number(node, send ? "comm_src" : "comm_dst"), npu);
        EXPECT_EQ(number(node, "comm_src") % 2, number(node, "comm_dst") % 2);
        EXPECT_EQ(number(node, "comm_size"), 1024 * 768 * 2);
        sends += send ? 1 : 0;
        messages[{number(node, "comm_src"), number(node, "comm_dst"), number(node, "comm_tag"),
                  number(node, "comm_size")}] += send ? 1 : -1;
      }
    }
  }
  EXPECT_EQ(sends, 2 * 2 * 3 * 8);  // replicas, directions, links, microbatches
  for (const auto& [message, balance] : messages) EXPECT_EQ(balance, 0);
  EXPECT_EQ(replayed(npus, groups_), prediction_.metrics.makespan.count());
}

// A file of another tool, with attributes that this part of the schema lacks, is read.
TEST_F(ChakraTrace, IsTheFormatOfOthers) {
  const char* data = std::getenv("SLUICE_DATA");
  if (data == nullptr) GTEST_SKIP() << "SLUICE_DATA is not set";
  const std::string folder = folder_.path("");
  ASSERT_EQ(
      std::system(
          ("tar xzf '" + std::string(data) + "/samples/chakra/feeder_tests_trace.tar.gz' -C '" + folder + "'").c_str()),
      0);
  const NpuTrace trace = read_npu(folder + "/tests/data/chakra.0.et");
  ASSERT_GT(trace.nodes.size(), 1000U);
  EXPECT_EQ(trace.nodes[0].name(), "aten::flatten_dense_tensors(0)");
  EXPECT_EQ(trace.nodes[0].id(), 216U);
  EXPECT_EQ(trace.nodes[0].type(), chakra::COMP_NODE);
  EXPECT_EQ(trace.nodes[0].duration_micros(), 318U);
}

}  // namespace
}  // namespace sluice::traces

#include "traces/chakra/chakra_trace.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/file_set.h"
#include "model/to_size.h"
#include "traces/chakra/execution_trace.pb.h"

namespace sluice::traces {
namespace {

// Messages are encoded into pieces of this size.
constexpr std::size_t kPiece = std::size_t{1} << 20;

template <typename Message>
void add_attribute(Message& message, const char* name, std::int64_t value) {
  chakra::Attribute& attribute = *message.add_attr();
  attribute.set_name(name);
  attribute.set_int64_val(value);
}

class NpuWriter {
 public:
  NpuWriter(const OpGraph& graph, const Timeline& timeline, const ChakraOptions& options)
      : graph_(graph),
        timeline_(timeline),
        options_(options),
        tag_(graph.size(), 0),
        blocks_(graph.size(), 0),
        of_rank_(num_ranks()) {
    std::map<LaneId, std::int32_t> tags;
    for (VertexId v = 0; v < graph.size(); ++v) {
      const Vertex& vertex = graph[v];
      const int rank = graph.rank_of(v);
      for (const VertexId need : graph.needs(v)) {
        if (vertex.kind != VertexKind::transfer && graph[need].kind == VertexKind::transfer &&
            graph.rank_of(need) == rank) {
          blocks_[need] = 1;
        }
      }
      if (vertex.kind == VertexKind::collective) {
        for (const int each : graph.collective(vertex).ranks) of_rank_[to_size(each)].push_back(v);
        continue;
      }
      of_rank_[to_size(rank)].push_back(v);
      if (vertex.kind != VertexKind::transfer) continue;
      of_rank_[to_size(peer_of(v))].push_back(v);
      tag_[v] = tags[vertex.lane]++;
    }
    for (int replica = 0; replica < options.replicas; ++replica) {
      for (VertexId v = 0; v < graph.size(); ++v) {
        if (graph[v].kind == VertexKind::collective) static_cast<void>(group_of(v, replica));
      }
    }
  }

  // The file of a pipeline rank of a replica.
  void write(int rank, int replica, const ByteSink& sink) {
    sink_ = &sink;
    chakra::GlobalMetadata metadata;
    metadata.set_version("0.0.4");
    chakra::Attribute& tool = *metadata.add_attr();
    tool.set_name("schema");
    tool.set_string_val("sluice.chakra/1");
    if (!options_.scenario.empty()) {
      chakra::Attribute& scenario = *metadata.add_attr();
      scenario.set_name("scenario");
      scenario.set_string_val(options_.scenario);
    }
    add(metadata);
    for (const VertexId v : of_rank_[to_size(rank)]) add(node(v, rank, replica));
    flush();
  }

  // By name, as ASTRA-sim reads them.
  nlohmann::ordered_json groups() const {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    std::vector<const std::vector<int>*> by_id(groups_.size());
    for (const auto& [npus, id] : groups_) by_id[to_size(id - 1)] = &npus;
    for (std::size_t i = 0; i < by_id.size(); ++i) out[std::to_string(i + 1)] = *by_id[i];
    return out;
  }

 private:
  std::size_t num_ranks() const { return to_size(graph_.schedule().num_ranks()); }
  int peer_of(VertexId v) const { return graph_.lanes()[to_size(graph_[v].lane)].peer; }
  int npu(int rank, int replica) const { return rank * options_.replicas + replica; }

  // The id of what `v` is on a rank: transfers have another one at the receiver.
  std::uint64_t id_on(VertexId v, int rank) const {
    return graph_[v].kind == VertexKind::transfer && graph_.rank_of(v) != rank ? std::uint64_t{v} + graph_.size() : v;
  }
  bool is_on(VertexId v, int rank) const {
    if (graph_[v].kind == VertexKind::collective) {
      const auto ranks = graph_.collective(graph_[v]).ranks;
      return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    }
    return graph_.rank_of(v) == rank || (graph_[v].kind == VertexKind::transfer && peer_of(v) == rank);
  }

  // The communicator of a collective: 0, all NPUs, or a number from 1.
  int group_of(VertexId v, int replica) {
    const Collective collective = graph_.collective(graph_[v]);
    std::vector<int> npus;
    const bool of_replicas =
        collective.kind == CollectiveKind::gradient_reduce || collective.kind == CollectiveKind::parameter_gather;
    if (collective.kind == CollectiveKind::global_norm) return 0;
    for (const int rank : collective.ranks) {
      for (int each = of_replicas ? 0 : replica; each < (of_replicas ? options_.replicas : replica + 1); ++each) {
        npus.push_back(npu(rank, each));
      }
    }
    return groups_.try_emplace(std::move(npus), static_cast<int>(groups_.size()) + 1).first->second;
  }

  chakra::CollectiveType type_of(CollectiveKind kind) const {
    if (kind == CollectiveKind::parameter_gather) return chakra::ALL_GATHER;
    return kind == CollectiveKind::gradient_reduce && options_.shards_optimizer ? chakra::REDUCE_SCATTER
                                                                                : chakra::ALL_REDUCE;
  }

  chakra::Node node(VertexId v, int rank, int replica) {
    const Vertex& vertex = graph_[v];
    chakra::Node out;
    out.set_id(id_on(v, rank));
    const bool receives = vertex.kind == VertexKind::transfer && graph_.rank_of(v) != rank;
    out.set_name((receives ? "receive of " : "") + graph_.name(v));
    // A receive waits for its message alone: the next message of a link leaves before the one before it has arrived.
    for (const VertexId need : graph_.needs(v)) {
      if (!receives && is_on(need, rank)) out.add_data_deps(id_on(need, rank));
    }
    const std::int64_t start = timeline_.start[v].count();
    const bool arrives = receives || blocks_[v] != 0;
    const std::int64_t duration =
        ((arrives ? timeline_.arrival(graph_, v) : timeline_.end[v]) - timeline_.start[v]).count();
    out.set_start_time_micros(static_cast<std::uint64_t>((start + 500) / 1000));
    out.set_duration_micros(static_cast<std::uint64_t>((duration + 500) / 1000));
    chakra::Attribute& on_host = *out.add_attr();
    on_host.set_name("is_cpu_op");
    on_host.set_bool_val(false);
    add_attribute(out, "start_ns", start);
    add_attribute(out, "duration_ns", duration);
    if (vertex.kind == VertexKind::transfer) {
      out.set_type(receives ? chakra::COMM_RECV_NODE : chakra::COMM_SEND_NODE);
      add_number(out, "comm_src", npu(graph_.rank_of(v), replica));
      add_number(out, "comm_dst", npu(peer_of(v), replica));
      add_number(out, "comm_tag", tag_[v]);
      add_attribute(out, "comm_size", std::max<std::int64_t>(1, graph_.transfer_bytes(vertex)));
    } else if (vertex.kind == VertexKind::collective) {
      const Collective collective = graph_.collective(vertex);
      out.set_type(chakra::COMM_COLL_NODE);
      add_attribute(out, "comm_type", type_of(collective.kind));
      add_attribute(out, "comm_size", std::max<std::int64_t>(1, collective.bytes));
      chakra::Attribute& group = *out.add_attr();
      group.set_name("pg_name");
      group.set_string_val(std::to_string(group_of(v, replica)));
    } else {
      out.set_type(chakra::COMP_NODE);
    }
    return out;
  }

  static void add_number(chakra::Node& node, const char* name, std::int32_t value) {
    chakra::Attribute& attribute = *node.add_attr();
    attribute.set_name(name);
    attribute.set_int32_val(value);
  }

  template <typename Message>
  void add(const Message& message) {
    // Not by a StringOutputStream, which fills the string's whole capacity for each message.
    std::array<std::uint8_t, 5> length{};
    std::uint8_t* const end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(
        static_cast<std::uint32_t>(message.ByteSizeLong()), length.data());
    piece_.append(length.begin(), end);
    message.AppendToString(&piece_);
    if (piece_.size() > kPiece) flush();
  }
  void flush() {
    (*sink_)(piece_);
    piece_.clear();
  }

  const OpGraph& graph_;
  const Timeline& timeline_;
  const ChakraOptions& options_;
  std::vector<std::int32_t> tag_;               // of transfers: their number on the link
  std::vector<char> blocks_;                    // transfers until whose arrival the sender's next op waits
  std::vector<std::vector<VertexId>> of_rank_;  // in the order of ids
  std::map<std::vector<int>, int> groups_;      // NPUs to id
  std::string piece_;
  const ByteSink* sink_ = nullptr;
};

}  // namespace

bool has_chakra_traces() { return true; }

std::int64_t write_chakra_traces(const std::string& prefix, const OpGraph& graph, const Timeline& timeline,
                                 const ChakraOptions& options) {
  const std::int64_t files = std::int64_t{graph.schedule().num_ranks()} * options.replicas;
  if (files > kMostChakraFiles) {
    throw InputError(fmt::format("{}: {} pipeline ranks of {} replicas would be {} files: expected at most {}", prefix,
                                 graph.schedule().num_ranks(), options.replicas, files, kMostChakraFiles));
  }
  NpuWriter writer(graph, timeline, options);
  FileSet written(prefix);
  for (int rank = 0; rank < graph.schedule().num_ranks(); ++rank) {
    for (int replica = 0; replica < options.replicas; ++replica) {
      written.write(fmt::format(".{}.et", rank * options.replicas + replica),
                    [&](const ByteSink& sink) { writer.write(rank, replica, sink); });
    }
  }
  written.write(".comm_groups.json", [&](const ByteSink& sink) { sink(writer.groups().dump(2) + "\n"); });
  written.commit();
  return files + 1;
}

}  // namespace sluice::traces

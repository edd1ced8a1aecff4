#pragma once

#include <boost/graph/graph_traits.hpp>
#include <boost/graph/properties.hpp>
#include <boost/iterator/counting_iterator.hpp>
#include <boost/iterator/iterator_facade.hpp>
#include <boost/property_map/property_map.hpp>
#include <utility>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/units.h"

// Makes OpGraph a graph of the Boost Graph Library, so that its algorithms run on it without a copy. It models
// VertexListGraph, EdgeListGraph, IncidenceGraph and AdjacencyGraph; edges lead from a vertex to what it waits for.
// Algorithms that follow edges the other way need a transposed copy (see graphviz.cc).
//
// Property maps: boost::vertex_index, vertex_kind (VertexKind) and vertex_lane (LaneId), by get(tag, graph), and
// duration_map(prices.duration).

namespace sluice::model {

// The edge from `source` to graph.needs(source)[need].
struct OpGraphEdge {
  VertexId source = 0;
  std::uint32_t need = 0;
  auto operator<=>(const OpGraphEdge&) const = default;
};

// The edges from one vertex.
class OutEdgeIterator
    : public boost::iterator_facade<OutEdgeIterator, OpGraphEdge, boost::random_access_traversal_tag, OpGraphEdge> {
 public:
  OutEdgeIterator() = default;
  explicit OutEdgeIterator(OpGraphEdge edge) : edge_(edge) {}

 private:
  friend class boost::iterator_core_access;
  OpGraphEdge dereference() const { return edge_; }
  bool equal(const OutEdgeIterator& other) const { return edge_ == other.edge_; }
  void increment() { ++edge_.need; }
  void decrement() { --edge_.need; }
  void advance(std::ptrdiff_t by) { edge_.need = static_cast<std::uint32_t>(edge_.need + by); }
  std::ptrdiff_t distance_to(const OutEdgeIterator& other) const {
    return std::ptrdiff_t{other.edge_.need} - std::ptrdiff_t{edge_.need};
  }

  OpGraphEdge edge_;
};

// All edges, by source.
class EdgeIterator
    : public boost::iterator_facade<EdgeIterator, OpGraphEdge, boost::forward_traversal_tag, OpGraphEdge> {
 public:
  EdgeIterator() = default;
  EdgeIterator(const OpGraph& graph, VertexId source) : graph_(&graph), edge_{source, 0} { skip_vertices_without(); }

 private:
  friend class boost::iterator_core_access;
  OpGraphEdge dereference() const { return edge_; }
  bool equal(const EdgeIterator& other) const { return edge_ == other.edge_; }
  void increment() {
    ++edge_.need;
    skip_vertices_without();
  }
  void skip_vertices_without() {
    while (edge_.source < graph_->size() && edge_.need == graph_->needs(edge_.source).size()) {
      edge_ = {edge_.source + 1, 0};
    }
  }

  const OpGraph* graph_ = nullptr;
  OpGraphEdge edge_;
};

struct OpGraphTraversal : boost::incidence_graph_tag,
                          boost::adjacency_graph_tag,
                          boost::vertex_list_graph_tag,
                          boost::edge_list_graph_tag {};

}  // namespace sluice::model

template <>
struct boost::graph_traits<sluice::model::OpGraph> {
  using vertex_descriptor = sluice::model::VertexId;
  using edge_descriptor = sluice::model::OpGraphEdge;
  using directed_category = boost::directed_tag;
  using edge_parallel_category = boost::allow_parallel_edge_tag;
  using traversal_category = sluice::model::OpGraphTraversal;
  using vertex_iterator = boost::counting_iterator<sluice::model::VertexId>;
  using edge_iterator = sluice::model::EdgeIterator;
  using out_edge_iterator = sluice::model::OutEdgeIterator;
  using adjacency_iterator = const sluice::model::VertexId*;
  using vertices_size_type = sluice::model::VertexId;
  using edges_size_type = std::uint32_t;
  using degree_size_type = std::uint32_t;
  static vertex_descriptor null_vertex() { return ~sluice::model::VertexId{0}; }
};

namespace sluice::model {

using OpGraphTraits = boost::graph_traits<OpGraph>;

inline VertexId num_vertices(const OpGraph& graph) { return graph.size(); }
inline std::pair<OpGraphTraits::vertex_iterator, OpGraphTraits::vertex_iterator> vertices(const OpGraph& graph) {
  return {OpGraphTraits::vertex_iterator(0), OpGraphTraits::vertex_iterator(graph.size())};
}

inline std::uint32_t num_edges(const OpGraph& graph) { return static_cast<std::uint32_t>(graph.num_edges()); }
inline std::pair<EdgeIterator, EdgeIterator> edges(const OpGraph& graph) {
  return {EdgeIterator(graph, 0), EdgeIterator(graph, graph.size())};
}
inline VertexId source(OpGraphEdge edge, const OpGraph& /*graph*/) { return edge.source; }
inline VertexId target(OpGraphEdge edge, const OpGraph& graph) { return graph.needs(edge.source)[edge.need]; }

inline std::uint32_t out_degree(VertexId v, const OpGraph& graph) {
  return static_cast<std::uint32_t>(graph.needs(v).size());
}
inline std::pair<OutEdgeIterator, OutEdgeIterator> out_edges(VertexId v, const OpGraph& graph) {
  return {OutEdgeIterator({v, 0}), OutEdgeIterator({v, out_degree(v, graph)})};
}
inline std::pair<const VertexId*, const VertexId*> adjacent_vertices(VertexId v, const OpGraph& graph) {
  const auto needs = graph.needs(v);
  return {needs.data(), needs.data() + needs.size()};
}

// --- property maps ----------------------------------------------------------------------------------------------

struct vertex_kind_t {
  using kind = boost::vertex_property_tag;
};
struct vertex_lane_t {
  using kind = boost::vertex_property_tag;
};
inline constexpr vertex_kind_t vertex_kind;
inline constexpr vertex_lane_t vertex_lane;

using VertexIndexMap = boost::typed_identity_property_map<VertexId>;

// A member of Vertex, read-only.
template <typename T, T Vertex::*member>
struct VertexMemberMap {
  using key_type = VertexId;
  using value_type = T;
  using reference = const T&;
  using category = boost::lvalue_property_map_tag;

  reference operator[](VertexId v) const { return graph->operator[](v).*member; }
  friend reference get(const VertexMemberMap& map, VertexId v) { return map[v]; }

  const OpGraph* graph = nullptr;
};
using VertexKindMap = VertexMemberMap<VertexKind, &Vertex::kind>;
using VertexLaneMap = VertexMemberMap<LaneId, &Vertex::lane>;

inline VertexIndexMap get(boost::vertex_index_t, const OpGraph& /*graph*/) { return {}; }
inline VertexKindMap get(vertex_kind_t, const OpGraph& graph) { return {&graph}; }
inline VertexLaneMap get(vertex_lane_t, const OpGraph& graph) { return {&graph}; }
template <typename Tag>
auto get(Tag tag, const OpGraph& graph, VertexId v) {
  return get(get(tag, graph), v);
}

// `durations` by vertex (Prices::duration), which must outlive the map.
inline auto duration_map(const std::vector<Duration>& durations) {
  return boost::make_iterator_property_map(durations.begin(), VertexIndexMap());
}

}  // namespace sluice::model

template <>
struct boost::property_map<sluice::model::OpGraph, boost::vertex_index_t> {
  using type = sluice::model::VertexIndexMap;
  using const_type = type;
};
template <>
struct boost::property_map<sluice::model::OpGraph, sluice::model::vertex_kind_t> {
  using type = sluice::model::VertexKindMap;
  using const_type = type;
};
template <>
struct boost::property_map<sluice::model::OpGraph, sluice::model::vertex_lane_t> {
  using type = sluice::model::VertexLaneMap;
  using const_type = type;
};

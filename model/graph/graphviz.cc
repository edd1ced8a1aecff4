#include "model/graph/graphviz.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/graphviz.hpp>
#include <boost/graph/iteration_macros.hpp>
#include <boost/graph/transitive_reduction.hpp>
#include <ostream>
#include <string_view>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/graph/boost_graph.h"

namespace sluice::model {
namespace {

constexpr VertexId kMaxDrawnVertices = 20'000;

std::string_view color_of(VertexKind kind) {
  switch (kind) {
    case VertexKind::compute: return "lightblue";
    case VertexKind::joint: return "lightcyan";
    case VertexKind::recompute: return "lightgray";
    case VertexKind::transfer: return "lightyellow";
    case VertexKind::collective: return "lightsalmon";
    case VertexKind::optimizer: return "lightgreen";
    case VertexKind::offload: return "lightpink";
  }
  return "white";
}

}  // namespace

void write_dot(std::ostream& out, const OpGraph& graph) {
  if (graph.size() > kMaxDrawnVertices) {
    throw InputError(fmt::format("{} vertices: at most {} can be drawn", graph.size(), kMaxDrawnVertices));
  }
  // Arrows lead forward in time: from what is waited for. The reduction numbers the vertices anew.
  using Adjacency = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
  Adjacency all(graph.size());
  BGL_FORALL_EDGES_T(edge, graph, OpGraph) { add_edge(target(edge, graph), source(edge, graph), all); }
  Adjacency reduced;
  std::vector<std::size_t> new_id(graph.size());
  const auto index = get(boost::vertex_index, all);
  transitive_reduction(all, reduced, boost::make_iterator_property_map(new_id.begin(), index), index);
  std::vector<VertexId> old_id(graph.size());
  for (VertexId v = 0; v < graph.size(); ++v) old_id[new_id[v]] = v;
  std::vector<std::pair<VertexId, VertexId>> arrows;
  for (VertexId v = 0; v < graph.size(); ++v) {
    BGL_FORALL_ADJ_T(new_id[v], waiting, reduced, Adjacency) { arrows.emplace_back(v, old_id[waiting]); }
  }
  const boost::compressed_sparse_row_graph<boost::directedS> picture(boost::edges_are_sorted, arrows.begin(),
                                                                     arrows.end(), graph.size());

  const auto write_defaults = [](std::ostream& to) { to << "rankdir=LR;\nnode [shape=box, style=filled];\n"; };
  const auto write_vertex = [&](std::ostream& to, std::size_t v) {
    const auto id = static_cast<VertexId>(v);
    fmt::print(to, "[label=\"{}\", group={}, fillcolor={}]", graph.name(id), get(vertex_lane, graph, id),
               color_of(get(vertex_kind, graph, id)));
  };
  const auto write_edge = [&](std::ostream& to, const auto& edge) {
    const auto lane_of = [&](std::size_t v) { return get(vertex_lane, graph, static_cast<VertexId>(v)); };
    if (lane_of(source(edge, picture)) == lane_of(target(edge, picture))) to << "[style=dashed]";
  };
  boost::write_graphviz(out, picture, write_vertex, write_edge, write_defaults);
}

}  // namespace sluice::model

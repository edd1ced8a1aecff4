#include "model/graph/boost_graph.h"

#include <gtest/gtest.h>

#include <boost/concept/assert.hpp>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/graph_concepts.hpp>
#include <boost/graph/iteration_macros.hpp>
#include <boost/graph/strong_components.hpp>
#include <boost/graph/topological_sort.hpp>
#include <boost/property_map/vector_property_map.hpp>
#include <sstream>

#include "model/graph/graphviz.h"
#include "model/graph/lowering.h"
#include "tests/support/all_schedules.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

BOOST_CONCEPT_ASSERT((boost::VertexListGraphConcept<OpGraph>));
BOOST_CONCEPT_ASSERT((boost::EdgeListGraphConcept<OpGraph>));
BOOST_CONCEPT_ASSERT((boost::IncidenceGraphConcept<OpGraph>));
BOOST_CONCEPT_ASSERT((boost::AdjacencyGraphConcept<OpGraph>));
BOOST_CONCEPT_ASSERT((boost::ReadablePropertyGraphConcept<OpGraph, VertexId, boost::vertex_index_t>));
BOOST_CONCEPT_ASSERT((boost::ReadablePropertyGraphConcept<OpGraph, VertexId, vertex_kind_t>));
BOOST_CONCEPT_ASSERT((boost::ReadablePropertyGraphConcept<OpGraph, VertexId, vertex_lane_t>));
BOOST_CONCEPT_ASSERT((
    boost::ReadablePropertyMapConcept<decltype(duration_map(std::declval<const std::vector<Duration>&>())), VertexId>));

void for_each_graph(const std::function<void(const OpGraph&)>& check) {
  test::for_each_schedule({.ranks = 3, .microbatches = 4, .chunks = 2, .slices = 2}, [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    check(lower(schedule, {.data_parallel = 2, .recompute = true}));
  });
}

TEST(BoostGraph, EdgesAreTheNeedsOfEveryVertex) {
  for_each_graph([](const OpGraph& graph) {
    std::vector<std::vector<VertexId>> targets(num_vertices(graph));
    std::uint32_t count = 0;
    BGL_FORALL_EDGES_T(edge, graph, OpGraph) {
      targets[source(edge, graph)].push_back(target(edge, graph));
      ++count;
    }
    EXPECT_EQ(count, num_edges(graph));
    BGL_FORALL_VERTICES_T(v, graph, OpGraph) {
      const auto needs = graph.needs(v);
      const std::vector<VertexId> expected(needs.begin(), needs.end());
      EXPECT_EQ(targets[v], expected);
      std::vector<VertexId> out;
      BGL_FORALL_OUTEDGES_T(v, edge, graph, OpGraph) { out.push_back(target(edge, graph)); }
      EXPECT_EQ(out, expected);
      EXPECT_EQ(out_degree(v, graph), expected.size());
      out.clear();
      BGL_FORALL_ADJ_T(v, need, graph, OpGraph) { out.push_back(need); }
      EXPECT_EQ(out, expected);
    }
  });
}

TEST(BoostGraph, PropertyMapsReadTheVertex) {
  const Schedule schedule = test::make("1f1b", {.p = 2, .m = 2});
  const OpGraph graph = lower(schedule);
  std::vector<Duration> durations;
  for (VertexId v = 0; v < graph.size(); ++v) durations.emplace_back(10 * v);
  for (VertexId v = 0; v < graph.size(); ++v) {
    EXPECT_EQ(get(boost::vertex_index, graph, v), v);
    EXPECT_EQ(get(vertex_kind, graph, v), graph[v].kind);
    EXPECT_EQ(get(vertex_lane, graph, v), graph[v].lane);
    EXPECT_EQ(get(duration_map(durations), v), Duration(10 * v));
  }
}

TEST(BoostGraph, IdsAreATopologicalOrder) {
  for_each_graph([](const OpGraph& graph) {
    std::vector<VertexId> order;  // edges lead to what is waited for, so the result is in execution order
    ASSERT_NO_THROW(boost::topological_sort(graph, std::back_inserter(order)));
    EXPECT_EQ(order.size(), graph.size());
    for (VertexId v = 0; v < graph.size(); ++v) {
      for (const VertexId need : graph.needs(v)) ASSERT_LT(need, v);
    }
    boost::vector_property_map<std::size_t> component;
    EXPECT_EQ(boost::strong_components(graph, component), graph.size());
  });
}

TEST(BoostGraph, BreadthFirstSearchFindsTheFirstForwardFromEveryOp) {
  const Schedule schedule = test::make("1f1b", {.p = 4, .m = 4});
  const OpGraph graph = lower(schedule);
  BGL_FORALL_VERTICES_T(v, graph, OpGraph) {
    if (get(vertex_kind, graph, v) != VertexKind::compute) continue;
    std::vector<boost::default_color_type> color(graph.size());
    boost::breadth_first_search(
        graph, v, boost::color_map(boost::make_iterator_property_map(color.begin(), get(boost::vertex_index, graph))));
    EXPECT_EQ(color[0], boost::black_color) << graph.name(v);
  }
}

// F0 -> send -> F1 -> B1 -> send -> B0 and the two steps. That B0 runs after F0 on its rank follows from the rest, so
// that edge is not drawn.
TEST(Graphviz, DrawsEachVertexAndTheEdgesThatDoNotFollowFromOthers) {
  const Schedule schedule = test::make("1f1b", {.p = 2, .m = 1});
  std::ostringstream out;
  write_dot(out, lower(schedule));
  const std::string expected = R"dot(digraph G {
rankdir=LR;
node [shape=box, style=filled];
0[label="F(stage 0, mb 0)", group=0, fillcolor=lightblue];
1[label="send F(stage 0, mb 0) 0->1", group=4, fillcolor=lightyellow];
2[label="F(stage 1, mb 0)", group=1, fillcolor=lightblue];
3[label="B(stage 1, mb 0)", group=1, fillcolor=lightblue];
4[label="send B(stage 1, mb 0) 1->0", group=5, fillcolor=lightyellow];
5[label="B(stage 0, mb 0)", group=0, fillcolor=lightblue];
6[label="optimizer(stage 0, step 0)", group=0, fillcolor=lightgreen];
7[label="optimizer(stage 1, step 0)", group=1, fillcolor=lightgreen];
0->1 ;
1->2 ;
2->3 [style=dashed];
3->7 [style=dashed];
3->4 ;
4->5 ;
5->6 [style=dashed];
}
)dot";
  EXPECT_EQ(out.str(), expected);
}

}  // namespace
}  // namespace sluice::test

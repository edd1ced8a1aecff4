#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family looped_bfs() {
  return {.name = "looped-bfs",
          .aliases = {"LoopedBFS", "Breadth-First"},
          .summary = "several chunks per rank, each over all microbatches: few gradient reductions, gpipe's memory",
          .source = "Lamy-Poirier 2023, arXiv:2211.05953",
          .fixed_chunks = 0,
          .default_chunks = 2,
          .leaner = {"interleaved-1f1b"},
          .make = [](const FamilyParams& params) { return orders::forwards_then_backwards(looped_bfs(), params); }};
}

}  // namespace sluice::model::families

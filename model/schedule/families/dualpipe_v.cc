#include <fmt/format.h>

#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_dualpipe_v(const FamilyParams& params) {
  const int ranks = params.ranks;
  if (params.microbatches < 2 * ranks) {
    orders::refuse(dualpipe_v(), fmt::format("microbatches: expected at least {} (twice the ranks), got {}", 2 * ranks,
                                             params.microbatches));
  }
  ScheduleParts parts = orders::frame(dualpipe_v(), params, 4 * params.microbatches + 2 * ranks);
  parts.routes = {orders::snake(ranks, 2)};
  for (int rank = 0; rank < ranks; ++rank) {
    orders::dualpipe_steps(rank, ranks,
                           {{{.stage = rank, .microbatches = params.microbatches},
                             {.stage = 2 * ranks - 1 - rank, .microbatches = params.microbatches}}},
                           parts.orders[rank]);
  }
  return parts;
}

}  // namespace

Family dualpipe_v() {
  return {.name = "dualpipe-v",
          .aliases = {"DualPipeV"},
          .summary = "dualpipe cut in half: two chunks per rank in a V, so that every stage is on one rank",
          .source = "DeepSeek, DualPipeV of its DualPipe code",
          .fixed_chunks = 2,
          .split_backward = true,
          .make = make_dualpipe_v};
}

}  // namespace sluice::model::families

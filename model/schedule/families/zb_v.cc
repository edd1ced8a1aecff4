#include <algorithm>
#include <initializer_list>
#include <utility>

#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_zb_v(const FamilyParams& params) {
  const int ranks = params.ranks;
  ScheduleParts parts = orders::frame(zb_v(), params, 6 * params.microbatches);
  parts.routes = {orders::snake(ranks, 2)};
  for (int rank = 0; rank < ranks; ++rank) {
    orders::TwoLists list({{{.stage = rank, .microbatches = params.microbatches},
                            {.stage = 2 * ranks - 1 - rank, .microbatches = params.microbatches}}},
                          parts.orders[rank]);
    const auto add = [&](std::initializer_list<std::pair<OpKind, int>> ops, int times) {
      for (int i = 0; i < times; ++i) {
        for (const auto& [kind, chunk] : ops) list.add(kind, chunk);
      }
    };
    using enum OpKind;
    // The rule is for 2p - 1 microbatches or more; with fewer, the remaining ones are skipped.
    const int made = std::max(params.microbatches, 2 * ranks - 1);
    add({{F, 0}}, 2 * (ranks - rank) - 1);
    add({{F, 1}, {F, 0}}, rank);
    add({{F, 1}, {I, 1}, {W, 1}}, ranks - rank);
    add({{F, 0}, {I, 0}, {W, 0}, {F, 1}, {I, 1}, {W, 1}}, made - ranks);
    add({{I, 0}, {I, 1}}, rank);
    add({{I, 0}, {W, 0}}, ranks - rank);
    add({{W, 1}}, rank);
    add({{W, 0}}, rank);
  }
  return parts;
}

}  // namespace

Family zb_v() {
  return {.name = "zb-v",
          .aliases = {"ZBV", "ZBVZeroBubble", "V-ZB"},
          .summary = "zero bubble with 1f1b's memory, with two chunks per rank in a V, if F, I and W take equally long",
          .source = "Qi et al. 2023, arXiv:2401.10241, section 6",
          .fixed_chunks = 2,
          .split_backward = true,
          .leaner = {"v-half", "v-min"},
          .make = make_zb_v};
}

}  // namespace sluice::model::families

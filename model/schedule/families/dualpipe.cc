#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_dualpipe(const FamilyParams& params) {
  const int ranks = params.ranks;
  const int half = params.microbatches / 2;
  if (ranks % 2 != 0) orders::refuse(dualpipe(), fmt::format("ranks: expected an even number, got {}", ranks));
  if (params.microbatches % 2 != 0 || params.microbatches < 2 * ranks) {
    orders::refuse(dualpipe(),
                   fmt::format("microbatches: expected an even number of at least {} (twice the ranks), got {}",
                               2 * ranks, params.microbatches));
  }
  ScheduleParts parts = orders::frame(dualpipe(), params, 2 * params.microbatches + ranks);
  parts.routes = {orders::linear(ranks), orders::mirrored(ranks)};
  // The first half enters at rank 0, the second at the last rank.
  parts.route_of.assign(params.microbatches, 0);
  std::fill(parts.route_of.begin() + half, parts.route_of.end(), std::uint8_t{1});
  for (int rank = 0; rank < ranks; ++rank) {
    // List 0 is the one that enters at the nearer end.
    const int distance = std::min(rank, ranks - 1 - rank);
    std::array<orders::TwoLists::List, 2> lists = {
        {{.stage = rank, .first_microbatch = 0, .microbatches = half},
         {.stage = ranks - 1 - rank, .first_microbatch = half, .microbatches = half}}};
    if (distance != rank) std::swap(lists[0], lists[1]);
    orders::dualpipe_steps(distance, ranks / 2, lists, parts.orders[rank]);
  }
  return parts;
}

}  // namespace

Family dualpipe() {
  return {
      .name = "dualpipe",
      .aliases = {},
      .summary = "two pipelines in opposite directions, with F and B of both as joint blocks; every stage on two ranks",
      .source = "DeepSeek-V3, arXiv:2412.19437, section 3.2.1, and its DualPipe code",
      .split_backward = true,
      .replicas = 2,
      .make = make_dualpipe};
}

}  // namespace sluice::model::families

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

// Microbatches are in units of p, half of them in each direction. In slots of one op, with u the unit, s the stage and
// j the position in the half, F is in slot 2j + s + 2pu and B in 2j + 2p-1-s + 2pu. So in every other slot a rank runs,
// unit by unit and without a gap, the p/2 Fs of the direction that enters at its nearer end and then the p/2 Bs of the
// other direction; in the slots between, starting p/2 - distance ops later, the Fs of the other direction and the Bs of
// this one.
ScheduleParts make_chimera(const FamilyParams& params) {
  const int ranks = params.ranks;
  const int half = ranks / 2;
  if (ranks % 2 != 0) orders::refuse(chimera(), fmt::format("ranks: expected an even number, got {}", ranks));
  if (params.microbatches % ranks != 0) {
    orders::refuse(chimera(),
                   fmt::format("microbatches: expected a multiple of {} (ranks), got {}", ranks, params.microbatches));
  }
  ScheduleParts parts = orders::frame(chimera(), params, 2 * params.microbatches);
  parts.routes = {orders::linear(ranks), orders::mirrored(ranks)};
  for (int mb = 0; mb < params.microbatches; ++mb) parts.route_of.push_back(mb % ranks < half ? 0 : 1);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& order = parts.orders[rank];
    const int distance = std::min(rank, ranks - 1 - rank);
    const int nearer = distance == rank ? 0 : 1;
    // The list of the Fs of one direction and the Bs of the other.
    const auto list = [&, stage = std::array{rank, ranks - 1 - rank}](int way) {
      return [&order, stage, way, half, unit = 0, i = 0]() mutable {
        const bool forward = i < half;
        const auto w = static_cast<std::size_t>(forward ? way : 1 - way);
        const int j = forward ? i : i - half;
        order.push_back(orders::op(forward ? OpKind::F : OpKind::B, stage[w], unit + static_cast<int>(w) * half + j));
        if (++i == 2 * half) {
          i = 0;
          unit += 2 * half;
        }
      };
    };
    orders::run(half - distance - 1, params.microbatches, list(nearer), list(1 - nearer));
  }
  return parts;
}

}  // namespace

Family chimera() {
  return {.name = "chimera",
          .aliases = {},
          .summary = "two pipelines in opposite directions: half the bubble of 1f1b, every stage on two ranks",
          .source = "Li and Hoefler 2021, arXiv:2107.06925",
          .replicas = 2,
          .make = make_chimera};
}

}  // namespace sluice::model::families

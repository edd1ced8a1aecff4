#include <fmt/format.h>

#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

// In slots of one op, with S stages and j the microbatch: F in slot 2j + s, B in 2j + 2S-1-s. So in every other slot a
// rank runs, without a gap, the Fs of its chunks 0, 2, ... and then the Bs of its chunks ..., 3, 1; in the slots
// between, starting p - rank ops later, the Fs of chunks 1, 3, ... and the Bs of ..., 2, 0.
ScheduleParts make_hanayo(const FamilyParams& params) {
  const int ranks = params.ranks;
  const int waves = params.chunks / 2;
  if (params.chunks % 2 != 0) {
    orders::refuse(hanayo(),
                   fmt::format("chunks (--vpp): expected an even number (two per wave), got {}", params.chunks));
  }
  if (ranks != 1 && ranks % 2 != 0)
    orders::refuse(hanayo(), fmt::format("ranks: expected an even number or 1, got {}", ranks));
  if (params.microbatches != ranks) {
    orders::refuse(hanayo(),
                   fmt::format("microbatches: expected {} (as many as ranks), got {}", ranks, params.microbatches));
  }
  ScheduleParts parts = orders::frame(hanayo(), params, 2 * params.microbatches * params.chunks);
  parts.routes = {orders::snake(ranks, params.chunks)};
  const int wave = 2 * ranks;
  const int count = waves * ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& order = parts.orders[rank];
    const int even = rank;
    const int odd = wave - 1 - rank;
    const auto list = [&](int forward_stage, int backward_stage) {
      const orders::StageList up = {.first = forward_stage, .step = wave, .count = waves};
      const orders::StageList down = {.first = backward_stage + (waves - 1) * wave, .step = -wave, .count = waves};
      orders::Walk forward(OpKind::F, up, ranks, ranks);
      orders::Walk backward(OpKind::B, down, ranks, ranks);
      return [&order, forward, backward, forwards_left = count]() mutable {
        order.push_back(forwards_left-- > 0 ? forward.next() : backward.next());
      };
    };
    orders::run(ranks - rank - 1, 2 * count, list(even, odd), list(odd, even));
  }
  return parts;
}

}  // namespace

Family hanayo() {
  return {.name = "hanayo",
          .aliases = {},
          .summary = "W waves back and forth over the ranks: 1/(2W) of the bubble with one copy of the weights",
          .source = "Liu et al. 2023, arXiv:2308.15762",
          .fixed_chunks = 0,
          .default_chunks = 2,
          .make = make_hanayo};
}

}  // namespace sluice::model::families

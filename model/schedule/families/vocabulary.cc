#include <algorithm>
#include <vector>

#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

// An op of the block that a rank repeats: in block i it is of microbatch i - lag.
struct Repeated {
  OpKind kind;
  int lag = 0;
};

ScheduleParts repeat(const Family& family, const FamilyParams& params,
                     std::vector<Repeated> (*block_of)(int distance, int barriers)) {
  ScheduleParts parts = orders::frame(family, params, 4 * params.microbatches);
  parts.routes = {orders::linear(params.ranks)};
  for (int rank = 0; rank < params.ranks; ++rank) {
    const std::vector<Repeated> block = block_of(params.ranks - 1 - rank, family.vocabulary_barriers);
    const auto [least, most] = std::minmax_element(block.begin(), block.end(),
                                                   [](const Repeated& a, const Repeated& b) { return a.lag < b.lag; });
    for (int i = least->lag; i < params.microbatches + most->lag; ++i) {
      for (const auto& [kind, lag] : block) {
        if (i >= lag && i - lag < params.microbatches) parts.orders[rank].push_back(orders::op(kind, rank, i - lag));
      }
    }
  }
  return parts;
}

// The block of 1F1B, `distance` ranks before the last one. Let T be its time, with forwards of T / 3 or less and
// backwards of 2 T / 3 or less. Blocks of neighbors are T / 3 apart, those of this rank distance · T / 3 before those
// of the last one. S of a microbatch is in the first block in which its input has arrived, so that all ranks have
// finished it a time T after the last forward: each barrier delays the backward of the last rank, and so of all, by one
// block, and increases the microbatches in flight by one.
std::vector<Repeated> block_of_1f1b(int distance, int barriers) {
  const int input = (distance + 2) / 3;
  const int backward = distance + barriers;
  if (barriers == 2) return {{OpKind::F}, {OpKind::S, input}, {OpKind::T, input + 1}, {OpKind::B, backward}};
  return {{OpKind::F}, {OpKind::S, input}, {OpKind::B, backward}, {OpKind::T, (distance + 4) / 3}};
}

// All ranks run S and T of a microbatch at the same time, in the same block of each. What remains of a block is one
// backward and one forward, in turn in either order from rank to rank: a microbatch waits half a block more per rank
// than in 1F1B, and 1.5 times as many are in flight.
std::vector<Repeated> interlaced_block(int distance, int /*barriers*/) {
  const Repeated forward{OpKind::F, -1 - distance / 2};
  const Repeated backward{OpKind::B, distance};
  const bool backward_first = distance % 2 == 0;
  return {{OpKind::S}, {OpKind::T}, backward_first ? backward : forward, backward_first ? forward : backward};
}

constexpr std::string_view kSource = "Yeung et al. 2024, arXiv:2411.05288";

}  // namespace

Family vocabulary_1() {
  return {.name = "1f1b-vocab-1",
          .aliases = {"vocab-1"},
          .summary = "1f1b with embedding and output layer split over all ranks, two barriers; two microbatches more",
          .source = kSource,
          .vocabulary_barriers = 2,
          .make = [](const FamilyParams& params) { return repeat(vocabulary_1(), params, block_of_1f1b); }};
}

Family vocabulary_2() {
  return {.name = "1f1b-vocab-2",
          .aliases = {"vocab-2"},
          .summary = "the same with one barrier, and more work in S; one microbatch more than 1f1b",
          .source = kSource,
          .vocabulary_barriers = 1,
          .make = [](const FamilyParams& params) { return repeat(vocabulary_2(), params, block_of_1f1b); }};
}

Family interlaced() {
  return {.name = "interlaced",
          .aliases = {},
          .summary = "all ranks wait for each other in the passes of the output layer; 1.5 times the memory of 1f1b",
          .source = "Lin et al. 2024, nnScaler, OSDI 24",
          .vocabulary_barriers = 2,
          .make = [](const FamilyParams& params) { return repeat(interlaced(), params, interlaced_block); }};
}

}  // namespace sluice::model::families

#include "model/schedule/orders.h"

#include <fmt/format.h>

#include "model/errors.h"

namespace sluice::model::orders {

void refuse(const Family& family, const std::string& reason) {
  throw InputError(fmt::format("{}: {}", family.name, reason));
}

std::vector<int> linear(int ranks) { return looped(ranks, 1); }

std::vector<int> mirrored(int ranks) {
  const std::vector<int> route = linear(ranks);
  return {route.rbegin(), route.rend()};
}

std::vector<int> looped(int ranks, int chunks) {
  std::vector<int> route;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int rank = 0; rank < ranks; ++rank) route.push_back(rank);
  }
  return route;
}

std::vector<int> snake(int ranks, int chunks) {
  std::vector<int> route;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int i = 0; i < ranks; ++i) route.push_back(chunk % 2 == 0 ? i : ranks - 1 - i);
  }
  return route;
}

ScheduleParts frame(const Family& family, const FamilyParams& params, int ops_of_a_rank) {
  ScheduleParts parts;
  parts.family = family.name;
  parts.num_ranks = params.ranks;
  parts.num_stages = params.ranks * params.chunks;
  parts.num_microbatches = params.microbatches;
  parts.num_batches = params.batches;
  parts.shapes = {params.shape};
  parts.vocabulary_barriers = family.vocabulary_barriers;
  parts.orders.resize(params.ranks);
  for (auto& order : parts.orders) order.reserve(ops_of_a_rank);
  return parts;
}

int group_of_microbatches(const Family& family, const FamilyParams& params) {
  const int group = params.group == 0 ? params.ranks : params.group;
  if (group < params.ranks && group != params.microbatches) {
    refuse(family, fmt::format("group: expected at least one microbatch for each of {} ranks, or all {}, got {}",
                               params.ranks, params.microbatches, group));
  }
  const int last = params.microbatches % group;
  if (last != 0 && last < params.ranks) {
    refuse(family, fmt::format("microbatches: {} in groups of {} leave a last group of {}, less than the {} ranks",
                               params.microbatches, group, last, params.ranks));
  }
  // A group that extends past the last microbatch still lengthens the warm-up, up to the number of forwards.
  return static_cast<int>(std::min(std::int64_t{group}, std::int64_t{params.microbatches} * params.chunks));
}

int default_group_of_slices(const FamilyParams& params) {
  int microbatches = (params.ranks + params.slices() - 1) / params.slices();
  while (params.microbatches % microbatches != 0) ++microbatches;
  return microbatches * params.slices();
}

ScheduleParts alternating(const Family& family, const FamilyParams& params, int lead, int group, Blocks blocks) {
  const int ranks = params.ranks;
  const int chunks = params.chunks;
  const int slices = params.slices();
  const int microbatches = params.microbatches * params.batches;
  const int count = microbatches * chunks * slices;
  if (chunks == 1) group = microbatches;
  ScheduleParts parts = frame(family, params, (family.split_backward ? 3 : 2) * count);
  parts.routes = {looped(ranks, chunks)};
  for (int rank = 0; rank < ranks; ++rank) {
    auto& order = parts.orders[rank];
    const std::int64_t ahead = std::int64_t{lead} * (ranks - 1 - rank) + std::int64_t{chunks - 1} * group * slices +
                               slices - 1 + (blocks == Blocks::joint ? 1 : 0);
    const int warm = static_cast<int>(std::min<std::int64_t>(ahead, count));
    const StageList up = {.first = rank, .step = ranks, .count = chunks};
    const StageList down = {.first = rank + (chunks - 1) * ranks, .step = -ranks, .count = chunks};
    Walk forward(OpKind::F, up, group, microbatches, slices);
    Walk backward(family.split_backward ? OpKind::I : OpKind::B, down, group, microbatches, slices);
    Walk weight(OpKind::W, down, group, microbatches, slices);
    // The number of pending weight gradients: at most lead·r, all of them at the end. None where B computes them.
    const int lag = family.split_backward ? lead * rank : count;
    int pending = 0;
    const auto add_forward = [&] { order.push_back(forward.next()); };
    const auto add_backward = [&] {
      order.push_back(backward.next());
      if (++pending > lag) {
        order.push_back(weight.next());
        --pending;
      }
    };
    run(warm, count, add_forward, add_backward);
    if (blocks == Blocks::joint) {
      for (int i = warm; i < count; ++i) order[warm + 2 * (i - warm)].joined = true;
    }
    if (family.split_backward) {
      for (; pending > 0; --pending) order.push_back(weight.next());
    }
  }
  return parts;
}

ScheduleParts forwards_then_backwards(const Family& family, const FamilyParams& params) {
  const int count = params.microbatches * params.chunks * params.slices();
  ScheduleParts parts = frame(family, params, 2 * count);
  parts.routes = {looped(params.ranks, params.chunks)};
  for (int rank = 0; rank < params.ranks; ++rank) {
    auto& order = parts.orders[rank];
    Walk forward(OpKind::F, {.first = rank, .step = params.ranks, .count = params.chunks}, params.microbatches,
                 params.microbatches, params.slices());
    for (int i = 0; i < count; ++i) order.push_back(forward.next());
    for (int i = count - 1; i >= 0; --i) {
      Op backward = order[i];
      backward.kind = OpKind::B;
      order.push_back(backward);
    }
  }
  return parts;
}

void dualpipe_steps(int distance, int turn, const std::array<TwoLists::List, 2>& lists, std::vector<Op>& order) {
  TwoLists list(lists, order);
  const int before = distance + 1;
  const int after = turn - before;
  std::vector<Op> unfinished;  // the Is, each followed sooner or later by its W, oldest first
  unfinished.reserve(2 * static_cast<std::size_t>(turn));
  std::size_t oldest = 0;
  const auto input_gradient = [&](int digit) {
    list.add(OpKind::I, digit);
    unfinished.push_back(order.back());
  };
  const auto weight_gradient = [&] {
    order.push_back(unfinished[oldest++]);
    order.back().kind = OpKind::W;
  };

  for (int i = 0; i < 2 * after; ++i) list.add(OpKind::F, 0);
  for (int i = 0; i < before; ++i) {
    list.add(OpKind::F, 0);
    list.add(OpKind::F, 1);
  }
  for (int i = 0; i < after; ++i) {
    input_gradient(1);
    weight_gradient();
    list.add(OpKind::F, 1);
  }
  for (int i = 0; i < lists[0].microbatches - 2 * turn + before; ++i) {
    if (i == 0 && after == 0) {
      // At the turning point the first B waits for this F: they cannot form one block.
      list.add(OpKind::F, 0);
      list.add(OpKind::B, 1);
    } else {
      list.add_joint(0, 1);
    }
    list.add_joint(1, 0);
  }
  for (int i = 0; i < after; ++i) {
    list.add(OpKind::B, 1);
    list.add_joint(1, 0);
  }
  // The first `before` of these backwards are whole; the others leave their weight gradient for the end.
  for (int i = 0; i < 2 * before; ++i) {
    const int digit = i % 2 == 0 ? 1 : 0;
    if (i < before) {
      list.add(OpKind::B, digit);
    } else {
      input_gradient(digit);
    }
  }
  for (int i = 0; i < after; ++i) {
    weight_gradient();
    input_gradient(0);
  }
  for (int i = 0; i < before; ++i) weight_gradient();
}

}  // namespace sluice::model::orders

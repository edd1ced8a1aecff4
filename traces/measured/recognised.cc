#include "traces/measured/recognised.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/to_size.h"

namespace sluice::traces {
namespace {

constexpr std::size_t kMostDeviations = 5;

// Kind, stage and microbatch of each pass of a rank.
using PassOrder = std::vector<std::tuple<OpKind, int, int>>;

OpKind op_kind(MeasuredKind kind) {
  switch (kind) {
    case MeasuredKind::forward: return OpKind::F;
    case MeasuredKind::backward: return OpKind::B;
    case MeasuredKind::input_gradient: return OpKind::I;
    default: return OpKind::W;
  }
}

PassOrder order_of(const MeasuredRun& run, int step, int worker) {
  PassOrder order;
  for (const MeasuredOp& op : run.of(step, worker)) {
    if (is_pass(op.kind)) {
      order.emplace_back(op_kind(op.kind), run.stage(run.rank_of(worker), op.chunk), op.microbatch);
    }
  }
  return order;
}

// The orders of the ranks in a family; empty if it has no such shape or other stages on the ranks.
std::vector<PassOrder> orders_of(const Family& family, const MeasuredRun& run) {
  if (family.asynchronous || family.replicas > 1) return {};
  if (family.fixed_chunks != 0 && family.fixed_chunks != run.chunks) return {};
  std::vector<PassOrder> orders(to_size(run.ranks));
  try {
    const ScheduleParts parts = make_parts(
        family,
        {.ranks = run.ranks, .chunks = family.fixed_chunks == 0 ? run.chunks : 0, .microbatches = run.microbatches});
    for (int rank = 0; rank < run.ranks; ++rank) {
      for (const Op& op : parts.orders[to_size(rank)]) {
        orders[to_size(rank)].emplace_back(op.kind, op.stage, op.microbatch);
      }
    }
  } catch (const InputError&) {
    return {};  // the family does not support the shape
  }
  return orders;
}

}  // namespace

Recognised recognise(const MeasuredRun& run) {
  const int steps = static_cast<int>(run.steps.size());
  // The most frequent order of each rank.
  std::vector<PassOrder> usual(to_size(run.ranks));
  std::vector<std::map<PassOrder, int>> votes(to_size(run.ranks));
  for (int step = 0; step < steps; ++step) {
    for (int worker = 0; worker < run.workers(); ++worker) {
      ++votes[to_size(run.rank_of(worker))][order_of(run, step, worker)];
    }
  }
  for (int rank = 0; rank < run.ranks; ++rank) {
    const auto& each = votes[to_size(rank)];
    usual[to_size(rank)] = std::max_element(each.begin(), each.end(), [](const auto& a, const auto& b) {
                             return a.second < b.second;
                           })->first;
  }
  Recognised out;
  for (const Family& family : all_families()) {
    if (orders_of(family, run) != usual) continue;
    out.family = family.name;
    break;
  }
  for (int step = 0; step < steps; ++step) {
    for (int worker = 0; worker < run.workers(); ++worker) {
      const auto& each = votes[to_size(run.rank_of(worker))];
      if (each.size() == 1 || order_of(run, step, worker) == usual[to_size(run.rank_of(worker))]) continue;
      if (++out.num_deviations > std::ssize(out.deviations) && out.deviations.size() < kMostDeviations) {
        out.deviations.push_back(
            fmt::format("{} runs another order in step {}", run.name_of(worker), run.steps[to_size(step)]));
      }
    }
  }
  return out;
}

}  // namespace sluice::traces

#include "traces/measured/worker_clocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "model/median.h"
#include "model/to_size.h"
#include "traces/measured/step_graph.h"
#include "traces/read/clocks.h"

namespace sluice::traces {
namespace {

constexpr Duration kContradiction = std::chrono::milliseconds(1);
// Members of a collective end within this time of each other.
constexpr Duration kReplicaContradiction = std::chrono::milliseconds(10);

// The passes of one pipeline in one step, for align_clocks.
std::vector<OpRow> rows_of_pipeline(const MeasuredRun& run, int step, int replica, int shard) {
  std::vector<OpRow> rows;
  for (int rank = 0; rank < run.ranks; ++rank) {
    for (const MeasuredOp& op : run.of(step, run.worker(replica, rank, shard))) {
      if (!is_pass(op.kind)) continue;
      OpRow row{.kind = static_cast<RowKind>(op.kind),
                .rank = static_cast<std::int16_t>(rank),
                .start = op.start,
                .end = op.end};
      row.op = {.microbatch = op.microbatch,
                .stage = static_cast<std::int16_t>(run.stage(rank, op.chunk)),
                .kind = static_cast<OpKind>(op.kind)};
      rows.push_back(row);
    }
  }
  return rows;
}

// Sends and their receives, in the order of both ends on their link.
std::vector<MatchedMessage> messages_of_pipeline(const MeasuredRun& run, int step, int replica, int shard) {
  std::vector<MatchedMessage> messages;
  const auto ends_of = [&](int rank, MeasuredKind kind) {
    std::vector<Duration> ends;
    for (const MeasuredOp& op : run.of(step, run.worker(replica, rank, shard))) {
      if (op.kind == kind) ends.push_back(op.end);
    }
    return ends;
  };
  for (int rank = 0; rank + 1 < run.ranks; ++rank) {
    for (const bool forward : {true, false}) {
      const int from = forward ? rank : rank + 1;
      const int to = forward ? rank + 1 : rank;
      const std::vector<Duration> sent =
          ends_of(from, forward ? MeasuredKind::forward_send : MeasuredKind::backward_send);
      const std::vector<Duration> received =
          ends_of(to, forward ? MeasuredKind::forward_receive : MeasuredKind::backward_receive);
      if (sent.size() != received.size() || run.chunks > 1) return {};
      for (std::size_t i = 0; i < sent.size(); ++i) messages.push_back({from, to, sent[i], received[i]});
    }
  }
  return messages;
}

// How much earlier than allowed a pass starts, at most.
Duration contradiction_of(const MeasuredRun& run) {
  Duration worst = Duration::zero();
  for (int step = 0; step < std::ssize(run.steps); ++step) {
    for (int replica = 0; replica < run.replicas; ++replica) {
      for (int shard = 0; shard < run.shards; ++shard) {
        std::map<std::tuple<bool, int, int>, Duration> end;  // forward, stage, microbatch
        const std::vector<OpRow> rows = rows_of_pipeline(run, step, replica, shard);
        for (const OpRow& row : rows) {
          if (row.op.kind != OpKind::W) end[{row.op.kind == OpKind::F, row.op.stage, row.op.microbatch}] = row.end;
        }
        for (const OpRow& row : rows) {
          if (row.op.kind == OpKind::W) continue;
          const bool forward = row.op.kind == OpKind::F;
          const auto before = end.find({forward, row.op.stage + (forward ? -1 : 1), row.op.microbatch});
          if (before != end.end()) worst = std::max(worst, before->second - row.start);
        }
      }
    }
  }
  return worst;
}

void shift(MeasuredRun& run, const std::vector<Duration>& offsets) {
  for (MeasuredOp& op : run.ops) {
    op.start += offsets[to_size(op.worker)];
    op.end += offsets[to_size(op.worker)];
  }
}

// The median difference of the ends of shared collectives between a replica and the first one.
Duration replica_offset(const MeasuredRun& run, int replica) {
  std::map<std::tuple<int, int, int, MeasuredKind, int>, Duration> first;  // step, rank, shard, kind, number
  std::vector<Duration> differences;
  for (const MeasuredOp& op : run.ops) {
    if (op.kind != MeasuredKind::parameter_gather && op.kind != MeasuredKind::gradient_scatter &&
        op.kind != MeasuredKind::separate_reduce && op.kind != MeasuredKind::clip) {
      continue;
    }
    const std::tuple key{op.step, run.rank_of(op.worker), run.shard_of(op.worker), op.kind, op.number};
    if (run.replica_of(op.worker) == 0) first[key] = op.end;
    if (run.replica_of(op.worker) != replica) continue;
    if (const auto found = first.find(key); found != first.end()) differences.push_back(found->second - op.end);
  }
  return upper_median(std::move(differences));
}

// Sets the first start of each step to 0 and sorts the ops again.
void start_from_zero(MeasuredRun& run) {
  std::vector<Duration> begin(run.steps.size(), Duration::max());
  for (const MeasuredOp& op : run.ops) begin[to_size(op.step)] = std::min(begin[to_size(op.step)], op.start);
  for (MeasuredOp& op : run.ops) {
    op.start -= begin[to_size(op.step)];
    op.end -= begin[to_size(op.step)];
  }
  arrange_ops(run);
}

void align_replicas(MeasuredRun& run, std::string_view when) {
  std::vector<Duration> offsets(to_size(run.workers()), Duration::zero());
  Duration most = Duration::zero();
  for (int replica = 1; replica < run.replicas; ++replica) {
    const Duration offset = replica_offset(run, replica);
    if (std::chrono::abs(offset) <= kReplicaContradiction) continue;
    most = std::max(most, Duration(std::chrono::abs(offset)));
    for (int worker = run.worker(replica, 0); worker < run.worker(replica + 1, 0); ++worker) {
      offsets[to_size(worker)] = offset;
    }
  }
  if (most == Duration::zero()) return;
  shift(run, offsets);
  start_from_zero(run);
  run.notes.push_back(fmt::format("the ends of collectives of different replicas were up to {:.3f} ms apart{}: aligned",
                                  to_seconds(most) * 1e3, when));
}

}  // namespace

void align_worker_clocks(MeasuredRun& run) {
  const Duration before = contradiction_of(run);
  if (before <= kContradiction || run.ranks > kMaxClocks) {
    align_replicas(run, "");
    return;
  }
  std::vector<Duration> offsets(to_size(run.workers()), Duration::zero());
  std::string how;
  for (int replica = 0; replica < run.replicas; ++replica) {
    for (int shard = 0; shard < run.shards; ++shard) {
      const ClockAlignment alignment = align_clocks(run.ranks, rows_of_pipeline(run, 0, replica, shard),
                                                    messages_of_pipeline(run, 0, replica, shard));
      how = alignment.describe();
      for (int rank = 0; rank < run.ranks; ++rank) {
        if (!alignment.offsets.empty())
          offsets[to_size(run.worker(replica, rank, shard))] = alignment.offsets[to_size(rank)];
      }
    }
  }
  shift(run, offsets);
  start_from_zero(run);
  run.notes.push_back(fmt::format("clocks contradicted the order of passes by up to {:.3f} ms; {}; {:.3f} ms remain",
                                  to_seconds(before) * 1e3, how, to_seconds(contradiction_of(run)) * 1e3));
  align_replicas(run, " after that");
}

}  // namespace sluice::traces

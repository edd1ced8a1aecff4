#include "exec/plan/rank_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "exec/plan/packing.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

bool is_gradient(OpKind kind) { return kind == OpKind::B || kind == OpKind::I; }

// Sender, receiver and reader of the transfers of a graph.
class Transfers {
 public:
  explicit Transfers(const OpGraph& graph) : graph_(graph), reader_(graph.size(), 0) {
    follow();
    for (VertexId v = 0; v < graph.size(); ++v) {
      const Vertex& vertex = graph[v];
      if (vertex.lane >= graph.schedule().num_ranks()) continue;
      // A recomputation and its op both read it: keep the op, which comes later.
      for (const VertexId need : graph.needs(v)) {
        if (graph[need].kind == VertexKind::transfer && receiver(need) == vertex.lane) reader_[need] = v;
      }
    }
  }

  int receiver(VertexId transfer) const { return graph_.lanes()[graph_[transfer].lane].peer; }
  int sender(VertexId transfer) const { return graph_.lanes()[graph_[transfer].lane].rank; }
  // Returns the op that reads the transfer.
  VertexId reader(VertexId transfer) const { return reader_[transfer]; }
  // Returns how many vertices on the compute lane of `rank` are guaranteed to have ended when the transfer begins.
  int ended(VertexId transfer, int rank) const {
    return before_[std::int64_t{transfer} * graph_.schedule().num_ranks() + rank];
  }
  // Returns the position of a vertex on its compute lane.
  int place(VertexId v) const { return place_[v]; }

 private:
  // For every vertex, how far each compute lane is guaranteed to have come before it starts (vector clocks).
  void follow() {
    const int ranks = graph_.schedule().num_ranks();
    before_.assign(to_size(std::int64_t{graph_.size()} * ranks), 0);
    place_.assign(graph_.size(), 0);
    std::vector<int> next(to_size(ranks), 0);
    for (VertexId v = 0; v < graph_.size(); ++v) {
      int* const mine = before_.data() + to_size(std::int64_t{v} * ranks);
      for (const VertexId need : graph_.needs(v)) {
        const int* const theirs = before_.data() + to_size(std::int64_t{need} * ranks);
        for (int rank = 0; rank < ranks; ++rank) mine[rank] = std::max(mine[rank], theirs[rank]);
        const LaneId lane = graph_[need].lane;
        if (lane < ranks) mine[lane] = std::max(mine[lane], place_[need] + 1);
      }
      const LaneId lane = graph_[v].lane;
      if (lane < ranks) place_[v] = next[lane]++;
    }
  }

  const OpGraph& graph_;
  std::vector<VertexId> reader_;
  std::vector<int> before_;  // by vertex and rank
  std::vector<int> place_;
};

class RankPlanner {
 public:
  RankPlanner(const OpGraph& graph, const Transfers& transfers, int rank)
      : graph_(graph), schedule_(graph.schedule()), transfers_(transfers), rank_(rank) {
    plan_.rank = rank;
  }

  RankPlan run() {
    for (VertexId v = 0; v < graph_.size(); ++v) add(v);
    place_receives();
    place_outputs();
    place_gradients();
    place_blocks();
    return std::move(plan_);
  }

 private:
  void add(VertexId v) {
    const Vertex& vertex = graph_[v];
    switch (vertex.kind) {
      case VertexKind::recompute:
        if (vertex.lane == rank_) recompute_ = v;
        return;
      case VertexKind::compute:
      case VertexKind::joint:
        if (vertex.lane == rank_) add_op(v);
        return;
      case VertexKind::optimizer:
        if (vertex.lane == rank_) add_optimizer(v);
        return;
      case VertexKind::transfer:
        if (transfers_.sender(v) == rank_) add_send(v);
        if (transfers_.receiver(v) == rank_) {
          receive_of_[v] = static_cast<int>(plan_.receives.size());
          plan_.receives.push_back({v, transfers_.sender(v), kNone, graph_.transfer_bytes(vertex)});
        }
        return;
      case VertexKind::offload: return;  // runs have none
      case VertexKind::collective: return add_collective(v);
    }
  }

  OpPlan op_plan(const Vertex& op, VertexId v) {
    OpPlan plan{.op = op, .chunk = schedule_.chunk_of(rank_, op.stage)};
    plan.unit = schedule_.first_unit(op.microbatch) + op.slice;
    plan.weight_version = weight_version(schedule_, op.microbatch, rank_);
    for (const VertexId need : graph_.needs(v)) {
      const Vertex& transfer = graph_[need];
      if (transfer.kind != VertexKind::transfer || transfers_.receiver(need) != rank_) continue;
      const bool forward = op.op == OpKind::F;
      if ((transfer.op == OpKind::F) != forward || op.op == OpKind::W || transfer.microbatch != op.microbatch ||
          transfer.slice != op.slice || transfer.stage != op.stage + (forward ? -1 : 1)) {
        continue;
      }
      plan.receive = receive_of_.at(need);
    }
    return plan;
  }

  // Adds what `v` waits for apart from the order of the steps.
  void add_waits(VertexId v, PlannedStep& step) {
    for (const VertexId need : graph_.needs(v)) {
      const Vertex& vertex = graph_[need];
      if (vertex.kind == VertexKind::collective) {
        if (const auto found = collective_of_.find(need); found != collective_of_.end()) {
          step.waits_for.push_back(found->second);
        }
      } else if (vertex.kind == VertexKind::transfer && transfers_.sender(need) == rank_) {
        step.waits_for_sent.push_back(send_of_.at(need));
      }
    }
  }

  void add_op(VertexId v) {
    const Vertex& vertex = graph_[v];
    PlannedStep step{.kind = PlannedStep::Kind::op, .vertex = v};
    step.ops[0] = op_plan(vertex, v);
    if (vertex.kind == VertexKind::joint) {
      step.num_ops = 2;
      step.ops[1] = op_plan(graph_.joint_partner(vertex), v);
    }
    if (recompute_) {
      step.recomputes = true;
      step.recompute = *recompute_;
      add_waits(*recompute_, step);
      recompute_.reset();
    }
    add_waits(v, step);
    step_of_[v] = static_cast<int>(plan_.steps.size());
    plan_.steps.push_back(std::move(step));
  }

  void add_optimizer(VertexId v) {
    const Vertex& vertex = graph_[v];
    PlannedStep step{.kind = PlannedStep::Kind::optimizer, .vertex = v};
    step.chunk = schedule_.chunk_of(rank_, vertex.stage);
    step.step = vertex.microbatch;
    add_waits(v, step);
    plan_.steps.push_back(std::move(step));
  }

  void add_send(VertexId v) {
    send_of_[v] = static_cast<int>(plan_.sends.size());
    PlannedStep step{.kind = PlannedStep::Kind::send, .vertex = v};
    step.send = static_cast<int>(plan_.sends.size());
    plan_.sends.push_back({v, transfers_.receiver(v), kNone, graph_.transfer_bytes(graph_[v])});
    plan_.steps.push_back(std::move(step));
  }

  void add_collective(VertexId v) {
    const Collective collective = graph_.collective(graph_[v]);
    if (std::find(collective.ranks.begin(), collective.ranks.end(), rank_) == collective.ranks.end()) return;
    PlannedCollective planned{.vertex = v, .kind = collective.kind, .stage = collective.stage};
    planned.step = graph_[v].microbatch;
    planned.ranks.assign(collective.ranks.begin(), collective.ranks.end());
    for (const VertexId need : graph_.needs(v)) {
      if (graph_[need].lane != rank_) continue;
      planned.after = std::max(planned.after, need);
      planned.after_any = true;
    }
    collective_of_[v] = static_cast<int>(plan_.collectives.size());
    plan_.collectives.push_back(std::move(planned));
  }

  int new_buffer(std::int64_t bytes, bool receives) {
    plan_.buffer_bytes.push_back(bytes);
    plan_.buffer_receives.push_back(receives ? 1 : 0);
    return static_cast<int>(plan_.buffer_bytes.size()) - 1;
  }
  void grow(int buffer, std::int64_t bytes) {
    std::int64_t& held = plan_.buffer_bytes[buffer];
    held = std::max(held, bytes);
  }

  // Assigns buffers to the receives of each peer, such that the previous content has been read before the next message
  // is sent.
  void place_receives() {
    struct Buffer {
      int buffer = 0;
      int receive = 0;  // the last receive in it
    };
    std::map<int, std::vector<Buffer>> of_peer;
    for (int i = 0; i < std::ssize(plan_.receives); ++i) {
      PlannedMessage& receive = plan_.receives[i];
      auto& buffers = of_peer[receive.peer];
      const int ended = transfers_.ended(receive.vertex, rank_);
      const auto free = std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& buffer) {
        return transfers_.place(transfers_.reader(plan_.receives[buffer.receive].vertex)) < ended;
      });
      if (free == buffers.end()) {
        receive.buffer = new_buffer(receive.bytes, true);
        buffers.push_back({receive.buffer, i});
        plan_.first_posts.push_back(i);
        continue;
      }
      receive.buffer = free->buffer;
      grow(receive.buffer, receive.bytes);
      const VertexId reader = transfers_.reader(plan_.receives[free->receive].vertex);
      plan_.steps[step_of_.at(reader)].posts.push_back(i);
      free->receive = i;
    }
    for (PlannedStep& step : plan_.steps) {
      for (OpPlan& op : step.ops) {
        if (op.receive != kNone) op.input_buffer = plan_.receives[op.receive].buffer;
      }
    }
  }

  using ChunkUnit = std::pair<int, std::int64_t>;

  // Buffers of outputs while the steps of a rank are replayed in order.
  struct OutputBuffers {
    std::map<ChunkUnit, int> forward;  // that a stage of this rank will read
    std::map<ChunkUnit, int> backward;
    std::vector<int> idle;                           // of forward and backward
    std::map<int, std::vector<int>> of_peer;         // to send from, least recently sent first
    std::map<int, int> last_send;                    // by buffer of of_peer
    std::map<ChunkUnit, std::array<int, 2>> unsent;  // outputs of F and of B or I, until their send is listed
  };

  // Assigns buffers to the outputs of ops: one to send from, or one that a stage of the same rank reads.
  void place_outputs() {
    OutputBuffers buffers;
    for (PlannedStep& step : plan_.steps) {
      if (step.kind == PlannedStep::Kind::send) place_send(step, buffers);
      if (step.kind != PlannedStep::Kind::op) continue;
      for (int i = 0; i < step.num_ops; ++i) {
        if (step.ops[i].op.op != OpKind::W) place_output(step.ops[i], buffers);
      }
      // The ops of a joint block may run concurrently: neither writes its output over the other's input.
      for (int i = 0; i < step.num_ops; ++i) {
        const OpPlan& op = step.ops[i];
        if (op.op.op != OpKind::W && op.receive == kNone && op.input_buffer != kNone) {
          buffers.idle.push_back(op.input_buffer);
        }
      }
    }
  }

  void place_send(const PlannedStep& step, OutputBuffers& buffers) {
    const Vertex& transfer = graph_[step.vertex];
    const ChunkUnit key{schedule_.chunk_of(rank_, transfer.stage),
                        schedule_.first_unit(transfer.microbatch) + transfer.slice};
    PlannedMessage& send = plan_.sends[step.send];
    send.buffer = buffers.unsent.at(key)[transfer.op == OpKind::F ? 0 : 1];
    buffers.of_peer[send.peer].push_back(send.buffer);
    buffers.last_send[send.buffer] = step.send;
  }

  void place_output(OpPlan& op, OutputBuffers& buffers) {
    const bool ahead = op.op.op == OpKind::F;
    auto& handed = ahead ? buffers.forward : buffers.backward;
    if (op.receive == kNone) {
      if (const auto found = handed.find({op.chunk, op.unit}); found != handed.end()) {
        op.input_buffer = found->second;
        handed.erase(found);
      }
    }
    const int next = op.op.stage + (ahead ? 1 : -1);
    if (next >= 0 && next < schedule_.num_stages()) {
      const int peer = schedule_.rank_of(next, op.op.microbatch);
      if (peer == rank_) {
        op.output_buffer = take_idle(buffers.idle, output_bytes(op.op));
        handed[{schedule_.chunk_of(rank_, next), op.unit}] = op.output_buffer;
      } else {
        place_sent_output(op, buffers, peer);
      }
    }
  }

  void place_sent_output(OpPlan& op, OutputBuffers& buffers, int peer) {
    // With two buffers, reuse the one that was sent least recently.
    auto& sent = buffers.of_peer[peer];
    if (sent.size() < 2) {
      op.output_buffer = new_buffer(output_bytes(op.op), false);
    } else {
      op.output_buffer = sent.front();
      sent.erase(sent.begin());
      grow(op.output_buffer, output_bytes(op.op));
      op.busy_send = buffers.last_send.at(op.output_buffer);
    }
    const auto at = buffers.unsent.try_emplace({op.chunk, op.unit}, std::array<int, 2>{kNone, kNone}).first;
    at->second[op.op.op == OpKind::F ? 0 : 1] = op.output_buffer;
  }

  std::int64_t output_bytes(const Vertex& op) const {
    const SliceBytes& bytes = graph_.slice_bytes(op.stage, op.microbatch, op.slice);
    return op.op == OpKind::F ? bytes.transfer_forward : bytes.transfer_backward;
  }

  int take_idle(std::vector<int>& idle, std::int64_t bytes) {
    if (idle.empty()) return new_buffer(bytes, false);
    const int buffer = idle.back();
    idle.pop_back();
    grow(buffer, bytes);
    return buffer;
  }

  // Assigns gradient buffers: gradients of a step accumulate from its first backward until its optimizer step has read
  // them.
  void place_gradients() {
    const auto chunks = schedule_.stages_of(rank_).size();
    plan_.weight_versions.assign(chunks, num_weight_versions(schedule_, rank_));
    plan_.gradient_buffers.assign(chunks, 0);
    std::vector<std::set<int>> idle(chunks);
    std::map<std::pair<int, int>, int> open;  // chunk and step to buffer
    const auto step_of = [&](int microbatch) {
      return schedule_.weight_policy() == WeightPolicy::stashed ? microbatch
                                                                : microbatch / schedule_.num_microbatches();
    };
    std::map<std::pair<int, int>, int> all;
    for (PlannedStep& step : plan_.steps) {
      if (step.kind == PlannedStep::Kind::op) {
        for (int i = 0; i < step.num_ops; ++i) {
          OpPlan& op = step.ops[i];
          if (op.op.op == OpKind::F) continue;
          const std::pair<int, int> key{op.chunk, step_of(op.op.microbatch)};
          auto [at, added] = open.try_emplace(key, 0);
          if (added) {
            auto& free = idle[op.chunk];
            if (free.empty()) {
              at->second = plan_.gradient_buffers[op.chunk]++;
            } else {
              at->second = *free.begin();
              free.erase(free.begin());
            }
            all[key] = at->second;
          }
          op.gradient_buffer = at->second;
        }
      } else if (step.kind == PlannedStep::Kind::optimizer) {
        const auto found = open.find({step.chunk, step.step});
        step.gradient_buffer = found->second;
        idle[step.chunk].insert(found->second);
        open.erase(found);
      }
    }
    for (PlannedCollective& collective : plan_.collectives) {
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const auto found = all.find({static_cast<int>(chunk), collective.step});
        collective.gradient_buffers.push_back(found == all.end() ? kNone : found->second);
      }
    }
  }

  // Assigns the blocks of slices, with the lifetimes that SliceBytes documents.
  void place_blocks() {
    const std::int64_t units = schedule_.num_units();
    plan_.blocks.resize(schedule_.stages_of(rank_).size() * to_size(units));
    for (const PlannedStep& step : plan_.steps) {
      const bool ops = step.kind == PlannedStep::Kind::op;
      for (int i = 0; ops && i < step.num_ops; ++i) take(step.ops[i]);
      plan_.held_after_start.push_back(of_slices_.held() + of_keys_.held());
      for (int i = 0; ops && i < step.num_ops; ++i) give(step.ops[i]);
    }
    for (UnitBlocks& blocks : plan_.blocks) {
      blocks.keys_values += of_slices_.size();
      blocks.keys_values_gradient += of_slices_.size();
    }
    plan_.blocks_bytes = of_slices_.size() + of_keys_.size();
    const auto& held = plan_.held_after_start;
    plan_.most_held_bytes = held.empty() ? 0 : *std::max_element(held.begin(), held.end());
  }

  UnitBlocks& blocks_of(int chunk, std::int64_t unit) { return plan_.blocks[chunk * schedule_.num_units() + unit]; }
  const SliceBytes& bytes_of(const OpPlan& op) const {
    return graph_.slice_bytes(op.op.stage, op.op.microbatch, op.op.slice);
  }

  void take(const OpPlan& op) {
    UnitBlocks& blocks = blocks_of(op.chunk, op.unit);
    const SliceBytes& bytes = bytes_of(op);
    if (op.op.op == OpKind::F) {
      blocks.to_input_gradient = of_slices_.take(bytes.activations_to_input_gradient);
      blocks.to_weight_gradient = of_slices_.take(bytes.activations_to_weight_gradient);
      if (op.op.slice == 0) blocks.keys_values = of_keys_.take(bytes.keys_values);
    } else if (is_gradient(op.op.op)) {
      if (op.op.op == OpKind::I) blocks.output_gradients = of_slices_.take(bytes.gradients_to_weight_gradient);
      if (op.op.slice + 1 != schedule_.num_slices(op.op.microbatch)) return;
      blocks_of(op.chunk, op.unit - op.op.slice).keys_values_gradient =
          of_keys_.take(graph_.slice_bytes(op.op.stage, op.op.microbatch, 0).keys_values_gradient);
    }
  }

  void give(const OpPlan& op) {
    const UnitBlocks& blocks = blocks_of(op.chunk, op.unit);
    const SliceBytes& bytes = bytes_of(op);
    if (op.op.op == OpKind::F && schedule_.shape(op.op.microbatch).forward_only) return give_forward_only(op);
    if (is_gradient(op.op.op)) {
      of_slices_.give(blocks.to_input_gradient, bytes.activations_to_input_gradient);
      if (op.op.slice == 0) {
        of_keys_.give(blocks.keys_values, bytes.keys_values);
        of_keys_.give(blocks.keys_values_gradient, bytes.keys_values_gradient);
      }
    }
    if (op.op.op == OpKind::B || op.op.op == OpKind::W) {
      of_slices_.give(blocks.to_weight_gradient, bytes.activations_to_weight_gradient);
    }
    if (op.op.op == OpKind::W) of_slices_.give(blocks.output_gradients, bytes.gradients_to_weight_gradient);
  }

  // No backward follows: the last slice has read the keys and values of all.
  void give_forward_only(const OpPlan& op) {
    const UnitBlocks& blocks = blocks_of(op.chunk, op.unit);
    const SliceBytes& bytes = bytes_of(op);
    of_slices_.give(blocks.to_input_gradient, bytes.activations_to_input_gradient);
    of_slices_.give(blocks.to_weight_gradient, bytes.activations_to_weight_gradient);
    if (op.op.slice + 1 != schedule_.num_slices(op.op.microbatch)) return;
    of_keys_.give(blocks_of(op.chunk, op.unit - op.op.slice).keys_values,
                  graph_.slice_bytes(op.op.stage, op.op.microbatch, 0).keys_values);
  }

  const OpGraph& graph_;
  const Schedule& schedule_;
  const Transfers& transfers_;
  int rank_;
  RankPlan plan_;
  // Two parts, since blocks of slices would fill gaps that blocks of microbatches, which are larger, need again.
  Packing of_slices_;
  Packing of_keys_;
  std::optional<VertexId> recompute_;
  std::map<VertexId, int> receive_of_;
  std::map<VertexId, int> send_of_;
  std::map<VertexId, int> collective_of_;
  std::map<VertexId, int> step_of_;
};

}  // namespace

std::vector<RankPlan> plan_ranks(const OpGraph& graph) {
  const Transfers transfers(graph);
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < graph.schedule().num_ranks(); ++rank) {
    plans.push_back(RankPlanner(graph, transfers, rank).run());
  }
  return plans;
}

}  // namespace sluice::exec

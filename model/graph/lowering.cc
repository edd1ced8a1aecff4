#include "model/graph/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "model/errors.h"
#include "model/graph/append.h"
#include "model/graph/deadlock.h"
#include "model/graph/fill_bytes.h"
#include "model/graph/links.h"
#include "model/graph/lowering_check.h"
#include "model/graph/offload.h"
#include "model/graph/op_graph_data.h"
#include "model/graph/queue_waits.h"
#include "model/graph/vocabulary_passes.h"
#include "model/schedule/communication_check.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr VertexId kNone = ~VertexId{0};
constexpr LaneId kSameRank = Links::kSameRank;

bool is_gradient(OpKind kind) { return kind == OpKind::B || kind == OpKind::I; }

// Advances every rank's list as far as its needs allow and emits vertices. Emitting a vertex wakes the rank that waits
// for it, so that each op is examined about once; the order of emission is topological by construction.
class Lowering {
 public:
  Lowering(const Schedule& schedule, const LoweringOptions& options)
      : schedule_(schedule),
        options_(options),
        communicates_(schedule.has_communication()),
        data_(std::make_unique<OpGraph::Data>()) {
    check_options(schedule, options);
    for (std::vector<int>& stages : shared_weights(schedule, options)) shared_.push_back({std::move(stages)});
    if (communicates_) check_communication_order(schedule);
    data_->schedule = &schedule;
    fill_bytes(schedule, options.footprint, *data_);
    make_lanes();
    reserve();
  }

  std::unique_ptr<OpGraph::Data> run() {
    if (options_.buckets) rest_gathered_.assign(states_.size(), kNone);
    if (options_.overlap_param_gather && gathers_parameters()) {
      for (StageState& stage : states_) {
        if (has_action(stage, CommunicationKind::unshard)) continue;
        if (!options_.buckets) {
          stage.gathered = collective(CollectiveKind::parameter_gather, stage.stage, 0, {stage.rank}, {});
          continue;
        }
        stage.gathered = collective(CollectiveKind::parameter_gather, stage.stage, 0, {stage.rank}, {}, Buckets::one);
        rest_gathered(stage) =
            collective(CollectiveKind::parameter_gather, stage.stage, 0, {stage.rank}, {}, Buckets::rest);
      }
    }
    for (int rank = schedule_.num_ranks() - 1; rank >= 0; --rank) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const int rank = runnable_.back();
      runnable_.pop_back();
      const auto list = schedule_.ops(rank);
      while (emit_next(rank, list)) {
      }
    }
    std::vector<std::size_t> left(next_.begin(), next_.end());
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      if (left[rank] < schedule_.ops(rank).size()) {
        // The ops may be valid and only the sends too late.
        std::string cycle = deadlock_cycle(schedule_, left);
        if (cycle.empty() && communicates_) cycle = cycle_of_late_sends(schedule_);
        throw ScheduleError("deadlock, each waits for the next: " + cycle);
      }
    }
    if (!schedule_.forward_only()) finish_steps();
    return std::move(data_);
  }

 private:
  // Gradients and optimizer steps of one stage on one rank.
  struct StageState {
    int rank = 0;
    int stage = 0;
    VertexId gathered = kNone;                 // the gather of parameters that its next op needs
    int steps_done = 0;                        // optimizer steps emitted
    std::vector<std::int64_t> gradients_left;  // by step
    std::vector<VertexId> ready;               // by step: the vertex after which the step may run
  };

  struct SharedWeight {
    std::vector<int> stages;
    int steps = 0;  // of which the gradients are summed
  };

  int step_of(int microbatch) const {
    return schedule_.weight_policy() == WeightPolicy::stashed ? microbatch : microbatch / schedule_.num_microbatches();
  }
  bool flush() const { return schedule_.weight_policy() == WeightPolicy::flush; }

  void make_lanes() {
    const int ranks = schedule_.num_ranks();
    for (int rank = 0; rank < ranks; ++rank) data_->lanes.push_back({LaneKind::compute, rank, -1});
    for (int rank = 0; rank < ranks; ++rank) data_->lanes.push_back({LaneKind::collective, rank, -1});
    Links links = make_links(schedule_, 2 * ranks);
    data_->lanes.insert(data_->lanes.end(), links.lanes.begin(), links.lanes.end());
    forward_link_ = std::move(links.forward);
    backward_link_ = std::move(links.backward);
    last_on_lane_.assign(data_->lanes.size(), kNone);
    if (schedule_.vocabulary_barriers() > 0) vocabulary_ = std::make_unique<VocabularyPasses>(schedule_, links);
    const std::size_t own = kMostOwnNeeds + (vocabulary_ ? to_size(ranks) : 0);
    needs_.resize(own);
    if (!options_.blocking_transfers) return;
    links_out_.resize(to_size(ranks));
    for (LaneId lane = 2 * ranks; lane < std::ssize(data_->lanes); ++lane) {
      auto& links_out = links_out_[data_->lanes[lane].rank];
      links_out.push_back(lane);
      needs_.resize(std::max(needs_.size(), own + links_out.size()));
    }
    sent_since_op_.assign(data_->lanes.size(), kNone);
  }

  void reserve() {
    const auto ranks = to_size(schedule_.num_ranks());
    const auto cells = to_size(schedule_.num_units() * schedule_.num_stages());
    forward_.assign(cells, kNone);
    gradient_.assign(cells, kNone);
    if (communicates_) {
      sent_forward_.assign(cells, kNone);
      sent_gradient_.assign(cells, kNone);
      next_communication_.assign(ranks, 0);
    }
    next_.assign(ranks, 0);
    waiting_for_.assign(ranks, kNobody);
    std::int64_t transfers = vocabulary_ ? vocabulary_->num_transfers() : 0;
    if (forward_link_.size() > 1) {
      std::vector<std::int64_t> remote(to_size(schedule_.num_routes()), 0);
      for (std::size_t i = 0; i < forward_link_.size(); ++i) {
        remote[i / to_size(schedule_.num_stages())] += forward_link_[i] != kSameRank ? 2 : 0;
      }
      for (int mb = 0; mb < schedule_.total_microbatches(); ++mb) {
        transfers += remote[schedule_.route(mb)] * schedule_.num_slices(mb);
      }
    }
    const std::int64_t ops = schedule_.num_ops();
    const std::int64_t gradients = static_cast<std::int64_t>(cells);
    const std::int64_t steps = flush() ? 1 : step_of(schedule_.total_microbatches() - 1) + 1;
    const std::int64_t extra = (options_.recompute ? gradients : 0) + 4 * steps * std::ssize(stage_states());
    const std::int64_t vertices = ops + transfers + extra;
    if (vertices > std::int64_t{1} << 31) throw InputError(fmt::format("{} graph vertices: too many", vertices));
    data_->vertices.reserve(to_size(vertices));
    data_->offsets.reserve(to_size(vertices) + 1);
    data_->offsets.push_back(0);
    // Data edges of an F: at most two, of an I or B: three; each has one order edge. W and transfers have two edges.
    const int sliced = schedule_.sliced() ? 2 : 0;
    data_->targets.reserve(to_size((5 + sliced) * gradients + 2 * std::max<std::int64_t>(0, ops - 2 * gradients) +
                                   (options_.blocking_transfers ? 3 : 2) * transfers + 3 * extra));
    if (schedule_.has_joint_blocks()) data_->partners.reserve(to_size(ops / 4));
  }

  std::vector<StageState>& stage_states() {
    if (!states_.empty()) return states_;
    const int steps = step_of(schedule_.total_microbatches() - 1) + 1;
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      first_state_.push_back(states_.size());
      for (const int stage : schedule_.stages_of(rank)) {
        StageState state{.rank = rank, .stage = stage};
        state.gradients_left.assign(to_size(steps), 0);
        state.ready.assign(to_size(steps), kNone);
        states_.push_back(std::move(state));
      }
    }
    state_of_.assign(to_size(std::int64_t{schedule_.num_routes()} * schedule_.num_stages()), 0);
    for (int route = 0; route < schedule_.num_routes(); ++route) {
      for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
        const int rank = schedule_.routes()[route][stage];
        state_of_[route * schedule_.num_stages() + stage] =
            first_state_[rank] + to_size(schedule_.chunk_of(rank, stage));
      }
    }
    for (int mb = 0; mb < schedule_.total_microbatches(); ++mb) {
      const std::int64_t slices = schedule_.shape(mb).forward_only ? 0 : schedule_.num_slices(mb);
      for (int stage = schedule_.frozen_stages(); stage < schedule_.num_stages(); ++stage) {
        state(stage, mb).gradients_left[step_of(mb)] += slices;
      }
    }
    for (auto& of : states_) of.gradients_left[0] += schedule_.has_vocabulary(of.stage) ? schedule_.num_units() : 0;
    return states_;
  }

  StageState& state(int stage, int microbatch) {
    return states_[state_of_[schedule_.route(microbatch) * schedule_.num_stages() + stage]];
  }

  // Where the vertices of an op are, and the links of its stage.
  struct Place {
    std::size_t cell = 0;
    std::size_t link = 0;
  };
  Place place(const Op& op) const {
    return {to_size(op.stage * schedule_.num_units() + schedule_.first_unit(op.microbatch) + op.slice),
            to_size(schedule_.route(op.microbatch) * schedule_.num_stages() + op.stage)};
  }

  // --- needs ------------------------------------------------------------------------------------------------

  // The vertex that passes the result of `op_vertex` (its forward or its gradient) to a neighboring stage.
  VertexId message(VertexId op_vertex, bool forward, LaneId link) const {
    if (link == kSameRank) return op_vertex;
    const VertexId first = op_vertex + 1;
    if (data_->vertices[op_vertex].kind != VertexKind::joint) return first;
    return (data_->vertices[first].op == OpKind::F) == forward ? first : first + 1;
  }

  // Adds a need, or records the missing one in blocked_on_.
  bool need_op(bool forward, std::size_t where, LaneId link) {
    const bool sent = communicates_ && link != kSameRank;
    const auto& made = sent ? (forward ? sent_forward_ : sent_gradient_) : (forward ? forward_ : gradient_);
    const VertexId vertex = made[where];
    if (vertex == kNone) {
      blocked_on_ = 2 * where + (forward ? 0 : 1);
      return false;
    }
    needs_[num_needs_++] = sent ? vertex : message(vertex, forward, link);
    return true;
  }

  [[gnu::always_inline]] bool collect_needs(const Op& op, const Place& place) {
    const std::size_t here = place.cell;
    const auto units = to_size(schedule_.num_units());
    const int stages = schedule_.num_stages();
    if (op.kind == OpKind::F) {
      return (op.stage == 0 || need_op(true, here - units, forward_link_[place.link - 1])) &&
             (op.slice == 0 || need_op(true, here - 1, kSameRank));
    }
    if (op.kind == OpKind::W) return need_op(false, here, kSameRank);
    if (op.kind > OpKind::W) [[unlikely]]
      return need_passes(op);
    return need_op(true, here, kSameRank) &&
           (op.stage + 1 != stages ? need_op(false, here + units, backward_link_[place.link + 1])
                                   : vocabulary_ == nullptr || need_passes(op)) &&
           (op.slice + 1 == schedule_.num_slices(op.microbatch) || need_op(false, here + 1, kSameRank));
  }

  [[gnu::noinline]] bool need_passes(const Op& op) {
    blocked_on_ = kPasses;
    return vocabulary_->collect(op, schedule_.rank_of(op.stage, op.microbatch), needs_, num_needs_);
  }

  // --- emission ---------------------------------------------------------------------------------------------

  [[gnu::flatten]] VertexId emit(const Vertex& vertex) {
    const auto id = static_cast<VertexId>(data_->offsets.size() - 1);
    append(data_->vertices, vertex);
    for (int i = 0; i < num_needs_; ++i) append(data_->targets, needs_[i]);
    VertexId& last = last_on_lane_[vertex.lane];
    if (last != kNone) append(data_->targets, last);
    last = id;
    append(data_->offsets, static_cast<std::uint32_t>(data_->targets.size()));
    return id;
  }

  bool gathers_parameters() const { return options_.gather_parameters && options_.data_parallel > 1; }

  VertexId& rest_gathered(const StageState& stage) { return rest_gathered_[to_size(&stage - states_.data())]; }

  // With overlapped gathers: the first op of a stage after the gather needs its parameters.
  void wait_for_parameters(const Op& op) {
    if (op.kind == OpKind::W || !options_.overlap_param_gather) return;
    StageState& stage = state(op.stage, op.microbatch);
    if (stage.gathered != kNone) needs_[num_needs_++] = stage.gathered;
    stage.gathered = kNone;
    if (options_.buckets) std::swap(stage.gathered, rest_gathered(stage));
  }

  // With blocking transfers: adds the last transfer on each of the rank's links since its last op.
  void wait_for_sends(int rank) {
    for (const LaneId link : links_out_[rank]) {
      VertexId& sent = sent_since_op_[link];
      if (sent != kNone) needs_[num_needs_++] = sent;
      sent = kNone;
    }
  }

  VertexId emit_after(const Vertex& vertex, VertexId need) {
    needs_[0] = need;
    num_needs_ = need == kNone ? 0 : 1;
    return emit(vertex);
  }

  static Vertex vertex_of(const Op& op, VertexKind kind, LaneId lane) {
    return {
        .microbatch = op.microbatch, .stage = op.stage, .slice = op.slice, .op = op.kind, .kind = kind, .lane = lane};
  }

  // Emits the next op of `rank`'s list, or records what it waits for. Returns false if blocked or at the end.
  bool emit_next(int rank, std::span<const Op> list) {
    const std::size_t position = next_[rank];
    if (communicates_) send_what_stands_before(rank, position);
    if (position == list.size()) return false;
    const Op& op = list[position];
    const Op* partner = op.joined ? &list[position + 1] : nullptr;
    const Place at = place(op);
    const Place partner_at = partner == nullptr ? Place{} : place(*partner);
    num_needs_ = 0;
    if (!collect_needs(op, at) || (partner != nullptr && !collect_needs(*partner, partner_at))) {
      waiting_for_[rank] = blocked_on_;
      return false;
    }
    if (!flush()) {
      take_steps_before(op);
      if (partner != nullptr) take_steps_before(*partner);
    }
    wait_for_parameters(op);
    if (partner != nullptr) wait_for_parameters(*partner);
    if (options_.blocking_transfers) wait_for_sends(rank);
    if (options_.recompute && (is_gradient(op.kind) || partner != nullptr)) {
      // As in Megatron-LM, recomputation starts when the gradient has arrived. It has the needs of the op.
      const Op& gradient = is_gradient(op.kind) ? op : *partner;
      const VertexId recompute = emit(vertex_of(gradient, VertexKind::recompute, rank));
      needs_[num_needs_++] = recompute;
    }
    Vertex vertex = vertex_of(op, partner == nullptr ? VertexKind::compute : VertexKind::joint, rank);
    if (partner != nullptr) {
      vertex.extra = static_cast<std::uint32_t>(data_->partners.size());
      data_->partners.push_back(vertex_of(*partner, VertexKind::joint, rank));
    }
    const VertexId id = emit(vertex);
    next_[rank] = position + (partner == nullptr ? 1 : 2);
    hand_over(op, at, id);
    if (partner != nullptr) hand_over(*partner, partner_at, id);
    return true;
  }

  // Records `op`, sends its result, wakes the rank that waits for it, and counts its gradient.
  void hand_over(const Op& op, const Place& place, VertexId id) {
    if (op.kind == OpKind::W) return count_gradient(op, id);
    if (op.kind > OpKind::W) [[unlikely]]
      return pass_on(op, id);
    const bool forward = op.kind == OpKind::F;
    (forward ? forward_ : gradient_)[place.cell] = id;
    const int neighbor = op.stage + (forward ? 1 : -1);
    if (neighbor >= (forward ? 0 : schedule_.frozen_stages()) && neighbor < schedule_.num_stages()) {
      const LaneId link = (forward ? forward_link_ : backward_link_)[place.link];
      if (link != kSameRank && !communicates_) send(op, place, id, link);
    } else if (forward && vocabulary_ != nullptr) {
      pass_on(op, id);
    }
    if (op.kind == OpKind::B) count_gradient(op, id);
  }

  // Emits the transfers of a vocabulary pass, or of the last forward, and wakes the ranks that wait for one.
  [[gnu::noinline]] void pass_on(const Op& op, VertexId id) {
    if (op.kind == OpKind::T) count_gradient(op, id);
    const auto emit_transfer = [this](const Vertex& vertex, std::span<const VertexId> needs) {
      num_needs_ = static_cast<int>(std::copy(needs.begin(), needs.end(), needs_.begin()) - needs_.begin());
      return emit(vertex);
    };
    if (!vocabulary_->hand_over(op, data_->vertices[id].lane, id, emit_transfer)) return;
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      if (waiting_for_[rank] == kPasses) runnable_.push_back(rank);
    }
    std::replace(waiting_for_.begin(), waiting_for_.end(), kPasses, kNobody);
  }

  // Emits the transfer of the result of `op`, vertex `id`, and wakes the rank that waits for it.
  VertexId send(const Op& op, const Place& place, VertexId id, LaneId link) {
    const VertexId transfer = emit_after(vertex_of(op, VertexKind::transfer, link), id);
    const int peer = data_->lanes[link].peer;
    if (options_.blocking_transfers) sent_since_op_[link] = transfer;
    if (waiting_for_[peer] == 2 * place.cell + (op.kind == OpKind::F ? 0 : 1)) {
      waiting_for_[peer] = kNobody;
      runnable_.push_back(peer);
    }
    return transfer;
  }

  // Emits the sends that the schedule has before the op at `position`, in its order. Receives need no vertex: arrived
  // messages wait in a buffer.
  void send_what_stands_before(int rank, std::size_t position) {
    const auto list = schedule_.communication(rank);
    for (std::size_t& next = next_communication_[rank]; next < list.size(); ++next) {
      const Communication& c = list[next];
      if (c.before > position) return;
      if (options_.sharded_actions) take_action(rank, next);
      if (!is_send(c.kind)) continue;
      const bool forward = of_forward(c.kind);
      Op op{.microbatch = c.microbatch, .stage = c.stage, .slice = c.slice, .kind = OpKind::F};
      const Place at = place(op);
      const VertexId made = (forward ? forward_ : gradient_)[at.cell];
      if (!forward) {
        const Vertex& vertex = data_->vertices[made];
        const bool second = vertex.kind == VertexKind::joint && vertex.op == OpKind::F;
        op.kind = second ? data_->partners[vertex.extra].op : vertex.op;
      }
      // Everything between the op and its send comes first.
      (forward ? sent_forward_ : sent_gradient_)[at.cell] =
          send(op, at, last_on_lane_[rank], (forward ? forward_link_ : backward_link_)[at.link]);
    }
  }

  // Whether the schedule has such an action on the parameters or gradients of a stage.
  bool has_action(const StageState& stage, CommunicationKind kind) const {
    if (!options_.sharded_actions || !communicates_) return false;
    const auto list = schedule_.communication(stage.rank);
    return std::any_of(list.begin(), list.end(),
                       [&](const Communication& c) { return c.kind == kind && c.stage == stage.stage; });
  }

  // Emits the gather or reduction of an UNSHARD or REDUCE_GRAD, after the op before it.
  void take_action(int rank, std::size_t index) {
    const Communication& c = schedule_.communication(rank)[index];
    if (options_.data_parallel <= 1) return;
    const bool gathers = c.kind == CommunicationKind::unshard;
    if (!gathers && c.kind != CommunicationKind::reduce_gradients) return;
    StageState& stage = states_[first_state_[rank] + to_size(schedule_.chunk_of(rank, c.stage))];
    std::vector<VertexId> after;
    if (last_on_lane_[rank] != kNone) after.push_back(last_on_lane_[rank]);
    if (gathers) {
      stage.gathered = collective(CollectiveKind::parameter_gather, c.stage, 0, {rank}, after);
      return;
    }
    if (stage.gradients_left[0] > 0) {
      throw ScheduleError(fmt::format("{}: {}: precedes the last backward of its stage",
                                      schedule_.communication_place(rank, index), to_string(c, false)));
    }
    stage.ready[0] = collective(CollectiveKind::gradient_reduce, c.stage, 0, {rank}, after);
  }

  // --- gradients and steps ----------------------------------------------------------------------------------

  void count_gradient(const Op& op, VertexId id) {
    StageState& stage = state(op.stage, op.microbatch);
    const int step = step_of(op.microbatch);
    if (--stage.gradients_left[step] > 0) {
      if (options_.reduce_runs && flush() && ends_run(stage)) reduce_after(stage, step, id);
      return;
    }
    stage.ready[step] = id;
    StageState* const head = head_of(stage);
    const bool waits = head != nullptr && head->ready[step] == kNone;
    StageState* const embedding = embedding_of(stage);
    const bool ends_wait = embedding != nullptr && embedding->ready[step] != kNone;
    if (ends_wait) embedding->ready[step] = id;
    if (flush() && !options_.overlap_grad_reduce) return;  // reduced at the end of the rank's list
    if (!waits) reduce(stage, step);
    if (ends_wait) reduce(*embedding, step);
  }

  // The stage of the same rank whose head adds to the gradient of the embedding that `stage` has, and vice versa; null
  // if there is none.
  StageState* head_of(const StageState& stage) {
    return stage.stage == schedule_.encoder_stages() ? sharing_with(stage, schedule_.num_stages() - 1) : nullptr;
  }
  StageState* embedding_of(const StageState& stage) {
    return stage.stage + 1 == schedule_.num_stages() ? sharing_with(stage, schedule_.encoder_stages()) : nullptr;
  }
  StageState* sharing_with(const StageState& stage, int other) {
    if (!options_.tied_embedding || other == stage.stage) return nullptr;
    const auto held = schedule_.stages_of(stage.rank);
    if (std::find(held.begin(), held.end(), other) == held.end()) return nullptr;
    return &states_[first_state_[stage.rank] + to_size(schedule_.chunk_of(stage.rank, other))];
  }

  void reduce(StageState& stage, int step) {
    if (options_.data_parallel <= 1 || !options_.reduce_gradients || stage.ready[step] == kNone) return;
    if (has_action(stage, CommunicationKind::reduce_gradients)) return;
    const VertexId gradients = stage.ready[step];
    const VertexId after = flush() && !options_.overlap_grad_reduce ? last_on_lane_[stage.rank] : gradients;
    if (options_.buckets && flush() && options_.overlap_grad_reduce) {
      stage.ready[step] = reduce_in_buckets(stage, step, after);
    } else {
      stage.ready[step] = reduce_after(stage, step, after);
    }
  }

  // Reduces all buckets but the last beside the op that completes them, `last`, and the last after it.
  VertexId reduce_in_buckets(const StageState& stage, int step, VertexId last) {
    const auto needs = [&](VertexId v) { return data_->targets.begin() + data_->offsets[v]; };
    const std::vector<VertexId> before(needs(last), needs(last + 1));
    collective(CollectiveKind::gradient_reduce, stage.stage, step, {stage.rank}, before, Buckets::rest);
    return collective(CollectiveKind::gradient_reduce, stage.stage, step, {stage.rank}, {last}, Buckets::one);
  }

  VertexId reduce_after(const StageState& stage, int step, VertexId after) {
    return collective(CollectiveKind::gradient_reduce, stage.stage, step, {stage.rank}, {after});
  }

  // Whether the rank's next op with a weight gradient is of another stage.
  bool ends_run(const StageState& stage) const {
    if (options_.data_parallel <= 1) return false;
    const auto rest = schedule_.ops(stage.rank).subspan(next_[stage.rank]);
    const auto next = std::find_if(rest.begin(), rest.end(),
                                   [](const Op& op) { return op.kind == OpKind::B || op.kind == OpKind::W; });
    return next != rest.end() && next->stage != stage.stage;
  }

  VertexId collective(CollectiveKind kind, int stage, int step, const std::vector<int>& ranks,
                      const std::vector<VertexId>& after, Buckets buckets = Buckets::all) {
    const std::int64_t bytes = collective_bytes(*data_, kind, stage, options_.footprint, buckets);
    const auto id = static_cast<VertexId>(data_->vertices.size());
    data_->vertices.push_back({.microbatch = step,
                               .stage = static_cast<std::int16_t>(stage),
                               .kind = VertexKind::collective,
                               .lane = static_cast<LaneId>(schedule_.num_ranks() + ranks.front()),
                               .extra = static_cast<std::uint32_t>(data_->collectives.size())});
    data_->collectives.push_back({kind, stage, bytes, buckets,
                                  static_cast<std::uint32_t>(data_->collective_ranks.size()),
                                  static_cast<std::uint32_t>(ranks.size())});
    data_->collective_ranks.insert(data_->collective_ranks.end(), ranks.begin(), ranks.end());
    const auto add_unique = [&](std::size_t from, VertexId need) {
      if (std::find(data_->targets.begin() + static_cast<std::ptrdiff_t>(from), data_->targets.end(), need) ==
          data_->targets.end()) {
        data_->targets.push_back(need);
      }
    };
    const std::size_t data = data_->targets.size();
    for (const VertexId need : after) add_unique(data, need);
    const std::size_t order = data_->targets.size();
    for (const int rank : ranks) {
      VertexId& last = last_on_lane_[schedule_.num_ranks() + rank];
      if (last != kNone) add_unique(order, last);
      last = id;
    }
    data_->offsets.push_back(static_cast<std::uint32_t>(data_->targets.size()));
    return id;
  }

  void optimizer_step(StageState& stage, int step) {
    const VertexId done = emit_after({.microbatch = step,
                                      .stage = static_cast<std::int16_t>(stage.stage),
                                      .kind = VertexKind::optimizer,
                                      .lane = static_cast<LaneId>(stage.rank)},
                                     stage.ready[step]);
    stage.steps_done = step + 1;
    if (gathers_parameters() && !options_.overlap_param_gather) {
      collective(CollectiveKind::parameter_gather, stage.stage, step, {stage.rank}, {done});
    }
  }

  // Without a flush: emits, before a forward, the steps that wrote the weights it reads. They are as late as possible,
  // so that the reduction of their gradients has time to overlap.
  void take_steps_before(const Op& op) {
    if (op.kind != OpKind::F) return;
    StageState& stage = state(op.stage, op.microbatch);
    const int version = weight_version(schedule_, op.microbatch, stage.rank);
    if (stage.steps_done >= version) return;
    const int saved = num_needs_;
    const auto saved_needs = needs_;
    while (stage.steps_done < version) {
      const int step = stage.steps_done;
      if (stage.ready[step] == kNone) {
        throw ScheduleError(
            fmt::format("deadlock: {} reads weight version {}, but the gradients of step {} come later on rank {}: its "
                        "backwards must precede it",
                        to_string(op, schedule_.sliced()), version, step, stage.rank));
      }
      tie(stage, step);
      optimizer_step(stage, step);
    }
    num_needs_ = saved;
    needs_ = saved_needs;
  }

  // All-reduces the gradients of weights that several stages share.
  void tie(StageState& stage, int step) {
    for (SharedWeight& weight : shared_) {
      const auto has = [&](int of) { return std::binary_search(weight.stages.begin(), weight.stages.end(), of); };
      if (!has(stage.stage) || weight.steps > step) continue;
      tie(weight, stage, step, has);
    }
  }
  template <typename Has>
  void tie(SharedWeight& weight, const StageState& stage, int step, const Has& has) {
    std::vector<int> ranks;
    std::vector<VertexId> after;
    bool apart = false;  // some rank has one of them without the others
    for (const StageState& other : states_) {
      if (!has(other.stage)) continue;
      if (other.ready[step] == kNone) {
        throw ScheduleError(
            fmt::format("deadlock: step {} of stage {} needs the embedding's gradient of stage {}, which comes later",
                        step, stage.stage, other.stage));
      }
      const auto held = schedule_.stages_of(other.rank);
      apart |= std::count_if(held.begin(), held.end(), has) != std::ssize(weight.stages);
      if (std::find(ranks.begin(), ranks.end(), other.rank) == ranks.end()) ranks.push_back(other.rank);
      after.push_back(other.ready[step]);
    }
    weight.steps = step + 1;
    // Ranks with all of them have one gradient; between replicas it is all-reduced with the rest of the stage.
    if (!apart) return;
    std::sort(ranks.begin(), ranks.end());
    const VertexId done = collective(CollectiveKind::tied_embedding, weight.stages.front(), step, ranks, after);
    for (StageState& other : states_) {
      if (has(other.stage)) other.ready[step] = done;
    }
  }

  // Emits what follows the lists: reductions that were not overlapped, all-reduces between replicas, norm, steps.
  void finish_steps() {
    if (!flush()) {
      for (StageState& stage : states_) {
        for (int step = stage.steps_done; step < std::ssize(stage.ready); ++step) {
          tie(stage, step);
          optimizer_step(stage, step);
        }
      }
      return;
    }
    if (!options_.overlap_grad_reduce) {
      for_each_trained([&](StageState& stage) { reduce(stage, 0); });
    }
    sum_replicas();
    for (StageState& stage : states_) tie(stage, 0);
    if (options_.global_norm) {
      std::vector<int> ranks;
      std::vector<VertexId> after;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) ranks.push_back(rank);
      for_each_trained([&](const StageState& stage) { after.push_back(stage.ready[0]); });
      const VertexId norm = collective(CollectiveKind::global_norm, -1, 0, ranks, after);
      for (StageState& stage : states_) stage.ready[0] = norm;
    }
    for_each_trained([&](StageState& stage) { optimizer_step(stage, 0); });
  }

  template <typename Run>
  void for_each_trained(Run&& run) {
    for (StageState& stage : states_) {
      if (stage.stage >= schedule_.frozen_stages()) run(stage);
    }
  }

  void sum_replicas() {
    if (schedule_.num_routes() < 2) return;
    for (int s = schedule_.frozen_stages(); s < schedule_.num_stages(); ++s) {
      std::vector<int> ranks;
      std::vector<VertexId> after;
      for (const StageState& stage : states_) {
        if (stage.stage != s) continue;
        ranks.push_back(stage.rank);
        if (stage.ready[0] != kNone) after.push_back(stage.ready[0]);  // some replica has microbatches
      }
      if (ranks.size() < 2) continue;
      const VertexId sum = collective(CollectiveKind::replica_reduce, s, 0, ranks, after);
      for (StageState& stage : states_) {
        if (stage.stage == s) stage.ready[0] = sum;
      }
    }
  }

  static constexpr std::size_t kNobody = ~std::size_t{0};
  static constexpr std::size_t kPasses = kNobody - 1;  // any vocabulary pass

  const Schedule& schedule_;
  const LoweringOptions& options_;
  bool communicates_;
  std::unique_ptr<OpGraph::Data> data_;

  std::unique_ptr<VocabularyPasses> vocabulary_;  // null without vocabulary passes
  std::vector<LaneId> forward_link_;              // by (route, stage): the link to the next stage
  std::vector<LaneId> backward_link_;             // the same for the previous stage
  std::vector<VertexId> last_on_lane_;
  std::vector<VertexId> forward_;                // by cell: the vertex of its F
  std::vector<VertexId> gradient_;               // the same for its B or I
  std::vector<VertexId> sent_forward_;           // by cell, for schedules with communication: the transfer
  std::vector<VertexId> sent_gradient_;          // the same for its gradient
  std::vector<std::size_t> next_communication_;  // by rank
  std::vector<std::vector<LaneId>> links_out_;   // by rank, for blocking transfers
  std::vector<VertexId> sent_since_op_;          // by lane, for blocking transfers
  std::vector<std::size_t> next_;                // by rank: position in its list
  std::vector<std::size_t> waiting_for_;
  std::vector<int> runnable_;

  // A joint block has two for its F, three for its B, one each for their parameters, and one recomputation.
  static constexpr std::size_t kMostOwnNeeds = 8;
  std::vector<VertexId> needs_;
  int num_needs_ = 0;
  std::size_t blocked_on_ = kNobody;

  std::vector<StageState> states_;       // by (rank, chunk)
  std::vector<VertexId> rest_gathered_;  // the same: the gather of the other buckets, which the second op needs
  std::vector<std::size_t> first_state_;
  std::vector<std::size_t> state_of_;  // by (route, stage)
  std::vector<SharedWeight> shared_;
};

}  // namespace

OpGraph lower(const Schedule& schedule, const LoweringOptions& options) {
  std::unique_ptr<OpGraph::Data> graph = Lowering(schedule, options).run();
  if (options.queues != nullptr) add_queue_waits(*graph, *options.queues);
  if (options.offload != nullptr) add_offload(*graph, *options.offload);
  return OpGraph(std::move(graph));
}

}  // namespace sluice::model

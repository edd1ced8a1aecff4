#include "model/timeline/held_tensors.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <tuple>

#include "model/schedule/schedule.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

struct TensorField {
  std::int64_t SliceBytes::*bytes;
  MemoryClass memory_class;
};
constexpr std::array<TensorField, 9> kHeldFields = {{
    {&SliceBytes::activations_to_input_gradient, MemoryClass::activations},
    {&SliceBytes::activations_to_weight_gradient, MemoryClass::activations},
    {&SliceBytes::gradients_to_weight_gradient, MemoryClass::activations},
    {&SliceBytes::kept, MemoryClass::activations},
    {&SliceBytes::keys_values, MemoryClass::keys_values},
    {&SliceBytes::keys_values_gradient, MemoryClass::keys_values},
    {&SliceBytes::forward_workspace, MemoryClass::buffers},
    {&SliceBytes::backward_workspace, MemoryClass::buffers},
    {&SliceBytes::vocabulary, MemoryClass::activations},
}};
enum HeldField : std::size_t {
  to_input,
  to_weight,
  gradients,
  batch,
  pairs,
  pair_gradients,
  forward_space,
  backward_space,
  passes
};
using Counts = std::array<std::int64_t, kHeldFields.size()>;

struct SliceKey {
  int stage;
  int shape;
  int slice;
  friend bool operator<(const SliceKey& a, const SliceKey& b) {
    return std::tie(a.stage, a.shape, a.slice) < std::tie(b.stage, b.shape, b.slice);
  }
};

// Counts the slices whose tensors are held after the ends of a rank's ops at `time`, and the starts before `until`.
class HeldSlices {
 public:
  HeldSlices(const OpGraph& graph, const Timeline& timeline, int rank, Duration time, Duration until)
      : schedule_(graph.schedule()), time_(time), until_(until) {
    const LaneId lane = graph.compute_lane(rank);
    for (VertexId v = 0; v < graph.size(); ++v) {
      const Vertex& vertex = graph[v];
      if (vertex.lane != lane) continue;
      if (vertex.kind != VertexKind::compute && vertex.kind != VertexKind::joint) continue;
      add(vertex, timeline.start[v], timeline.end[v]);
      if (vertex.kind == VertexKind::joint) add(graph.joint_partner(vertex), timeline.start[v], timeline.end[v]);
    }
  }
  const std::map<SliceKey, Counts>& counts() const { return counts_; }

 private:
  void add(const Vertex& op, Duration start, Duration end) {
    if (start >= until_) return;
    const bool ended = end <= time_ && end > start;
    const std::int64_t running = ended ? 0 : 1;
    Counts& held = counts_[{op.stage, schedule_.shape_index(op.microbatch), op.slice}];
    if (op.op == OpKind::F) {
      for (const std::size_t field : {to_input, to_weight, batch, pairs}) ++held[field];
      held[forward_space] += running;
      return;
    }
    if (of_vocabulary(op.op)) {
      if (op.op == OpKind::S) ++held[passes];
      if (op.op == OpKind::T && ended) --held[passes];
      return;
    }
    if (op.op != OpKind::W) input_gradient(op, held, ended);
    if (op.op == OpKind::I) ++held[gradients];
    if (!ended || op.op == OpKind::I) return;
    --held[to_weight];
    if (op.op == OpKind::W) --held[gradients];
  }

  void input_gradient(const Vertex& op, Counts& held, bool ended) {
    held[backward_space] += ended ? 0 : 1;
    const int slices = schedule_.num_slices(op.microbatch);
    const auto accumulators = [&](std::int64_t more) {
      for (int slice = 0; slice < slices; ++slice) {
        counts_[{op.stage, schedule_.shape_index(op.microbatch), slice}][pair_gradients] += more;
      }
    };
    if (op.slice + 1 == slices) accumulators(1);
    if (!ended) return;
    --held[to_input];
    --held[pairs];
    if (op.slice == 0) accumulators(-1);
  }

  const Schedule& schedule_;
  Duration time_;
  Duration until_;
  std::map<SliceKey, Counts> counts_;
};

class HeldList {
 public:
  void add(const HeldTensor& tensor) {
    if (tensor.bytes == 0) return;
    for (HeldTensor& known : tensors_) {
      const auto key = [](const HeldTensor& t) { return std::tie(t.memory_class, t.stage, t.name, t.formula); };
      if (key(known) != key(tensor)) continue;
      known.count += tensor.count;
      known.bytes += tensor.bytes;
      return;
    }
    tensors_.push_back(tensor);
  }

  void add_standing(const OpGraph& graph, const Footprint& footprint, int rank) {
    const Schedule& schedule = graph.schedule();
    std::int64_t scratch = 0;
    for (const int stage : schedule.stages_of(rank)) {
      const StageBytes& bytes = graph.stage_bytes(stage);
      const std::int64_t versions = num_weight_versions(schedule, rank);
      const auto whole = [&](MemoryClass memory_class, std::string_view name, std::int64_t count,
                             std::int64_t StageBytes::*field) {
        add({memory_class, stage, name, footprint.stage_formula(field), count, count * bytes.*field});
      };
      whole(MemoryClass::weights, "weights", versions, &StageBytes::weights);
      if (bytes.accumulated_gradients == 0) {
        whole(MemoryClass::gradients, "weight gradients", 1, &StageBytes::gradients);
      }
      whole(MemoryClass::optimizer, "optimizer states", 1, &StageBytes::optimizer);
      scratch = std::max(scratch, bytes.scratch);
    }
    add({MemoryClass::buffers, -1, "workspace: libraries, weight gradients, sharded units, deferred", "", 1, scratch});
  }

  std::vector<HeldTensor> take() {
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const HeldTensor& a, const HeldTensor& b) { return a.bytes > b.bytes; });
    return std::move(tensors_);
  }
  std::int64_t sum(MemoryClass memory_class) const {
    std::int64_t bytes = 0;
    for (const HeldTensor& tensor : tensors_) bytes += tensor.memory_class == memory_class ? tensor.bytes : 0;
    return bytes;
  }

 private:
  std::vector<HeldTensor> tensors_;
};

// Subtracts what is in host memory.
void add_offloaded(const OpGraph& graph, const Timeline& timeline, int rank, Duration time, HeldList& out) {
  OffloadBytes bytes;
  std::int64_t count = 0;
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind != VertexKind::offload || graph.rank_of(v) != rank) continue;
    const bool frees = graph[v].op == OpKind::F;
    if ((frees ? timeline.end[v] : timeline.start[v]) > time) continue;
    const int sign = frees ? 1 : -1;
    const OffloadBytes copied = graph.offload_bytes(graph[v]);
    count += sign;
    bytes.activations += sign * copied.activations;
    bytes.keys_values += sign * copied.keys_values;
  }
  out.add({MemoryClass::activations, -1, "offloaded to the host", "", count, -bytes.activations});
  out.add({MemoryClass::keys_values, -1, "offloaded to the host", "", count, -bytes.keys_values});
}

// Without what is received.
HeldList held_until(const OpGraph& graph, const Timeline& timeline, const Footprint& footprint, int rank, Duration time,
                    Duration until) {
  HeldList out;
  out.add_standing(graph, footprint, rank);
  std::vector<int> reduced;
  for (const GradientSpan& span : gradient_spans(graph, timeline)) {
    if (span.rank != rank || span.start > time) continue;
    if (span.end <= time) {
      if (std::find(reduced.begin(), reduced.end(), span.stage) != reduced.end()) continue;
      reduced.push_back(span.stage);
      out.add({MemoryClass::gradients, span.stage, "weight gradients, reduced",
               footprint.stage_formula(&StageBytes::gradients), 1, graph.stage_bytes(span.stage).gradients});
      continue;
    }
    out.add({MemoryClass::gradients, span.stage, "weight gradients, until they are reduced",
             footprint.stage_formula(&StageBytes::accumulated_gradients), 1,
             graph.stage_bytes(span.stage).accumulated_gradients});
  }
  const std::span<const MicrobatchShape> shapes = graph.schedule().shapes();
  const HeldSlices slices(graph, timeline, rank, time, until);
  for (const auto& [key, counts] : slices.counts()) {
    for (const SliceTensor& tensor : footprint.tensors(key.stage, shapes[to_size(key.shape)], key.slice)) {
      for (std::size_t field = 0; field < kHeldFields.size(); ++field) {
        if (kHeldFields[field].bytes != tensor.field || counts[field] == 0) continue;
        const std::int64_t count = counts[field] * tensor.count;
        out.add({kHeldFields[field].memory_class, key.stage, tensor.name, std::string(tensor.formula), count,
                 count * tensor.bytes});
      }
    }
  }
  add_offloaded(graph, timeline, rank, time, out);
  return out;
}

}  // namespace

std::vector<HeldTensor> held_at_peak(const OpGraph& graph, const Timeline& timeline, const Footprint& footprint,
                                     const RankMemory& memory, int rank) {
  const auto at_peak = [&](MemoryClass memory_class) { return memory.at_peak[static_cast<std::size_t>(memory_class)]; };
  // The peak is reached when an op starts, or when a transfer arrives just before.
  HeldList out = held_until(graph, timeline, footprint, rank, memory.peak_time, memory.peak_time + Duration{1});
  for (const MemoryClass memory_class : {MemoryClass::activations, MemoryClass::keys_values}) {
    if (out.sum(memory_class) == at_peak(memory_class)) continue;
    out = held_until(graph, timeline, footprint, rank, memory.peak_time, memory.peak_time);
    break;
  }
  const std::int64_t received = at_peak(MemoryClass::buffers) - out.sum(MemoryClass::buffers);
  out.add({MemoryClass::buffers, -1, "received, not yet read", "", 1, received});
  return out.take();
}

}  // namespace sluice::model

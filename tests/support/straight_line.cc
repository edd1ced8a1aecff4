#include "tests/support/straight_line.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "exec/run/op_outcome.h"
#include "model/to_size.h"

namespace sluice::test {
namespace {

// A zeroed and aligned buffer.
class Block {
 public:
  explicit Block(std::int64_t bytes = 0) : lines_(to_size(bytes) / kBufferAlignment + 1) {}
  std::byte* data() { return lines_.front().bytes.data(); }

 private:
  struct alignas(kBufferAlignment) Line {
    std::array<std::byte, kBufferAlignment> bytes{};
  };
  std::vector<Line> lines_;
};

class Step {
 public:
  Step(const RunPlan& plan, const TokenSource& tokens) : plan_(plan), schedule_(plan.schedule()), tokens_(tokens) {
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      for (const int stage : schedule_.stages_of(rank)) {
        for (int data = 0; data < plan.layout().data; ++data) {
          Held held{Block(at(stage).memory().weights), Block(at(stage).memory().gradients)};
          at(stage).initialise(held.weights.data(), plan.spec().seed);
          held_.emplace(std::tuple(data, rank, stage), std::move(held));
        }
      }
    }
  }

  Weights run() {
    const OpGraph& graph = plan_.graph();
    for (int data = 0; data < plan_.layout().data; ++data) {
      for (VertexId v = 0; v < graph.size(); ++v) {
        const Vertex& vertex = graph[v];
        if (vertex.kind != VertexKind::compute && vertex.kind != VertexKind::joint) continue;
        run_op(data, vertex);
        if (vertex.kind == VertexKind::joint) run_op(data, graph.joint_partner(vertex));
      }
    }
    sum_all();
    Weights all;
    for (auto& [key, held] : held_) {
      const Stage& stage = at(std::get<2>(key));
      Block moments(stage.memory().optimizer_state);
      stage.step(held.weights.data(), held.weights.data(), moments.data(), held.gradients.data(),
                 plan_.spec().optimizer);
      add_blocks(stage, held.weights.data(), all);
    }
    return all;
  }

 private:
  struct Held {
    Block weights;
    Block gradients;
  };
  struct Slice {
    Block to_input_gradient, to_weight_gradient, output_gradients;
    Block keys_values, keys_values_gradient;  // of all slices, in the first
    Block output, input_gradient;
  };
  using Where = std::tuple<int, int, int, int>;  // data, stage, microbatch, slice

  const Stage& at(int stage) const { return plan_.stage(0, stage); }
  Held& held(int data, int rank, int stage) { return held_.at({data, rank, stage}); }

  Slice& slice(int data, int stage, int microbatch, int i) {
    const auto [found, added] = slices_.try_emplace(Where{data, stage, microbatch, i});
    if (added) {
      const MicrobatchShape& shape = schedule_.shape(microbatch);
      const SliceMemory memory = at(stage).slice_memory(slice_shape(shape, i));
      SliceMemory all;
      if (i == 0) all = at(stage).slice_memory({.sequences = shape.sequences, .tokens = shape.tokens()});
      found->second = {Block(memory.to_input_gradient), Block(memory.to_weight_gradient),
                       Block(memory.output_gradients),  Block(all.keys_values),
                       Block(all.keys_values_gradient), Block(memory.boundary),
                       Block(memory.boundary)};
    }
    return found->second;
  }

  void run_op(int data, const Vertex& op) {
    const Stage& stage = at(op.stage);
    const int rank = schedule_.rank_of(op.stage, op.microbatch);
    const MicrobatchShape& shape = schedule_.shape(op.microbatch);
    Slice& own = slice(data, op.stage, op.microbatch, op.slice);
    Held& weights = held(data, rank, op.stage);
    SliceCall call;
    call.shape = slice_shape(shape, op.slice);
    Block scratch(stage.scratch_bytes(call.shape));
    call.scratch = scratch.data();
    call.weights = weights.weights.data();
    call.gradients = weights.gradients.data();
    if (stage.spec().head_is_embedding()) {
      Held& first = held(data, rank, 0);
      const std::int64_t offset = word_embedding_offset(at(0)) * plan_.element_bytes();
      call.embedding = first.weights.data() + offset;
      call.embedding_gradient = first.gradients.data() + offset;
    }
    call.to_input_gradient = own.to_input_gradient.data();
    call.to_weight_gradient = own.to_weight_gradient.data();
    call.output_gradients = own.output_gradients.data();
    Slice& first = slice(data, op.stage, op.microbatch, 0);
    call.keys_values = first.keys_values.data();
    call.keys_values_gradient = first.keys_values_gradient.data();
    call.sequence_tokens = shape.tokens();
    const int last = schedule_.num_stages() - 1;
    if (op.stage > 0) call.input = slice(data, op.stage - 1, op.microbatch, op.slice).output.data();
    if (op.stage < last) {
      call.output = own.output.data();
      call.output_gradient = slice(data, op.stage + 1, op.microbatch, op.slice).input_gradient.data();
    }
    if (op.stage > 0) call.input_gradient = own.input_gradient.data();
    std::vector<std::int32_t> tokens(to_size(call.shape.rows()));
    std::vector<std::int32_t> targets(tokens.size());
    tokens_.fill(0, plan_.first_sequence(op.microbatch, data), call.shape.sequences, call.shape.context,
                 call.shape.tokens, tokens, targets);
    call.tokens = tokens.data();
    call.targets = targets.data();
    call.loss_scale = 1 / plan_.tokens_per_batch();
    compute(stage, op.op, call);
  }

  // All-reduces `elements` elements at `offset` of all `gradients`, in their order.
  void sum(const std::vector<std::byte*>& gradients, std::int64_t elements) {
    plan_.element_bytes() == 8 ? sum_of<double>(gradients, elements) : sum_of<float>(gradients, elements);
  }
  template <typename Scalar>
  static void sum_of(const std::vector<std::byte*>& gradients, std::int64_t elements) {
    for (std::int64_t i = 0; i < elements; ++i) {
      Scalar total = reinterpret_cast<Scalar*>(gradients[0])[i];
      for (std::size_t j = 1; j < gradients.size(); ++j) total += reinterpret_cast<Scalar*>(gradients[j])[i];
      for (std::byte* each : gradients) reinterpret_cast<Scalar*>(each)[i] = total;
    }
  }

  void sum_all() {
    const int replicas = plan_.layout().data;
    const auto elements = [&](int stage) { return at(stage).memory().gradients / plan_.element_bytes(); };
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      for (const int stage : schedule_.stages_of(rank)) {
        std::vector<std::byte*> all;
        for (int data = 0; data < replicas; ++data) all.push_back(held(data, rank, stage).gradients.data());
        sum(all, elements(stage));
      }
    }
    const int last = schedule_.num_stages() - 1;
    for (int data = 0; data < replicas; ++data) {
      for (int stage = 0; stage <= last; ++stage) {
        std::vector<std::byte*> all;
        for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
          const auto found = held_.find({data, rank, stage});
          if (found != held_.end()) all.push_back(found->second.gradients.data());
        }
        sum(all, elements(stage));
      }
      if (!at(last).spec().contents.tied_copy || last == 0) continue;
      std::vector<std::byte*> words;
      for (const int stage : {0, last}) {
        const int rank = schedule_.rank_of(stage, 0);
        words.push_back(held(data, rank, stage).gradients.data() +
                        word_embedding_offset(at(stage)) * plan_.element_bytes());
      }
      sum(words, word_embedding(at(0)).size());
    }
  }

  const RunPlan& plan_;
  const Schedule& schedule_;
  const TokenSource& tokens_;
  std::map<std::tuple<int, int, int>, Held> held_;  // data, rank, stage
  std::map<Where, Slice> slices_;
};

}  // namespace

Weights straight_line(const RunPlan& plan, const TokenSource& tokens) { return Step(plan, tokens).run(); }

}  // namespace sluice::test

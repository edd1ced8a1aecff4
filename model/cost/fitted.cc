#include "model/cost/fitted.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::model {

FittedCost::FittedCost(CostTable table, Training training, std::vector<StageContents> stages,
                       std::unique_ptr<const CostModel> rest, ParameterCounts parameters)
    : table_(std::move(table)),
      training_(std::move(training)),
      stages_(std::move(stages)),
      rest_(std::move(rest)),
      parameters_(std::move(parameters)),
      weave_(training_.ep > 1 && training_.weave != kSearchedWeave ? find_weave(training_.weave) : Weave{}) {
  if (table_.tensor_parallel != training_.tp) {
    throw InputError(fmt::format("{}: /tensor_parallel: times are for tensor-parallel size {}, got {}", table_.source,
                                 table_.tensor_parallel, training_.tp));
  }
  if (training_.cp > 1) {
    throw InputError(
        fmt::format("{}: times are without context parallelism (--cp), got size {}", table_.source, training_.cp));
  }
  check_parts();
  if (table_.links.size() > 1 && rest_ == nullptr) {
    throw InputError(
        fmt::format("{}: /links: without a cluster: expected one link, got {}", table_.source, table_.links.size()));
  }
}

void FittedCost::check_parts() const {
  const auto need = [&](PartKind part, bool needed, int stage) {
    if (!needed || table_.curve(part, OpKind::F)) return;
    throw InputError(fmt::format("{}: /parts/{}: required key is missing (stage {} has this part)", table_.source,
                                 to_string(part), stage));
  };
  for (int stage = 0; const StageContents& held : stages_) {
    need(PartKind::embedding, held.embedding, stage);
    need(PartKind::layer, held.layers > held.expert_layers, stage);
    if (held.expert_layers > 0) {
      if (!table_.curve(PartKind::experts, OpKind::F)) {
        throw InputError(fmt::format("{}: times are of dense layers, but stage {} has {} layers with experts",
                                     table_.source, stage, held.expert_layers));
      }
      for (const PartKind part : kExpertLayerParts) need(part, true, stage);
      if (table_.expert_parallel != training_.ep) {
        throw InputError(fmt::format("{}: /expert_parallel: times are for expert-parallel size {}, got {}",
                                     table_.source, table_.expert_parallel, training_.ep));
      }
      if (training_.etp > 1) {
        throw InputError(fmt::format("{}: times are without expert-tensor parallelism (--etp), got size {}",
                                     table_.source, training_.etp));
      }
    }
    if (held.mtp_layers > 0) {
      throw InputError(
          fmt::format("{}: times are without multi-token prediction, but stage {} has it", table_.source, stage));
    }
    need(PartKind::head, held.head, stage);
    ++stage;
  }
}

double FittedCost::part_s(PartKind part, OpKind kind, const MicrobatchShape& shape, int slice) const {
  const SliceShape of = slice_shape(shape, slice);
  if (const auto& curve = table_.curve(part, kind)) return curve->at(of);
  const auto& input = table_.curve(part, OpKind::I);
  const auto& weight = table_.curve(part, OpKind::W);
  if (kind == OpKind::B && input && weight) return input->at(of) + weight->at(of);
  throw InputError(fmt::format("{}: /parts/{}/{}: required key is missing (the schedule splits the backward pass)",
                               table_.source, to_string(part), letter(kind)));
}

double FittedCost::compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const {
  if (shape.sequences != table_.sequences) {
    throw InputError(fmt::format("{}: /sequences: times are for microbatches of {} sequences, got {}", table_.source,
                                 table_.sequences, shape.sequences));
  }
  const StageContents& held = stages_[stage];
  double seconds = 0;
  const int dense = held.layers - held.expert_layers;
  if (dense > 0) seconds += dense * part_s(PartKind::layer, kind, shape, slice);
  if (held.expert_layers > 0) {
    double layer = 0;
    for (const auto& pass : layer_times(LayerKind::experts, kind, shape, slice).seconds) {
      layer = std::accumulate(pass.begin(), pass.end(), layer);
    }
    seconds += held.expert_layers * layer;
  }
  if (held.embedding) seconds += part_s(PartKind::embedding, kind, shape, slice);
  if (held.head) seconds += part_s(PartKind::head, kind, shape, slice);
  if (table_.curve(PartKind::stage, OpKind::F)) seconds += part_s(PartKind::stage, kind, shape, slice);
  return seconds;
}

LayerTimes FittedCost::layer_times(LayerKind layer, OpKind kind, const MicrobatchShape& shape, int slice) const {
  LayerTimes times;
  const bool split = table_.curve(PartKind::layer, OpKind::I) && table_.curve(PartKind::layer, OpKind::W);
  if (layer == LayerKind::dense && kind == OpKind::B && !split) {
    times.of(OpKind::B, LayerPart::attention) = part_s(PartKind::layer, OpKind::B, shape, slice);
    return times;
  }
  for (const OpKind pass : {OpKind::F, OpKind::I, OpKind::W}) {
    if (pass != kind && (kind != OpKind::B || pass == OpKind::F)) continue;
    if (layer == LayerKind::dense) {
      times.of(pass, LayerPart::attention) = part_s(PartKind::layer, pass, shape, slice);
      continue;
    }
    for (const LayerPart part : {LayerPart::attention, LayerPart::dispatch, LayerPart::experts, LayerPart::combine}) {
      if (pass == OpKind::W && communicates(part)) continue;
      times.of(pass, part) = part_s(part_kind(part), pass, shape, slice);
    }
  }
  return times;
}

FittedCost::LayersOfOp FittedCost::layers_of(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const {
  const StageContents& held = stages_[stage];
  LayersOfOp op;
  for (const auto& [layer, count] : held.by_kind()) {
    if (count > 0) op.layers.insert(op.layers.end(), to_size(count), layer_times(layer, kind, shape, slice));
  }
  if (kind != OpKind::F) std::reverse(op.layers.begin(), op.layers.end());
  const auto part = [&](PartKind of) { return part_s(of, kind, shape, slice); };
  if (table_.curve(PartKind::stage, OpKind::F)) op.before_s += part(PartKind::stage);
  if (held.embedding) (kind == OpKind::F ? op.before_s : op.after_s) += part(PartKind::embedding);
  if (held.head) (kind == OpKind::F ? op.after_s : op.before_s) += part(PartKind::head);
  return op;
}

bool FittedCost::weaves(int forward_stage, int backward_stage) const {
  return training_.ep > 1 && training_.joint_overlap != Training::JointOverlap::none &&
         training_.recompute != Training::Recompute::full &&
         (has_experts(forward_stage) || has_experts(backward_stage));
}

double FittedCost::joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                           int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const {
  const double apart = CostModel::joint_s(forward_stage, forward_shape, forward_slice, backward, backward_stage,
                                          backward_shape, backward_slice);
  if (!weaves(forward_stage, backward_stage)) return apart;
  return woven_joint(forward_stage, forward_shape, forward_slice, backward, backward_stage, backward_shape,
                     backward_slice)
      .seconds;
}

WovenBlock FittedCost::woven_op(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const {
  if (!has_experts(stage)) return {};
  const LayersOfOp op = layers_of(kind, stage, shape, slice);
  const std::vector<LayerTimes> none;
  const bool forward = kind == OpKind::F;
  return with_compute_around(weave_block(serial_weave(), forward ? op.layers : none, forward ? none : op.layers),
                             op.before_s, op.after_s);
}

WovenBlock FittedCost::woven_joint(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice,
                                   OpKind backward, int backward_stage, const MicrobatchShape& backward_shape,
                                   int backward_slice) const {
  if (!has_experts(forward_stage) && !has_experts(backward_stage)) return {};
  const LayersOfOp f = layers_of(OpKind::F, forward_stage, forward_shape, forward_slice);
  const LayersOfOp b = layers_of(backward, backward_stage, backward_shape, backward_slice);
  const bool apart = !weaves(forward_stage, backward_stage);
  const Weave& weave = apart ? serial_weave() : weave_.order.empty() ? fastest_weave(f.layers, b.layers) : weave_;
  return with_compute_around(weave_block(weave, f.layers, b.layers), f.before_s + b.before_s, f.after_s + b.after_s);
}

double FittedCost::recompute_s(int stage, const MicrobatchShape& shape, int slice) const {
  const StageContents& held = stages_[stage];
  if (training_.recompute != Training::Recompute::full) return 0;
  double seconds = 0;
  const int dense = held.layers - held.expert_layers;
  if (dense > 0) {
    const PartKind part = table_.curve(PartKind::recompute, OpKind::F) ? PartKind::recompute : PartKind::layer;
    seconds += dense * part_s(part, OpKind::F, shape, slice);
  }
  for (const PartKind part : kExpertLayerParts) {
    if (held.expert_layers > 0) seconds += held.expert_layers * part_s(part, OpKind::F, shape, slice);
  }
  return seconds;
}

TransferTime FittedCost::transfer(int from, int to, std::int64_t bytes) const {
  if (from == to) return {};
  if (table_.links.size() == 1) {
    const LinkTime& link = table_.links.front();
    return {.occupied_s = static_cast<double>(bytes) / link.bandwidth_bytes_per_s, .latency_s = link.latency_s};
  }
  return rest_ ? rest_->transfer(from, to, bytes) : TransferTime{};
}

LinkSharing FittedCost::sharing(std::span<const LinkEnds> links) const {
  return rest_ && table_.links.size() != 1 ? rest_->sharing(links) : LinkSharing{};
}

const SumTime* FittedCost::sum_over(int ranks) const {
  if (table_.sums.empty()) return nullptr;
  const auto found =
      std::find_if(table_.sums.begin(), table_.sums.end(), [ranks](const SumTime& sum) { return sum.ranks >= ranks; });
  return found == table_.sums.end() ? &table_.sums.back() : &*found;
}

double FittedCost::all_reduce_s(int ranks, double bytes) const {
  const SumTime* const sum = sum_over(ranks);
  return ranks > 1 ? sum->latency_s + bytes / sum->bandwidth_bytes_per_s : 0;
}

// Gradients of experts are reduced over the ranks that have the same experts.
double FittedCost::reduce_s(int stage, double bytes) const {
  if (parameters_.experts_of_stage.empty() || parameters_.experts_of_stage[to_size(stage)] == 0) {
    return all_reduce_s(training_.dp, bytes);
  }
  const double experts = bytes * static_cast<double>(parameters_.experts_of_stage[to_size(stage)]) /
                         static_cast<double>(parameters_.of_stage[to_size(stage)]);
  return all_reduce_s(training_.dp, bytes - experts) + all_reduce_s(training_.expert_data_ranks(), experts);
}

double FittedCost::collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const {
  if (kind == CollectiveKind::parameter_gather || table_.sums.empty()) {
    return rest_ ? rest_->collective_s(kind, stage, bytes) : 0;
  }
  if (kind == CollectiveKind::gradient_reduce) return reduce_s(stage, static_cast<double>(bytes));
  // With experts the norm is over all replicas, which hold different ones.
  const bool experts =
      std::any_of(stages_.begin(), stages_.end(), [](const StageContents& held) { return held.expert_layers > 0; });
  const int ranks =
      kind == CollectiveKind::global_norm ? training_.pp * training_.tp * (experts ? training_.dp : 1) : 2;
  double seconds = all_reduce_s(ranks, static_cast<double>(bytes));
  const auto& norm = table_.pass(PassKind::norm);
  if (kind == CollectiveKind::global_norm && norm) seconds += norm->at(static_cast<double>(parameters_.most_on_a_rank));
  return seconds;
}

double FittedCost::optimizer_s(int stage) const {
  const auto& pass = table_.pass(PassKind::optimizer);
  if (pass && !parameters_.of_stage.empty()) {
    return pass->at(static_cast<double>(parameters_.of_stage[stage]));
  }
  return rest_ ? rest_->optimizer_s(stage) : 0;
}

}  // namespace sluice::model

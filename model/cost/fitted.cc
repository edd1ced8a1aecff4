#include "model/cost/fitted.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/errors.h"

namespace sluice::model {

FittedCost::FittedCost(CostTable table, Training training, std::vector<StageContents> stages,
                       std::unique_ptr<const CostModel> rest, ParameterCounts parameters)
    : table_(std::move(table)),
      training_(std::move(training)),
      stages_(std::move(stages)),
      rest_(std::move(rest)),
      parameters_(std::move(parameters)) {
  if (table_.tensor_parallel != training_.tp) {
    throw InputError(fmt::format("{}: /tensor_parallel: times are for tensor-parallel size {}, got {}", table_.source,
                                 table_.tensor_parallel, training_.tp));
  }
  if (training_.cp > 1) {
    throw InputError(
        fmt::format("{}: times are without context parallelism, got size {}", table_.source, training_.cp));
  }
  const auto need = [&](PartKind part, bool needed, int stage) {
    if (!needed || table_.curve(part, OpKind::F)) return;
    throw InputError(fmt::format("{}: /parts/{}: required key is missing (stage {} has this part)", table_.source,
                                 to_string(part), stage));
  };
  for (int stage = 0; const StageContents& held : stages_) {
    need(PartKind::embedding, held.embedding, stage);
    need(PartKind::layer, held.layers > 0, stage);
    if (held.expert_layers > 0) {
      throw InputError(fmt::format("{}: times are of dense layers, but stage {} has {} layers with experts",
                                   table_.source, stage, held.expert_layers));
    }
    if (held.mtp_layers > 0) {
      throw InputError(
          fmt::format("{}: times are without multi-token prediction, but stage {} has it", table_.source, stage));
    }
    need(PartKind::head, held.head, stage);
    ++stage;
  }
  if (table_.links.size() > 1 && rest_ == nullptr) {
    throw InputError(
        fmt::format("{}: /links: without a cluster: expected one link, got {}", table_.source, table_.links.size()));
  }
}

double FittedCost::part_s(PartKind part, OpKind kind, const MicrobatchShape& shape, int slice) const {
  const std::int64_t tokens = shape.slice_lengths[slice];
  const std::int64_t context = shape.context(slice);
  if (const auto& curve = table_.curve(part, kind)) return curve->at(tokens, context);
  const auto& input = table_.curve(part, OpKind::I);
  const auto& weight = table_.curve(part, OpKind::W);
  if (kind == OpKind::B && input && weight) return input->at(tokens, context) + weight->at(tokens, context);
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
  if (held.layers > 0) seconds += held.layers * part_s(PartKind::layer, kind, shape, slice);
  if (held.embedding) seconds += part_s(PartKind::embedding, kind, shape, slice);
  if (held.head) seconds += part_s(PartKind::head, kind, shape, slice);
  if (table_.curve(PartKind::stage, OpKind::F)) seconds += part_s(PartKind::stage, kind, shape, slice);
  return seconds;
}

double FittedCost::recompute_s(int stage, const MicrobatchShape& shape, int slice) const {
  const int layers = stages_[stage].layers;
  if (training_.recompute != Training::Recompute::full || layers == 0) return 0;
  const PartKind part = table_.curve(PartKind::recompute, OpKind::F) ? PartKind::recompute : PartKind::layer;
  return layers * part_s(part, OpKind::F, shape, slice);
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

double FittedCost::collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const {
  const int ranks = kind == CollectiveKind::gradient_reduce ? training_.dp
                    : kind == CollectiveKind::global_norm   ? training_.pp * training_.tp
                                                            : 2;
  const SumTime* const sum = kind == CollectiveKind::parameter_gather ? nullptr : sum_over(ranks);
  if (sum == nullptr) return rest_ ? rest_->collective_s(kind, stage, bytes) : 0;
  double seconds = ranks > 1 ? sum->latency_s + static_cast<double>(bytes) / sum->bandwidth_bytes_per_s : 0;
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

#include "model/graph/lowering_check.h"

#include <algorithm>
#include <string>
#include <utility>

#include "model/errors.h"

namespace sluice::model {

void check_options(const Schedule& schedule, const LoweringOptions& options) {
  const bool flush = schedule.weight_policy() == WeightPolicy::flush;
  if (flush && schedule.num_batches() > 1) {
    throw InputError("a schedule with a flush has one batch");
  }
  if (!flush && options.global_norm) {
    throw InputError(schedule.family() + ": a global gradient norm needs a schedule with a flush");
  }
  if (!flush && options.overlap_param_gather) {
    throw InputError(
        schedule.family() +
        ": gathers of parameters before the first forward (overlap_param_gather, zero 3) need a schedule with "
        "a flush");
  }
  const bool shared = !shared_weights(schedule, options).empty();
  if (schedule.weight_policy() == WeightPolicy::stashed && shared && schedule.num_ranks() > 1) {
    throw InputError(schedule.family() +
                     ": steps after every backward, so embedding and head cannot share a weight across ranks");
  }
}

std::vector<std::vector<int>> shared_weights(const Schedule& schedule, const LoweringOptions& options) {
  std::vector<int> heads = options.loss_stages;
  if (heads.empty()) heads.push_back(schedule.num_stages() - 1);
  std::vector<int> embedding = options.mtp_stages;
  embedding.push_back(schedule.encoder_stages());
  if (options.tied_embedding) {
    embedding.insert(embedding.end(), heads.begin(), heads.end());
    heads.clear();
  }
  std::sort(embedding.begin(), embedding.end());
  embedding.erase(std::unique(embedding.begin(), embedding.end()), embedding.end());
  std::vector<std::vector<int>> out = {std::move(embedding), std::move(heads)};
  std::erase_if(out, [](const std::vector<int>& stages) { return stages.size() < 2; });
  return out;
}

}  // namespace sluice::model

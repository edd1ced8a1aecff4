#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"
#include "model/workload/training.h"

namespace sluice::model {

// Megatron-LM's --pipeline-model-parallel-layout: the layers of each virtual stage. Stages are separated by '|'; E is
// the embedding, t a transformer layer, m a layer of multi-token prediction, L the loss; "x*n" repeats one letter and
// "(...)*n" a group, such as "Et*3|(t*4|)*6t*3mL". Commas and blanks are ignored. Several stages may have m, and there
// may be one L for the main model and for each m, on several stages ("Et|t|m|m|LL|L", Megatron-LM#5318).
struct PipelineLayout {
  std::vector<int> layers;  // transformer layers of each stage
  int mtp_layers = 0;
  int mtp_stage = 0;                          // the first stage that has some of them
  std::vector<Predictions> predictions = {};  // by stage, if they or the losses are on several; otherwise empty

  friend bool operator==(const PipelineLayout&, const PipelineLayout&) = default;
};

// Throws InputError, with the position, for text that is not a layout, and, as in Megatron-LM, for an embedding outside
// the first stage, no loss on the last one, layers of multi-token prediction before transformer layers or after a loss,
// other numbers of losses, and more than kMaxStages stages.
PipelineLayout read_layout(std::string_view text);

// Returns the layout of stages with these numbers of layers, and `mtp_layers` layers of multi-token prediction on
// `mtp_stage` (kLastStage: the last), or `predictions` by stage.
std::string layout_of(std::span<const int> layers, int mtp_layers = 0, int mtp_stage = kLastStage,
                      std::span<const Predictions> predictions = {});

}  // namespace sluice::model

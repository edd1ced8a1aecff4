#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

// Megatron-LM's --pipeline-model-parallel-layout: the layers of each virtual stage. Stages are separated by '|'; E is
// the embedding, t a transformer layer, L the loss; "x*n" repeats one letter and "(...)*n" a group, such as
// "Et*3|(t*4|)*6t*3L". Commas and blanks are ignored.

// Returns the number of transformer layers of each stage. Throws InputError, with the position, for text that is not a
// layout, an embedding outside the first or a loss outside the last stage, more than kMaxStages stages, and layers of
// multi-token prediction (m), which are not modeled.
std::vector<int> layers_of_layout(std::string_view text);

// Returns the layout of stages with these numbers of layers.
std::string layout_of(std::span<const int> layers);

}  // namespace sluice::model

#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "import/megatron.h"

namespace sluice::imports {

// A model of blocks (sluice.model/2).
struct MegatronLayers {
  nlohmann::json model;           // null: the arguments describe a transformer with layers of one kind (Transformer)
  std::vector<int> stage_layers;  // of a pattern with borders of stages ('|')
};

// Returns the layers that arguments of Megatron-LM describe: a GPT with windows, sinks, gates of attention, a scan,
// sparse attention or layers without rotary embedding, or a hybrid model, whose pattern has a letter per layer: M
// Mamba-2, G gated DeltaNet, * attention, + latent and D sparse attention, - MLP, E experts; '|' borders of stages, and
// after '/' the layers of multi-token prediction. `model` has the keys of a transformer that arguments set. Throws
// InputError that names the source and the argument.
MegatronLayers megatron_layers(const nlohmann::json& model, const std::map<std::string, MegatronArgument>& arguments,
                               const std::string& source);

}  // namespace sluice::imports

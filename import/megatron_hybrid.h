#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace sluice::imports {

// What Megatron-LM's arguments give for a pattern of layers besides those of a transformer.
struct HybridSizes {
  std::optional<std::int64_t> mamba_heads;  // by default 2h / mamba_head_dim
  std::int64_t mamba_head_dim = 64;
  std::int64_t mamba_state = 128;
  std::int64_t mamba_groups = 8;
  std::int64_t latent = 0;      // of tokens for their experts; 0: none
  std::int64_t mtp_layers = 0;  // of multi-token prediction, each of the pattern after the first '/'
};

// Returns a model of blocks (sluice.model/2) for --hybrid-override-pattern: M Mamba-2, * attention, - MLP, E experts,
// each a layer; '|' borders of stages; after '/' the layers of multi-token prediction. `model` has the keys of a
// transformer that other arguments set. Throws InputError.
nlohmann::json hybrid_model(const nlohmann::json& model, std::string_view pattern, const HybridSizes& sizes);

}  // namespace sluice::imports

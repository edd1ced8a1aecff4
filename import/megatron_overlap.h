#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "import/megatron.h"

namespace sluice::imports {

// Returns why Megatron-LM does not run --overlap-moe-expert-parallel-comm with these other arguments, by their names,
// on `ranks` pipeline ranks with `chunks` virtual stages each; "" if it does
// (megatron/core/transformer/transformer_config.py).
std::string refused_overlap(const std::map<std::string, MegatronArgument>& arguments, std::int64_t ranks,
                            std::int64_t chunks);

}  // namespace sluice::imports

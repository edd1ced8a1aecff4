#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::imports {

// Evaluates Megatron-LM's --moe-layer-freq: a number, or lists of numbers that are added and repeated, such as
// "([0]*3+[1]*58)". Returns a number or an array. Throws InputError with the position.
nlohmann::json layer_frequency(std::string_view text);

}  // namespace sluice::imports

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "import/megatron.h"

namespace sluice::imports {

// What a configuration of DeepSpeed (JSON) determines, as arguments of Megatron-DeepSpeed.
struct DeepSpeedConfig {
  std::vector<MegatronArgument> arguments;
  std::vector<std::string> notes;  // what is not modeled and what is unknown, one line each, with the source
};

// Throws InputError naming the source and the key.
DeepSpeedConfig read_deepspeed(std::string_view text, const std::string& source);

// Adds the arguments of a configuration to those of a command, with a note where DeepSpeed ignores the command's.
// Throws InputError if they contradict each other.
void add_deepspeed(DeepSpeedConfig& config, const std::string& source, std::vector<MegatronArgument>& arguments);

}  // namespace sluice::imports

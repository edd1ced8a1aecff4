#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "import/import.h"

namespace sluice::imports {

// An argument of Megatron-LM with its words; `line` is 0 where all are on one.
struct MegatronArgument {
  std::string name;  // without "--", with '-' for '_'
  std::vector<std::string> words;
  std::int64_t line = 0;
  bool printed = false;  // by Megatron-LM, which prints values that it derives from others as well
  std::string key = "";  // of another file that determines it; "": none
};

// Returns the scenario of these arguments; of repeated ones the last counts, with a note if they differ. `gpus` is the
// number of GPUs if the launcher determines it, otherwise 0. Throws InputError.
Imported scenario_of_megatron(const std::vector<MegatronArgument>& arguments, std::int64_t gpus,
                              const std::string& source);

}  // namespace sluice::imports

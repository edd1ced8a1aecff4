#include "import/megatron_overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "import/megatron_names.h"

namespace sluice::imports {

std::string refused_overlap(const std::map<std::string, MegatronArgument>& arguments, std::int64_t ranks,
                            std::int64_t chunks) {
  if (chunks < 2 && ranks > 1) return "with a pipeline, requires virtual stages";
  const auto words = [&](const char* name) {
    const auto found = arguments.find(name);
    return found == arguments.end() ? std::vector<std::string>{} : listed_words(found->second.words);
  };
  const auto value = [&](const char* name, const char* otherwise) {
    const auto found = arguments.find(name);
    return found == arguments.end() || found->second.words.empty() ? otherwise : found->second.words.front();
  };
  if (value("expert-model-parallel-size", "1") == "1") return "requires --expert-model-parallel-size of at least 2";
  // Configurations of other frameworks have another default.
  const bool of_megatron = arguments.at("overlap-moe-expert-parallel-comm").key.empty();
  const std::string dispatcher = value("moe-token-dispatcher-type", of_megatron ? "allgather" : "alltoall");
  if (dispatcher != "alltoall" && dispatcher != "flex") {
    return fmt::format("requires --moe-token-dispatcher-type alltoall or flex, got {}{}", dispatcher,
                       arguments.contains("moe-token-dispatcher-type") ? "" : ", the default");
  }
  if (value("recompute-granularity", "") == "full" || arguments.contains("checkpoint-activations")) {
    return "excludes --recompute-granularity full";
  }
  const std::vector<std::string> modules = words("recompute-modules");
  if (std::find(modules.begin(), modules.end(), "moe") != modules.end()) return "excludes --recompute-modules moe";
  const std::string predicted = value("mtp-num-layers", "0");
  if (predicted != "0" && predicted != "1") {
    return fmt::format("requires --mtp-num-layers of at most 1, got {}", predicted);
  }
  if (arguments.contains("moe-shared-expert-overlap")) return "excludes --moe-shared-expert-overlap";
  return "";
}

}  // namespace sluice::imports

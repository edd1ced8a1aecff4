#include "model/workload/training.h"

namespace sluice::model {

const std::vector<std::string>& recompute_module_names() {
  static const std::vector<std::string> names = {"core_attn", "layernorm", "mla_up_proj",   "mlp",
                                                 "moe",       "moe_act",   "shared_experts"};
  return names;
}

bool Training::has_modules_to_repeat() const {
  using enum RecomputeModule;
  const RecomputeModules others = RecomputeModules(norm) | up_projection | mlp | experts | activation | shared_experts;
  return !flash_attention || recompute_modules.any_of(others);
}

const std::vector<std::string>& graph_module_names() {
  static const std::vector<std::string> names = {"attn", "mlp", "moe", "moe_router", "moe_preprocess"};
  return names;
}

namespace {

template <typename Module>
std::vector<std::string> names_in(ModuleSet<Module> modules, const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (modules.any_of(static_cast<Module>(i))) out.push_back(names[i]);
  }
  return out;
}

}  // namespace

std::vector<std::string> names_of(RecomputeModules modules) { return names_in(modules, recompute_module_names()); }
std::vector<std::string> names_of(GraphModules modules) { return names_in(modules, graph_module_names()); }

}  // namespace sluice::model

#include "tools/simulate/families_json.h"

#include <nlohmann/json.hpp>

#include "model/schedule/family.h"

namespace sluice::tools {

nlohmann::ordered_json families_json() {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Family& family : all_families()) {
    rows.push_back({{"name", family.name},
                    {"aliases", family.aliases},
                    {"summary", family.summary},
                    {"source", family.source},
                    {"fixed_chunks", family.fixed_chunks},
                    {"default_chunks", family.default_chunks},
                    {"sliced", family.sliced},
                    {"split_backward", family.split_backward},
                    {"grouped", family.grouped},
                    {"asynchronous", family.asynchronous},
                    {"replicas", family.replicas}});
  }
  return {{"schema", "sluice.families/1"}, {"families", rows}};
}

}  // namespace sluice::tools

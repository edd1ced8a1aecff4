#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "model/blocks/model_files.h"
#include "model/cluster/catalogue.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"
#include "model/scenario/scenario.h"

namespace sluice::model {

Model find_model(const JsonReader& model, const std::string& path) {
  namespace fs = std::filesystem;
  const std::string name = model.string();
  std::error_code error;
  if (!fs::is_directory(path, error) && (fs::exists(path, error) || error)) return read_model(path);
  // A name may lack its last parts, if one model has it: "qwen3-235b".
  const auto parse = [](const CatalogueFile& file) {
    return parse_model(file.text, fmt::format("catalogue/{}.json", file.name));
  };
  std::vector<const CatalogueFile*> longer;
  for (const CatalogueFile& file : model_files()) {
    if (file.name == name) return parse(file);
    if (!name.empty() && file.name.starts_with(name + "-")) longer.push_back(&file);
  }
  if (longer.size() == 1) return parse(*longer.front());
  if (fs::exists(path + "/config.json", error)) return read_model(path + "/config.json");
  const std::vector<std::string> names = catalogue_models();
  if (names_file(name) || name.empty()) model.fail(fmt::format("expected a model file (there is no {})", path));
  model.fail(fmt::format("expected a model file or one of the {} models that 'sluice models' lists", names.size()),
             did_you_mean(name, names));
}

}  // namespace sluice::model

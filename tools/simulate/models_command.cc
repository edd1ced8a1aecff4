#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/blocks/layer.h"
#include "model/blocks/model.h"
#include "model/blocks/model_files.h"
#include "model/cluster/catalogue.h"
#include "model/input/json_reader.h"
#include "model/scenario/scenario.h"
#include "tools/command/command.h"
#include "tools/command/document.h"

namespace sluice::tools {
namespace {

std::string steps_text(const Layer& layer) {
  std::string out;
  for (const LayerStep& step : layer.steps) {
    if (!out.empty()) out += ", ";
    for (std::size_t i = 0; i < step.blocks.size(); ++i) {
      out += fmt::format("{}{}", i > 0 ? " + " : "", step.blocks[i]->kind());
    }
  }
  return out;
}

OrderedJson model_json(const Model& model) {
  OrderedJson out = {{"name", model.name},
                     {"layers", model.layers},
                     {"hidden_size", model.hidden},
                     {"parameters", parameters(model)},
                     {"active_parameters", active_parameters(model)},
                     {"embedding_parameters", embedding_parameters(model)},
                     {"mtp_layers", model.mtp_layers},
                     {"mtp_parameters", model.mtp_layers > 0 ? model.mtp_layers * mtp_layer_parameters(model) : 0},
                     {"left_out", model.left_out},
                     {"kinds", OrderedJson::array()}};
  const std::vector<int> counts = model.kinds_of(0, model.layers);
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    if (counts[kind] == 0) continue;
    const auto index = static_cast<int>(kind);
    out["kinds"].push_back({{"layers", counts[kind]},
                            {"blocks", steps_text(model.kind(index))},
                            {"parameters", layer_parameters(model, index)}});
  }
  return out;
}

void print_model(const OrderedJson& model) {
  fmt::print("{}: {} layers of {}, {} parameters, {} of them active\n", model["name"].get<std::string>(),
             model["layers"].get<int>(), model["hidden_size"].get<int>(), model["parameters"].get<std::int64_t>(),
             model["active_parameters"].get<std::int64_t>());
  for (const OrderedJson& kind : model["kinds"]) {
    fmt::print("  {:>4} x {} ({} parameters each)\n", kind["layers"].get<int>(), kind["blocks"].get<std::string>(),
               kind["parameters"].get<std::int64_t>());
  }
  if (const int layers = model["mtp_layers"].get<int>(); layers > 0) {
    fmt::print("  {:>4} of multi-token prediction ({} more parameters)\n", layers,
               model["mtp_parameters"].get<std::int64_t>());
  }
  if (const std::string left_out = model["left_out"]; !left_out.empty()) fmt::print("  without {}\n", left_out);
}

void print_catalogue() {
  fmt::print("{:<22} {:>6} {:>12} {:>12}  {}\n", "name", "layers", "parameters", "active", "layers, by kind");
  for (const CatalogueFile& file : model_files()) {
    const OrderedJson model = model_json(parse_model(file.text, std::string(file.name)));
    std::string kinds;
    for (const OrderedJson& kind : model["kinds"]) {
      kinds += fmt::format("{}{} x {}", kinds.empty() ? "" : "; ", kind["layers"].get<int>(),
                           kind["blocks"].get<std::string>());
    }
    fmt::print("{:<22} {:>6} {:>10.1f} B {:>10.1f} B  {}\n", file.name, model["layers"].get<int>(),
               model["parameters"].get<double>() / 1e9, model["active_parameters"].get<double>() / 1e9, kinds);
  }
}

}  // namespace

Subcommand add_models_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("models",
                                         "List the models of the catalogue, or describe models: layers, blocks and "
                                         "parameters.\n\n"
                                         "Examples:\n"
                                         "  sluice models\n"
                                         "  sluice models deepseek-v3.2\n"
                                         "  sluice models examples/models/kimi-k3/config.json --json");
  command->group("Predict and plan");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto names = std::make_shared<std::vector<std::string>>();
  command->add_option("model", *names, "Models: names of the catalogue, files or folders with a config.json");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON document (sluice.models/1)");
  return {command, [names, json] {
            if (names->empty() && !*json) {
              print_catalogue();
              return kDone;
            }
            if (names->empty()) *names = catalogue_models();
            OrderedJson out = {{"schema", "sluice.models/1"}, {"models", OrderedJson::array()}};
            for (const std::string& name : *names) {
              const Json named = {{"model", name}};
              Model model = find_model(JsonReader(named, "command line").at("model"), name);
              if (model.name.empty()) model.set_name(name);
              out["models"].push_back(model_json(model));
            }
            if (*json) {
              fmt::print("{}", json_text(out));
            } else {
              for (const OrderedJson& model : out["models"]) print_model(model);
            }
            return kDone;
          }};
}

}  // namespace sluice::tools

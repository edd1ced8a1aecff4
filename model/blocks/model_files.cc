#include "model/blocks/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "model/blocks/hf_config.h"
#include "model/blocks/hf_types.h"
#include "model/blocks/layer.h"
#include "model/blocks/layer_embedding.h"
#include "model/blocks/registry.h"
#include "model/input/files.h"
#include "model/input/nearest.h"

namespace sluice::model {
namespace {

// A block, a list of blocks side by side, or an object with such a list and numbers of norms.
LayerStep step_from_json(JsonReader reader, const Model& model) {
  LayerStep out;
  if (reader.has("blocks")) {
    out = step_from_json(reader.at("blocks"), model);
    if (!out.residual) reader.at("blocks").fail("expected blocks without norms of their own");
    out.pre_norms = static_cast<int>(reader.integer_or("norms", 0, 4, 1));
    out.post_norms = static_cast<int>(reader.integer_or("result_norms", 0, 4, 0));
    reader.finish();
    return out;
  }
  if (!reader.json().is_array()) {
    out.blocks.push_back(block_from_json(reader, model.hidden, model.dropout));
    out.residual = !out.blocks.front()->whole_step();
    out.pre_norms = out.residual ? 1 : 0;
    return out;
  }
  for (const JsonReader& block : reader.elements()) {
    out.blocks.push_back(block_from_json(block, model.hidden, model.dropout));
    if (out.blocks.back()->whole_step()) block.fail("expected a block that can be beside another");
  }
  if (out.blocks.empty()) reader.fail("expected a block");
  return out;
}

Layer kind_from_json(const std::string& name, const JsonReader& steps, const Model& model) {
  Layer out{.name = name, .steps = {}};
  for (const JsonReader& step : steps.elements()) out.steps.push_back(step_from_json(step, model));
  if (out.steps.empty()) steps.fail("expected a block per step");
  return out;
}

// Adds the layers of a list: names of kinds, and objects {"repeat": n, "layers": [...]}.
void add_layers(const JsonReader& list, const std::vector<std::string>& names, LayerList& out) {
  for (JsonReader entry : list.elements()) {
    if (entry.json().is_object()) {
      LayerList once;
      const std::int64_t repeat = entry.integer("repeat", 1, kMostModelLayers);
      add_layers(entry.at("layers"), names, once);
      entry.finish();
      for (std::int64_t i = 0; i < repeat; ++i) {
        out.pattern.insert(out.pattern.end(), once.pattern.begin(), once.pattern.end());
        if (std::ssize(out.pattern) > kMostModelLayers)
          entry.fail(fmt::format("expected at most {} layers", kMostModelLayers));
      }
    } else {
      const std::string name = entry.one_of(names);
      out.pattern.push_back(static_cast<std::uint8_t>(std::find(names.begin(), names.end(), name) - names.begin()));
    }
  }
}

Model model_of_layers(JsonReader reader) {
  Model model;
  model.name = reader.string_or("name", "");
  model.hidden = static_cast<int>(reader.integer("hidden_size", 1, kMostModelSize));
  model.vocab = reader.integer("vocab_size", 1, std::int64_t{1} << 31);
  model.tied_embeddings = reader.boolean_or("tied_embeddings", false);
  model.rms_norm = reader.boolean_or("rms_norm", true);
  model.dropout = reader.boolean_or("dropout", false);
  model.streams = static_cast<int>(reader.integer_or("streams", 1, 64, 1));
  model.layer_embedding = static_cast<int>(reader.integer_or("layer_embedding", 0, 1 << 16, 0));
  model.positions = static_cast<int>(reader.integer_or("learned_positions", 0, kMostModelSize, 0));
  model.max_positions = static_cast<int>(reader.integer_or("max_position_embeddings", 0, 1 << 30, 0));
  const JsonReader kinds = reader.at("kinds");
  if (!kinds.json().is_object() || kinds.json().empty()) kinds.fail("expected the steps of each kind of layer");
  if (kinds.json().size() > kMostKinds) kinds.fail(fmt::format("expected at most {} kinds", kMostKinds));
  LayerList list;
  std::vector<std::string> names;
  JsonReader of = kinds;
  for (const auto& [name, steps] : kinds.json().items()) {
    names.push_back(name);
    list.kinds.push_back(kind_from_json(name, of.at(name), model));
  }
  add_layers(reader.at("layers"), names, list);
  if (list.pattern.empty()) reader.at("layers").fail("expected a layer");
  model.mtp_layers = static_cast<int>(reader.integer_or("mtp_layers", 0, 1 << 10, 0));
  model.mtp_kind = list.pattern.back();
  if (reader.has("mtp_kind")) {
    const std::string kind = reader.at("mtp_kind").one_of(names);
    model.mtp_kind = static_cast<int>(std::find(names.begin(), names.end(), kind) - names.begin());
  }
  reader.finish();
  model.set_layers(std::move(list));
  model.any_block([&](const Block& block) {
    const auto* const embedding = dynamic_cast<const LayerEmbedding*>(&block);
    if (embedding == nullptr || embedding->elements() == model.layer_embedding) return false;
    kinds.fail(fmt::format("a layer_embedding of {} elements requires layer_embedding {}", embedding->elements(),
                           embedding->elements()));
  });
  return model;
}

// Python writes Infinity and NaN into config.json files, in keys that have no meaning here. They become null or, where
// that is too long, an empty string: messages about other keys name their column.
std::string without_python_constants(std::string_view text) {
  std::string out(text);
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_string = !in_string;
    if (in_string) {
      if (text[i] == '\\') ++i;
      continue;
    }
    for (const std::string_view constant : {"-Infinity", "Infinity", "NaN"}) {
      if (!text.substr(i).starts_with(constant)) continue;
      const std::string null = constant == "NaN" ? "\"\"" : "null";
      out.replace(i, constant.size(), null + std::string(constant.size() - null.size(), ' '));
      i += constant.size() - 1;
      break;
    }
  }
  return out;
}

// Whether a config of a type that is usually a transformer has windows, or dense layers after those with experts.
bool has_mixed_layers(JsonReader reader, const std::string& type) {
  if (reader.boolean_or("use_sliding_window", type.starts_with("mi") && reader.has("sliding_window"))) return true;
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  if (reader.integer_or("decoder_sparse_step", 1, kMost, 1) > 1) return true;
  if (!reader.has("mlp_only_layers")) return false;
  int dense = 0;
  for (const JsonReader& layer : reader.at("mlp_only_layers").elements()) {
    if (layer.integer(0, kMost) != dense++) return true;
  }
  return false;
}

}  // namespace

Model model_from_json(JsonReader reader) {
  if (reader.has("kinds")) return model_of_layers(reader);
  if (!reader.has("model_type")) return transformer_from_json(reader);
  const std::string type = reader.string("model_type");
  std::vector<std::string> types = transformer_types();
  if (std::find(types.begin(), types.end(), type) != types.end()) {
    const Json config = with_hf_defaults(reader.json(), type);
    const JsonReader whole(config, reader.source(), reader.pointer());
    if (find_hf_type(type) == nullptr || !has_mixed_layers(whole, type)) return transformer_from_hf(whole);
  }
  if (find_hf_type(type) != nullptr) return model_from_hf_config(reader);
  if (const std::string_view what = not_modeled(type); !what.empty()) {
    reader.at("model_type").fail(fmt::format("its {} are not modeled", what));
  }
  // A model of several kinds of data whose language model has a type of its own.
  for (const char* key : {"text_config", "llm_config"}) {
    if (!reader.has(key) || !reader.at(key).has("model_type")) continue;
    JsonReader text = reader.at(key);
    const std::string inner = text.string("model_type");
    if (find_hf_type(inner) != nullptr || std::find(types.begin(), types.end(), inner) != types.end()) {
      Model model = model_from_json(text);
      model.left_out = encoders_of(reader);
      if (model.left_out.empty()) model.left_out = fmt::format("what is not in {}", key);
      if (reader.has("vision_config")) model.vision = encoder_of(reader.at("vision_config"));
      return model;
    }
  }
  const std::vector<std::string> others = hf_type_names();
  types.insert(types.end(), others.begin(), others.end());
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  const std::string suggested = suggested_blocks(reader);
  reader.at("model_type")
      .fail(fmt::format("expected one of {}{}{}", fmt::join(types, ", "), suggested.empty() ? "" : "; ", suggested),
            did_you_mean(type, types));
}

Model read_model(const std::string& path) { return parse_model(read_file(path, std::int64_t{1} << 24), path); }

Model parse_model(std::string_view text, const std::string& source) {
  const Json json = parse_json(without_python_constants(text), source);
  return model_from_json(JsonReader(json, source));
}

}  // namespace sluice::model

#include <fmt/format.h>

#include <utility>

#include "model/blocks/hf_types.h"
#include "model/input/json_reader.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kMostEncoderSize = 1 << 20;

// Parameters of an encoder of images, with what projects its result; 0: of another type, or without its sizes.
std::int64_t vision_parameters(JsonReader config) {
  const std::string type = config.has("model_type") ? config.string("model_type") : "";
  const bool qwen = type.starts_with("qwen3_vl") || type.starts_with("qwen3_5");
  const bool siglip = type == "siglip_vision_model";
  const bool clip = type == "clip_vision_model";
  const bool pixtral = type == "pixtral";
  if (!qwen && !siglip && !clip && !pixtral) return 0;
  const auto size = [&](const char* key) { return config.integer(key, 1, kMostEncoderSize); };
  const char* const depth = qwen ? "depth" : "num_hidden_layers";
  for (const char* key : {depth, "hidden_size", "intermediate_size", "patch_size"}) {
    if (!config.has(key)) return 0;
  }
  const std::int64_t h = size("hidden_size");
  const std::int64_t f = size("intermediate_size");
  const std::int64_t patch = 3 * size("patch_size") * size("patch_size") * h;
  if (pixtral) return size(depth) * (4 * h * h + 3 * h * f + 2 * h) + patch + h;
  const std::int64_t layers = size(depth) * (4 * h * h + 2 * h * f + f + 9 * h);
  if (qwen) {
    const std::int64_t merged = size("spatial_merge_size") * size("spatial_merge_size") * h;
    const std::int64_t merger = merged * merged + merged + (merged + 1) * size("out_hidden_size");
    const char* const deep = "deepstack_visual_indexes";
    const std::int64_t more = config.has(deep) ? std::ssize(config.at(deep).elements()) : 0;
    return layers + size("temporal_patch_size") * patch + h + size("num_position_embeddings") * h + 2 * h + merger +
           more * (merger + 2 * merged);
  }
  const std::int64_t side = size("image_size") / size("patch_size");
  return layers + patch + side * side * h + (clip ? 6 * h : 3 * h);  // clip: also a class, two norms and no bias
}

}  // namespace

std::string encoders_of(JsonReader config) {
  std::string out;
  for (const auto& [key, what] : {std::pair("vision_config", "vision"), std::pair("audio_config", "audio")}) {
    if (!config.has(key) || !config.at(key).json().is_object()) continue;
    const std::int64_t count = std::string(what) == "vision" ? vision_parameters(config.at(key)) : 0;
    out += fmt::format("{}its {} encoder{}", out.empty() ? "" : " and ", what,
                       count == 0 ? "" : fmt::format(" ({} parameters)", count));
  }
  return out;
}

}  // namespace sluice::model

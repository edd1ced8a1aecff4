#include <fmt/format.h>

#include <memory>
#include <utility>

#include "model/blocks/encoder.h"
#include "model/blocks/hf_types.h"
#include "model/input/json_reader.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kMostEncoderSize = 1 << 20;

// Parameters of an encoder of images, with what projects its result; 0: of another type, or without its sizes.
std::int64_t vision_parameters(JsonReader config) {
  const std::string type = config.has("model_type") ? config.string("model_type") : "";
  const bool siglip = type == "siglip_vision_model";
  const bool clip = type == "clip_vision_model";
  const bool pixtral = type == "pixtral";
  if (const auto encoder = encoder_of(config))
    return encoder_parameters(*encoder, 1, encoder_stages(*encoder, 1).front());
  if (!siglip && !clip && !pixtral) return 0;
  const auto size = [&](const char* key) { return config.integer(key, 1, kMostEncoderSize); };
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "patch_size"}) {
    if (!config.has(key)) return 0;
  }
  const std::int64_t h = size("hidden_size");
  const std::int64_t f = size("intermediate_size");
  const std::int64_t patch = 3 * size("patch_size") * size("patch_size") * h;
  if (pixtral) return size("num_hidden_layers") * (4 * h * h + 3 * h * f + 2 * h) + patch + h;
  const std::int64_t layers = size("num_hidden_layers") * (4 * h * h + 2 * h * f + f + 9 * h);
  const std::int64_t side = size("image_size") / size("patch_size");
  return layers + patch + side * side * h + (clip ? 6 * h : 3 * h);  // clip: also a class, two norms and no bias
}

}  // namespace

std::shared_ptr<const Encoder> encoder_of(JsonReader vision) {
  const std::string type = vision.has("model_type") ? vision.string("model_type") : "";
  if (!type.starts_with("qwen3_vl") && !type.starts_with("qwen3_5")) return nullptr;
  for (const char* key : {"depth", "hidden_size", "intermediate_size", "num_heads", "patch_size", "spatial_merge_size",
                          "temporal_patch_size", "out_hidden_size", "num_position_embeddings"}) {
    if (!vision.has(key)) return nullptr;
  }
  const auto size = [&](const char* key, std::int64_t most = kMostEncoderSize) { return vision.integer(key, 1, most); };
  // Products of sizes stay within 64 bits.
  constexpr std::int64_t kMostHidden = 1 << 16;
  constexpr std::int64_t kMostPatch = 1024;
  constexpr std::int64_t kMostMerged = 16;
  const auto hidden = static_cast<int>(size("hidden_size", kMostHidden));
  const auto heads = static_cast<int>(size("num_heads"));
  if (hidden % heads != 0) vision.at("num_heads").fail("expected a divisor of hidden_size");
  const Transformer layers{.name = "encoder",
                           .layers = static_cast<int>(size("depth")),
                           .hidden = hidden,
                           .heads = heads,
                           .kv_heads = heads,
                           .head_dim = hidden / heads,
                           .ffn_hidden = static_cast<int>(size("intermediate_size")),
                           .vocab = 1,
                           .dropout = false};
  auto out = std::make_shared<Encoder>();
  out->layers = Model(layers);
  out->patch_inputs =
      3 * size("temporal_patch_size", kMostPatch) * size("patch_size", kMostPatch) * size("patch_size", kMostPatch);
  out->merged = size("spatial_merge_size", kMostMerged) * size("spatial_merge_size", kMostMerged);
  out->width = size("out_hidden_size");
  const char* const deep = "deepstack_visual_indexes";
  const std::int64_t more = vision.has(deep) ? std::ssize(vision.at(deep).elements()) : 0;  // mergers of other layers
  out->mergers = static_cast<int>(1 + more);
  // Norms have gain and bias: of a patch's elements before the last merger, of those of a token before the others.
  out->other_parameters = (3 + size("num_position_embeddings")) * hidden + 2 * more * out->merged_width() +
                          out->mergers * (out->merged_width() + out->width);
  return out;
}

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

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/blocks/attention.h"
#include "model/input/json_reader.h"

namespace sluice::model {

struct Encoder;

// What the code of a model type in transformers fixes, besides its config's keys.
struct HfType {
  enum class Norms : std::uint8_t { pre, post, both };
  enum class Rope : std::uint8_t { all, none, learned, windows };  // windows: full attention has none

  std::string_view name;
  AttentionOptions::QkNorm qk_norm = AttentionOptions::QkNorm::none;
  AttentionOptions::Gate gate = AttentionOptions::Gate::none;
  Norms norms = Norms::pre;
  Rope rope = Rope::all;
  bool qkv_bias = false;
  bool projection_bias = false;
  bool mlp_bias = false;
  bool gated = true;
  bool layer_norm = false;
  bool tied = false;
  bool embedding_norm = false;
  bool head_bias = false;
  bool shared_gate = false;
  bool router_bias = false;
  bool router_scale = false;
  bool mean_of_streams = false;   // at the end; otherwise a learned combination
  char linear = 'G';              // what "linear_attention" is: see HfConfig::mixer_at
  int parallel_norms = 0;         // attention and MLP side by side after this number of norms
  std::string_view sinks = "";    // kinds of mixers that have them, as in `pattern`
  double clamp = 0;               // of gated experts, where the config has no swiglu_limit; 0: they have none
  std::string_view pattern = "";  // of mixers where the config lists none: F full, W window, G delta, repeated
};

// The type that describes the language model of `model_type`, or null: also by the name of a model of several kinds of
// data, or of another that has the same layers.
const HfType* find_hf_type(std::string_view model_type);
// The config with the values of keys that it leaves out and that transformers' class of this type has.
Json with_hf_defaults(const Json& config, std::string_view type);

// The encoders of images and audio that a config.json has beside its language model, with the number of parameters of
// those of a known type whose sizes it has: "its vision encoder (460730096 parameters)"; "" if it has none.
std::string encoders_of(JsonReader config);
// The encoder of a vision_config of a type that is modeled (qwen3_vl, qwen3_5), without images, or null.
std::shared_ptr<const Encoder> encoder_of(JsonReader vision);
// What a type that is known, but not modeled, has that no block describes; "" for others.
std::string_view not_modeled(std::string_view model_type);
// All such names, in the order of the table, those of other models last.
std::vector<std::string> hf_type_names();

}  // namespace sluice::model

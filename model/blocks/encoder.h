#pragma once

#include <cstdint>
#include <string>

#include "model/blocks/kernel_call.h"
#include "model/blocks/model.h"
#include "model/schedule/op.h"
#include "model/workload/slice_shape.h"

namespace sluice::model {

// An encoder of images on the first stage of a language model, whose tensor ranks it shares: patches are projected,
// pass its layers, attending to all patches of their image, and MLPs merge groups of them to tokens. It runs with the
// first slice of a sequence, without recomputation.
struct Encoder {
  Model layers;                       // a transformer, whose embedding and head are not there
  std::int64_t patch_inputs = 0;      // of the patches' projection
  std::int64_t merged = 1;            // patches per token
  std::int64_t width = 0;             // h of the language model
  int mergers = 1;                    // of the last layer, and of others (DeepStack)
  std::int64_t other_parameters = 0;  // biases, positions and norms outside of the layers
  int images = 0;                     // per sequence
  std::int64_t patches = 0;           // per image
  bool frozen = false;                // it has no backward

  std::int64_t merged_width() const { return merged * layers.hidden; }
};

// Parameters of one of `tp` tensor ranks: all, and of linear layers.
std::int64_t encoder_parameters(const Encoder& encoder, int tp);
std::int64_t encoder_linear_parameters(const Encoder& encoder, int tp);
// FLOPs of the forward for one sequence, attention as the full square.
double encoder_model_flops(const Encoder& encoder);
// Kernels of F, I or W for the images of the sequences of `slice`, of one layer and before and after all: none after
// the first slice, or for the gradients of a frozen encoder.
struct EncoderKernels {
  Kernels layer;
  Kernels ends;
};
EncoderKernels encoder_kernels(const Encoder& encoder, const Training& training, OpKind kind, const SliceShape& slice);
// Gives the vision encoder of the model's file `images`, "4x1024": of each sequence and patches of each; "": none.
// Throws InputError "PLACE: ..." for other text, or if the model has none.
void set_images(Model& model, const std::string& images, bool frozen, const std::string& place);
// Throws InputError "/batch/images: MODEL: ..." if the images' encoder cannot be computed with these parallel sizes.
void check_encoder(const Model& model, const Training& training);

}  // namespace sluice::model

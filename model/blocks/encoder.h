#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/blocks/kernel_call.h"
#include "model/blocks/model.h"
#include "model/schedule/op.h"
#include "model/workload/slice_shape.h"

namespace sluice::model {

// An encoder of images of a language model: patches are projected, pass its layers, attending to all patches of their
// image, and MLPs merge groups of them to tokens. It runs with the first slice of a sequence, without recomputation.
// Where it has fewer tensor ranks than the language model, the images of a microbatch are divided among them.
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
  int tp = 0;                         // its tensor ranks; 0: those of the language model

  std::int64_t merged_width() const { return merged * layers.hidden; }
  int tensor_ranks(int of_model) const { return tp > 0 ? tp : of_model; }
  // Images that one tensor group encodes of a microbatch of `sequences`, in a language model with `training`.
  std::int64_t images_per_group(const Training& training, int sequences) const;
};

// The contents of `count` stages with the encoder alone, as even as possible. Throws InputError if it has fewer layers.
std::vector<StageContents> encoder_stages(const Encoder& encoder, int count);
// Parameters of one of `tp` tensor ranks of a stage: all, and of linear layers.
std::int64_t encoder_parameters(const Encoder& encoder, int tp, const StageContents& part);
std::int64_t encoder_linear_parameters(const Encoder& encoder, int tp, const StageContents& part);
// Bytes that a tensor group sends of a microbatch after a stage with `part` of it: of all patches, or of the tokens.
std::int64_t encoder_boundary_bytes(const Encoder& encoder, const Training& training, int sequences,
                                    const StageContents& part);
// FLOPs of the forward for one sequence, attention as the full square.
double encoder_model_flops(const Encoder& encoder);
// Kernels of F, I or W for the images of the sequences of `slice`, of one layer and before and after those of `part`:
// none after the first slice, or for the gradients of a frozen encoder.
struct EncoderKernels {
  Kernels layer;
  Kernels ends;
};
EncoderKernels encoder_kernels(const Encoder& encoder, const Training& training, OpKind kind, const SliceShape& slice,
                               const StageContents& part);
// Gives the vision encoder of the model's file `images`, "4x1024": of each sequence and patches of each; "": none.
// `tp` are its tensor ranks (0: the model's). Throws InputError "PLACE: ..." for other text, or if the model has none.
void set_images(Model& model, const std::string& images, bool frozen, const std::string& place, int tp = 0);
// Throws InputError "/batch/images: MODEL: ..." if the images' encoder cannot be computed with these parallel sizes.
void check_encoder(const Model& model, const Training& training);

}  // namespace sluice::model

#include "model/blocks/encoder.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <system_error>
#include <utility>

#include "model/blocks/kernel_parts.h"
#include "model/blocks/layer.h"
#include "model/blocks/stage_kernels.h"
#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

// Weights of a merger, whose two GEMMs tensor parallelism splits.
std::int64_t merger_elements(const Encoder& encoder) {
  return encoder.merged_width() * (encoder.merged_width() + encoder.width);
}

BlockParameters of_layer(const Encoder& encoder, int tp) {
  return layer_parameters(encoder.layers.kind(0), encoder.layers.style(), {.tp = tp, .expert_ranks = 1});
}

// Patches are projected, and groups of them merged, in 16 bits. `groups` of tensor ranks have images of their own,
// whose tokens they exchange.
void add_ends(const Encoder& encoder, const Training& training, OpKind kind, double rows, int groups,
              const StageContents& part, Kernels& out) {
  using namespace kernel_parts;  // NOLINT(google-build-using-namespace)
  const auto inputs = static_cast<double>(encoder.patch_inputs);
  const auto hidden = static_cast<double>(encoder.layers.hidden);
  const auto width = static_cast<double>(encoder.width);
  const auto merged = static_cast<double>(encoder.merged_width());
  const double inner = merged / training.tp;
  const double tokens = rows / static_cast<double>(encoder.merged);
  if (part.encoder_begin && kind == OpKind::F) out.push_back(gemm("projection of patches", rows, inputs, hidden));
  if (part.encoder_begin && kind == OpKind::W) {
    out.push_back(weight_gemm("w projection of patches", rows, inputs, hidden, training.gradient_bytes));
  }
  for (int i = 0; part.encoder_end && i < encoder.mergers; ++i) {
    if (groups > 1 && kind != OpKind::W) out.push_back(all_gather("exchange of tokens", 2 * groups * tokens * width));
    if (kind == OpKind::F) {
      out.push_back(memory("norm of patches", 4 * rows * hidden));
      out.push_back(gemm("merger 1", tokens, merged, inner));
      out.push_back(memory("merger's activation", 4 * tokens * inner));
      out.push_back(gemm("merger 2", tokens, inner, width));
      if (training.tp > 1) out.push_back(all_reduce("all-reduce of merged patches", 2 * tokens * width));
    } else if (kind == OpKind::I) {
      out.push_back(gemm("d merger 2", tokens, width, inner, GemmPass::input_gradient));
      out.push_back(memory("d merger's activation", 6 * tokens * inner));
      out.push_back(gemm("d merger 1", tokens, inner, merged, GemmPass::input_gradient));
      if (training.tp > 1) out.push_back(all_reduce("all-reduce of d patches", 2 * rows * hidden));
      out.push_back(memory("d norm of patches", 6 * rows * hidden));
    } else {
      out.push_back(weight_gemm("w merger 1", tokens, merged, inner, training.gradient_bytes));
      out.push_back(weight_gemm("w merger 2", tokens, inner, width, training.gradient_bytes));
    }
  }
}

}  // namespace

std::int64_t Encoder::images_per_group(const Training& training, int sequences) const {
  const std::int64_t all = std::int64_t{sequences} * images;
  const std::int64_t groups = tp > 0 ? training.tp * training.cp / tp : 1;
  return (all + groups - 1) / groups;
}

std::vector<StageContents> encoder_stages(const Encoder& encoder, int count) {
  const int layers = encoder.layers.layers;
  if (count > layers) {
    throw InputError(
        fmt::format("encoder_pp: expected at most {}, as many as its encoder has layers, got {}", layers, count));
  }
  std::vector<StageContents> out(to_size(count));
  for (int stage = 0; stage < count; ++stage) {
    out[to_size(stage)].encoder_layers = layers / count + (stage < layers % count ? 1 : 0);
  }
  out.front().encoder_begin = out.back().encoder_end = true;
  return out;
}

std::int64_t encoder_parameters(const Encoder& encoder, int tp, const StageContents& part) {
  std::int64_t count = part.encoder_layers * of_layer(encoder, tp).all;
  if (part.encoder_begin) count += encoder.patch_inputs * encoder.layers.hidden + encoder.other_parameters;
  if (part.encoder_end) count += encoder.mergers * merger_elements(encoder) / tp;
  return count;
}

std::int64_t encoder_linear_parameters(const Encoder& encoder, int tp, const StageContents& part) {
  return part.encoder_layers * of_layer(encoder, tp).linear;
}

std::int64_t encoder_boundary_bytes(const Encoder& encoder, const Training& training, int sequences,
                                    const StageContents& part) {
  const std::int64_t patches = encoder.images_per_group(training, sequences) * encoder.patches;
  if (!part.encoder_end) return 2 * patches * encoder.layers.hidden;
  return 2 * patches / encoder.merged * encoder.width * encoder.mergers;
}

double encoder_model_flops(const Encoder& encoder) {
  const auto rows = static_cast<double>(encoder.patches);
  const double ends =
      2 * rows * static_cast<double>(encoder.patch_inputs * encoder.layers.hidden) +
      2 * rows / static_cast<double>(encoder.merged) * static_cast<double>(encoder.mergers * merger_elements(encoder));
  return encoder.images * (encoder.layers.layers * layer_model_flops(encoder.layers, encoder.patches) + ends);
}

EncoderKernels encoder_kernels(const Encoder& encoder, const Training& training, OpKind kind, const SliceShape& slice,
                               const StageContents& part) {
  EncoderKernels out;
  if (slice.context > 0 || (kind != OpKind::F && (encoder.frozen || training.lora_rank > 0))) return out;
  Training own = training;
  own.lora_rank = 0;
  own.tp = encoder.tensor_ranks(training.tp);
  own.cp = 1;
  own.sequence_parallel = training.sequence_parallel && own.tp > 1;
  // Causal attention after a prefix of half of the patches has as many pairs as attention to all.
  const SliceShape images{.sequences = static_cast<int>(encoder.images_per_group(training, slice.sequences)),
                          .tokens = encoder.patches,
                          .context = encoder.patches / 2};
  if (part.encoder_layers > 0) out.layer = layer_kernels(encoder.layers, own, kind, images);
  const int groups = encoder.tp > 0 ? training.tp * training.cp / encoder.tp : 1;
  add_ends(encoder, own, kind, static_cast<double>(images.rows()), groups, part, out.ends);
  return out;
}

void set_images(Model& model, const std::string& images, bool frozen, const std::string& place, int tp) {
  model.encoder.reset();
  if (images.empty() || images == "none") return;
  constexpr std::int64_t kMostImages = 1024;
  constexpr std::int64_t kMostPatches = 1 << 24;
  const std::size_t cross = images.find('x');
  std::int64_t count = 0;
  std::int64_t patches = 0;
  const auto read = [&](std::size_t begin, std::size_t end, std::int64_t most, std::int64_t& value) {
    const auto [rest, error] = std::from_chars(images.data() + begin, images.data() + end, value);
    return error == std::errc() && rest == images.data() + end && value >= 1 && value <= most;
  };
  if (cross == std::string::npos || !read(0, cross, kMostImages, count) ||
      !read(cross + 1, images.size(), kMostPatches, patches)) {
    throw InputError(
        fmt::format("{}: expected images per sequence x patches of each, as 4x1024, got \"{}\"", place, images));
  }
  if (model.vision == nullptr) {
    throw InputError(
        fmt::format("{}: {} has no vision encoder that is modeled (qwen3_vl, qwen3_5)", place, model.name));
  }
  auto used = std::make_shared<Encoder>(*model.vision);
  if (patches % used->merged != 0) {
    throw InputError(fmt::format("{}: expected a multiple of {} patches, which are merged to a token, got {}", place,
                                 used->merged, patches));
  }
  used->images = static_cast<int>(count);
  used->patches = patches;
  used->frozen = frozen;
  used->tp = tp;
  model.encoder = std::move(used);
  model.left_out.clear();
}

void check_encoder(const Model& model, const Training& training) {
  if (model.encoder == nullptr) return;
  const auto fail = [&](const std::string& what) {
    throw InputError(fmt::format("/batch/images: {}: {}", model.name, what));
  };
  const std::int64_t tokens = model.encoder->images * (model.encoder->patches / model.encoder->merged);
  if (tokens > training.sequence_length) {
    fail(fmt::format("{} tokens of images are more than the sequence's {}", tokens, training.sequence_length));
  }
  if (training.vocabulary_barriers > 0) fail("its encoder is not modeled with vocabulary parallelism");
  if (training.work != Training::Work::training) fail("its encoder is not modeled in work without a backward");
  const int tp = model.encoder->tensor_ranks(training.tp);
  if (training.tp % tp != 0) fail(fmt::format("encoder_tp {} does not divide tp {}", tp, training.tp));
  if (model.encoder->layers.tensor_units % tp != 0) {
    fail(fmt::format("tp {} does not divide the {} heads of its encoder", tp, model.encoder->layers.tensor_units));
  }
}

}  // namespace sluice::model

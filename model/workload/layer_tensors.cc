#include "model/workload/layer_tensors.h"

#include <algorithm>
#include <cmath>

namespace sluice::model {
namespace {

using enum TensorLife;
using enum RecomputeModule;

// Every tensor but a layer's input is also replaced by full recomputation.
constexpr RecomputeModules kNeverRecomputed = {};
RecomputeModules by(RecomputeModule module) { return RecomputeModules(RecomputeModule::layer) | module; }
RecomputeModules by(RecomputeModule one, RecomputeModule other) { return by(one) | other; }
const RecomputeModules kLayer = RecomputeModules(RecomputeModule::layer);

// Sizes on one device.
struct TensorSizes {
  TensorSizes(const Transformer& model, const Training& training, std::int64_t rows_of_slice)
      : rows(rows_of_slice),
        split(training.sequence_parallel ? training.tp : 1),
        hidden((rows * model.hidden + split - 1) / split),
        gathered(training.gathered_inputs ? rows * model.hidden : hidden),
        query(rows * model.query_width() / training.tp),
        output(rows * model.value_width() / training.tp),
        heads(std::max<std::int64_t>(1, model.kv_heads / training.tp)),
        keys_values(rows * heads * (model.head_dim + model.value_head_dim())),
        mlp(rows * model.ffn_hidden / training.tp) {}

  std::int64_t rows;
  std::int64_t split;  // ranks over which norms and dropout are split
  std::int64_t hidden;
  std::int64_t gathered;  // inputs of column-parallel layers
  std::int64_t query;
  std::int64_t output;
  std::int64_t heads;  // of keys and values
  std::int64_t keys_values;
  std::int64_t mlp;
};

class Tensors {
 public:
  Tensors(const Transformer& model, const Training& training, std::int64_t rows, LayerTensors& out)
      : model_(model), training_(training), s_(model, training, rows), out_(out) {}

  void of_layer(LayerKind kind) {
    add("layer input", "2 n h / s", to_input_gradient, 2 * s_.hidden, kNeverRecomputed);
    add("input of norm 2", "2 n h / s", to_input_gradient, 2 * s_.hidden);
    attention();
    if (model_.dropout) add("dropout masks", "2 n h / s", to_input_gradient, 2 * s_.hidden);
    kind == LayerKind::dense ? dense() : experts();
  }

  void of_projection() {
    add("inputs of the MTP norms", "4 n h / s", to_input_gradient, 4 * s_.hidden, kNeverRecomputed);
    if (model_.dropout) add("dropout mask of the MTP embedding", "n h / s", to_input_gradient, s_.hidden);
    add("inputs of the MTP projection", "4 n h / s", to_weight_gradient, 4 * s_.hidden);
    add("gradient of the MTP projection", "2 n h / t", gradient, 2 * s_.rows * model_.hidden / training_.tp);
  }

 private:
  void add(std::string_view name, std::string_view formula, TensorLife life, std::int64_t bytes,
           RecomputeModules recomputed_by = kLayer) {
    if (bytes > 0) out_.push_back({name, formula, life, bytes, recomputed_by});
  }
  // An operand of a GEMM in the training's precision.
  void operand(std::string_view name, std::string_view formula, TensorLife life, std::int64_t elements,
               RecomputeModules recomputed_by = kLayer) {
    add(name, formula, life, operand_bytes(training_.precision, elements), recomputed_by);
  }

  void attention() {
    const bool latent = model_.has_latent_attention();
    const RecomputeModules projected = latent ? by(up_projection) : kLayer;
    operand("input of QKV", gathered_formula(), to_weight_gradient, s_.gathered, by(norm));
    if (latent) latents();
    if (model_.qk_norm && !latent) {
      add("inputs of the QK norms", "2 n (a d + g d) / t", to_input_gradient,
          2 * (s_.query + s_.rows * s_.heads * model_.head_dim));
    }
    add("queries", "2 n a d / t", to_input_gradient, 2 * s_.query, projected);
    add("keys and values", "2 n g (d + dv) / t", keys_values, 2 * s_.keys_values, projected);
    operand("input of the projection", "p n a dv / t", to_weight_gradient, s_.output);
    // Attention's backward needs its output in 16 bits, which is the projection's input where that is not cast.
    if (traits_of(training_.precision).narrow()) {
      add("output of attention", "2 n a dv / t", to_input_gradient, 2 * s_.output);
    }
    // The heads' output, before it is sent back to the ranks of its tokens.
    if (training_.cp > 1 && training_.context_exchange == Training::ContextExchange::all_to_all) {
      add("output of attention, all heads", "2 n a dv / t", to_input_gradient, 2 * s_.output);
    }
    operand("gradient of the projection", "p n h / s", gradient, s_.hidden);
    operand("gradient of QKV", "p n (a d + g (d + dv)) / t", gradient, s_.query + s_.keys_values);
  }

  // Inputs and outputs of the two latents' norms, and the positional part of the keys, equal on every tensor rank.
  // Projected down on its own shard of the tokens, then all-gathered.
  void latents() {
    const LatentAttention& latent = model_.latent;
    const std::int64_t normed = s_.rows * (latent.query_rank + latent.key_value_rank) / s_.split;
    const std::int64_t position = s_.rows * latent.rope_head_dim;
    add("inputs of the latents' norms", "2 n (rq + rkv) / s", to_input_gradient, 2 * normed);
    add("positional part of the keys", "2 n dr", to_input_gradient, 2 * position);
    operand("latents", "p n (rq + rkv) / s", to_weight_gradient, normed, by(up_projection));
    operand("gradients of the latents", "p n ((rq + rkv) / s + dr)", gradient, normed + position);
  }

  void dense() {
    const std::int64_t inputs = model_.mlp_inputs();
    operand("input of the MLP", gathered_formula(), to_weight_gradient, s_.gathered, by(norm));
    add("inputs of the activation", "2 n i f / t, or 1 in 8 bits", to_input_gradient, stored() * inputs * s_.mlp,
        by(mlp));
    if (unfused_gate()) add("output of the gate's activation", "2 n f / t", to_input_gradient, 2 * s_.mlp, by(mlp));
    operand("output of the activation", "p n f / t", to_weight_gradient, s_.mlp, by(mlp));
    operand("gradient of the MLP's output", "p n h / s", gradient, s_.hidden);
    operand("gradient of the activation's inputs", "p n i f / t", gradient, inputs * s_.mlp);
  }

  void experts() {
    const Experts& experts = model_.experts;
    const std::int64_t inputs = model_.mlp_inputs();
    const std::int64_t own = (s_.rows + training_.tp - 1) / training_.tp;
    // Of the busiest rank; the choices of tokens number far less than 2^53.
    const auto most = static_cast<std::int64_t>(
        std::ceil(static_cast<double>(own * experts.per_token) * training_.most_expert_rows(experts)));
    const std::int64_t come = most * training_.etp;  // gathered from the ranks that have parts of the same experts
    const std::int64_t width = most * experts.ffn_hidden;
    const std::int64_t shared = s_.rows * experts.shared_ffn_hidden / training_.tp;
    const RecomputeModules moe = by(RecomputeModule::experts);
    const RecomputeModules shared_too = moe | shared_experts;
    operand("input of router and experts", "p n h / s", to_weight_gradient, s_.hidden, by(norm));
    // For each expert: logit, 32-bit score and probability, a byte that says whether, and two 32-bit places of the
    // token in the permuted rows.
    constexpr int kRouterBytes = 2 + 4 + 4 + 1 + 2 * 4;
    add("router", "19 n e / t", to_input_gradient, kRouterBytes * own * experts.count, moe);
    operand("inputs of the experts", "p n k h u / t", to_weight_gradient, come * model_.hidden, moe);
    const bool clamped = experts.clamp > 0 && !training_.fused_grouped_mlp;
    if (clamped) {
      add("inputs of the experts' clamp", "2 n k i fe / t", to_input_gradient, 2 * inputs * width, moe);
    }
    add("inputs of the experts' activation", "2 n k i fe / t, or 1 in 8 bits", to_input_gradient,
        stored() * inputs * width, clamped ? by(RecomputeModule::experts, activation) : moe);
    // Before it is multiplied with the gate or with the router's probabilities.
    if (!model_.gated || unfused_gate()) {
      add("output of the experts' activation", "2 n k fe / t", to_input_gradient, 2 * width,
          by(RecomputeModule::experts, activation));
    }
    operand("inputs of the experts' last matrices", "p n k fe / t", to_weight_gradient, width,
            by(RecomputeModule::experts, activation));
    add("inputs of the shared expert's activation", "2 n i fs / t, or 1 in 8 bits", to_input_gradient,
        stored() * inputs * shared, shared_too);
    operand("output of the shared expert's activation", "p n fs / t", to_weight_gradient, shared, shared_too);
    operand("gradient of the layer's output", "p n h / s", gradient, s_.hidden);
    operand("gradients of the experts' outputs", "p n k h u / t", gradient, come * model_.hidden);
    operand("gradients of the activations' inputs", "p n i (k fe + fs) / t", gradient, inputs * (width + shared));
    add("gradient of the router", "2 n e / t", gradient, 2 * own * experts.count);
  }

  // Bytes of an input of the activation.
  std::int64_t stored() const { return training_.narrow_activation_inputs ? 1 : 2; }
  const char* gathered_formula() const { return training_.gathered_inputs ? "p n h" : "p n h / s"; }
  bool unfused_gate() const { return model_.gated && !training_.fused_activation; }

  const Transformer& model_;
  const Training& training_;
  TensorSizes s_;
  LayerTensors& out_;
};

}  // namespace

std::string_view tensor_symbols() {
  return "n tokens of the slice on this rank, c before it, h hidden size, v padded words, a heads, g groups of keys "
         "and "
         "values,\n"
         "d and dv sizes of keys and values, i matrices into the MLP, f its width, fe of an expert, fs of the shared "
         "one,\n"
         "e experts, k per token, t tensor ranks, s the same with sequence parallelism and else 1, u expert-tensor "
         "ranks,\n"
         "p bytes of a GEMM's operand, rq and rkv ranks of latents, dr size of the positional part of the keys,\n"
         "P parameters of the stage on this rank, D ranks that shard the states (of experts fewer)";
}

LayerTensors layer_tensors(const Transformer& model, const Training& training, LayerKind kind, std::int64_t rows) {
  LayerTensors out;
  Tensors(model, training, rows, out).of_layer(kind);
  return out;
}

void add_projection_tensors(const Transformer& model, const Training& training, std::int64_t rows, LayerTensors& out) {
  Tensors(model, training, rows, out).of_projection();
}

LayerTensor score_tensor(const Transformer& model, const Training& training, std::int64_t sequences,
                         std::int64_t tokens, std::int64_t context) {
  const std::int64_t each = model.dropout ? 5 : 2;
  return {.name = "scores",
          .formula = model.dropout ? "5 a n (c + n) / t" : "2 a n (c + n) / t",
          .life = scores,
          .bytes = each * (model.heads / training.tp) * tokens * (context + tokens) * sequences,
          .recomputed_by = by(core_attention)};
}

}  // namespace sluice::model

#include "model/blocks/attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/errors.h"

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

Attention::Attention(int hidden, const AttentionOptions& options)
    : Block(hidden, options.core.dropout), options_(options) {}

std::int64_t Attention::gate_width() const {
  if (options_.gate == AttentionOptions::Gate::none) return 0;
  return options_.gate == AttentionOptions::Gate::per_head ? options_.core.heads : options_.core.value_width();
}

std::int64_t Attention::key_width(std::int64_t kv_heads) const {
  const AttentionCore& core = options_.core;
  if (options_.shared_keys) return 0;
  return kv_heads * (core.head_dim + (options_.keys_as_values ? 0 : core.value_head_dim));
}

std::int64_t Attention::matrix_elements() const {
  const AttentionCore& core = options_.core;
  return hidden() * (core.query_width() + key_width(core.kv_heads) + gate_width() + core.value_width());
}

std::int64_t Attention::index_elements() const {
  return options_.indexer ? options_.indexer->matrix_elements(hidden(), hidden()) : 0;
}

double Attention::projected(int tp) const {
  const AttentionCore& core = options_.core;
  return core.queries(tp) + static_cast<double>(key_width(core.heads_of_keys(tp))) +
         static_cast<double>(gate_width()) / tp;
}

// Of the heads of one rank.
BlockParameters Attention::parameters(const Shards& shards) const {
  const AttentionCore& core = options_.core;
  const std::int64_t heads = core.heads / shards.tp;
  const std::int64_t kv_heads = options_.shared_keys ? 0 : core.heads_of_keys(shards.tp);
  const std::int64_t queries = heads * core.head_dim;
  const std::int64_t keys = key_width(kv_heads);
  const std::int64_t inputs = queries + keys + gate_width() / shards.tp;
  BlockParameters out;
  out.all = hidden() * (inputs + heads * core.value_head_dim);
  if (options_.qk_norm == AttentionOptions::QkNorm::per_head) {
    out.all += std::int64_t{options_.shared_keys ? 1 : 2} * core.head_dim;
  }
  if (options_.qk_norm == AttentionOptions::QkNorm::all_heads) out.all += (heads + kv_heads) * core.head_dim;
  if (options_.qkv_bias) {
    out.all += queries + keys;
    if (options_.gate == AttentionOptions::Gate::elementwise) out.all += gate_width() / shards.tp;
  }
  if (options_.projection_bias) out.all += hidden();
  if (options_.sinks) out.all += heads;
  if (options_.indexer) out.all += options_.indexer->parameters(hidden(), hidden());
  out.linear = matrix_elements() / shards.tp;
  return out;
}

double Attention::sparse_flops(double tokens, double context) const {
  const AttentionCore& core = options_.core;
  return 2 * static_cast<double>(core.query_width() + core.value_width()) * options_.indexer->chosen(tokens, context);
}

double Attention::core_model_flops(std::int64_t tokens) const {
  return options_.indexer ? core_flops(tokens, 0) : options_.core.model_flops(static_cast<double>(tokens));
}

double Attention::core_flops(std::int64_t tokens, std::int64_t context) const {
  const auto n = static_cast<double>(tokens);
  const auto c = static_cast<double>(context);
  return options_.indexer ? sparse_flops(n, c) + options_.indexer->flops(n, c) : options_.core.flops(n, c);
}

void Attention::add_attention(OpKind kind, const BlockCall& call, Kernels& out) const {
  const AttentionCore& core = options_.core;
  if (!options_.indexer) return add_core(core, kind, call, out);
  if (kind == OpKind::F) options_.indexer->add_kernels(core, hidden(), kind, call, out);
  const int tp = call.training.tp;
  const double flops =
      call.slice.sum_over_documents([&](double tokens, double context) { return sparse_flops(tokens, context); });
  add_sparse_core(kind, call, flops, call.sizes.rows * (core.queries(tp) + core.output(tp) + core.keys_values(tp)),
                  out);
  if (kind == OpKind::I) options_.indexer->add_kernels(core, hidden(), kind, call, out);
}

void Attention::add_forward(const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const AttentionCore& core = options_.core;
  const double qkv = projected(training.tp);
  const double turned = s.rows * (core.queries(training.tp) + core.keys_values(training.tp) / 2);  // queries and keys
  const double output = core.output(training.tp);
  add_linear(out, training, "QKV", s.rows, s.hidden, qkv, Source::gathered);
  if (options_.qk_norm != AttentionOptions::QkNorm::none) out.push_back(memory("QK norm", 4 * turned, 2));
  if (options_.rotary) out.push_back(memory("rotary", 4 * turned, 2));
  const std::size_t first = out.size();
  add_attention(OpKind::F, call, out);
  if (!training.flash_attention) repeat_with(RecomputeModule::core_attention, out, first);
  if (options_.gate != AttentionOptions::Gate::none) out.push_back(memory("attention gate", 6 * s.rows * output));
  add_linear(out, training, "projection", s.rows, output, s.hidden);
  add_tensor_collectives(out, training, s, "all-reduce 1", {.m = s.rows, .n = qkv, .k = s.hidden},
                         {.m = s.rows, .n = s.hidden, .k = output});
}

void Attention::add_input_gradient(const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const AttentionCore& core = options_.core;
  const double qkv = projected(training.tp);
  const double turned = s.rows * (core.queries(training.tp) + core.keys_values(training.tp) / 2);
  const double output = core.output(training.tp);
  add_linear_gradient(out, training, "d projection", s.rows, s.hidden, output, Source::gathered);
  if (options_.gate != AttentionOptions::Gate::none) out.push_back(memory("d attention gate", 10 * s.rows * output));
  add_attention(OpKind::I, call, out);
  if (options_.rotary) out.push_back(memory("d rotary", 4 * turned, 2));
  if (options_.qk_norm != AttentionOptions::QkNorm::none) out.push_back(memory("d QK norm", 6 * turned, 2));
  add_linear_gradient(out, training, "d QKV", s.rows, qkv, s.hidden);
  add_tensor_collectives(out, training, s, "all-reduce of d QKV",
                         {.m = s.rows, .n = output, .k = s.hidden, .pass = GemmPass::input_gradient},
                         {.m = s.rows, .n = s.hidden, .k = qkv, .pass = GemmPass::input_gradient});
  if (options_.qkv_bias) out.push_back(memory("d QKV bias", 2 * s.rows * qkv));
  if (options_.projection_bias) out.push_back(memory("d projection bias", 2 * s.split * s.hidden));
}

void Attention::add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const {
  if (kind == OpKind::F) return add_forward(call, out);
  if (kind == OpKind::I) return add_input_gradient(call, out);
  const Sizes& s = call.sizes;
  const int tp = call.training.tp;
  out.push_back(linear_weight(call.training, "w projection", s.rows, options_.core.output(tp), s.hidden));
  if (options_.indexer) options_.indexer->add_kernels(options_.core, hidden(), kind, call, out);
  out.push_back(linear_weight(call.training, "w QKV", s.rows, s.hidden, projected(tp)));
}

void Attention::add_tensors(const TensorCall& call, LayerTensors& out) const {
  const AttentionCore& core = options_.core;
  const int tp = call.training.tp;
  const std::int64_t query = call.rows * core.query_width() / tp;
  const std::int64_t output = call.rows * core.value_width() / tp;
  const std::int64_t heads = core.heads_of_keys(tp);
  const std::int64_t keys_values_elements = call.rows * heads * (core.head_dim + core.value_head_dim);
  const std::int64_t gate = call.rows * gate_width() / tp;
  TensorList list(call, out);
  list.operand("input of QKV", call.gathered_formula(), to_weight_gradient, call.gathered_elements(),
               recomputed_by(RecomputeModule::norm));
  if (options_.qk_norm != AttentionOptions::QkNorm::none) {
    list.add("inputs of the QK norms", "2 n (a d + g d) / t", to_input_gradient,
             2 * (query + call.rows * heads * core.head_dim));
  }
  list.add("queries", "2 n a d / t", to_input_gradient, 2 * query);
  if (!options_.shared_keys) {
    list.add("keys and values", "2 n g (d + dv) / t", keys_values, 2 * keys_values_elements);
  }
  if (options_.indexer) options_.indexer->add_tensors(call, list);
  list.add("attention's gate", "2 n a dv / t, or 1 per head", to_input_gradient, 2 * gate);
  list.operand("input of the projection", "p n a dv / t", to_weight_gradient, output);
  // Attention's backward needs its output in 16 bits, which is the projection's input where that is neither cast nor
  // gated.
  if (gate > 0 && !traits_of(call.training.precision).narrow()) {
    list.add("output of attention", "2 n a dv / t", to_input_gradient, 2 * output);
  }
  add_output_tensors(core, call, list);
  list.operand("gradient of the projection", "p n h / s", gradient, call.hidden_elements());
  list.operand("gradient of QKV", "p n (a d + g (d + dv)) / t", gradient,
               query + (options_.shared_keys ? 0 : keys_values_elements) + gate);
  add_score_tensor(core, call, out);
}

double Attention::width() const {
  const double indexed = options_.indexer ? options_.indexer->width() : 0;
  return static_cast<double>(options_.core.query_width() + options_.core.key_value_width() + 2 * gate_width()) +
         indexed;
}

void Attention::check(const std::string& model, const Training& training) const {
  check_core(options_.core, model, training);
  if (options_.indexer) check_fused("sparse attention", model, training);
}

void check_core(const AttentionCore& core, const std::string& model, const Training& training) {
  if (core.heads % training.tp != 0) {
    throw InputError(
        fmt::format("/parallelism/tp: {}: attention heads ({}) must be a multiple of the tensor-parallel "
                    "size ({})",
                    model, core.heads, training.tp));
  }
  if (core.kv_heads >= training.tp && core.kv_heads % training.tp != 0) {
    throw InputError(
        fmt::format("/parallelism/tp: {}: key/value heads ({}) must be a multiple of the tensor-parallel "
                    "size ({})",
                    model, core.kv_heads, training.tp));
  }
  if (training.tp > core.kv_heads && training.tp % core.kv_heads != 0) {
    throw InputError(
        fmt::format("/parallelism/tp: {}: the tensor-parallel size ({}) must be a multiple of the key/value heads ({})",
                    model, training.tp, core.kv_heads));
  }
  const int cp = training.cp;
  if (cp == 1 || training.context_exchange == Training::ContextExchange::ring) return;
  const int heads = core.heads / training.tp;
  const int kv_heads = core.heads_of_keys(training.tp);
  if (heads % cp != 0 || kv_heads % cp != 0) {
    throw InputError(
        fmt::format("/parallelism/cp: {}: {} attention and {} key/value heads of a tensor rank must be multiples of "
                    "the context-parallel size ({}) with a2a",
                    model, heads, kv_heads, cp));
  }
}

void check_fused(std::string_view what, const std::string& model, const Training& training) {
  if (!training.flash_attention) {
    throw InputError(fmt::format("/parallelism/flash_attention: {}: {} needs flash attention", model, what));
  }
  if (training.cp > 1 && training.context_exchange != Training::ContextExchange::ring) {
    throw InputError(
        fmt::format("/parallelism/cp_comm_type: {}: {} with context parallelism is modeled only for p2p", model, what));
  }
}

void add_score_tensor(const AttentionCore& core, const TensorCall& call, LayerTensors& out) {
  if (call.training.flash_attention) return;
  const std::int64_t each = core.dropout ? 5 : 2;
  out.push_back(
      {.name = "scores",
       .formula = core.dropout ? "5 a n (c + n) / t" : "2 a n (c + n) / t",
       .life = scores,
       .bytes = each * (core.heads / call.training.tp) * call.tokens * (call.context + call.tokens) * call.sequences(),
       .recomputed_by = recomputed_by(RecomputeModule::core_attention)});
}

void add_output_tensors(const AttentionCore& core, const TensorCall& call, TensorList& list) {
  const std::int64_t output = call.rows * core.value_width() / call.training.tp;
  if (traits_of(call.training.precision).narrow()) {
    list.add("output of attention", "2 n a dv / t", to_input_gradient, 2 * output);
  }
  if (call.training.cp > 1 && call.training.context_exchange == Training::ContextExchange::all_to_all) {
    list.add("output of attention, all heads", "2 n a dv / t", to_input_gradient, 2 * output);
  }
}

}  // namespace sluice::model

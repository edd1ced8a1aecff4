#include "model/blocks/compressed_attention.h"

#include <fmt/format.h>

#include "model/blocks/attention.h"
#include "model/errors.h"

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

CompressedAttention::CompressedAttention(int hidden, const CompressedAttentionOptions& options)
    : Block(hidden, options.dropout),
      options_(options),
      core_{.heads = options.heads,
            .kv_heads = 1,
            .head_dim = options.head_dim,
            .value_head_dim = options.head_dim,
            .dropout = options.dropout,
            .window = options.window} {}

std::int64_t CompressedAttention::compressor_width() const {
  if (options_.ratio == 0) return 0;
  return std::int64_t{options_.indexer ? 4 : 2} * options_.head_dim;
}

std::int64_t CompressedAttention::down() const { return options_.query_rank + options_.head_dim + compressor_width(); }

std::int64_t CompressedAttention::matrix_elements(int tp) const {
  const std::int64_t h = hidden();
  const std::int64_t queries_here = queries() / tp;
  return h * down() + options_.query_rank * queries_here + queries_here * options_.out_rank + narrow_output() / tp * h;
}

std::int64_t CompressedAttention::index_elements() const {
  return options_.indexer ? options_.indexer->matrix_elements(hidden(), options_.query_rank) : 0;
}

// Besides matrices: norms of the latent and of the key, a sink per head; a compressor's positions, and its norm.
BlockParameters CompressedAttention::parameters(const Shards& shards) const {
  BlockParameters out;
  out.linear = matrix_elements(shards.tp);
  out.all = out.linear + options_.query_rank + options_.head_dim + options_.heads / shards.tp;
  if (options_.ratio > 0) {
    out.all += std::int64_t{options_.head_dim} * ((options_.indexer ? 2 : 1) * options_.ratio + 1);
  }
  if (options_.indexer) out.all += options_.indexer->parameters(hidden(), options_.query_rank);
  return out;
}

double CompressedAttention::sparse_flops(double tokens, double context) const {
  double pairs = core_.pairs(tokens, context);
  if (options_.indexer) {
    pairs += options_.indexer->chosen(tokens, context);
  } else if (options_.ratio > 0) {
    pairs += AttentionCore{}.pairs(tokens, context) / options_.ratio;
  }
  return 4 * static_cast<double>(queries()) * pairs;
}

double CompressedAttention::core_flops(std::int64_t tokens, std::int64_t context) const {
  const auto n = static_cast<double>(tokens);
  const auto c = static_cast<double>(context);
  return sparse_flops(n, c) + (options_.indexer ? options_.indexer->flops(n, c) : 0);
}

void CompressedAttention::add_core(OpKind kind, const BlockCall& call, Kernels& out) const {
  const double flops =
      call.slice.sum_over_documents([&](double tokens, double context) { return sparse_flops(tokens, context); });
  const double moved = call.sizes.rows * (2 * core_.queries(call.training.tp) + options_.head_dim);
  add_sparse_core(kind, call, flops, moved, out);
}

void CompressedAttention::add_forward(const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const int tp = training.tp;
  const double rank = options_.query_rank;
  const double wide = core_.queries(tp);
  const double narrow = static_cast<double>(narrow_output()) / tp;
  const auto compressed = static_cast<double>(compressor_width());
  const bool gathered = tp > 1 && training.sequence_parallel;
  add_linear(out, training, "Q, KV down", s.split, s.hidden, static_cast<double>(down()), Source::norm);
  out.push_back(memory("norms of latents", 4 * s.split * (rank + options_.head_dim), 2));
  if (compressed > 0) out.push_back(memory("compressed keys", 2 * s.split * compressed));
  if (gathered) out.push_back(all_gather("all-gather of latents", 2 * s.rows * static_cast<double>(down())));
  add_linear(out, training, "Q up", s.rows, rank, wide, Source::norm);
  repeat_with(RecomputeModule::up_projection, out, out.size() - 1);
  out.push_back(memory("rotary", 4 * s.rows * (wide + options_.head_dim), 2));
  repeat_with(RecomputeModule::up_projection, out, out.size() - 1);
  if (options_.indexer) options_.indexer->add_kernels(core_, rank, OpKind::F, call, out);
  add_core(OpKind::F, call, out);
  // One GEMM of a batch, a matrix per group.
  const double groups = static_cast<double>(options_.out_groups) / tp;
  out.push_back(narrow_product(training, "output groups",
                               {.m = s.rows, .n = narrow / groups, .k = wide / groups, .batch = groups}));
  add_linear(out, training, "projection", s.rows, narrow, s.hidden);
  if (gathered) {
    out.push_back(all_gather("reduce-scatter of projection", 2 * s.rows * s.hidden));
  } else {
    add_tensor_collectives(out, training, s, "all-reduce 1", {.m = s.rows, .n = wide, .k = s.hidden},
                           {.m = s.rows, .n = s.hidden, .k = narrow});
  }
}

void CompressedAttention::add_input_gradient(const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const int tp = training.tp;
  const double rank = options_.query_rank;
  const double wide = core_.queries(tp);
  const double narrow = static_cast<double>(narrow_output()) / tp;
  const auto compressed = static_cast<double>(compressor_width());
  const double groups = static_cast<double>(options_.out_groups) / tp;
  add_linear_gradient(out, training, "d projection", s.rows, s.hidden, narrow);
  out.push_back(narrow_product(
      training, "d output groups",
      {.m = s.rows, .n = wide / groups, .k = narrow / groups, .batch = groups, .pass = GemmPass::input_gradient}));
  add_core(OpKind::I, call, out);
  if (options_.indexer) options_.indexer->add_kernels(core_, rank, OpKind::I, call, out);
  out.push_back(memory("d rotary", 4 * s.rows * (wide + options_.head_dim), 2));
  add_linear_gradient(out, training, "d Q up", s.rows, wide, rank);
  if (tp > 1) {
    const double bytes = 2 * s.rows * static_cast<double>(down());
    out.push_back(training.sequence_parallel ? all_gather("reduce-scatter of d latents", bytes)
                                             : all_reduce("all-reduce of d latents", bytes));
  }
  if (compressed > 0) out.push_back(memory("d compressed keys", 4 * s.split * compressed, 2));
  out.push_back(memory("d norms of latents", 6 * s.split * (rank + options_.head_dim), 4));
  add_linear_gradient(out, training, "d Q, KV down", s.split, static_cast<double>(down()), s.hidden);
  if (tp > 1 && training.sequence_parallel) {
    out.push_back(all_gather("all-gather of d projection", 2 * s.rows * s.hidden));
  }
}

void CompressedAttention::add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const {
  if (kind == OpKind::F) return add_forward(call, out);
  if (kind == OpKind::I) return add_input_gradient(call, out);
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const double wide = core_.queries(training.tp);
  const double narrow = static_cast<double>(narrow_output()) / training.tp;
  const double groups = static_cast<double>(options_.out_groups) / training.tp;
  out.push_back(linear_weight(training, "w projection", s.rows, narrow, s.hidden));
  out.push_back(narrow_product(training, "w output groups",
                               {.m = wide / groups,
                                .n = narrow / groups,
                                .k = s.rows,
                                .batch = groups,
                                .result_bytes = 2.0 * training.gradient_bytes,
                                .pass = GemmPass::weight_gradient}));
  if (options_.indexer) options_.indexer->add_kernels(core_, options_.query_rank, OpKind::W, call, out);
  out.push_back(linear_weight(training, "w Q up", s.rows, options_.query_rank, wide));
  out.push_back(linear_weight(training, "w Q, KV down", s.split, s.hidden, static_cast<double>(down())));
}

void CompressedAttention::add_tensors(const TensorCall& call, LayerTensors& out) const {
  const int tp = call.training.tp;
  const std::int64_t wide = call.rows * queries() / tp;
  const std::int64_t narrow = call.rows * narrow_output() / tp;
  const std::int64_t key = call.rows * options_.head_dim;
  const std::int64_t latent = call.rows * options_.query_rank / call.split();
  const RecomputeModules up = recomputed_by(RecomputeModule::up_projection);
  TensorList list(call, out);
  list.operand("input of QKV", call.gathered_formula(), to_weight_gradient, call.gathered_elements(),
               recomputed_by(RecomputeModule::norm));
  list.add("inputs of the latents' norms", "2 n (rq + rkv) / s", to_input_gradient, 2 * (latent + key / call.split()));
  list.operand("latents", "p n (rq + rkv) / s", to_weight_gradient, latent, up);
  list.add("keys and gates of the compressor", "2 n per element", to_input_gradient,
           2 * call.rows * compressor_width() / call.split());
  if (options_.indexer) options_.indexer->add_tensors(call, list);
  list.add("queries", "2 n a d / t", to_input_gradient, 2 * wide, up);
  const std::int64_t entries = options_.ratio > 0 ? key / options_.ratio : 0;
  list.add("keys and values", "2 n g (d + dv) / t", keys_values, 2 * (key + entries), up);
  list.add("output of attention", "2 n a dv / t", to_input_gradient, 2 * wide);
  list.operand("input of the projection", "p n a dv / t", to_weight_gradient, narrow);
  list.operand("gradient of the projection", "p n h / s", gradient, call.hidden_elements());
  list.operand("gradient of the output groups", "p n a dv / t", gradient, narrow);
  list.operand("gradient of QKV", "p n (a d + g (d + dv)) / t", gradient, wide + call.rows * down() / call.split());
}

double CompressedAttention::width() const {
  return static_cast<double>(3 * queries() + 2 * narrow_output() + 3 * down() + std::int64_t{2} * options_.head_dim) +
         (options_.indexer ? options_.indexer->width() : 0);
}

void CompressedAttention::check(const std::string& model, const Training& training) const {
  if (options_.out_groups % training.tp != 0) {
    throw InputError(
        fmt::format("/parallelism/tp: {}: output groups of {} ({}) must be a multiple of the tensor-parallel size ({})",
                    model, kind(), options_.out_groups, training.tp));
  }
  check_fused("compressed attention", model, training);
}

}  // namespace sluice::model

#include "model/blocks/indexer.h"

#include <algorithm>

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

namespace {

// First estimates (DeepSeek-V3.2's kernels reach about half of the dense ones' rates).
constexpr double kSparseFraction = 0.35;
constexpr double kIndexFraction = 0.5;

double pairs_of(double tokens, double context, int window = 0) {
  return AttentionCore{.window = window}.pairs(tokens, context);
}

}  // namespace

std::int64_t Indexer::matrix_elements(std::int64_t hidden, std::int64_t from) const {
  if (!own) return 0;
  // A compressor has keys and gates of this group and of the one before.
  const std::int64_t keys = std::int64_t{ratio > 1 ? 4 : pool > 1 ? 2 : 1} * head_dim;
  return from * heads * head_dim + hidden * (keys + (weighted ? heads : 0));
}

std::int64_t Indexer::parameters(std::int64_t hidden, std::int64_t from) const {
  if (!own) return 0;
  const std::int64_t small = std::int64_t{ratio > 1 ? 2 * ratio + 1 : pool > 1 ? pool + 2 : 2} * head_dim;
  return matrix_elements(hidden, from) + small;
}

double Indexer::flops(double tokens, double context) const {
  return own ? 2.0 * heads * head_dim * pairs_of(tokens, context) / (ratio * pool) : 0;
}

double Indexer::chosen(double tokens, double context) const {
  constexpr std::int64_t kMost = 1 << 30;
  return pairs_of(tokens, context, static_cast<int>(std::min(kMost, std::int64_t{top_k} * ratio))) / ratio;
}

double Indexer::width() const { return 2.0 * top_k + 1.0 * head_dim * (heads + 1); }

void Indexer::add_kernels(const AttentionCore& core, double from, OpKind kind, const BlockCall& call,
                          Kernels& out) const {
  if (!own) return;
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const auto sum = [&](const auto& of) { return call.slice.sum_over_documents(of) / training.cp; };
  const double queries = static_cast<double>(heads) * head_dim;
  const double pairs = sum([](double tokens, double context) { return pairs_of(tokens, context); }) / ratio;
  const double scores = sum([&](double tokens, double context) { return flops(tokens, context); });
  const double keys = (ratio > 1 ? 4.0 : 1.0) * head_dim + (weighted ? heads : 0);
  if (kind == OpKind::F) {
    out.push_back(gemm("index queries", s.rows, from, queries));
    out.push_back(gemm("index keys and weights", s.rows, s.hidden, keys));
    if (ratio > 1) out.push_back(memory("compressed index keys", 8 * s.rows * head_dim));
    out.push_back(rated("index scores", scores, kIndexFraction, 2 * s.rows * queries + 4 * pairs));
    out.push_back(memory("top-k of index", 4 * pairs + 4 * s.rows * top_k, 2));
  } else if (kind == OpKind::I) {
    const double of_chosen = sum([&](double tokens, double context) { return chosen(tokens, context); });
    const double again = 2.0 * static_cast<double>(core.query_width()) * of_chosen / training.tp;
    out.push_back(rated("index loss", again, kSparseFraction, 12 * of_chosen));
    out.push_back(rated("d index scores", 2 * scores, kIndexFraction, 4 * s.rows * queries + 8 * pairs));
    if (ratio > 1) out.push_back(memory("d compressed index keys", 16 * s.rows * head_dim));
  } else {
    out.push_back(weight_gemm("w index queries", s.rows, from, queries, training.gradient_bytes));
    out.push_back(weight_gemm("w index keys and weights", s.rows, s.hidden, keys, training.gradient_bytes));
  }
}

void Indexer::add_tensors(const TensorCall& call, TensorList& list) const {
  list.add("indices", "4 n per selected key", to_input_gradient, 4 * call.rows * top_k);
  if (!own) return;
  const std::int64_t keys = ratio > 1 ? std::int64_t{4} * head_dim : head_dim;
  list.add("queries and keys of the indexer", "2 n per element of its heads", to_weight_gradient,
           2 * call.rows * (std::int64_t{heads} * head_dim + keys));
}

void add_sparse_core(OpKind kind, const BlockCall& call, double flops, double moved, Kernels& out) {
  const Training& training = call.training;
  const double share = flops / (static_cast<double>(training.tp) * training.cp);
  if (kind == OpKind::F) {
    out.push_back(rated("sparse attention", share, kSparseFraction, 2 * moved));
  } else if (kind == OpKind::I) {
    out.push_back(rated("d sparse attention", 2.5 * share, kSparseFraction, 4 * moved));
  }
}

}  // namespace sluice::model

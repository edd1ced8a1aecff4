#include "model/cost/latent_kernels.h"

namespace sluice::model {

using namespace kernel_parts;

namespace {

struct LatentSizes {
  double query_rank;
  double key_value_rank;
  double down;    // elements that keys and values are projected down to: the latent and the positions' share
  double up;      // elements of this device's heads that they are projected up to
  double normed;  // elements of both latents' norms
  double nope;    // elements of this device's keys that come from the latent
};

LatentSizes latent_sizes(const Transformer& model, const Training& training, const Sizes& s) {
  const LatentAttention& latent = model.latent;
  const double heads = static_cast<double>(model.heads) / training.tp;
  return {.query_rank = static_cast<double>(latent.query_rank),
          .key_value_rank = static_cast<double>(latent.key_value_rank),
          .down = static_cast<double>(latent.key_value_rank + latent.rope_head_dim),
          .up = heads * latent.nope_head_dim + s.output,
          .normed = static_cast<double>(latent.query_rank + latent.key_value_rank),
          .nope = heads * latent.nope_head_dim};
}

// Queries are read and written; of keys one part is read and all written; values are read and written.
double joined_bytes(const Sizes& s, const LatentSizes& l) {
  const double keys = s.key_value - s.output;
  return 2 * s.rows * (2 * s.query + l.nope + keys + 2 * s.output);
}

Kernels forward(const Training& training, const Sizes& s, const LatentSizes& l) {
  Kernels out;
  const bool gathered = training.tp > 1 && training.sequence_parallel;
  if (l.query_rank > 0) add_linear(out, training, "Q down", s.split, s.hidden, l.query_rank, Source::norm);
  add_linear(out, training, "KV down", s.split, s.hidden, l.down, Source::norm);
  out.push_back(memory("norms of latents", 4 * s.split * l.normed, l.query_rank > 0 ? 2 : 1));
  if (gathered) {
    const double queries = l.query_rank > 0 ? l.query_rank : s.hidden;
    out.push_back(all_gather("all-gather of latents", 2 * s.rows * (queries + l.down)));
  }
  add_linear(out, training, "Q up", s.rows, l.query_rank > 0 ? l.query_rank : s.hidden, s.query, Source::norm);
  repeat_with(RecomputeModule::up_projection, out, out.size() - 1);
  add_linear(out, training, "KV up", s.rows, l.key_value_rank, l.up, Source::norm);
  out.push_back(memory("rotary, joined heads", joined_bytes(s, l), 5));
  repeat_with(RecomputeModule::up_projection, out, out.size() - 2);
  return out;
}

Kernels input_gradient(const Training& training, const Sizes& s, const LatentSizes& l) {
  Kernels out;
  out.push_back(memory("d rotary, joined heads", joined_bytes(s, l), 5));
  add_linear_gradient(out, training, "d KV up", s.rows, l.up, l.key_value_rank);
  const double queries = l.query_rank > 0 ? l.query_rank : s.hidden;
  add_linear_gradient(out, training, "d Q up", s.rows, s.query, queries);
  if (training.tp > 1) {
    const double bytes = 2 * s.rows * (queries + l.down);
    out.push_back(training.sequence_parallel ? all_gather("reduce-scatter of d latents", bytes)
                                             : all_reduce("all-reduce of d latents", bytes));
  }
  out.push_back(memory("d norms of latents", 6 * s.split * l.normed, l.query_rank > 0 ? 4 : 2));
  add_linear_gradient(out, training, "d KV down", s.split, l.down, s.hidden);
  if (l.query_rank > 0) add_linear_gradient(out, training, "d Q down", s.split, l.query_rank, s.hidden);
  out.push_back(memory("sum of d down", 6 * s.split * s.hidden));
  return out;
}

Kernels weight_gradient(const Training& training, const Sizes& s, const LatentSizes& l) {
  Kernels out;
  out.push_back(linear_weight(training, "w KV up", s.rows, l.key_value_rank, l.up));
  out.push_back(linear_weight(training, "w Q up", s.rows, l.query_rank > 0 ? l.query_rank : s.hidden, s.query));
  out.push_back(linear_weight(training, "w KV down", s.split, s.hidden, l.down));
  if (l.query_rank > 0) out.push_back(linear_weight(training, "w Q down", s.split, s.hidden, l.query_rank));
  return out;
}

}  // namespace

Kernels latent_kernels(const Transformer& model, const Training& training, OpKind kind, const Sizes& s) {
  const LatentSizes l = latent_sizes(model, training, s);
  if (kind == OpKind::F) return forward(training, s, l);
  Kernels out;
  if (kind != OpKind::W) out = input_gradient(training, s, l);
  if (kind != OpKind::I) append(out, weight_gradient(training, s, l));
  return out;
}

}  // namespace sluice::model

#include "model/blocks/layer_tensors.h"

namespace sluice::model {

std::string_view tensor_symbols() {
  return "n tokens of the slice on this rank, c before it, h hidden size, v padded words, a heads, g groups of keys "
         "and "
         "values,\n"
         "d and dv sizes of keys and values, i matrices into the MLP, f its width, fe of an expert, fs of the shared "
         "one,\n"
         "e experts, k per token, t tensor ranks, s the same with sequence parallelism and else 1, u expert-tensor "
         "ranks,\n"
         "p bytes of a GEMM's operand, rq and rkv ranks of latents, dr size of the positional part of the keys,\n"
         "P parameters of the stage on this rank, D ranks that shard the states (of experts fewer); of a scan x its "
         "inner\n"
         "width, z the width of what its convolution reads, H its heads, N the state of one channel, q its chunk";
}

void add_projection_tensors(const TensorCall& call, bool dropout, LayerTensors& out) {
  using enum TensorLife;
  const std::int64_t width = call.hidden_elements();
  TensorList list(call, out);
  list.add("inputs of the MTP norms", "4 n h / s", to_input_gradient, 4 * width, kNeverRecomputed);
  if (dropout) list.add("dropout mask of the MTP embedding", "n h / s", to_input_gradient, width);
  list.add("inputs of the MTP projection", "4 n h / s", to_weight_gradient, 4 * width);
  list.add("gradient of the MTP projection", "2 n h / t", gradient, 2 * call.rows * call.hidden / call.training.tp);
}

}  // namespace sluice::model

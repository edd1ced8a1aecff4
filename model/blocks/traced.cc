#include "model/blocks/traced.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "model/blocks/attention.h"
#include "model/errors.h"

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

namespace {

using TracedOp = Traced::Op;
using OpClass = TracedOp::Kind;

constexpr double kMostPerToken = 1e12;  // bytes or FLOPs
constexpr std::int64_t kMostModelSide = std::int64_t{1} << 20;
constexpr std::size_t kMostTensors = 48;  // of a layer, besides what is added to them (LayerTensors)
constexpr std::size_t kMostOps = 1 << 12;
constexpr double kMostElements = 1e14;

int side(JsonReader& reader, const char* key) { return static_cast<int>(reader.integer(key, 1, kMostModelSide)); }

void read_gemm(JsonReader& reader, TracedOp& op) {
  op.k = side(reader, "k");
  op.n = side(reader, "n");
  if (op.kind == OpClass::batched_gemm) {
    op.m = side(reader, "m");
    op.batch = reader.number("batch", 0, kMostPerToken);
    return;
  }
  op.experts = static_cast<int>(reader.integer_or("experts", 0, 1 << 16, 0));
  op.rows = reader.number_or("rows", 0, std::max(1, op.experts), 1);
}

void read_attention(JsonReader& reader, TracedOp& op) {
  AttentionCore& core = op.core;
  core.heads = side(reader, "heads");
  core.kv_heads = static_cast<int>(reader.integer_or("kv_heads", 1, core.heads, core.heads));
  if (core.heads % core.kv_heads != 0) reader.at("kv_heads").fail("expected a divisor of heads");
  core.head_dim = side(reader, "head_dim");
  core.value_head_dim = static_cast<int>(reader.integer_or("value_head_dim", 1, kMostModelSide, core.head_dim));
  core.window = static_cast<int>(reader.integer_or("window", 0, kMostModelSide, 0));
}

void read_bytes(JsonReader& reader, TracedOp& op) {
  op.forward = reader.number_or("forward", 0, kMostPerToken, 0);
  op.backward = reader.number_or("backward", 0, kMostPerToken, 0);
  if (op.communicates()) return;
  op.forward_kernels = static_cast<int>(reader.integer_or("forward_kernels", 1, 1 << 20, 1));
  op.backward_kernels = static_cast<int>(reader.integer_or("backward_kernels", 1, 1 << 20, 1));
  if (op.kind != OpClass::scan) return;
  op.flops = reader.number_or("flops", 0, kMostPerToken, 0);
  op.backward_flops = reader.number_or("backward_flops", 0, kMostPerToken, 2 * op.flops);
  op.fraction = reader.number("fraction", 1e-6, 1);
  op.state = reader.number_or("state", 0, kMostPerToken, 0);
}

TracedOp op_from_json(JsonReader reader) {
  static const std::array<std::string, 8> kKinds = {"gemm", "batched_gemm", "attention",  "memory",
                                                    "scan", "all_reduce",   "all_gather", "reduce_scatter"};
  TracedOp op;
  const std::string kind = reader.at("op").one_of(kKinds);
  op.kind = static_cast<OpClass>(std::find(kKinds.begin(), kKinds.end(), kind) - kKinds.begin());
  op.name = reader.string_or("name", kind);
  op.input_gradient = "d " + op.name;
  op.weight_gradient = "w " + op.name;
  if (op.kind == OpClass::gemm || op.kind == OpClass::batched_gemm) {
    read_gemm(reader, op);
  } else if (op.kind == OpClass::attention) {
    read_attention(reader, op);
  } else {
    read_bytes(reader, op);
  }
  reader.finish();
  return op;
}

Traced::Tensor tensor_from_json(JsonReader reader) {
  static const std::array<std::string, 3> kLives = {"input_gradient", "weight_gradient", "keys_values"};
  static constexpr std::array<TensorLife, 3> kLife = {to_input_gradient, to_weight_gradient, keys_values};
  Traced::Tensor out;
  out.name = reader.string("name");
  const std::string life = reader.at("life").one_of(kLives);
  out.life = kLife[static_cast<std::size_t>(std::find(kLives.begin(), kLives.end(), life) - kLives.begin())];
  out.bytes = reader.number("bytes", 0, kMostPerToken);
  out.formula = fmt::format("{:.6g} n", out.bytes);
  reader.finish();
  return out;
}

BlockParameters parameters_from_json(JsonReader reader, std::int64_t& replicated) {
  constexpr std::int64_t kMost = 100'000'000'000'000;
  BlockParameters out;
  out.all = reader.integer("all", 0, kMost);
  out.linear = reader.integer_or("linear", 0, out.all, 0);
  out.routed = reader.integer_or("routed", 0, out.all, 0);
  replicated = reader.integer_or("replicated", 0, out.all, 0);
  reader.finish();
  return out;
}

GemmShape shape_of(const TracedOp& op, double rows) {
  GemmShape shape{.m = rows * op.rows, .n = op.n, .k = op.k};
  if (op.experts == 0) return shape;
  shape.m /= op.experts;
  shape.batch = op.experts;
  return shape;
}

// A gemm with a weight, in the training's precision: `shape` of this pass.
void add_weighted(Kernels& out, const Training& training, std::string_view name, const TracedOp& op, GemmShape shape) {
  shape.fused = op.experts > 0 && training.fused_grouped_mlp;
  shape.apart = op.experts > 0 && !shape.fused;
  out.push_back(narrow_product(training, name, shape));
  if (shape.apart) out.back().group = op.experts;
}

void add_gemm(OpKind kind, const TracedOp& op, const BlockCall& call, Kernels& out) {
  const Training& training = call.training;
  const PrecisionTraits& traits = traits_of(training.precision, training.any_layout);
  const GemmShape s = shape_of(op, call.sizes.rows);
  if (kind == OpKind::F) {
    add_cast(out, "cast of input", traits.input, s.batch * s.m * s.k);
    add_weighted(out, training, op.name, op, s);
  } else if (kind == OpKind::I) {
    add_cast(out, "cast of output gradient", traits.gradient, s.batch * s.m * s.n);
    add_weighted(out, training, op.input_gradient, op,
                 {.m = s.m, .n = s.k, .k = s.n, .batch = s.batch, .pass = GemmPass::input_gradient});
  } else {
    add_weighted(out, training, op.weight_gradient, op,
                 {.m = s.k,
                  .n = s.n,
                  .k = s.m,
                  .batch = s.batch,
                  .result_bytes = 2.0 * training.gradient_bytes,
                  .pass = GemmPass::weight_gradient});
  }
}

void add_batched(OpKind kind, const TracedOp& op, double rows, Kernels& out) {
  const double batch = rows * op.batch;
  const auto add = [&](std::string_view name, double m, double k, double n, GemmPass pass) {
    const GemmShape shape{.m = m, .n = n, .k = k, .batch = batch, .pass = pass};
    out.push_back(product(name, shape, shape.bytes()));
  };
  if (kind == OpKind::F) return add(op.name, op.m, op.k, op.n, GemmPass::forward);
  add(op.input_gradient, op.m, op.n, op.k, GemmPass::input_gradient);
  add(op.input_gradient, op.k, op.m, op.n, GemmPass::weight_gradient);
}

void add_op(OpKind kind, const TracedOp& op, const BlockCall& call, Kernels& out) {
  if (op.has_weight()) return add_gemm(kind, op, call, out);
  if (kind == OpKind::W) return;
  const bool forward = kind == OpKind::F;
  const std::string& name = forward ? op.name : op.input_gradient;
  const double bytes = call.sizes.rows * (forward ? op.forward : op.backward);
  const std::size_t first = out.size();
  switch (op.kind) {
    case OpClass::gemm: break;
    case OpClass::batched_gemm: add_batched(kind, op, call.sizes.rows, out); break;
    case OpClass::attention:
      add_core(op.core, kind, call, out);
      if (forward && !call.training.flash_attention) repeat_with(RecomputeModule::core_attention, out, first);
      break;
    case OpClass::memory:
      if (bytes > 0) out.push_back(memory(name, bytes, forward ? op.forward_kernels : op.backward_kernels));
      break;
    case OpClass::scan:
      out.push_back(rated(name, call.sizes.rows * (forward ? op.flops : op.backward_flops), op.fraction, bytes));
      break;
    case OpClass::all_reduce:
      if (bytes > 0 && call.training.tp > 1) out.push_back(all_reduce(name, bytes));
      break;
    case OpClass::all_gather:
    case OpClass::reduce_scatter:
      if (bytes > 0 && call.training.tp > 1) out.push_back(all_gather(name, bytes));
      break;
  }
}

}  // namespace

BlockPtr Traced::read(JsonReader& reader, int hidden, bool /*dropout*/) {
  Options out;
  out.tp = static_cast<int>(reader.integer_or("tensor_ranks", 1, 1 << 16, 1));
  out.parameters = parameters_from_json(reader.at("parameters"), out.replicated);
  const JsonReader ops = reader.at("ops");
  for (const JsonReader& op : ops.elements()) out.ops.push_back(op_from_json(op));
  if (out.ops.empty() || out.ops.size() > kMostOps) ops.fail(fmt::format("expected 1 to {} ops", kMostOps));
  const JsonReader tensors = reader.at("tensors");
  for (const JsonReader& tensor : tensors.elements()) out.tensors.push_back(tensor_from_json(tensor));
  if (out.tensors.size() > kMostTensors) tensors.fail(fmt::format("expected at most {} tensors", kMostTensors));
  // An attention core has the heads of all ranks.
  double elements = 0;
  for (TracedOp& op : out.ops) {
    if (op.core.heads > kMostModelSide / out.tp) {
      ops.fail(fmt::format("expected at most {} heads of all ranks", kMostModelSide));
    }
    op.core.heads *= out.tp;
    op.core.kv_heads *= out.tp;
    if (op.has_weight()) elements += std::max<double>(op.rows, op.experts) * op.k * op.n * out.tp;
  }
  if (elements > kMostElements) ops.fail(fmt::format("expected at most {:.0e} elements of weights", kMostElements));
  return std::make_shared<Traced>(hidden, std::move(out));
}

BlockParameters Traced::parameters(const Shards& shards) const {
  BlockParameters out = options_.parameters;
  if (shards.tp == options_.tp) return out;
  const auto whole = [&](std::int64_t count) { return count * options_.tp; };
  return {.all = whole(out.all - options_.replicated) + options_.replicated,
          .linear = whole(out.linear),
          .routed = whole(out.routed)};
}

std::int64_t Traced::active_matrix_elements() const {
  double sum = 0;
  for (const TracedOp& op : options_.ops) sum += op.has_weight() ? op.rows * op.k * op.n : 0;
  return std::llround(sum * options_.tp);
}

std::int64_t Traced::idle_parameters() const {
  double sum = 0;
  for (const TracedOp& op : options_.ops) sum += op.experts > 0 ? (op.experts - op.rows) * op.k * op.n : 0;
  return std::llround(sum * options_.tp);
}

std::int64_t Traced::matrices_of_each_shape(const Training& /*training*/) const {
  std::set<std::pair<double, double>> shapes;
  for (const TracedOp& op : options_.ops) {
    if (op.has_weight()) shapes.emplace(op.k, op.n);
  }
  double sum = 0;
  for (const auto& [k, n] : shapes) sum += k * n;
  return std::llround(sum);
}

double Traced::core_model_flops(std::int64_t tokens) const {
  double sum = core_flops(tokens, 0);
  const auto n = static_cast<double>(tokens);
  for (const TracedOp& op : options_.ops) {
    if (op.kind == OpClass::attention) sum += op.core.model_flops(n) - op.core.flops(n, 0);
  }
  return sum;
}

double Traced::core_flops(std::int64_t tokens, std::int64_t context) const {
  const auto n = static_cast<double>(tokens);
  double sum = 0;
  for (const TracedOp& op : options_.ops) {
    if (op.kind == OpClass::attention) sum += op.core.flops(n, static_cast<double>(context));
    if (op.kind == OpClass::batched_gemm) sum += options_.tp * n * op.batch * 2 * op.m * op.k * op.n;
    sum += options_.tp * n * op.flops;
  }
  return sum;
}

void Traced::add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const {
  const std::vector<Op>& ops = options_.ops;
  if (kind == OpKind::F) {
    for (const TracedOp& op : ops) add_op(kind, op, call, out);
  } else {
    for (std::size_t i = ops.size(); i-- > 0;) add_op(kind, ops[i], call, out);
  }
}

void Traced::add_tensors(const TensorCall& call, LayerTensors& out) const {
  const auto rows = static_cast<double>(call.rows);
  TensorList list(call, out);
  for (const Tensor& tensor : options_.tensors) {
    const auto bytes = static_cast<std::int64_t>(std::ceil(rows * tensor.bytes));
    if (tensor.life == to_weight_gradient) {
      list.operand(tensor.name, tensor.formula, tensor.life, (bytes + 1) / 2);
    } else {
      list.add(tensor.name, tensor.formula, tensor.life, bytes);
    }
  }
  double results = 0;
  double states = 0;
  const AttentionCore* core = nullptr;
  for (const TracedOp& op : options_.ops) {
    if (op.has_weight()) results += op.rows * op.n;
    states += op.state;
    if (op.kind == OpClass::attention) core = &op.core;
  }
  list.operand("gradients of the GEMMs' results", "p per column of the weights", gradient,
               std::llround(rows * results));
  if (call.sliced) {
    list.add("states handed to the slice", "per sequence", to_input_gradient,
             std::llround(static_cast<double>(call.sequences()) * states));
  }
  if (core != nullptr) add_score_tensor(*core, call, out);
}

double Traced::width() const {
  double sum = 0;
  for (const Tensor& tensor : options_.tensors) sum += tensor.bytes;
  for (const TracedOp& op : options_.ops) sum += op.has_weight() ? op.rows * op.n : 0;
  return sum;
}

void Traced::check(const std::string& model, const Training& training) const {
  if (training.tp != options_.tp) {
    throw InputError(fmt::format("/parallelism/tp: {}: traced with a tensor-parallel size of {}, got {}", model,
                                 options_.tp, training.tp));
  }
  if (training.cp == 1) return;
  for (const TracedOp& op : options_.ops) {
    if (op.kind == OpClass::attention) check_core(op.core, model, training);
    if (op.kind != OpClass::scan && op.kind != OpClass::batched_gemm) continue;
    throw InputError(
        fmt::format("/parallelism/cp: {}: context parallelism of the traced op '{}' is not modeled", model, op.name));
  }
}

}  // namespace sluice::model

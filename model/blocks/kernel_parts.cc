#include "model/blocks/kernel_parts.h"

namespace sluice::model::kernel_parts {
namespace {

double cast_rows(const Training& training, Source source, double rows) {
  const bool own = source == Source::gathered && training.sequence_parallel && training.any_layout;
  return own ? rows / training.tp : rows;
}

}  // namespace

Sizes sizes_of(int hidden, bool dropout, const Training& training, const SliceShape& slice) {
  Sizes s{};
  s.rows = static_cast<double>(slice.sequences) * static_cast<double>(slice.tokens) / training.cp;
  s.hidden = hidden;
  s.split = training.sequence_parallel ? s.rows / training.tp : s.rows;
  s.mask = dropout ? 1 : 0;
  return s;
}

KernelCall product(std::string_view name, const GemmShape& shape, double bytes, int count) {
  return {
      .name = name, .kind = KernelClass::gemm, .flops = shape.flops(), .bytes = bytes, .count = count, .gemm = shape};
}

KernelCall gemm(std::string_view name, double rows, double k, double n, GemmPass pass) {
  const GemmShape shape{.m = rows, .n = n, .k = k, .pass = pass};
  return product(name, shape, shape.bytes());
}

KernelCall weight_gemm(std::string_view name, double rows, double k, double n, int gradient_bytes) {
  const GemmShape shape{
      .m = k, .n = n, .k = rows, .result_bytes = 2.0 * gradient_bytes, .pass = GemmPass::weight_gradient};
  return product(name, shape, shape.bytes());
}

KernelCall narrow_product(const Training& training, std::string_view name, GemmShape shape) {
  const PrecisionTraits& traits = traits_of(training.precision);
  shape.bits = traits.bits;
  shape.operand_bytes = traits.bytes;
  KernelCall out = product(name, shape, shape.bytes());
  out.linear = true;
  return out;
}

void add_cast(Kernels& out, std::string_view name, const Cast& cast, double elements) {
  if (cast.kernels == 0) return;
  out.push_back(memory(name, cast.bytes * elements, cast.kernels));
  out.back().kind = KernelClass::cast;
}

void add_linear(Kernels& out, const Training& training, std::string_view name, double rows, double k, double n,
                Source source) {
  const PrecisionTraits& traits = traits_of(training.precision, training.any_layout);
  add_cast(out, "cast of input", source == Source::other ? traits.input : traits.normed_input,
           cast_rows(training, source, rows) * k);
  out.push_back(narrow_product(training, name, {.m = rows, .n = n, .k = k}));
}

void add_linear_gradient(Kernels& out, const Training& training, std::string_view name, double rows, double n, double k,
                         Source source) {
  add_cast(out, "cast of output gradient", traits_of(training.precision, training.any_layout).gradient,
           cast_rows(training, source, rows) * n);
  out.push_back(narrow_product(training, name, {.m = rows, .n = k, .k = n, .pass = GemmPass::input_gradient}));
}

KernelCall linear_weight(const Training& training, std::string_view name, double rows, double k, double n) {
  return narrow_product(
      training, name,
      {.m = k, .n = n, .k = rows, .result_bytes = 2.0 * training.gradient_bytes, .pass = GemmPass::weight_gradient});
}

KernelCall layer_reduce(std::string_view name, const Training& training, const Sizes& s) {
  const double gathered = training.sequence_parallel ? traits_of(training.precision).bytes : 2;
  return {.name = name,
          .kind = training.sequence_parallel ? KernelClass::scatter_gather : KernelClass::all_reduce,
          .bytes = (1 + gathered / 2) * s.rows * s.hidden};
}

void add_tensor_collectives(Kernels& out, const Training& training, const Sizes& s, std::string_view name,
                            const GemmShape& gathered, const GemmShape& reduced) {
  if (training.tp == 1) return;
  if (!training.tp_comm_overlap || !training.sequence_parallel) {
    out.push_back(layer_reduce(name, training, s));
    return;
  }
  const auto add = [&](std::string_view collective, double element_bytes, const GemmShape& gemm) {
    KernelCall call = narrow_product(training, collective, gemm);
    call.kind = KernelClass::overlapped_gather;
    call.overlapped_bytes = call.bytes;
    call.bytes = element_bytes * s.rows * s.hidden;
    call.flops = 0;
    out.push_back(call);
  };
  add("all-gather during GEMM", traits_of(training.precision).bytes, gathered);
  add("reduce-scatter during GEMM", 2, reduced);
}

KernelCall memory(std::string_view name, double bytes, int count) {
  return {.name = name, .kind = KernelClass::memory, .flops = 0, .bytes = bytes / count, .count = count};
}

KernelCall rated(std::string_view name, double flops, double fraction, double bytes) {
  return {.name = name, .kind = KernelClass::rated, .flops = flops, .bytes = bytes, .fraction = fraction};
}

KernelCall rated_by_multiprocessor(std::string_view name, double flops, double rate, double bytes) {
  return {.name = name, .kind = KernelClass::rated, .flops = flops, .bytes = bytes, .multiprocessor_rate = rate};
}

KernelCall all_reduce(std::string_view name, double bytes) {
  return {.name = name, .kind = KernelClass::all_reduce, .flops = 0, .bytes = bytes};
}

KernelCall all_gather(std::string_view name, double bytes) {
  return {.name = name, .kind = KernelClass::all_gather, .flops = 0, .bytes = bytes};
}

void append(Kernels& out, const Kernels& more) { out.insert(out.end(), more.begin(), more.end()); }

void repeat_with(RecomputeModules modules, Kernels& out, std::size_t first) {
  for (std::size_t i = first; i < out.size(); ++i) out[i].recomputed_by = out[i].recomputed_by | modules;
}

}  // namespace sluice::model::kernel_parts

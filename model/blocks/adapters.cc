#include "model/blocks/adapters.h"

#include <cmath>

#include "model/blocks/kernel_parts.h"

namespace sluice::model {

using namespace kernel_parts;

namespace {

// Both GEMMs of adapters in a pass, for the GEMM of their layer.
void add_pair(const KernelCall& call, const Training& training, Kernels& out) {
  const GemmShape& shape = call.gemm;
  const double rank = training.lora_rank;
  if (shape.pass == GemmPass::weight_gradient) {
    const double rows = shape.k * shape.batch;
    out.push_back(weight_gemm("w adapter out", rows, rank, shape.n, training.gradient_bytes));
    out.push_back(weight_gemm("w adapter in", rows, shape.m, rank, training.gradient_bytes));
    return;
  }
  const bool forward = shape.pass == GemmPass::forward;
  const double rows = shape.m * shape.batch;
  Kernels pair = {gemm(forward ? "adapter in" : "d adapter out", rows, shape.k, rank, shape.pass),
                  gemm(forward ? "adapter out" : "d adapter in", rows, rank, shape.n, shape.pass),
                  memory(forward ? "sum with adapter" : "d sum with adapter", 6 * rows * shape.n)};
  for (KernelCall& each : pair) {
    each.part = call.part;
    each.module = call.module;
    each.recomputed_by = call.recomputed_by;
  }
  append(out, pair);
}

}  // namespace

Kernels with_adapters(const Kernels& kernels, const Training& training) {
  Kernels out;
  for (const KernelCall& call : kernels) {
    const bool gemm = call.kind == KernelClass::gemm;
    if (!gemm || call.gemm.pass != GemmPass::weight_gradient) out.push_back(call);
    if (gemm && call.linear) add_pair(call, training, out);
  }
  return out;
}

std::int64_t adapter_elements(const Kernels& forward, const Training& training) {
  double elements = 0;
  for (const KernelCall& call : forward) {
    if (call.kind == KernelClass::gemm && call.linear) elements += training.lora_rank * (call.gemm.k + call.gemm.n);
  }
  return std::llround(elements);
}

}  // namespace sluice::model

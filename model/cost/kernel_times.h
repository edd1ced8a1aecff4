// Public header.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "model/cost/gemm.h"
#include "model/workload/precision.h"

namespace sluice::model {

class JsonReader;
struct KernelCall;

// The format of a kernel's operands. Scales per tensor are the same kernels, delayed or current.
enum class KernelFormat : std::uint8_t { bf16, fp16, fp8, mxfp8, nvfp4 };

// What identifies a GEMM or a fused causal attention kernel, on one device.
struct KernelShape {
  enum class Kind : std::uint8_t { gemm, attention };
  Kind kind = Kind::gemm;
  GemmPass pass = GemmPass::forward;  // attention: forward, or input_gradient for its backward
  KernelFormat format = KernelFormat::bf16;
  // GEMM: `batch` times [m, k] x [k, n]; `grouped` ones are launched one after another. accumulate_bytes: of an element
  // of the sum to which the result is added, or 0.
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t batch = 0;
  bool grouped = false;
  int accumulate_bytes = 0;
  AttentionShape attention;

  friend auto operator<=>(const KernelShape&, const KernelShape&) = default;  // NOLINT(modernize-use-nullptr)
};

// Returns the shape of a call in a scenario with this precision; nullopt for other kernels than GEMMs and attention,
// and for attention whose tensors are not known. Sizes are rounded to whole numbers of at least 1.
std::optional<KernelShape> kernel_shape(GemmPrecision precision, const KernelCall& call);

std::string_view name_of(KernelFormat format);
// "GEMM forward bf16": what kernels of different sizes have in common.
std::string class_of(const KernelShape& shape);
// "GEMM forward bf16 4096 x 6144 x 4096" (m x n x k), "attention backward bf16 1 x 4096 tokens, 32 heads of 128".
std::string to_string(const KernelShape& shape);
nlohmann::ordered_json to_json(const KernelShape& shape);

// Times of kernels that were measured on one GPU type with one version of the libraries.
struct KernelTimes {
  std::string gpu;      // the name of the GPU in the cluster: "H100-80GB"
  std::string device;   // as its driver reports it: "NVIDIA H100 80GB HBM3"
  std::string library;  // "PyTorch 2.8.0, CUDA 12.8"
  struct Time {
    double seconds = 0;
    double predicted_s = 0;  // by the model when the shapes were listed; 0: unknown
  };
  std::map<KernelShape, Time> times;

  std::optional<double> find(const KernelShape& shape) const;
};

inline constexpr std::string_view kKernelTimesSchema = "sluice.kernel_times/1";

// {"schema": "sluice.kernel_times/1", "gpu", "device", "library", "kernels": [{shape, "seconds", "predicted_s"}]}
// (docs/formats.md). Throws InputError, also for a kernel that occurs twice and for a device that is not the GPU.
KernelTimes kernel_times_from_json(JsonReader reader);
KernelTimes read_kernel_times(const std::string& path);
std::string to_json_text(const KernelTimes& times);

}  // namespace sluice::model

#include "traces/profile/kernel_class.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace sluice::traces {
namespace {

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

}  // namespace

std::string_view name_of(GpuKernelClass kind) {
  constexpr std::string_view kNames[] = {"GEMM", "attention", "elementwise", "other", "communication", "copy"};
  return kNames[static_cast<std::size_t>(kind)];
}

GpuKernelClass kernel_class(std::string_view category, std::string_view name) {
  if (category != "kernel" || name.starts_with("Memcpy") || name.starts_with("Memset")) return GpuKernelClass::copy;
  const std::string text = lowered(name);
  if (has_any(text, {"nccl", "rccl", "nvshmem", "deep_ep::", "multimem", "cross_device_reduce", "symm_mem",
                     "userbuffers_"})) {
    return GpuKernelClass::communication;
  }
  if (has_any(text, {"flash", "fmha", "attention", "attn", "sdpa", "mha_"})) return GpuKernelClass::attention;
  if (has_any(text, {"gemm", "gemv", "cublas", "nvjet", "xmma", "cijk_", "splitk", "matmul", "triton_mm", "_mm_",
                     "cutlass", "wgrad", "dgrad", "implicit_convolve"})) {
    return GpuKernelClass::gemm;
  }
  if (has_any(text,
              {"elementwise", "reduce",   "norm",      "softmax", "triton_",      "dropout",     "gelu",      "silu",
               "swiglu",      "rope",     "rotary",    "concat",  "catarray",     "copy_kernel", "fill",      "index",
               "scatter",     "gather",   "embedding", "entropy", "multi_tensor", "adam",        "transpose", "permute",
               "cast",        "quantize", "arange",    "sort",    "scan"})) {
    return GpuKernelClass::elementwise;
  }
  return GpuKernelClass::other;
}

std::string_view collective_name(std::string_view name) {
  std::string text = lowered(name.substr(0, name.find('(')));
  std::erase(text, '_');
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"allreduce", "all-reduce"}, {"reducescatter", "reduce-scatter"},
      {"allgather", "all-gather"}, {"alltoall", "all-to-all"},
      {"broadcast", "broadcast"},  {"sendrecv", "send/receive"},
      {"dispatch", "dispatch"},    {"combine", "combine"},
      {"barrier", "barrier"},      {"crossdevicereduce", "all-reduce"},
      {"reduce", "reduce"},        {"send", "send"},
      {"recv", "receive"}};
  for (const auto& [word, collective] : kNames) {
    if (text.find(word) != std::string::npos) return collective;
  }
  return {};
}

std::string short_kernel_name(std::string_view name) {
  std::string out;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (name.substr(i).starts_with("(anonymous namespace)")) {
      i += std::string_view("(anonymous namespace)").size() - 1;
      continue;
    }
    if (c == '<') ++depth;
    if (c == '(' && depth == 0 && !out.empty()) break;
    if (depth == 0) out += c;
    if (c == '>') depth = std::max(0, depth - 1);
  }
  if (out.starts_with("void ")) out.erase(0, 5);
  const std::size_t colons = out.rfind("::");
  if (colons != std::string::npos && colons + 2 < out.size()) out.erase(0, colons + 2);
  while (out.ends_with(' ')) out.pop_back();
  return out.empty() ? std::string(name) : out;
}

}  // namespace sluice::traces

#include "sim/calibration/kernel_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>

#include "sim/calibration/measured_table.h"

namespace sluice::sim {
namespace {

constexpr double kMostSize = 1e12;

// Names in tables and in the catalogue.
constexpr std::pair<std::string_view, std::string_view> kCatalogueNames[] = {
    {"a100", "a100-80gb"},      {"h100", "h100-80gb"},   {"A100-80GB PCIe", "a100-pcie-80gb"},
    {"B200 SXM", "b200-180gb"}, {"A100", "a100-80gb"},   {"H100", "h100-80gb"},
    {"H200", "h200-141gb"},     {"B200", "b200-180gb"},  {"B300", "b300-270gb"},
    {"GB200", "gb200-186gb"},   {"GB300", "gb300-279gb"}};

std::string catalogue_name(const std::string& gpu) {
  for (const auto& [name, known] : kCatalogueNames) {
    if (name == gpu) return std::string(known);
  }
  return gpu;
}

// The value of "key=value" in a comma-separated list.
std::string_view word(const CsvTable& table, int row, std::string_view key) {
  std::string_view rest = table.text(row, "shape");
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    while (part.starts_with(' ')) part.remove_prefix(1);
    if (part.starts_with(key) && part.substr(key.size()).starts_with('=')) return part.substr(key.size() + 1);
  }
  table.fail(row, "shape", "expected a value of " + std::string(key));
}

double size(const CsvTable& table, int row, std::string_view key) {
  const std::string_view text = word(table, row, key);
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1) {
    table.fail(row, "shape", "expected a whole number above 0 for " + std::string(key));
  }
  return static_cast<double>(value);
}

MeasuredGemm gemm_of(const CsvTable& table, int row) {
  GemmShape shape{.m = table.number(row, "m", 1, kMostSize),
                  .n = table.number(row, "n", 1, kMostSize),
                  .k = table.number(row, "k", 1, kMostSize),
                  .batch = size(table, row, "b")};
  const double element = word(table, row, "out_dtype") == "fp32" ? 4 : 2;
  shape.result_bytes = element * (word(table, row, "accumulate") == "True" ? 2 : 1);
  return {.shape = shape, .seconds = shape.flops() / (table.number(row, "achieved_tflops", 1e-6, 1e6) * 1e12)};
}

// `ng` experts with M tokens each, input size K and output size N. The gradient of the weights is [K, N], summed over
// the tokens.
MeasuredGemm grouped_gemm(const CsvTable& table, int row) {
  const double tokens = size(table, row, "M");
  const double before = size(table, row, "K");
  const double after = size(table, row, "N");
  const std::string_view stage = word(table, row, "stage");
  const bool weights = stage == "bwd_grad_w";
  GemmShape shape{.m = weights ? before : tokens,
                  .n = stage == "bwd_grad_act" ? before : after,
                  .k = weights ? tokens : (stage == "bwd_grad_act" ? after : before),
                  .batch = size(table, row, "ng"),
                  .apart = true};
  const double element = weights && word(table, row, "main_grad_dtype") == "fp32" ? 4 : 2;
  shape.result_bytes = element * (word(table, row, "accumulate") == "True" ? 2 : 1);
  return {.shape = shape, .seconds = shape.flops() / (table.number(row, "achieved_tflops", 1e-6, 1e6) * 1e12)};
}

bool has_word(const CsvTable& table, int row, std::string_view key) {
  return (", " + table.text(row, "shape")).find(fmt::format(", {}=", key)) != std::string::npos;
}

// The table counts the FLOPs of the full square: two GEMMs forward and five backward, where three have the keys' head
// size.
MeasuredAttention attention(const CsvTable& table, int row, bool backward) {
  const double batch = size(table, row, "batch");
  const double tokens = size(table, row, "seq_len");
  const double heads = size(table, row, "head_num");
  const double key_size = size(table, row, "qk_head_dim");
  const double value_size = size(table, row, "v_head_dim");
  const double key_heads = size(table, row, "kv_head_num");
  const double head_size = backward ? (3 * key_size + 2 * value_size) / 5 : (key_size + value_size) / 2;
  const double row_flops = 4 * tokens * head_size * (backward ? 2.5 : 1);
  const double square = batch * tokens * heads * row_flops;
  MeasuredAttention out;
  out.shape = {.flops = square * (tokens + 1) / (2 * tokens),
               .row_flops = row_flops,
               .key_flops = square / tokens,
               .head_size = head_size,
               .tile_size = value_size == key_size ? 0 : padded_tile(key_size, backward),
               .backward = backward};
  if (has_word(table, row, "format")) {
    const std::string_view format = word(table, row, "format");
    if (format != "bf16" && format != "fp8" && format != "mxfp8") {
      table.fail(row, "shape", "expected bf16, fp8 or mxfp8 for format");
    }
    out.shape.narrow = format != "bf16";
  }
  const double both = (key_size + value_size) / 2;
  out.bytes = 2 * batch * tokens * both * (backward ? 4 * heads + 6 * key_heads : 2 * heads + 2 * key_heads);
  out.seconds = square / (table.number(row, "achieved_tflops", 1e-6, 1e6) * 1e12);
  return out;
}

bool has_framework_gemms(const CsvTable& table) { return has_all(table, {"gpu", "dtype", "m", "n", "k", "best_us"}); }
bool has_timed_gemms(const CsvTable& table) { return has_all(table, {"gpu", "m_tokens", "k", "n", "median_ms"}); }
bool has_rated_kernels(const CsvTable& table) {
  return has_all(table, {"gpu", "op", "shape", "m", "k", "n", "achieved_tflops"});
}

void add_framework_gemm(const CsvTable& table, int row, MeasuredKernels& out) {
  constexpr double kFewestTokens = 1024;  // of training
  const std::string& type = table.text(row, "dtype");
  const int bits = type == "bf16" ? 16 : type == "fp8" || type == "fp8_block" ? 8 : type == "nvfp4" ? 4 : 0;
  if (bits == 0) table.fail(row, "dtype", "expected bf16, fp8, fp8_block or nvfp4");
  MeasuredGemm one{.shape = {.m = table.number(row, "m", 1, kMostSize),
                             .n = table.number(row, "n", 1, kMostSize),
                             .k = table.number(row, "k", 1, kMostSize),
                             .bits = bits,
                             .operand_bytes = bits / 8.0},
                   .seconds = table.number(row, "best_us", 1e-3, 1e12) * 1e-6,
                   .block_scales = type == "fp8_block"};
  if (one.shape.m < kFewestTokens) return;
  if (bits < 16) one.cast_bytes = one.shape.m * one.shape.k * (2 + bits / 8.0);
  (bits == 16 ? out.gemms : out.narrow[bits == 8 ? 0 : 1]).push_back(one);
}

// Numbers distinct keys in ascending order.
template <typename Key>
std::vector<int> groups_of(const std::vector<Key>& keys) {
  std::map<Key, int> numbers;
  for (const Key& key : keys) numbers.emplace(key, 0);
  int next = 0;
  for (auto& [key, number] : numbers) number = next++;
  std::vector<int> out;
  for (const Key& key : keys) out.push_back(numbers.at(key));
  return out;
}

std::vector<double> seconds_of(const std::vector<MeasuredGemm>& gemms) {
  std::vector<double> out;
  for (const MeasuredGemm& one : gemms) out.push_back(one.seconds);
  return out;
}

// Numbers the shapes; those that are equal are left out of a fit together.
std::vector<int> shapes_of(const std::vector<MeasuredGemm>& gemms) {
  std::vector<std::tuple<double, double, double>> keys;
  for (const MeasuredGemm& one : gemms) keys.emplace_back(one.shape.m, one.shape.n, one.shape.k);
  return groups_of(keys);
}

Gpu with_gemm(Gpu gpu, std::span<const double> x) {
  gpu.gemm = {.peak_fraction = x[0],
              .operand_edge = x[1],
              .exposed_write = x[2],
              .memory_efficiency = x[3],
              .launch_s = x[4],
              .group_s = gpu.gemm.group_s};
  return gpu;
}

LogFit fit_gemms(const Gpu& gpu, const std::vector<MeasuredGemm>& gemms) {
  constexpr FitConstant kConstants[] = {{.guess = 0.9, .low = 0.05, .high = 1, .spread = 0.3},
                                        {.guess = 20, .low = 0.1, .high = 200, .spread = 0.5},
                                        {.guess = 0.5, .low = 1e-3, .high = 5, .spread = 0.7},
                                        {.guess = 0.8, .low = 0.05, .high = 1, .spread = 0.15},
                                        {.guess = 5e-6, .low = 5e-7, .high = 5e-5, .spread = 0.5}};
  Gpu tried = gpu;
  const FitModel predict = [&](std::span<const double> x, int row) {
    tried.gemm = with_gemm(gpu, x).gemm;
    const GemmShape& shape = gemms[row].shape;
    return gemm_time(tried, shape, shape.bytes()).seconds();
  };
  return fit_logarithms(kConstants, predict, seconds_of(gemms), shapes_of(gemms));
}

void set_constants(NarrowGemmConstants& constants, std::span<const double> x) {
  constants.peak_fraction = x[0];
  constants.tiles =
      TileConstants{.operand_edge = x[1], .exposed_write = x[2], .memory_efficiency = x[3], .launch_s = x[4]};
}

LogFit fit_narrow_gemms(const Gpu& gpu, const std::vector<MeasuredGemm>& gemms) {
  constexpr FitConstant kConstants[] = {
      {.guess = 0.75, .low = 0.05, .high = 1, .spread = 0.3},    {.guess = 15, .low = 0.1, .high = 200, .spread = 0.5},
      {.guess = 0.3, .low = 1e-3, .high = 5, .spread = 0.7},     {.guess = 0.6, .low = 0.05, .high = 1, .spread = 0.3},
      {.guess = 5e-6, .low = 5e-7, .high = 5e-5, .spread = 0.5}, {.guess = 0.5, .low = 0.05, .high = 1, .spread = 0.3},
      {.guess = 0.8, .low = 0.05, .high = 1, .spread = 0.3}};
  Gpu tried = gpu;
  tried.gemm.sustained_fraction = 1;
  NarrowGemmConstants& found = gemms[0].shape.bits == 8 ? tried.gemm_8bit : tried.gemm_4bit;
  const FitModel predict = [&](std::span<const double> x, int row) {
    set_constants(found, x);
    const MeasuredGemm& one = gemms[row];
    const double cast_s = one.cast_bytes / (gpu.memory_bandwidth_bytes_per_s * x[one.block_scales ? 6 : 5]);
    return gemm_time(tried, one.shape, one.shape.bytes()).seconds() + cast_s + gpu.kernel_s;
  };
  return fit_logarithms(kConstants, predict, seconds_of(gemms), shapes_of(gemms));
}

LogFit fit_groups(const Gpu& gpu, const std::vector<MeasuredGemm>& grouped) {
  constexpr FitConstant kConstants[] = {{.guess = 3e-6, .low = 1e-8, .high = 1e-4, .spread = 1}};
  Gpu tried = gpu;
  const FitModel predict = [&](std::span<const double> x, int row) {
    tried.gemm.group_s = x[0];
    const GemmShape& shape = grouped[row].shape;
    return gemm_time(tried, shape, shape.bytes()).seconds();
  };
  return fit_logarithms(kConstants, predict, seconds_of(grouped), shapes_of(grouped));
}

AttentionConstants& attention_constants_of(Gpu& gpu, bool backward, bool narrow) {
  AttentionConstants& wide = backward ? gpu.attention_backward : gpu.attention_forward;
  if (!narrow) return wide;
  std::optional<AttentionConstants>& found = backward ? gpu.attention_8bit_backward : gpu.attention_8bit_forward;
  if (!found) found = wide;
  return *found;
}

void set_constants(AttentionConstants& constants, std::span<const double> x) {
  constants.peak_fraction = x[0];
  constants.tail_rows = x[1];
  if (x.size() > 2) constants.overhead_keys = x[2];
}

// What a row needs besides its keys shows only in sequences of different lengths.
bool has_several_lengths(const std::vector<MeasuredAttention>& measured) {
  return std::any_of(measured.begin(), measured.end(), [&](const MeasuredAttention& one) {
    return std::abs(one.shape.flops * measured[0].shape.key_flops - measured[0].shape.flops * one.shape.key_flops) >
           1e-6 * one.shape.flops * measured[0].shape.key_flops;
  });
}

LogFit fit_attention(const Gpu& gpu, const std::vector<MeasuredAttention>& measured) {
  // softmax_size is not fitted: with few head sizes it cannot be separated from the peak.
  std::vector<FitConstant> constants = {{.guess = 0.7, .low = 0.05, .high = 1, .spread = 0.5},
                                        {.guess = 100, .low = 1, .high = 2000, .spread = 0.7}};
  if (has_several_lengths(measured)) constants.push_back({.guess = 300, .low = 1, .high = 5000, .spread = 1});
  std::vector<double> seconds;
  std::vector<std::tuple<double, double>> keys;
  for (const MeasuredAttention& one : measured) {
    seconds.push_back(one.seconds);
    keys.emplace_back(one.shape.flops, one.shape.row_flops);
  }
  Gpu tried = gpu;
  AttentionConstants& found = attention_constants_of(tried, measured[0].shape.backward, measured[0].shape.narrow);
  const FitModel predict = [&](std::span<const double> x, int row) {
    set_constants(found, x);
    return attention_time(tried, measured[row].shape, measured[row].bytes).seconds();
  };
  return fit_logarithms(constants, predict, seconds, groups_of(keys));
}

}  // namespace

bool has_measured_kernels(const CsvTable& table) {
  return has_timed_gemms(table) || has_rated_kernels(table) || has_framework_gemms(table);
}

std::map<std::string, MeasuredKernels> read_measured_kernels(const CsvTable& table) {
  std::map<std::string, MeasuredKernels> out;
  const bool timed = has_timed_gemms(table);
  const bool rated = has_rated_kernels(table);
  for (int row = 0; row < table.num_rows(); ++row) {
    MeasuredKernels& of_gpu = out[catalogue_name(table.text(row, "gpu"))];
    if (of_gpu.origin.empty()) of_gpu.origin = origin_of(table, row);
    if (timed) {
      of_gpu.gemms.push_back({.shape = {.m = table.number(row, "m_tokens", 1, kMostSize),
                                        .n = table.number(row, "n", 1, kMostSize),
                                        .k = table.number(row, "k", 1, kMostSize)},
                              .seconds = table.number(row, "median_ms", 1e-6, 1e9) * 1e-3});
      continue;
    }
    if (!rated) {
      add_framework_gemm(table, row, of_gpu);
      continue;
    }
    const std::string& op = table.text(row, "op");
    if (op == "matmul") of_gpu.gemms.push_back(gemm_of(table, row));
    if (op == "group_matmul") of_gpu.grouped.push_back(grouped_gemm(table, row));
    if (op != "sdp_fwd" && op != "sdp_bwd") continue;
    of_gpu.attention.push_back(attention(table, row, op == "sdp_bwd"));
  }
  return out;
}

GpuFit fit_gpu(const Gpu& gpu, const MeasuredKernels& measured) {
  GpuFit out{.gpu = gpu, .origin = measured.origin, .gemm = {}, .narrow = {}, .grouped = {}, .attention = {}};
  if (measured.gemms.size() >= kFewestRows) {
    out.gemm = fit_gemms(gpu, measured.gemms);
    out.gpu = with_gemm(out.gpu, out.gemm.constants);
  }
  for (const std::size_t i : {0, 1}) {
    NarrowGemmConstants& narrow = i == 0 ? out.gpu.gemm_8bit : out.gpu.gemm_4bit;
    if (measured.narrow[i].size() < kFewestRows || narrow.peak_flops_per_s == 0) continue;
    out.narrow[i] = fit_narrow_gemms(gpu, measured.narrow[i]);
    set_constants(narrow, out.narrow[i].constants);
  }
  if (measured.grouped.size() >= kFewestRows) {
    out.grouped = fit_groups(out.gpu, measured.grouped);
    out.gpu.gemm.group_s = out.grouped.constants[0];
  }
  for (const bool narrow : {false, true}) {
    if (narrow && gpu.gemm_8bit.peak_flops_per_s == 0) continue;
    for (const bool backward : {false, true}) {
      const auto fitted = [&](const MeasuredAttention& one) {
        const bool padded = one.shape.tile_size > 0 && attention_constants_of(out.gpu, backward, narrow).padded_values;
        return one.shape.backward == backward && one.shape.narrow == narrow && !padded;
      };
      std::vector<MeasuredAttention> rows;
      std::copy_if(measured.attention.begin(), measured.attention.end(), std::back_inserter(rows), fitted);
      if (rows.size() < kFewestRows) continue;
      LogFit& fit = out.attention[narrow ? 1 : 0][backward ? 1 : 0];
      fit = fit_attention(gpu, rows);
      set_constants(attention_constants_of(out.gpu, backward, narrow), fit.constants);
    }
  }
  out.gpu.gemm.sustained_fraction = gpu.gemm.sustained_fraction;  // timed kernels do not determine it
  return out;
}

}  // namespace sluice::sim

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
constexpr std::pair<std::string_view, std::string_view> kCatalogueNames[] = {{"a100", "a100-80gb"},
                                                                             {"h100", "h100-80gb"},
                                                                             {"A100-80GB PCIe", "a100-pcie-80gb"},
                                                                             {"B200 SXM", "b200-180gb"},
                                                                             {"A100", "a100-80gb"},
                                                                             {"H100", "h100-80gb"},
                                                                             {"H200", "h200-141gb"},
                                                                             {"B200", "b200-180gb"},
                                                                             {"B300", "b300-270gb"},
                                                                             {"GB200", "gb200-186gb"},
                                                                             {"GB300", "gb300-279gb"},
                                                                             {"NVIDIA A100-SXM4-80GB", "a100-80gb"},
                                                                             {"NVIDIA H100 80GB HBM3", "h100-80gb"},
                                                                             {"NVIDIA H200", "h200-141gb"},
                                                                             {"NVIDIA B200", "b200-180gb"},
                                                                             {"NVIDIA GB200", "gb200-186gb"}};

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

// Causal attention of `rows` query rows of all heads: two GEMMs forward and five backward, where three have the keys'
// head size.
AttentionWork causal(double rows, double tokens, double key_size, double value_size, bool backward) {
  const double head_size = backward ? (3 * key_size + 2 * value_size) / 5 : (key_size + value_size) / 2;
  const double pair_flops = 4 * head_size * (backward ? 2.5 : 1);
  return {.flops = rows * pair_flops * (tokens + 1) / 2,
          .row_flops = tokens * pair_flops,
          .key_flops = rows * pair_flops,
          .head_size = head_size,
          .tile_size = value_size == key_size ? 0 : padded_tile(key_size, backward),
          .backward = backward};
}

// The table counts the FLOPs of the full square.
MeasuredAttention attention(const CsvTable& table, int row, bool backward) {
  const double batch = size(table, row, "batch");
  const double tokens = size(table, row, "seq_len");
  const double heads = size(table, row, "head_num");
  const double key_size = size(table, row, "qk_head_dim");
  const double value_size = size(table, row, "v_head_dim");
  const double key_heads = size(table, row, "kv_head_num");
  MeasuredAttention out;
  out.shape = causal(batch * tokens * heads, tokens, key_size, value_size, backward);
  const double square = out.shape.key_flops * tokens;
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

constexpr double kFewestTokens = 1024;  // of training

void add_framework_attention(const CsvTable& table, int row, MeasuredKernels& out) {
  const std::string& type = table.text(row, "dtype");
  if (type != "bf16" && type != "fp8") table.fail(row, "dtype", "expected bf16 or fp8");
  const double batch = table.number(row, "batch", 1, kMostSize);
  const double tokens = table.number(row, "seq", 1, kMostSize);
  if (batch * tokens < kFewestTokens) return;
  const double heads = table.number(row, "heads", 1, kMostSize);
  const double key_heads = table.number(row, "kv_heads", 1, kMostSize);
  const double head_size = table.number(row, "head_dim", 1, kMostSize);
  const double window = table.number(row, "window", 0, kMostSize);
  const double reach = window > 0 ? std::min(window, tokens) : tokens;
  const double pairs = reach * (reach + 1) / 2 + (tokens - reach) * reach;
  const double element = type == "bf16" ? 2 : 1;
  const double row_flops = 4 * head_size * reach;
  out.attention.push_back({.shape = {.flops = 4 * batch * heads * head_size * pairs,
                                     .row_flops = row_flops,
                                     .key_flops = 4 * batch * heads * head_size * tokens,
                                     .head_size = head_size,
                                     .narrow = type == "fp8",
                                     .windowed = reach < tokens},
                           .bytes = 2 * element * batch * tokens * head_size * (heads + key_heads),
                           .seconds = table.number(row, "best_us", 1e-3, 1e12) * 1e-6,
                           .by_head = true,
                           .other_bytes = 4 * element * batch * tokens * head_size * key_heads});
}

// Attention with as many heads of keys as of queries. Its backward includes the sums over rows.
void add_rate(const CsvTable& table, int row, MeasuredKernels& out) {
  if (table.text(row, "kernel") != "attention") return;
  const bool backward = table.text(row, "pass") == "backward";
  const double tokens = table.number(row, "tokens", 1, kMostSize);
  const double rows = table.number(row, "sequences", 1, kMostSize) * tokens * table.number(row, "heads", 1, kMostSize);
  const double value_size = table.number(row, "value_head_dim", 1, kMostSize);
  out.attention.push_back(
      {.shape = causal(rows, tokens, table.number(row, "head_dim", 1, kMostSize), value_size, backward),
       .bytes = 2 * rows * (table.number(row, "head_dim", 1, kMostSize) + value_size) / 2 * (backward ? 10 : 4),
       .seconds = table.number(row, "us", 1e-3, 1e12) * 1e-6,
       .by_head = true,
       .other_bytes = backward ? 4 * rows * value_size : 0});
}

void add_framework_gemm(const CsvTable& table, int row, MeasuredKernels& out) {
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

void add_framework_experts(const CsvTable& table, int row, MeasuredKernels& out) {
  constexpr std::array<std::pair<std::string_view, int>, 4> kTypes = {
      {{"bf16", 16}, {"fp8", 8}, {"fp8_block", 8}, {"nvfp4", 4}}};
  const auto* const type = std::find_if(kTypes.begin(), kTypes.end(),
                                        [&](const auto& known) { return known.first == table.text(row, "dtype"); });
  if (type == kTypes.end() || table.text(row, "what") != "layer" || table.text(row, "distribution") != "balanced")
    return;
  const double tokens = table.number(row, "tokens", 1, kMostSize);
  const double hidden = table.number(row, "hidden", 1, kMostSize);
  const double width = table.number(row, "inter", 1, kMostSize);
  const double all_experts = table.number(row, "experts", 1, kMostSize);
  const double experts = all_experts / table.number(row, "ep", 1, all_experts);
  const double rows = tokens * table.number(row, "topk", 1, all_experts) / all_experts;  // per expert
  if (rows < kFewestTokens) return;
  const double width_in = (1 + table.number(row, "gated", 0, 1)) * width;
  MeasuredExperts one{.gemms = {}, .seconds = table.number(row, "best_us", 1e-3, 1e12) * 1e-6};
  one.gemms.fill({.m = rows, .batch = experts, .bits = type->second, .operand_bytes = type->second / 8.0});
  one.gemms[0].n = width_in;
  one.gemms[0].k = one.gemms[1].n = hidden;
  one.gemms[1].k = width;
  // Rows are copied in order, and results read in order and added per token; the activation reads and writes its own.
  one.other_bytes =
      2 * experts * rows * (3 * hidden + width_in + width) + 2 * hidden * std::min(tokens, experts * rows);
  out.experts[static_cast<std::size_t>(type - kTypes.begin())].push_back(one);
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

// Without what a long run loses.
Gpu in_bursts(Gpu gpu) {
  gpu.gemm.sustained_fraction = gpu.gemm_8bit.sustained_fraction = gpu.gemm_4bit.sustained_fraction = 1;
  return gpu;
}

double predicted(const Gpu& gpu, const MeasuredGemm& one) {
  return gemm_time(gpu, one.shape, one.shape.bytes()).seconds();
}

double predicted(const Gpu& gpu, const MeasuredAttention& one) {
  return attention_time(gpu, one.shape, one.bytes).seconds() +
         one.other_bytes / (gpu.memory_bandwidth_bytes_per_s * gpu.memory_efficiency);
}

// Errors of a GPU's constants on what was measured.
template <typename Measured, typename Predict>
FitErrors errors_of(const Gpu& gpu, const std::vector<Measured>& rows, const Predict& predict) {
  std::vector<double> expected;
  std::vector<double> seconds;
  for (const Measured& one : rows) {
    expected.push_back(predict(gpu, one));
    seconds.push_back(one.seconds);
  }
  return fit_errors(expected, seconds);
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
    return predicted(tried, gemms[row]);
  };
  LogFit out = fit_logarithms(kConstants, predict, seconds_of(gemms), shapes_of(gemms));
  out.known =
      errors_of(in_bursts(gpu), gemms, [](const Gpu& one, const MeasuredGemm& row) { return predicted(one, row); });
  return out;
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
  Gpu tried = in_bursts(gpu);
  NarrowGemmConstants& found = gemms[0].shape.bits == 8 ? tried.gemm_8bit : tried.gemm_4bit;
  const auto with_cast = [](const Gpu& one, const MeasuredGemm& row, std::span<const double> x) {
    const double efficiency = x[row.block_scales ? 6 : 5];
    return predicted(one, row) + row.cast_bytes / (one.memory_bandwidth_bytes_per_s * efficiency) + one.kernel_s;
  };
  const FitModel predict = [&](std::span<const double> x, int row) {
    set_constants(found, x);
    return with_cast(tried, gemms[row], x);
  };
  LogFit out = fit_logarithms(kConstants, predict, seconds_of(gemms), shapes_of(gemms));
  out.known = errors_of(in_bursts(gpu), gemms,
                        [&](const Gpu& one, const MeasuredGemm& row) { return with_cast(one, row, out.constants); });
  return out;
}

LogFit fit_groups(const Gpu& gpu, const std::vector<MeasuredGemm>& grouped) {
  constexpr FitConstant kConstants[] = {{.guess = 3e-6, .low = 1e-8, .high = 1e-4, .spread = 1}};
  Gpu tried = gpu;
  const FitModel predict = [&](std::span<const double> x, int row) {
    tried.gemm.group_s = x[0];
    return predicted(tried, grouped[row]);
  };
  return fit_logarithms(kConstants, predict, seconds_of(grouped), shapes_of(grouped));
}

LogFit fit_experts(const Gpu& gpu, const std::vector<MeasuredExperts>& measured) {
  constexpr FitConstant kConstants[] = {{.guess = 1, .low = 0.1, .high = 10, .spread = 0.3},
                                        {.guess = 0.6, .low = 0.02, .high = 1, .spread = 0.5},
                                        {.guess = 5e-5, .low = 1e-6, .high = 1e-2, .spread = 0.7}};
  const auto seconds_with = [](const Gpu& one, const MeasuredExperts& row, std::span<const double> x) {
    double gemms = 0;
    for (const GemmShape& shape : row.gemms) gemms += gemm_time(one, shape, shape.bytes()).seconds();
    return x[0] * gemms + row.other_bytes / (one.memory_bandwidth_bytes_per_s * x[1]) + x[2];
  };
  std::vector<double> seconds;
  std::vector<std::tuple<double, double, double, double>> keys;
  for (const MeasuredExperts& one : measured) {
    seconds.push_back(one.seconds);
    keys.emplace_back(one.gemms[0].m, one.gemms[0].n, one.gemms[0].k, one.gemms[0].batch);
  }
  const Gpu burst = in_bursts(gpu);
  LogFit out = fit_logarithms(
      kConstants, [&](std::span<const double> x, int row) { return seconds_with(burst, measured[row], x); }, seconds,
      groups_of(keys));
  const std::array<double, 3> known = {1, out.constants[1], out.constants[2]};
  out.known = errors_of(burst, measured,
                        [&](const Gpu& one, const MeasuredExperts& row) { return seconds_with(one, row, known); });
  return out;
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
  found.heads.clear();
  const FitModel predict = [&](std::span<const double> x, int row) {
    set_constants(found, x);
    return predicted(tried, measured[row]);
  };
  LogFit out = fit_logarithms(constants, predict, seconds, groups_of(keys));
  out.known =
      errors_of(gpu, measured, [](const Gpu& one, const MeasuredAttention& row) { return predicted(one, row); });
  return out;
}

HeadConstants head_constants(double head_size, std::span<const double> x) {
  return {.head_size = head_size,
          .peak_fraction = x[0],
          .tail_rows = x[1],
          .overhead_keys = x[2],
          .window_keys = x.size() > 4 ? x[4] : 0};
}

// Rows of one head size, in frameworks.
LogFit fit_head(const Gpu& gpu, const std::vector<MeasuredAttention>& measured) {
  constexpr FitConstant kConstants[] = {{.guess = 0.6, .low = 0.02, .high = 1, .spread = 0.5},
                                        {.guess = 100, .low = 1, .high = 2000, .spread = 0.7},
                                        {.guess = 300, .low = 1, .high = 5000, .spread = 1},
                                        {.guess = 1e-5, .low = 1e-7, .high = 1e-4, .spread = 0.5},
                                        {.guess = 200, .low = 1, .high = 1e5, .spread = 1}};
  const bool windows =
      std::any_of(measured.begin(), measured.end(), [](const MeasuredAttention& one) { return one.shape.windowed; });
  const AttentionWork& first = measured[0].shape;
  Gpu tried = gpu;
  std::vector<HeadConstants>& heads = attention_constants_of(tried, first.backward, first.narrow).heads;
  const FitModel predict = [&](std::span<const double> x, int row) {
    heads.assign(1, head_constants(first.head_size, x));
    return predicted(tried, measured[row]) + x[3];
  };
  std::vector<double> seconds;
  std::vector<std::tuple<double, double, double>> keys;
  for (const MeasuredAttention& one : measured) {
    seconds.push_back(one.seconds);
    keys.emplace_back(one.shape.flops, one.shape.row_flops, one.bytes);
  }
  const std::span<const FitConstant> constants(kConstants, windows ? 5 : 4);
  LogFit out = fit_logarithms(constants, predict, seconds, groups_of(keys));
  out.known = errors_of(gpu, measured, [&](const Gpu& one, const MeasuredAttention& row) {
    return predicted(one, row) + out.constants[3];
  });
  return out;
}

// The constants of every head size, `fits`, in `gpu`, less those whose kernel others fall back from.
void fit_heads(Gpu& gpu, const std::vector<MeasuredAttention>& measured, bool backward, bool narrow,
               std::map<double, LogFit>& fits) {
  std::map<double, std::vector<MeasuredAttention>> by_size;
  for (const MeasuredAttention& one : measured) {
    if (one.by_head && one.shape.backward == backward && one.shape.narrow == narrow)
      by_size[one.shape.head_size].push_back(one);
  }
  double fastest = 0;
  for (const auto& [head_size, rows] : by_size) {
    if (rows.size() < kFewestRows) continue;
    const LogFit& fit = fits[head_size] = fit_head(gpu, rows);
    fastest = std::max(fastest, fit.constants[0]);
  }
  std::erase_if(fits, [&](const auto& fit) { return fit.second.constants[0] < fastest / 3; });
  if (fits.empty()) return;
  std::vector<HeadConstants>& heads = attention_constants_of(gpu, backward, narrow).heads;
  heads.clear();
  for (const auto& [head_size, fit] : fits) heads.push_back(head_constants(head_size, fit.constants));
}

void add_timed_gemm(const CsvTable& table, int row, MeasuredKernels& out) {
  out.gemms.push_back({.shape = {.m = table.number(row, "m_tokens", 1, kMostSize),
                                 .n = table.number(row, "n", 1, kMostSize),
                                 .k = table.number(row, "k", 1, kMostSize)},
                       .seconds = table.number(row, "median_ms", 1e-6, 1e9) * 1e-3});
}

void add_rated_kernel(const CsvTable& table, int row, MeasuredKernels& out) {
  const std::string& op = table.text(row, "op");
  if (op == "matmul") out.gemms.push_back(gemm_of(table, row));
  if (op == "group_matmul") out.grouped.push_back(grouped_gemm(table, row));
  if (op == "sdp_fwd" || op == "sdp_bwd") out.attention.push_back(attention(table, row, op == "sdp_bwd"));
}

// How the rows of a table are read, by its columns; null for tables of something else.
using AddRow = void (*)(const CsvTable& table, int row, MeasuredKernels& out);
AddRow reader_of(const CsvTable& table) {
  if (has_all(table, {"gpu", "m_tokens", "k", "n", "median_ms"})) return add_timed_gemm;
  if (has_all(table, {"gpu", "op", "shape", "m", "k", "n", "achieved_tflops"})) return add_rated_kernel;
  if (has_all(table, {"gpu", "dtype", "m", "n", "k", "best_us"})) return add_framework_gemm;
  if (has_all(table, {"gpu", "what", "dtype", "tokens", "hidden", "inter", "topk", "experts", "ep", "distribution",
                      "gated", "best_us"})) {
    return add_framework_experts;
  }
  if (has_all(table, {"gpu", "dtype", "batch", "seq", "heads", "kv_heads", "head_dim", "window", "best_us"})) {
    return add_framework_attention;
  }
  if (has_all(table, {"gpu", "kernel", "pass", "sequences", "tokens", "heads", "head_dim", "value_head_dim", "us"})) {
    return add_rate;
  }
  return nullptr;
}

}  // namespace

bool has_measured_kernels(const CsvTable& table) { return reader_of(table) != nullptr; }

std::map<std::string, MeasuredKernels> read_measured_kernels(const CsvTable& table) {
  std::map<std::string, MeasuredKernels> out;
  const AddRow add_row = reader_of(table);
  for (int row = 0; row < table.num_rows(); ++row) {
    MeasuredKernels& of_gpu = out[catalogue_name(table.text(row, "gpu"))];
    const std::size_t attention_before = of_gpu.attention.size();
    add_row(table, row, of_gpu);
    std::string& origin = of_gpu.attention.size() > attention_before ? of_gpu.attention_origin : of_gpu.origin;
    if (origin.empty()) origin = origin_of(table, row);
  }
  return out;
}

void add(MeasuredKernels& kernels, const MeasuredKernels& more) {
  const auto append = [](auto& rows, const auto& others) { rows.insert(rows.end(), others.begin(), others.end()); };
  const auto append_origin = [](std::string& origin, const std::string& other) {
    if (!origin.empty() && !other.empty()) origin += "; ";
    origin += other;
  };
  append_origin(kernels.origin, more.origin);
  append_origin(kernels.attention_origin, more.attention_origin);
  append(kernels.gemms, more.gemms);
  append(kernels.narrow[0], more.narrow[0]);
  append(kernels.narrow[1], more.narrow[1]);
  append(kernels.grouped, more.grouped);
  for (std::size_t i = 0; i < kernels.experts.size(); ++i) append(kernels.experts[i], more.experts[i]);
  append(kernels.attention, more.attention);
}

GpuFit fit_gpu(const Gpu& gpu, const MeasuredKernels& measured) {
  GpuFit out{.gpu = gpu,
             .origin = measured.origin,
             .attention_origin = measured.attention_origin,
             .gemm = {},
             .narrow = {},
             .grouped = {},
             .experts = {},
             .attention = {},
             .heads = {}};
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
  for (std::size_t i = 0; i < measured.experts.size(); ++i) {
    if (measured.experts[i].size() < kFewestRows || out.gpu.peak_of(measured.experts[i][0].gemms[0].bits) == 0)
      continue;
    out.experts[i] = fit_experts(out.gpu, measured.experts[i]);
  }
  for (const bool narrow : {false, true}) {
    if (narrow && gpu.gemm_8bit.peak_flops_per_s == 0) continue;
    for (const bool backward : {false, true}) {
      const auto fitted = [&](const MeasuredAttention& one) {
        const bool padded = one.shape.tile_size > 0 && attention_constants_of(out.gpu, backward, narrow).padded_values;
        return one.shape.backward == backward && one.shape.narrow == narrow && !padded && !one.by_head;
      };
      std::vector<MeasuredAttention> rows;
      std::copy_if(measured.attention.begin(), measured.attention.end(), std::back_inserter(rows), fitted);
      if (rows.size() >= kFewestRows) {
        LogFit& fit = out.attention[narrow ? 1 : 0][backward ? 1 : 0];
        fit = fit_attention(gpu, rows);
        AttentionConstants& constants = attention_constants_of(out.gpu, backward, narrow);
        set_constants(constants, fit.constants);
        constants.heads.clear();  // they would replace what was measured here
      }
      fit_heads(out.gpu, measured.attention, backward, narrow, out.heads[narrow ? 1 : 0][backward ? 1 : 0]);
    }
  }
  out.gpu.gemm.sustained_fraction = gpu.gemm.sustained_fraction;  // timed kernels do not determine it
  return out;
}

}  // namespace sluice::sim

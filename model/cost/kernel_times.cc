#include "model/cost/kernel_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/blocks/stage_kernels.h"
#include "model/cluster/cluster.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"

namespace sluice::model {
namespace {

const std::vector<std::string> kKinds = {"gemm", "attention"};
const std::vector<std::string> kFormats = {"bf16", "fp16", "fp8", "mxfp8", "nvfp4"};
const std::vector<std::string> kGemmPasses = {"forward", "input_gradient", "weight_gradient"};
const std::vector<std::string> kAttentionPasses = {"forward", "backward"};
constexpr std::int64_t kMostSize = std::int64_t{1} << 40;

template <typename Value>
Value word_of(const JsonReader& reader, const std::vector<std::string>& words) {
  const std::string word = reader.one_of(words);
  return static_cast<Value>(std::find(words.begin(), words.end(), word) - words.begin());
}

const std::string& pass_name(const KernelShape& shape) {
  const auto index = static_cast<std::size_t>(shape.pass);
  return shape.kind == KernelShape::Kind::gemm ? kGemmPasses[index] : kAttentionPasses[index];
}

KernelFormat format_of(GemmPrecision precision, int bits) {
  if (bits == 16) return precision == GemmPrecision::fp16 ? KernelFormat::fp16 : KernelFormat::bf16;
  if (bits == 4) return KernelFormat::nvfp4;
  return precision == GemmPrecision::mxfp8 ? KernelFormat::mxfp8 : KernelFormat::fp8;
}

KernelShape shape_from_json(JsonReader& row) {
  KernelShape shape{.kind = word_of<KernelShape::Kind>(row.at("kernel"), kKinds)};
  const bool gemm = shape.kind == KernelShape::Kind::gemm;
  shape.pass = word_of<GemmPass>(row.at("pass"), gemm ? kGemmPasses : kAttentionPasses);
  shape.format = word_of<KernelFormat>(row.at("format"), kFormats);
  const auto size = [&](const char* key) { return row.integer(key, 1, kMostSize); };
  if (gemm) {
    shape.m = size("m");
    shape.n = size("n");
    shape.k = size("k");
    shape.batch = row.integer_or("batch", 1, kMostSize, 1);
    shape.grouped = row.boolean_or("grouped", false);
    shape.accumulate_bytes = static_cast<int>(row.integer_or("accumulate_bytes", 0, 4, 0));
    return shape;
  }
  shape.attention = {.sequences = size("sequences"),
                     .tokens = size("tokens"),
                     .context = row.integer_or("context", 0, kMostSize, 0),
                     .heads = size("heads"),
                     .kv_heads = size("kv_heads"),
                     .head_dim = size("head_dim"),
                     .value_head_dim = size("value_head_dim")};
  if (!row.boolean_or("causal", true)) row.at("causal").fail("expected true: no other attention is modeled");
  return shape;
}

// The words of letters and digits of a name, in capitals.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      words.back() += static_cast<char>(std::toupper(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

std::string memory_word(const std::vector<std::string>& words) {
  const auto is_memory = [](const std::string& word) {
    return word.size() > 2 && word.ends_with("GB") && std::isdigit(static_cast<unsigned char>(word[0])) != 0;
  };
  const auto found = std::find_if(words.begin(), words.end(), is_memory);
  return found == words.end() ? "" : *found;
}

// Whether the driver's name of a device may be a GPU of the catalogue: of the same type and, where both names have
// them, with the same memory and bus.
bool may_be(const std::string& device, const std::string& gpu) {
  const std::vector<std::string> its = words_of(device);
  const std::vector<std::string> expected = words_of(gpu);
  const auto has = [](const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  const std::string memory = memory_word(its);
  return has(its, expected.front()) && (memory.empty() || memory == memory_word(expected)) &&
         has(its, "PCIE") == has(expected, "PCIE");
}

void check_device(JsonReader& reader, const KernelTimes& times) {
  const std::vector<std::string> names = catalogue_gpus();
  const bool known = std::any_of(names.begin(), names.end(),
                                 [&](const std::string& name) { return catalogue_gpu(name).name == times.gpu; });
  if (known && !may_be(times.device, times.gpu)) {
    reader.at("device").fail(fmt::format("expected the GPU {} (gpu), for which the shapes were listed", times.gpu));
  }
}

std::string required_text(JsonReader& reader, const char* key) {
  std::string text = reader.string(key);
  if (text.empty()) reader.at(key).fail("expected a name");
  return text;
}

}  // namespace

std::optional<KernelShape> kernel_shape(GemmPrecision precision, const KernelCall& call) {
  const auto whole = [](double size) { return std::max<std::int64_t>(1, std::llround(size)); };
  if (call.kind == KernelClass::gemm) {
    const GemmShape& gemm = call.gemm;
    if (gemm.fused) return std::nullopt;
    return KernelShape{.kind = KernelShape::Kind::gemm,
                       .pass = gemm.pass,
                       .format = format_of(precision, gemm.bits),
                       .m = whole(gemm.m),
                       .n = whole(gemm.n),
                       .k = whole(gemm.k),
                       .batch = whole(gemm.batch),
                       .grouped = gemm.apart,
                       .accumulate_bytes = gemm.result_bytes > 2 ? static_cast<int>(gemm.result_bytes / 2) : 0,
                       .attention = {}};
  }
  const bool forward = call.kind == KernelClass::attention_forward;
  if ((!forward && call.kind != KernelClass::attention_backward) || call.attention.sequences == 0) return std::nullopt;
  if (call.narrow_attention) return std::nullopt;
  KernelShape shape{.kind = KernelShape::Kind::attention,
                    .pass = forward ? GemmPass::forward : GemmPass::input_gradient,
                    .format = format_of(precision, 16)};
  shape.attention = call.attention;
  return shape;
}

std::string_view name_of(KernelFormat format) { return kFormats[static_cast<std::size_t>(format)]; }

std::string class_of(const KernelShape& shape) {
  std::string pass = pass_name(shape);
  std::replace(pass.begin(), pass.end(), '_', ' ');
  const bool gemm = shape.kind == KernelShape::Kind::gemm;
  return fmt::format("{} {} {}", gemm ? "GEMM" : "attention", pass, name_of(shape.format));
}

std::string to_string(const KernelShape& shape) {
  if (shape.kind == KernelShape::Kind::attention) {
    const AttentionShape& a = shape.attention;
    return fmt::format("{} {} x {} tokens{}, {} heads of {}", class_of(shape), a.sequences, a.tokens,
                       a.context > 0 ? fmt::format(" after {}", a.context) : "", a.heads, a.head_dim);
  }
  return fmt::format("{} {}{} x {} x {}", class_of(shape), shape.batch > 1 ? fmt::format("{} of ", shape.batch) : "",
                     shape.m, shape.n, shape.k);
}

nlohmann::ordered_json to_json(const KernelShape& shape) {
  nlohmann::ordered_json out = {{"kernel", kKinds[static_cast<std::size_t>(shape.kind)]},
                                {"pass", pass_name(shape)},
                                {"format", name_of(shape.format)}};
  if (shape.kind == KernelShape::Kind::gemm) {
    out.update({{"m", shape.m},
                {"n", shape.n},
                {"k", shape.k},
                {"batch", shape.batch},
                {"grouped", shape.grouped},
                {"accumulate_bytes", shape.accumulate_bytes}});
  } else {
    const AttentionShape& a = shape.attention;
    out.update({{"sequences", a.sequences},
                {"tokens", a.tokens},
                {"context", a.context},
                {"heads", a.heads},
                {"kv_heads", a.kv_heads},
                {"head_dim", a.head_dim},
                {"value_head_dim", a.value_head_dim},
                {"causal", true}});
  }
  return out;
}

std::optional<double> KernelTimes::find(const KernelShape& shape) const {
  const auto found = times.find(shape);
  if (found == times.end()) return std::nullopt;
  return found->second.seconds;
}

KernelTimes kernel_times_from_json(JsonReader reader) {
  if (reader.string("schema") != kKernelTimesSchema) {
    reader.at("schema").fail(fmt::format("expected \"{}\"", kKernelTimesSchema));
  }
  KernelTimes out{.gpu = required_text(reader, "gpu"),
                  .device = required_text(reader, "device"),
                  .library = required_text(reader, "library"),
                  .times = {}};
  check_device(reader, out);
  std::map<KernelShape, std::string> places;
  for (JsonReader& row : reader.at("kernels").elements()) {
    const KernelShape shape = shape_from_json(row);
    const KernelTimes::Time time{.seconds = row.number("seconds", 1e-9, 1e4),
                                 .predicted_s = row.number_or("predicted_s", 0, 1e4, 0)};
    for (const char* key : {"count", "spread_s", "runs", "backend"}) row.allow(key);
    row.finish();
    const auto [place, added] = places.emplace(shape, row.pointer());
    if (!added) {
      throw InputError(fmt::format("{}: {}: the same kernel as {}", row.source(), row.pointer(), place->second));
    }
    out.times.emplace(shape, time);
  }
  if (out.times.empty()) reader.at("kernels").fail("expected at least one kernel");
  reader.allow("skipped");
  reader.allow("comment");
  reader.finish();
  return out;
}

KernelTimes read_kernel_times(const std::string& path) {
  const Json json = parse_json(read_file(path, 1 << 26), path);
  return kernel_times_from_json(JsonReader(json, path));
}

std::string to_json_text(const KernelTimes& times) {
  nlohmann::ordered_json out = {
      {"schema", kKernelTimesSchema}, {"gpu", times.gpu}, {"device", times.device}, {"library", times.library}};
  for (const auto& [shape, time] : times.times) {
    nlohmann::ordered_json row = to_json(shape);
    row["seconds"] = time.seconds;
    if (time.predicted_s > 0) row["predicted_s"] = time.predicted_s;
    out["kernels"].push_back(std::move(row));
  }
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::model

#include "tools/simulate/explain_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>

#include "model/blocks/layer_tensors.h"
#include "model/cost/kernel_uses.h"
#include "model/errors.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

// Returns for example "embedding, 3 layers".
std::string contents_text(const StageContents& held) {
  std::string out;
  const auto add = [&](const std::string& text) { out += (out.empty() ? "" : ", ") + text; };
  if (held.embedding) add("embedding");
  if (held.layers > 0) add(fmt::format("{} layer{}", held.layers, held.layers == 1 ? "" : "s"));
  if (held.mtp_layers > 0) add(held.mtp_layers == 1 ? "MTP layer" : fmt::format("{} MTP layers", held.mtp_layers));
  if (held.head) add("head");
  return out.empty() ? "nothing" : out;
}

const AnalyticCost& analytic(const Setup& setup) {
  const auto* cost = dynamic_cast<const AnalyticCost*>(&setup.cost());
  if (cost == nullptr) {
    throw InputError("--explain: expected the analytic cost model: measured and uniform costs have no kernels");
  }
  return *cost;
}

std::string text_of(double seconds) { return time_text(from_seconds(seconds, "--explain")); }

}  // namespace

std::vector<ExplainedOp> explained_ops(const Setup& setup, const std::string& stage) {
  const AnalyticCost& cost = analytic(setup);
  const int num_stages = setup.schedule().num_stages();
  std::vector<int> stages;
  if (stage == "all") {
    stages = distinct_stages(cost, num_stages);
  } else {
    int number = -1;
    const auto [end, error] = std::from_chars(stage.data(), stage.data() + stage.size(), number);
    if (error != std::errc{} || end != stage.data() + stage.size() || number < 0 || number >= num_stages) {
      throw InputError(fmt::format("--explain: expected a stage from 0 to {}, got '{}'", num_stages - 1, stage));
    }
    stages = {number};
  }
  std::vector<ExplainedOp> out;
  for (const int one : stages) {
    for (ExplainedOp& op : explain_stage(cost, setup.schedule(), one, setup.schedule().shape(0))) {
      out.push_back(std::move(op));
    }
  }
  return out;
}

std::string explain_text(const Setup& setup, std::span<const ExplainedOp> ops) {
  const AnalyticCost& cost = analytic(setup);
  const int last = setup.schedule().shape(0).num_slices() - 1;
  std::size_t width = 0;
  for (const ExplainedOp& op : ops) {
    for (const ExplainedKernel& kernel : op.kernels) width = std::max(width, kernel.name.size());
  }
  std::string out;
  const auto to = std::back_inserter(out);
  int stage = -1;
  for (const ExplainedOp& op : ops) {
    if (op.slice != last) continue;
    if (op.stage != stage) {
      stage = op.stage;
      fmt::format_to(to, "\nstage {}: {}; {} x {} tokens per device", stage, contents_text(cost.contents(stage)),
                     op.size.sequences, op.size.tokens);
      if (last > 0) fmt::format_to(to, " after a prefix of {}, slice {} of {}", op.size.context, last + 1, last + 1);
      out += '\n';
    }
    fmt::format_to(to, "\n  {:<9}  {:<{}}  {:>6}  {:>10}  {:>10}  {:>10}  {:>7}  limited by\n", op.op, "kernel", width,
                   "count", "GFLOP", "MB", "time", "percent");
    double flops = 0;
    double bytes = 0;
    int count = 0;
    for (const ExplainedKernel& kernel : op.kernels) {
      fmt::format_to(to, "  {:<9}  {:<{}}  {:>6}  {:>10.4g}  {:>10.4g}  {:>10}  {:>5.1f} %  {}\n", kernel.part,
                     kernel.name, width, kernel.count, kernel.flops / 1e9, kernel.bytes / 1e6, text_of(kernel.seconds),
                     op.seconds > 0 ? 100 * kernel.seconds / op.seconds : 0,
                     fmt::format("{}{}", name_of(kernel.limit), kernel.measured ? ", measured" : ""));
      flops += kernel.flops;
      bytes += kernel.bytes;
      if (kernel.limit != Limit::host) count += kernel.count;
    }
    fmt::format_to(to, "  {:<9}  {:<{}}  {:>6}  {:>10.4g}  {:>10.4g}  {:>10}\n", "", "total", width, count, flops / 1e9,
                   bytes / 1e6, text_of(op.seconds));
  }
  return out;
}

std::string measured_kernels_text(const Setup& setup) {
  constexpr std::size_t kMost = 5;  // shapes without a measurement; JSON has all
  const std::optional<KernelTimes>& times = setup.scenario().kernel_times;
  if (!times) return "";
  const KernelUses uses = kernel_uses(analytic(setup), setup.schedule());
  const std::vector<KernelUse> missing = uses.not_measured();
  const auto percent = [&](double seconds) { return 100 * seconds / uses.compute_s; };
  std::string out = fmt::format(
      "  measured kernels  {} of {} GEMM and attention shapes; {} of {} kernels, {:.1f} % of the compute time ({})\n",
      uses.shapes.size() - missing.size(), uses.shapes.size(), uses.measured_kernels, uses.kernels,
      percent(uses.measured_s), times->library);
  for (std::size_t i = 0; i < std::min(kMost, missing.size()); ++i) {
    const KernelUse& use = missing[i];
    fmt::format_to(std::back_inserter(out), "    not measured: {}, {:.1f} %\n", to_string(use.shape),
                   percent(static_cast<double>(use.count) * use.seconds));
  }
  if (missing.size() > kMost) {
    fmt::format_to(std::back_inserter(out), "    not measured: {} more shapes (--json)\n", missing.size() - kMost);
  }
  return out;
}

nlohmann::ordered_json measured_kernels_json(const Setup& setup) {
  const std::optional<KernelTimes>& times = setup.scenario().kernel_times;
  if (!times) return nullptr;
  const KernelUses uses = kernel_uses(analytic(setup), setup.schedule());
  nlohmann::ordered_json missing = nlohmann::ordered_json::array();
  for (const KernelUse& use : uses.not_measured()) {
    nlohmann::ordered_json row = to_json(use.shape);
    row["count"] = use.count;
    row["predicted_s"] = use.seconds;
    missing.push_back(std::move(row));
  }
  return {{"gpu", times->gpu},
          {"device", times->device},
          {"library", times->library},
          {"shapes", uses.shapes.size()},
          {"measured_shapes", uses.shapes.size() - missing.size()},
          {"kernels", uses.kernels},
          {"measured_kernels", uses.measured_kernels},
          {"compute_s", uses.compute_s},
          {"measured_s", uses.measured_s},
          {"not_measured", std::move(missing)}};
}

nlohmann::ordered_json explain_json(std::span<const ExplainedOp> ops) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const ExplainedOp& op : ops) {
    nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
    for (const ExplainedKernel& kernel : op.kernels) {
      kernels.push_back({{"part", kernel.part},
                         {"name", kernel.name},
                         {"count", kernel.count},
                         {"flops", kernel.flops},
                         {"bytes", kernel.bytes},
                         {"seconds", kernel.seconds},
                         {"limit", name_of(kernel.limit)},
                         {"measured", kernel.measured}});
    }
    out.push_back({{"stage", op.stage},
                   {"op", op.op},
                   {"slice", op.slice},
                   {"sequences", op.size.sequences},
                   {"tokens", op.size.tokens},
                   {"context", op.size.context},
                   {"seconds", op.seconds},
                   {"kernels", std::move(kernels)}});
  }
  return out;
}

ExplainedMemory explained_memory(const Setup& setup, const Prediction& prediction, const std::string& rank) {
  const Footprint* const footprint = setup.lowering_options().footprint;
  if (footprint == nullptr) throw InputError("--explain-memory: expected a model (--model)");
  const auto ranks = std::ssize(prediction.memory);
  ExplainedMemory out;
  if (rank == "most") {
    const auto most = std::max_element(prediction.memory.begin(), prediction.memory.end(),
                                       [](const auto& a, const auto& b) { return a.peak_bytes < b.peak_bytes; });
    out.rank = static_cast<int>(most - prediction.memory.begin());
  } else {
    const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), out.rank);
    if (error != std::errc() || end != rank.data() + rank.size() || out.rank < 0 || out.rank >= ranks) {
      throw InputError(fmt::format("--explain-memory: expected a rank from 0 to {}, got '{}'", ranks - 1, rank));
    }
  }
  out.tensors = held_at_peak(setup.graph(), prediction.timeline, *footprint,
                             prediction.memory[static_cast<std::size_t>(out.rank)], out.rank);
  return out;
}

// Adds up the tensors of equal names over the stages of a rank, the largest first.
std::vector<HeldTensor> over_stages(std::span<const HeldTensor> tensors) {
  std::vector<HeldTensor> out;
  for (const HeldTensor& tensor : tensors) {
    const auto same = [&](const HeldTensor& other) {
      return std::tie(other.memory_class, other.name, other.formula) ==
             std::tie(tensor.memory_class, tensor.name, tensor.formula);
    };
    const auto known = std::find_if(out.begin(), out.end(), same);
    if (known == out.end()) {
      out.push_back(tensor);
    } else {
      known->count += tensor.count;
      known->bytes += tensor.bytes;
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return out;
}

std::string explain_memory_text(const Setup& setup, const Prediction& prediction, const ExplainedMemory& explained) {
  const RankMemory& memory = prediction.memory[static_cast<std::size_t>(explained.rank)];
  std::size_t width = std::string_view("tensor").size();
  for (const HeldTensor& tensor : explained.tensors) width = std::max(width, tensor.name.size());
  std::string out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "\nmemory of rank {} at its peak, after {}\n", explained.rank, time_text(memory.peak_time));
  fmt::format_to(to, "  {:<11}  {:<{}}  {:>7}  {:>8}  {:>7}  bytes of one\n", "class", "tensor", width, "number", "GiB",
                 "percent");
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  int smaller = 0;
  std::int64_t rest = 0;
  for (const HeldTensor& tensor : over_stages(explained.tensors)) {
    const double percent = 100.0 * static_cast<double>(tensor.bytes) / static_cast<double>(memory.peak_bytes);
    if (std::abs(percent) < 0.1) {
      ++smaller;
      rest += tensor.bytes;
      continue;
    }
    fmt::format_to(to, "  {:<11}  {:<{}}  {:>7}  {:>8.3f}  {:>5.1f} %  {}\n",
                   kMemoryClassNames[static_cast<std::size_t>(tensor.memory_class)], tensor.name, width, tensor.count,
                   gib(tensor.bytes), percent, tensor.formula);
  }
  if (smaller > 0) {
    fmt::format_to(to, "  {:<11}  {:<{}}  {:>7}  {:>8.3f}\n", "", fmt::format("{} smaller ones", smaller), width, "",
                   gib(rest));
  }
  fmt::format_to(to, "  {:<11}  {:<{}}  {:>7}  {:>8.3f}\n", "", "allocated", width, "", gib(memory.peak_bytes));
  if (prediction.fit) {
    const Gpu& gpu = setup.scenario().cluster->gpu;
    const auto overhead = static_cast<std::int64_t>(static_cast<double>(memory.peak_bytes) * gpu.fragmentation);
    const std::int64_t needed = sim::needed_bytes(gpu, memory.peak_bytes);
    fmt::format_to(to,
                   "with {:.3f} GiB of the allocator and {:.3f} GiB of context and communication: {:.3f} GiB of {:.3f} "
                   "GiB, {}\n",
                   gib(overhead), gib(gpu.reserved_bytes), gib(needed), gib(gpu.memory_bytes),
                   needed > gpu.memory_bytes   ? "does not fit"
                   : gpu.within_margin(needed) ? "within the margin"
                                               : "fits");
  }
  return out + fmt::format("{}\n", tensor_symbols());
}

nlohmann::ordered_json explain_memory_json(const Prediction& prediction, const ExplainedMemory& explained) {
  const RankMemory& memory = prediction.memory[static_cast<std::size_t>(explained.rank)];
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const HeldTensor& tensor : explained.tensors) {
    nlohmann::ordered_json one = {{"class", kMemoryClassNames[static_cast<std::size_t>(tensor.memory_class)]},
                                  {"name", tensor.name},
                                  {"stage", nullptr},
                                  {"count", tensor.count},
                                  {"bytes", tensor.bytes},
                                  {"formula", tensor.formula}};
    if (tensor.stage >= 0) one["stage"] = tensor.stage;
    tensors.push_back(std::move(one));
  }
  return {{"rank", explained.rank},
          {"time_s", to_seconds(memory.peak_time)},
          {"bytes", memory.peak_bytes},
          {"tensors", std::move(tensors)}};
}

}  // namespace sluice::tools

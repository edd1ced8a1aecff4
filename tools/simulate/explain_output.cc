#include "tools/simulate/explain_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>

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
                     op.seconds > 0 ? 100 * kernel.seconds / op.seconds : 0, name_of(kernel.limit));
      flops += kernel.flops;
      bytes += kernel.bytes;
      if (kernel.limit != Limit::host) count += kernel.count;
    }
    fmt::format_to(to, "  {:<9}  {:<{}}  {:>6}  {:>10.4g}  {:>10.4g}  {:>10}\n", "", "total", width, count, flops / 1e9,
                   bytes / 1e6, text_of(op.seconds));
  }
  return out;
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
                         {"limit", name_of(kernel.limit)}});
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

}  // namespace sluice::tools

#include "benchmarks/accuracy/dualpipe_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice::bench::accuracy {
namespace {

// "attn(F)" and "mlp(W)" are attention(F) and experts(W).
PassPart part_of(const CsvTable& table, int row) {
  std::string word = table.text(row, "op");
  for (const auto& [theirs, ours] : {std::pair("attn(", "attention("), std::pair("mlp(", "experts(")}) {
    if (word.starts_with(theirs)) word = ours + word.substr(std::string(theirs).size());
  }
  const std::optional<PassPart> part = parse_part(word);
  if (!part) table.fail(row, "op", "expected a part of a layer");
  return *part;
}

TracedPart traced_part(const CsvTable& table, int row) {
  const auto seconds = [&](const char* column) { return 1e-6 * table.number(row, column, 0, 1e12); };
  return {.part = part_of(table, row),
          .layer = static_cast<int>(table.integer(row, "index", 0, 1000)),
          .start_s = seconds("gpu_start_us"),
          .end_s = seconds("gpu_end_us"),
          .kernels = {.busy_s = seconds("gpu_busy_us"),
                      .kernels = static_cast<int>(table.integer(row, "kernels", 1, 1 << 20))}};
}

void add_stream(TracedPart& part, const TracedPart& stream) {
  part.start_s = std::min(part.start_s, stream.start_s);
  part.end_s = std::max(part.end_s, stream.end_s);
  const double second = std::min(part.kernels.busy_s, stream.kernels.busy_s);
  if (stream.kernels.busy_s > part.kernels.busy_s) part.kernels = stream.kernels;
  part.kernels.second_busy_s = second;
}

// A part and the one for which it waits, by part and layer; nothing for the first ones.
using Name = std::pair<std::string, int>;
using Wait = std::pair<Name, std::optional<Name>>;

std::set<Wait> waits(const std::vector<TracedPart>& parts) {
  const auto name = [](const TracedPart& part) { return Name(to_string(part.part), part.layer); };
  std::set<Wait> out;
  for (const TracedPart& part : parts) {
    const TracedPart* before = nullptr;
    for (const TracedPart& other : parts) {
      if (other.end_s > part.start_s) continue;
      if (before == nullptr || other.end_s > before->end_s) before = &other;
    }
    out.emplace(name(part), before == nullptr ? std::nullopt : std::optional(name(*before)));
  }
  return out;
}

std::set<Wait> waits(const WovenBlock& block) {
  const auto name = [](const WovenPart& part) { return Name(to_string(part.part), part.layer); };
  std::set<Wait> out;
  for (const WovenPart& part : block.parts) {
    out.emplace(name(part),
                part.after < 0 ? std::nullopt : std::optional(name(block.parts[static_cast<std::size_t>(part.after)])));
  }
  return out;
}

template <typename Seconds>
WovenBlock replayed(const std::vector<TracedPart>& parts, const Seconds& seconds) {
  std::vector<LayerTimes> forward;
  std::vector<LayerTimes> backward;
  for (const TracedPart& each : parts) {
    std::vector<LayerTimes>& layers = each.part.pass == OpKind::F ? forward : backward;
    const auto layer = static_cast<std::size_t>(each.layer);
    if (layer >= layers.size()) layers.resize(layer + 1);
    layers[layer].of(each.part.pass, each.part.part) = seconds(each);
  }
  return weave_block(find_weave("dualpipe"), forward, backward);
}

}  // namespace

std::vector<TracedPart> traced_parts(const CsvTable& table) {
  std::vector<TracedPart> parts;
  for (int row = 0; row < table.num_rows(); ++row) {
    const TracedPart part = traced_part(table, row);
    const auto same = std::find_if(parts.begin(), parts.end(), [&](const TracedPart& each) {
      return each.part == part.part && each.layer == part.layer;
    });
    if (same == parts.end()) {
      parts.push_back(part);
    } else {
      add_stream(*same, part);
    }
  }
  return parts;
}

StreamGaps gaps_without(const std::vector<TracedPart>& parts, int layer) {
  std::vector<TracedExtent> others;
  for (const TracedPart& part : parts) {
    if (part.layer != layer && !communicates(part.part.part)) others.push_back({part.kernels, part.seconds()});
  }
  return fit_gaps(others);
}

TableScore score_dualpipe_trace(const CsvTable& table) {
  const std::vector<TracedPart> parts = traced_parts(table);
  double end_s = 0;
  double compute_s = 0;
  int layers = 0;
  for (const TracedPart& part : parts) {
    end_s = std::max(end_s, part.end_s);
    layers = std::max(layers, part.layer + 1);
    if (!communicates(part.part.part)) compute_s += part.seconds();
  }
  TableScore score;
  const auto add = [&](const char* group, double measured, double predicted, const char* unit) {
    score.comparisons.push_back({group, fmt::format("{}: rows 1 to {}", table.source(), table.num_rows()),
                                 fmt::format("F and B of {} layers", layers), measured, predicted, unit});
  };
  const WovenBlock block = replayed(parts, [](const TracedPart& part) { return part.seconds(); });
  add("block from the extents of its parts", end_s, block.seconds, "s");
  const std::set<Wait> measured = waits(parts);
  const std::set<Wait> predicted = waits(block);
  std::vector<Wait> same;
  std::set_intersection(measured.begin(), measured.end(), predicted.begin(), predicted.end(), std::back_inserter(same));
  add("parts that wait for the same part", static_cast<double>(parts.size()), static_cast<double>(same.size()),
      "parts");
  add("idle time of the compute lane", end_s - compute_s, block.seconds - compute_s, "s");
  add("block from their busy times", end_s,
      replayed(parts, [](const TracedPart& part) { return part.kernels.busy_s; }).seconds, "s");
  add("block from busy times and the gaps of other layers", end_s,
      replayed(parts, [&](const TracedPart& part) { return extent_s(part.kernels, gaps_without(parts, part.layer)); })
          .seconds,
      "s");
  return score;
}

}  // namespace sluice::bench::accuracy

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

#include "model/median.h"
#include "model/weave/weave.h"

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

// A part of the trace, in microseconds. Weight gradients run on two streams.
struct TracedPart {
  PassPart part;
  int layer = 0;
  double start_us = 0;
  double end_us = 0;
  double busy_us = 0;         // of the longer stream
  double second_busy_us = 0;  // of the shorter one, or 0
  int kernels = 0;            // of the longer stream

  double extent_us() const { return end_us - start_us; }
  bool is(const TracedPart& other) const { return part == other.part && layer == other.layer; }
  void add_stream(const TracedPart& other) {
    start_us = std::min(start_us, other.start_us);
    end_us = std::max(end_us, other.end_us);
    second_busy_us = std::min(busy_us, other.busy_us);
    if (other.busy_us > busy_us) kernels = other.kernels;
    busy_us = std::max(busy_us, other.busy_us);
  }
};

TracedPart traced_part(const CsvTable& table, int row) {
  return {.part = part_of(table, row),
          .layer = static_cast<int>(table.integer(row, "index", 0, 1000)),
          .start_us = table.number(row, "gpu_start_us", 0, 1e12),
          .end_us = table.number(row, "gpu_end_us", 0, 1e12),
          .busy_us = table.number(row, "gpu_busy_us", 0, 1e12),
          .kernels = static_cast<int>(table.integer(row, "kernels", 1, 1 << 20))};
}

std::vector<TracedPart> traced_parts(const CsvTable& table) {
  std::vector<TracedPart> parts;
  for (int row = 0; row < table.num_rows(); ++row) {
    const TracedPart part = traced_part(table, row);
    const auto same = std::find_if(parts.begin(), parts.end(), [&](const TracedPart& each) { return each.is(part); });
    if (same == parts.end()) {
      parts.push_back(part);
    } else {
      same->add_stream(part);
    }
  }
  return parts;
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
      if (other.end_us > part.start_us) continue;
      if (before == nullptr || other.end_us > before->end_us) before = &other;
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

// The extent of a part from its busy time: a gap before each kernel, and the part of the second stream's kernels that
// the multiprocessors cannot run beside those of the first. Both constants are medians over the other layers.
double contended_us(const TracedPart& part, const std::vector<TracedPart>& parts) {
  std::vector<double> gaps;
  std::vector<double> exposed;
  for (const TracedPart& other : parts) {
    if (other.layer == part.layer || communicates(other.part.part)) continue;
    const double idle_us = other.extent_us() - other.busy_us;
    if (other.second_busy_us > 0) {
      exposed.push_back(idle_us / other.second_busy_us);
    } else {
      gaps.push_back(idle_us / other.kernels);
    }
  }
  if (communicates(part.part.part)) return part.busy_us;
  if (part.second_busy_us > 0) return part.busy_us + upper_median(exposed) * part.second_busy_us;
  return part.busy_us + upper_median(gaps) * part.kernels;
}

template <typename Microseconds>
WovenBlock replayed(const std::vector<TracedPart>& parts, const Microseconds& time_us) {
  std::vector<LayerTimes> forward;
  std::vector<LayerTimes> backward;
  for (const TracedPart& each : parts) {
    std::vector<LayerTimes>& layers = each.part.pass == OpKind::F ? forward : backward;
    const auto layer = static_cast<std::size_t>(each.layer);
    if (layer >= layers.size()) layers.resize(layer + 1);
    layers[layer].of(each.part.pass, each.part.part) = 1e-6 * time_us(each);
  }
  return weave_block(find_weave("dualpipe"), forward, backward);
}

}  // namespace

TableScore score_dualpipe_trace(const CsvTable& table) {
  const std::vector<TracedPart> parts = traced_parts(table);
  double end_us = 0;
  double compute_us = 0;
  int layers = 0;
  for (const TracedPart& part : parts) {
    end_us = std::max(end_us, part.end_us);
    layers = std::max(layers, part.layer + 1);
    if (!communicates(part.part.part)) compute_us += part.extent_us();
  }
  TableScore score;
  const auto add = [&](const char* group, double measured, double predicted, const char* unit) {
    score.comparisons.push_back({group, fmt::format("{}: rows 1 to {}", table.source(), table.num_rows()),
                                 fmt::format("F and B of {} layers", layers), measured, predicted, unit});
  };
  const WovenBlock block = replayed(parts, [](const TracedPart& part) { return part.extent_us(); });
  add("block from the extents of its parts", 1e-6 * end_us, block.seconds, "s");
  const std::set<Wait> measured = waits(parts);
  const std::set<Wait> predicted = waits(block);
  std::vector<Wait> same;
  std::set_intersection(measured.begin(), measured.end(), predicted.begin(), predicted.end(), std::back_inserter(same));
  add("parts that wait for the same part", static_cast<double>(parts.size()), static_cast<double>(same.size()),
      "parts");
  add("idle time of the compute lane", 1e-6 * (end_us - compute_us), block.seconds - 1e-6 * compute_us, "s");
  add("block from their busy times", 1e-6 * end_us,
      replayed(parts, [](const TracedPart& part) { return part.busy_us; }).seconds, "s");
  add("block from their busy times and contention, held out by layer", 1e-6 * end_us,
      replayed(parts, [&](const TracedPart& part) { return contended_us(part, parts); }).seconds, "s");
  return score;
}

}  // namespace sluice::bench::accuracy

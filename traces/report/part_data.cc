#include "traces/report/part_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "model/to_size.h"

namespace sluice::traces {
namespace {

// A dispatch or combine of an op; times in ns from the start of the op.
struct PatternPart {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t hidden = 0;
  std::int32_t layer = 0;
  std::uint8_t name = 0;
  friend auto operator<=>(const PatternPart&, const PatternPart&) = default;  // NOLINT(modernize-use-nullptr)
};
using Pattern = std::vector<PatternPart>;

// Names of merged parts, by index.
constexpr std::array<LayerPart, 2> kMergedParts = {LayerPart::dispatch, LayerPart::combine};

// Returns `num_bins` equal intervals of a pattern: in each the sum of dispatch, then the sum of combine. `is_combine`
// is by name.
Pattern merged_pattern(const Pattern& parts, std::int64_t num_bins, const std::vector<bool>& is_combine) {
  const std::int64_t from = parts.front().start;
  const std::int64_t to = parts.back().end;
  const std::int64_t width = std::max<std::int64_t>((to - from) / num_bins, 1);
  Pattern merged;
  std::size_t first = 0;
  for (std::int64_t bin = 0; bin < num_bins && from + bin * width < to; ++bin) {
    const std::int64_t begin = from + bin * width;
    const std::int64_t end = bin + 1 == num_bins ? to : std::min(to, begin + width);
    std::array<std::int64_t, 2> busy{};
    std::array<double, 2> hidden{};
    while (first < parts.size() && parts[first].end <= begin) ++first;
    for (std::size_t i = first; i < parts.size() && parts[i].start < end; ++i) {
      const std::int64_t within = std::min(end, parts[i].end) - std::max(begin, parts[i].start);
      const std::size_t which = is_combine[parts[i].name] ? 1 : 0;
      busy[which] += within;
      hidden[which] += static_cast<double>(parts[i].hidden) * static_cast<double>(within) /
                       static_cast<double>(parts[i].end - parts[i].start);
    }
    std::int64_t at = begin;
    for (std::size_t which = 0; which < busy.size(); ++which) {
      if (busy[which] == 0) continue;
      merged.push_back({.start = at,
                        .end = at + busy[which],
                        .hidden = std::min<std::int64_t>(busy[which], std::llround(hidden[which])),
                        .layer = -1,
                        .name = static_cast<std::uint8_t>(which)});
      at += busy[which];
    }
  }
  return merged;
}

// The communication that takes time, op by op.
struct OpPatterns {
  std::vector<std::string> names;
  std::vector<bool> is_combine;  // by name
  std::vector<std::pair<VertexId, Pattern>> ops;
  std::int64_t num_parts = 0;
};

OpPatterns op_patterns(std::span<const PartRow> parts, const Timeline& timeline, int num_ranks) {
  const std::vector<Duration> hidden = hidden_times(parts, num_ranks);
  OpPatterns out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const PartRow& part = parts[i];
    if (!communicates(part.part.part) || part.end <= part.start) continue;
    std::string name = to_string(part.part);
    const auto known = std::find(out.names.begin(), out.names.end(), name) - out.names.begin();
    if (known == std::ssize(out.names)) {
      out.names.push_back(std::move(name));
      out.is_combine.push_back(part.part.part == LayerPart::combine);
    }
    if (out.ops.empty() || out.ops.back().first != part.vertex) out.ops.push_back({part.vertex, {}});
    const Duration start = timeline.start[part.vertex];
    out.ops.back().second.push_back({.start = (part.start - start).count(),
                                     .end = (part.end - start).count(),
                                     .hidden = hidden[i].count(),
                                     .layer = part.layer,
                                     .name = static_cast<std::uint8_t>(known)});
    ++out.num_parts;
  }
  return out;
}

}  // namespace

PartData part_data(std::span<const PartRow> parts, const Timeline& timeline, int num_ranks) {
  PartData data;
  OpPatterns patterns = op_patterns(parts, timeline, num_ranks);
  data.names = std::move(patterns.names);
  data.merged = patterns.num_parts > kMaxReportParts;
  if (data.merged) {
    data.names.clear();
    for (const LayerPart part : kMergedParts) data.names.emplace_back(to_string(part));
  }
  const std::int64_t num_bins =
      std::max<std::int64_t>(1, kMaxReportParts / std::max<std::int64_t>(1, 2 * std::ssize(patterns.ops)));
  data.pattern_of.assign(timeline.start.size(), -1);
  std::map<Pattern, std::int32_t> known;
  for (auto& [vertex, whole] : patterns.ops) {
    if (data.merged) whole = merged_pattern(whole, num_bins, patterns.is_combine);
    const auto [found, added] = known.try_emplace(std::move(whole), static_cast<std::int32_t>(known.size()));
    data.pattern_of[vertex] = found->second;
    if (!added) continue;
    data.num_parts.push_back(static_cast<std::int32_t>(found->first.size()));
    std::int64_t free = 0;
    for (const PatternPart& part : found->first) {
      data.gap.push_back(part.start - free);
      data.duration.push_back(part.end - part.start);
      data.hidden.push_back(part.hidden);
      data.layer.push_back(part.layer);
      data.name.push_back(part.name);
      free = part.end;
    }
  }
  return data;
}

}  // namespace sluice::traces

#include "model/slicing/slice_times_file.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "model/input/files.h"
#include "model/input/json_reader.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kMaxFileTokens = std::int64_t{1} << 31;
constexpr double kMaxFileSeconds = 1e6;

SliceTimes times_from_json(const JsonReader& rows, std::int64_t tokens, std::int64_t granularity) {
  const std::int64_t granules = (tokens + granularity - 1) / granularity;
  std::vector<std::vector<Duration>> table;
  RoundingError error;  // of single granules, the shortest slices
  for (const JsonReader& row : rows.elements()) {
    std::vector<Duration>& times = table.emplace_back();
    for (const JsonReader& seconds : row.elements()) {
      times.push_back(from_seconds(seconds.number(0, kMaxFileSeconds), "time of a slice"));
      if (times.size() == 1) error.add(seconds.number(0, kMaxFileSeconds), times[0]);
    }
    const std::int64_t left = granules - std::ssize(table) + 1;
    if (std::ssize(times) < left) {
      row.fail(fmt::format("expected {} times, of 1 to {} granules after a prefix of {} tokens", left, left,
                           (std::ssize(table) - 1) * granularity));
    }
  }
  if (std::ssize(table) != granules) {
    rows.fail(fmt::format("expected {} rows, one for each {} tokens of context", granules, granularity));
  }
  error.check(fmt::format("{}: {}: the shortest slices", rows.source(), rows.pointer()));
  return tabulated_times(tokens, granularity, std::move(table));
}

SliceTimesTable slice_table_from_json(JsonReader root) {
  if (root.string("schema") != "sluice.slice_times/1") root.at("schema").fail("expected \"sluice.slice_times/1\"");
  const std::int64_t granularity = root.integer_or("granularity", 1, kMaxFileTokens, 1);
  const auto rows = std::ssize(root.at("forward").elements());
  const std::int64_t tokens = root.integer_or("tokens", 1, kMaxFileTokens, rows * granularity);
  if (rows == 0) root.at("forward").fail("expected at least one row");
  SliceTimesTable table{.forward = times_from_json(root.at("forward"), tokens, granularity), .backward = std::nullopt};
  root.allow("backward");
  if (root.has("backward")) table.backward = times_from_json(root.at("backward"), tokens, granularity);
  root.finish();
  return table;
}

}  // namespace

SliceTimesTable parse_slice_times(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  return slice_table_from_json(JsonReader(json, source));
}

SliceTimesTable read_slice_times(const std::string& path) { return parse_slice_times(read_file(path), path); }

}  // namespace sluice::model

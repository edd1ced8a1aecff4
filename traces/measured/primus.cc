#include "traces/measured/primus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/schedule/family.h"
#include "model/to_size.h"

namespace sluice::traces {
namespace {

constexpr int kMostPrimusRanks = 1 << 14;

// N of pp_rank_N.json.
std::optional<int> rank_in_name(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  constexpr std::string_view kPrefix = "pp_rank_";
  constexpr std::string_view kSuffix = ".json";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  if (error != std::errc{} || end != name.data() + name.size() || rank < 0 || rank >= kMostPrimusRanks) {
    return std::nullopt;
  }
  return rank;
}

struct PrimusConfig {
  int ranks = 0;   // 0: unknown
  int chunks = 1;  // per rank
  int microbatches = 0;
};

PrimusConfig read_config(const std::string& path) {
  const Json document = parse_json(read_file(path), path);
  JsonReader root(document, path);
  return {.ranks = static_cast<int>(root.integer("pp_size", 1, kMostPrimusRanks)),
          .chunks = static_cast<int>(root.integer_or("vp_size", 1, 1024, 1)),
          .microbatches = static_cast<int>(root.integer("num_mbs", 1, 1 << 20))};
}

// The forwards, or backwards, of a rank in the order in which interleaved 1F1B runs them.
std::vector<Op> passes_of(const Schedule& schedule, int rank, OpKind kind) {
  std::vector<Op> ops;
  for (const Op& op : schedule.ops(rank)) {
    if (op.kind == kind) ops.push_back(op);
  }
  return ops;
}

class PrimusReader {
 public:
  explicit PrimusReader(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      if (const std::optional<int> rank = rank_in_name(path)) {
        files_.emplace_back(*rank, path);
      } else {
        config_path_ = path;
        config_ = read_config(path);
      }
    }
    std::sort(files_.begin(), files_.end());
    const std::filesystem::path beside = std::filesystem::path(files_.front().second).parent_path() / "config.json";
    if (config_path_.empty() && std::filesystem::exists(beside)) {
      config_path_ = beside.string();
      config_ = read_config(config_path_);
    }
  }

  MeasuredRun run() {
    const std::string folder = std::filesystem::path(files_.front().second).parent_path().string();
    if (config_.ranks > 0 && std::ssize(files_) != config_.ranks) {
      for (int rank = 0; rank < config_.ranks; ++rank) {
        if (to_size(rank) < files_.size() && files_[to_size(rank)].first == rank) continue;
        throw InputError(fmt::format("{}: pp_rank_{}.json is missing: {} names {} ranks, of which {} are there", folder,
                                     rank, config_path_, config_.ranks, files_.size()));
      }
    }
    if (config_.chunks > 1) {
      schedule_.emplace(
          make_schedule(find_family("interleaved-1f1b"),
                        {.ranks = config_.ranks, .chunks = config_.chunks, .microbatches = config_.microbatches}));
    }
    for (std::size_t i = 0; i < files_.size(); ++i) read_rank(static_cast<int>(i), files_[i].second);
    MeasuredRun run = measured_run(std::move(ops_), "Primus pipeline log", folder);
    run.memory_bytes = std::move(memory_);
    return run;
  }

 private:
  void read_rank(int rank, const std::string& path) {
    const Json document = parse_json(read_file(path), path);
    JsonReader root(document, path);
    if (!document.is_object()) root.fail("expected an object of iterations");
    double peak = 0;
    for (const auto& [key, value] : document.items()) {
      std::int64_t step = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), step);
      JsonReader iteration = root.at(key);
      if (error != std::errc{} || end != key.data() + key.size()) iteration.fail("expected the number of an iteration");
      peak = std::max(peak, iteration.number_or("memory", 0, 1e9, 0));
      read_passes(iteration, rank, step, "fwd_start", "fwd_end", MeasuredKind::forward);
      read_passes(iteration, rank, step, "bwd_start", "bwd_end", MeasuredKind::backward);
    }
    memory_.push_back(peak * 1e9);
  }

  void read_passes(JsonReader& iteration, int rank, std::int64_t step, const char* starts, const char* ends,
                   MeasuredKind kind) {
    constexpr double kMostMilliseconds = 1e11;  // 3 years
    const std::vector<JsonReader> start = iteration.at(starts).elements();
    const std::vector<JsonReader> end = iteration.at(ends).elements();
    if (start.size() != end.size()) {
      iteration.at(ends).fail(fmt::format("expected {} ends, as many as {}", start.size(), starts));
    }
    std::vector<Op> order;
    if (schedule_) order = passes_of(*schedule_, rank, kind == MeasuredKind::forward ? OpKind::F : OpKind::B);
    if (schedule_ && order.size() != start.size()) {
      iteration.at(starts).fail(
          fmt::format("expected {} passes, microbatches times chunks of {}", order.size(), config_path_));
    }
    for (std::size_t i = 0; i < start.size(); ++i) {
      const auto nanoseconds = [&](const JsonReader& value) {
        return Duration{std::llround(value.number(-kMostMilliseconds, kMostMilliseconds) * 1e6)};
      };
      RawMeasuredOp raw{.step = step, .rank = rank};
      raw.op.start = nanoseconds(start[i]);
      raw.op.end = nanoseconds(end[i]);
      if (raw.op.end < raw.op.start)
        end[i].fail(fmt::format("expected an end after its start, {} ms", to_seconds(raw.op.start) * 1e3));
      raw.op.kind = kind;
      raw.op.microbatch = static_cast<std::int32_t>(i);
      if (schedule_) {
        raw.op.microbatch = order[i].microbatch;
        raw.op.chunk = static_cast<std::int16_t>(order[i].stage / config_.ranks);
      }
      ops_.push_back(raw);
    }
  }

  std::vector<std::pair<int, std::string>> files_;  // rank, path
  std::string config_path_;
  PrimusConfig config_;
  std::optional<Schedule> schedule_;
  std::deque<RawMeasuredOp> ops_;
  std::vector<double> memory_;
};

}  // namespace

bool is_primus_log(const std::vector<std::string>& paths) {
  bool any = false;
  for (const std::string& path : paths) {
    const bool rank = rank_in_name(path).has_value();
    if (!rank && std::filesystem::path(path).filename() != "config.json") return false;
    any |= rank;
  }
  return any;
}

MeasuredRun read_primus_log(const std::vector<std::string>& paths) { return PrimusReader(paths).run(); }

}  // namespace sluice::traces

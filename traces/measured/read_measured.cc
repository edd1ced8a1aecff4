#include "traces/measured/read_measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"
#include "model/to_size.h"
#include "traces/chrome/trace_events.h"
#include "traces/measured/measured_rows.h"
#include "traces/measured/primus.h"
#include "traces/read/trace_read.h"

namespace sluice::traces {
namespace {

constexpr std::size_t kMostKnownNames = 100'000;
constexpr std::int64_t kMostMicrobatches = 1 << 20;
constexpr int kMostRanks = 1 << 14;

std::vector<MeasuredKind> kinds_of(std::string_view word) {
  constexpr std::pair<std::string_view, MeasuredKind> kShort[] = {{"F", MeasuredKind::forward},
                                                                  {"B", MeasuredKind::backward},
                                                                  {"I", MeasuredKind::input_gradient},
                                                                  {"W", MeasuredKind::weight_gradient}};
  if (const std::optional<MeasuredKind> kind = measured_kind(word)) return {*kind};
  for (const auto& [letter, kind] : kShort) {
    if (word == letter) return {kind};
  }
  if (word == "forward-send-backward-recv") return {MeasuredKind::forward_send, MeasuredKind::backward_receive};
  if (word == "backward-send-forward-recv") return {MeasuredKind::backward_send, MeasuredKind::forward_receive};
  return {};
}

// Parses the number at the start of `text` and removes it. Returns nullopt if there is none.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

// The rank and shard in the name of a thread, "PP rank 0, TP rank 0, compute".
std::optional<std::pair<int, int>> pipeline_thread(std::string_view name) {
  constexpr std::string_view kRank = "PP rank ";
  constexpr std::string_view kShard = ", TP rank ";
  if (!name.starts_with(kRank)) return std::nullopt;
  name.remove_prefix(kRank.size());
  const std::optional<std::int64_t> rank = take_number(name);
  if (!rank || *rank >= kMostRanks || !name.starts_with(kShard)) return std::nullopt;
  name.remove_prefix(kShard.size());
  const std::optional<std::int64_t> shard = take_number(name);
  if (!shard || *shard >= kMostRanks) return std::nullopt;
  return std::pair(static_cast<int>(*rank), static_cast<int>(*shard));
}

// Reads the kernels of each file as a GPU trace.
class ProfileFiles {
 public:
  explicit ProfileFiles(const MeasuredReadOptions& options) : options_(options) {}

  void open(const std::string& path) {
    if (options_.profile != nullptr) reader_.emplace(path);
  }
  void add(const TraceEvent& event) {
    if (reader_) reader_->add(event);
  }
  // Keeps the kernels of the file unless there are ops of a pipeline, in this file or before.
  void close(const TraceHead& head, bool has_ops) {
    if (!reader_) return;
    pipeline_ |= has_ops || reader_->has_pipeline_ranges();
    if (!options_.kernels && pipeline_) return options_.profile->clear();
    for (GpuTrace& trace : std::move(*reader_).finish(head)) options_.profile->push_back(std::move(trace));
  }
  bool found() const { return options_.profile != nullptr && !options_.profile->empty(); }

 private:
  const MeasuredReadOptions& options_;
  std::optional<GpuTraceReader> reader_;
  bool pipeline_ = false;
};

}  // namespace

NameMap::NameMap() : source_("the names of ByteDance's timelines") {
  for (const std::string_view name : kMeasuredKindNames) add(std::string(name), kinds_of(name), source_);
  for (const char* fused : {"forward-send-backward-recv", "backward-send-forward-recv"}) {
    add(fused, kinds_of(fused), source_);
  }
}

NameMap::NameMap(std::string_view text, const std::string& source) : source_(source) {
  const Json document = parse_json(text, source);
  JsonReader root(document, source);
  if (const std::string schema = root.string("schema"); schema != "sluice.names/1") {
    root.at("schema").fail("expected \"sluice.names/1\"");
  }
  JsonReader names = root.at("names");
  if (!names.json().is_object()) names.fail("expected an object of names and the ops that they denote");
  for (const auto& [name, kind] : names.json().items()) {
    JsonReader value = names.at(name);
    std::vector<MeasuredKind> kinds = kinds_of(value.string());
    if (kinds.empty()) {
      std::vector<std::string> words(kMeasuredKindNames.begin(), kMeasuredKindNames.end());
      value.fail("expected F, B, I, W or " + fmt::format("{}", fmt::join(kMeasuredKindNames, ", ")),
                 did_you_mean(value.string(), words));
    }
    add(name, std::move(kinds), fmt::format("{}: {}", source, value.pointer()));
  }
  root.finish();
  if (exact_.empty() && patterns_.empty()) names.fail("expected at least one name");
}

void NameMap::add(const std::string& name, std::vector<MeasuredKind> kinds, const std::string& place) {
  Pattern pattern{.pieces = {""}, .fields = {}, .kinds = std::move(kinds)};
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t open = name.find('{', at);
    pattern.pieces.back() += name.substr(at, open - at);
    if (open == std::string::npos) break;
    const std::size_t close = name.find('}', open);
    const std::string field = close == std::string::npos ? "" : name.substr(open + 1, close - open - 1);
    if (field != "microbatch" && field != "chunk" && field != "step") {
      throw InputError(
          fmt::format("{}: expected fields {{microbatch}}, {{chunk}} or {{step}}, got \"{}\"", place,
                      close == std::string::npos ? name.substr(open) : name.substr(open, close - open + 1)));
    }
    pattern.fields.push_back(field);
    pattern.pieces.emplace_back();
    at = close + 1;
  }
  if (pattern.fields.empty()) {
    exact_[name] = std::move(pattern.kinds);
  } else {
    patterns_.push_back(std::move(pattern));
  }
}

bool NameMap::matches(const Pattern& pattern, std::string_view name, Match& match) {
  for (std::size_t i = 0; i < pattern.pieces.size(); ++i) {
    if (!name.starts_with(pattern.pieces[i])) return false;
    name.remove_prefix(pattern.pieces[i].size());
    if (i == pattern.fields.size()) return name.empty();
    const std::optional<std::int64_t> value = take_number(name);
    if (!value) return false;
    const std::string& field = pattern.fields[i];
    (field == "microbatch" ? match.microbatch : field == "chunk" ? match.chunk : match.step) = *value;
  }
  return false;
}

NameMap::Match NameMap::match(const std::string& name) const {
  if (const auto found = exact_.find(name); found != exact_.end()) return {.kinds = found->second};
  for (const Pattern& pattern : patterns_) {
    Match match{.kinds = pattern.kinds};
    if (matches(pattern, name, match)) return match;
  }
  return {};
}

int NamedOps::thread_of(const TraceEvent& event, int file) {
  const Thread thread{file, event.pid, event.tid};
  if (last_.second >= 0 && last_.first == thread) return last_.second;
  const auto [found, is_new] = threads_.try_emplace(thread, static_cast<int>(threads_.size()));
  if (is_new) file_of_thread_.push_back(file);
  last_ = {thread, found->second};
  return found->second;
}

void NamedOps::add(const TraceEvent& event, int file, const std::string& source) {
  if (event.phase == "M") {
    if (event.name != "thread_name") return;
    if (const auto place = pipeline_thread(event.args_name)) named_[thread_of(event, file)] = *place;
    return;
  }
  if (event.phase != "X") return;
  constexpr std::string_view kStep = "ProfilerStep#";
  if (event.name.starts_with(kStep) && event.start && event.duration) {
    std::string_view rest = std::string_view(event.name).substr(kStep.size());
    if (const std::optional<std::int64_t> number = take_number(rest)) {
      step_ranges_[file].push_back({*event.start, *event.start + *event.duration, *number});
    }
    return;
  }
  auto known = known_.find(event.name);
  if (known == known_.end()) {
    NameMap::Match match = names_.match(event.name);
    if (match.kinds.empty() && known_.size() >= kMostKnownNames) return;
    known = known_.emplace(event.name, std::move(match)).first;
  }
  const NameMap::Match& match = known->second;
  if (match.kinds.empty()) return;
  const auto fail = [&](const std::string& rule) {
    throw InputError(fmt::format("{}: event {} ({}): {}", source, event.number, event.name, rule));
  };
  if (!event.start || !event.duration) fail("expected ts and dur");
  if (*event.duration < -kClockResolution) fail("dur: expected at least 0");
  const std::int64_t microbatch = match.microbatch >= 0 ? match.microbatch : event.mb_id;
  const std::int64_t chunk = match.chunk >= 0 ? match.chunk : event.model_chunk;
  if (microbatch >= kMostMicrobatches) fail(fmt::format("microbatch: expected less than {}", kMostMicrobatches));
  if (chunk >= kMostRanks) fail(fmt::format("chunk: expected less than {}", kMostRanks));
  RawMeasuredOp raw;
  raw.step = match.step >= 0 ? match.step : event.step;
  raw.op = {.start = *event.start,
            .end = *event.start + *event.duration,
            .worker = thread_of(event, file),
            .microbatch = static_cast<std::int32_t>(microbatch < 0 ? -1 : microbatch),
            .chunk = static_cast<std::int16_t>(chunk < 0 ? 0 : chunk)};
  for (const MeasuredKind kind : match.kinds) {
    raw.op.kind = kind;
    num_passes_ += is_pass(kind) ? 1 : 0;
    ops_.push_back(raw);
  }
}

std::vector<NamedOps::Place> NamedOps::places_of_processes(const std::string& source) const {
  // A process that receives no activations holds the first stage.
  std::vector<const Thread*> thread_at(threads_.size());
  for (const auto& [thread, number] : threads_) thread_at[to_size(number)] = &thread;
  std::set<std::int64_t> pids;
  std::set<std::int64_t> receivers;
  for (const RawMeasuredOp& raw : ops_) {
    const std::int64_t pid = thread_at[to_size(raw.op.worker)]->pid;
    pids.insert(pid);
    if (raw.op.kind == MeasuredKind::forward_receive) receivers.insert(pid);
  }
  std::vector<std::int64_t> order(pids.begin(), pids.end());
  std::vector<std::int64_t> heads;  // positions in `order`
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (!receivers.contains(order[i])) heads.push_back(static_cast<std::int64_t>(i));
  }
  const auto count = static_cast<std::int64_t>(order.size());
  auto replicas = static_cast<std::int64_t>(heads.size());
  if (receivers.empty() || replicas == 0) replicas = 1;
  if (count % replicas != 0) {
    throw InputError(fmt::format(
        "{}: {} processes, of which {} receive no activations: expected pipelines of equal length, or threads named "
        "\"PP rank P, TP rank T\"",
        source, count, replicas));
  }
  const std::int64_t ranks = count / replicas;
  if (ranks > kMostRanks) throw InputError(fmt::format("{}: expected at most {} ranks", source, kMostRanks));
  // Ranks of a stage next to each other, as in Megatron-LM, or a pipeline's ranks next to each other.
  const bool stages_apart = replicas > 1 && heads.back() == replicas - 1;
  std::map<std::int64_t, Place> place_of;
  for (std::int64_t i = 0; i < count; ++i) {
    place_of[order[to_size(i)]] = {.replica = static_cast<int>(stages_apart ? i % replicas : i / ranks),
                                   .rank = static_cast<int>(stages_apart ? i / replicas : i % ranks)};
  }
  std::vector<Place> places;
  for (const Thread* thread : thread_at) places.push_back(place_of[thread->pid]);
  return places;
}

std::vector<NamedOps::Place> NamedOps::places(const std::string& source) const {
  if (!named_.empty()) {
    std::map<std::pair<int, std::int64_t>, int> replica_of;  // by file and process
    for (const auto& [thread, number] : threads_) {
      replica_of.try_emplace({thread.file, thread.pid}, static_cast<int>(replica_of.size()));
    }
    std::vector<Place> places(threads_.size());
    for (const auto& [thread, number] : threads_) {
      const auto named = named_.find(number);
      if (named == named_.end()) {
        throw InputError(
            fmt::format("{}: thread {} of process {}: expected a name \"PP rank P, TP rank T, ...\", got none", source,
                        thread.tid, thread.pid));
      }
      places[to_size(number)] = {replica_of[{thread.file, thread.pid}], named->second.first, named->second.second};
    }
    return places;
  }
  const int files = file_of_thread_.empty() ? 0 : *std::max_element(file_of_thread_.begin(), file_of_thread_.end()) + 1;
  if (files <= 1) return places_of_processes(source);
  std::vector<std::pair<std::int64_t, int>> order;  // rank of a file, file
  for (int file = 0; file < files; ++file) {
    const auto rank = rank_of_file_.find(file);
    order.emplace_back(rank_of_file_.size() == to_size(files) && rank != rank_of_file_.end() ? rank->second : file,
                       file);
  }
  std::sort(order.begin(), order.end());
  std::vector<int> rank_of(to_size(files));
  for (std::size_t i = 0; i < order.size(); ++i) rank_of[to_size(order[i].second)] = static_cast<int>(i);
  std::vector<Place> places(threads_.size());
  for (const auto& [thread, number] : threads_) places[to_size(number)] = {.rank = rank_of[to_size(thread.file)]};
  return places;
}

void NamedOps::find_steps() {
  for (auto& [file, ranges] : step_ranges_) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.start < b.start; });
  }
  bool any_known = false;
  for (RawMeasuredOp& raw : ops_) {
    if (raw.step >= 0) {
      any_known = true;
      continue;
    }
    const auto found = step_ranges_.find(file_of_thread_[to_size(raw.op.worker)]);
    if (found == step_ranges_.end()) continue;
    const std::vector<Range>& ranges = found->second;
    const auto after = std::upper_bound(ranges.begin(), ranges.end(), raw.op.start,
                                        [](Duration at, const Range& range) { return at < range.start; });
    if (after != ranges.begin() && raw.op.start < std::prev(after)->end) raw.step = std::prev(after)->step;
  }
  // Ops outside of all steps belong to none, if there are steps.
  const bool none = !any_known && step_ranges_.empty();
  std::erase_if(ops_, [&](const RawMeasuredOp& raw) { return raw.step < 0 && !none; });
  for (RawMeasuredOp& raw : ops_) raw.step = std::max<std::int64_t>(raw.step, 0);
}

MeasuredRun NamedOps::finish(const std::string& format, const std::string& source) && {
  find_steps();
  const std::vector<Place> places = this->places(source);
  for (RawMeasuredOp& raw : ops_) {
    const Place& place = places[to_size(raw.op.worker)];
    raw.replica = place.replica;
    raw.rank = place.rank;
    raw.shard = place.shard;
  }
  return measured_run(std::move(ops_), format, source);
}

MeasuredRun read_bytedance_timeline(TraceSource& source) {
  const NameMap names;
  NamedOps ops(names);
  source.read([&](TraceEvent& event, const TraceHead&) { ops.add(event, 0, source.name()); });
  return std::move(ops).finish("ByteDance timeline", source.name());
}

MeasuredRun read_measured_run(const std::vector<std::string>& paths, const MeasuredReadOptions& options) {
  if (is_primus_log(paths)) return read_primus_log(paths);
  const NameMap default_names;
  const NameMap& names = options.names != nullptr ? *options.names : default_names;
  NamedOps ops(names);
  ProfileFiles profile(options);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto file = static_cast<int>(i);
    auto own = std::make_unique<TraceSource>(paths[i]);
    TraceSource& source = *own;
    // Its ops have none of the names, and one pass suffices.
    if (options.names == nullptr && paths.size() == 1 && source.is_trace() && source.is_sluice()) {
      std::vector<std::unique_ptr<TraceSource>> sources;
      sources.push_back(std::move(own));
      return measured_rows(read_trace_run(std::move(sources), {.causes = false}), paths[0]);
    }
    profile.open(paths[i]);
    const TraceHead head = source.read([&](TraceEvent& event, const TraceHead&) {
      profile.add(event);
      if (!options.kernels) ops.add(event, file, source.name());
    });
    if (!head.is_trace) {
      throw InputError(paths[i] + ": expected a timeline: a Chrome trace, or a folder of pp_rank_N.json of Primus");
    }
    if (head.rank) ops.set_rank(file, *head.rank);
    if (options.names == nullptr) profile.close(head, !ops.empty());
  }
  if (profile.found()) return {};
  if (!ops.empty()) {
    return std::move(ops).finish(options.names != nullptr ? "named ops" : "ByteDance timeline", paths[0]);
  }
  if (options.names != nullptr) {
    throw InputError(paths[0] + ": expected ops with the names of " + names.source() + ", got none");
  }
  return measured_rows(read_trace_run(paths, {.causes = false}), paths[0]);
}

}  // namespace sluice::traces

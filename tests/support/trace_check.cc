#include "tests/support/trace_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "model/timeline/causes.h"
#include "tests/support/event_json.h"
#include "traces/chrome/chrome_trace.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using Track = std::pair<std::int64_t, std::int64_t>;  // pid, tid

struct Slice {
  std::int64_t start = 0;  // ns
  std::int64_t end = 0;
  std::string name;
  std::string label;  // "event 12"
  bool transfer = false;
  bool idle = false;
  int flows = 0;
};

struct FlowEnd {
  Track track;
  std::int64_t time = 0;
  std::string name;
  std::string label;
  std::size_t slices_before = 0;  // on its track, in the file
};

struct Process {
  std::set<std::string> described;
  std::optional<json> counters;
  std::int64_t counted_at = -1;
};

struct TrackState {
  std::vector<Slice> slices;
  std::set<std::string> described;
  std::string first_use;
};

// The keys of an event: required and optional ones.
struct Keys {
  std::vector<std::string> required;
  std::vector<std::string> optional;
};
const Keys* keys_of(const std::string& phase) {
  static const std::map<std::string, Keys> kKeys = {
      {"X", {{"ph", "pid", "tid", "ts", "dur", "cat", "name", "args"}, {}}},
      {"M", {{"ph", "pid", "name", "args"}, {"tid"}}},
      {"C", {{"ph", "pid", "ts", "name", "args"}, {}}},
      {"s", {{"ph", "id", "pid", "tid", "ts", "cat", "name"}, {}}},
      {"f", {{"ph", "bp", "id", "pid", "tid", "ts", "cat", "name"}, {}}},
  };
  const auto found = kKeys.find(phase);
  return found == kKeys.end() ? nullptr : &found->second;
}

// Each removes the named part from the front of a text.
bool eat(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}
bool eat_one_of(std::string_view& text, std::string_view letters) {
  if (text.empty() || letters.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}
std::optional<std::int64_t> eat_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool sends_on(std::int64_t tid) {
  return tid == kSendNextTrack || tid == kSendPreviousTrack || (tid >= kFirstPeerTrack && tid % 2 == 0);
}
bool receives_on(std::int64_t tid) {
  return tid == kRecvNextTrack || tid == kRecvPreviousTrack || (tid >= kFirstPeerTrack && tid % 2 == 1);
}

class Checker {
 public:
  std::vector<std::string> check(std::string_view text) {
    const EventReader* head = nullptr;
    EventReader reader([&](const json& event) {
      if (num_events_ == 0) read_sides(head->head());
      check_event(event);
    });
    head = &reader;
    if (!json::sax_parse(text, &reader)) {
      violation("file", reader.error);
      return std::move(violations_);
    }
    check_root(reader.root);
    check_tracks();
    check_flows();
    return std::move(violations_);
  }

 private:
  void violation(const std::string& where, const std::string& what) { violations_.push_back(where + ": " + what); }

  void check_root(const json& root) {
    if (!root.is_object() || !root.contains("traceEvents") || !root["traceEvents"].is_array()) {
      return violation("file", "expected an object with an array traceEvents");
    }
    if (!root.contains("sluice") || !root["sluice"].is_object()) return violation("file", "no object sluice");
    const json& sluice = root["sluice"];
    if (sluice.value("schema", json()) != "sluice.trace/1") violation("sluice", "schema is not sluice.trace/1");
    if (!sluice.contains("version") || !sluice["version"].is_string()) violation("sluice", "no version");
    if (!sluice.contains("scenario")) violation("sluice", "no scenario");
    filtered_ = sluice.contains("world_ranks");
    for (const auto& [key, value] : root.items()) {
      if (key != "sluice" && key != "traceEvents") violation("file", "unknown key " + key);
    }
  }

  // Reads the sides of a trace of two runs.
  void read_sides(const json& head) {
    if (!head.contains("sluice") || !head["sluice"].is_object() || !head["sluice"].contains("sides")) return;
    const json& sides = head["sluice"]["sides"];
    if (!sides.is_array() || sides.size() != 2) return violation("sluice", "sides is not a list of two");
    std::int64_t pid = 1;
    for (const json& side : sides) {
      if (!side.is_object() || side.size() != 2 || !side.contains("name") || !side["name"].is_string() ||
          !side.contains("ranks") || !side["ranks"].is_number_unsigned()) {
        return violation("sluice", "sides: expected name and ranks");
      }
      sides_.push_back({side["name"].get<std::string>(), pid, pid + side["ranks"].get<std::int64_t>()});
      pid = sides_.back().end_pid;
    }
    if (sides_[0].name == sides_[1].name) violation("sluice", "both sides have the same name");
  }

  std::size_t side_of(std::int64_t pid) const {
    std::size_t side = 0;
    while (side + 1 < sides_.size() && pid >= sides_[side].end_pid) ++side;
    return side;
  }
  std::string process_name(std::int64_t pid) const {
    if (sides_.empty()) return fmt::format("rank {}", pid - 1);
    const Side& side = sides_[side_of(pid)];
    return fmt::format("{} rank {}", side.name, pid - side.first_pid);
  }
  std::int64_t process_sort_index(std::int64_t pid) const {
    if (sides_.empty()) return pid - 1;
    const std::size_t side = side_of(pid);
    return (pid - sides_[side].first_pid) * std::ssize(sides_) + static_cast<std::int64_t>(side);
  }

  // --- fields -------------------------------------------------------------------------------------------------

  bool has_its_keys(const json& event, const Keys& keys) {
    bool good = true;
    for (const std::string& key : keys.required) {
      if (event.contains(key)) continue;
      violation(label_, "no " + key);
      good = false;
    }
    for (const auto& [key, value] : event.items()) {
      const auto in = [&key = key](const std::vector<std::string>& list) {
        return std::find(list.begin(), list.end(), key) != list.end();
      };
      if (in(keys.required) || in(keys.optional)) continue;
      violation(label_, "unknown key " + key);
      good = false;
    }
    return good;
  }

  std::optional<std::int64_t> positive(const json& event, const char* key) {
    const json& value = event[key];
    if (value.is_number_integer() && value.get<std::int64_t>() > 0) return value.get<std::int64_t>();
    violation(label_, std::string(key) + " is not a positive integer");
    return std::nullopt;
  }

  std::optional<std::string> text(const json& object, const char* key) {
    if (object.contains(key) && object[key].is_string() && !object[key].get_ref<const std::string&>().empty()) {
      return object[key].get<std::string>();
    }
    violation(label_, std::string(key) + " is not a string");
    return std::nullopt;
  }

  std::optional<std::int64_t> nanoseconds(const json& event, const char* key) {
    const json& value = event[key];
    if (value.is_binary()) {
      const json::binary_t& bytes = value.get_binary();
      const std::string digits(bytes.begin(), bytes.end());
      std::string_view rest = digits;
      const auto whole = eat_number(rest);
      if (whole && *whole <= 100'000'000'000'000 && eat(rest, ".") && rest.size() == 3) {
        const auto decimals = eat_number(rest);
        if (decimals && rest.empty()) return *whole * 1000 + *decimals;
      }
    }
    violation(label_, std::string(key) + " is not microseconds with three decimals");
    return std::nullopt;
  }

  bool counts(const json& args, const std::string& key, std::int64_t& value) {
    if (args.contains(key) && args[key].is_number_integer() && args[key].get<std::int64_t>() >= 0) {
      value = args[key].get<std::int64_t>();
      return true;
    }
    violation(label_, "args: " + key + " is not a non-negative integer");
    return false;
  }

  // --- events -------------------------------------------------------------------------------------------------

  void check_event(const json& event) {
    label_ = fmt::format("event {}", num_events_++);
    if (!event.is_object()) return violation(label_, "is not an object");
    if (!event.contains("ph") || !event["ph"].is_string()) return violation(label_, "no ph");
    const std::string phase = event["ph"].get<std::string>();
    const Keys* keys = keys_of(phase);
    if (keys == nullptr) return violation(label_, "unknown ph " + phase);
    if (!has_its_keys(event, *keys)) return;
    const auto pid = positive(event, "pid");
    const auto tid = event.contains("tid") ? positive(event, "tid") : std::optional<std::int64_t>(0);
    const auto name = text(event, "name");
    if (!pid || !tid || !name) return;
    Process& process = processes_[*pid];
    if (phase == "M") return check_metadata(event, *pid, *tid, *name);
    if (phase == "C") return check_counter(event, process, *name);
    TrackState& track = tracks_[{*pid, *tid}];
    if (track.first_use.empty()) track.first_use = label_;
    if (phase == "X") return check_slice(event, track, *pid, *tid, *name);
    check_flow_end(event, {*pid, *tid}, track, *name, phase);
  }

  void check_metadata(const json& event, std::int64_t pid, std::int64_t tid, const std::string& name) {
    const bool of_process = name == "process_name" || name == "process_sort_index";
    const bool of_thread = name == "thread_name" || name == "thread_sort_index";
    if (!of_process && !of_thread) return violation(label_, "unknown metadata " + name);
    if (of_process && !sides_.empty() && pid >= sides_.back().end_pid) violation(label_, "pid belongs to neither side");
    if (of_thread != event.contains("tid")) return violation(label_, name + (of_thread ? " without tid" : " with tid"));
    if (!event["args"].is_object()) return violation(label_, "args is not an object");
    std::set<std::string>& described = of_process ? processes_[pid].described : tracks_[{pid, tid}].described;
    if (!described.insert(name).second) return violation(label_, "second " + name);
    const json& args = event["args"];
    if (name.ends_with("sort_index")) {
      const std::int64_t expected = of_process ? process_sort_index(pid) : tid;
      if (args != json{{"sort_index", expected}}) violation(label_, fmt::format("sort_index is not {}", expected));
      return;
    }
    const auto given = text(args, "name");
    if (given && (args.size() != 1 || !fits(*given, of_process, pid, tid))) violation(label_, "wrong name " + *given);
  }

  bool fits(std::string_view name, bool of_process, std::int64_t pid, std::int64_t tid) const {
    static constexpr std::array<std::string_view, 7> kNames = {
        "compute", "send next", "send previous", "recv previous", "recv next", "collective", "optimizer"};
    if (of_process) return name == process_name(pid);
    if (tid < kFirstPeerTrack) return name == kNames[tid - 1];
    if (tid == kDispatchTrack) return name == "dispatch and combine";
    return eat(name, tid % 2 == 0 ? "send to rank " : "recv from rank ") && eat_number(name) &&
           (name.empty() || name == ", vocabulary");
  }

  void check_counter(const json& event, Process& process, const std::string& name) {
    const auto time = nanoseconds(event, "ts");
    if (name != "memory") violation(label_, "unknown counter " + name);
    const json& args = event["args"];
    if (!args.is_object() || args.empty()) return violation(label_, "a counter without series");
    std::int64_t value = 0;
    for (const auto& [series, bytes] : args.items()) counts(args, series, value);
    if (process.counters) {
      const json& last = *process.counters;
      if (last == args) violation(label_, "counter written without a change");
      const bool same =
          last.size() == args.size() &&
          std::all_of(args.items().begin(), args.items().end(), [&](const auto& a) { return last.contains(a.key()); });
      if (!same) violation(label_, "counter with other series than before");
    }
    if (time && *time <= process.counted_at) violation(label_, "counter does not rise in time");
    process.counters = args;
    process.counted_at = time.value_or(process.counted_at);
  }

  void check_slice(const json& event, TrackState& track, std::int64_t pid, std::int64_t tid, const std::string& name) {
    const auto start = nanoseconds(event, "ts");
    const auto duration = nanoseconds(event, "dur");
    const auto category = text(event, "cat");
    if (!event["args"].is_object()) return violation(label_, "args is not an object");
    if (!start || !duration || !category) return;
    const json& args = event["args"];
    if (args.contains("waited_for")) text(args, "waited_for");
    const bool transfer = *category == "p2p";
    if (transfer && *duration == 0) violation(label_, "a transfer shorter than 1 ns");
    if (*category == "compute" || transfer) {
      check_op(args, tid, name, transfer);
    } else if (*category == "coll") {
      check_step(args, name, "", tid == kCollectiveTrack);
      std::int64_t bytes = 0;
      counts(args, "bytes", bytes);
    } else if (*category == "opt") {
      check_step(args, name, "optimizer", tid == kOptimizerTrack);
    } else if (*category == "idle") {
      check_idle(args, tid, name, *duration);
    } else if (*category == "part") {
      check_part(args, tid, name);
      if (tid == kComputeTrack) return;  // within its op's slice
    } else {
      violation(label_, "unknown cat " + *category);
    }
    std::optional<std::int64_t>& first_start = first_start_[side_of(pid)];
    first_start = first_start ? std::min(*first_start, *start) : *start;
    track.slices.push_back({*start, *start + *duration, name, label_, transfer, *category == "idle", 0});
  }

  void check_idle(const json& args, std::int64_t tid, const std::string& name, std::int64_t duration) {
    const auto cause = text(args, "cause");
    if (!cause) return;
    if (std::find(kIdleCauseNames.begin(), kIdleCauseNames.end(), *cause) == kIdleCauseNames.end()) {
      violation(label_, "unknown cause " + *cause);
    }
    if (name != "idle " + *cause) violation(label_, "wrong name " + name);
    if (tid != kComputeTrack) violation(label_, fmt::format("{} on track {}", name, tid));
    if (duration == 0) violation(label_, "an idle time of length 0");
    if (args.contains("next")) text(args, "next");
    std::int64_t rank = 0;
    if (args.contains("from_rank")) counts(args, "from_rank", rank);
  }

  // "dispatch(F)", with the layer and the op.
  void check_part(const json& args, std::int64_t tid, const std::string& name) {
    const std::optional<PassPart> part = parse_part(name);
    if (!part) return violation(label_, "wrong name " + name);
    if (tid != (communicates(part->part) ? kDispatchTrack : kComputeTrack)) {
      violation(label_, fmt::format("{} on track {}", name, tid));
    }
    std::int64_t layer = 0;
    counts(args, "layer", layer);
    text(args, "op");
  }

  // "F3", "R3", "F3+B1", "send F3" or "recv B3", on the track of such slices, with consistent args.
  void check_op(const json& args, std::int64_t tid, const std::string& name, bool transfer) {
    std::string_view rest = name;
    const bool send = transfer && eat(rest, "send ");
    const bool recv = transfer && !send && eat(rest, "recv ");
    const bool named = !transfer || send || recv;
    const bool op = eat_one_of(rest, transfer ? "FBIST" : "FBIWRST");
    const auto microbatch = eat_number(rest);
    std::optional<std::int64_t> partner;
    if (!transfer && eat(rest, "+") && eat_one_of(rest, "FBI")) partner = eat_number(rest);
    if (!named || !op || !microbatch || !rest.empty()) return violation(label_, "wrong name " + name);
    const bool on_track = send ? sends_on(tid) : recv ? receives_on(tid) : tid == kComputeTrack;
    if (!on_track) violation(label_, fmt::format("{} on track {}", name, tid));
    check_op_args(args, *microbatch);
    std::int64_t bytes = 0;
    if (transfer || args.contains("bytes")) counts(args, "bytes", bytes);
    if (partner.has_value() != (args.contains("with") && args["with"].is_object())) {
      violation(label_, "args: with does not match the name");
    } else if (partner) {
      check_op_args(args["with"], *partner);
    }
  }

  void check_op_args(const json& args, std::int64_t microbatch) {
    std::int64_t value = 0;
    for (const char* key : {"stage", "chunk", "slice"}) counts(args, key, value);
    if (counts(args, "microbatch", value) && value != microbatch)
      violation(label_, "args: microbatch does not match the name");
  }

  void check_step(const json& args, const std::string& name, std::string_view prefix, bool on_track) {
    const std::size_t space = name.rfind(' ');
    std::string_view number = std::string_view(name).substr(space == std::string::npos ? name.size() : space + 1);
    const auto step = eat_number(number);
    if (!name.starts_with(prefix) || !step || !number.empty()) return violation(label_, "wrong name " + name);
    if (!on_track) violation(label_, name + " on another track");
    std::int64_t value = 0;
    if (counts(args, "step", value) && value != *step) violation(label_, "args: step does not match the name");
  }

  void check_flow_end(const json& event, Track where, const TrackState& track, const std::string& name,
                      const std::string& phase) {
    const auto id = positive(event, "id");
    const auto time = nanoseconds(event, "ts");
    if (event["cat"] != "p2p") violation(label_, "a flow's cat is not p2p");
    if (phase == "f" && event["bp"] != "e") violation(label_, "bp is not e");
    if (!id || !time) return;
    std::optional<FlowEnd>& end = (phase == "s" ? flows_[*id].first : flows_[*id].second);
    if (end) return violation(label_, fmt::format("second {} of flow {}", phase, *id));
    end = FlowEnd{where, *time, name, label_, track.slices.size()};
  }

  // --- checks of the whole file ---------------------------------------------------------------------------------

  void check_tracks() {
    for (const auto& first_start : first_start_) {
      if (first_start && *first_start != 0 && !filtered_) violation("file", "the first slice does not start at 0");
    }
    for (const auto& [pid, process] : processes_) {
      if (process.described.size() != 2) violation(fmt::format("pid {}", pid), "no process_name or process_sort_index");
    }
    for (const auto& [where, track] : tracks_) {
      if (track.described.size() != 2) {
        violation(track.first_use.empty() ? fmt::format("tid {}", where.second) : track.first_use,
                  fmt::format("no thread_name or thread_sort_index for pid {} tid {}", where.first, where.second));
      }
      check_overlaps(track.slices);
    }
  }

  void check_overlaps(const std::vector<Slice>& slices) {
    std::vector<const Slice*> order;
    order.reserve(slices.size());
    for (const Slice& slice : slices) order.push_back(&slice);
    std::stable_sort(order.begin(), order.end(), [](const Slice* a, const Slice* b) { return a->start < b->start; });
    std::vector<const Slice*> open;
    for (const Slice* slice : order) {
      while (!open.empty() && open.back()->end <= slice->start) open.pop_back();
      if (!open.empty() && (slice->transfer || slice->idle || open.back()->idle)) {
        violation(slice->label,
                  fmt::format("{} overlaps {} of {}", slice->name, open.back()->name, open.back()->label));
      } else if (!open.empty() && slice->end > open.back()->end) {
        violation(slice->label,
                  fmt::format("{} overlaps {} of {} in part", slice->name, open.back()->name, open.back()->label));
      }
      open.push_back(slice);
    }
  }

  // Returns the slice at whose start a flow end is.
  Slice* slice_of(const FlowEnd& end, std::string_view verb) {
    std::vector<Slice>& slices = tracks_[end.track].slices;
    for (std::size_t i = end.slices_before; i-- > 0;) {
      if (slices[i].start == end.time && slices[i].name == fmt::format("{} {}", verb, end.name)) return &slices[i];
    }
    violation(end.label, fmt::format("no slice {} {} before it that starts there", verb, end.name));
    return nullptr;
  }

  void check_flows() {
    for (const auto& [id, ends] : flows_) {
      const auto& [start, finish] = ends;
      if (!start || !finish) {
        violation((start ? start : finish)->label, fmt::format("flow {} has no {}", id, start ? "f" : "s"));
        continue;
      }
      if (start->name != finish->name) violation(finish->label, fmt::format("flow {} changes its name", id));
      if (finish->time < start->time) violation(finish->label, fmt::format("flow {} goes back in time", id));
      if (Slice* send = slice_of(*start, "send")) ++send->flows;
      if (Slice* recv = slice_of(*finish, "recv")) ++recv->flows;
    }
    for (const auto& [where, track] : tracks_) {
      for (const Slice& slice : track.slices) {
        if (slice.flows > 1) violation(slice.label, slice.name + " has several flows");
        if (slice.transfer && slice.flows == 0 && !filtered_) violation(slice.label, slice.name + " has no flow");
      }
    }
  }

  std::vector<std::string> violations_;
  std::string label_;
  std::int64_t num_events_ = 0;
  bool filtered_ = false;
  struct Side {
    std::string name;
    std::int64_t first_pid = 0;
    std::int64_t end_pid = 0;
  };
  std::vector<Side> sides_;                                 // empty: one run
  std::array<std::optional<std::int64_t>, 2> first_start_;  // by side
  std::map<std::int64_t, Process> processes_;
  std::map<Track, TrackState> tracks_;
  std::map<std::int64_t, std::pair<std::optional<FlowEnd>, std::optional<FlowEnd>>> flows_;
};

}  // namespace

std::vector<std::string> check_trace(std::string_view json_text) { return Checker().check(json_text); }

}  // namespace sluice::test

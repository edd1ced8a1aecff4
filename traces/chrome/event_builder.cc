#include "traces/chrome/event_builder.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "model/errors.h"

namespace sluice::traces {
namespace {

constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxCounterValues = 1000;
// Times range from 3 years before to 126 years after the clock's zero; durations are at most 3 years. Their sums do not
// overflow.
constexpr std::int64_t kMinMicroseconds = -100'000'000'000'000;
constexpr std::int64_t kMaxMicroseconds = 4'000'000'000'000'000;
constexpr std::int64_t kMaxDurationMicroseconds = 100'000'000'000'000;

// Parses decimal microseconds, rounded to nanoseconds (halves away from zero). Returns nullopt if out of range.
std::optional<Duration> decimal_microseconds(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  std::int64_t whole = 0;
  const auto [point, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (error != std::errc{} || whole > kMaxMicroseconds) return std::nullopt;
  std::string_view rest(point, static_cast<std::size_t>(text.data() + text.size() - point));
  if (rest.starts_with('.')) rest.remove_prefix(1);
  std::int64_t ns = whole * 1000;
  std::int64_t unit = 100;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] < '0' || rest[i] > '9') return std::nullopt;  // an exponent
    if (i == 3 && rest[i] >= '5') ++ns;
    ns += (rest[i] - '0') * unit;
    unit /= 10;
  }
  return Duration{negative ? -ns : ns};
}

}  // namespace

void EventBuilder::text(std::string_view value) {
  ++num_values_;
  switch (place()) {
    case Place::event:
      if (key_ == "ph") event_.phase = value;
      if (key_ == "cat") event_.category = value;
      if (key_ == "name") event_.name = value;
      break;
    case Place::args:
      if (key_ == "cause") event_.cause = value;
      if (key_ == "name") event_.args_name = value;
      if (key_ == "Collective name") event_.collective.name = value;
      if (key_ == "Process Group Name") event_.collective.group = value;
      if (key_ == "Process Group Ranks") event_.collective.ranks = value;
      break;
    case Place::root:
    case Place::sluice:
      if (key_ == "schema" && (place() == Place::sluice || !head.is_sluice)) head.schema = value;
      break;
    default: break;
  }
}

void EventBuilder::whole(std::int64_t value) {
  ++num_values_;
  if (key_ == "rank" && (place() == Place::distributed || !head.rank)) head.rank = value;
  switch (place()) {
    case Place::root:
      if (key_ == "baseTimeNanoseconds") head.base_time_ns = value;
      break;
    case Place::event: event_whole(value); break;
    case Place::args: args_whole(value); break;
    case Place::with: op_whole(event_.with, value); break;
    default: break;
  }
}

void EventBuilder::real(double value, std::string_view text) {
  ++num_values_;
  if (place() != Place::event || (key_ != "ts" && key_ != "dur")) return;
  std::optional<Duration> time = decimal_microseconds(text);
  if (!time && std::abs(value) < static_cast<double>(kMaxMicroseconds)) time = Duration{std::llround(value * 1000)};
  set_time(time);
}

void EventBuilder::boolean(bool value) {
  ++num_values_;
  if (place() != Place::sluice) return;
  if (key_ == "waited_for_cores") head.waited_for_cores = value;
  if (key_ == "shared_cores") head.shared_cores = value;
}

void EventBuilder::open_object() {
  const Place next = place_of_object();
  if (next == Place::sluice) {
    head.is_sluice = true;
    head.schema.clear();
  }
  if (next == Place::event) start_event();
  open(next);
}

void EventBuilder::open_array() {
  const bool events = places_.empty() || (place() == Place::root && key_ == "traceEvents");
  if (events) head.is_trace = true;
  if (places_.empty()) head.is_array = true;
  if (place() == Place::sluice) {
    head.two_runs |= key_ == "sides";
    head.some_ranks_omitted |= key_ == "world_ranks";
  }
  open(events ? Place::events : Place::other);
}

void EventBuilder::close_object() {
  const bool event = place() == Place::event;
  close();
  if (!event) return;
  on_event_(event_, head);
  after_event_ = true;
}

void EventBuilder::close_array() { close(); }

void EventBuilder::undo_to(const Mark& mark) {
  num_events_ = mark.num_events;
  places_.resize(mark.depth);
  head.rank = mark.rank;
}

EventBuilder::Place EventBuilder::place_of_object() const {
  if (places_.empty()) return Place::root;
  switch (place()) {
    case Place::root:
      if (key_ == "sluice") return Place::sluice;
      if (key_ == "distributedInfo") return Place::distributed;
      return Place::other;
    case Place::events: return Place::event;
    case Place::event: return key_ == "args" ? Place::args : Place::other;
    case Place::args: return key_ == "with" ? Place::with : Place::other;
    default: return Place::other;
  }
}

// Keeps the memory of the strings of the last event.
void EventBuilder::start_event() {
  event_.number = num_events_++;
  for (std::string* text : {&event_.phase, &event_.category, &event_.name, &event_.cause, &event_.args_name,
                            &event_.collective.name, &event_.collective.group, &event_.collective.ranks}) {
    text->clear();
  }
  event_.pid = event_.tid = event_.step = event_.model_chunk = event_.mb_id = event_.bytes = event_.correlation = -1;
  CollectiveArgs& collective = event_.collective;
  collective.number = collective.size = collective.source = collective.destination = collective.external_id = -1;
  event_.start = event_.duration = std::nullopt;
  event_.op = event_.with = {};
  event_.values.clear();
}

void EventBuilder::open(Place next) {
  if (places_.size() == kMaxDepth) throw InputError(fmt::format("{}: nested deeper than {}", source_, kMaxDepth));
  places_.push_back(next);
  ++num_values_;
}

void EventBuilder::close() {
  places_.pop_back();
  key_ = {};
  ++num_values_;
}

void EventBuilder::set_time(std::optional<Duration> time) {
  const bool start = key_ == "ts";
  const std::int64_t most = start ? kMaxMicroseconds : kMaxDurationMicroseconds;
  if (!time || *time < Duration{kMinMicroseconds * 1000} || *time > Duration{most * 1000}) {
    throw InputError(fmt::format("{}: event {}: {}: expected microseconds between {:g} and {:g}", source_,
                                 event_.number, key_, static_cast<double>(kMinMicroseconds),
                                 static_cast<double>(most)));
  }
  (start ? event_.start : event_.duration) = time;
}

// Also before the phase is known: the keys of an event may be in any order.
void EventBuilder::add_counter_value(std::int64_t value) {
  if (event_.values.size() == kMaxCounterValues) {
    if (event_.phase.empty()) return;
    throw InputError(
        fmt::format("{}: event {}: args: expected at most {} values", source_, event_.number, kMaxCounterValues));
  }
  event_.values.emplace_back(key_, value);
}

void EventBuilder::event_whole(std::int64_t value) {
  if (key_ == "pid") event_.pid = value;
  if (key_ == "tid") event_.tid = value;
  if (key_ != "ts" && key_ != "dur") return;
  const bool fits = value <= kMaxMicroseconds && value >= kMinMicroseconds;
  set_time(fits ? std::optional(Duration{value * 1000}) : std::nullopt);
}

void EventBuilder::args_whole(std::int64_t value) {
  if (event_.phase == "C" || event_.phase.empty()) add_counter_value(value);
  if (key_ == "step") event_.step = value;
  if (key_ == "bytes") event_.bytes = value;
  if (key_ == "correlation") event_.correlation = value;
  if (key_ == "model_chunk") event_.model_chunk = value;
  if (key_ == "mb_id") event_.mb_id = value;
  if (key_ == "External id") event_.collective.external_id = value;
  if (key_ == "Seq") event_.collective.number = value;
  if (key_ == "Group size") event_.collective.size = value;
  if (key_ == "Src Rank") event_.collective.source = value;
  if (key_ == "Dst Rank") event_.collective.destination = value;
  op_whole(event_.op, value);
}

void EventBuilder::op_whole(EventOp& op, std::int64_t value) const {
  if (key_ == "stage") op.stage = value;
  if (key_ == "microbatch") op.microbatch = value;
  if (key_ == "slice") op.slice = value;
}

}  // namespace sluice::traces

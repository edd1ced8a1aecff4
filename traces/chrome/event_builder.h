#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/chrome/trace_events.h"

namespace sluice::traces {

// Builds the events of a trace from the keys and values of its JSON, in the order of the text.
class EventBuilder {
 public:
  EventBuilder(const std::string& source, const EventHandler& on_event) : source_(source), on_event_(on_event) {}

  TraceHead head;

  // The key of the next value. `key` must be valid until the end of that value, or until its first key or element.
  void key(std::string_view key) {
    ++num_values_;
    key_ = key;
  }
  void text(std::string_view value);
  void whole(std::int64_t value);
  // A number with a fraction or an exponent; `text` is its text.
  void real(double value, std::string_view text);
  void boolean(bool value);
  void null() { ++num_values_; }
  // Opens and closes an object or an array. open_* throws InputError if they are nested too deeply, close_object what
  // the handler of events throws.
  void open_object();
  void open_array();
  void close_object();
  void close_array();

  // Whether the last value was an event, which a comma or the end of the array follows.
  bool after_event() const { return after_event_; }
  void set_no_event() { after_event_ = false; }

  // What an event changes before it is closed, to undo it.
  struct Mark {
    std::int64_t num_events = 0;
    std::size_t depth = 0;
    std::optional<std::int64_t> rank;
  };
  Mark mark() const { return {num_events_, places_.size(), head.rank}; }
  void undo_to(const Mark& mark);

  std::int64_t num_events() const { return num_events_; }
  std::int64_t num_values() const { return num_values_; }  // values, keys, and ends of objects and arrays
  // Whether the text is an array of events, of which only the end is missing.
  bool in_open_array() const { return head.is_array && places_.size() == 1 && place() == Place::events; }

 private:
  // The position of a value in the document, as far as it matters.
  enum class Place : std::uint8_t { root, sluice, distributed, events, event, args, with, other };

  Place place() const { return places_.empty() ? Place::other : places_.back(); }
  Place place_of_object() const;
  void start_event();
  void open(Place next);
  void close();
  void set_time(std::optional<Duration> time);
  void add_counter_value(std::int64_t value);
  void event_whole(std::int64_t value);
  void args_whole(std::int64_t value);
  void op_whole(EventOp& op, std::int64_t value) const;

  const std::string& source_;
  const EventHandler& on_event_;
  std::vector<Place> places_;
  std::string_view key_;
  TraceEvent event_;
  std::int64_t num_events_ = 0;
  std::int64_t num_values_ = 0;
  bool after_event_ = false;
};

}  // namespace sluice::traces

#include "traces/chrome/trace_events.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/protected_files.h"

namespace sluice::traces {
namespace {

using nlohmann::json;

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

// The position of a value in the document, as far as it matters.
enum class Place : std::uint8_t { root, sluice, distributed, events, event, args, with, other };

class EventSax : public nlohmann::json_sax<json> {
 public:
  EventSax(const std::string& source, const EventHandler& on_event) : source_(source), on_event_(on_event) {}

  TraceHead head;

  std::int64_t num_events() const { return num_events_; }
  std::int64_t num_values() const { return num_values_; }  // values, keys, and ends of objects and arrays

  bool null() override { return ++num_values_, true; }
  bool boolean(bool) override { return ++num_values_, true; }
  bool number_integer(number_integer_t value) override {
    whole(value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    whole(value > static_cast<number_unsigned_t>(INT64_MAX) ? INT64_MAX : static_cast<std::int64_t>(value));
    return true;
  }
  bool number_float(number_float_t value, const string_t& text) override {
    ++num_values_;
    if (place() != Place::event || (key_ != "ts" && key_ != "dur")) return true;
    std::optional<Duration> time = decimal_microseconds(text);
    if (!time && std::abs(value) < static_cast<double>(kMaxMicroseconds)) time = Duration{std::llround(value * 1000)};
    set_time(time);
    return true;
  }
  bool string(string_t& value) override {
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
        break;
      case Place::root:
      case Place::sluice:
        if (key_ == "schema" && (place() == Place::sluice || !head.is_sluice)) head.schema = value;
        break;
      default: break;
    }
    return true;
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override {
    const Place next = [&] {
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
    }();
    if (next == Place::sluice) {
      head.is_sluice = true;
      head.schema.clear();
    }
    if (next == Place::event) {
      event_ = TraceEvent{.number = num_events_};
      ++num_events_;
    }
    return open(next);
  }
  bool start_array(std::size_t) override {
    const bool events = places_.empty() || (place() == Place::root && key_ == "traceEvents");
    if (events) head.is_trace = true;
    if (places_.empty()) head.is_array = true;
    if (!places_.empty() && place() == Place::sluice) {
      head.two_runs |= key_ == "sides";
      head.some_ranks_omitted |= key_ == "world_ranks";
    }
    return open(events ? Place::events : Place::other);
  }
  bool end_object() override {
    const bool event = place() == Place::event;
    close();
    if (event) on_event_(event_, head);
    return true;
  }
  bool end_array() override {
    close();
    return true;
  }
  bool key(string_t& key) override {
    ++num_values_;
    key_ = key;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: why"; an out-of-range number has no
    // position.
    std::string what = error.what();
    const bool open_array = head.is_array && places_.size() == 1 && place() == Place::events;
    if (open_array && what.find("unexpected end of input") != std::string::npos) return false;
    const std::string_view kAt = "parse error at ";
    const std::size_t at = what.find(kAt);
    const std::size_t why = what.find(": ", at);
    if (at == std::string::npos || why == std::string::npos) {
      throw InputError(fmt::format("{}: event {}: not JSON: a number is out of range", source_, num_events_));
    }
    throw InputError(fmt::format("{}: {}: not JSON: {}", source_, what.substr(at + kAt.size(), why - at - kAt.size()),
                                 what.substr(why + 2)));
  }

 private:
  Place place() const { return places_.empty() ? Place::other : places_.back(); }

  bool open(Place next) {
    if (places_.size() == kMaxDepth) throw InputError(fmt::format("{}: nested deeper than {}", source_, kMaxDepth));
    places_.push_back(next);
    ++num_values_;
    return true;
  }

  void close() {
    places_.pop_back();
    ++num_values_;
  }

  void set_time(std::optional<Duration> time) {
    const bool start = key_ == "ts";
    const std::int64_t most = start ? kMaxMicroseconds : kMaxDurationMicroseconds;
    if (!time || *time < Duration{kMinMicroseconds * 1000} || *time > Duration{most * 1000}) {
      throw InputError(fmt::format("{}: event {}: {}: expected microseconds between {:g} and {:g}", source_,
                                   event_.number, key_, static_cast<double>(kMinMicroseconds),
                                   static_cast<double>(most)));
    }
    (start ? event_.start : event_.duration) = time;
  }

  void whole(std::int64_t value) {
    ++num_values_;
    if (key_ == "rank" && (place() == Place::distributed || !head.rank)) head.rank = value;
    switch (place()) {
      case Place::root:
        if (key_ == "baseTimeNanoseconds") head.base_time_ns = value;
        break;
      case Place::event: event_whole(value); break;
      case Place::args:
        if (event_.phase == "C" || event_.phase.empty()) add_counter_value(value);
        if (key_ == "step") event_.step = value;
        if (key_ == "bytes") event_.bytes = value;
        if (key_ == "model_chunk") event_.model_chunk = value;
        if (key_ == "mb_id") event_.mb_id = value;
        op_whole(event_.op, value);
        break;
      case Place::with: op_whole(event_.with, value); break;
      default: break;
    }
  }

  // Also before the phase is known: the keys of an event may be in any order.
  void add_counter_value(std::int64_t value) {
    if (event_.values.size() == kMaxCounterValues) {
      if (event_.phase.empty()) return;
      throw InputError(
          fmt::format("{}: event {}: args: expected at most {} values", source_, event_.number, kMaxCounterValues));
    }
    event_.values.emplace_back(key_, value);
  }

  void event_whole(std::int64_t value) {
    if (key_ == "pid") event_.pid = value;
    if (key_ == "tid") event_.tid = value;
    if (key_ != "ts" && key_ != "dur") return;
    const bool fits = value <= kMaxMicroseconds && value >= kMinMicroseconds;
    set_time(fits ? std::optional(Duration{value * 1000}) : std::nullopt);
  }

  void op_whole(EventOp& op, std::int64_t value) const {
    if (key_ == "stage") op.stage = value;
    if (key_ == "microbatch") op.microbatch = value;
    if (key_ == "slice") op.slice = value;
  }

  const std::string& source_;
  const EventHandler& on_event_;
  std::vector<Place> places_;
  std::string key_;
  TraceEvent event_;
  std::int64_t num_events_ = 0;
  std::int64_t num_values_ = 0;
};

// Blocks of an input, with a limit on the bytes between two values.
class Blocks {
 public:
  Blocks(GzipReader& reader, const EventSax& sax, const std::string& source)
      : reader_(reader), sax_(sax), source_(source) {}

  // Goes to the next block. Returns false at the end of the input.
  bool fill() {
    if (sax_.num_values() != values_) since_value_ = 0;
    values_ = sax_.num_values();
    const std::span<const char> block = reader_.next();
    since_value_ += block.size();
    if (since_value_ > kMostBetweenValues) {
      throw InputError(fmt::format("{}: event {}: a string or a blank is longer than {} MiB", source_,
                                   sax_.num_events(), kMostBetweenValues >> 20));
    }
    at_ = block.data();
    end_ = at_ + block.size();
    return !block.empty();
  }

  const char* at_ = nullptr;
  const char* end_ = nullptr;

 private:
  static constexpr std::size_t kMostBetweenValues = std::size_t{1} << 24;

  GzipReader& reader_;
  const EventSax& sax_;
  const std::string& source_;
  std::int64_t values_ = 0;
  std::size_t since_value_ = 0;
};

// An input iterator over the bytes of an input.
class ByteIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  ByteIterator() = default;
  explicit ByteIterator(Blocks& blocks) : blocks_(&blocks) { refill(); }

  reference operator*() const { return *blocks_->at_; }
  ByteIterator& operator++() {
    if (++blocks_->at_ == blocks_->end_) refill();
    return *this;
  }
  ByteIterator operator++(int) { return ++*this; }
  friend bool operator==(const ByteIterator& a, const ByteIterator& b) { return a.blocks_ == b.blocks_; }
  friend bool operator!=(const ByteIterator& a, const ByteIterator& b) { return a.blocks_ != b.blocks_; }

 private:
  void refill() {
    if (!blocks_->fill()) blocks_ = nullptr;
  }
  Blocks* blocks_ = nullptr;
};

// Thrown to stop reading at the first event.
struct FirstEvent {};

}  // namespace

TraceSource::TraceSource(const std::string& path) : name_(path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw InputError(path + ": is a folder, expected a file");
  note_input(path);
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw InputError(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
}

TraceSource::TraceSource(std::string_view text, const std::string& name) : name_(name), rest_(text) {}

TraceSource::~TraceSource() {
  if (fd_ >= 0) ::close(fd_);
}

std::size_t TraceSource::fill(std::span<char> out) {
  if (!keeps_ && kept_read_ < kept_.size()) {
    const std::size_t count = kept_.copy(out.data(), out.size(), kept_read_);
    kept_read_ += count;
    if (kept_read_ == kept_.size()) kept_ = std::string(), kept_read_ = 0;
    return count;
  }
  std::size_t count = rest_.copy(out.data(), out.size());
  rest_.remove_prefix(count);
  if (fd_ >= 0) {
    ssize_t got = -1;
    do {
      got = ::read(fd_, out.data(), out.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) throw InputError(fmt::format("{}: cannot read: {}", name_, std::strerror(errno)));
    count = static_cast<std::size_t>(got);
  }
  if (!keeps_) return count;
  kept_.append(out.data(), count);
  if (std::ssize(kept_) > kMaxInputBytes) {
    throw InputError(fmt::format("{}: larger than {} bytes without an event of a trace", name_, kMaxInputBytes));
  }
  return count;
}

ByteFill TraceSource::filler() {
  return [this](std::span<char> out) { return fill(out); };
}

bool TraceSource::is_trace() {
  keeps_ = true;
  bool found = true;
  try {
    found = read([this](TraceEvent& event, const TraceHead&) {
              first_name_ = event.name;
              throw FirstEvent{};
            }).is_trace;
  } catch (const FirstEvent&) {
  }
  keeps_ = false;
  return found;
}

TraceHead TraceSource::read(const EventHandler& on_event) {
  EventSax sax(name_, on_event);
  GzipReader reader(name_, filler());
  Blocks blocks(reader, sax, name_);
  json::sax_parse(ByteIterator(blocks), ByteIterator(), &sax);
  return std::move(sax.head);
}

std::string TraceSource::text() {
  GzipReader reader(name_, filler());
  std::string out;
  for (auto block = reader.next(); !block.empty(); block = reader.next()) {
    out.append(block.data(), block.size());
    if (std::ssize(out) > kMaxInputBytes) {
      throw InputError(fmt::format("{}: larger than {} bytes", name_, kMaxInputBytes));
    }
  }
  return out;
}

TraceHead read_trace_text(std::string_view text, const std::string& source, const EventHandler& on_event) {
  return TraceSource(text, source).read(on_event);
}

}  // namespace sluice::traces

#include "traces/chrome/trace_events.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "model/errors.h"

namespace sluice::traces {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 100;
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
  EventSax(const std::string& source, const std::function<void(TraceEvent&, const TraceHead&)>& on_event)
      : source_(source), on_event_(on_event) {}

  TraceHead head;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override {
    whole(value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    whole(value > static_cast<number_unsigned_t>(INT64_MAX) ? INT64_MAX : static_cast<std::int64_t>(value));
    return true;
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (place() != Place::event || (key_ != "ts" && key_ != "dur")) return true;
    std::optional<Duration> time = decimal_microseconds(text);
    if (!time && std::abs(value) < static_cast<double>(kMaxMicroseconds)) time = Duration{std::llround(value * 1000)};
    set_time(time);
    return true;
  }
  bool string(string_t& value) override {
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
    const bool events = !places_.empty() && place() == Place::root && key_ == "traceEvents";
    if (events) head.is_trace = true;
    if (!places_.empty() && place() == Place::sluice) {
      head.two_runs |= key_ == "sides";
      head.some_ranks_omitted |= key_ == "world_ranks";
    }
    return open(events ? Place::events : Place::other);
  }
  bool end_object() override {
    const bool event = place() == Place::event;
    places_.pop_back();
    if (event) on_event_(event_, head);
    return true;
  }
  bool end_array() override {
    places_.pop_back();
    return true;
  }
  bool key(string_t& key) override {
    key_ = key;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: why"; an out-of-range number has no
    // position.
    std::string what = error.what();
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
    return true;
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
    if (key_ == "rank" && (place() == Place::distributed || !head.rank)) head.rank = value;
    switch (place()) {
      case Place::root:
        if (key_ == "baseTimeNanoseconds") head.base_time_ns = value;
        break;
      case Place::event: event_whole(value); break;
      case Place::args:
        if (event_.phase == "C") event_.values.emplace_back(key_, value);
        if (key_ == "step") event_.step = value;
        if (key_ == "bytes") event_.bytes = value;
        op_whole(event_.op, value);
        break;
      case Place::with: op_whole(event_.with, value); break;
      default: break;
    }
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
  const std::function<void(TraceEvent&, const TraceHead&)>& on_event_;
  std::vector<Place> places_;
  std::string key_;
  TraceEvent event_;
  std::int64_t num_events_ = 0;
};

// Reads a file in blocks; decompresses it if it is gzipped.
class Unzipped {
 public:
  explicit Unzipped(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose_r) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) throw InputError(path + ": is a folder, expected a file");
    if (!file_) throw InputError(path + ": cannot be read");
    gzbuffer(file_.get(), 1U << 18);
  }

  // Reads the next block. Returns false at the end of the file.
  bool fill() {
    const int got = gzread(file_.get(), buffer_.data(), static_cast<unsigned>(buffer_.size()));
    int code = Z_OK;
    const char* what = gzerror(file_.get(), &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      const bool truncated = code == Z_BUF_ERROR;
      throw InputError(fmt::format("{}: {}", path_, truncated ? "the gzip stream is truncated" : what));
    }
    at_ = buffer_.data();
    end_ = at_ + got;
    return got > 0;
  }

  const char* at_ = nullptr;
  const char* end_ = nullptr;

 private:
  const std::string& path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
  std::vector<char> buffer_ = std::vector<char>(std::size_t{1} << 18);
};

// An input iterator over the bytes of a file.
class ByteIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  ByteIterator() = default;
  explicit ByteIterator(Unzipped& file) : file_(&file) { refill(); }

  reference operator*() const { return *file_->at_; }
  ByteIterator& operator++() {
    if (++file_->at_ == file_->end_) refill();
    return *this;
  }
  ByteIterator operator++(int) { return ++*this; }
  friend bool operator==(const ByteIterator& a, const ByteIterator& b) { return a.file_ == b.file_; }
  friend bool operator!=(const ByteIterator& a, const ByteIterator& b) { return a.file_ != b.file_; }

 private:
  void refill() {
    if (!file_->fill()) file_ = nullptr;
  }
  Unzipped* file_ = nullptr;
};

}  // namespace

TraceHead read_trace_events(const std::string& path,
                            const std::function<void(TraceEvent&, const TraceHead&)>& on_event) {
  EventSax sax(path, on_event);
  Unzipped file(path);
  json::sax_parse(ByteIterator(file), ByteIterator(), &sax);
  return std::move(sax.head);
}

TraceHead read_trace_text(std::string_view text, const std::string& source,
                          const std::function<void(TraceEvent&, const TraceHead&)>& on_event) {
  EventSax sax(source, on_event);
  json::sax_parse(text.begin(), text.end(), &sax);
  return std::move(sax.head);
}

}  // namespace sluice::traces

#include "traces/chrome/trace_events.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/protected_files.h"
#include "model/input/yaml_text.h"
#include "traces/chrome/event_builder.h"

namespace sluice::traces {
namespace {

// Reads the events of an array without a JSON parser's checks and copies of every character, several times as fast. It
// reads what profilers write: strings of printable ASCII without escapes, and numbers without exponents of at most 18
// digits. What it does not read, wrong JSON among it, is left to a parser.
class EventScanner {
 public:
  explicit EventScanner(EventBuilder& builder) : builder_(builder) {}

  // Reads ",{...},{...}" from `begin` on, as far as events are complete, are read by this scanner, and are followed by
  // a further character. Returns where the text that was not read begins.
  const char* read(const char* begin, const char* end);

  // The number of lines that ended in the text read by the last call, and the last of these ends; null: none.
  std::int64_t num_lines() const { return num_lines_; }
  const char* last_line_end() const { return last_line_end_; }

 private:
  bool comma_and_event();
  bool value();
  bool object(bool is_event);
  bool array();
  bool number();
  bool word(std::string_view word);
  bool string(std::string_view& out);
  bool skip_digits();
  void skip_blanks();
  bool next_is(char c) const { return at_ != end_ && *at_ == c; }
  bool take(char c);

  EventBuilder& builder_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  std::int64_t lines_ = 0;
  const char* line_end_ = nullptr;
  std::int64_t num_lines_ = 0;
  const char* last_line_end_ = nullptr;
};

// Characters that may be in a string.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain{};
  for (int c = ' '; c < 0x7f; ++c) plain[static_cast<std::size_t>(c)] = c != '"' && c != '\\';
  return plain;
}();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

const char* EventScanner::read(const char* begin, const char* end) {
  at_ = begin;
  end_ = end;
  lines_ = num_lines_ = 0;
  line_end_ = last_line_end_ = nullptr;
  while (true) {
    const EventBuilder::Mark mark = builder_.mark();
    if (!comma_and_event()) {
      builder_.undo_to(mark);
      return begin;
    }
    begin = at_;
    num_lines_ = lines_;
    last_line_end_ = line_end_;
  }
}

bool EventScanner::comma_and_event() {
  skip_blanks();
  if (!take(',')) return false;
  skip_blanks();
  return take('{') && object(true);
}

bool EventScanner::value() {
  if (at_ == end_) return false;
  switch (*at_) {
    case '"': {
      std::string_view text;
      if (!string(text)) return false;
      builder_.text(text);
      return true;
    }
    case '{': ++at_; return object(false);
    case '[': ++at_; return array();
    case 't':
    case 'f':
    case 'n': return word("true") || word("false") || word("null");
    default: return number();
  }
}

// The rest of an object after its brace.
bool EventScanner::object(bool is_event) {
  builder_.open_object();
  skip_blanks();
  if (!next_is('}')) {
    do {
      skip_blanks();
      std::string_view key;
      if (!string(key)) return false;
      builder_.key(key);
      skip_blanks();
      if (!take(':')) return false;
      skip_blanks();
      if (!value()) return false;
      skip_blanks();
    } while (take(','));
  }
  if (!take('}') || (is_event && at_ == end_)) return false;
  builder_.close_object();
  return true;
}

// The rest of an array after its bracket.
bool EventScanner::array() {
  builder_.open_array();
  skip_blanks();
  if (!next_is(']')) {
    do {
      skip_blanks();
      if (!value()) return false;
      skip_blanks();
    } while (take(','));
  }
  if (!take(']')) return false;
  builder_.close_array();
  return true;
}

bool EventScanner::number() {
  constexpr std::ptrdiff_t kMostDigits = 18;  // which int64 has
  const char* const begin = at_;
  take('-');
  const char* const digits = at_;
  if (!take('0') && !skip_digits()) return false;
  if (at_ - digits > kMostDigits) return false;
  const bool fraction = take('.');
  if (fraction && !skip_digits()) return false;
  if (at_ == end_ || is_digit(*at_) || *at_ == 'e' || *at_ == 'E') return false;
  if (fraction) {
    // Its value is only used for numbers with an exponent.
    builder_.real(std::numeric_limits<double>::infinity(), {begin, static_cast<std::size_t>(at_ - begin)});
    return true;
  }
  std::int64_t value = 0;
  std::from_chars(begin, at_, value);
  builder_.whole(value);
  return true;
}

bool EventScanner::word(std::string_view word) {
  const std::string_view rest(at_, static_cast<std::size_t>(end_ - at_));
  if (!rest.starts_with(word)) return false;
  at_ += word.size();
  builder_.null();  // the fields of events are no booleans
  return true;
}

bool EventScanner::string(std::string_view& out) {
  if (!take('"')) return false;
  const char* const begin = at_;
  while (at_ != end_ && kPlain[static_cast<unsigned char>(*at_)]) ++at_;
  out = {begin, static_cast<std::size_t>(at_ - begin)};
  return take('"');
}

bool EventScanner::skip_digits() {
  const char* const begin = at_;
  while (at_ != end_ && is_digit(*at_)) ++at_;
  return at_ != begin;
}

void EventScanner::skip_blanks() {
  for (; at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r'); ++at_) {
    if (*at_ != '\n') continue;
    ++lines_;
    line_end_ = at_;
  }
}

bool EventScanner::take(char c) {
  if (!next_is(c)) return false;
  ++at_;
  return true;
}

using nlohmann::json;

// Blocks of an input, with a limit on the bytes between two values. Events that an EventScanner reads are left out of
// the text that the parser gets.
class Blocks {
 public:
  Blocks(GzipReader& reader, EventBuilder& builder, const std::string& source)
      : reader_(reader), builder_(builder), scanner_(builder), source_(source) {}

  // Goes to the next block. Returns false at the end of the input.
  bool fill() {
    if (builder_.num_values() != values_) since_value_ = 0;
    values_ = builder_.num_values();
    const std::span<const char> block = reader_.next();
    since_value_ += block.size();
    if (since_value_ > kMostBetweenValues) {
      throw InputError(fmt::format("{}: event {}: a string or a blank is longer than {} MiB", source_,
                                   builder_.num_events(), kMostBetweenValues >> 20));
    }
    at_ = block.data();
    end_ = at_ + block.size();
    return !block.empty();
  }

  // The next character for the parser. The block is not at its end.
  const char& front() {
    if (builder_.after_event()) skip_events();
    return *at_;
  }
  // Removes it. Returns whether the block is at its end.
  bool pop() {
    if (*at_ == '\n') {
      column_ = column_shift_ = 0;
    } else {
      ++column_;
    }
    ++since_skip_;
    return ++at_ == end_;
  }

  // Returns the place in the text of a place in the text that the parser got.
  std::string place(std::int64_t line, std::int64_t column) const {
    return fmt::format("line {}, column {}", line + lines_skipped_, column + column_shift_);
  }

  // Returns the parser's reason of an error without what it read before the events that were left out.
  std::string reason(std::string why) const {
    constexpr std::string_view kLastRead = "last read: '";
    const std::size_t found = why.find(kLastRead);
    if (found == std::string::npos || !skipped_) return why;
    const std::size_t begin = found + kLastRead.size();
    const std::size_t end = std::min(why.rfind('\''), why.rfind("'; expected "));
    if (end > begin + since_skip_) why.erase(begin, end - begin - since_skip_);
    return why;
  }

 private:
  static constexpr std::size_t kMostBetweenValues = std::size_t{1} << 24;

  void skip_events() {
    const char* const next = scanner_.read(at_, end_);
    lines_skipped_ += scanner_.num_lines();
    column_shift_ =
        scanner_.num_lines() > 0 ? next - scanner_.last_line_end() - 1 - column_ : column_shift_ + (next - at_);
    if (next != at_) {
      skipped_ = true;
      since_skip_ = 0;
    }
    at_ = next;
    builder_.set_no_event();
  }

  GzipReader& reader_;
  EventBuilder& builder_;
  EventScanner scanner_;
  const std::string& source_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  std::int64_t values_ = 0;
  std::size_t since_value_ = 0;
  std::int64_t column_ = 0;        // characters that the parser got of its current line
  std::int64_t column_shift_ = 0;  // from there to the column in the text
  std::int64_t lines_skipped_ = 0;
  bool skipped_ = false;
  std::size_t since_skip_ = 0;  // characters that the parser got since the last one
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

  reference operator*() const { return blocks_->front(); }
  ByteIterator& operator++() {
    if (blocks_->pop()) refill();
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

// Passes what the parser finds to an EventBuilder.
class EventSax : public nlohmann::json_sax<json> {
 public:
  EventSax(EventBuilder& builder, const Blocks& blocks, const std::string& source)
      : builder_(builder), blocks_(blocks), source_(source) {}

  bool null() override { return builder_.null(), true; }
  bool boolean(bool value) override { return builder_.boolean(value), true; }
  bool number_integer(number_integer_t value) override { return builder_.whole(value), true; }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr number_unsigned_t kMost = INT64_MAX;
    return builder_.whole(static_cast<std::int64_t>(std::min(value, kMost))), true;
  }
  bool number_float(number_float_t value, const string_t& text) override { return builder_.real(value, text), true; }
  bool string(string_t& value) override { return builder_.text(value), true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return builder_.open_object(), true; }
  bool start_array(std::size_t) override { return builder_.open_array(), true; }
  bool end_object() override { return builder_.close_object(), true; }
  bool end_array() override { return builder_.close_array(), true; }
  bool key(string_t& key) override {
    key_ = key;
    return builder_.key(key_), true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: why"; an out-of-range number has no
    // position.
    const std::string what = error.what();
    if (builder_.in_open_array() && what.find("unexpected end of input") != std::string::npos) return false;
    const std::size_t at = what.find("line ");
    const std::size_t why = what.find(": ", at);
    std::int64_t line = 0;
    std::int64_t column = 0;
    if (at == std::string::npos || why == std::string::npos ||
        std::sscanf(what.c_str() + at, "line %" SCNd64 ", column %" SCNd64, &line, &column) != 2) {
      throw InputError(fmt::format("{}: event {}: not JSON: a number is out of range", source_, builder_.num_events()));
    }
    throw InputError(fmt::format("{}: {}: not JSON: {}", source_, blocks_.place(line, column),
                                 blocks_.reason(what.substr(why + 2))));
  }

 private:
  EventBuilder& builder_;
  const Blocks& blocks_;
  const std::string& source_;
  std::string key_;
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
    found = read([this](TraceEvent& event, const TraceHead& head) {
              first_name_ = event.name;
              is_sluice_ = head.is_sluice;
              throw FirstEvent{};
            }).is_trace;
  } catch (const FirstEvent&) {
  } catch (const InputError&) {
    if (looks_like_yaml(kept_, name_)) throw InputError(fmt::format("{}: expected JSON, got YAML", name_));
    throw;
  }
  keeps_ = false;
  return found;
}

TraceHead TraceSource::read(const EventHandler& on_event) {
  EventBuilder builder(name_, on_event);
  GzipReader reader(name_, filler());
  Blocks blocks(reader, builder, name_);
  EventSax sax(builder, blocks, name_);
  json::sax_parse(ByteIterator(blocks), ByteIterator(), &sax);
  return std::move(builder.head);
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

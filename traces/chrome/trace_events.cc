#include "traces/chrome/trace_events.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/protected_files.h"
#include "model/input/yaml_text.h"
#include "traces/chrome/event_builder.h"
#include "traces/chrome/event_scanner.h"

namespace sluice::traces {
namespace {

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

#include "traces/chrome/event_scanner.h"

#include <array>
#include <charconv>
#include <limits>

namespace sluice::traces {
namespace {

// Characters that may be in a string.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain{};
  for (int c = ' '; c < 0x7f; ++c) plain[static_cast<std::size_t>(c)] = c != '"' && c != '\\';
  return plain;
}();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

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

}  // namespace sluice::traces

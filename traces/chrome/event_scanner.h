#pragma once

#include <cstdint>
#include <string_view>

#include "traces/chrome/event_builder.h"

namespace sluice::traces {

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

}  // namespace sluice::traces

#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/input/files.h"
#include "model/units.h"

namespace sluice::traces {

// Buffers the text of a trace and writes it to a sink.
class EventText {
 public:
  explicit EventText(const ByteSink& sink) : sink_(sink) { buffer_.reserve(kFlushAt + (std::size_t{1} << 16)); }

  EventText& operator<<(std::string_view text) {
    buffer_.append(text);
    return *this;
  }
  EventText& operator<<(std::int64_t number) {
    char digits[20];
    const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    buffer_.append(digits, end);
    return *this;
  }
  EventText& operator<<(int number) { return *this << std::int64_t{number}; }

  // Microseconds with three decimals.
  EventText& operator<<(Duration time) {
    const std::int64_t ns = time.count();
    *this << ns / 1000;
    const auto rest = static_cast<int>(ns % 1000);
    const char decimals[] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                             static_cast<char>('0' + rest % 10)};
    buffer_.append(decimals, sizeof decimals);
    return *this;
  }

  void flush() {
    sink_(buffer_);
    buffer_.clear();
  }
  void flush_if_full() {
    if (buffer_.size() >= kFlushAt) flush();
  }

 private:
  static constexpr std::size_t kFlushAt = std::size_t{1} << 20;

  const ByteSink& sink_;
  std::string buffer_;
};

}  // namespace sluice::traces

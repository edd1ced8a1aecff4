#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/input/files.h"
#include "model/timeline/memory.h"
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

// Whether a sample differs from the previous one; only such samples are written.
inline bool changes(const RankMemory& memory, std::size_t sample) {
  return sample == 0 || memory.samples[sample].bytes != memory.samples[sample - 1].bytes;
}

// Writes the memory of a rank as counter events of its process. `next_event` is called before each event.
template <typename NextEvent>
void write_memory_events(EventText& text, int pid, const RankMemory& memory, NextEvent&& next_event) {
  std::array<bool, kNumMemoryClasses> occurs{};
  for (const MemorySample& sample : memory.samples) {
    for (std::size_t c = 0; c < occurs.size(); ++c) occurs[c] = occurs[c] || sample.bytes[c] != 0;
  }
  // Classes that never occur would only add empty tracks. At least one series is required.
  if (std::none_of(occurs.begin(), occurs.end(), [](bool o) { return o; })) occurs[0] = true;
  for (std::size_t i = 0; i < memory.samples.size(); ++i) {
    if (!changes(memory, i)) continue;
    const MemorySample& sample = memory.samples[i];
    next_event();
    text << R"({"ph":"C","pid":)" << pid << R"(,"ts":)" << sample.time << R"(,"name":"memory","args":{)";
    bool first = true;
    for (std::size_t c = 0; c < occurs.size(); ++c) {
      if (!occurs[c]) continue;
      text << (first ? "\"" : ",\"") << kMemoryClassNames[c] << "\":" << sample.bytes[c];
      first = false;
    }
    text << "}}";
    text.flush_if_full();
  }
}

}  // namespace sluice::traces

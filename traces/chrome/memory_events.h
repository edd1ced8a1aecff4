#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "model/timeline/memory.h"
#include "traces/chrome/event_text.h"

namespace sluice::traces {

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

#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "exec/watch/recorder.h"

// What a recorder file holds, in the byte order of its host. Only recorder.cc and recorder_file.cc include this.
namespace sluice::exec {

// An op, so that it can be named without its graph.
struct RecordedVertex {
  static constexpr std::uint8_t kNone = 255;

  std::int32_t microbatch = 0;  // as in Vertex
  std::int16_t stage = 0;
  std::int16_t slice = 0;
  std::int16_t from = -1;  // pipeline ranks of a transfer
  std::int16_t to = -1;
  std::uint8_t kind = kNone;    // VertexKind; kNone: there is no op
  std::uint8_t op = 0;          // OpKind
  std::uint8_t collective = 0;  // CollectiveKind
  std::uint8_t partner_op = 0;  // the second half of a joint block
  std::int32_t partner_microbatch = 0;
  std::int16_t partner_stage = 0;
  std::int16_t partner_slice = 0;
};

struct RecordedEntry {
  std::int64_t time_ns = 0;
  std::int32_t step = 0;
  std::uint32_t activity = 0;
  std::uint32_t vertex = 0;
  std::uint32_t waits_for = 0;
  RecordedVertex op;
  RecordedVertex awaited;
};
static_assert(std::is_trivially_copyable_v<RecordedEntry> && sizeof(RecordedEntry) % 8 == 0);

// Written by one thread. Entry n stands in slot n % kSlots; those below `count` are written, and of them the last
// kEvents stand: the slot that is being written is none of theirs.
//
// Without fences (which thread sanitizers do not know): every word is stored with release and loaded with acquire, so
// that who sees any word of entry n + kSlots also sees a count that says that entry n is gone.
struct RecorderRing {
  static constexpr std::size_t kSlots = Recorder::kEvents + 1;
  using Words = std::array<std::uint64_t, sizeof(RecordedEntry) / 8>;
  using Slot = std::array<std::atomic<std::uint64_t>, sizeof(RecordedEntry) / 8>;

  alignas(64) std::atomic<std::uint64_t> count;
  alignas(64) std::array<Slot, kSlots> slots;

  void append(const RecordedEntry& entry) {
    const std::uint64_t n = count.load(std::memory_order_relaxed);
    const auto words = std::bit_cast<Words>(entry);
    Slot& slot = slots[n % kSlots];
    for (std::size_t i = 0; i < words.size(); ++i) slot[i].store(words[i], std::memory_order_release);
    count.store(n + 1, std::memory_order_release);
  }

  // False: it has gone in the meantime. Precondition: n < count.
  bool read(std::uint64_t n, RecordedEntry& entry) const {
    Words words;
    const Slot& slot = slots[n % kSlots];
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = slot[i].load(std::memory_order_acquire);
    entry = std::bit_cast<RecordedEntry>(words);
    return count.load(std::memory_order_acquire) < n + kSlots;
  }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct RecorderLayout {
  static constexpr std::array<char, 8> kMagic = {'S', 'L', 'U', 'I', 'C', 'E', 'F', 'R'};
  static constexpr std::uint32_t kVersion = 1;

  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t sliced = 0;  // names of ops say their slice
  std::int32_t world_rank = 0;
  std::int32_t pipeline_rank = 0;
  std::int32_t data_rank = 0;
  std::int32_t tensor_rank = 0;
  std::int32_t world_size = 0;
  std::int32_t unused = 0;
  std::int64_t process = 0;
  std::uint64_t process_started = 0;
  std::array<char, 256> host{};       // ends in a zero
  std::array<RecorderRing, 2> rings;  // by WorkerThread
};

}  // namespace sluice::exec

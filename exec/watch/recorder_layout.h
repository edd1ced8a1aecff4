#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "exec/watch/recorder.h"

// Layout of a recorder file, in the byte order of its host. Included by recorder.cc and recorder_file.cc only.
namespace sluice::exec {

// A vertex in a form that can be named without its graph.
struct RecordedVertex {
  static constexpr std::uint8_t kNone = 255;

  std::int32_t microbatch = 0;  // as in Vertex
  std::int16_t stage = 0;
  std::int16_t slice = 0;
  std::int16_t from = -1;  // pipeline ranks of a transfer
  std::int16_t to = -1;
  std::uint8_t kind = kNone;    // VertexKind; kNone: no vertex
  std::uint8_t op = 0;          // OpKind
  std::uint8_t collective = 0;  // CollectiveKind
  std::uint8_t partner_op = 0;  // second op of a joint block
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

// Ring buffer written by one thread. Entry n is stored in slot n % kSlots; entries below `count` are written, and the
// last kEvents of them are valid: the slot being written is not one of theirs.
//
// Uses no fences (which thread sanitizers do not support): every word is stored with release and loaded with acquire
// order, so that a reader that sees a word of entry n + kSlots also sees a count that invalidates entry n.
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

  // Returns false if the entry has been overwritten in the meantime. Precondition: n < count.
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
  std::uint32_t sliced = 0;  // names of ops include their slice
  std::int32_t world_rank = 0;
  std::int32_t pipeline_rank = 0;
  std::int32_t data_rank = 0;
  std::int32_t tensor_rank = 0;
  std::int32_t world_size = 0;
  std::int32_t expert_ranks = 0;
  std::int64_t process = 0;
  std::uint64_t process_started = 0;
  std::array<char, 256> host{};       // zero-terminated
  std::array<RecorderRing, 2> rings;  // by WorkerThread
};

}  // namespace sluice::exec

// Public header.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::model {

enum class MemoryClass : std::uint8_t { weights, gradients, optimizer, activations, keys_values, buffers };
inline constexpr int kNumMemoryClasses = 6;
inline constexpr std::array<std::string_view, kNumMemoryClasses> kMemoryClassNames = {
    "weights", "gradients", "optimizer", "activations", "keys_values", "buffers"};

using BytesByClass = std::array<std::int64_t, kNumMemoryClasses>;
std::int64_t total(const BytesByClass& bytes);

// The memory of a rank from `time` until the next sample.
struct MemorySample {
  Duration time{};
  BytesByClass bytes{};
};

// The memory of one rank over the whole timeline.
struct RankMemory {
  std::int64_t peak_bytes = 0;  // of the sum over the classes
  Duration peak_time{};         // when it is first reached
  BytesByClass at_peak{};
  std::vector<MemorySample> samples;  // strictly increasing times, one per change; empty unless requested
};

// The gradients of a stage on a rank that accumulate until they are reduced: from the end of the first B or W after a
// reduction, which allocates them layer by layer while it frees activations, until the end of the next one
// (Duration::max() without a reduction).
struct GradientSpan {
  int rank = 0;
  int stage = 0;
  Duration start{};
  Duration end = Duration::max();
};

// Returns them for stages with StageBytes::accumulated_gradients, by rank and start.
std::vector<GradientSpan> gradient_spans(const OpGraph& graph, const Timeline& timeline);

// Computes the memory of every rank over time. Weights (all stored versions), gradients and optimizer state are
// allocated from the start, except gradients that exist in a GradientSpan only; an F allocates its activations, keys
// and values when it starts; I or B, and W, free what is no longer needed when they end, except what is kept until the
// end of the batch; the buffer of a transfer is allocated at the receiver from its start until the op that reads it
// starts; an offload frees what it copied to the host when it ends, and allocates it when the copy back starts. At the
// same instant, ends free before starts allocate, and buffers are received before an op starts.
std::vector<RankMemory> memory_over_time(const OpGraph& graph, const Timeline& timeline, bool keep_samples);

// Blocks that repeat and that a timeline leaves out: `copies` after each block whose vertices have a positive `growth`
// (by vertex), each later than the one before by that. Vertices on a lane grow alike, and the next block after the
// copies, which is in the timeline, continues them.
struct LeftOutBlocks {
  int copies = 0;
  std::vector<Duration> growth;
};

// The peaks of every rank with those blocks. Returns nothing if they may be in the middle of the copies: what a rank
// holds must either grow from block to block, or not grow however the transfers that it receives meanwhile coincide.
std::optional<std::vector<RankMemory>> memory_over_time(const OpGraph& graph, const Timeline& timeline,
                                                        const LeftOutBlocks& left_out);

// Returns the most bytes of offloaded activations that each rank has in host memory, from the starts of copies to the
// host until the ends of those back.
std::vector<std::int64_t> host_peaks(const OpGraph& graph, const Timeline& timeline);

// Lower bounds of the peaks per rank from the order of the ops alone, without receive buffers. Repetitions in the lists
// are found once; then they cost as much as one of them.
class LeastPeaks {
 public:
  // `schedule` must outlive this; its sizes may change (Schedule::resize).
  explicit LeastPeaks(const Schedule& schedule);

  // Given those of schedules that are one step and two steps longer, makes these the bounds of a schedule that is
  // `steps` steps longer: the numbers of repetitions grow linearly. Returns false, and changes nothing, where they do
  // not.
  bool lengthen(const LeastPeaks& longer, const LeastPeaks& longest, std::int64_t steps);

  // Returns the bounds per rank, in bytes; zeros without a footprint. Throws InputError if the memory of a rank could
  // exceed 64 bits.
  std::vector<std::int64_t> bytes(const Footprint* footprint) const;

 private:
  // Consecutive ops that repeat for later microbatches.
  struct Run {
    std::vector<Op> ops;
    std::int64_t times = 1;
  };
  static std::vector<Run> runs_of(const Schedule& schedule, std::span<const Op> list);

  const Schedule& schedule_;
  std::vector<std::vector<Run>> runs_;  // by rank
};

// Returns the bytes that each rank stores for the whole run, whatever its ops; needs no graph.
std::int64_t standing_bytes(const OpGraph& graph, int rank);
std::vector<std::int64_t> standing_bytes(const Schedule& schedule, const Footprint& footprint);

}  // namespace sluice::model

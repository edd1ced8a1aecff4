// Public header.
#pragma once

#include <array>
#include <cstdint>
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

// What a rank holds from `time` on, until the next sample.
struct MemorySample {
  Duration time{};
  BytesByClass bytes{};
};

// Memory of one rank over the whole timeline.
struct RankMemory {
  std::int64_t peak_bytes = 0;  // of the sum over the classes
  Duration peak_time{};         // when it was first reached
  BytesByClass at_peak{};
  std::vector<MemorySample> samples;  // strictly rising times, one for each change; empty unless asked for
};

// Memory of every rank over time. Weights (all versions held), gradients and optimizer state are there from the
// start; an F takes its activations, keys and values when it starts; I or B, and W, give back what ends with them
// when they end; a transfer's buffer is held at the receiver from its start until the op that reads it starts.
// At one instant what ends is given back before what starts takes, and what comes in is there before an op starts.
std::vector<RankMemory> memory_over_time(const OpGraph& graph, const Timeline& timeline, bool keep_samples);

// The least that each rank's peak can be, from the order of its ops alone: without buffers of what comes in.
std::vector<std::int64_t> least_peak_bytes(const OpGraph& graph);

// Bytes that a rank holds for the whole run, whatever its ops; of every rank, before there is a graph.
std::int64_t standing_bytes(const OpGraph& graph, int rank);
std::vector<std::int64_t> standing_bytes(const Schedule& schedule, const Footprint& footprint);

}  // namespace sluice::model

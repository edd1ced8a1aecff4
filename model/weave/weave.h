// Public header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"
#include "model/schedule/op.h"
#include "model/workload/layer_part.h"

namespace sluice::model {

// One part of one pass: F, B or W. B is the input gradient, and includes the weight gradient in a weave without W.
struct PassPart {
  LayerPart part = LayerPart::attention;
  OpKind pass = OpKind::F;
  friend bool operator==(const PassPart&, const PassPart&) = default;
};
std::string to_string(const PassPart& part);                // "dispatch(F)"
std::optional<PassPart> parse_part(std::string_view word);  // the reverse, or none

// How the parts of an F and of a B of another microbatch interleave in a joint block: the order of issue per layer.
// Compute and communication are two lanes, each of which runs its parts in this order.
struct Weave {
  std::string name;
  std::vector<PassPart> order;
  bool has_weight_parts() const;
};

// Returns a weave by name, or of a text such as "combine(B) attention(F) experts(B) ...". Names: `dualpipe`, the order
// of DeepSeek's DualPipe and of Megatron-LM's combined 1F1B with delay-wgrad-compute; `whole-backward`, the same
// without separate weight gradients (combined 1F1B without that option). Each part of F and of B occurs once, in the
// order of the data (dispatch(F) after attention(F), attention(B) after dispatch(B)); the W of attention and of experts
// both occur, after their B, or neither. Throws InputError that starts with `place`.
Weave find_weave(std::string_view text, std::string_view place = "weave");
const std::vector<std::string>& weave_names();
// In place of a weave: the fastest one for each pair of stages.
inline constexpr std::string_view kSearchedWeave = "search";
// Returns every weave with separate weight gradients, one of each pair of lane orders: about a hundred. Their names are
// their orders.
const std::vector<Weave>& all_weaves();

// Seconds of each part of one layer, by pass (F, B, W), then by part. B excludes W.
struct LayerTimes {
  using Parts = std::array<std::array<double, kNumLayerParts>, 3>;
  Parts seconds = {};  // alone on its lane
  Parts delays = {};   // by how many seconds longer it takes if the other lane runs all along
  Parts issues = {};   // of the host, to launch its kernels: 0 where one CUDA graph has all of them
  // The host reads how many rows each expert receives before it launches what follows dispatch: when dispatch starts,
  // or when it is done.
  enum class Counts : std::uint8_t { not_read, before_dispatch, after_dispatch };
  Counts counts = Counts::not_read;
  double& of(OpKind pass, LayerPart part) { return seconds[pass_index(pass)][static_cast<std::size_t>(part)]; }
  double of(OpKind pass, LayerPart part) const { return seconds[pass_index(pass)][static_cast<std::size_t>(part)]; }
  double& delay(OpKind pass, LayerPart part) { return delays[pass_index(pass)][static_cast<std::size_t>(part)]; }
  double delay(OpKind pass, LayerPart part) const { return delays[pass_index(pass)][static_cast<std::size_t>(part)]; }
  double& issue(OpKind pass, LayerPart part) { return issues[pass_index(pass)][static_cast<std::size_t>(part)]; }
  double issue(OpKind pass, LayerPart part) const { return issues[pass_index(pass)][static_cast<std::size_t>(part)]; }
  static constexpr std::size_t pass_index(OpKind pass) { return pass == OpKind::F ? 0 : pass == OpKind::W ? 2 : 1; }
};

// A part of a layer in a woven block. Times are in seconds from the start of the block.
struct WovenPart {
  PassPart part;
  int layer =
      0;  // from 0, in the order in which this pass runs them: the first backward layer is the last of the stage
  double start_s = 0;
  double end_s = 0;
  // The index of the part of which it waits for the end: of its data, or before it on its lane; -1 if it starts
  // immediately.
  int after = -1;
};

struct WovenBlock {
  std::vector<WovenPart> parts;  // those that take time, in the order of issue
  std::vector<PassPart> order;   // of the weave: all parts of a layer
  double seconds = 0;            // until both lanes are done
  double communication_s = 0;    // during which the communication lane runs
  double exposed_s = 0;          // during which it runs and the compute lane does not
  double outside_s = 0;          // of `seconds`: compute before and after the layers, which is not listed
};

// Runs the forward layers and the backward layers, each in the order of its pass, by the weave: layer i of both passes
// together, then the layers that only one pass has. Each lane runs its parts in the order of issue; a part starts when
// the previous one of its lane and what it needs are done: the previous part of its pass (of the layer before, for the
// first) and, for W, the B of the same part. While both lanes run, a part has the speed seconds / (seconds + delay) of
// its LayerTimes; exact, as speeds are constant between the ends of parts. The host launches the parts in the order of
// issue, a part after the one before: a part starts no earlier than that, and ends no earlier than its last launch.
// Where the host counts rows, it launches what follows dispatch(F) when what dispatch(F) needs is done, or dispatch(F)
// itself.
WovenBlock weave_block(const Weave& weave, std::span<const LayerTimes> forward, std::span<const LayerTimes> backward);

// The order without overlap: the parts of F, then those of B with its weight gradients.
const Weave& serial_weave();
// Returns the block with compute before and after it, in seconds.
WovenBlock with_compute_around(WovenBlock block, double before, double after);

// Returns the weave of all_weaves with the shortest block; of equal ones the first.
const Weave& fastest_weave(std::span<const LayerTimes> forward, std::span<const LayerTimes> backward);

}  // namespace sluice::model

// Public header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// An entry of PyTorch's schedules other than compute: a transfer, or an action on sharded weights.
enum class CommunicationKind : std::uint8_t {
  send_forward,   // of a stage: its activations, to the next stage
  recv_forward,   // of a stage: the activations of the previous stage
  send_backward,  // of a stage: the gradient of its input, to the previous stage
  recv_backward,  // of a stage: the gradient from the next stage
  unshard,
  reshard,
  reduce_gradients,
};

constexpr bool is_send(CommunicationKind kind) {
  return kind == CommunicationKind::send_forward || kind == CommunicationKind::send_backward;
}
constexpr bool is_receive(CommunicationKind kind) {
  return kind == CommunicationKind::recv_forward || kind == CommunicationKind::recv_backward;
}
constexpr bool of_forward(CommunicationKind kind) {
  return kind == CommunicationKind::send_forward || kind == CommunicationKind::recv_forward;
}

// An entry of a rank's list.
struct Communication {
  std::int32_t microbatch = 0;  // of sends and receives
  std::int16_t stage = 0;
  std::int16_t slice = 0;
  std::uint32_t before = 0;  // position, in the rank's list, of the op that it precedes; the list's size at the end
  CommunicationKind kind = CommunicationKind::send_forward;

  friend bool operator==(const Communication&, const Communication&) = default;
};

// "1SEND_F0", "2RECV_B3", "0UNSHARD", as in PyTorch; with `sliced`, sends and receives end in ".<slice>".
std::string to_string(const Communication& communication, bool sliced);

// Parses such a text into all fields but `before`. Returns false for any other text, or a number out of range.
bool parse_communication(std::string_view text, Communication& communication);

}  // namespace sluice::model

// Public header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// What PyTorch's schedules say besides compute: transfers, and what sharded weights need around their stage.
enum class CommunicationKind : std::uint8_t {
  send_forward,   // of a stage: its activations, to the next one
  recv_forward,   // of a stage: the previous one's
  send_backward,  // of a stage: the gradient of its input, to the previous one
  recv_backward,  // of a stage: the next one's
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

// One of them in a rank's list.
struct Communication {
  std::int32_t microbatch = 0;  // of sends and receives
  std::int16_t stage = 0;
  std::int16_t slice = 0;
  std::uint32_t before = 0;  // position of the op in the rank's list that it stands before; the list's size at its end
  CommunicationKind kind = CommunicationKind::send_forward;

  friend bool operator==(const Communication&, const Communication&) = default;
};

// "1SEND_F0", "2RECV_B3", "0UNSHARD", as PyTorch writes it; with `sliced`, sends and receives end in ".<slice>".
std::string to_string(const Communication& communication, bool sliced);

// Reads that, and nothing else, but for `before`. False if `text` is anything else or out of range.
bool parse_communication(std::string_view text, Communication& communication);

}  // namespace sluice::model

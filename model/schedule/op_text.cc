#include "model/schedule/op_text.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>

#include "model/schedule/schedule.h"

namespace sluice::model {
namespace {

// Consumes an unsigned number at the start of `text`.
bool take_number(std::string_view& text, int& value, int most) {
  if (text.empty()) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || text.front() == '-' || value > most) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

void append_op_text(std::string& out, const Op& op, bool sliced) {
  fmt::format_to(std::back_inserter(out), "{}{}{}", op.stage, letter(op.kind), op.microbatch);
  if (sliced) fmt::format_to(std::back_inserter(out), ".{}", op.slice);
}

bool parse_op_text(std::string_view text, Op& op, bool old_backward) {
  int stage = 0;
  int microbatch = 0;
  int slice = 0;
  if (!take_number(text, stage, kMaxStages - 1) || text.empty()) return false;
  const std::size_t kind = kOpLetters.find(text.front());
  if (kind == std::string_view::npos) return false;
  text.remove_prefix(old_backward && text.starts_with("BW") ? 2 : 1);
  if (!take_number(text, microbatch, static_cast<int>(kMaxOps))) return false;
  if (!text.empty()) {
    if (text.front() != '.') return false;
    text.remove_prefix(1);
    if (!take_number(text, slice, kMaxSlices - 1) || !text.empty()) return false;
  }
  op = {.microbatch = microbatch,
        .stage = static_cast<std::int16_t>(stage),
        .slice = static_cast<std::int16_t>(slice),
        .kind = static_cast<OpKind>(kind)};
  return true;
}

namespace {

struct Spelling {
  CommunicationKind kind;
  std::string_view text;
};
constexpr Spelling kSpellings[] = {
    {CommunicationKind::send_forward, "SEND_F"},
    {CommunicationKind::recv_forward, "RECV_F"},
    {CommunicationKind::send_backward, "SEND_B"},
    {CommunicationKind::recv_backward, "RECV_B"},
    {CommunicationKind::unshard, "UNSHARD"},
    {CommunicationKind::reshard, "RESHARD"},
    {CommunicationKind::reduce_gradients, "REDUCE_GRAD"},
};

}  // namespace

std::string to_string(const Communication& communication, bool sliced) {
  std::string out = fmt::format("{}{}", communication.stage, kSpellings[static_cast<int>(communication.kind)].text);
  if (!is_send(communication.kind) && !is_receive(communication.kind)) return out;
  fmt::format_to(std::back_inserter(out), "{}", communication.microbatch);
  if (sliced) fmt::format_to(std::back_inserter(out), ".{}", communication.slice);
  return out;
}

bool parse_communication(std::string_view text, Communication& communication) {
  int stage = 0;
  int microbatch = 0;
  int slice = 0;
  if (!take_number(text, stage, kMaxStages - 1)) return false;
  for (const Spelling& spelling : kSpellings) {
    if (!text.starts_with(spelling.text)) continue;
    text.remove_prefix(spelling.text.size());
    const bool moves = is_send(spelling.kind) || is_receive(spelling.kind);
    if (moves && !take_number(text, microbatch, static_cast<int>(kMaxOps))) return false;
    if (moves && !text.empty()) {
      if (text.front() != '.') return false;
      text.remove_prefix(1);
      if (!take_number(text, slice, kMaxSlices - 1)) return false;
    }
    if (!text.empty()) return false;
    communication = {.microbatch = microbatch,
                     .stage = static_cast<std::int16_t>(stage),
                     .slice = static_cast<std::int16_t>(slice),
                     .before = communication.before,
                     .kind = spelling.kind};
    return true;
  }
  return false;
}

}  // namespace sluice::model

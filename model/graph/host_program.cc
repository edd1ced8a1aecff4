#include "model/graph/host_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"
#include "model/schedule/op_text.h"
#include "model/schedule/with_communication.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr std::uint32_t kNoMessage = ~std::uint32_t{0};

// Writes a schedule's lists as a HostProgram.
class HostListing {
 public:
  HostListing(const Schedule& schedule, bool batched)
      : schedule_(schedule),
        batched_(batched),
        message_(2 * to_size(schedule.num_units()) * to_size(schedule.num_stages()), kNoMessage),
        producer_(message_.size(), 0),
        origins_(to_size(schedule.num_ranks())) {
    program_.ranks.resize(origins_.size());
    program_.data.resize(origins_.size());
  }

  HostProgram run() {
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) add_list(rank);
    const bool sliced = schedule_.sliced();
    program_.describe = [&schedule = schedule_, origins = std::move(origins_), batched = batched_, sliced](
                            int rank, std::size_t item) {
      const std::uint32_t origin = origins[rank][item] / 2;
      return origins[rank][item] % 2 == 0 ? describe_op(schedule, rank, origin, sliced)
                                          : describe_group(schedule, rank, origin, batched);
    };
    return std::move(program_);
  }

 private:
  static std::string describe_op(const Schedule& schedule, int rank, std::size_t position, bool sliced) {
    std::string text;
    append_op_text(text, schedule.ops(rank)[position], sliced);
    if (schedule.ops(rank)[position].joined) append_op_text(text += "+", schedule.ops(rank)[position + 1], sliced);
    return text +
           (schedule.read_from_table() ? " at " + schedule.place(rank, position) : fmt::format(" on rank {}", rank));
  }

  static std::string describe_group(const Schedule& schedule, int rank, std::size_t first, bool batched) {
    const auto list = schedule.communication(rank);
    std::string text = to_string(list[first], schedule.sliced());
    for (std::size_t i = first + 1; batched && i < list.size() && list[i].before == list[first].before; ++i) {
      if (is_send(list[i].kind) || is_receive(list[i].kind)) text += "+" + to_string(list[i], schedule.sliced());
    }
    return text + (schedule.read_from_table() ? " at " + schedule.communication_place(rank, first)
                                              : fmt::format(" on rank {}", rank));
  }

  // The index of a message by its sender: two per cell.
  std::size_t key(int stage, int microbatch, int slice, bool forward) const {
    return 2 * to_size(stage * schedule_.num_units() + schedule_.first_unit(microbatch) + slice) + (forward ? 0 : 1);
  }

  std::uint32_t message(const Communication& c) {
    const bool forward = of_forward(c.kind);
    const int sender = is_send(c.kind) ? c.stage : c.stage + (forward ? -1 : 1);
    std::uint32_t& index = message_[key(sender, c.microbatch, c.slice, forward)];
    if (index == kNoMessage) {
      index = static_cast<std::uint32_t>(program_.messages.size());
      const int receiver = sender + (forward ? 1 : -1);
      program_.messages.push_back({.from = schedule_.rank_of(sender, c.microbatch),
                                   .to = schedule_.rank_of(receiver, c.microbatch),
                                   .stage = sender,
                                   .forward = forward,
                                   .microbatch = c.microbatch,
                                   .slice = c.slice});
    }
    return index;
  }

  void add_list(int rank) {
    const auto ops = schedule_.ops(rank);
    const auto list = schedule_.communication(rank);
    received_.clear();
    std::size_t next = 0;
    for (std::size_t i = 0; i <= ops.size(); i += i < ops.size() && ops[i].joined ? 2 : 1) {
      while (next < list.size() && list[next].before <= i) next = add_communication(rank, next);
      if (i < ops.size()) add_op(rank, i);
    }
  }

  void add_op(int rank, std::size_t position) {
    const auto ops = schedule_.ops(rank);
    const std::uint32_t item = program_.add_compute(rank);
    origins_[rank].push_back(2 * static_cast<std::uint32_t>(position));
    for (std::size_t i = position; i < position + (ops[position].joined ? 2 : 1); ++i) {
      if (ops[i].kind == OpKind::W) continue;
      const bool forward = ops[i].kind == OpKind::F;
      producer_[key(ops[i].stage, ops[i].microbatch, ops[i].slice, forward)] = item;
      const int sender = ops[i].stage + (forward ? -1 : 1);
      if (sender < 0 || sender >= schedule_.num_stages()) continue;
      // A receive on the same rank precedes the op that reads it.
      const std::uint32_t index = message_[key(sender, ops[i].microbatch, ops[i].slice, forward)];
      if (index < received_.size() && received_[index] != kNoMessage) {
        program_.data[rank].emplace_back(received_[index], item);
      }
    }
  }

  // Adds the group at `first` and returns the index after it.
  std::size_t add_communication(int rank, std::size_t first) {
    const auto list = schedule_.communication(rank);
    std::vector<Post> group;
    std::size_t i = first;
    do {
      if (is_send(list[i].kind) || is_receive(list[i].kind)) group.push_back({message(list[i]), is_send(list[i].kind)});
      ++i;
    } while (batched_ && i < list.size() && list[i].before == list[first].before);
    if (group.empty()) return i;
    const std::uint32_t item = program_.add_group(rank, group);
    origins_[rank].push_back(2 * static_cast<std::uint32_t>(first) + 1);
    for (std::size_t at = first; at < i; ++at) {
      const Communication& c = list[at];
      if (is_send(c.kind)) {
        program_.data[rank].emplace_back(producer_[key(c.stage, c.microbatch, c.slice, of_forward(c.kind))], item);
      } else if (is_receive(c.kind)) {
        received_.resize(program_.messages.size(), kNoMessage);
        received_[message(c)] = item;
      }
    }
    return i;
  }

  const Schedule& schedule_;
  bool batched_;
  HostProgram program_;
  std::vector<std::uint32_t> message_;               // by key
  std::vector<std::uint32_t> producer_;              // by key: the item that computes it
  std::vector<std::uint32_t> received_;              // by message: the receive on the current rank
  std::vector<std::vector<std::uint32_t>> origins_;  // by rank and item: 2 * position of an op, 2 * index + 1 of others
};

std::string edge_name(const Message& m) { return fmt::format("{}->{}", m.from, m.to); }

// A communicator of a file, and the messages that it carries.
struct CommunicatorRule {
  std::string name;
  std::string direction;  // "forward", "backward"; empty: both
  std::vector<std::pair<int, int>> ranks;
  std::vector<std::pair<int, int>> stages;

  static bool has(const std::vector<std::pair<int, int>>& pairs, int from, int to) {
    return pairs.empty() || std::find(pairs.begin(), pairs.end(), std::pair(from, to)) != pairs.end();
  }
  bool carries(const Message& m) const {
    return (direction.empty() || (direction == "forward") == m.forward) && has(ranks, m.from, m.to) &&
           has(stages, m.stage, m.stage + (m.forward ? 1 : -1));
  }
};

std::vector<std::pair<int, int>> read_pairs(JsonReader& rule, const std::string& key, int most) {
  std::vector<std::pair<int, int>> pairs;
  if (!rule.has(key)) return pairs;
  for (const JsonReader& pair : rule.at(key).elements()) {
    if (pair.elements().size() != 2) pair.fail("expected [sender, receiver]");
    pairs.emplace_back(pair.element(0).integer(0, most), pair.element(1).integer(0, most));
  }
  if (pairs.empty()) rule.at(key).fail("expected at least one [sender, receiver]");
  return pairs;
}

CommunicatorMapping mapping_from_file(const std::string& path) {
  const Json document = parse_json(read_file(path), path);
  JsonReader root(document, path);
  root.at("schema").one_of(std::vector<std::string>{"sluice.communicators/1"});
  std::vector<CommunicatorRule> rules;
  for (JsonReader rule : root.at("communicators").elements()) {
    rules.push_back({.name = rule.string("name"),
                     .direction = rule.has("direction")
                                      ? rule.at("direction").one_of(std::vector<std::string>{"forward", "backward"})
                                      : "",
                     .ranks = read_pairs(rule, "rank_pairs", kMaxRanks),
                     .stages = read_pairs(rule, "stage_pairs", kMaxStages)});
    rule.finish();
  }
  root.finish();
  return {path, [path, rules](const Message& m) {
            for (const CommunicatorRule& rule : rules) {
              if (rule.carries(m)) return rule.name;
            }
            throw InputError(
                fmt::format("{}: /communicators: expected one for each message, got none for {} from stage "
                            "{} on rank {} to rank {}",
                            path, m.forward ? "activations" : "gradients", m.stage, m.from, m.to));
          }};
}

}  // namespace

HostProgram host_program(const Schedule& schedule, bool batched) { return HostListing(schedule, batched).run(); }

std::string cycle_of_late_sends(const Schedule& schedule) {
  const CommunicatorModel buffered{
      .communicator = communicator_mappings().back().communicator, .wait = HostWait::stream, .buffered = true};
  return to_string(check_communicators(host_program(schedule, false), buffered).cycle);
}

std::span<const CommunicatorMapping> communicator_mappings() {
  static const std::vector<CommunicatorMapping> mappings = {
      {"one", [](const Message&) { return std::string("pipeline"); }},
      {"direction", [](const Message& m) { return std::string(m.forward ? "forward" : "backward"); }},
      {"pair", [](const Message& m) { return fmt::format("{}:{}", std::min(m.from, m.to), std::max(m.from, m.to)); }},
      {"edge", edge_name},
      {"logical", [](const Message& m) {
         return fmt::format("{} stage {}->{}", edge_name(m), m.stage, m.stage + (m.forward ? 1 : -1));
       }}};
  return mappings;
}

CommunicatorMapping communicator_mapping(const std::string& name, const std::string& place) {
  if (name.ends_with(".json")) return mapping_from_file(name);
  std::vector<std::string> names;
  for (const CommunicatorMapping& mapping : communicator_mappings()) {
    if (mapping.name == name) return mapping;
    names.push_back(mapping.name);
  }
  throw InputError(fmt::format("{}: expected {} or a .json file, got '{}'{}", place, fmt::join(names, ", "), name,
                               did_you_mean(name, names)));
}

CommunicatorOptions read_communicators(const std::string& text, const std::string& place) {
  CommunicatorOptions out;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "serialized") {
      out.serialized = true;
    } else if (word == "batched") {
      out.batched = true;
    } else if (word == "deferred") {
      out.receives = Receives::deferred;
    } else if (word == "late") {
      out.receives = Receives::late;
    } else if (word == "device") {
      out.wait = HostWait::device;
    } else if (word == "host") {
      out.wait = HostWait::host;
    } else if (out.communicators.empty()) {
      out.communicators = word;
    } else {
      throw InputError(
          fmt::format("{}: expected one mapping, and serialized, batched, deferred, late, device or host, got '{}' and "
                      "'{}'",
                      place, out.communicators, word));
    }
  }
  return out;
}

Schedule with_receives(const Schedule& schedule, Receives receives) {
  if (receives == Receives::late) return with_receives_just_in_time(schedule);
  Schedule early = with_communication(schedule, true);
  return receives == Receives::early ? std::move(early) : with_deferred_receives(early);
}

}  // namespace sluice::model

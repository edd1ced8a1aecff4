#include "exec/run/faults.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "model/errors.h"
#include "model/input/nearest.h"

namespace sluice::exec {
namespace {

// By FaultKind.
const std::vector<std::string>& kinds() {
  static const std::vector<std::string> names = {"delay", "drop", "kill", "stop", "nan", "latency"};
  return names;
}

const std::vector<std::string>& keys() {
  static const std::vector<std::string> names = {"rank", "op", "stage", "mb", "slice", "step", "seconds"};
  return names;
}

// The four ops, the optimizer, and the collectives in the order of CollectiveKind.
const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names = {"F",
                                                 "B",
                                                 "I",
                                                 "W",
                                                 "optimizer",
                                                 "gradient-reduce",
                                                 "replica-reduce",
                                                 "tied-embedding",
                                                 "global-norm",
                                                 "parameter-gather"};
  return names;
}

constexpr std::size_t kOptimizer = 4;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) { fault_.text = text; }

  Fault run() {
    const std::size_t colon = std::min(text_.find(':'), text_.size());
    const std::string kind(text_.substr(0, colon));
    const auto found = std::find(kinds().begin(), kinds().end(), kind);
    if (found == kinds().end()) {
      fail(fmt::format("expected delay, drop, kill, stop, nan or latency before the colon, got '{}'{}", kind,
                       did_you_mean(kind, kinds())));
    }
    fault_.kind = static_cast<FaultKind>(found - kinds().begin());
    std::string_view rest = text_.substr(std::min(colon + 1, text_.size()));
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      take(rest.substr(0, comma));
      if (comma + 1 == rest.size()) fail("expected key=value after the last comma, got nothing");
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    check();
    return std::move(fault_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("--fault '{}': {}", text_, what));
  }

  void take(std::string_view part) {
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) fail(fmt::format("expected key=value, got '{}'", part));
    const std::string key(part.substr(0, equals));
    const std::string_view value = part.substr(equals + 1);
    const auto found = std::find(keys().begin(), keys().end(), key);
    if (found == keys().end()) fail(fmt::format("unknown key '{}'{}", key, did_you_mean(key, keys())));
    bool& seen = seen_[found - keys().begin()];
    if (seen) fail(fmt::format("{} is given twice", key));
    seen = true;
    if (key == "op") return take_op(std::string(value));
    if (key == "seconds") return take_seconds(value);
    const int number = whole(key, value);
    if (key == "rank") fault_.rank = number;
    if (key == "stage") fault_.stage = number;
    if (key == "mb") fault_.microbatch = number;
    if (key == "slice") fault_.slice = number;
    if (key == "step") fault_.step = number;
  }

  int whole(const std::string& key, std::string_view value) const {
    int number = -1;
    const auto [rest, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || rest != value.data() + value.size() || number < 0) {
      fail(fmt::format("{}: expected a whole number from 0 to {}, got '{}'", key, std::numeric_limits<int>::max(),
                       value));
    }
    return number;
  }

  void take_op(const std::string& name) {
    const auto found = std::find(op_names().begin(), op_names().end(), name);
    if (found == op_names().end()) {
      fail(fmt::format("op: expected one of {}, got '{}'{}", fmt::join(op_names(), ", "), name,
                       did_you_mean(name, op_names())));
    }
    const auto index = static_cast<std::size_t>(found - op_names().begin());
    if (index < kOptimizer) {
      fault_.vertex = VertexKind::compute;
      fault_.op = static_cast<OpKind>(index);
    } else if (index == kOptimizer) {
      fault_.vertex = VertexKind::optimizer;
    } else {
      fault_.vertex = VertexKind::collective;
      fault_.collective = static_cast<CollectiveKind>(index - kOptimizer - 1);
    }
  }

  void take_seconds(std::string_view value) {
    double seconds = -1;
    const auto [rest, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
    // Written so that NaN is rejected too.
    if (error != std::errc() || rest != value.data() + value.size() || !(seconds > 0 && seconds <= 1e6)) {
      fail(fmt::format("seconds: expected a number above 0 and up to 1e6, got '{}'", value));
    }
    fault_.delay = from_seconds(seconds, "the delay of a fault");
  }

  void check() const {
    const bool latency = fault_.kind == FaultKind::latency;
    const bool lasts = latency || fault_.kind == FaultKind::delay;
    if (lasts && fault_.delay.count() == 0) {
      fail(fmt::format("a {} needs a duration: expected seconds=, got none", latency ? "latency" : "delay"));
    }
    if (!lasts && fault_.delay.count() != 0) fail("seconds: only a delay and a latency have a duration");
    const bool compute = !fault_.vertex || fault_.vertex == VertexKind::compute;
    const bool message = compute && (!fault_.vertex || fault_.op != OpKind::W);
    if (fault_.kind == FaultKind::drop && !message) fail("op: expected F, B or I, whose result is sent");
    if (latency && !message) fail("op: expected F, B or I, which exchange tokens of experts");
    if (!compute && (fault_.microbatch || fault_.slice))
      fail("op: optimizer steps and collectives have no microbatch and no slice");
  }

  std::string_view text_;
  Fault fault_;
  std::array<bool, 7> seen_{};
};

bool agrees(const std::optional<int>& asked, int have) { return !asked || *asked == have; }

}  // namespace

Fault parse_fault(std::string_view text) { return Parser(text).run(); }

FaultPlan::FaultPlan(const OpGraph& graph, std::span<const RecorderOwner> owners, int steps, std::vector<Fault> faults,
                     std::function<void(const std::string&)> announce)
    : graph_(graph), faults_(std::move(faults)), announce_(std::move(announce)) {
  for (const Fault& fault : faults_) {
    const auto refuse = [&](const std::string& why) {
      throw InputError(fmt::format("--fault '{}': {}", fault.text, why));
    };
    if (fault.rank && *fault.rank >= std::ssize(owners)) {
      refuse(fmt::format("rank: expected a world rank below {}, got {}", owners.size(), *fault.rank));
    }
    if (fault.kind == FaultKind::latency && owners.front().expert_ranks < 2) {
      refuse("expected experts distributed over several ranks (--ep)");
    }
    if (fault.step && (*fault.step < 1 || *fault.step > steps)) {
      refuse(fmt::format("step: expected 1 to {}, the last step of the run, got {}", steps, *fault.step));
    }
    const auto is_hit = [&](VertexId v) {
      if (!matches(fault, v)) return false;
      if (!fault.rank) return true;
      const int pipeline_rank = owners[*fault.rank].pipeline_rank;
      if (graph_[v].kind != VertexKind::collective) return graph_.rank_of(v) == pipeline_rank;
      const auto ranks = graph_.collective(graph_[v]).ranks;
      return std::find(ranks.begin(), ranks.end(), pipeline_rank) != ranks.end();
    };
    VertexId v = 0;
    while (v < graph_.size() && !is_hit(v)) ++v;
    if (v == graph_.size()) {
      refuse(fault.kind == FaultKind::drop ? "no message of the schedule matches" : "no op of the schedule matches");
    }
  }
}

bool FaultPlan::matches(const Fault& fault, VertexId v) const {
  const Vertex& vertex = graph_[v];
  const auto is_op = [&](const Vertex& op) {
    return (!fault.vertex || fault.op == op.op) && agrees(fault.stage, op.stage) &&
           agrees(fault.microbatch, op.microbatch) && agrees(fault.slice, op.slice);
  };
  const bool compute = !fault.vertex || fault.vertex == VertexKind::compute;
  if (fault.kind == FaultKind::drop) return vertex.kind == VertexKind::transfer && is_op(vertex);
  switch (vertex.kind) {
    case VertexKind::compute: return compute && is_op(vertex);
    case VertexKind::joint: return compute && (is_op(vertex) || is_op(graph_.joint_partner(vertex)));
    case VertexKind::optimizer: return fault.vertex == VertexKind::optimizer && agrees(fault.stage, vertex.stage);
    case VertexKind::collective: {
      const Collective collective = graph_.collective(vertex);
      return fault.vertex == VertexKind::collective && fault.collective == collective.kind &&
             agrees(fault.stage, collective.stage);
    }
    case VertexKind::recompute:
    case VertexKind::offload:
    case VertexKind::transfer: return false;
  }
  return false;
}

FaultAction FaultPlan::at(int world_rank, int step, VertexId v) const {
  FaultAction action;
  for (const Fault& fault : faults_) {
    if (!agrees(fault.rank, world_rank) || !agrees(fault.step, step + 1) || !matches(fault, v)) continue;
    switch (fault.kind) {
      case FaultKind::delay: action.delay += fault.delay; break;
      case FaultKind::drop: action.drop = true; break;
      case FaultKind::kill: action.kill = true; break;
      case FaultKind::stop: action.stop = true; break;
      case FaultKind::nan: action.poison = true; break;
      case FaultKind::latency: action.latency += fault.delay; break;
    }
  }
  return action;
}

void FaultPlan::kill(int world_rank, int step, VertexId v) const {
  if (announce_) {
    announce_(
        fmt::format("--fault: rank {} kills its process inside {} of step {}", world_rank, graph_.name(v), step + 1));
  }
  ::kill(::getpid(), SIGKILL);
  std::abort();  // not reached
}

}  // namespace sluice::exec

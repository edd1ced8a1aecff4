#include "traces/read/sluice_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "model/errors.h"
#include "model/input/nearest.h"
#include "model/schedule/schedule.h"

namespace sluice::traces {
namespace {

constexpr Duration kMaxIdle{1'000'000'000'000'000'000};

// An op such as "F3" in the name of a slice; R is recomputation.
struct NamedOp {
  char letter = ' ';
  OpKind kind = OpKind::F;
};
// Parses an op at the front of `text` and removes it.
std::optional<NamedOp> eat_op(std::string_view& text) {
  if (text.empty()) return std::nullopt;
  NamedOp op{.letter = text.front()};
  const std::size_t kind = kOpLetters.find(op.letter);
  if (kind != std::string_view::npos) {
    op.kind = static_cast<OpKind>(kind);
  } else if (op.letter == 'R') {
    op.kind = OpKind::B;
  } else {
    return std::nullopt;
  }
  text.remove_prefix(1);
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  return op;
}

}  // namespace

// Whether two slices that follow each other are the ends of one transfer, as they are in the files that Sluice writes.
bool SluiceTraceReader::ends_match(const End& send, const End& receive) {
  return send.op == receive.op && send.duration == receive.duration && send.start <= receive.start;
}

void SluiceTraceReader::fail(const TraceEvent& event, const std::string& rule) const {
  throw InputError(fmt::format("{}: event {}: {}", source_, event.number, rule));
}

SluiceTraceReader::Process& SluiceTraceReader::process_of(const TraceEvent& event) {
  const auto found = processes_.find(event.pid);
  if (found == processes_.end()) {
    fail(event, fmt::format("expected a pid with an earlier process_name event, got {}", event.pid));
  }
  return found->second;
}

RowOp SluiceTraceReader::op_of(const TraceEvent& event, const EventOp& op, OpKind kind) const {
  const auto check = [&](const char* what, std::int64_t value, std::int64_t most) {
    if (value < 0 || value > most) {
      fail(event, fmt::format("{}: args: {}: expected an integer from 0 to {}, got {}", event.name, what, most,
                              value < 0 ? "none" : std::to_string(value)));
    }
  };
  check("stage", op.stage, kMaxStages - 1);
  check("microbatch", op.microbatch, kMaxOps);
  check("slice", op.slice, kMaxSlices - 1);
  return {.microbatch = static_cast<std::int32_t>(op.microbatch),
          .stage = static_cast<std::int16_t>(op.stage),
          .slice = static_cast<std::int16_t>(op.slice),
          .kind = kind};
}

OpRow SluiceTraceReader::row_of(const TraceEvent& event) {
  if (!event.start || !event.duration) fail(event, fmt::format("{}: expected ts and dur", event.name));
  if (*event.duration < Duration::zero()) fail(event, fmt::format("{}: dur: expected 0 or more", event.name));
  return {.rank = static_cast<std::int16_t>(process_of(event).rank),
          .start = *event.start,
          .end = *event.start + *event.duration};
}

void SluiceTraceReader::add(const TraceEvent& event) {
  if (event.number >= kMaxKeptEvents) fail(event, fmt::format("expected at most {} events", kMaxKeptEvents));
  if (event.phase == "M" && event.name == "process_name") {
    if (processes_.size() >= static_cast<std::size_t>(kMaxRanks)) {
      fail(event, fmt::format("expected at most {} processes", kMaxRanks));
    }
    if (!processes_.try_emplace(event.pid, Process{}).second) {
      fail(event, fmt::format("second process_name for pid {}", event.pid));
    }
    // Processes are in the order of pipeline ranks, whatever their world ranks are.
    processes_[event.pid].rank = static_cast<int>(processes_.size()) - 1;
  } else if (event.phase == "C") {
    add_memory(event);
  } else if (event.phase == "X") {
    if (event.category == "compute") return add_compute(event);
    if (event.category == "p2p") return add_transfer(event);
    if (event.category == "coll" || event.category == "opt") return add_step(event);
    if (event.category == "idle") return add_idle(event);
    if (event.category == "part") return add_part(event);
    if (event.category == "host") return add_copy(event);
    fail(event, fmt::format("expected a cat of compute, p2p, coll, opt, host, part or idle, got '{}'", event.category));
  }
}

void SluiceTraceReader::add_row(const OpRow& row) {
  constexpr std::size_t kRowsPerBlock = std::size_t{1} << 16;
  if (blocks_.empty() || blocks_.back().size() == kRowsPerBlock) blocks_.emplace_back().reserve(kRowsPerBlock);
  blocks_.back().push_back(row);
}

void SluiceTraceReader::take_rows() {
  std::size_t count = 0;
  for (const auto& block : blocks_) count += block.size();
  run_.rows.reserve(count);
  for (auto& block : blocks_) {
    run_.rows.insert(run_.rows.end(), block.begin(), block.end());
    block = std::vector<OpRow>();  // unlike {}, frees its memory
  }
}

void SluiceTraceReader::add_compute(const TraceEvent& event) {
  OpRow row = row_of(event);
  std::string_view rest = event.name;
  const auto first = eat_op(rest);
  const bool joint = first && rest.starts_with('+');
  if (joint) rest.remove_prefix(1);
  const auto second = joint ? eat_op(rest) : std::nullopt;
  if (!first || !rest.empty() || joint != second.has_value()) {
    fail(event, fmt::format("expected a name such as F3, R3 or F3+B1, got '{}'", event.name));
  }
  row.op = op_of(event, event.op, first->kind);
  row.kind = first->letter == 'R' ? RowKind::recompute : row_kind(first->kind);
  if (joint) {
    row.kind = RowKind::joint;
    row.partner = op_of(event, event.with, second->kind);
  }
  add_row(row);
}

void SluiceTraceReader::add_transfer(const TraceEvent& event) {
  const OpRow row = row_of(event);
  std::string_view rest = event.name;
  const bool send = rest.starts_with("send ");
  if (!send && !rest.starts_with("recv ")) {
    fail(event, fmt::format("expected a name such as send F3 or recv B3, got '{}'", event.name));
  }
  rest.remove_prefix(5);
  const auto op = eat_op(rest);
  if (!op || !rest.empty() || op->letter == 'R' || op->letter == 'W') {
    fail(event, fmt::format("expected a name such as send F3 or recv B3, got '{}'", event.name));
  }
  const End end{op_of(event, event.op, op->kind), row.rank, row.start, row.end - row.start,
                std::max<std::int64_t>(event.bytes, 0)};
  if (send) {
    sends_.push_back(end);
  } else if (send_is_open_ && ends_match(sends_.back(), end)) {
    add_joined(sends_.back(), end);
    sends_.pop_back();
  } else {
    receives_.push_back(end);
  }
  send_is_open_ = send;
}

void SluiceTraceReader::add_copy(const TraceEvent& event) {
  OpRow row = row_of(event);
  std::string_view rest = event.name;
  const bool back = rest.starts_with("reload ");
  rest.remove_prefix(back ? 7 : std::min<std::size_t>(rest.size(), 8));
  const auto op = eat_op(rest);
  if (!(back || event.name.starts_with("offload ")) || !op || op->letter != 'F' || !rest.empty()) {
    fail(event, fmt::format("expected a name such as offload F3 or reload F3, got '{}'", event.name));
  }
  row.kind = RowKind::offload;
  row.op = op_of(event, event.op, back ? OpKind::B : OpKind::F);
  row.bytes = std::max<std::int64_t>(event.bytes, 0);
  add_row(row);
}

void SluiceTraceReader::add_step(const TraceEvent& event) {
  OpRow row = row_of(event);
  if (event.step < 0 || event.step > kMaxOps) {
    fail(event, fmt::format("{}: args: step: expected an integer from 0 to {}", event.name, kMaxOps));
  }
  if (event.op.stage >= kMaxStages) {
    fail(event, fmt::format("{}: args: stage: expected at most {}", event.name, kMaxStages - 1));
  }
  row.op = {.microbatch = static_cast<std::int32_t>(event.step), .stage = static_cast<std::int16_t>(event.op.stage)};
  row.bytes = std::max<std::int64_t>(event.bytes, 0);
  row.kind = event.category == "opt" ? RowKind::optimizer : RowKind::collective;
  if (row.kind == RowKind::optimizer && event.op.stage < 0)
    fail(event, "optimizer: args: stage: expected a stage, got none");
  if (row.kind == RowKind::collective) {
    const std::string name = event.name.substr(0, event.name.rfind(' '));
    constexpr CollectiveKind kKinds[] = {CollectiveKind::gradient_reduce, CollectiveKind::replica_reduce,
                                         CollectiveKind::tied_embedding, CollectiveKind::global_norm,
                                         CollectiveKind::parameter_gather};
    const auto* kind =
        std::find_if(std::begin(kKinds), std::end(kKinds), [&](CollectiveKind k) { return name == name_of(k); });
    if (kind == std::end(kKinds)) {
      std::vector<std::string> known;
      for (const CollectiveKind k : kKinds) known.emplace_back(name_of(k));
      fail(event, fmt::format("unknown collective '{}'{}", name, did_you_mean(name, known)));
    }
    row.collective = *kind;
  }
  add_row(row);
}

void SluiceTraceReader::add_idle(const TraceEvent& event) {
  const OpRow row = row_of(event);
  const auto cause = std::find(kIdleCauseNames.begin(), kIdleCauseNames.end(), event.cause);
  if (cause == kIdleCauseNames.end()) fail(event, fmt::format("unknown cause '{}'", event.cause));
  Process& process = process_of(event);
  process.has_idle = true;
  Duration& sum = process.idle[cause - kIdleCauseNames.begin()];
  sum += row.end - row.start;
  if (sum > kMaxIdle) fail(event, "the sum of idle times exceeds 31 years");
}

// A part is within an op, which has its own slice.
void SluiceTraceReader::add_part(const TraceEvent& event) {
  const OpRow row = row_of(event);
  const std::optional<PassPart> part = parse_part(event.name);
  if (!part) fail(event, fmt::format("expected a part such as dispatch(F), got '{}'", event.name));
  run_.parts.push_back({.rank = row.rank, .part = *part, .start = row.start, .end = row.end});
}

void SluiceTraceReader::add_memory(const TraceEvent& event) {
  if (event.name != "memory") return;
  if (!event.start) fail(event, "memory: expected ts");
  Process& process = process_of(event);
  MemorySample sample{.time = *event.start};
  for (const auto& [name, bytes] : event.values) {
    const auto found = std::find(kMemoryClassNames.begin(), kMemoryClassNames.end(), name);
    if (found == kMemoryClassNames.end()) {
      const std::vector<std::string> known(kMemoryClassNames.begin(), kMemoryClassNames.end());
      fail(event, fmt::format("memory: unknown class '{}'{}", name, did_you_mean(name, known)));
    }
    constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;
    if (bytes < 0 || bytes > kMaxBytes)
      fail(event, fmt::format("memory: {}: expected 0 to 2^60 bytes, got {}", name, bytes));
    sample.bytes[found - kMemoryClassNames.begin()] = bytes;
  }
  process.samples.push_back(sample);
}

void SluiceTraceReader::add_joined(const End& send, const End& receive) {
  add_row({.kind = RowKind::transfer,
           .rank = static_cast<std::int16_t>(send.rank),
           .peer = static_cast<std::int16_t>(receive.rank),
           .op = send.op,
           .start = send.start,
           .end = send.start + send.duration,
           .latency = std::max(receive.start - send.start, Duration::zero()),
           .bytes = send.bytes});
}

// Matches the n-th send of an op with its n-th receive, of those that do not follow each other in the file as the ends
// of one transfer do. Returns the number of unmatched ends.
std::int64_t SluiceTraceReader::join_transfers() {
  const auto before = [](const End& a, const End& b) { return std::tie(a.op, a.start) < std::tie(b.op, b.start); };
  std::sort(sends_.begin(), sends_.end(), before);
  std::sort(receives_.begin(), receives_.end(), before);
  std::int64_t unmatched = 0;
  auto receive = receives_.begin();
  for (const End& send : sends_) {
    while (receive != receives_.end() && receive->op < send.op) {
      ++unmatched;
      ++receive;
    }
    if (receive == receives_.end() || receive->op != send.op) {
      ++unmatched;
      continue;
    }
    add_joined(send, *receive);
    ++receive;
  }
  return unmatched + (receives_.end() - receive);
}

// Keeps the rows of one iteration, with times from `begin` on. Returns a note if there are several iterations.
std::string SluiceTraceReader::take_iteration(const TraceReadOptions& options, Duration& begin, Duration& end) {
  std::vector<OpRow>& rows = run_.rows;
  std::sort(rows.begin(), rows.end(), [](const OpRow& a, const OpRow& b) {
    const RowIdentity x = identity_of(a);
    const RowIdentity y = identity_of(b);
    return x != y ? x < y : a.start < b.start;
  });
  // The n-th row with an identity belongs to iteration n.
  std::int64_t whole = std::numeric_limits<std::int64_t>::max();
  std::int64_t most = 0;
  const auto follows_its_own = [&](std::size_t i) {
    return i > 0 && i < rows.size() && identity_of(rows[i]) == identity_of(rows[i - 1]);
  };
  std::int64_t iteration = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    iteration = follows_its_own(i) ? iteration + 1 : 0;
    if (follows_its_own(i + 1)) continue;
    whole = std::min(whole, iteration + 1);
    most = std::max(most, iteration + 1);
  }
  const std::int64_t step = most == 1 ? 0 : options.step.value_or(whole - 1);
  if (step < 0 || step >= whole) {
    throw InputError(fmt::format("{}: --step: expected 0 to {}, got {}", source_, whole - 1, step));
  }
  std::vector<char> keep(most == 1 ? 0 : rows.size(), 0);
  for (std::size_t i = 0; i < keep.size(); ++i) {
    iteration = follows_its_own(i) ? iteration + 1 : 0;
    keep[i] = iteration == step ? 1 : 0;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (keep.empty() || keep[i] != 0) rows[kept++] = rows[i];
  }
  rows.resize(kept);
  begin = Duration::max();
  end = Duration::min();
  for (const OpRow& row : rows) {
    begin = std::min(begin, row.start);
    end = std::max(end, row.end);
  }
  for (OpRow& row : rows) {
    row.start -= begin;
    row.end -= begin;
  }
  return most == 1 ? "" : fmt::format(", iteration {} of 0 to {}", step, whole - 1);
}

// Keeps the parts of the iteration from `begin` to `end`, in time order.
void SluiceTraceReader::take_parts(Duration begin, Duration end) {
  std::erase_if(run_.parts, [&](const PartRow& part) { return part.start < begin || part.end > end; });
  for (PartRow& part : run_.parts) {
    part.start -= begin;
    part.end -= begin;
  }
  std::stable_sort(run_.parts.begin(), run_.parts.end(),
                   [](const PartRow& a, const PartRow& b) { return a.start < b.start; });
}

// Sets the memory samples from the start of the iteration to its end. Memory is unknown if all samples are 0: the run
// has no bytes.
void SluiceTraceReader::set_memory(Duration begin, Duration end) {
  const auto is_positive = [](const MemorySample& sample) { return total(sample.bytes) > 0; };
  const auto has_samples = [](const auto& p) { return !p.second.samples.empty(); };
  const auto has_bytes = [&](const auto& p) {
    return std::any_of(p.second.samples.begin(), p.second.samples.end(), is_positive);
  };
  if (!std::all_of(processes_.begin(), processes_.end(), has_samples)) return;
  if (std::none_of(processes_.begin(), processes_.end(), has_bytes)) return;
  run_.memory.resize(processes_.size());
  for (auto& [pid, process] : processes_) {
    RankMemory& memory = run_.memory[process.rank];
    std::stable_sort(process.samples.begin(), process.samples.end(),
                     [](const MemorySample& a, const MemorySample& b) { return a.time < b.time; });
    for (const MemorySample& sample : process.samples) {
      if (sample.time > end) break;
      const MemorySample here{.time = std::max(sample.time - begin, Duration::zero()), .bytes = sample.bytes};
      if (!memory.samples.empty() && memory.samples.back().time == here.time) {
        memory.samples.back() = here;
      } else {
        memory.samples.push_back(here);
      }
    }
    for (const MemorySample& sample : memory.samples) {
      if (total(sample.bytes) <= memory.peak_bytes) continue;
      memory.peak_bytes = total(sample.bytes);
      memory.peak_time = sample.time;
      memory.at_peak = sample.bytes;
    }
  }
}

// A trace does not record whether recomputation precedes a B or an I; it precedes the I if there is one.
void SluiceTraceReader::name_recomputation() {
  const auto recomputes = [](const OpRow& row) { return row.kind == RowKind::recompute; };
  if (std::none_of(run_.rows.begin(), run_.rows.end(), recomputes)) return;
  std::set<RowOp> input_gradients;
  for (const OpRow& row : run_.rows) {
    for (const RowOp& op : {row.op, row.partner}) {
      if (op.kind == OpKind::I && row.kind != RowKind::transfer) input_gradients.insert(op);
    }
  }
  for (OpRow& row : run_.rows) {
    if (row.kind != RowKind::recompute) continue;
    RowOp input_gradient = row.op;
    input_gradient.kind = OpKind::I;
    if (input_gradients.contains(input_gradient)) row.op = input_gradient;
  }
}

TraceRun SluiceTraceReader::finish(const TraceHead& head, const TraceReadOptions& options) && {
  if (head.schema != "sluice.trace/1") {
    throw InputError(fmt::format("{}: /sluice/schema: expected sluice.trace/1, got '{}'", source_, head.schema));
  }
  if (head.two_runs) throw InputError(source_ + ": /sluice/sides: expected a trace of one run, got one of two");
  const std::int64_t unmatched = join_transfers();
  take_rows();
  if (run_.rows.empty()) throw InputError(source_ + ": /traceEvents: expected ops, got none");
  run_.num_ranks = static_cast<int>(processes_.size());
  Duration begin{};
  Duration end{};
  const std::string which = take_iteration(options, begin, end);
  set_memory(begin, end);
  take_parts(begin, end);
  name_recomputation();
  for (const OpRow& row : run_.rows) run_.sliced |= row.op.slice > 0 || row.partner.slice > 0;
  const bool has_idle = which.empty() && std::any_of(processes_.begin(), processes_.end(),
                                                     [](const auto& p) { return p.second.has_idle; });
  if (has_idle) {
    run_.idle.resize(processes_.size());
    for (const auto& [pid, process] : processes_) run_.idle[process.rank] = process.idle;
  }
  TraceRun out;
  out.notes.push_back(fmt::format("{} ranks{}", run_.num_ranks, which));
  if (options.step && which.empty()) out.notes.emplace_back("one iteration, --step does not apply");
  if (head.some_ranks_omitted) out.notes.push_back("the trace omits some ranks");
  if (head.shared_cores) {
    out.notes.emplace_back("measured with more workers than cores, which wait for each other");
  } else if (head.waited_for_cores) {
    out.notes.emplace_back("measured times include waits for cores; measure again on an idle machine");
  }
  out.shared_cores = head.shared_cores;
  if (unmatched > 0) out.notes.push_back(fmt::format("{} transfers with only one end ignored", unmatched));
  out.run = std::move(run_);
  return out;
}

}  // namespace sluice::traces

#include "model/schedule/pytorch_csv.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/errors.h"
#include "model/schedule/op_text.h"

namespace sluice {
namespace {

constexpr std::string_view kOverlap = ")OVERLAP_F_B";

std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return taken;
}

std::string_view trimmed(std::string_view cell) {
  const std::string_view blank = " \t\r";
  const std::size_t begin = cell.find_first_not_of(blank);
  if (begin == std::string_view::npos) return {};
  cell = cell.substr(begin, cell.find_last_not_of(blank) - begin + 1);
  if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') cell = cell.substr(1, cell.size() - 2);
  return cell;
}

bool is_communication(std::string_view cell) {
  for (const std::string_view name : {"SEND_F", "SEND_B", "RECV_F", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"}) {
    if (cell.find(name) != std::string_view::npos) return true;
  }
  return false;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& source) : text_(text), source_(source) { old_ = is_old_dialect(); }

  ScheduleParts run() {
    ScheduleParts parts;
    parts.family = "custom";
    std::string_view rest = text_;
    while (!rest.empty()) {
      std::string_view row = take_until(rest, '\n');
      if (rest.empty() && trimmed(row).empty()) break;  // what follows the last line break
      auto& order = parts.orders.emplace_back();
      if (std::ssize(parts.orders) > kMaxRanks)
        throw InputError(fmt::format("{}: more than {} rows", source_, kMaxRanks));
      for (int cell = 1; !row.empty(); ++cell) {
        read_cell(trimmed(take_until(row, ',')), fmt::format("{}: row {}, cell {}", source_, parts.orders.size(), cell),
                  order);
      }
      if (order.empty()) throw InputError(fmt::format("{}: row {}: expected ops", source_, parts.orders.size()));
    }
    place(parts);
    return parts;
  }

 private:
  // W, but nowhere an I.
  bool is_old_dialect() const {
    bool weights = false;
    for (std::size_t i = 1; i < text_.size(); ++i) {
      if (text_[i - 1] < '0' || text_[i - 1] > '9') continue;  // an op's letter follows its stage
      if (text_[i] == 'I') return false;
      weights |= text_[i] == 'W';
    }
    return weights;
  }

  Op read_op(std::string_view text, const std::string& where) const {
    Op op;
    const bool whole = old_ && text.find("BW") != std::string_view::npos;
    if (!parse_op_text(text, op, old_) || text.find('.') != std::string_view::npos) {
      throw InputError(
          fmt::format("{}: expected an op such as 2F0, 1I3, 0W2 or 3B1, a block (0F1;3B0)OVERLAP_F_B, or "
                      "nothing, got '{}'",
                      where, text));
    }
    if (old_ && op.kind == OpKind::B && !whole) op.kind = OpKind::I;
    return op;
  }

  void read_cell(std::string_view cell, const std::string& where, std::vector<Op>& order) const {
    if (cell.empty()) return;
    if (is_communication(cell)) {
      throw InputError(fmt::format("{}: '{}' is a communication op: give the compute-only file", where, cell));
    }
    const std::size_t middle = cell.find(';');
    if (cell.front() == '(' && cell.ends_with(kOverlap) && middle != std::string_view::npos) {
      order.push_back(read_op(cell.substr(1, middle - 1), where));
      order.back().joined = true;
      order.push_back(read_op(cell.substr(middle + 1, cell.size() - kOverlap.size() - middle - 1), where));
      return;
    }
    order.push_back(read_op(cell, where));
  }

  // Ranks, stages, microbatches and placement, from where the ops stand.
  void place(ScheduleParts& parts) const {
    int stages = 0;
    int microbatches = 0;
    for (const auto& order : parts.orders) {
      for (const Op& op : order) {
        stages = std::max(stages, op.stage + 1);
        microbatches = std::max(microbatches, op.microbatch + 1);
      }
    }
    if (stages == 0) throw InputError(source_ + ": expected a row for each rank, with ops");
    if (std::int64_t{stages} * microbatches > kMaxOps) {
      throw InputError(
          fmt::format("{}: {} stages and {} microbatches: more than {} ops", source_, stages, microbatches, kMaxOps));
    }
    std::vector<int> route(static_cast<std::size_t>(stages), -1);
    for (std::size_t rank = 0; rank < parts.orders.size(); ++rank) {
      for (const Op& op : parts.orders[rank]) {
        int& home = route[static_cast<std::size_t>(op.stage)];
        if (home == -1) home = static_cast<int>(rank);
        if (home != static_cast<int>(rank)) {
          throw ScheduleError(
              fmt::format("{}: stage {} stands in row {} and in row {}", source_, op.stage, home + 1, rank + 1));
        }
      }
    }
    const auto missing = std::find(route.begin(), route.end(), -1);
    if (missing != route.end()) {
      throw ScheduleError(fmt::format("{}: no row has stage {}", source_, missing - route.begin()));
    }
    parts.num_ranks = static_cast<int>(parts.orders.size());
    parts.num_stages = stages;
    parts.num_microbatches = microbatches;
    parts.routes = {std::move(route)};
  }

  std::string_view text_;
  const std::string& source_;
  bool old_ = false;
};

}  // namespace

std::string schedule_to_csv(const Schedule& schedule) {
  const auto refuse = [&](const char* why) {
    throw InputError(fmt::format("{}: PyTorch's CSV has no {}", schedule.family(), why));
  };
  if (schedule.sliced()) refuse("slices of a sequence");
  if (schedule.num_routes() > 1) refuse("stages on two ranks");
  if (schedule.weight_policy() != WeightPolicy::flush) refuse("schedules without a flush");
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    if (schedule.ops(rank).empty()) refuse("ranks without ops");
  }
  std::string out;
  out.reserve(static_cast<std::size_t>(schedule.num_ops()) * 8);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto list = schedule.ops(rank);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const bool second = i > 0 && list[i - 1].joined;
      if (i > 0) out += second ? ";" : ",";
      if (list[i].joined) out += '(';
      append_op_text(out, list[i], false);
      if (second) out += kOverlap;
    }
    out += '\n';
  }
  return out;
}

Schedule schedule_from_csv(std::string_view text, const std::string& source) {
  ScheduleParts parts = Reader(text, source).run();
  try {
    return Schedule(std::move(parts));
  } catch (const ScheduleError& error) {
    throw ScheduleError(source + ": " + error.what());
  }
}

}  // namespace sluice

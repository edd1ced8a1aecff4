#include "model/schedule/pytorch_csv.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/errors.h"
#include "model/schedule/forward_only.h"
#include "model/schedule/op_text.h"

namespace sluice::model {
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

class Reader {
 public:
  Reader(std::string_view text, const std::string& source) : text_(text), source_(source) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);  // written by spreadsheets
    old_ = is_old_dialect();
  }

  Schedule run() {
    ScheduleParts parts;
    parts.family = "custom";
    bool communicates = false;
    std::string_view rest = text_;
    while (!rest.empty()) {
      std::string_view row = take_until(rest, '\n');
      if (rest.empty() && trimmed(row).empty()) break;  // after the last line break
      auto& order = parts.orders.emplace_back();
      auto& communication = parts.communication.emplace_back();
      cells_.emplace_back();
      communication_cells_.emplace_back();
      if (std::ssize(parts.orders) > kMaxRanks)
        throw InputError(fmt::format("{}: more than {} rows", source_, kMaxRanks));
      for (int cell = 1; !row.empty(); ++cell) read_cell(trimmed(take_until(row, ',')), cell, order, communication);
      communicates |= !communication.empty();
      if (order.empty()) throw InputError(fmt::format("{}: row {}: expected ops", source_, parts.orders.size()));
    }
    if (!communicates) parts.communication.clear();
    place(parts);
    parts.cells = std::move(cells_);
    parts.communication_cells = std::move(communication_cells_);
    mark_forward_only(parts);
    return Schedule(std::move(parts));
  }

 private:
  // W or BW, but no I.
  bool is_old_dialect() const {
    bool weights = false;
    for (std::size_t i = 1; i < text_.size(); ++i) {
      if (text_[i - 1] < '0' || text_[i - 1] > '9') continue;  // an op's letter follows its stage
      if (text_[i] == 'I') return false;
      weights |= text_[i] == 'W' || text_.substr(i, 2) == "BW";
    }
    return weights;
  }

  Op read_op(std::string_view text, int cell) {
    Op op;
    const bool whole = old_ && text.find("BW") != std::string_view::npos;
    if (!parse_op_text(text, op, old_) || text.find('.') != std::string_view::npos) wrong(cell, text);
    if (old_ && op.kind == OpKind::B && !whole) op.kind = OpKind::I;
    cells_.back().push_back(cell);
    return op;
  }

  [[noreturn]] void wrong(int cell, std::string_view text) const {
    throw InputError(
        fmt::format("{}: row {}, cell {}: expected an op such as 2F0, 1I3, 0W2 or 3B1, a block (0F1;3B0)OVERLAP_F_B, "
                    "communication such as 2SEND_F0, 0UNSHARD, or nothing, got '{}'",
                    source_, cells_.size(), cell, text));
  }

  void read_cell(std::string_view text, int cell, std::vector<Op>& order, std::vector<Communication>& communication) {
    if (text.empty()) return;
    Communication moved{.before = static_cast<std::uint32_t>(order.size())};
    if (parse_communication(text, moved)) {
      if (text.find('.') != std::string_view::npos) wrong(cell, text);
      communication_cells_.back().push_back(cell);
      communication.push_back(moved);
      return;
    }
    const std::size_t middle = text.find(';');
    if (text.front() == '(' && text.ends_with(kOverlap) && middle != std::string_view::npos) {
      order.push_back(read_op(text.substr(1, middle - 1), cell));
      order.back().joined = true;
      order.push_back(read_op(text.substr(middle + 1, text.size() - kOverlap.size() - middle - 1), cell));
      return;
    }
    order.push_back(read_op(text, cell));
  }

  // Derives ranks, stages, microbatches and placement from the positions of the ops.
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
    struct Home {
      int rank = -1;
      std::size_t position = 0;
    };
    std::vector<Home> homes(static_cast<std::size_t>(stages));
    for (std::size_t rank = 0; rank < parts.orders.size(); ++rank) {
      for (std::size_t i = 0; i < parts.orders[rank].size(); ++i) {
        const Op& op = parts.orders[rank][i];
        Home& home = homes[op.stage];
        if (home.rank == -1) home = {static_cast<int>(rank), i};
        if (home.rank == static_cast<int>(rank)) continue;
        throw ScheduleError(fmt::format("row {}, cell {}: {}: stage {} is also in row {}, at cell {}", rank + 1,
                                        cells_[rank][i], to_string(op, false), op.stage, home.rank + 1,
                                        cells_[home.rank][home.position]));
      }
    }
    const auto missing = std::find_if(homes.begin(), homes.end(), [](const Home& home) { return home.rank == -1; });
    if (missing != homes.end()) {
      throw ScheduleError(fmt::format("no row has stage {}", missing - homes.begin()));
    }
    parts.num_ranks = static_cast<int>(parts.orders.size());
    parts.num_stages = stages;
    parts.num_microbatches = microbatches;
    auto& route = parts.routes.emplace_back();
    for (const Home& home : homes) route.push_back(home.rank);
  }

  std::string_view text_;
  const std::string& source_;
  std::vector<std::vector<int>> cells_;  // by row: that of each op
  std::vector<std::vector<int>> communication_cells_;
  bool old_ = false;
};

[[noreturn]] void refuse_csv(std::string_view family, const char* why) {
  throw InputError(fmt::format("{}: PyTorch's CSV has no {}", family, why));
}

void check_csv_of(std::string_view family, bool sliced, bool replicated, bool flushes, bool passes) {
  if (sliced) refuse_csv(family, "slices of a sequence");
  if (replicated) refuse_csv(family, "stages on two ranks");
  if (!flushes) refuse_csv(family, "schedules without a flush");
  if (passes) refuse_csv(family, "vocabulary passes");
}

}  // namespace

void check_csv(const Family& family, int slices) {
  check_csv_of(family.name, slices > 1, family.replicas > 1, !family.asynchronous, family.vocabulary_barriers > 0);
}

std::string schedule_to_csv(const Schedule& schedule, bool with_communication) {
  check_csv_of(schedule.family(), schedule.sliced(), schedule.num_routes() > 1,
               schedule.weight_policy() == WeightPolicy::flush, schedule.vocabulary_barriers() > 0);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    if (schedule.ops(rank).empty()) refuse_csv(schedule.family(), "ranks without ops");
  }
  std::string out;
  out.reserve(static_cast<std::size_t>(schedule.num_ops()) * 8);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    bool joined = false;
    bool first = true;
    const auto begin_cell = [&] {
      if (!first) out += ',';
      first = false;
    };
    for_each_step(
        schedule, rank,
        [&](const Op& op) {
          if (!joined) begin_cell();
          out += joined ? ";" : op.joined ? "(" : "";
          append_op_text(out, op, false);
          if (joined) out += kOverlap;
          joined = op.joined;
        },
        [&](const Communication& communication) {
          if (!with_communication) return;
          begin_cell();
          out += to_string(communication, false);
        });
    out += '\n';
  }
  return out;
}

Schedule schedule_from_csv(std::string_view text, const std::string& source) {
  try {
    return Reader(text, source).run();
  } catch (const ScheduleError& error) {
    throw ScheduleError(source + ": " + error.what());
  }
}

}  // namespace sluice::model

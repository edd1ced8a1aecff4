#include "benchmarks/accuracy/zero_bubble.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "benchmarks/accuracy/replay.h"
#include "benchmarks/accuracy/zero_bubble_schedule.h"
#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "model/timeline/metrics.h"
#include "sim/engine/engine.h"

namespace sluice::bench::accuracy {
namespace {

// Constants of the framework and the machines of all rows. The first is counted, the other four were fitted together to
// the published rows (docs/results.md). Bytes that one optimizer step moves per parameter, in Megatron-LM with 32-bit
// gradients: unscaling and the check for infinities read and write the gradient, the norm reads it, clipping reads and
// writes it, Adam reads four values and writes three, the 16-bit copy is 4 + 2, zeroing the gradient 4: 8 + 4 + 8 + 28
// + 6 + 4.
constexpr double kStepBytes = 58;
constexpr double kMemoryBytesPerSecond = 0.75 * 2039e9;  // A100-80GB, as in the catalogue
// Host part of a transfer as it was profiled (sequential transfers, each synchronized with the host), for which a rank
// with other work does not wait.
constexpr double kHostSeconds = 0.2e-3;
// Additional time per byte between nodes: a card of 100 Gb/s at about 80 %.
constexpr double kBetweenNodesSecondsPerByte = 1 / 10.5e9;
constexpr int kRanksPerNode = 8;
// Megatron-LM's schedules wait for their transfers; the zero-bubble framework only where a batch of transfers also
// contains the input of the next op.
constexpr double kZeroBubbleBlocked = 0.5;
// Fraction by which a microbatch in the steady state takes longer than its profiled ops, as ranks that wait for each
// other run at the pace of the slowest at that time. Warm-up and drain are not affected.
constexpr double kPace = 0.07;
// NVLink, only for models without a profile: 28 MB in the 0.4 ms of the 1.5B profile beyond the host part.
constexpr double kInNodeBytesPerSecond = 70e9;

struct Sizes {
  int layers = 0;
  std::int64_t heads = 0;
  std::int64_t hidden = 0;
  std::int64_t sequence = 0;

  // Without flash attention, counted as in Korthikanti et al. 2022; the part kept after the input gradient as in table
  // 1 of the paper.
  std::int64_t activation() const { return 34 * hidden + 5 * heads * sequence; }
  std::int64_t kept() const { return 32 * hidden; }
};

// Seconds of one rank's ops on a microbatch and of a transfer, as profiled.
struct Profile {
  double forward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  double hop = 0;

  double work() const { return forward + input_gradient + weight_gradient; }
};

struct ProfileRow {
  int ranks = 0;
  int microbatches = 0;
  int micro_batch = 0;
  Profile profile;
};

using ProfilesByModel = std::map<std::string, std::vector<ProfileRow>>;  // ordered by microbatches
using SizesByModel = std::map<std::string, Sizes>;

const std::vector<std::string> kProfileColumns = {"model",  "pp",     "num_microbatches", "micro_batch",
                                                  "t_f_ms", "t_b_ms", "t_w_ms",           "t_comm_ms"};
const std::vector<std::string> kSizeColumns = {
    "model",       "layers",           "heads",    "hidden",         "seq", "pp",
    "micro_batch", "num_microbatches", "schedule", "derived_iter_ms"};

// The first table by name, in the folder of `table`, that has `columns`.
std::optional<CsvTable> table_in_same_folder(const CsvTable& table, const std::vector<std::string>& columns) {
  const std::filesystem::path folder = std::filesystem::path(table.source()).parent_path();
  std::vector<std::string> paths;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder.empty() ? "." : folder, none)) {
    if (entry.path().extension() == ".csv") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    try {
      CsvTable other = read_csv(path);
      if (std::all_of(columns.begin(), columns.end(), [&](const auto& name) { return other.has(name); })) return other;
    } catch (const InputError&) {
      // Reported when that table is scored.
    }
  }
  return std::nullopt;
}

int count_at(const CsvTable& table, int row, const char* column, int most = 100000) {
  return static_cast<int>(table.integer(row, column, 1, most));
}

ProfileRow profile_at(const CsvTable& table, int row) {
  const auto seconds = [&](const char* column) { return table.number(row, column, 0, 1e9) / 1e3; };
  return {.ranks = count_at(table, row, "pp", kMaxRanks),
          .microbatches = count_at(table, row, "num_microbatches"),
          .micro_batch = count_at(table, row, "micro_batch"),
          .profile = {.forward = seconds("t_f_ms"),
                      .input_gradient = seconds("t_b_ms"),
                      .weight_gradient = seconds("t_w_ms"),
                      .hop = seconds("t_comm_ms")}};
}

Sizes sizes_at(const CsvTable& table, int row) {
  return {.layers = count_at(table, row, "layers"),
          .heads = table.integer(row, "heads", 1, 1 << 20),
          .hidden = table.integer(row, "hidden", 1, 1 << 24),
          .sequence = table.integer(row, "seq", 1, 1 << 24)};
}

ProfilesByModel profiles_of(const CsvTable& table) {
  ProfilesByModel profiles;
  for (int row = 0; row < table.num_rows(); ++row) {
    profiles[table.text(row, "model")].push_back(profile_at(table, row));
  }
  for (auto& [model, rows] : profiles) {
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.microbatches < b.microbatches; });
  }
  return profiles;
}

SizesByModel sizes_of(const CsvTable& table) {
  SizesByModel sizes;
  for (int row = 0; row < table.num_rows(); ++row) sizes.emplace(table.text(row, "model"), sizes_at(table, row));
  return sizes;
}

// Embedding and head count as one layer each: in the paper the first and last stage have one layer fewer.
int layers_of_a_rank(const Sizes& sizes, int ranks) { return std::max(1, (sizes.layers + 2) / ranks); }

ZeroBubbleProblem problem_of(const Profile& profile, const Sizes& sizes, int ranks, int microbatches, int limit) {
  const RankBudget budget{.forward = from_seconds(profile.forward, "t_f_ms"),
                          .input_gradient = from_seconds(profile.input_gradient, "t_b_ms"),
                          .weight_gradient = from_seconds(profile.weight_gradient, "t_w_ms"),
                          .activation = sizes.activation(),
                          .kept = sizes.kept(),
                          .limit = std::int64_t{limit} * ranks * sizes.activation()};
  return {.num_microbatches = microbatches,
          .ranks = std::vector<RankBudget>(static_cast<std::size_t>(ranks), budget),
          .hop = from_seconds(profile.hop, "t_comm_ms")};
}

std::function<double(const Op&)> op_times(const Profile& profile, int chunks) {
  return [profile, chunks](const Op& op) {
    switch (op.kind) {
      case OpKind::F: return profile.forward / chunks;
      case OpKind::I: return profile.input_gradient / chunks;
      case OpKind::W: return profile.weight_gradient / chunks;
      case OpKind::B: return (profile.input_gradient + profile.weight_gradient) / chunks;
    }
    return 0.0;
  };
}

Duration span_of(const ZeroBubbleProblem& problem, const Schedule& schedule) {
  const OpGraph graph = lower(schedule);
  return measure(graph, simulate(graph, price(graph, ZeroBubbleCost(problem)))).span;
}

// The result of the paper's own search: the best of its eight rules, not of all rules of `plan_zero_bubble`.
Schedule paper_schedule(const ZeroBubbleProblem& problem) {
  std::optional<Schedule> best;
  Duration least{};
  for (const bool delay : {false, true}) {
    for (const bool hold_back : {false, true}) {
      for (const bool fill : {false, true}) {
        Schedule schedule = zero_bubble_schedule(
            problem, {.delay_first_gradient = delay, .hold_back_forwards = hold_back, .fill_every_gap = fill});
        const Duration span = span_of(problem, schedule);
        if (best && span >= least) continue;
        best.emplace(std::move(schedule));
        least = span;
      }
    }
  }
  return std::move(*best);
}

Schedule of_family(const char* family, int ranks, int microbatches, int chunks = 0) {
  return make_schedule(find_family(family), {.ranks = ranks, .chunks = chunks, .microbatches = microbatches});
}

// The bubble rates of one row of table 5.
class BubbleRow {
 public:
  BubbleRow(const CsvTable& table, int row, const SizesByModel& sizes, TableScore& score)
      : table_(table), row_(row), score_(score), given_(profile_at(table, row)) {
    const auto found = sizes.find(table.text(row, "model"));
    if (found != sizes.end()) sizes_ = found->second;
  }

  void add_all() {
    const Profile& profile = given_.profile;
    const int ranks = given_.ranks;
    const int microbatches = given_.microbatches;
    for (const auto& [column, group, family] : {std::array{"bubble_1f1b", "bubble rate 1F1B", "1f1b"},
                                                std::array{"bubble_zbh1", "bubble rate ZB-H1", "zb-h1"},
                                                std::array{"bubble_zbh2", "bubble rate ZB-H2", "zb-h2"}}) {
      add(column, group, [&, name = family] {
        // Only for its times; these families have no memory limits.
        const ZeroBubbleProblem problem = problem_of(profile, {.hidden = 1}, ranks, microbatches, 1);
        return to_seconds(span_of(problem, of_family(name, ranks, microbatches)));
      });
    }
    for (const bool every_wrap_waits : {false, true}) {
      add("bubble_1f1b_i", every_wrap_waits ? "bubble rate 1F1B-I" : "bubble rate 1F1B-I, as published", [&] {
        const int chunks = layers_of_a_rank(known_sizes(), ranks);
        return replay(of_family("interleaved-1f1b", ranks, microbatches, chunks),
                      {.op = op_times(profile, chunks),
                       .hop = [&](int, int) { return profile.hop; },
                       .every_wrap_waits = every_wrap_waits})
            .makespan;
      });
    }
    for (const int limit : {1, 2}) {
      add(limit == 1 ? "bubble_zb1p" : "bubble_zb2p", fmt::format("bubble rate ZB-{}p", limit), [&] {
        const ZeroBubbleProblem problem = problem_of(profile, known_sizes(), ranks, microbatches, limit);
        return to_seconds(span_of(problem, paper_schedule(problem)));
      });
    }
  }

 private:
  const Sizes& known_sizes() const {
    if (!sizes_)
      throw InputError("expected a table with the layers, heads and hidden size of this model in the same folder");
    return *sizes_;
  }

  template <typename Span>
  void add(const char* column, const std::string& group, Span&& span) {
    if (!table_.has(column) || table_.text(row_, column).empty()) return;
    try {
      const double published = table_.number(row_, column, 0, 1);
      const double rate = 1 - given_.microbatches * given_.profile.work() / span();
      score_.comparisons.push_back(
          {.group = group,
           .place = table_.place(row_),
           .setting = fmt::format("{} pp {} m {}", table_.text(row_, "model"), given_.ranks, given_.microbatches),
           .measured = published,
           .predicted = std::round(rate * 1e4) / 1e4});
    } catch (const InputError& error) {
      score_.skipped.push_back({table_.place(row_), fmt::format("{}: {}", group, error.what())});
    }
  }

  const CsvTable& table_;
  int row_;
  TableScore& score_;
  ProfileRow given_;
  std::optional<Sizes> sizes_;
};

// One run of table 4.
struct Run {
  int row = 0;
  std::string model;
  std::string schedule;
  int ranks = 0;
  int microbatches = 0;
  int micro_batch = 0;
  Sizes sizes;
  double seconds = 0;  // measured
  Profile profile;

  bool zero_bubble() const { return schedule.starts_with("ZB"); }
  double transfer_bytes() const {
    return 2.0 * micro_batch * static_cast<double>(sizes.sequence) * static_cast<double>(sizes.hidden);
  }
  double between_nodes_s() const { return transfer_bytes() * kBetweenNodesSecondsPerByte; }
  // Fraction of transfers between nodes.
  double between_nodes_fraction() const {
    const int between_nodes = (ranks - 1) / kRanksPerNode;
    return ranks == 1 ? 0 : static_cast<double>(between_nodes) / (ranks - 1);
  }
};

Run run_at(const CsvTable& table, int row) {
  return {.row = row,
          .model = table.text(row, "model"),
          .schedule = table.text(row, "schedule"),
          .ranks = count_at(table, row, "pp", kMaxRanks),
          .microbatches = count_at(table, row, "num_microbatches"),
          .micro_batch = count_at(table, row, "micro_batch"),
          .sizes = sizes_at(table, row),
          .seconds = table.number(row, "derived_iter_ms", 1e-3, 1e9) / 1e3};
}

// Interpolates linearly between the profiled numbers of microbatches, on which times hardly depend.
Profile between(const std::vector<ProfileRow>& rows, int microbatches) {
  const auto above =
      std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.microbatches >= microbatches; });
  if (above == rows.end()) return rows.back().profile;
  if (above == rows.begin() || above->microbatches == microbatches) return above->profile;
  const ProfileRow& below = *std::prev(above);
  const double fraction =
      static_cast<double>(microbatches - below.microbatches) / (above->microbatches - below.microbatches);
  const auto mix = [&](double low, double high) { return low + fraction * (high - low); };
  const Profile& a = below.profile;
  const Profile& b = above->profile;
  return {.forward = mix(a.forward, b.forward),
          .input_gradient = mix(a.input_gradient, b.input_gradient),
          .weight_gradient = mix(a.weight_gradient, b.weight_gradient),
          .hop = mix(a.hop, b.hop)};
}

// Times of a layer of a profiled model. A weight gradient consists of GEMMs, whose time per token is proportional to
// h^2; forward and input gradient additionally contain attention and other kernels, which are proportional to h.
struct LayerTimes {
  double hidden = 0;
  double product = 0;         // seconds of a weight gradient, per token and h^2
  double forward = 0;         // additional time of a forward, per h
  double input_gradient = 0;  // likewise
};

// Default without any profile: the mean of 1.5B and 14.6B in table 6.
constexpr LayerTimes kUsualLayer = {.hidden = 4096, .product = 9.8e-14, .forward = 2140, .input_gradient = 2070};

LayerTimes layer_times(const ProfileRow& row, const Sizes& sizes) {
  const auto hidden = static_cast<double>(sizes.hidden);
  const double tokens = static_cast<double>(sizes.sequence) * row.micro_batch * layers_of_a_rank(sizes, row.ranks);
  const double weight = row.profile.weight_gradient;
  return {.hidden = hidden,
          .product = weight / (tokens * hidden * hidden),
          .forward = (row.profile.forward / weight - 1) * hidden,
          .input_gradient = (row.profile.input_gradient / weight - 1) * hidden};
}

// Interpolates the times of a model without a profile between the next smaller and the next larger model with one.
Profile from_others(const Run& run, std::vector<LayerTimes> known) {
  std::sort(known.begin(), known.end(), [](const auto& a, const auto& b) { return a.hidden < b.hidden; });
  const auto hidden = static_cast<double>(run.sizes.hidden);
  auto above = std::find_if(known.begin(), known.end(), [&](const auto& layer) { return layer.hidden >= hidden; });
  if (above == known.end()) --above;
  const LayerTimes& b = *above;
  const LayerTimes& a = above == known.begin() || b.hidden < hidden ? b : *std::prev(above);
  const double fraction = a.hidden == b.hidden ? 0 : (1 / hidden - 1 / a.hidden) / (1 / b.hidden - 1 / a.hidden);
  const auto mix = [&](double low, double high) { return low + fraction * (high - low); };
  const double weight = mix(a.product, b.product) * hidden * hidden * static_cast<double>(run.sizes.sequence) *
                        run.micro_batch * layers_of_a_rank(run.sizes, run.ranks);
  return {.forward = weight * (1 + mix(a.forward, b.forward) / hidden),
          .input_gradient = weight * (1 + mix(a.input_gradient, b.input_gradient) / hidden),
          .weight_gradient = weight,
          .hop = kHostSeconds + run.transfer_bytes() / kInNodeBytesPerSecond +
                 run.between_nodes_fraction() * run.between_nodes_s()};
}

// A run with its schedule, to predict with any factor on its ops.
class Predictor {
 public:
  explicit Predictor(Run run) : run_(std::move(run)), schedule_(schedule_of(run_)) {}

  const Run& run() const { return run_; }
  double seconds(double factor) const {
    const double in_node =
        std::max(0.0, run_.profile.hop - kHostSeconds - run_.between_nodes_fraction() * run_.between_nodes_s());
    const auto hop = [&](int from, int to) {
      return in_node + (from / kRanksPerNode == to / kRanksPerNode ? 0 : run_.between_nodes_s());
    };
    const Profile times = scaled(factor);
    const ReplayResult result = replay(schedule_, {.op = op_times(times, schedule_.num_chunks()),
                                                   .hop = hop,
                                                   .blocked = run_.zero_bubble() ? kZeroBubbleBlocked : 1});
    return length(result) + kPace * run_.microbatches * times.work() + step_s();
  }
  // Likewise, with only the profiled ops and transfers.
  double plain_seconds(double factor) const {
    return factor * length(replay(schedule_, {.op = op_times(run_.profile, schedule_.num_chunks()),
                                              .hop = [&](int, int) { return run_.profile.hop; }}));
  }

 private:
  static Schedule schedule_of(const Run& run) {
    if (run.schedule == "1F1B") return of_family("1f1b", run.ranks, run.microbatches);
    if (run.schedule == "1F1B-I") {
      return of_family("interleaved-1f1b", run.ranks, run.microbatches, layers_of_a_rank(run.sizes, run.ranks));
    }
    if (run.schedule != "ZB-1p" && run.schedule != "ZB-2p") {
      throw InputError(fmt::format("schedule: expected 1F1B, 1F1B-I, ZB-1p or ZB-2p, got '{}'", run.schedule));
    }
    const int limit = run.schedule == "ZB-1p" ? 1 : 2;
    return paper_schedule(problem_of(run.profile, run.sizes, run.ranks, run.microbatches, limit));
  }

  // In zero-bubble schedules, ranks start the next iteration without waiting for the others.
  double length(const ReplayResult& result) const { return run_.zero_bubble() ? result.span : result.makespan; }

  Profile scaled(double factor) const {
    Profile times = run_.profile;
    times.forward *= factor;
    times.input_gradient *= factor;
    times.weight_gradient *= factor;
    return times;
  }

  double step_s() const {
    const auto hidden = static_cast<double>(run_.sizes.hidden);
    const double parameters = 12 * hidden * hidden * layers_of_a_rank(run_.sizes, run_.ranks);
    return parameters * kStepBytes / kMemoryBytesPerSecond;
  }

  Run run_;
  Schedule schedule_;
};

using Prediction = double (Predictor::*)(double) const;

// The factor for which the geometric mean of predicted / measured over all runs but `left_out` is 1. Times are nearly
// proportional to it, so this fixed-point iteration converges in a few steps.
double fitted_factor(const std::vector<const Predictor*>& runs, const Predictor* left_out, Prediction predict) {
  double factor = 1;
  for (int round = 0; round < 6; ++round) {
    double logs = 0;
    int count = 0;
    for (const Predictor* run : runs) {
      if (run == left_out) continue;
      logs += std::log((run->*predict)(factor) / run->run().seconds);
      ++count;
    }
    factor *= std::exp(-logs / count);
  }
  return factor;
}

void score_model(const CsvTable& table, const std::vector<const Predictor*>& runs, bool profiled, TableScore& score) {
  const double all = fitted_factor(runs, nullptr, &Predictor::seconds);
  for (const Predictor* predictor : runs) {
    const Run& run = predictor->run();
    const double samples = static_cast<double>(run.micro_batch) * run.microbatches / run.ranks;
    const auto add = [&](std::string group, double seconds) {
      score.comparisons.push_back(
          {.group = std::move(group),
           .place = table.place(run.row),
           .setting = fmt::format("{} {} pp {} m {}", run.model, run.schedule, run.ranks, run.microbatches),
           .measured = samples / run.seconds,
           .predicted = samples / seconds,
           .unit = "samples/s/GPU"});
    };
    if (runs.size() == 1) {
      score.skipped.push_back(
          {table.place(run.row), fmt::format("the only row of {}: its factor cannot be fitted", run.model)});
      continue;
    }
    const auto left_out = [&](Prediction predict) {
      return (predictor->*predict)(fitted_factor(runs, predictor, predict));
    };
    const double seconds = left_out(&Predictor::seconds);
    add("throughput, left one out", seconds);
    add(profiled ? "profiled models, left one out" : "other models, left one out", seconds);
    add("all rows in the fit", predictor->seconds(all));
    add("plain replay, left one out", left_out(&Predictor::plain_seconds));
  }
}

}  // namespace

TableScore score_zero_bubble_bubbles(const CsvTable& table) {
  TableScore score;
  const std::optional<CsvTable> other = table_in_same_folder(table, kSizeColumns);
  const SizesByModel sizes = other ? sizes_of(*other) : SizesByModel();
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      BubbleRow(table, row, sizes, score).add_all();
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

TableScore score_zero_bubble_throughput(const CsvTable& table) {
  TableScore score;
  const std::optional<CsvTable> other = table_in_same_folder(table, kProfileColumns);
  const ProfilesByModel profiles = other ? profiles_of(*other) : ProfilesByModel();
  const SizesByModel sizes = sizes_of(table);
  std::vector<LayerTimes> known;
  for (const auto& [model, rows] : profiles) {
    if (const auto found = sizes.find(model); found != sizes.end()) {
      known.push_back(layer_times(rows.front(), found->second));
    }
  }
  if (known.empty()) known.push_back(kUsualLayer);
  std::map<std::string, std::vector<Predictor>> by_model;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      Run run = run_at(table, row);
      const auto own = profiles.find(run.model);
      run.profile = own == profiles.end() ? from_others(run, known) : between(own->second, run.microbatches);
      by_model[run.model].emplace_back(std::move(run));
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  for (const auto& [model, predictors] : by_model) {
    std::vector<const Predictor*> runs;
    for (const Predictor& predictor : predictors) runs.push_back(&predictor);
    score_model(table, runs, profiles.contains(model), score);
  }
  return score;
}

}  // namespace sluice::bench::accuracy

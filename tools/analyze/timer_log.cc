#include "tools/analyze/timer_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "model/errors.h"
#include "model/median.h"
#include "model/to_size.h"

namespace sluice::tools {
namespace {

constexpr double kWarmUp = 1.5;         // times the median iteration
constexpr double kSlowIteration = 1.1;  // likewise
constexpr double kSlowRank = 1.03;      // times the compute of the others

// The value of an argument; nullopt if the log does not print it as a number.
std::optional<int> argument(const MegatronLog& log, std::string_view name) {
  for (const LoggedValue& value : log.arguments) {
    int number = 0;
    if (value.name == name &&
        std::from_chars(value.value.data(), value.value.data() + value.value.size(), number).ec == std::errc()) {
      return number;
    }
  }
  return std::nullopt;
}

double quantile_of(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

class TimerAnalyst {
 public:
  TimerAnalyst(const MegatronLog& log, bool all_steps) : log_(log) {
    out_.source = log.source;
    if (log.tables.empty()) {
      throw InputError(log.source +
                       ": expected timers after the iterations, got none: Megatron-LM prints them with "
                       "--timing-log-level 1 or 2, by rank with --timing-log-option all");
    }
    if (!all_steps) leave_out_warm_up();
    out_.iterations = log.seconds.size();
    const std::vector<double> seconds(log.seconds.begin() + static_cast<std::ptrdiff_t>(out_.left_out),
                                      log.seconds.end());
    out_.median_s = median(seconds);
    out_.fast_s = quantile_of(seconds, 0.05);
    out_.slow_s = quantile_of(seconds, 0.95);
  }

  TimerAnalysis analyse() && {
    summarize();
    place_ranks();
    sum_compute();
    if (!out_.compute_s.empty()) {
      find_stages();
      find_workers();
    }
    find_iterations();
    std::stable_sort(out_.causes.begin(), out_.causes.end(),
                     [](const TimerCause& a, const TimerCause& b) { return a.excess_s > b.excess_s; });
    return std::move(out_);
  }

 private:
  void leave_out_warm_up() {
    const double usual = median(log_.seconds);
    while (out_.left_out + 1 < log_.seconds.size() && log_.seconds[out_.left_out] > kWarmUp * usual) ++out_.left_out;
    if (out_.left_out == 0) return;
    out_.notes.push_back(fmt::format("the first {} took over {} times the median, left out (--all-steps keeps {})",
                                     out_.left_out == 1 ? "iteration" : fmt::format("{} iterations", out_.left_out),
                                     kWarmUp, out_.left_out == 1 ? "it" : "them"));
  }

  void summarize() {
    struct Values {
      std::vector<double> min_s, max_s;
      std::vector<std::vector<double>> ranks_s;  // by rank
    };
    std::map<std::string, Values> values;
    std::vector<std::string> order;
    for (const TimerTable& table : log_.tables) {
      if (table.iteration < out_.left_out) continue;
      ++out_.tables;
      for (const LoggedTimer& timer : table.timers) {
        const auto [found, is_new] = values.try_emplace(timer.name);
        if (is_new) order.push_back(timer.name);
        found->second.min_s.push_back(timer.min_s);
        found->second.max_s.push_back(timer.max_s);
        auto& by_rank = found->second.ranks_s;
        by_rank.resize(std::max(by_rank.size(), timer.ranks_s.size()));
        for (std::size_t rank = 0; rank < timer.ranks_s.size(); ++rank) {
          if (timer.ranks_s[rank] > 0) by_rank[rank].push_back(timer.ranks_s[rank]);
        }
      }
    }
    if (out_.tables == 0) throw InputError(log_.source + ": expected timers after iterations that are no warm-up");
    for (const std::string& name : order) {
      Values& of = values.at(name);
      TimerSummary summary{name, median(of.min_s), median(of.max_s), {}};
      for (std::vector<double>& each : of.ranks_s) summary.ranks_s.push_back(median(std::move(each)));
      out_.timers.push_back(std::move(summary));
    }
  }

  const TimerSummary* timer(std::string_view name) const {
    const auto found = std::find_if(out_.timers.begin(), out_.timers.end(),
                                    [&](const TimerSummary& each) { return each.name == name; });
    return found == out_.timers.end() ? nullptr : &*found;
  }

  // Ranks differ fastest in tensor, then context and data parallelism, and slowest in the pipeline; with
  // --use-tp-pp-dp-mapping the pipeline comes before data parallelism.
  void place_ranks() {
    out_.pipeline_ranks = std::max(1, argument(log_, "pipeline_model_parallel_size").value_or(1));
    world_ = argument(log_, "world_size").value_or(0);
    const bool before_data = std::any_of(log_.arguments.begin(), log_.arguments.end(), [](const LoggedValue& value) {
      return value.name == "use_tp_pp_dp_mapping" && value.value == "True";
    });
    if (before_data) {
      stride_ = std::max(1, argument(log_, "tensor_model_parallel_size").value_or(1)) *
                std::max(1, argument(log_, "context_parallel_size").value_or(1));
    } else {
      stride_ = std::max(1, world_ / out_.pipeline_ranks);
    }
    if (world_ == 0 || world_ % out_.pipeline_ranks != 0) {
      out_.pipeline_ranks = 1;
      placed_ = false;
      out_.notes.emplace_back("the log prints no world_size and pipeline_model_parallel_size: ranks are not placed");
    }
  }
  int pipeline_rank(std::size_t rank) const {
    return out_.pipeline_ranks == 1 ? 0 : static_cast<int>(rank) / stride_ % out_.pipeline_ranks;
  }

  void sum_compute() {
    const TimerSummary* forward = timer("forward-compute");
    const TimerSummary* backward = timer("backward-compute");
    if (forward == nullptr || backward == nullptr) {
      out_.notes.emplace_back(
          "no forward-compute and backward-compute: Megatron-LM has them with --timing-log-level 2");
      return;
    }
    if (forward->ranks_s.empty() || forward->ranks_s.size() != backward->ranks_s.size()) {
      out_.notes.emplace_back("slow ranks can be named with --timing-log-option all");
      return;
    }
    out_.notes.emplace_back(
        "timers of level 2 wait for the device at their ends, which makes logged iterations slower than others");
    const TimerSummary* both = timer("forward-backward");
    std::vector<std::vector<double>> idle(to_size(out_.pipeline_ranks));
    for (std::size_t rank = 0; rank < forward->ranks_s.size(); ++rank) {
      out_.compute_s.push_back(forward->ranks_s[rank] + backward->ranks_s[rank]);
      if (both != nullptr && rank < both->ranks_s.size() && both->ranks_s[rank] > 0) {
        idle[to_size(pipeline_rank(rank))].push_back(1 - out_.compute_s[rank] / both->ranks_s[rank]);
      }
    }
    if (both == nullptr || both->ranks_s.empty()) return;
    for (std::vector<double>& each : idle) out_.idle_fraction.push_back(median(std::move(each)));
  }

  std::vector<double> of_pipeline_rank(int at, std::optional<std::size_t> without) const {
    std::vector<double> out;
    for (std::size_t rank = 0; rank < out_.compute_s.size(); ++rank) {
      if (rank != without && pipeline_rank(rank) == at && out_.compute_s[rank] > 0) out.push_back(out_.compute_s[rank]);
    }
    return out;
  }

  void find_stages() {
    std::vector<double> times;
    for (int at = 0; at < out_.pipeline_ranks; ++at) times.push_back(lower_median(of_pipeline_rank(at, std::nullopt)));
    for (std::size_t at = 0; at < times.size() && times.size() > 1; ++at) {
      std::vector<double> others = times;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(at));
      const double usual = lower_median(others);
      if (usual <= 0 || times[at] <= kSlowRank * usual) continue;
      out_.causes.push_back({"stage",
                             fmt::format("pipeline rank {}: forward and backward take {:.2f} times those of others", at,
                                         times[at] / usual),
                             times[at] - usual, static_cast<std::int64_t>(at)});
    }
  }

  void find_workers() {
    for (std::size_t rank = 0; rank < out_.compute_s.size(); ++rank) {
      const double usual = lower_median(of_pipeline_rank(pipeline_rank(rank), rank));
      if (usual <= 0 || out_.compute_s[rank] <= kSlowRank * usual) continue;
      const std::string place = placed_ ? fmt::format(" (pipeline rank {})", pipeline_rank(rank)) : "";
      out_.causes.push_back({"worker",
                             fmt::format("rank {}{}: forward and backward take {:.2f} times those of {}", rank, place,
                                         out_.compute_s[rank] / usual,
                                         placed_ ? "ranks with the same stages" : "other ranks, of whatever stages"),
                             out_.compute_s[rank] - usual, static_cast<std::int64_t>(rank)});
    }
  }

  std::string name_of_iteration(std::size_t index) const {
    return log_.iterations[index] > 0 ? std::to_string(log_.iterations[index])
                                      : fmt::format("{} of the log", index + 1);
  }

  // The timer of an iteration that rose most above its median; empty without timers.
  std::string rose_most(std::size_t index) const {
    const auto table = std::find_if(log_.tables.begin(), log_.tables.end(),
                                    [&](const TimerTable& each) { return each.iteration == index; });
    if (table == log_.tables.end()) return "";
    const LoggedTimer* most = nullptr;
    double rise = 0;
    for (const LoggedTimer& each : table->timers) {
      const bool whole = each.name == "forward-backward" && timer("forward-compute") != nullptr;  // contains the others
      const TimerSummary* usual = timer(each.name);
      if (whole || usual == nullptr || each.max_s - usual->max_s <= rise) continue;
      most = &each;
      rise = each.max_s - usual->max_s;
    }
    return most == nullptr ? "" : fmt::format("; {} rose most, by {:.3f} s", most->name, rise);
  }

  void find_iterations() {
    double excess = 0;
    int count = 0;
    std::size_t slowest = out_.left_out;
    for (std::size_t i = out_.left_out; i < log_.seconds.size(); ++i) {
      if (log_.seconds[i] > log_.seconds[slowest]) slowest = i;
      if (log_.seconds[i] <= kSlowIteration * out_.median_s) continue;
      excess += log_.seconds[i] - out_.median_s;
      ++count;
    }
    if (count == 0) return;
    out_.causes.push_back(
        {"iterations",
         fmt::format("{} of {} iterations take over {:.1f} times the median; iteration {} {:.2f} times{}", count,
                     log_.seconds.size() - out_.left_out, kSlowIteration, name_of_iteration(slowest),
                     log_.seconds[slowest] / out_.median_s, rose_most(slowest)),
         excess / static_cast<double>(log_.seconds.size() - out_.left_out), log_.iterations[slowest]});
  }

  const MegatronLog& log_;
  TimerAnalysis out_;
  int world_ = 0;
  bool placed_ = true;  // whether the pipeline ranks of ranks are known
  int stride_ = 1;      // between ranks of neighbouring pipeline ranks
};

}  // namespace

TimerAnalysis analyse_timers(const MegatronLog& log, bool all_steps) { return TimerAnalyst(log, all_steps).analyse(); }

std::string timers_text(const TimerAnalysis& analysis, std::size_t top) {
  std::string out;
  const auto line = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
    out += '\n';
  };
  line("why an iteration takes {:.4f} s: {}", analysis.median_s,
       analysis.causes.empty() ? "no cause found" : "causes by their excess");
  for (std::size_t i = 0; i < std::min(top, analysis.causes.size()); ++i) {
    const TimerCause& cause = analysis.causes[i];
    line("  {:>8.4f} s/iteration  {:<11} {}", cause.excess_s, cause.kind, cause.what);
  }
  if (analysis.causes.size() > top) line("  and {} more (--top)", analysis.causes.size() - top);
  out += '\n';
  line("Megatron-LM log: {} iterations, {} with timers{}", analysis.iterations, analysis.tables,
       analysis.pipeline_ranks > 1 ? fmt::format(", {} pipeline ranks", analysis.pipeline_ranks) : "");
  for (const std::string& note : analysis.notes) line("note: {}", note);
  line("iteration: median {:.4f} s, 5 % below {:.4f} s, 5 % above {:.4f} s", analysis.median_s, analysis.fast_s,
       analysis.slow_s);
  line("\n{:<36} {:>10} {:>10} {:>11}", "timer, s per iteration (medians)", "min rank", "max rank", "of the max");
  for (const TimerSummary& timer : analysis.timers) {
    line("{:<36} {:>10.4f} {:>10.4f} {:>9.1f} %", timer.name, timer.min_s, timer.max_s,
         100 * timer.max_s / analysis.median_s);
  }
  if (!analysis.idle_fraction.empty()) {
    line("\nidle or communicating within forward-backward, by pipeline rank");
    for (std::size_t at = 0; at < analysis.idle_fraction.size(); ++at) {
      line("  {:<5} {:>5.1f} %", at, 100 * analysis.idle_fraction[at]);
    }
  }
  return out;
}

nlohmann::ordered_json timers_document(const TimerAnalysis& analysis) {
  nlohmann::ordered_json out;
  out["schema"] = "sluice.timers/1";
  out["source"] = analysis.source;
  out["iterations"] = {{"read", analysis.iterations},     {"left_out", analysis.left_out},
                       {"with_timers", analysis.tables},  {"median_s", analysis.median_s},
                       {"quantile_5_s", analysis.fast_s}, {"quantile_95_s", analysis.slow_s}};
  out["pipeline_ranks"] = analysis.pipeline_ranks;
  out["timers"] = nlohmann::ordered_json::array();
  for (const TimerSummary& timer : analysis.timers) {
    out["timers"].push_back(
        {{"name", timer.name}, {"min_s", timer.min_s}, {"max_s", timer.max_s}, {"ranks_s", timer.ranks_s}});
  }
  out["idle_fraction"] = analysis.idle_fraction;
  out["causes"] = nlohmann::ordered_json::array();
  for (const TimerCause& cause : analysis.causes) {
    nlohmann::ordered_json row = {{"kind", cause.kind}, {"what", cause.what}, {"excess_s", cause.excess_s}};
    row[cause.kind == "stage" ? "pipeline_rank" : cause.kind == "worker" ? "rank" : "iteration"] = cause.at;
    out["causes"].push_back(std::move(row));
  }
  out["notes"] = analysis.notes;
  return out;
}

}  // namespace sluice::tools

#include "traces/measured/causes_of_slowness.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "model/to_size.h"
#include "traces/measured/replay.h"

namespace sluice::traces {
namespace {

constexpr int kCauseLanes = 8;
constexpr double kSlowerBy = 1.01;        // a worker or a rank
constexpr double kLinkSlowerBy = 1.2;     // a link
constexpr double kPauseOfStep = 0.005;    // a pause is longer than this fraction of its step,
constexpr double kPauseOfPass = 0.3;      // than this fraction of its pass,
constexpr double kPauseOfNoise = 8;       // and than this many median absolute deviations
constexpr double kWorthNaming = 0.001;    // of a step
constexpr std::size_t kMostPauses = 200;  // are replayed

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The lower median: of two values, the smaller.
double lower_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Factors of the durations of all classes of ops (worker, chunk, kind), and why.
struct Variant {
  SlowCause cause;
  std::vector<double> factor;
};

class SlownessAnalysis {
 public:
  SlownessAnalysis(const MeasuredRun& run, const std::vector<StepGraph>& graphs)
      : run_(run), graphs_(graphs), classes_(to_size(run.workers()) * to_size(run.chunks) * kNumMeasuredKinds) {}

  Counterfactuals result() {
    find_typical();
    replay_whole();
    add_stages();
    add_workers();
    add_links();
    replay_variants();
    add_sequence_lengths();
    add_collectives();
    add_pauses();
    add_host();
    out_.measured = mean_of(measured_);
    std::erase_if(out_.causes,
                  [&](const SlowCause& cause) { return cause.saved_seconds < kWorthNaming * out_.measured; });
    std::stable_sort(out_.causes.begin(), out_.causes.end(),
                     [](const SlowCause& a, const SlowCause& b) { return a.saved_seconds > b.saved_seconds; });
    return std::move(out_);
  }

 private:
  std::size_t class_of(int worker, int chunk, MeasuredKind kind) const {
    return (to_size(worker) * to_size(run_.chunks) + to_size(chunk)) * kNumMeasuredKinds +
           to_size(static_cast<int>(kind));
  }
  std::size_t class_of(const MeasuredOp& op) const { return class_of(op.worker, op.chunk, op.kind); }

  template <typename OnOp>
  void for_each_op(const OnOp& on_op) const {
    for (const StepGraph& graph : graphs_) {
      for (std::size_t p = 0; p < graph.size(); ++p) on_op(graph, p);
    }
  }

  void find_typical() {
    std::vector<std::vector<double>> times(classes_);
    std::vector<std::vector<double>> delays(classes_);
    for_each_op([&](const StepGraph& graph, std::size_t p) {
      times[class_of(*graph.ops[p])].push_back(graph.transfer[p]);
      delays[class_of(*graph.ops[p])].push_back(graph.delay[p]);
    });
    for (std::size_t i = 0; i < classes_; ++i) {
      typical_.push_back(lower_median(times[i]));
      typical_delay_.push_back(lower_median(std::move(delays[i])));
      for (double& time : times[i]) time = std::abs(time - typical_[i]);
      noise_.push_back(lower_median(std::move(times[i])));
    }
    // Of a rank, chunk and kind: over its replicas and shards.
    of_rank_.assign(to_size(run_.ranks) * to_size(run_.chunks) * kNumMeasuredKinds, 0);
    for (int rank = 0; rank < run_.ranks; ++rank) {
      for (int chunk = 0; chunk < run_.chunks; ++chunk) {
        for (int kind = 0; kind < kNumMeasuredKinds; ++kind) {
          std::vector<double> values;
          for (int replica = 0; replica < run_.replicas; ++replica) {
            for (int shard = 0; shard < run_.shards; ++shard) {
              values.push_back(
                  typical_[class_of(run_.worker(replica, rank, shard), chunk, static_cast<MeasuredKind>(kind))]);
            }
          }
          rank_time(rank, chunk, kind) = lower_median(std::move(values));
        }
      }
    }
  }
  double& rank_time(int rank, int chunk, int kind) {
    return of_rank_[(to_size(rank) * to_size(run_.chunks) + to_size(chunk)) * kNumMeasuredKinds + to_size(kind)];
  }
  // Of all chunks of a rank.
  double rank_time(int rank, int kind) {
    double sum = 0;
    for (int chunk = 0; chunk < run_.chunks; ++chunk) sum += rank_time(rank, chunk, kind);
    return sum;
  }

  template <typename Duration>
  double mean_replay(bool delays, const Duration& duration) const {
    double sum = 0;
    for (const StepGraph& graph : graphs_) {
      sum += replay<1>(graph, delays, [&](std::size_t p, int) { return duration(graph, p); })[0];
    }
    return sum / 1e9 / static_cast<double>(graphs_.size());
  }

  void replay_whole() {
    for (const StepGraph& graph : graphs_) {
      double end = 0;
      for (const MeasuredOp* op : graph.ops) end = std::max(end, static_cast<double>(op->end.count()));
      measured_.push_back(end / 1e9);
      base_.push_back(replay<1>(graph, true, [&](std::size_t p, int) { return graph.transfer[p]; })[0] / 1e9);
    }
    out_.replayed = mean_of(base_);
    out_.no_delays = mean_replay(false, [](const StepGraph& graph, std::size_t p) { return graph.transfer[p]; });
    out_.free_transfers = mean_replay(true, [](const StepGraph& graph, std::size_t p) {
      return is_pipeline_transfer(graph.ops[p]->kind) ? 0 : graph.transfer[p];
    });
    std::array<double, kNumMeasuredKinds> even{};
    for (int kind = 0; kind < kNumMeasuredKinds; ++kind) {
      for (int rank = 0; rank < run_.ranks; ++rank) even[to_size(kind)] += rank_time(rank, kind) / run_.ranks;
    }
    out_.equal_stages = mean_replay(true, [&](const StepGraph& graph, std::size_t p) {
      const MeasuredOp& op = *graph.ops[p];
      const auto kind = static_cast<int>(op.kind);
      const double own = rank_time(run_.rank_of(op.worker), kind);
      return !is_pass(op.kind) || own == 0 ? graph.transfer[p] : graph.transfer[p] * even[to_size(kind)] / own;
    });
  }

  Variant new_variant(SlowCause::Kind kind, int worker) const {
    return {.cause = {.kind = kind, .what = {}, .worker = worker}, .factor = std::vector<double>(classes_, 1.0)};
  }

  // Returns "forward 1.10 and backward 1.12 times" for the kinds of passes with these ratios.
  static std::string ratios_text(const std::array<double, 4>& ratio) {
    constexpr std::string_view kPassNames[] = {"forward", "backward", "input gradient", "weight gradient"};
    std::string text;
    for (std::size_t kind = 0; kind < ratio.size(); ++kind) {
      if (ratio[kind] <= 0) continue;
      text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", kPassNames[kind], ratio[kind]);
    }
    return text;
  }

  void add_stages() {
    if (run_.ranks < 2) return;
    for (int rank = 0; rank < run_.ranks; ++rank) {
      Variant variant = new_variant(SlowCause::Kind::stage, run_.worker(0, rank));
      std::array<double, 4> ratio{};
      bool slower = false;
      for (int kind = 0; kind < 4; ++kind) {
        std::vector<double> others;
        for (int other = 0; other < run_.ranks; ++other) {
          if (other != rank) others.push_back(rank_time(other, kind));
        }
        const double usual = lower_median(std::move(others));
        const double own = rank_time(rank, kind);
        if (usual <= 0 || own <= 0) continue;
        ratio[to_size(kind)] = own / usual;
        if (own < usual * kSlowerBy) continue;
        slower = true;
        for_workers_of(rank, [&](int worker) {
          for (int chunk = 0; chunk < run_.chunks; ++chunk) {
            variant.factor[class_of(worker, chunk, static_cast<MeasuredKind>(kind))] = usual / own;
          }
        });
      }
      if (!slower) continue;
      variant.cause.what = fmt::format(
          "rank {}: passes take longer than on other ranks ({} times){}", rank, ratios_text(ratio),
          run_.replicas > 1 ? " in all replicas: layers, head or embedding" : ": its layers, or its device");
      variants_.push_back(std::move(variant));
    }
  }

  template <typename OnWorker>
  void for_workers_of(int rank, const OnWorker& on_worker) const {
    for (int replica = 0; replica < run_.replicas; ++replica) {
      for (int shard = 0; shard < run_.shards; ++shard) on_worker(run_.worker(replica, rank, shard));
    }
  }

  void add_workers() {
    if (run_.replicas * run_.shards < 2) return;
    for (int worker = 0; worker < run_.workers(); ++worker) {
      Variant variant = new_variant(SlowCause::Kind::worker, worker);
      std::array<double, 4> own_sum{};
      std::array<double, 4> usual_sum{};
      for (int kind = 0; kind < 4; ++kind) {
        for (int chunk = 0; chunk < run_.chunks; ++chunk) {
          const std::size_t at = class_of(worker, chunk, static_cast<MeasuredKind>(kind));
          const double usual = rank_time(run_.rank_of(worker), chunk, kind);
          own_sum[to_size(kind)] += typical_[at];
          usual_sum[to_size(kind)] += usual;
          if (typical_[at] > usual && usual > 0) variant.factor[at] = usual / typical_[at];
        }
      }
      const double own = std::accumulate(own_sum.begin(), own_sum.end(), 0.0);
      const double usual = std::accumulate(usual_sum.begin(), usual_sum.end(), 0.0);
      if (own < usual * kSlowerBy) continue;
      std::array<double, 4> ratio{};
      for (std::size_t kind = 0; kind < 4; ++kind)
        ratio[kind] = usual_sum[kind] > 0 ? own_sum[kind] / usual_sum[kind] : 0;
      variant.cause.what =
          fmt::format("{}: passes take longer than on its rank elsewhere ({} times): its device or host",
                      run_.name_of(worker), ratios_text(ratio));
      variants_.push_back(std::move(variant));
    }
  }

  // Links between neighbouring ranks, in both directions.
  void add_links() {
    using Direction = std::array<MeasuredKind, 2>;
    constexpr Direction kForward = {MeasuredKind::forward_send, MeasuredKind::forward_receive};
    constexpr Direction kBackward = {MeasuredKind::backward_receive, MeasuredKind::backward_send};
    struct End {
      int worker = 0;
      MeasuredKind kind{};
    };
    const auto ends_of = [&](int replica, int rank, int shard, const Direction& direction) {
      const int next = (rank + 1) % run_.ranks;
      return std::array<End, 2>{End{run_.worker(replica, rank, shard), direction[0]},
                                End{run_.worker(replica, next, shard), direction[1]}};
    };
    const auto time_of = [&](const End& end) {
      double sum = 0;
      int count = 0;
      for (int chunk = 0; chunk < run_.chunks; ++chunk) {
        const double time = typical_[class_of(end.worker, chunk, end.kind)];
        sum += time;
        count += time > 0 ? 1 : 0;
      }
      return count == 0 ? 0 : sum / count;
    };
    const auto for_each_link = [&](const auto& on_link) {
      for (int replica = 0; replica < run_.replicas; ++replica) {
        for (int rank = 0; rank < (run_.chunks > 1 ? run_.ranks : run_.ranks - 1); ++rank) {
          for (int shard = 0; shard < run_.shards; ++shard) on_link(replica, rank, shard);
        }
      }
    };
    std::map<MeasuredKind, double> usual;
    for (const Direction& direction : {kForward, kBackward}) {
      for (std::size_t side = 0; side < 2; ++side) {
        std::vector<double> values;
        for_each_link([&](int replica, int rank, int shard) {
          const double time = time_of(ends_of(replica, rank, shard, direction)[side]);
          if (time > 0) values.push_back(time);
        });
        usual[direction[side]] = lower_median(std::move(values));
      }
    }
    for_each_link([&](int replica, int rank, int shard) {
      Variant variant = new_variant(SlowCause::Kind::link, run_.worker(replica, rank, shard));
      double worst = 0;
      for (const Direction& direction : {kForward, kBackward}) {
        for (const End& end : ends_of(replica, rank, shard, direction)) {
          const double own = time_of(end);
          if (own <= 0 || usual[end.kind] <= 0) continue;
          worst = std::max(worst, own / usual[end.kind]);
          if (own < usual[end.kind]) continue;
          for (int chunk = 0; chunk < run_.chunks; ++chunk) {
            variant.factor[class_of(end.worker, chunk, end.kind)] = usual[end.kind] / own;
          }
        }
      }
      if (worst < kLinkSlowerBy) return;
      variant.cause.what = fmt::format("transfers between {} and rank {}: {:.2f} times the typical ones",
                                       run_.name_of(run_.worker(replica, rank, shard)), (rank + 1) % run_.ranks, worst);
      variants_.push_back(std::move(variant));
    });
  }

  void replay_variants() {
    for (std::size_t begin = 0; begin < variants_.size(); begin += kCauseLanes) {
      const std::size_t count = std::min<std::size_t>(kCauseLanes, variants_.size() - begin);
      std::vector<std::array<double, kCauseLanes>> factor(classes_);
      for (std::size_t i = 0; i < classes_; ++i) {
        for (std::size_t k = 0; k < count; ++k) factor[i][k] = variants_[begin + k].factor[i];
      }
      std::array<double, kCauseLanes> sum{};
      for (const StepGraph& graph : graphs_) {
        const auto last = replay<kCauseLanes>(graph, true, [&](std::size_t p, int k) {
          return graph.transfer[p] * factor[class_of(*graph.ops[p])][to_size(k)];
        });
        for (std::size_t k = 0; k < count; ++k) sum[k] += last[k] / 1e9;
      }
      for (std::size_t k = 0; k < count; ++k) {
        SlowCause& cause = variants_[begin + k].cause;
        cause.saved_seconds = out_.replayed - sum[k] / static_cast<double>(graphs_.size());
        out_.causes.push_back(std::move(cause));
      }
    }
    variants_.clear();
  }

  // By step, replica and microbatch: the median, over ranks and kinds, of the time of its passes over their typical
  // one.
  void find_lengths() {
    lengths_.assign(graphs_.size() * to_size(run_.replicas) * to_size(most_microbatches()), 1.0);
    std::vector<std::vector<double>> ratios(lengths_.size());
    for (std::size_t step = 0; step < graphs_.size(); ++step) {
      const StepGraph& graph = graphs_[step];
      for (std::size_t p = 0; p < graph.size(); ++p) {
        const MeasuredOp& op = *graph.ops[p];
        const double typical = typical_[class_of(op)];
        if (!is_pass(op.kind) || op.microbatch < 0 || typical <= 0) continue;
        ratios[length_slot(step, op)].push_back(graph.transfer[p] / typical);
      }
    }
    for (std::size_t i = 0; i < ratios.size(); ++i) {
      if (ratios[i].size() >= 3) lengths_[i] = lower_median(std::move(ratios[i]));
    }
  }
  int most_microbatches() const {
    int most = 1;
    for_each_op([&](const StepGraph& graph, std::size_t p) { most = std::max(most, graph.ops[p]->microbatch + 1); });
    return most;
  }
  std::size_t length_slot(std::size_t step, const MeasuredOp& op) const {
    const std::size_t per_step = lengths_.size() / graphs_.size();
    const std::size_t microbatches = per_step / to_size(run_.replicas);
    return step * per_step + to_size(run_.replica_of(op.worker)) * microbatches + to_size(op.microbatch);
  }

  void add_sequence_lengths() {
    find_lengths();
    double sum = 0;
    double least = lengths_[0];
    double most = lengths_[0];
    for (std::size_t step = 0; step < graphs_.size(); ++step) {
      const StepGraph& graph = graphs_[step];
      const std::size_t per_step = lengths_.size() / graphs_.size();
      const std::span<const double> of_step = std::span(lengths_).subspan(step * per_step, per_step);
      const double even = mean_of(of_step);
      least = std::min(least, *std::min_element(of_step.begin(), of_step.end()));
      most = std::max(most, *std::max_element(of_step.begin(), of_step.end()));
      sum += replay<1>(graph, true, [&](std::size_t p, int) {
        const MeasuredOp& op = *graph.ops[p];
        if (!is_pass(op.kind) || op.microbatch < 0) return graph.transfer[p];
        return graph.transfer[p] * even / lengths_[length_slot(step, op)];
      })[0];
    }
    out_.causes.push_back(
        {.kind = SlowCause::Kind::sequence_lengths,
         .what = fmt::format("microbatches differ in length on all ranks alike: {:.2f} to {:.2f} of the typical time",
                             least, most),
         .saved_seconds = out_.replayed - sum / 1e9 / static_cast<double>(graphs_.size())});
  }

  void add_collectives() {
    for (const MeasuredKind kind :
         {MeasuredKind::parameter_gather, MeasuredKind::gradient_scatter, MeasuredKind::layernorm_reduce,
          MeasuredKind::embedding_reduce, MeasuredKind::separate_reduce, MeasuredKind::clip}) {
      std::vector<double> times;
      for_each_op([&](const StepGraph& graph, std::size_t p) {
        if (graph.ops[p]->kind == kind) times.push_back(graph.transfer[p]);
      });
      if (times.empty()) continue;
      const double usual = lower_median(times);
      const double without = mean_replay(true, [&](const StepGraph& graph, std::size_t p) {
        return graph.ops[p]->kind == kind ? std::min(graph.transfer[p], usual) : graph.transfer[p];
      });
      out_.causes.push_back({.kind = SlowCause::Kind::collectives,
                             .what = fmt::format("{}: up to {:.1f} ms, typically {:.1f} ms",
                                                 kMeasuredKindNames[to_size(static_cast<int>(kind))],
                                                 *std::max_element(times.begin(), times.end()) / 1e6, usual / 1e6),
                             .saved_seconds = out_.replayed - without});
    }
  }

  // A pass that took longer than its worker, chunk and microbatch explain, or a delay before an op.
  struct Pause {
    std::size_t step = 0;
    std::size_t position = 0;
    double excess = 0;  // ns
    bool before = false;
  };

  void add_pauses() {
    std::vector<Pause> pauses;
    for (std::size_t step = 0; step < graphs_.size(); ++step) {
      const StepGraph& graph = graphs_[step];
      const double least = kPauseOfStep * base_[step] * 1e9;
      for (std::size_t p = 0; p < graph.size(); ++p) {
        const MeasuredOp& op = *graph.ops[p];
        const std::size_t at = class_of(op);
        if (graph.delay[p] - typical_delay_[at] > least) {
          pauses.push_back({step, p, graph.delay[p] - typical_delay_[at], true});
        }
        if (!is_pass(op.kind) && op.kind != MeasuredKind::garbage_collection && op.kind != MeasuredKind::optimizer)
          continue;
        const double length = is_pass(op.kind) && op.microbatch >= 0 ? lengths_[length_slot(step, op)] : 1;
        const double excess = graph.transfer[p] - typical_[at] * length;
        if (excess > least && excess > kPauseOfPass * typical_[at] && excess > kPauseOfNoise * noise_[at]) {
          pauses.push_back({step, p, excess, false});
        }
      }
    }
    std::stable_sort(pauses.begin(), pauses.end(), [](const Pause& a, const Pause& b) { return a.excess > b.excess; });
    if (pauses.size() > kMostPauses) pauses.resize(kMostPauses);
    for (const Pause& pause : pauses) add_pause(pause);
  }

  void add_pause(const Pause& pause) {
    StepGraph shorter = graphs_[pause.step];
    (pause.before ? shorter.delay : shorter.transfer)[pause.position] -= pause.excess;
    const double time = replay<1>(shorter, true, [&](std::size_t p, int) { return shorter.transfer[p]; })[0];
    const StepGraph& graph = graphs_[pause.step];
    const MeasuredOp& op = *graph.ops[pause.position];
    std::string name(kMeasuredKindNames[to_size(static_cast<int>(op.kind))]);
    if (op.microbatch >= 0) name += fmt::format(" of microbatch {}", op.microbatch);
    const std::int64_t step = run_.steps[pause.step];
    out_.causes.push_back({.kind = SlowCause::Kind::pause,
                           .what = fmt::format("{}: a pause of {:.1f} ms {} {} in step {}", run_.name_of(op.worker),
                                               pause.excess / 1e6, pause.before ? "before" : "in", name, step),
                           .worker = op.worker,
                           .step = step,
                           .saved_seconds = (base_[pause.step] - time / 1e9) / static_cast<double>(graphs_.size())});
  }

  // Delays up to their typical length, which pauses leave.
  void add_host() {
    double sum = 0;
    for (const StepGraph& graph : graphs_) {
      StepGraph other = graph;
      for (std::size_t p = 0; p < other.size(); ++p) {
        other.delay[p] -= std::min(other.delay[p], typical_delay_[class_of(*graph.ops[p])]);
      }
      sum += replay<1>(other, true, [&](std::size_t p, int) { return other.transfer[p]; })[0];
    }
    out_.causes.push_back({.kind = SlowCause::Kind::host,
                           .what = "delays before ops of their typical length, by the host or by what was not recorded",
                           .saved_seconds = out_.replayed - sum / 1e9 / static_cast<double>(graphs_.size())});
  }

  const MeasuredRun& run_;
  const std::vector<StepGraph>& graphs_;
  std::size_t classes_;
  std::vector<double> typical_;        // ns, by class
  std::vector<double> typical_delay_;  // ns, by class
  std::vector<double> noise_;          // ns, by class: median absolute deviation
  std::vector<double> of_rank_;        // ns
  std::vector<double> lengths_;
  std::vector<double> measured_;  // s, by step
  std::vector<double> base_;      // s, by step
  std::vector<Variant> variants_;
  Counterfactuals out_;
};

}  // namespace

std::string_view name_of(SlowCause::Kind kind) {
  constexpr std::string_view kNames[] = {"stage", "worker", "link", "pause", "sequence lengths", "collectives", "host"};
  return kNames[static_cast<std::size_t>(kind)];
}

Counterfactuals causes_of_slowness(const MeasuredRun& run, const std::vector<StepGraph>& graphs) {
  return SlownessAnalysis(run, graphs).result();
}

}  // namespace sluice::traces

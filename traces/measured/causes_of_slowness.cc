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

#include "model/median.h"
#include "model/to_size.h"
#include "traces/replay/replay.h"

namespace sluice::traces {
namespace {

constexpr int kCauseLanes = 4;
constexpr double kSlowerBy = 1.01;         // a worker or a rank
constexpr double kLinkSlowerBy = 1.2;      // a link
constexpr double kPauseOfStep = 0.005;     // a pause is longer than this fraction of its step,
constexpr double kPauseOfPass = 0.3;       // than this fraction of its pass,
constexpr double kPauseOfNoise = 8;        // and than this many median absolute deviations
constexpr double kWorthNaming = 0.001;     // of a step
constexpr std::size_t kMostPauses = 100;   // are replayed
constexpr std::size_t kMostVariants = 48;  // of workers, and of links

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
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

  Counterfactuals result(std::optional<int> layers) {
    find_typical();
    replay_whole();
    if (layers && run_.stages() > 1) replay_lighter_last(*layers);
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
  void replay_lighter_last(int layers) {
    const double layers_per_stage = static_cast<double>(layers) / run_.stages();
    std::array<std::vector<double>, kNumMeasuredKinds> others;
    std::pair<int, int> last;  // rank and chunk
    for (int rank = 0; rank < run_.ranks; ++rank) {
      for (int chunk = 0; chunk < run_.chunks; ++chunk) {
        const bool is_last = run_.stage(rank, chunk) == run_.stages() - 1;
        if (is_last) last = {rank, chunk};
        for (std::size_t kind = 0; kind < others.size() && !is_last; ++kind) {
          others[kind].push_back(rank_time(rank, chunk, static_cast<int>(kind)));
        }
      }
    }
    std::array<double, kNumMeasuredKinds> factor{};
    for (std::size_t kind = 0; kind < factor.size(); ++kind) {
      const double own = rank_time(last.first, last.second, static_cast<int>(kind));
      const double layer = lower_median(std::move(others[kind])) / layers_per_stage;
      factor[kind] = own > 0 ? std::max(0.0, 1 - layer / own) : 1;
    }
    out_.lighter_last = mean_replay(true, [&](const StepGraph& graph, std::size_t p) {
      const MeasuredOp& op = *graph.ops[p];
      const bool lighter = is_pass(op.kind) && run_.rank_of(op.worker) == last.first && op.chunk == last.second;
      return graph.transfer[p] * (lighter ? factor[to_size(static_cast<int>(op.kind))] : 1);
    });
  }

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

  // The typical time of the passes of a kind on a rank of a replica, over its chunks: the lower median over its tensor
  // ranks, which wait for each other.
  double own_time(int replica, int rank, int kind) const {
    std::vector<double> values;
    for (int shard = 0; shard < run_.shards; ++shard) {
      double sum = 0;
      for (int chunk = 0; chunk < run_.chunks; ++chunk) {
        sum += typical_[class_of(run_.worker(replica, rank, shard), chunk, static_cast<MeasuredKind>(kind))];
      }
      values.push_back(sum);
    }
    return lower_median(std::move(values));
  }
  // Over the times of the rank in all replicas, by kind of pass; 0 for kinds that do not occur.
  std::array<double, 4> ratios_of(int replica, int rank) {
    std::array<double, 4> ratio{};
    for (int kind = 0; kind < 4; ++kind) {
      const double usual = rank_time(rank, kind);
      if (usual > 0) ratio[to_size(kind)] = own_time(replica, rank, kind) / usual;
    }
    return ratio;
  }
  double ratio_of(int replica, int rank) {
    double own = 0;
    double usual = 0;
    for (int kind = 0; kind < 4; ++kind) {
      own += own_time(replica, rank, kind);
      usual += rank_time(rank, kind);
    }
    return usual > 0 ? own / usual : 1;
  }
  void scale(Variant& variant, int replica, int rank, const std::array<double, 4>& ratio) const {
    for (int shard = 0; shard < run_.shards; ++shard) {
      for (int chunk = 0; chunk < run_.chunks; ++chunk) {
        for (int kind = 0; kind < 4; ++kind) {
          double& factor =
              variant.factor[class_of(run_.worker(replica, rank, shard), chunk, static_cast<MeasuredKind>(kind))];
          if (ratio[to_size(kind)] > 1) factor = 1 / ratio[to_size(kind)];
        }
      }
    }
  }
  std::string name_of_rank(int replica, int rank) const {
    return run_.replicas > 1 ? fmt::format("replica {} rank {}", replica, rank) : fmt::format("rank {}", rank);
  }

  // A replica whose ranks are all slower has longer sequences or a slower network; a single rank has a slower device.
  void add_workers() {
    if (run_.replicas < 2) return;
    Variant all = new_variant(SlowCause::Kind::worker, -1);
    std::size_t slow = 0;
    std::vector<std::tuple<double, int, int>> workers;  // ratio, replica, rank
    for (int replica = 0; replica < run_.replicas; ++replica) {
      std::vector<double> of_ranks;
      for (int rank = 0; rank < run_.ranks; ++rank) of_ranks.push_back(ratio_of(replica, rank));
      const double whole = run_.ranks > 1 ? lower_median(of_ranks) : 1;
      if (whole > kSlowerBy) {
        Variant variant = new_variant(SlowCause::Kind::replica, run_.worker(replica, 0));
        for (int rank = 0; rank < run_.ranks; ++rank) scale(variant, replica, rank, {whole, whole, whole, whole});
        variant.cause.what = fmt::format(
            "replica {}: passes of most ranks take {:.2f} times as long as in other replicas: longer sequences, or its "
            "nodes",
            replica, whole);
        variants_.push_back(std::move(variant));
      }
      for (int rank = 0; rank < run_.ranks; ++rank) {
        const double beyond = of_ranks[to_size(rank)] / std::max(whole, 1.0);
        if (beyond > kSlowerBy) workers.emplace_back(beyond, replica, rank);
      }
    }
    std::sort(workers.rbegin(), workers.rend());
    for (const auto& [beyond, replica, rank] : workers) {
      const std::array<double, 4> ratio = ratios_of(replica, rank);
      std::array<double, 4> own = ratio;
      for (double& each : own) each *= beyond / ratio_of(replica, rank);
      scale(all, replica, rank, own);
      if (++slow > kMostVariants) continue;
      Variant variant = new_variant(SlowCause::Kind::worker, run_.worker(replica, rank));
      scale(variant, replica, rank, own);
      variant.cause.what =
          fmt::format("{}: passes take longer than on this rank elsewhere ({} times): its device or host",
                      name_of_rank(replica, rank), ratios_text(ratio));
      variants_.push_back(std::move(variant));
    }
    if (slow < 2) return;
    all.cause.what = fmt::format("all {} workers that take over {:.0f} % longer than the same rank elsewhere, together",
                                 slow, 100 * (kSlowerBy - 1));
    variants_.push_back(std::move(all));
  }

  // Links between neighbouring ranks, in both directions, of one replica or of all.
  void add_links() {
    if (!run_.stage_of_chunk.empty() && run_.chunks > 1) return;  // links of V placements have no rank of their own
    using Direction = std::array<MeasuredKind, 2>;
    constexpr Direction kDirections[] = {{MeasuredKind::forward_send, MeasuredKind::forward_receive},
                                         {MeasuredKind::backward_receive, MeasuredKind::backward_send}};
    const int links = run_.chunks > 1 ? run_.ranks : run_.ranks - 1;
    // The end of a link at its first (0) or second rank.
    const auto rank_at = [&](int link, std::size_t side) { return (link + static_cast<int>(side)) % run_.ranks; };
    const auto time_of = [&](int replica, int link, const Direction& direction, std::size_t side) {
      std::vector<double> values;
      for (int shard = 0; shard < run_.shards; ++shard) {
        for (int chunk = 0; chunk < run_.chunks; ++chunk) {
          const double time =
              typical_[class_of(run_.worker(replica, rank_at(link, side), shard), chunk, direction[side])];
          if (time > 0) values.push_back(time);
        }
      }
      return lower_median(std::move(values));
    };
    std::vector<std::tuple<double, int, int>> slow;  // how many times slower, replica (-1: all), link
    const auto ratio_of_link = [&](int replica, int link, const Direction& direction, std::size_t side) {
      std::vector<double> values;  // of the link in question, over its replicas
      for (int each = replica < 0 ? 0 : replica; each < (replica < 0 ? run_.replicas : replica + 1); ++each) {
        values.push_back(time_of(each, link, direction, side));
      }
      const double usual = usual_transfer_[direction[side]];
      return usual > 0 ? lower_median(std::move(values)) / usual : 0;
    };
    for (const Direction& direction : kDirections) {
      for (std::size_t side = 0; side < 2; ++side) {
        std::vector<double> values;
        for (int replica = 0; replica < run_.replicas; ++replica) {
          for (int link = 0; link < links; ++link) {
            const double time = time_of(replica, link, direction, side);
            if (time > 0) values.push_back(time);
          }
        }
        usual_transfer_[direction[side]] = lower_median(std::move(values));
      }
    }
    for (int replica = run_.replicas > 1 ? -1 : 0; replica < run_.replicas; ++replica) {
      for (int link = 0; link < links; ++link) {
        double worst = 0;
        for (const Direction& direction : kDirections) {
          for (std::size_t side = 0; side < 2; ++side) {
            worst = std::max(worst, ratio_of_link(replica, link, direction, side));
          }
        }
        if (worst >= kLinkSlowerBy) slow.emplace_back(worst, replica, link);
      }
    }
    std::sort(slow.rbegin(), slow.rend());
    if (slow.size() > kMostVariants) slow.resize(kMostVariants);
    for (const auto& [worst, replica, link] : slow) {
      Variant variant = new_variant(SlowCause::Kind::link, run_.worker(std::max(replica, 0), link));
      for (int each = std::max(replica, 0); each < (replica < 0 ? run_.replicas : replica + 1); ++each) {
        for (const Direction& direction : kDirections) {
          for (std::size_t side = 0; side < 2; ++side) {
            const double ratio = ratio_of_link(each, link, direction, side);
            if (ratio <= 1) continue;
            for (int shard = 0; shard < run_.shards; ++shard) {
              for (int chunk = 0; chunk < run_.chunks; ++chunk) {
                variant.factor[class_of(run_.worker(each, rank_at(link, side), shard), chunk, direction[side])] =
                    1 / ratio;
              }
            }
          }
        }
      }
      variant.cause.what =
          fmt::format("transfers between ranks {} and {}{}: {:.2f} times the typical ones", link, rank_at(link, 1),
                      run_.replicas == 1 ? ""
                      : replica < 0      ? " in all replicas"
                                         : fmt::format(" of replica {}", replica),
                      worst);
      variants_.push_back(std::move(variant));
    }
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
    // Tensor ranks of a worker wait for each other, so that a pause of one is one of all.
    using Key = std::tuple<std::size_t, int, int, MeasuredKind, int, bool>;
    std::map<Key, std::size_t> group_of;
    std::vector<std::vector<Pause>> groups;
    for (const Pause& pause : pauses) {
      const MeasuredOp& op = *graphs_[pause.step].ops[pause.position];
      const Key key{pause.step, run_.replica_of(op.worker), run_.rank_of(op.worker), op.kind, op.number, pause.before};
      const auto [found, is_new] = group_of.try_emplace(key, groups.size());
      if (is_new) groups.emplace_back();
      groups[found->second].push_back(pause);
    }
    if (groups.size() > kMostPauses) groups.resize(kMostPauses);
    for (const std::vector<Pause>& group : groups) add_pause(group);
  }

  void add_pause(const std::vector<Pause>& group) {
    const Pause& pause = group.front();
    StepGraph shorter = graphs_[pause.step];
    for (const Pause& each : group) {
      (each.before ? shorter.delay : shorter.transfer)[each.position] -= each.excess;
    }
    const double time = replay<1>(shorter, true, [&](std::size_t p, int) { return shorter.transfer[p]; })[0];
    const StepGraph& graph = graphs_[pause.step];
    const MeasuredOp& op = *graph.ops[pause.position];
    std::string name(kMeasuredKindNames[to_size(static_cast<int>(op.kind))]);
    if (op.microbatch >= 0) name += fmt::format(" of microbatch {}", op.microbatch);
    const std::int64_t step = run_.steps[pause.step];
    out_.causes.push_back({.kind = SlowCause::Kind::pause,
                           .what = fmt::format("{}: a pause of {:.1f} ms {} {} in step {}",
                                               name_of_rank(run_.replica_of(op.worker), run_.rank_of(op.worker)),
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
  std::map<MeasuredKind, double> usual_transfer_;  // ns
  Counterfactuals out_;
};

}  // namespace

std::string_view name_of(SlowCause::Kind kind) {
  constexpr std::string_view kNames[] = {"stage", "worker",           "replica",     "link",
                                         "pause", "sequence lengths", "collectives", "host"};
  return kNames[static_cast<std::size_t>(kind)];
}

Counterfactuals causes_of_slowness(const MeasuredRun& run, const std::vector<StepGraph>& graphs,
                                   std::optional<int> layers) {
  return SlownessAnalysis(run, graphs).result(layers);
}

}  // namespace sluice::traces

#include "tools/simulate/simulation_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "model/to_size.h"
#include "model/workload/transformer_footprint.h"
#include "tools/command/calibration_warning.h"
#include "tools/simulate/explain_output.h"
#include "tools/simulate/report_run.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kMostPathOps = 1000;  // in JSON; --ops writes all
constexpr double kQuantiles[] = {0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1};

OrderedJson by_class(const BytesByClass& bytes) {
  OrderedJson out = OrderedJson::object();
  for (int i = 0; i < kNumMemoryClasses; ++i) {
    out[std::string(kMemoryClassNames[i])] = bytes[i];
  }
  return out;
}

OrderedJson idle_json(const IdleByCause& idle) {
  OrderedJson out = OrderedJson::object();
  for (std::size_t i = 0; i < idle.size(); ++i) out[std::string(kIdleCauseNames[i]) + "_s"] = to_seconds(idle[i]);
  return out;
}

IdleByCause total_idle(const Prediction& prediction) {
  IdleByCause sum{};
  for (const IdleByCause& rank : prediction.idle) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += rank[i];
  }
  return sum;
}

OrderedJson idle_roots_json(const Setup& setup, const Prediction& prediction) {
  OrderedJson out = OrderedJson::array();
  for (const RootedIdle& each : idle_by_root(setup.graph(), prediction.timeline)) {
    OrderedJson row;
    if (each.root.peer < 0) row["rank"] = each.root.rank;
    if (each.root.peer >= 0) row["link"] = {each.root.rank, each.root.peer};
    row["idle_s"] = to_seconds(each.idle);
    out.push_back(std::move(row));
  }
  return out;
}

OrderedJson critical_path_json(const OpGraph& graph, const Prediction& prediction) {
  const CriticalPath& path = prediction.critical_path;
  OrderedJson out = {{"compute_s", to_seconds(path.compute)},     {"transfer_s", to_seconds(path.transfer)},
                     {"latency_s", to_seconds(path.latency)},     {"collective_s", to_seconds(path.collective)},
                     {"optimizer_s", to_seconds(path.optimizer)}, {"num_ops", path.vertices.size()}};
  OrderedJson ops = OrderedJson::array();
  const std::size_t shown = std::min(path.vertices.size(), kMostPathOps);
  for (std::size_t i = 0; i < shown; ++i) {
    const VertexId v = path.vertices[i];
    ops.push_back({{"op", graph.name(v)},
                   {"rank", graph.rank_of(v)},
                   {"start_s", to_seconds(prediction.timeline.start[v])},
                   {"end_s", to_seconds(prediction.timeline.end[v])}});
  }
  out["ops"] = std::move(ops);
  return out;
}

OrderedJson trials_json(const Perturbation& perturbation, const Trials& trials) {
  OrderedJson out = {{"jitter", to_string(perturbation.jitter)},
                     {"trials", trials.makespans.size()},
                     {"seed", perturbation.seed},
                     {"mean_s", trials.mean_s},
                     {"standard_deviation_s", trials.deviation_s}};
  OrderedJson quantiles = OrderedJson::array();
  // "share" is the fraction of trials that are faster.
  for (const double q : kQuantiles) quantiles.push_back({{"share", q}, {"makespan_s", to_seconds(trials.quantile(q))}});
  out["quantiles"] = std::move(quantiles);
  return out;
}

// Returns for example "warm-up 41 %   drain 49 %", in percent of all idle time, without causes that do not occur.
std::string idle_line(const Prediction& prediction) {
  static constexpr std::array<std::string_view, kNumIdleCauses> kWords = {
      "warm-up", "drain", "waiting for a sender", "waiting for a slice", "waiting for a link", "optimizer", "other"};
  const IdleByCause idle = total_idle(prediction);
  const double all = to_seconds(std::accumulate(idle.begin(), idle.end(), Duration{0}));
  if (all <= 0) return "none";
  std::string out;
  for (std::size_t i = 0; i < idle.size(); ++i) {
    if (idle[i] <= Duration::zero()) continue;
    fmt::format_to(std::back_inserter(out), "{}{} {:.1f} %", out.empty() ? "" : "   ", kWords[i],
                   100 * to_seconds(idle[i]) / all);
  }
  return out;
}

// Returns the ranks and links for which most idle time is, in percent of all idle time that has such a root.
std::string idle_roots_line(const Setup& setup, const Prediction& prediction) {
  constexpr std::size_t kMost = 4;
  const std::vector<RootedIdle> roots = idle_by_root(setup.graph(), prediction.timeline);
  double all = 0;
  for (const RootedIdle& each : roots) all += to_seconds(each.idle);
  if (all <= 0) return "none";
  std::string out;
  for (std::size_t i = 0; i < std::min(roots.size(), kMost); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{} {:.1f} %", i == 0 ? "" : "   ", to_string(roots[i].root),
                   100 * to_seconds(roots[i].idle) / all);
  }
  return roots.size() > kMost ? out + "   ..." : out;
}

// Returns for example "F0@0", or with chunks "F0@0:1" for chunk 1 of rank 0, and with slices "F0.2@0".
std::string path_op(const OpGraph& graph, VertexId v) {
  const Vertex& vertex = graph[v];
  const Schedule& schedule = graph.schedule();
  if (vertex.kind == VertexKind::collective) return std::string(name_of(graph.collective(vertex).kind));
  std::string out = "optimizer";
  if (vertex.kind != VertexKind::optimizer) {
    out = fmt::format("{}{}", letter(vertex.op), vertex.microbatch);
    if (schedule.sliced()) out += fmt::format(".{}", vertex.slice);
  }
  const int rank = graph.rank_of(v);
  out += fmt::format("@{}", rank);
  if (schedule.stages_of(rank).size() > 1) out += fmt::format(":{}", schedule.chunk_of(rank, vertex.stage));
  return out;
}

// Returns for example "F0@0 → F0@1 → … → B7@0   (97 % compute, 3 % transfers)".
std::string path_line(const OpGraph& graph, const Prediction& prediction) {
  constexpr std::size_t kEnds = 5;  // ops shown at either end
  const CriticalPath& path = prediction.critical_path;
  std::vector<VertexId> ops;
  for (const VertexId v : path.vertices) {
    const VertexKind kind = graph[v].kind;
    if (kind != VertexKind::transfer && kind != VertexKind::recompute) ops.push_back(v);
  }
  std::string out;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops.size() > 2 * kEnds && i == kEnds) {
      out += " → …";
      i = ops.size() - kEnds;
    }
    out += (out.empty() ? "" : " → ") + path_op(graph, ops[i]);
  }
  const double all = to_seconds(prediction.metrics.makespan);
  if (all <= 0) return out;
  out += graph.schedule().stages_of(0).size() > 1 ? "   (op@rank:chunk; " : "   (";
  bool first = true;
  const auto add = [&](Duration part, std::string_view name) {
    if (part <= Duration::zero()) return;
    fmt::format_to(std::back_inserter(out), "{}{:.1f} % {}", first ? "" : ", ", 100 * to_seconds(part) / all, name);
    first = false;
  };
  add(path.compute, "compute");
  add(path.transfer + path.latency, "transfers");
  add(path.collective, "collectives");
  add(path.optimizer, "optimizer");
  return out + ")";
}

// Returns the host memory of a GPU of the rank with most of it.
std::int64_t most_host_bytes(const Setup& setup) {
  std::int64_t most = 0;
  const Scenario& scenario = setup.scenario();
  if (!scenario.model || scenario.training.optimizer_offload == 0) return most;
  const Schedule& schedule = setup.schedule();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    std::int64_t bytes = 0;
    for (const int stage : schedule.stages_of(rank)) {
      bytes += offloaded_bytes(*scenario.model, scenario.training, setup.stages()[to_size(stage)]);
    }
    most = std::max(most, bytes);
  }
  return most;
}

// Returns the free or missing memory, and the configurations that would fit.
std::string fit_text(const Prediction& prediction, std::span<const Remedy> remedies) {
  const Fit& fit = *prediction.fit;
  const auto capacity = static_cast<double>(fit.capacity_bytes);
  const double free = capacity - static_cast<double>(fit.needed_bytes);
  if (fit.fits) return fmt::format(", {:.1f} GiB free", free / kGiB);
  std::string out =
      fmt::format("\n  exceeds the device memory by {:.1f} GiB ({:.1f} %)", -free / kGiB, -100 * free / capacity);
  const double seconds = prediction.corrected ? prediction.corrected->seconds : to_seconds(prediction.iteration);
  out += remedies.empty() ? "; none of the changes tried makes it fit" : "; fits with";
  for (const Remedy& remedy : remedies) {
    fmt::format_to(std::back_inserter(out), "\n    {:<48} {:>6.1f} GiB  {:.2f}x the time", remedy.flags,
                   static_cast<double>(remedy.needed_bytes) / kGiB, remedy.iteration_s / seconds);
  }
  return out;
}

OrderedJson automatic_json(const AutoResult& automatic) {
  OrderedJson out = {{"lower_bound_s", to_seconds(automatic.lower_bound)},
                     {"gap", automatic.gap()},
                     {"found_by", automatic.found_by},
                     {"placement", automatic.placement},
                     {"first_makespan_s", to_seconds(automatic.first_makespan)},
                     {"first_seconds", automatic.first_seconds},
                     {"seconds", automatic.seconds},
                     {"evaluations", automatic.evaluations}};
  if (!automatic.best_family.empty()) {
    out["best_family"] = automatic.best_family;
    out["best_family_makespan_s"] = to_seconds(automatic.best_family_makespan);
  }
  return out;
}

// Returns null for a value that is not known, which predictions have as 0.
OrderedJson known(double value) { return value > 0 ? OrderedJson(value) : OrderedJson(nullptr); }

OrderedJson ranks_json(const Setup& setup, const Prediction& prediction) {
  const Schedule& schedule = setup.schedule();
  const bool bytes = setup.graph().has_bytes();
  const auto if_bytes = [&](OrderedJson value) { return bytes ? std::move(value) : OrderedJson(nullptr); };
  OrderedJson ranks = OrderedJson::array();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const RankMetrics& of = prediction.metrics.ranks[rank];
    const RankMemory& memory = prediction.memory[rank];
    ranks.push_back({{"rank", rank},
                     {"busy_s", to_seconds(of.busy)},
                     {"peak_in_flight", of.peak_in_flight},
                     {"peak_memory_bytes", if_bytes(memory.peak_bytes)},
                     {"peak_memory_at_s", if_bytes(to_seconds(memory.peak_time))},
                     {"memory_at_peak_bytes", if_bytes(by_class(memory.at_peak))},
                     {"weight_versions", num_weight_versions(schedule, rank)},
                     {"first_start_s", to_seconds(of.first_start)},
                     {"last_end_s", to_seconds(of.last_end)},
                     {"idle", idle_json(prediction.idle[rank])}});
  }
  return ranks;
}

OrderedJson calibration_json(const Scenario& scenario, const Correction::Interval& corrected) {
  const Correction& correction = *scenario.correction;
  OrderedJson out = {
      {"scale", correction.scale},        {"fixed_s", correction.fixed_s}, {"measurements", correction.measurements},
      {"iteration_s", corrected.seconds}, {"low_s", corrected.low_s},      {"high_s", corrected.high_s},
      {"confidence", kConfidence}};
  const std::string warning = calibration_warning(scenario);
  if (!warning.empty()) out["warning"] = warning;
  return out;
}

OrderedJson fit_json(const Fit& fit, std::int64_t host_bytes, std::span<const Remedy> remedies) {
  OrderedJson out = {{"rank", fit.rank},
                     {"needed_bytes", fit.needed_bytes},
                     {"capacity_bytes", fit.capacity_bytes},
                     {"headroom_bytes", fit.capacity_bytes - fit.needed_bytes}};
  if (host_bytes > 0) out["host_bytes"] = host_bytes;
  if (fit.fits) return out;
  out["would_fit"] = OrderedJson::array();
  for (const Remedy& remedy : remedies) {
    out["would_fit"].push_back(
        {{"flags", remedy.flags}, {"iteration_s", remedy.iteration_s}, {"needed_bytes", remedy.needed_bytes}});
  }
  return out;
}

// "1f1b: 4 ranks x 1 chunks, 8 microbatches; gpt3-175b: tp 8, pp 16, dp 8; 128 x dgx-a100".
std::string setting_line(const Setup& setup) {
  const Schedule& schedule = setup.schedule();
  std::string out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "{}: {} x {}, {}", schedule_name(setup), counted(schedule.num_ranks(), "rank", "s"),
                 counted(schedule.num_chunks(), "chunk", "s"),
                 counted(schedule.num_microbatches(), "microbatch", "es"));
  if (schedule.sliced()) fmt::format_to(to, " x {} slices", schedule.max_slices());
  if (schedule.num_batches() > 1) fmt::format_to(to, ", {} batches", schedule.num_batches());
  if (setup.scenario().model) {
    const Training& training = setup.scenario().training;
    fmt::format_to(to, "; {}: tp {}, pp {}, dp {}", setup.scenario().model->name, training.tp, training.pp,
                   training.dp);
    if (training.cp > 1) fmt::format_to(to, ", cp {}", training.cp);
    if (training.ep > 1) fmt::format_to(to, ", ep {}", training.ep);
  }
  if (setup.scenario().cluster) {
    const Cluster& cluster = *setup.scenario().cluster;
    const std::int64_t used = setup.scenario().training.world_size();
    fmt::format_to(to, "; {}", used);
    if (used != cluster.num_gpus()) fmt::format_to(to, " of {}", cluster.num_gpus());
    fmt::format_to(to, " GPUs, {} x {}", cluster.nodes, cluster.name);
  }
  return out;
}

// The fraction of ops or of time on the critical path from which on a rank or a link is named.
constexpr double kMostOfThePath = 0.5;
constexpr double kMuchOfThePath = 0.1;  // of its time, for a link

// Returns "; without its slowdown the iteration takes 29.1 s", predicted with the perturbation that `change` leaves;
// empty if it changes nothing.
template <typename Change>
std::string without_slowdown(const Setup& setup, const Change& change) {
  Scenario scenario = setup.scenario();
  scenario.perturbation.jitter = {};
  scenario.perturbation.trials = 0;
  if (!change(scenario.perturbation)) return "";
  const Setup other(scenario, setup.schedule());
  const double seconds = predict(other).iteration_s();
  return fmt::format("; without its slowdown the iteration takes {}", time_text(from_seconds(seconds, "iteration")));
}

// Returns one line if more than half of the ops on the critical path are on one rank that has more work than the
// others; otherwise "".
std::string culprit_rank_line(const Setup& setup, const Prediction& prediction) {
  const OpGraph& graph = setup.graph();
  std::vector<int> count(prediction.metrics.ranks.size(), 0);
  int ops = 0;
  for (const VertexId v : prediction.critical_path.vertices) {
    if (graph[v].kind != VertexKind::compute && graph[v].kind != VertexKind::joint) continue;
    ++count[static_cast<std::size_t>(graph.rank_of(v))];
    ++ops;
  }
  const auto most = std::max_element(count.begin(), count.end());
  const auto rank = most - count.begin();
  if (count.size() < 2 || *most <= kMostOfThePath * ops) return "";
  const Duration busy = prediction.metrics.ranks[static_cast<std::size_t>(rank)].busy;
  Duration others{};
  for (std::size_t r = 0; r < count.size(); ++r) {
    if (static_cast<std::ptrdiff_t>(r) != rank) others = std::max(others, prediction.metrics.ranks[r].busy);
  }
  constexpr double kMoreWork = 1.01;
  if (to_seconds(busy) <= kMoreWork * to_seconds(others)) return "";
  return fmt::format("  rank {} carries {} of {} ops of the critical path{}\n", rank, *most, ops,
                     without_slowdown(setup, [&](Perturbation& perturbation) {
                       return std::erase_if(perturbation.slow_ranks,
                                            [&](const auto& slow) { return slow.rank == rank && slow.factor > 1; }) > 0;
                     }));
}

// The same for a link with more than half of the time of all transfers on the path, and a tenth of its time.
std::string culprit_link_line(const Setup& setup, const Prediction& prediction) {
  const OpGraph& graph = setup.graph();
  const Timeline& timeline = prediction.timeline;
  std::map<std::pair<int, int>, std::pair<Duration, int>> links;  // by ranks: time and number of transfers
  const auto& path = prediction.critical_path;
  for (const VertexId v : path.vertices) {
    if (graph[v].kind != VertexKind::transfer) continue;
    const Lane& lane = graph.lanes()[graph[v].lane];
    auto& [time, count] = links[std::minmax(lane.rank, lane.peer)];
    time += timeline.arrival(graph, v) - timeline.start[v];
    ++count;
  }
  const auto most = std::max_element(links.begin(), links.end(),
                                     [](const auto& a, const auto& b) { return a.second.first < b.second.first; });
  if (most == links.end()) return "";
  const auto& [time, count] = most->second;
  const double fraction = to_seconds(time) / to_seconds(prediction.metrics.makespan);
  if (to_seconds(time) <= kMostOfThePath * to_seconds(path.transfer + path.latency) || !(fraction >= kMuchOfThePath)) {
    return "";
  }
  const auto [a, b] = most->first;
  return fmt::format("  link {}-{} takes {:.1f} % of the critical path, in {} transfers{}\n", a, b, 100 * fraction,
                     count, without_slowdown(setup, [&, a = a, b = b](Perturbation& perturbation) {
                       return std::erase_if(perturbation.slow_links, [&](const auto& slow) {
                                return std::minmax(slow.a, slow.b) == std::minmax(a, b) && slow.factor > 1;
                              }) > 0;
                     }));
}

// The iteration time, throughput and memory.
std::string iteration_line(const Setup& setup, const Prediction& prediction, std::span<const Remedy> remedies) {
  std::string out;
  const auto to = std::back_inserter(out);
  if (prediction.corrected) {
    const auto shown = [](double seconds) { return time_text(from_seconds(seconds, "iteration")); };
    fmt::format_to(to, "\n  iteration {} (90 % interval {} to {}; {} before calibration with {} measurements)",
                   shown(prediction.corrected->seconds), shown(prediction.corrected->low_s),
                   shown(prediction.corrected->high_s), time_text(prediction.iteration),
                   setup.scenario().correction->measurements);
  } else {
    fmt::format_to(to, "\n  iteration {}", time_text(prediction.iteration));
  }
  if (prediction.throughput.tokens_per_s > 0) {
    fmt::format_to(to, "    tokens/s {}", grouped(prediction.throughput.tokens_per_s));
  }
  if (prediction.throughput.model_tflops_per_device > 0) {
    fmt::format_to(to, "    {:.1f} TFLOP/s per device", prediction.throughput.model_tflops_per_device);
  }
  if (prediction.throughput.mfu > 0) {
    const PrecisionTraits& traits = traits_of(setup.scenario().training.precision);
    fmt::format_to(to, "    MFU {:.1f} %", 100 * prediction.throughput.mfu);
    if (traits.narrow()) fmt::format_to(to, " of the peak with {} bits", traits.bits);
  }
  if (prediction.fit) {
    fmt::format_to(to, "    memory {:.1f} / {:.1f} GiB (rank {})",
                   static_cast<double>(prediction.fit->needed_bytes) / kGiB,
                   static_cast<double>(prediction.fit->capacity_bytes) / kGiB, prediction.fit->rank);
    if (!prediction.fit->fits) out += "  DOES NOT FIT";
    if (const std::int64_t host = most_host_bytes(setup); host > 0) {
      fmt::format_to(to, "    host memory {:.1f} GiB per GPU", static_cast<double>(host) / kGiB);
    }
    out += fit_text(prediction, remedies);
  }
  return out;
}

// One row per rank; the middle of a long list is omitted.
std::string rank_table(const Setup& setup, const Prediction& prediction) {
  const Schedule& schedule = setup.schedule();
  const Metrics& metrics = prediction.metrics;
  std::string out;
  const auto to = std::back_inserter(out);
  const bool bytes = setup.graph().has_bytes();
  fmt::format_to(to, "\n  rank   busy  in flight  first start    last end{}\n",
                 bytes ? "  peak GiB  weights  grads  optim.  activ.    k/v  buffers  reached" : "");
  constexpr int kMostRows = 32;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    if (schedule.num_ranks() > kMostRows && rank == kMostRows / 2) {
      rank = schedule.num_ranks() - kMostRows / 2;
      fmt::format_to(to, "   ... ({} ranks omitted; see --json)\n", schedule.num_ranks() - kMostRows);
    }
    const RankMetrics& of = metrics.ranks[rank];
    const double busy = metrics.makespan.count() > 0 ? to_seconds(of.busy) / to_seconds(metrics.makespan) : 0;
    fmt::format_to(to, "  {:>4}  {:4.1f}%  {:>9.4g}  {:>11}  {:>10}", rank, 100 * busy, of.peak_in_flight,
                   time_text(of.first_start), time_text(of.last_end));
    if (bytes) {
      const RankMemory& memory = prediction.memory[rank];
      const auto gib = [&](MemoryClass c) {
        return static_cast<double>(memory.at_peak[static_cast<std::size_t>(c)]) / kGiB;
      };
      fmt::format_to(to, "  {:>8.2f}  {:>7.2f}  {:>5.2f}  {:>6.2f}  {:>6.2f}  {:>5.2f}  {:>7.2f}  {}",
                     static_cast<double>(memory.peak_bytes) / kGiB, gib(MemoryClass::weights),
                     gib(MemoryClass::gradients), gib(MemoryClass::optimizer), gib(MemoryClass::activations),
                     gib(MemoryClass::keys_values), gib(MemoryClass::buffers), time_text(memory.peak_time));
    }
    out += '\n';
  }
  return out;
}

std::string trials_line(const Perturbation& perturbation, const Trials& trials) {
  return fmt::format("  {} trials of {}: makespan mean {}, standard deviation {}; 5 % {}, median {}, 95 % {}, max {}\n",
                     trials.makespans.size(), to_string(perturbation.jitter),
                     time_text(from_seconds(trials.mean_s, "mean")),
                     time_text(from_seconds(trials.deviation_s, "deviation")), time_text(trials.quantile(0.05)),
                     time_text(trials.quantile(0.5)), time_text(trials.quantile(0.95)), time_text(trials.quantile(1)));
}

}  // namespace

std::string simulation_json(const Setup& setup, const Prediction& prediction, std::span<const ExplainedOp> explained,
                            const std::optional<ExplainedMemory>& memory, std::span<const Remedy> remedies,
                            const AutoResult* automatic) {
  const Schedule& schedule = setup.schedule();
  const Metrics& metrics = prediction.metrics;
  OrderedJson out;
  out["schema"] = "sluice.simulation/1";
  out["schedule"] = {{"family", schedule.family()},
                     {"ranks", schedule.num_ranks()},
                     {"stages", schedule.num_stages()},
                     {"chunks", schedule.num_chunks()},
                     {"microbatches", schedule.num_microbatches()},
                     {"batches", schedule.num_batches()},
                     {"slices", schedule.max_slices()},
                     {"slice_lengths", schedule.shapes()[0].slice_lengths}};
  if (automatic != nullptr) out["auto"] = automatic_json(*automatic);
  out["makespan_s"] = to_seconds(metrics.makespan);
  out["ideal_s"] = to_seconds(metrics.ideal);
  if (const auto experts = expert_communication(setup); experts.seconds > 0) {
    out["expert_communication"] = {{"communication_s", experts.seconds}, {"hidden_fraction", experts.hidden()}};
  }
  out["bubble_fraction"] = metrics.bubble_fraction;
  out["bubble_over_ideal"] = metrics.bubble_over_ideal;
  out["span_s"] = to_seconds(metrics.span);
  out["period_s"] = to_seconds(prediction.period);
  out["ranks"] = ranks_json(setup, prediction);
  out["idle"] = idle_json(total_idle(prediction));
  out["idle_roots"] = idle_roots_json(setup, prediction);
  out["critical_path"] = critical_path_json(setup.graph(), prediction);
  const Training& training = setup.scenario().training;
  out["gpus"] = {{"used", training.world_size()}, {"cluster", nullptr}};
  if (setup.scenario().cluster) out["gpus"]["cluster"] = setup.scenario().cluster->num_gpus();
  const Throughput& throughput = prediction.throughput;
  out["throughput"] = {
      {"tokens_per_s", known(throughput.tokens_per_s)},
      {"tokens_per_s_per_device", known(throughput.tokens_per_s / static_cast<double>(training.world_size()))},
      {"model_tflops_per_device", known(throughput.model_tflops_per_device)},
      {"hardware_tflops_per_device", known(throughput.hardware_tflops_per_device)},
      {"mfu", known(throughput.mfu)}};
  if (prediction.corrected) {
    out["calibration"] = calibration_json(setup.scenario(), *prediction.corrected);
  }
  if (prediction.fit) {
    out["fits"] = prediction.fit->fits;
    out["memory"] = fit_json(*prediction.fit, most_host_bytes(setup), remedies);
  }
  if (prediction.trials) out["jitter"] = trials_json(setup.scenario().perturbation, *prediction.trials);
  if (setup.scenario().kernel_times) out["measured_kernels"] = measured_kernels_json(setup);
  if (!explained.empty()) out["explain"] = explain_json(explained);
  if (memory) out["explain_memory"] = explain_memory_json(prediction, *memory);
  return out.dump(2) + "\n";
}

std::string automatic_line(const AutoResult& automatic) {
  std::string out = fmt::format("auto: {}, {} placement", automatic.found_by, automatic.placement);
  if (automatic.makespan == automatic.lower_bound) {
    out += "; optimal: equal to the lower bound";
  } else {
    out += fmt::format("; {:.2f} % above the lower bound {}", 100 * automatic.gap(), time_text(automatic.lower_bound));
  }
  if (!automatic.best_family.empty() && automatic.best_family != automatic.found_by) {
    out += fmt::format("; best family {} {}", automatic.best_family, time_text(automatic.best_family_makespan));
  }
  return out + fmt::format("; found in {:.1f} s", automatic.seconds);
}

std::string simulation_table(const Setup& setup, const Prediction& prediction, std::span<const Remedy> remedies,
                             const AutoResult* automatic) {
  const Metrics& metrics = prediction.metrics;
  std::string out = setting_line(setup) + iteration_line(setup, prediction, remedies);
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "\n  makespan {}    bubble {:.1f} % of the time, {:.1f} % over ideal    span {}    period {}\n",
                 time_text(metrics.makespan), 100 * metrics.bubble_fraction, 100 * metrics.bubble_over_ideal,
                 time_text(metrics.span), time_text(prediction.period));
  if (const ExpertCommunication experts = expert_communication(setup); experts.seconds > 0) {
    fmt::format_to(to, "  dispatch and combine {:.4g} s per rank, {:.0f} % of it hidden behind compute\n",
                   experts.seconds, 100 * experts.hidden());
  }
  if (automatic != nullptr) fmt::format_to(to, "  {}\n", automatic_line(*automatic));
  out += rank_table(setup, prediction);
  fmt::format_to(to, "\n  idle   {}\n  waits for  {}\n  critical path  {}\n", idle_line(prediction),
                 idle_roots_line(setup, prediction), path_line(setup.graph(), prediction));
  out += measured_kernels_text(setup);
  out += culprit_rank_line(setup, prediction) + culprit_link_line(setup, prediction);
  if (prediction.trials) out += trials_line(setup.scenario().perturbation, *prediction.trials);
  return out;
}

}  // namespace sluice::tools

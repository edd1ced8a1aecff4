#include "tools/simulate/simulation_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "model/blocks/transformer_footprint.h"
#include "model/graph/offload.h"
#include "model/to_size.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/document.h"
#include "tools/simulate/explain_output.h"
#include "tools/simulate/report_run.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

constexpr std::size_t kMostPathOps = 1000;  // in JSON; --ops writes all
constexpr double kQuantiles[] = {0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1};

// --- JSON ---------------------------------------------------------------------------------------------------------

IdleByCause total_idle(const Prediction& prediction) {
  IdleByCause sum{};
  for (const IdleByCause& rank : prediction.idle) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += rank[i];
  }
  return sum;
}

std::vector<RootedIdle> idle_roots_of(const Setup& setup, const Prediction& prediction) {
  return prediction.repetition ? prediction.repetition->idle_roots : idle_by_root(setup.graph(), prediction.timeline);
}

OrderedJson idle_roots_json(const Setup& setup, const Prediction& prediction) {
  OrderedJson out = OrderedJson::array();
  for (const RootedIdle& each : idle_roots_of(setup, prediction)) {
    OrderedJson& row = out.emplace_back();
    if (each.root.peer < 0) row["rank"] = each.root.rank;
    if (each.root.peer >= 0) row["link"] = {each.root.rank, each.root.peer};
    row["idle_s"] = each.idle;
  }
  return out;
}

// Returns the microbatch of an op on the critical path.
int microbatch_of(const Setup& setup, int microbatch, const PathStep& step) {
  return later_microbatch(setup.schedule(), setup.scenario().microbatches, microbatch, step.microbatches);
}

OrderedJson critical_path_json(const Setup& setup, const Prediction& prediction) {
  const OpGraph& graph = setup.graph();
  const CriticalPath& path = prediction.critical_path;
  const std::size_t length = path_length(prediction);
  OrderedJson ops = OrderedJson::array();
  for (std::size_t i = 0; i < std::min(length, kMostPathOps); ++i) {
    const PathStep step = path_step(prediction, i);
    const VertexId v = step.vertex;
    ops.push_back({{"op", graph.name(v, [&](int microbatch) { return microbatch_of(setup, microbatch, step); })},
                   {"rank", graph.rank_of(v)},
                   {"start_s", prediction.timeline.start[v] + step.later},
                   {"end_s", prediction.timeline.end[v] + step.later}});
  }
  return {{"compute_s", path.compute},     {"transfer_s", path.transfer},
          {"latency_s", path.latency},     {"collective_s", path.collective},
          {"optimizer_s", path.optimizer}, {"num_ops", length},
          {"ops", std::move(ops)}};
}

OrderedJson steady_state_json(const RepeatedPart& part) {
  return {{"simulated_microbatches", part.simulated},
          {"part_microbatches", part.microbatches},
          {"part_s", part.time},
          {"repetitions", part.times}};
}

OrderedJson trials_json(const Perturbation& perturbation, const Trials& trials) {
  OrderedJson quantiles = OrderedJson::array();
  // "share" is the fraction of trials that are faster.
  for (const double q : kQuantiles) quantiles.push_back({{"share", q}, {"makespan_s", trials.quantile(q)}});
  return {{"jitter", to_string(perturbation.jitter)},
          {"trials", trials.makespans.size()},
          {"seed", perturbation.seed},
          {"mean_s", trials.mean_s},
          {"standard_deviation_s", trials.deviation_s},
          {"quantiles", std::move(quantiles)}};
}

// Returns the host memory of a GPU of the rank with most of it.
std::int64_t most_host_bytes(const Setup& setup, const Timeline& timeline) {
  std::int64_t most = 0;
  const Scenario& scenario = setup.scenario();
  const Training& training = scenario.training;
  if (!scenario.model || (training.optimizer_offload == 0 && training.activation_offload == 0)) return most;
  const Schedule& schedule = setup.schedule();
  const std::vector<std::int64_t> activations = host_peaks(setup.graph(), timeline);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    std::int64_t bytes = activations[to_size(rank)];
    for (const int stage : schedule.stages_of(rank)) {
      bytes += offloaded_bytes(*scenario.model, scenario.training, setup.stages()[to_size(stage)]);
    }
    most = std::max(most, bytes);
  }
  return most;
}

// Returns what is copied of that which forwards store, per rank.
OrderedJson offload_json(const Setup& setup, const Timeline& timeline) {
  const OpGraph& graph = setup.graph();
  const std::vector<std::int64_t> host = host_peaks(graph, timeline);
  std::vector<double> copied(host.size(), 0);
  std::vector<double> forwards(host.size(), 0);
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    const auto rank = to_size(graph.rank_of(v));
    if (vertex.op != OpKind::F && vertex.kind != VertexKind::joint) continue;
    if (vertex.kind == VertexKind::offload) copied[rank] += static_cast<double>(vertex.extra) / kOffloadUnit;
    if (vertex.kind == VertexKind::compute || vertex.kind == VertexKind::joint) ++forwards[rank];
  }
  OrderedJson ranks = OrderedJson::array();
  for (std::size_t rank = 0; rank < host.size(); ++rank) {
    ranks.push_back({{"fraction", forwards[rank] > 0 ? copied[rank] / forwards[rank] : 0}, {"host_bytes", host[rank]}});
  }
  return {{"window", setup.scenario().training.offload_window}, {"ranks", std::move(ranks)}};
}

// Returns for example "offload  62 % of what rank 0 stores, 50 % of rank 1".
std::string offload_line(const OrderedJson& offload) {
  std::string out;
  for (std::size_t rank = 0; rank < offload["ranks"].size(); ++rank) {
    out += fmt::format("{}rank {} {:.0f} %", rank == 0 ? "" : "   ", rank,
                       100 * offload["ranks"][rank]["fraction"].get<double>());
  }
  const int window = offload["window"].get<int>();
  return fmt::format(
      "  offloaded  {}; {}; every op is simulated\n", out,
      window == 0 ? "forwards wait for no copy" : fmt::format("forwards wait for the copy {} before", window));
}

OrderedJson automatic_json(const AutoResult& automatic) {
  OrderedJson out = {{"lower_bound_s", automatic.lower_bound},
                     {"gap", automatic.gap()},
                     {"found_by", automatic.found_by},
                     {"placement", automatic.placement},
                     {"first_makespan_s", automatic.first_makespan},
                     {"first_seconds", automatic.first_seconds},
                     {"seconds", automatic.seconds},
                     {"evaluations", automatic.evaluations},
                     {"ended_by", name_of(automatic.ended_by)}};
  if (const auto& periodic = automatic.periodic) {
    const auto known = [](Duration time) { return time > Duration{} ? OrderedJson(time) : OrderedJson(nullptr); };
    out["periodic"] = {{"repeats", 1},
                       {"period_lower_bound_s", periodic->period_bound},
                       {"period_s", known(periodic->period)},
                       {"lower_bound_s", known(periodic->makespan_bound)}};
  }
  if (!automatic.best_family.empty()) {
    out["best_family"] = automatic.best_family;
    out["best_family_makespan_s"] = automatic.best_family_makespan;
  }
  return out;
}

OrderedJson ranks_json(const Setup& setup, const Prediction& prediction) {
  const Schedule& schedule = setup.schedule();
  OrderedJson ranks = OrderedJson::array();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const RankMetrics& of = prediction.metrics.ranks[rank];
    const RankMemory& memory = prediction.memory[rank];
    ranks.push_back({{"rank", rank},
                     {"busy_s", of.busy},
                     {"peak_in_flight", of.peak_in_flight},
                     {"peak_memory_bytes", memory.peak_bytes},
                     {"peak_memory_at_s", memory.peak_time},
                     {"memory_at_peak_bytes", named(kMemoryClassNames, memory.at_peak)},
                     {"weight_versions", num_weight_versions(schedule, rank)},
                     {"first_start_s", of.first_start},
                     {"last_end_s", of.last_end},
                     {"idle", named(kIdleCauseNames, prediction.idle[rank], "_s")}});
    if (setup.graph().has_bytes()) continue;
    for (const char* key : {"peak_memory_bytes", "peak_memory_at_s", "memory_at_peak_bytes"}) {
      ranks.back()[key] = nullptr;
    }
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

// --- text ---------------------------------------------------------------------------------------------------------

// Returns for example "warm-up 41.0 %   drain 49.0 %", in percent of the sum, without parts that do not occur and at
// most `most` of them.
std::string percentages(const std::vector<std::pair<std::string, Duration>>& parts, std::size_t most) {
  Duration all{};
  std::size_t occur = 0;
  for (const auto& [name, time] : parts) {
    all += time;
    occur += time > Duration::zero() ? 1 : 0;
  }
  if (all <= Duration::zero()) return "none";
  std::string out;
  std::size_t shown = 0;
  for (const auto& [name, time] : parts) {
    if (time <= Duration::zero() || shown == most) continue;
    out += fmt::format("{}{} {:.1f} %", shown++ == 0 ? "" : "   ", name, 100 * to_seconds(time) / to_seconds(all));
  }
  return occur > most ? out + "   ..." : out;
}

std::string idle_line(const Prediction& prediction) {
  constexpr std::array<const char*, kNumIdleCauses> kWords = {"warm-up",
                                                              "drain",
                                                              "waiting for a sender",
                                                              "waiting for a slice",
                                                              "waiting for a link",
                                                              "optimizer",
                                                              "waiting for a host copy",
                                                              "other"};
  const IdleByCause idle = total_idle(prediction);
  std::vector<std::pair<std::string, Duration>> parts;
  for (std::size_t i = 0; i < idle.size(); ++i) parts.emplace_back(kWords[i], idle[i]);
  return percentages(parts, idle.size());
}

// Returns the ranks and links for which most idle time is, in percent of all idle time that has such a root.
std::string idle_roots_line(const Setup& setup, const Prediction& prediction) {
  constexpr std::size_t kMost = 4;
  std::vector<std::pair<std::string, Duration>> parts;
  for (const RootedIdle& each : idle_roots_of(setup, prediction)) {
    parts.emplace_back(to_string(each.root), each.idle);
  }
  return percentages(parts, kMost);
}

// Returns for example "F0@0", or with chunks "F0@0:1" for chunk 1 of rank 0, and with slices "F0.2@0".
std::string path_op(const Setup& setup, const PathStep& step) {
  const OpGraph& graph = setup.graph();
  const VertexId v = step.vertex;
  const Vertex& vertex = graph[v];
  const Schedule& schedule = graph.schedule();
  if (vertex.kind == VertexKind::collective) return std::string(name_of(graph.collective(vertex).kind));
  std::string out = "optimizer";
  if (vertex.kind != VertexKind::optimizer) {
    out = fmt::format("{}{}", letter(vertex.op), microbatch_of(setup, vertex.microbatch, step));
    if (schedule.sliced()) out += fmt::format(".{}", vertex.slice);
  }
  const int rank = graph.rank_of(v);
  out += fmt::format("@{}", rank);
  if (schedule.stages_of(rank).size() > 1) out += fmt::format(":{}", schedule.chunk_of(rank, vertex.stage));
  return out;
}

// Returns for example "F0@0 → F0@1 → … → B7@0   (97 % compute, 3 % transfers)".
std::string path_line(const Setup& setup, const Prediction& prediction) {
  constexpr std::size_t kEnds = 5;  // ops shown at either end
  const OpGraph& graph = setup.graph();
  const CriticalPath& path = prediction.critical_path;
  const auto is_op = [&](std::size_t i) {
    const VertexKind kind = graph[path_step(prediction, i).vertex].kind;
    return kind != VertexKind::transfer && kind != VertexKind::recompute;
  };
  // The first ops, and the last ones of those that follow.
  const std::size_t length = path_length(prediction);
  std::vector<std::size_t> ops;
  std::size_t next = 0;
  for (; next < length && ops.size() < kEnds; ++next) {
    if (is_op(next)) ops.push_back(next);
  }
  std::vector<std::size_t> last;
  for (std::size_t i = length; i > next && last.size() <= kEnds; --i) {
    if (is_op(i - 1)) last.push_back(i - 1);
  }
  const bool all = last.size() <= kEnds;
  if (!all) last.pop_back();
  std::string out;
  for (const std::size_t i : ops) out += (out.empty() ? "" : " → ") + path_op(setup, path_step(prediction, i));
  if (!all) out += " → …";
  for (auto i = last.rbegin(); i != last.rend(); ++i) out += " → " + path_op(setup, path_step(prediction, *i));
  const double makespan = to_seconds(prediction.metrics.makespan);
  if (makespan <= 0) return out;
  out += graph.schedule().stages_of(0).size() > 1 ? "   (op@rank:chunk; " : "   (";
  bool first = true;
  const auto add = [&](Duration part, std::string_view name) {
    if (part <= Duration::zero()) return;
    fmt::format_to(std::back_inserter(out), "{}{:.1f} % {}", first ? "" : ", ", 100 * to_seconds(part) / makespan,
                   name);
    first = false;
  };
  add(path.compute, "compute");
  add(path.transfer + path.latency, "transfers");
  add(path.collective, "collectives");
  add(path.optimizer, "optimizer");
  return out + ")";
}

// "1f1b: 4 ranks x 1 chunks, 8 microbatches; gpt3-175b: tp 8, pp 16, dp 8; 128 x dgx-a100".
std::string setting_line(const Setup& setup) {
  const Schedule& schedule = setup.schedule();
  std::string out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "{}: {} x {}, {}", schedule_name(setup), counted(schedule.num_ranks(), "rank", "s"),
                 counted(schedule.num_chunks(), "chunk", "s"),
                 counted(setup.scenario().microbatches, "microbatch", "es"));
  if (schedule.sliced()) fmt::format_to(to, " x {} slices", schedule.max_slices());
  if (schedule.num_batches() > 1) fmt::format_to(to, ", {} batches", schedule.num_batches());
  if (schedule.forward_only()) out += ", forward-only";
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
  const auto& path = prediction.critical_path.vertices;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const VertexKind kind = graph[path[i]].kind;
    if (kind != VertexKind::compute && kind != VertexKind::joint) continue;
    const int times = times_on_path(prediction, i);
    count[static_cast<std::size_t>(graph.rank_of(path[i]))] += times;
    ops += times;
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
  for (std::size_t i = 0; i < path.vertices.size(); ++i) {
    const VertexId v = path.vertices[i];
    if (graph[v].kind != VertexKind::transfer) continue;
    const Lane& lane = graph.lanes()[graph[v].lane];
    auto& [time, count] = links[std::minmax(lane.rank, lane.peer)];
    const int times = times_on_path(prediction, i);
    time += times * (timeline.arrival(graph, v) - timeline.start[v]);
    count += times;
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

// Returns one line if the rank with most memory holds shards of gradients beside whole ones at its peak, and so more
// than with ZeRO 1; otherwise "".
std::string sharded_gradients_line(const Setup& setup, const Prediction& prediction) {
  if (!prediction.fit || setup.scenario().training.zero_stage() != 2) return "";
  const int rank = prediction.fit->rank;
  std::int64_t whole = 0;
  for (const int stage : setup.schedule().stages_of(rank)) {
    whole += setup.graph().stage_bytes(stage).accumulated_gradients;
  }
  const std::int64_t held = prediction.memory[to_size(rank)].at_peak[static_cast<std::size_t>(MemoryClass::gradients)];
  if (whole == 0 || held <= whole) return "";
  return fmt::format(
      "ZeRO 2: rank {} holds {:.2f} GiB of gradients at its peak, whole ones and shards; with ZeRO 1 {:.2f}", rank,
      static_cast<double>(held) / kGiB, static_cast<double>(whole) / kGiB);
}

// The iteration time, throughput and memory.
std::string iteration_line(const Setup& setup, const Prediction& prediction, const OrderedJson& document) {
  OrderedJson values = document;
  values["predicted_s"] = prediction.iteration;
  std::string out =
      filled(prediction.corrected ? "\n  iteration {calibration/iteration_s:t} (90 % interval {calibration/low_s:t} to "
                                    "{calibration/high_s:t}; {predicted_s:t} before calibration with "
                                    "{calibration/measurements} measurements)"
                                  : "\n  iteration {predicted_s:t}",
             values);
  const std::string interval = interval_text(interval_of(setup.scenario(), prediction.iteration_s()));
  if (!interval.empty()) out += fmt::format(" ({})", interval);
  out += filled(
      "[    tokens/s {throughput/tokens_per_s:k}][    {throughput/model_tflops_per_device:.1f} TFLOP/s per device]"
      "[    MFU {throughput/mfu:.1%}]",
      document);
  const PrecisionTraits& traits = traits_of(setup.scenario().training.precision);
  if (prediction.throughput.mfu > 0 && traits.narrow()) out += fmt::format(" of the peak with {} bits", traits.bits);
  if (!prediction.fit) return out;
  const OrderedJson& memory = document["memory"];
  const bool fits = prediction.fit->fits;
  out += filled("    memory {needed_bytes:.1G} / {capacity_bytes:.1G} GiB (rank {rank})", memory);
  if (!fits) out += "  DOES NOT FIT";
  out += filled("[    host memory {host_bytes:.1G} GiB per GPU]", memory);
  if (fits) return out + filled(", {headroom_bytes:.1G} GiB free", memory);
  const auto over = static_cast<double>(prediction.fit->needed_bytes - prediction.fit->capacity_bytes);
  out += fmt::format("\n  exceeds the device memory by {:.1f} GiB ({:.1f} %)", over / kGiB,
                     100 * over / static_cast<double>(prediction.fit->capacity_bytes));
  out += memory["would_fit"].empty() ? "; none of the changes tried makes it fit" : "; fits with";
  for (const OrderedJson& remedy : memory["would_fit"]) {
    out += fmt::format("\n    {:<48} {:>6.1f} GiB  {:.2f}x the time", remedy["flags"].get<std::string>(),
                       remedy["needed_bytes"].get<double>() / kGiB,
                       remedy["iteration_s"].get<double>() / prediction.iteration_s());
  }
  return out;
}

std::string rank_table(const Prediction& prediction, OrderedJson ranks) {
  const double makespan = to_seconds(prediction.metrics.makespan);
  for (OrderedJson& rank : ranks) rank["busy"] = makespan > 0 ? 100 * rank["busy_s"].get<double>() / makespan : 0;
  constexpr std::size_t kMostRows = 32;
  return table(
      "rank={rank}| busy={busy:.1f}%|in flight={peak_in_flight:.4g}|first start={first_start_s:t}|"
      "  last end={last_end_s:t}|peak GiB=[{peak_memory_bytes:.2G}]|weights=[{memory_at_peak_bytes/weights:.2G}]|"
      "grads=[{memory_at_peak_bytes/gradients:.2G}]|optim.=[{memory_at_peak_bytes/optimizer:.2G}]|"
      "activ.=[{memory_at_peak_bytes/activations:.2G}]|  k/v=[{memory_at_peak_bytes/keys_values:.2G}]|"
      "buffers=[{memory_at_peak_bytes/buffers:.2G}]|<reached=[{peak_memory_at_s:t}]",
      ranks, kMostRows);
}

}  // namespace

OrderedJson simulation_json(const Setup& setup, const Prediction& prediction, std::span<const ExplainedOp> explained,
                            const std::optional<ExplainedMemory>& memory, std::span<const Remedy> remedies,
                            const AutoResult* automatic) {
  const Schedule& schedule = setup.schedule();
  const Metrics& metrics = prediction.metrics;
  const Scenario& scenario = setup.scenario();
  OrderedJson out = {{"schema", "sluice.simulation/1"}};
  out["schedule"] = {{"family", schedule.family()},           {"ranks", schedule.num_ranks()},
                     {"stages", schedule.num_stages()},       {"chunks", schedule.num_chunks()},
                     {"microbatches", scenario.microbatches}, {"batches", schedule.num_batches()},
                     {"slices", schedule.max_slices()},       {"slice_lengths", schedule.shapes()[0].slice_lengths}};
  if (schedule.forward_only()) out["schedule"]["backward"] = false;
  if (automatic != nullptr) out["auto"] = automatic_json(*automatic);
  out["makespan_s"] = metrics.makespan;
  out["ideal_s"] = metrics.ideal;
  if (const auto experts = expert_communication(setup); experts.seconds > 0) {
    out["expert_communication"] = {{"communication_s", experts.seconds}, {"hidden_fraction", experts.hidden()}};
  }
  out["bubble_fraction"] = metrics.bubble_fraction;
  out["bubble_over_ideal"] = metrics.bubble_over_ideal;
  out["span_s"] = metrics.span;
  out["period_s"] = prediction.period;
  if (prediction.repetition) out["steady_state"] = steady_state_json(*prediction.repetition);
  out["ranks"] = ranks_json(setup, prediction);
  out["idle"] = named(kIdleCauseNames, total_idle(prediction), "_s");
  out["idle_roots"] = idle_roots_json(setup, prediction);
  out["critical_path"] = critical_path_json(setup, prediction);
  const std::int64_t gpus = scenario.training.world_size();
  out["gpus"] = {{"used", gpus}, {"cluster", nullptr}};
  if (scenario.cluster) out["gpus"]["cluster"] = scenario.cluster->num_gpus();
  const Throughput& throughput = prediction.throughput;
  out["throughput"] = {{"tokens_per_s", known(throughput.tokens_per_s)},
                       {"tokens_per_s_per_device", known(throughput.tokens_per_s / static_cast<double>(gpus))},
                       {"model_tflops_per_device", known(throughput.model_tflops_per_device)},
                       {"hardware_tflops_per_device", known(throughput.hardware_tflops_per_device)},
                       {"mfu", known(throughput.mfu)},
                       {"remark", nullptr}};
  if (const std::string remark = mfu_remark(scenario, throughput.mfu); !remark.empty()) {
    out["throughput"]["remark"] = remark;
  }
  if (const auto interval = interval_of(scenario, prediction.iteration_s())) {
    out["error_class"] = interval_json(*interval);
  }
  if (prediction.corrected) out["calibration"] = calibration_json(scenario, *prediction.corrected);
  if (prediction.fit) {
    out["fits"] = prediction.fit->fits;
    out["memory"] = fit_json(*prediction.fit, most_host_bytes(setup, prediction.timeline), remedies);
  }
  if (scenario.training.activation_offload != 0) out["offload"] = offload_json(setup, prediction.timeline);
  if (prediction.trials) out["jitter"] = trials_json(scenario.perturbation, *prediction.trials);
  if (scenario.kernel_times) out["measured_kernels"] = measured_kernels_json(setup);
  if (!explained.empty()) out["explain"] = explain_json(explained);
  if (memory) out["explain_memory"] = explain_memory_json(prediction, *memory);
  return out;
}

std::string automatic_line(const AutoResult& automatic) {
  const OrderedJson values = automatic_json(automatic);
  std::string out = filled("auto: {found_by}, {placement} placement", values);
  out += automatic.makespan == automatic.lower_bound
             ? "; optimal: equal to the lower bound"
             : filled("; {gap:.2%} above the lower bound {lower_bound_s:t}", values);
  if (automatic.best_family != automatic.found_by) {
    out += filled("[; best family {best_family} {best_family_makespan_s:t}]", values);
  }
  if (automatic.periodic) {
    const OrderedJson& periodic = values.at("periodic");
    out +=
        filled("; schedules that repeat every microbatch: at least {period_lower_bound_s:t} per microbatch", periodic);
    if (automatic.periodic->period == automatic.periodic->period_bound) out += ", which one reaches";
  }
  out += filled("; found in {seconds:.1f} s", values);
  if (automatic.ended_by == AutoEnd::time) {
    out += filled("; stopped by --time-budget after {evaluations} evaluations, which depends on the machine", values);
  }
  if (automatic.ended_by == AutoEnd::interrupt) out += "; interrupted: best so far";
  return out;
}

std::string simulation_text(const Setup& setup, const Prediction& prediction, const OrderedJson& document,
                            const AutoResult* automatic) {
  std::string out = setting_line(setup) + iteration_line(setup, prediction, document);
  out += filled(
      "\n  makespan {makespan_s:t}    bubble {bubble_fraction:.1%} of the time, {bubble_over_ideal:.1%} over ideal    "
      "span {span_s:t}    period {period_s:t}\n[  dispatch and combine {expert_communication/communication_s:.4g} s "
      "per "
      "rank, {expert_communication/hidden_fraction:.0%} of it hidden behind compute\n]",
      document);
  out += filled(
      "[  steady state: {steady_state/simulated_microbatches} microbatches were simulated; the time of the others, "
      "{steady_state/repetitions} times {steady_state/part_microbatches}, is proven to repeat\n]",
      document);
  if (automatic != nullptr) out += "  " + automatic_line(*automatic) + "\n";
  if (document.contains("offload")) out += offload_line(document["offload"]);
  out += fmt::format("\n{}\n  idle   {}\n  waits for  {}\n  critical path  {}\n",
                     rank_table(prediction, document["ranks"]), idle_line(prediction),
                     idle_roots_line(setup, prediction), path_line(setup, prediction));
  for (const std::string& line :
       {such_runs_line(interval_of(setup.scenario(), prediction.iteration_s())), assumed_times_line(setup.scenario()),
        mfu_remark(setup.scenario(), prediction.throughput.mfu), sharded_gradients_line(setup, prediction)}) {
    if (!line.empty()) out += fmt::format("  {}\n", line);
  }
  out += measured_kernels_text(setup) + culprit_rank_line(setup, prediction) + culprit_link_line(setup, prediction);
  if (!prediction.trials) return out;
  OrderedJson values = document["jitter"];
  for (const double q : {0.05, 0.5, 0.95, 1.0}) values[fmt::format("{}", q)] = prediction.trials->quantile(q);
  return out + filled(
                   "  {trials} trials of {jitter}: makespan mean {mean_s:t}, standard deviation "
                   "{standard_deviation_s:t}; 5 % {0.05:t}, median {0.5:t}, 95 % {0.95:t}, max {1:t}\n",
                   values);
}

}  // namespace sluice::tools

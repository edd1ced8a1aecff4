#include "tools/simulate/report_run.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/cost/woven_blocks.h"
#include "model/schedule/family.h"
#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "tools/command/assumptions.h"
#include "tools/command/calibration_warning.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

double part_of(Duration part, Duration whole) {
  return whole.count() > 0 ? static_cast<double>(part.count()) / static_cast<double>(whole.count()) : 0;
}

// Returns for example "97 % compute, 3 % transfers", without parts below 0.1 %.
std::string path_text(const CriticalPath& path, Duration makespan) {
  std::string out;
  const auto add = [&](Duration part, std::string_view name) {
    const double of = part_of(part, makespan);
    if (of < 0.001) return;
    if (!out.empty()) out += ", ";
    out += fmt::format("{:.1f} % {}", 100 * of, name);
  };
  add(path.compute, "compute");
  add(path.transfer, "transfers");
  add(path.latency, "latency");
  add(path.collective, "collectives");
  add(path.optimizer, "optimizer");
  add(path.idle, "idle");
  return out;
}

// Returns for example "warm-up 41 %, drain 49 %", in percent of all idle time.
std::string causes_text(const std::vector<IdleByCause>& idle) {
  constexpr const char* kWords[kNumIdleCauses] = {"warm-up", "drain",     "sender",    "slice",
                                                  "link",    "optimizer", "host copy", "other"};
  IdleByCause sum{};
  Duration all{0};
  for (const IdleByCause& of : idle) {
    for (std::size_t c = 0; c < sum.size(); ++c) {
      sum[c] += of[c];
      all += of[c];
    }
  }
  std::string out;
  for (std::size_t c = 0; c < sum.size(); ++c) {
    if (sum[c].count() == 0) continue;
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {:.0f} %", kWords[c], 100 * part_of(sum[c], all));
  }
  return out;
}

std::vector<ReportMetric> headline(const Setup& setup, const Prediction& prediction) {
  const Metrics& metrics = prediction.metrics;
  const Schedule& schedule = setup.schedule();
  const bool flush = schedule.weight_policy() == WeightPolicy::flush;
  const Duration iteration =
      prediction.corrected ? from_seconds(prediction.corrected->seconds, "calibration") : prediction.iteration;
  std::vector<ReportMetric> out;
  std::string note =
      flush ? "one batch, from the first start to the last end" : "per batch, without a flush between batches";
  const auto interval = interval_of(setup.scenario(), prediction.iteration_s());
  if (const std::string text = interval_text(interval); !text.empty()) {
    note += fmt::format("; {} ({})", text, interval->of->name());
  }
  out.push_back({"Iteration", time_text(iteration), note, to_seconds(iteration)});
  const Throughput& throughput = prediction.throughput;
  if (throughput.tokens_per_s > 0) {
    out.push_back({"Tokens/s", grouped(throughput.tokens_per_s),
                   fmt::format("over all {} GPUs", setup.scenario().training.world_size()), throughput.tokens_per_s});
  }
  if (throughput.mfu > 0) {
    out.push_back({"MFU", fmt::format("{:.1f} %", 100 * throughput.mfu),
                   fmt::format("{:.1f} TFLOP/s per device, of the peak with {} bits",
                               throughput.model_tflops_per_device, traits_of(setup.scenario().training.precision).bits),
                   throughput.mfu, true});
  } else if (throughput.model_tflops_per_device > 0) {
    out.push_back({"TFLOP/s per device", fmt::format("{:.1f}", throughput.model_tflops_per_device),
                   "model FLOPs, without recomputation", throughput.model_tflops_per_device});
  }
  if (prediction.fit) {
    const Fit& fit = *prediction.fit;
    out.push_back({"Memory", fmt::format("{:.1f} GiB", static_cast<double>(fit.needed_bytes) / kGiB),
                   fmt::format("of {:.1f} GiB; peak on rank {}, including the allocator's overhead",
                               static_cast<double>(fit.capacity_bytes) / kGiB, fit.rank),
                   static_cast<double>(fit.needed_bytes), false, fit.fits ? "" : "does not fit"});
  }
  if (!flush) {
    out.push_back({"Makespan", time_text(metrics.makespan), fmt::format("for {} batches", schedule.num_batches()),
                   to_seconds(metrics.makespan)});
  }
  if (const ExpertCommunication experts = expert_communication(setup); experts.seconds > 0) {
    out.push_back({"Dispatch and combine", fmt::format("{:.0f} % hidden", 100 * experts.hidden()),
                   fmt::format("behind compute of the same rank, of {:.4g} s per rank", experts.seconds),
                   experts.hidden(), true});
  }
  out.push_back({"Period", time_text(prediction.period),
                 "time per batch when batches follow each other without a barrier", to_seconds(prediction.period)});
  for (ReportMetric& metric : timeline_headline(metrics, prediction.idle, prediction.critical_path)) {
    out.push_back(std::move(metric));
  }
  return out;
}

}  // namespace

ExpertCommunication expert_communication(const Setup& setup) {
  ExpertCommunication mean;
  if (setup.scenario().training.ep == 1) return mean;
  const auto ranks = WovenBlocks(setup.graph(), setup.cost()).by_rank();
  for (const WovenBlocks::Communication& rank : ranks) {
    mean.seconds += rank.seconds / static_cast<double>(ranks.size());
    mean.exposed_s += rank.exposed_s / static_cast<double>(ranks.size());
  }
  return mean;
}

std::vector<ReportMetric> timeline_headline(const Metrics& metrics, const std::vector<IdleByCause>& idle,
                                            const CriticalPath& path) {
  const std::string causes = causes_text(idle);
  return {{"Bubble", fmt::format("{:.1f} %", 100 * metrics.bubble_fraction),
           causes.empty() ? "idle fraction of all rank time" : "idle fraction of all rank time: " + causes,
           metrics.bubble_fraction, true},
          {"Over ideal", fmt::format("{:.1f} %", 100 * metrics.bubble_over_ideal),
           fmt::format("makespan over the busiest rank's compute time, {}", time_text(metrics.ideal)),
           metrics.bubble_over_ideal, true},
          {"Span", time_text(metrics.span), "longest time between the first and last op of a rank",
           to_seconds(metrics.span)},
          {"Critical path",
           fmt::format("{} ops", grouped(static_cast<double>(path.vertices.size()))),
           path_text(path, metrics.makespan),
           {}}};
}

std::optional<std::int64_t> tensor_capacity(const Setup& setup, const Prediction& prediction) {
  if (!prediction.fit || !setup.scenario().cluster) return std::nullopt;
  const auto& gpu = setup.scenario().cluster->gpu;
  const auto free = static_cast<double>(prediction.fit->capacity_bytes - gpu.reserved_bytes);
  return static_cast<std::int64_t>(free / (1 + gpu.fragmentation));
}

std::string schedule_name(const Setup& setup) {
  const std::string& name = setup.scenario().schedule;
  if (names_file(name)) return std::filesystem::path(name).stem().string();
  return name == kAutomatic ? std::string(kAutomatic) : setup.schedule().family();
}

std::string run_title(const Setup& setup) {
  const Schedule& schedule = setup.schedule();
  std::string out = schedule_name(setup) + ", " + counted(schedule.num_ranks(), "rank", "s");
  if (schedule.num_chunks() > 1) out += fmt::format(" x {} chunks", schedule.num_chunks());
  out += ", " + counted(schedule.num_microbatches(), "microbatch", "es");
  if (schedule.sliced()) out += fmt::format(" x {} slices", schedule.max_slices());
  if (schedule.num_batches() > 1) out += fmt::format(", {} batches", schedule.num_batches());
  return out;
}

void add_assumptions(Report& report, const Setup& setup, const nlohmann::json& document) {
  const PredictedScenario of{setup.scenario(), document, kSimulate, has_joint_blocks(setup.schedule())};
  for (const Assumption& each : assumptions_of(of)) {
    report.assumptions.push_back({each.setting, each.value, each.source});
  }
  report.not_modeled = not_modeled(setup.scenario());
}

DrawnRun drawn_run(const Setup& setup, const Prediction& prediction) {
  return {.graph = &setup.graph(),
          .timeline = &prediction.timeline,
          .metrics = &prediction.metrics,
          .memory = prediction.memory,
          .title = run_title(setup),
          .parts = part_rows(setup.graph(), setup.cost(), prediction.timeline),
          .capacity_bytes = tensor_capacity(setup, prediction)};
}

ReportRun report_run(const Setup& setup, const Prediction& prediction, std::string scenario) {
  ReportRun run;
  run.name = run_title(setup);
  run.drawn = drawn_run(setup, prediction);
  run.headline = headline(setup, prediction);
  run.scenario = std::move(scenario);
  return run;
}

}  // namespace sluice::tools

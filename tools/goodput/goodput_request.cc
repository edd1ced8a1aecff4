#include "tools/goodput/goodput_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "model/blocks/model.h"
#include "model/errors.h"
#include "sim/goodput/closed_forms.h"
#include "sim/goodput/failures.h"
#include "sim/simulator.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/scenario_flags.h"
#include "tools/goodput/state_times.h"

namespace sluice::tools {
namespace {

constexpr double kStaging_s = 0.75;    // of an asynchronous checkpoint, besides copying
constexpr double kLongestRun_s = 9e7;  // below the range of Duration in from_seconds

Duration duration_of(double seconds, const char* what) { return from_seconds(std::min(seconds, kLongestRun_s), what); }

// Returns by how much the iteration is longer if one rank computes `factor` times as long: the mean over up to eight
// pipeline ranks.
double iteration_slowdown(const Scenario& scenario, double healthy_s, double factor) {
  const int ranks = scenario.training.pp;
  const int step = std::max(1, ranks / 8);
  double sum = 0;
  int count = 0;
  for (int rank = step / 2; rank < ranks; rank += step, ++count) {
    Scenario slow = scenario;
    slow.perturbation.slow_ranks.push_back({rank, factor});
    sum += Simulator(slow).predict().iteration_s() / healthy_s;
  }
  return std::max(1.0, sum / count);
}

class SettingBuilder {
 public:
  SettingBuilder(const GoodputRequest& request, const nlohmann::json& document)
      : request_(request), document_(document) {}

  GoodputSetting build() {
    read_sizes();
    set_policy();
    set_times();
    set_failures();
    set_checkpoints();
    set_end();
    set_spares();
    set_interval();
    return std::move(setting_);
  }

 private:
  [[noreturn]] static void fail(const std::string& rule) { throw InputError("goodput: " + rule); }
  void assume(std::string what, std::string source) {
    setting_.assumed.push_back({std::move(what), std::move(source)});
  }

  // The time that a flag gives, or a default that is named in the output.
  RandomTime time(const char* flag, const std::string& text, const std::string& fallback, const char* source) {
    if (!text.empty()) return parse_random_time(text, flag);
    assume(fmt::format("{} {}", flag, fallback), source);
    return parse_random_time(fallback, flag);
  }
  Duration fixed_time(const char* flag, const std::string& text, double fallback_s, const char* source) {
    if (!text.empty()) return duration_of(parse_seconds(text, flag), flag);
    assume(fmt::format("{} {:.3g}s", flag, fallback_s), source);
    return duration_of(fallback_s, flag);
  }

  template <typename Value>
  Value document_value(const char* flag, Value fallback) const {
    return document_.value(nlohmann::json::json_pointer(ScenarioFlags::pointer_of(flag)), fallback);
  }

  void read_sizes() {
    const bool simulates = document_.contains("model") || document_.contains("schedule") || document_.contains("cost");
    if (simulates) {
      read_scenario_sizes();
    } else {
      setting_.gpus = document_value("--gpus", 0.0);
      replicas_ = document_value("--dp", 1);
      setting_.node_gpus = 8;
      if (setting_.gpus <= 0) fail("expected a scenario, or --gpus above 0");
    }
    if (!request_.step_time.empty()) {
      setting_.step_s = parse_seconds(request_.step_time, "--step-time");
    } else if (!simulates) {
      setting_.step_s = 1;
      assume("--step-time 1s",
             "no scenario; it matters for --steps, and for work that is lost in part of an iteration");
    }
    if (request_.node_gpus > 0) setting_.node_gpus = request_.node_gpus;
    if (setting_.step_s <= 0) fail("--step-time: expected a time above 0");
    setting_.run.step = duration_of(setting_.step_s, "--step-time");
    setting_.run.replicas = replicas_;
  }

  void read_scenario_sizes() {
    scenario_ = ScenarioFlags::read(document_, request_.file);
    const Simulator simulator(*scenario_);
    scenario_ = simulator.scenario();
    const Prediction prediction = simulator.predict();
    setting_.warnings.push_back(calibration_warning(*scenario_));
    if (prediction.fit && !prediction.fit->fits) setting_.warnings.emplace_back("the scenario does not fit in memory");
    setting_.gpus = static_cast<double>(scenario_->training.world_size());
    replicas_ = scenario_->training.dp;
    setting_.step_s = prediction.iteration_s();
    setting_.mfu = prediction.throughput.mfu;
    setting_.tokens_per_step = prediction.throughput.tokens_per_s * setting_.step_s;
    if (scenario_->cluster) setting_.node_gpus = scenario_->cluster->gpus_per_node;
  }

  void set_policy() {
    const auto found = std::find(kRecoveryPolicies.begin(), kRecoveryPolicies.end(), request_.policy);
    setting_.run.policy = static_cast<RecoveryPolicy>(found - kRecoveryPolicies.begin());
    GoodputRun& run = setting_.run;
    const bool simulates = scenario_ && request_.step_time.empty();
    const bool replans = run.policy == RecoveryPolicy::replan;
    const bool reroutes = run.policy == RecoveryPolicy::reroute;
    if ((continues_without(run.policy) || run.policy == RecoveryPolicy::shrink) && replicas_ < 2)
      fail(fmt::format("--policy {} needs --dp of at least 2", request_.policy));
    if ((reroutes || replans) && !simulates)
      fail(fmt::format("--policy {} needs a scenario, whose iterations are simulated", request_.policy));
    failure_.replica_gpus = setting_.gpus / replicas_;
    if (reroutes) {
      const Training& training = scenario_->training;
      run.places = training.pp;
      run.replicas = training.dp * training.pp;
      run.neighboring_places = training.pipeline_before_data;
      failure_.replica_gpus = setting_.gpus / run.replicas;
    } else if (replans) {
      failure_.replica_gpus = setting_.node_gpus;
      run.replicas = static_cast<int>(setting_.gpus / setting_.node_gpus);
    }
    if (simulates) {
      const auto times = std::make_shared<StateTimes>(document_, request_.file, *scenario_, setting_.step_s, run.policy,
                                                      request_.keep_batch, setting_.node_gpus);
      if (replans && times->whole_plan_s() < 0.99 * setting_.step_s)
        setting_.warnings.push_back(fmt::format(
            "the planner's sizes for all GPUs are faster ({:.4g} s) than the scenario's ({:.4g} s): plan first",
            times->whole_plan_s(), setting_.step_s));
      run.speed = [times](std::span<const int> lost) { return times->progress(lost); };
    } else {
      const int replicas = replicas_;
      run.speed = [replicas](std::span<const int> lost) { return 1 - static_cast<double>(lost[0]) / replicas; };
    }
  }

  void set_times() {
    GoodputRun& run = setting_.run;
    const bool whole = !request_.recovery.empty() || !request_.downtime.empty();
    if (whole) {
      if (!(request_.detection + request_.hang_timeout + request_.diagnosis + request_.replacement + request_.init +
            request_.load + request_.reconfigure)
               .empty()) {
        fail("--recovery and --downtime exclude flags of their phases");
      }
      run.init =
          duration_of(request_.recovery.empty() ? 0 : parse_seconds(request_.recovery, "--recovery"), "--recovery");
      run.reconfigure = run.init;
      if (!request_.downtime.empty()) failure_.diagnosis = parse_random_time(request_.downtime, "--downtime");
    } else {
      failure_.detection = time("--detection", request_.detection, "60s", "assumed");
      failure_.hang_detection =
          time("--hang-timeout", request_.hang_timeout, "10min", "default time-out of NCCL in PyTorch (PR 110947)");
      failure_.diagnosis = time("--diagnosis", request_.diagnosis, "0s", "assumed: automatic, within the detection");
      run.replacement = time("--replacement", request_.replacement, "0s", "assumed: spares are warm");
      run.init =
          fixed_time("--init", request_.init, 300 + 3e-3 * setting_.gpus,
                     "5 min to restart (arXiv 2410.21680), and 3 ms per GPU for NCCL (MegaScale: 30 s at 10,000)");
      run.reconfigure = run.policy == RecoveryPolicy::migrate || continues_without(run.policy)
                            ? fixed_time("--reconfigure", request_.reconfigure, 180,
                                         "stall of FT-HSDP per failure (arXiv 2602.00277)")
                            : Duration{};
    }
    run.start = request_.start.empty() ? run.init : duration_of(parse_seconds(request_.start, "--start"), "--start");
    if (request_.start.empty() && whole) run.start = {};
    replaces_nodes_ = !whole || request_.spares || !request_.repair.empty();
    if (replaces_nodes_) failure_.repair = time("--repair", request_.repair, "exp:2h", "automatic repair in AIReSim");
  }

  void set_failures() {
    FailureModel model;
    if (!request_.failure_log.empty()) {
      if (request_.log_gpu_hours <= 0) fail("--failure-log needs --log-gpu-hours");
      model = fit_failures(request_.failure_log, request_.log_gpu_hours);
    } else if (request_.mtbf.empty() && request_.node_failures <= 0) {
      model = load_failures(request_.failures);
    }
    failure_.gpus = setting_.gpus;
    failure_.node_gpus = setting_.node_gpus;
    if (scenario_ && !scenario_->training.pipeline_before_data && setting_.run.replicas == replicas_) {
      const Training& training = scenario_->training;
      failure_.neighbor_replicas = std::min<double>(
          replicas_, std::max(1.0, std::floor(static_cast<double>(setting_.node_gpus) / (training.tp * training.cp))));
    }
    setting_.run.causes = causes_of(model, failure_);
    setting_.failures = model.name;
    if (!request_.mtbf.empty() || request_.node_failures > 0) set_job_mtbf();
    if (request_.wall_clock) convert_wall_clock();
    for (FailureCause& cause : setting_.run.causes) {
      if (!replaces_nodes_) cause.nodes = 0;
    }
    for (const std::string& text : request_.stragglers) add_straggler(text);
    price_stragglers();
    check_count();
  }

  void add_straggler(const std::string& text) {
    const std::size_t first = text.find(':');
    const std::size_t last = text.find(':', first + 1);
    double slowdown = 0;
    if (last < text.size()) std::from_chars(text.data() + first + 1, text.data() + last, slowdown);
    if (!(slowdown > 1 && slowdown <= 1000))
      fail(fmt::format("--straggler: expected BETWEEN:SLOWDOWN:DURATION with a slowdown above 1, got {:?}", text));
    FailureCause cause{.name = fmt::format("slow rank, {:.4g} times", slowdown), .kind = FailureKind::slow};
    cause.between = {RandomTime::Kind::exponential, parse_seconds(text.substr(0, first), "--straggler"), 0};
    cause.duration = parse_random_time(text.substr(last + 1), "--straggler");
    cause.slowdown = slowdown;
    setting_.run.causes.push_back(cause);
  }

  void set_job_mtbf() {
    const double nodes = setting_.gpus / setting_.node_gpus;
    const std::string text =
        request_.mtbf.empty() ? fmt::format("{}s", 86400 * 1000 / (request_.node_failures * nodes)) : request_.mtbf;
    RandomTime between = parse_random_time(text, "--mtbf");
    if (between.mean_s <= 0) fail("--mtbf: expected a time above 0");
    const bool plain = text.find_first_not_of("0123456789.") == std::string::npos;
    if (plain) fail(fmt::format("--mtbf: expected a time with its unit, such as {0}h or {0}s", request_.mtbf));
    if (between.kind == RandomTime::Kind::fixed) between.kind = RandomTime::Kind::exponential;
    FailureComponent any;
    any.name = "any";
    any.gpu_hours = between.mean_s / 3600 * setting_.gpus;
    setting_.run.causes = causes_of({.name = {}, .source = {}, .components = {any}}, failure_);
    FailureCause& cause = setting_.run.causes[0];
    if (between.kind != RandomTime::Kind::exponential) {
      cause.units = 1;
      cause.between = between;
    }
    setting_.failures = request_.mtbf.empty() ? fmt::format("{} per 1,000 nodes and day", request_.node_failures)
                                              : fmt::format("a failure every {}", request_.mtbf);
  }

  // Failures do not occur during the downtime of others: their running time is shorter.
  void convert_wall_clock() {
    double rate = 0;
    double down = 0;
    for (const FailureCause& cause : setting_.run.causes) {
      rate += cause.failures_per_s();
      const double replaced = cause.nodes > 0 ? setting_.run.replacement.mean_s : 0;
      down += cause.failures_per_s() * (cause.detection.mean_s + cause.diagnosis.mean_s + replaced);
    }
    if (down >= 1)
      fail(fmt::format("--mtbf-clock wall: failures every {:.4g} s leave no time after downtimes of {:.4g} s", 1 / rate,
                       down / rate));
    for (FailureCause& cause : setting_.run.causes) cause.between = cause.between.scaled(1 - down);
  }

  void price_stragglers() {
    std::map<double, double> known;
    for (FailureCause& cause : setting_.run.causes) {
      if (cause.kind != FailureKind::slow) continue;
      if (!known.contains(cause.slowdown)) {
        known[cause.slowdown] =
            scenario_ ? iteration_slowdown(*scenario_, setting_.step_s, cause.slowdown) : cause.slowdown;
      }
      if (!scenario_)
        assume(fmt::format("{}: iteration {:.3g} times as long", cause.name, cause.slowdown), "no scenario");
      cause.slowdown = known[cause.slowdown];
    }
  }

  void check_count() {
    double rate = 0;
    for (const FailureCause& cause : setting_.run.causes) {
      rate += cause.failures_per_s();
      if (cause.kind == FailureKind::crash || cause.kind == FailureKind::hang ||
          cause.kind == FailureKind::corruption) {
        rollbacks_ += cause.failures_per_s();
      }
    }
    setting_.rollback_mtbf_s = rollbacks_ > 0 ? 1 / rollbacks_ : kLongestRun_s;
    const double seconds = request_.days.value_or(30) * 86400;
    if (rate * seconds > 1e6)
      fail(fmt::format("{:.3g} failures in a run are more than the 1000000 that are simulated", rate * seconds));
  }

  double checkpoint_bytes() {
    if (request_.checkpoint_bytes > 0) return request_.checkpoint_bytes;
    if (!scenario_ || !scenario_->model) return 0;
    const Training& training = scenario_->training;
    const double each = training.optimizer_bytes + 2;
    assume(fmt::format("checkpoints of {:.3g} TB", each * static_cast<double>(parameters(*scenario_->model)) / 1e12),
           fmt::format("{} bytes per parameter: optimizer states, 32-bit and 16-bit weights", each).c_str());
    return each * static_cast<double>(parameters(*scenario_->model));
  }
  double rate(const char* flag, double given, double fallback, const char* source) {
    if (given > 0) return given;
    assume(fmt::format("{} {:.4g}GB/s", flag, fallback / 1e9), source);
    return fallback;
  }

  void set_checkpoints() {
    GoodputRun& run = setting_.run;
    const double bytes = setting_.checkpoint_bytes = checkpoint_bytes();
    const bool peers = request_.checkpoint == "peer";
    const bool sync = request_.checkpoint == "sync";
    const bool needs_rates = bytes > 0 && !(sync && !request_.stall.empty() && !request_.load.empty());
    double write = 0, read = 0, host = 0;
    const double gpus = setting_.gpus;
    if (needs_rates) {
      write = rate("--write-rate", request_.write_rate, gpus * 40e9 / 504,
                   "40 GB/s for 504 GPUs (arXiv 2605.09370), scaled");
      read = rate("--read-rate", request_.read_rate, gpus * 150e9 / 504,
                  "150 GB/s for 504 GPUs (arXiv 2605.09370), scaled");
      const double link = scenario_ && scenario_->cluster ? scenario_->cluster->host_link_bytes_per_s : 0;
      host = rate("--host-rate", request_.host_rate, link > 0 ? link : 25e9,
                  link > 0 ? "the cluster's link to the host" : "assumed: PCIe 4 x16");
    }
    const bool sharded = !scenario_ || scenario_->training.distributed_optimizer;
    const double per_rank = bytes / (sharded ? gpus : gpus / replicas_);
    const double copied = needs_rates ? (request_.host_rate > 0 ? 0 : kStaging_s) + per_rank / host : 0;
    if (needs_rates && !sync && request_.stall.empty() && request_.host_rate <= 0) {
      assume(fmt::format("{}s per checkpoint besides its bytes", kStaging_s),
             "PyTorch's distributed checkpoints: a stall of 0.78 s for 0.53 GB per GPU");
    }
    const double written = needs_rates ? bytes / write : 0;
    const double per_replica = bytes / (gpus / replicas_);
    const double loaded = !needs_rates ? 0 : peers ? per_replica / host : std::max(bytes / read, per_replica / host);
    if (bytes <= 0 && request_.stall.empty())
      assume("--checkpoint-stall 0s", "neither a model nor --checkpoint-size is given");
    if (!request_.recovery.empty() || !request_.downtime.empty()) {
      run.load = {};
    } else if (!request_.load.empty() || bytes > 0) {
      run.load = request_.load.empty() ? duration_of(loaded, "load")
                                       : duration_of(parse_seconds(request_.load, "--load"), "--load");
    }
    const double stall = !request_.stall.empty() ? parse_seconds(request_.stall, "--checkpoint-stall")
                         : sync                  ? written
                                                 : copied;
    const double rest = sync ? 0 : peers ? copied * (request_.copies - 1) : written;
    const double durable =
        request_.durable.empty() ? stall + rest : parse_seconds(request_.durable, "--checkpoint-durable");
    if (durable < stall) fail("--checkpoint-durable: expected at least the stall");
    run.stall = duration_of(stall, "--checkpoint-stall");
    run.durable = duration_of(durable, "--checkpoint-durable");
    if (peers) set_peers(needs_rates ? std::max(bytes / read, per_replica / host) : to_seconds(run.load));
  }

  void set_peers(double storage_load_s) {
    const double hosts = std::ceil(setting_.gpus / setting_.node_gpus);
    if (hosts < request_.copies)
      fail(fmt::format("--copies {}: expected at most the number of nodes, {:.0f}", request_.copies, hosts));
    for (FailureCause& cause : setting_.run.causes) {
      cause.copies_survive = copies_survive(static_cast<int>(hosts), request_.copies, cause.nodes);
    }
    setting_.run.storage_interval = fixed_time("--storage-interval", request_.storage_interval, 3600, "assumed");
    setting_.run.storage_load = duration_of(storage_load_s, "load");
  }

  void set_end() {
    double steps = static_cast<double>(request_.steps);
    if (request_.tokens > 0) {
      if (setting_.tokens_per_step <= 0) fail("--tokens needs a scenario with a sequence length; use --steps");
      steps = std::ceil(request_.tokens / setting_.tokens_per_step);
    }
    GoodputRun& run = setting_.run;
    if (steps * setting_.step_s > kLongestRun_s)
      fail(fmt::format("{:.4g} iterations take longer than {:.0f} days", steps, kLongestRun_s / 86400));
    run.work = duration_of(steps * setting_.step_s, "--steps");
    const double days = request_.days.value_or(30);
    if (!request_.days && steps == 0) assume("--days 30", "a month");
    run.horizon = duration_of(steps > 0 && !request_.days ? kLongestRun_s : days * 86400, "--days");
  }

  void set_spares() {
    setting_.run.crews = request_.crews;
    if (request_.spares) {
      setting_.run.spares = *request_.spares;
      return;
    }
    double load = 0;
    for (const FailureCause& cause : setting_.run.causes)
      load += cause.failures_per_s() * cause.nodes * cause.repair.mean_s;
    int spares = 0;
    while (spares < 100000 && erlang_b(spares + 1, load) > 1e-3) ++spares;
    setting_.run.spares = spares;
    if (load > 0)
      assume(fmt::format("--spares {}", spares),
             fmt::format("at most 0.1 % of the time without one, with {:.3g} nodes in repair on average", load));
  }

  void set_interval() {
    GoodputRun& run = setting_.run;
    const double stall = to_seconds(run.stall);
    const double step = setting_.step_s;
    setting_.shortest = std::max(run.step, run.durable - run.stall);
    const double mtbf = setting_.rollback_mtbf_s;
    double seconds = 0;
    if (request_.interval == "best" || request_.interval == "exact") {
      setting_.searched_interval = request_.interval == "best";
      seconds = exact_interval(stall, mtbf);
    } else if (request_.interval == "young") {
      seconds = young_interval(stall, mtbf);
    } else if (request_.interval == "daly") {
      seconds = daly_interval(stall, mtbf);
    } else if (request_.interval.ends_with("steps")) {
      seconds =
          parse_seconds(request_.interval.substr(0, request_.interval.size() - 5), "--checkpoint-interval") * step;
    } else {
      seconds = parse_seconds(request_.interval, "--checkpoint-interval");
    }
    if (!(seconds <= kLongestRun_s)) seconds = kLongestRun_s;
    run.interval = std::max(setting_.shortest, duration_of(seconds, "--checkpoint-interval"));
  }

  const GoodputRequest& request_;
  const nlohmann::json& document_;
  std::optional<Scenario> scenario_;
  int replicas_ = 1;
  FailureSetting failure_;
  bool replaces_nodes_ = true;  // otherwise --recovery and --downtime include that
  double rollbacks_ = 0;
  GoodputSetting setting_;
};

}  // namespace

GoodputSetting goodput_setting(const GoodputRequest& request, const nlohmann::json& document) {
  return SettingBuilder(request, document).build();
}

}  // namespace sluice::tools

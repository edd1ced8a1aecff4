#include "tools/goodput/goodput_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/errors.h"
#include "sim/goodput/failures.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"

namespace sluice::tools {
namespace {

constexpr double kMostValue = 1e15;

void add_failure_flags(CLI::App& command, GoodputRequest& request) {
  command.option_defaults()->group("Failures");
  const std::string failures =
      fmt::format("Rates of failures per GPU-hour: a file (sluice.failures/1) or one of {} (default llama3-405b)",
                  fmt::join(catalogue_failures(), ", "));
  command.add_option("--failures", request.failures, failures)->type_name(kNameOrFile);
  command.add_option("--mtbf", request.mtbf,
                     "Mean time between failures of the job, with its unit, such as 3.1h, or a distribution "
                     "(uniform:45min:75min), in place of --failures (default: from --failures)");
  command
      .add_option("--node-failures", request.node_failures,
                  "Failures per 1,000 nodes and day, in place of --failures, above 0 (default: from --failures)")
      ->check(number_from(1e-6, 1e6))
      ->excludes("--mtbf");
  command
      .add_option(
          "--straggler", request.stragglers,
          "A slow rank, besides failures: time between two in the job, slowdown and duration, such as "
          "12h:1.34:72min; repeatable. With a scenario the iteration is simulated with a rank that is slower by "
          "this factor, otherwise the factor is the iteration's (default: none)")
      ->expected(1)
      ->take_all();
  command
      .add_option_function<std::string>(
          "--mtbf-clock", [&request](const std::string& clock) { request.wall_clock = clock == "wall"; },
          "What failures are counted against: run, the time that the job runs or starts, or wall, which includes "
          "detection, diagnosis and replacement (default: run)")
      ->check(CLI::IsMember({"run", "wall"}));
  command
      .add_option("--failure-log", request.failure_log,
                  "CSV file with a column component and a line per failure, in place of --failures (default: none)")
      ->type_name(kReadFile);
  command
      .add_option("--log-gpu-hours", request.log_gpu_hours,
                  "GPU-hours during which --failure-log was written, above 0 (default: required with it)")
      ->check(number_from(1e-3, kMostValue));
}

void add_recovery_flags(CLI::App& command, GoodputRequest& request) {
  command.option_defaults()->group("Recovery");
  const auto time = [&](const char* flag, std::string& into, const char* help) {
    command.add_option(flag, into, help)->type_name("TIME");
  };
  command
      .add_option(
          "--policy", request.policy,
          "After a failure: restart from a checkpoint on spare or repaired nodes; migrate the state to a spare "
          "node and repeat the iteration; shrink, as restart, but with fewer replicas while no spare is free; "
          "drop the replica, repeat the iteration and let it rejoin later; reroute, as drop, but only the "
          "lost pipeline rank is missing, whose microbatches other replicas compute; replan, as shrink, but with "
          "the best parallel sizes for the nodes that are left (default: restart)")
      ->check(CLI::IsMember(std::vector<std::string>(kRecoveryPolicies.begin(), kRecoveryPolicies.end())));
  command
      .add_option_function<std::string>(
          "--lost-batch", [&request](const std::string& batch) { request.keep_batch = batch == "keep"; },
          "Without a replica: keep the global batch with more microbatches of the others, or drop its sequences "
          "(default: keep)")
      ->check(CLI::IsMember({"keep", "drop"}));
  command
      .add_option("--spares", request.spares,
                  "Number of spare nodes, 0 to 100000 (default: such that the job waits at most 0.1 % of the time)")
      ->check(CLI::Range(0, 100000));
  command
      .add_option("--spare-target", request.spare_target,
                  "Also print the number of spares with which the job waits for nodes at most this fraction of the "
                  "time, such as 0.1% (default: off)")
      ->transform(fraction(1));
  command
      .add_option("--crews", request.crews,
                  "Number of nodes that are repaired concurrently, 0 to 100000; 0: all (default 0)")
      ->check(CLI::Range(0, 100000));
  command
      .add_option("--spare-gpus", request.node_gpus,
                  "GPUs per node that spares replace, 1 to 4096 (default: the cluster's, or 8)")
      ->check(CLI::Range(1, 4096));
  time("--detection", request.detection, "Time from a failure until the job stops (default 60s)");
  time("--hang-timeout", request.hang_timeout, "The same for hangs (default 10min)");
  time("--diagnosis", request.diagnosis, "Time to find the broken node (default 0s)");
  time("--replacement", request.replacement, "Time to put a spare node in its place (default 0s)");
  time("--repair", request.repair, "Time to repair a node (default exp:2h)");
  time("--init", request.init, "Time to start processes and communicators (default: 5 min, and 3 ms per GPU)");
  time("--load", request.load, "Time to load a checkpoint (default: from its size and --read-rate)");
  time("--reconfigure", request.reconfigure, "Time to change the ranks with migrate, drop and reroute (default 180s)");
  time("--start", request.start, "Time to start the run (default: --init)");
  time("--recovery", request.recovery,
       "Time to start and load after a failure, in place of all phases; another failure starts it again (default: "
       "the phases)");
  time("--downtime", request.downtime,
       "Time after a failure before that, without failures, in place of all phases (default: the phases)");
}

void add_checkpoint_flags(CLI::App& command, GoodputRequest& request) {
  command.option_defaults()->group("Checkpoints");
  const auto time = [&](const char* flag, std::string& into, const char* help) {
    command.add_option(flag, into, help)->type_name("TIME");
  };
  const auto scaled = [&](const char* flag, double& into, double unit, const char* help) {
    command
        .add_option_function<double>(
            flag, [&into, unit](double value) { into = value * unit; }, help)
        ->check(number_from(1e-6, 1e9));
  };
  command
      .add_option("--checkpoint", request.checkpoint,
                  "sync: training stops until a checkpoint is in storage; async: until it is copied to the host; peer: "
                  "copies are in the memory of other hosts, and sometimes in storage (default: async)")
      ->check(CLI::IsMember({"sync", "async", "peer"}));
  command
      .add_option("--checkpoint-interval", request.interval,
                  "Training time between checkpoints: a time, 100steps, young, daly, exact, or best, by simulation "
                  "(default: best)")
      ->type_name("TIME");
  time("--checkpoint-stall", request.stall, "Time that a checkpoint stops training (default: from its size)");
  time("--checkpoint-durable", request.durable,
       "Time from the begin of a checkpoint until it can be loaded (default: from its size)");
  scaled("--checkpoint-size", request.checkpoint_bytes, 1e12,
         "Size of a checkpoint in TB (default: that of the model and its optimizer states)");
  scaled("--write-rate", request.write_rate, 1e9,
         "Rate of writing to storage, all GPUs together, in GB/s (default: 0.079 per GPU)");
  scaled("--read-rate", request.read_rate, 1e9, "Rate of reading from it, in GB/s (default: 0.298 per GPU)");
  scaled("--host-rate", request.host_rate, 1e9,
         "Rate between a GPU and its host, in GB/s (default: the cluster's, or 25)");
  command
      .add_option("--copies", request.copies,
                  "Number of hosts with the same state, with --checkpoint peer, 2 to 8 (default 2)")
      ->check(CLI::Range(2, 8));
  time("--storage-interval", request.storage_interval,
       "Time between checkpoints in storage, with --checkpoint peer (default 1h)");
}

void add_cost_flags(CLI::App& command, GoodputRequest& request) {
  command.option_defaults()->group("Cost");
  command
      .add_option("--gpu-hour-price", request.gpu_hour_price,
                  "Price of a GPU-hour in dollars, at least 0 (default: not printed)")
      ->check(number_from(0, 1e6));
  command
      .add_option("--kw-per-gpu", request.kw_per_gpu,
                  "Power per GPU with its part of the node in kW, at least 0 (default: not printed)")
      ->check(number_from(0, 1e3));
  command.add_option("--kwh-price", request.kwh_price, "Price of a kWh in dollars, at least 0 (default: not printed)")
      ->check(number_from(0, 1e3));
  command.add_option("--pue", request.pue, "Power of the data center over that of the nodes, 1 to 10 (default 1)")
      ->check(number_from(1, 10));
}

void add_run_flags(CLI::App& command, GoodputRequest& request) {
  command
      .add_option("--days", request.days,
                  "Days of wall clock, above 0 to 1000 (default 30; with --tokens or --steps: until they are done)")
      ->check(number_from(1e-6, 1000));
  command.add_option("--tokens", request.tokens, "Number of tokens to train (default: until the end of --days)")
      ->check(number_from(1, 1e18));
  command
      .add_option("--steps", request.steps,
                  "Number of iterations to train, in place of --tokens (default: until the end of --days)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->excludes("--tokens");
  command.add_option("--step-time", request.step_time, "Time of an iteration (default: predicted for the scenario)")
      ->type_name("TIME");
  command.add_option("--trials", request.trials, "Number of simulated runs, 1 to 1000000 (default 1000)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}));
  command.add_option("--seed", request.seed, "Random seed, at least 0 (default 1)");
}

}  // namespace

void add_goodput_flags(CLI::App& command, GoodputRequest& request) {
  add_run_flags(command, request);
  add_failure_flags(command, request);
  add_recovery_flags(command, request);
  add_checkpoint_flags(command, request);
  add_cost_flags(command, request);
  command.option_defaults()->group("Options");
  command.add_flag_callback(
      "--quick", [&request] { request.sensitivity = false; },
      "Neither search the best interval, unless it is used, nor halve causes (default: off)");
}

void read_goodput_flags(GoodputRequest& request, std::vector<std::string> words) {
  CLI::App app;
  add_goodput_flags(app, request);
  try {
    std::reverse(words.begin(), words.end());
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    throw InputError(std::string("goodput: ") + error.what());
  }
}

}  // namespace sluice::tools

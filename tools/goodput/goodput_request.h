#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/goodput/goodput.h"

namespace sluice::tools {

// What `sluice goodput` simulates, besides the scenario document. Times are texts of parse_random_time; an empty text
// is a default, which the output names.
struct GoodputRequest {
  std::string file;
  std::string step_time;  // in place of a simulation of the scenario
  std::optional<double> days;
  double tokens = 0;       // to train; 0: until the end of --days
  std::int64_t steps = 0;  // the same in iterations
  std::string failures = "llama3-405b";
  std::string failure_log;  // CSV in place of it, observed during
  double log_gpu_hours = 0;
  std::string mtbf;                     // in place of both: of the job
  double node_failures = 0;             // in place of all: per 1,000 nodes and day
  std::vector<std::string> stragglers;  // BETWEEN:SLOWDOWN:DURATION of the job
  bool wall_clock = false;              // failures are counted per wall clock, including recoveries
  std::string policy = "restart";
  bool keep_batch = true;  // without replicas
  std::optional<int> spares;
  int crews = 0;
  int node_gpus = 0;  // 0: the cluster's
  std::string checkpoint = "async";
  std::string interval = "best";
  std::string stall, durable, storage_interval;
  double checkpoint_bytes = 0;
  double write_rate = 0, read_rate = 0, host_rate = 0;  // bytes per second; the last one per GPU
  int copies = 2;
  std::string start, detection, hang_timeout, diagnosis, replacement, repair, init, load, reconfigure;
  std::string recovery, downtime;      // in place of these
  std::optional<double> spare_target;  // fraction of the time that the job may wait for nodes
  double gpu_hour_price = 0, kw_per_gpu = 0, kwh_price = 0, pue = 1;
  std::int64_t trials = 1000;
  std::uint64_t seed = 1;
  bool sensitivity = true;
};

// A value that was not given, and where it is from.
struct GoodputAssumption {
  std::string what;
  std::string source;
};

struct GoodputSetting {
  sim::GoodputRun run;
  double gpus = 0;
  int node_gpus = 8;
  double step_s = 0;
  double mfu = 0;  // of an iteration at full speed; 0: unknown
  double tokens_per_step = 0;
  double checkpoint_bytes = 0;
  std::string failures;  // their name
  bool searched_interval = false;
  Duration shortest{};         // interval
  double rollback_mtbf_s = 0;  // running time between failures that lose work
  std::vector<GoodputAssumption> assumed;
  std::vector<std::string> warnings;
};

// Resolves a request: simulates the scenario, if it has one, reads failures, and computes all times. Throws InputError.
GoodputSetting goodput_setting(const GoodputRequest& request, const nlohmann::json& document);

}  // namespace sluice::tools

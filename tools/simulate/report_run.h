#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/scenario/setup.h"
#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "sim/engine/predict.h"
#include "traces/report/report.h"

namespace sluice::tools {

// Returns the bytes per rank that are available to the tensors of its memory curve: the device's memory minus the
// reserved part, divided by the allocator's overhead. Empty without a model and a cluster.
std::optional<std::int64_t> tensor_capacity(const Setup& setup, const Prediction& prediction);

// Returns the name of a setup's schedule: its family, "auto", or the name of its file without folder and extension.
std::string schedule_name(const Setup& setup);

// Returns for example "zb-v, 4 ranks, 8 microbatches".
std::string run_title(const Setup& setup);

// Dispatch and combine of experts per iteration: the mean over ranks, of which a part is exposed.
struct ExpertCommunication {
  double seconds = 0;
  double exposed_s = 0;
  double hidden() const { return seconds > 0 ? 1 - exposed_s / seconds : 0; }
};
// Returns 0 s without expert parallelism.
ExpertCommunication expert_communication(const Setup& setup);

// Returns the figures of a report that a timeline alone has: bubble, span, critical path.
std::vector<ReportMetric> timeline_headline(const Metrics& metrics, const std::vector<IdleByCause>& idle,
                                            const CriticalPath& path);

// Adds to a report what the prediction of a setup rests on. `document` specifies the setup's scenario.
void add_assumptions(Report& report, const Setup& setup, const nlohmann::json& document);

// Returns a run to draw. Refers to `setup` and `prediction`, which must contain memory curves.
DrawnRun drawn_run(const Setup& setup, const Prediction& prediction);

// Returns a run of a report. Refers to `setup` and `prediction`, which must contain memory curves.
ReportRun report_run(const Setup& setup, const Prediction& prediction, std::string scenario);

}  // namespace sluice::tools

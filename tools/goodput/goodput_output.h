#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/command/document.h"
#include "tools/goodput/goodput_request.h"

namespace sluice::tools {

// The run whose goodput is the median of a result of goodput_json, with the interval that this used.
class MedianRun {
 public:
  MedianRun(const GoodputRequest& request, const GoodputSetting& setting, const OrderedJson& results);

  // Returns a picture: progress over time, how the time is used, and the failures by cause.
  std::string svg() const;
  // Returns a Chrome trace: a track with the uses of time, one with the failures, and the number of replicas. 1 us of
  // the trace is 1 us of the run.
  std::string chrome_trace() const;
  // Returns a self-contained HTML page with the results, the picture and the assumptions.
  std::string page(const std::string& command_line) const;

 private:
  const OrderedJson& results_;
  GoodputRun run_;
  TrialResult result_;
  TrialHistory history_;
};

// Simulates a request and returns its results (docs/formats.md, sluice.goodput/1).
OrderedJson goodput_json(const GoodputRequest& request, const GoodputSetting& setting);

// Returns the results as text on one screen, and the use of time as CSV, one row per cause.
std::string goodput_text(const OrderedJson& results);
std::string goodput_csv(const OrderedJson& results);
std::string assumptions_text(const OrderedJson& assumptions);

}  // namespace sluice::tools

#include "traces/measured/read_measured.h"

#include <memory>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "traces/chrome/trace_events.h"
#include "traces/measured/measured_rows.h"
#include "traces/measured/primus.h"
#include "traces/read/trace_read.h"

namespace sluice::traces {

MeasuredRun read_bytedance_timeline(TraceSource& source) {
  const NameMap names;
  NamedOps ops(names);
  source.read([&](TraceEvent& event, const TraceHead&) { ops.add(event, 0, source.name()); });
  return std::move(ops).finish("ByteDance timeline", source.name());
}

MeasuredRun read_measured_run(const std::vector<std::string>& paths, const MeasuredReadOptions& options) {
  if (is_primus_log(paths)) return read_primus_log(paths);
  const NameMap default_names;
  const NameMap& names = options.names != nullptr ? *options.names : default_names;
  NamedOps ops(names);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto file = static_cast<int>(i);
    auto own = std::make_unique<TraceSource>(paths[i]);
    TraceSource& source = *own;
    // Its ops have none of the names, and one pass suffices.
    if (options.names == nullptr && paths.size() == 1 && source.is_trace() && source.is_sluice()) {
      std::vector<std::unique_ptr<TraceSource>> sources;
      sources.push_back(std::move(own));
      return measured_rows(read_trace_run(std::move(sources), {.causes = false}), paths[0]);
    }
    const TraceHead head =
        source.read([&](TraceEvent& event, const TraceHead&) { ops.add(event, file, source.name()); });
    if (!head.is_trace) {
      throw InputError(paths[i] + ": expected a timeline: a Chrome trace, or a folder of pp_rank_N.json of Primus");
    }
    if (head.rank) ops.set_rank(file, *head.rank);
  }
  if (!ops.empty()) {
    return std::move(ops).finish(options.names != nullptr ? "named ops" : "ByteDance timeline", paths[0]);
  }
  if (options.names != nullptr) {
    throw InputError(paths[0] + ": expected ops with the names of " + names.source() + ", got none");
  }
  return measured_rows(read_trace_run(paths, {.causes = false}), paths[0]);
}

}  // namespace sluice::traces

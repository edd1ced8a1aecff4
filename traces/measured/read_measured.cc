#include "traces/measured/read_measured.h"

#include <memory>
#include <optional>
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

namespace {

// Reads the kernels of each file as a GPU trace.
class ProfileFiles {
 public:
  explicit ProfileFiles(const MeasuredReadOptions& options) : options_(options) {}

  void open(const std::string& path) {
    if (options_.profile != nullptr) reader_.emplace(path);
  }
  void add(const TraceEvent& event) {
    if (reader_) reader_->add(event);
  }
  // Keeps the kernels of the file unless there are ops of a pipeline, in this file or before.
  void close(const TraceHead& head, bool has_ops) {
    if (!reader_) return;
    pipeline_ |= has_ops || reader_->has_pipeline_ranges();
    if (!options_.kernels && pipeline_) return options_.profile->clear();
    for (GpuTrace& trace : std::move(*reader_).finish(head)) options_.profile->push_back(std::move(trace));
  }
  bool found() const { return options_.profile != nullptr && !options_.profile->empty(); }

 private:
  const MeasuredReadOptions& options_;
  std::optional<GpuTraceReader> reader_;
  bool pipeline_ = false;
};

}  // namespace

MeasuredRun read_measured_run(const std::vector<std::string>& paths, const MeasuredReadOptions& options) {
  if (is_primus_log(paths)) return read_primus_log(paths);
  const NameMap default_names;
  const NameMap& names = options.names != nullptr ? *options.names : default_names;
  NamedOps ops(names);
  ProfileFiles profile(options);
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
    profile.open(paths[i]);
    const TraceHead head = source.read([&](TraceEvent& event, const TraceHead&) {
      profile.add(event);
      if (!options.kernels) ops.add(event, file, source.name());
    });
    if (!head.is_trace) {
      throw InputError(paths[i] + ": expected a timeline: a Chrome trace, or a folder of pp_rank_N.json of Primus");
    }
    if (head.rank) ops.set_rank(file, *head.rank);
    if (options.names == nullptr) profile.close(head, !ops.empty());
  }
  if (profile.found()) return {};
  if (!ops.empty()) {
    return std::move(ops).finish(options.names != nullptr ? "named ops" : "ByteDance timeline", paths[0]);
  }
  if (options.names != nullptr) {
    throw InputError(paths[0] + ": expected ops with the names of " + names.source() + ", got none");
  }
  return measured_rows(read_trace_run(paths, {.causes = false}), paths[0]);
}

}  // namespace sluice::traces

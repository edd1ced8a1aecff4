#include "traces/read/trace_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string_view>

#include "model/errors.h"
#include "model/input/protected_files.h"
#include "traces/chrome/trace_events.h"
#include "traces/read/kineto.h"
#include "traces/read/row_causes.h"
#include "traces/read/sluice_trace.h"

namespace sluice::traces {
namespace {

namespace fs = std::filesystem;

// Natural order: digits compare as numbers, so that "rank9" precedes "rank10".
bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto number = [&](const std::string& text, std::size_t& at) {
    const std::size_t begin = std::min(text.find_first_not_of('0', at), text.size());
    std::size_t end = std::max(begin, at);
    while (end < text.size() && digit(text[end])) ++end;
    at = end;
    return std::string_view(text).substr(std::min(begin, end), end - std::min(begin, end));
  };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const std::string_view x = number(a, i);
      const std::string_view y = number(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

bool is_trace_name(const std::string& name) { return name.ends_with(".json") || name.ends_with(".json.gz"); }

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_trace_name(entry.path().filename().string()) && entry.is_regular_file(error)) {
      files.push_back(entry.path().string());
    }
  }
  if (error) throw InputError(fmt::format("{}: {}", folder, error.message()));
  if (files.empty()) throw InputError(folder + ": expected files that end in .json or .json.gz, got none");
  std::sort(files.begin(), files.end(), natural_less);
  return files;
}

// Ensures that no sum of times overflows.
void check_sums(const RunRows& run, const std::string& source) {
  constexpr double kMaxNanoseconds = 4e18;
  double sum = 0;
  for (const OpRow& row : run.rows) {
    sum += static_cast<double>((row.end - row.start).count()) + static_cast<double>(row.latency.count());
  }
  for (const IdleByCause& idle : run.idle) {
    for (const Duration time : idle) sum += static_cast<double>(time.count());
  }
  if (sum > kMaxNanoseconds) throw InputError(source + ": the sum of all times exceeds 126 years");
}

TraceRun with_causes(TraceRun run, const TraceReadOptions& options, const std::string& source) {
  check_sums(run.run, source);
  if (options.causes && run.run.idle.empty()) run.run.idle = idle_of_rows(run.run);
  return run;
}

// The events of an array, which has no head: the first slice shows whether Sluice wrote it.
class HeadlessEvents {
 public:
  HeadlessEvents(KinetoRank& kineto, SluiceTraceReader& sluice) : kineto_(kineto), sluice_(sluice) {}

  void add(const TraceEvent& event) {
    if (!known_ && event.phase != "X") {
      if (early_.size() < kMaxEarly) early_.push_back(event);
      return;
    }
    if (!known_) {
      known_ = true;
      constexpr std::string_view kCategories[] = {"compute", "p2p", "coll", "opt", "part", "idle"};
      is_sluice_ = std::find(std::begin(kCategories), std::end(kCategories), event.category) != std::end(kCategories);
      // Kineto's readers use slices only.
      for (const TraceEvent& early : early_) {
        if (is_sluice_) add_early(early);
      }
      early_ = {};
    }
    is_sluice_ ? sluice_.add(event) : kineto_.add(event);
  }

  bool is_sluice() const { return is_sluice_; }

 private:
  static constexpr std::size_t kMaxEarly = 100'000;

  void add_early(const TraceEvent& event) {
    if (event.name == "process_name" && !event.args_name.starts_with("rank ")) {
      throw InputError(
          fmt::format("{}: event {}: expected a trace of one run with processes \"rank 0\", ..., got \"{}\"",
                      kineto_.source(), event.number, event.args_name));
    }
    sluice_.add(event);
  }

  KinetoRank& kineto_;
  SluiceTraceReader& sluice_;
  std::vector<TraceEvent> early_;
  bool known_ = false;
  bool is_sluice_ = false;
};

// Builds a run from the events of one or several sources, of which `next` returns the next one, or null.
template <typename Next>
TraceRun run_of(std::size_t num_files, const TraceReadOptions& options, Next&& next) {
  std::vector<KinetoRank> ranks;
  for (std::size_t i = 0; i < num_files; ++i) {
    const std::unique_ptr<TraceSource> own = next(i);
    TraceSource& source = *own;
    const std::string& path = source.name();
    KinetoRank kineto(path);
    SluiceTraceReader sluice(path);
    HeadlessEvents headless(kineto, sluice);
    TraceHead head = source.read([&](TraceEvent& event, const TraceHead& so_far) {
      if (so_far.is_array) return headless.add(event);
      so_far.is_sluice ? sluice.add(event) : kineto.add(event);
    });
    if (headless.is_sluice()) {
      head.is_sluice = true;
      head.schema = "sluice.trace/1";
    }
    if (!head.is_trace) throw InputError(path + ": expected a trace: an object with an array traceEvents, or an array");
    if (head.is_sluice) {
      if (num_files != 1) {
        throw InputError(
            fmt::format("{}: a Sluice trace contains all ranks: expected one file, got {}", path, num_files));
      }
      TraceRun run = std::move(sluice).finish(head, options);
      return with_causes(std::move(run), options, path);
    }
    kineto.finish(head);
    ranks.push_back(std::move(kineto));
  }
  const std::string first = ranks.front().source();
  return with_causes(kineto_run(std::move(ranks), options), options, first);
}

std::vector<std::string> named_files(const std::string& argument) {
  std::error_code error;
  if (fs::is_directory(argument, error)) return files_of(argument);
  if (fs::exists(argument, error) || argument.find(',') == std::string::npos) return {argument};
  std::vector<std::string> files;
  for (std::size_t begin = 0; begin <= argument.size();) {
    const std::size_t end = std::min(argument.find(',', begin), argument.size());
    files.push_back(argument.substr(begin, end - begin));
    if (!fs::exists(files.back(), error)) {
      throw InputError(fmt::format("{}: file '{}' does not exist", argument, files.back()));
    }
    begin = end + 1;
  }
  return files;
}

}  // namespace

std::vector<std::string> trace_files(const std::string& argument) {
  std::vector<std::string> files = named_files(argument);
  // All of them, before one that cannot be read ends the command.
  for (const std::string& file : files) note_input(file);
  return files;
}

TraceRun read_trace_run(const std::vector<std::string>& paths, const TraceReadOptions& options) {
  return run_of(paths.size(), options, [&](std::size_t i) { return std::make_unique<TraceSource>(paths[i]); });
}

TraceRun read_trace_run(std::vector<std::unique_ptr<TraceSource>> sources, const TraceReadOptions& options) {
  return run_of(sources.size(), options, [&](std::size_t i) { return std::move(sources[i]); });
}

}  // namespace sluice::traces

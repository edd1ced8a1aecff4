#include "traces/read/trace_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "model/errors.h"
#include "traces/chrome/trace_events.h"
#include "traces/read/kineto.h"
#include "traces/read/own_trace.h"
#include "traces/read/row_causes.h"

namespace sluice::traces {
namespace {

namespace fs = std::filesystem;

// "rank10" behind "rank9": runs of digits compare as numbers.
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

// Ends the reading of a file once it is known what it is.
struct EnoughSeen {};

// Sums of times fit where all of them together do.
void check_sums(const RunRows& run, const std::string& source) {
  constexpr double kMostNanoseconds = 4e18;
  double sum = 0;
  for (const OpRow& row : run.rows) {
    sum += static_cast<double>((row.end - row.start).count()) + static_cast<double>(row.latency.count());
  }
  for (const IdleByCause& idle : run.idle) {
    for (const Duration time : idle) sum += static_cast<double>(time.count());
  }
  if (sum > kMostNanoseconds) throw InputError(source + ": all times together pass 126 years");
}

TraceRun with_causes(TraceRun run, const std::string& source) {
  check_sums(run.run, source);
  if (run.run.idle.empty()) run.run.idle = idle_of_rows(run.run);
  return run;
}

// `read` hands the events of a file to a function and returns its head.
template <typename Read>
TraceRun run_of(const std::vector<std::string>& paths, const TraceReadOptions& options, Read&& read) {
  std::vector<KinetoRank> ranks;
  for (const std::string& path : paths) {
    KinetoRank kineto(path);
    OwnTraceReader own(path);
    const TraceHead head = read(
        path, [&](TraceEvent& event, const TraceHead& so_far) { so_far.is_ours ? own.add(event) : kineto.add(event); });
    if (!head.is_trace) throw InputError(path + ": expected a trace: an object with an array traceEvents");
    if (head.is_ours) {
      if (paths.size() != 1) {
        throw InputError(
            fmt::format("{}: a trace of ours holds all ranks: expected it alone, got {} files", path, paths.size()));
      }
      TraceRun run = std::move(own).finish(head, options);
      return with_causes(std::move(run), path);
    }
    kineto.finish(head);
    ranks.push_back(std::move(kineto));
  }
  return with_causes(kineto_run(std::move(ranks), options), paths.front());
}

}  // namespace

std::vector<std::string> trace_files(const std::string& word) {
  std::error_code error;
  if (fs::is_directory(word, error)) return files_of(word);
  if (fs::exists(word, error) || word.find(',') == std::string::npos) return {word};
  std::vector<std::string> files;
  for (std::size_t begin = 0; begin <= word.size();) {
    const std::size_t end = std::min(word.find(',', begin), word.size());
    files.push_back(word.substr(begin, end - begin));
    if (!fs::exists(files.back(), error)) throw InputError(fmt::format("{}: there is no '{}'", word, files.back()));
    begin = end + 1;
  }
  return files;
}

bool is_trace_file(const std::string& path) {
  try {
    return read_trace_events(path, [](TraceEvent&, const TraceHead&) { throw EnoughSeen{}; }).is_trace;
  } catch (const EnoughSeen&) {
    return true;
  }
}

TraceRun read_trace_run(const std::vector<std::string>& paths, const TraceReadOptions& options) {
  return run_of(paths, options, read_trace_events);
}

TraceRun read_trace_run_text(std::string_view text, const std::string& source, const TraceReadOptions& options) {
  return run_of({source}, options, [text](const std::string& name, const auto& on_event) {
    return read_trace_text(text, name, on_event);
  });
}

}  // namespace sluice::traces

#include "tests/support/kineto_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "model/input/files.h"
#include "model/schedule/op_text.h"

namespace sluice::test {
namespace {

constexpr std::int64_t kBase = 1'700'000'000'123'456'789;
constexpr std::int64_t kLead = 50'000'000;  // from the base to the first op

// The file of a rank: distributedInfo, baseTimeNanoseconds and events are filled in.
constexpr std::string_view kFile = R"json(
  {{
    "schemaVersion": 1,
    "deviceProperties": [
    {{
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85031714816,
      "computeMajor": 9, "computeMinor": 0
    }}
    ],{}
      "with_stack": 0,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": {},
  "traceEvents": [
  {{
    "name": "process_name", "ph": "M", "ts": 0.000, "pid": 0, "tid": 0,
    "args": {{
      "name": "python"
    }}
  }},
{}  {{
    "ph": "X", "cat": "Trace", "ts": 1.000, "dur": 2.000,
    "pid": "Spans", "tid": "PyTorch Profiler",
    "name": "PyTorch Profiler (0)",
    "args": {{
      "Op count": 0
    }}
  }},
  {{
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 99.000
  }}
  ],
  "traceName": "trace.json"
}}
)json";

// One range, in ns from the base.
struct Range {
  std::string name;
  std::int64_t start = 0;
  std::int64_t end = 0;
  int stream = 7;
};

std::string action_of(const RowOp& op) {
  std::string text;
  append_op_text(text, Op{.microbatch = op.microbatch, .stage = op.stage, .kind = op.kind}, false);
  return text;
}

std::string micros(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string event(const char* category, const std::string& name, const std::string& pid, int tid, std::int64_t start,
                  std::int64_t duration, std::int64_t correlation = -1) {
  return fmt::format(R"(  {{
    "ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {},
    "ts": {}, "dur": {},
    "args": {{
      "External id": 17{}
    }}
  }},
)",
                     category, name, pid, tid, micros(start), micros(duration),
                     correlation < 0 ? "" : fmt::format(", \"correlation\": {}", correlation));
}

// Returns the ranges of a rank in one iteration, in time order.
std::vector<Range> ranges_of(const RunRows& run, int rank, bool transfers) {
  std::vector<Range> ranges;
  for (const OpRow& row : run.rows) {
    const std::int64_t start = row.start.count();
    const std::int64_t end = row.end.count();
    if (row.kind == RowKind::transfer && transfers) {
      const bool forward = row.op.kind == OpKind::F;
      const char* letter = forward ? "F" : "B";
      if (row.rank == rank) {
        ranges.push_back({fmt::format("PP:{}SEND_{}{}", row.op.stage, letter, row.op.microbatch), start, end, 20});
      }
      if (row.peer == rank) {
        const int stage = row.op.stage + (forward ? 1 : -1);
        const std::int64_t arrives = end + row.latency.count();
        ranges.push_back({fmt::format("PP:{}RECV_{}{}", stage, letter, row.op.microbatch), start, arrives, 24});
      }
    }
    if (row.rank != rank || !occupies_rank(row.kind)) continue;
    if (row.kind == RowKind::recompute || row.kind == RowKind::optimizer) continue;
    const std::string action = row.kind == RowKind::joint
                                   ? "(" + action_of(row.op) + ";" + action_of(row.partner) + ")OVERLAP_F_B"
                                   : action_of(row.op);
    ranges.push_back({"PP:" + action, start, end, 7});
  }
  std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.start < b.start; });
  return ranges;
}

bool is_backward(const std::string& name) { return name.find_first_of("BIW", 3) != std::string::npos; }

// Removes the ops before the start and after the end of the recording, with the transfers before and after them.
void cut(std::vector<Range>& ranges, const KinetoStyle& style) {
  const auto is_op = [](const Range& range) { return range.stream == 7; };
  for (int i = 0; i < style.cut_front; ++i) {
    ranges.erase(ranges.begin(), std::next(std::find_if(ranges.begin(), ranges.end(), is_op)));
  }
  for (int i = 0; i < style.cut_back; ++i) {
    ranges.erase(std::prev(std::find_if(ranges.rbegin(), ranges.rend(), is_op).base()), ranges.end());
  }
}

}  // namespace

std::string kineto_text(const RunRows& run, int rank, const KinetoStyle& style) {
  std::int64_t makespan = 0;
  for (const OpRow& row : run.rows) makespan = std::max(makespan, row.end.count());
  const std::int64_t ahead = style.clocks.empty() ? 0 : style.clocks[rank].count();
  const std::vector<Range> one = ranges_of(run, rank, style.transfers);
  std::vector<Range> ranges;
  std::string body;
  for (int i = 0; i < style.iterations; ++i) {
    const std::int64_t begin = kLead + ahead + i * (makespan + style.gap.count());
    for (Range range : one) {
      range.start += begin;
      range.end += begin;
      ranges.push_back(std::move(range));
    }
    if (!style.steps) continue;
    const std::string step = fmt::format("ProfilerStep#{}", style.first_step + i);
    const std::int64_t ahead_of_gpu = style.launches ? 25'000 : 0;
    body += event("user_annotation", step, "4711", 4711, begin - 100 - ahead_of_gpu, makespan + 200);
    if (style.gpu) body += event("gpu_user_annotation", step, "0", 7, begin - 1, makespan + 2);
  }
  cut(ranges, style);
  std::int64_t launched = 0;
  for (const Range& range : ranges) {
    // With a GPU, the CPU range is the launch: 20 us earlier, 5 us long.
    const std::int64_t length = range.end - range.start;
    body += event("user_annotation", range.name, "4711", 4711, style.gpu ? range.start - 20'000 : range.start,
                  style.gpu ? 5'000 : length);
    if (!style.gpu) continue;
    const bool by_autograd = style.launches && range.stream == 7 && is_backward(range.name);
    const std::int64_t correlation = style.launches && range.stream == 7 ? ++launched : -1;
    if (correlation >= 0) {
      body += event("cuda_runtime", "cudaLaunchKernel", "4711", by_autograd ? 4712 : 4711, range.start - 18'000, 1'000,
                    correlation);
    }
    body += event("kernel", "void gemm<float>()", "0", range.stream, range.start, length, correlation);
    // Every other backward has a range, of one kernel that scales its loss.
    if (by_autograd && correlation % 2 == 0) continue;
    body += event("gpu_user_annotation", range.name, "0", range.stream, range.start - 1,
                  by_autograd ? std::min<std::int64_t>(length, 1'000) : length + 2);
    // An op also launches a collective on another stream.
    if (range.stream == 7) body += event("gpu_user_annotation", range.name, "0", 28, range.start + 10, 7);
  }
  const std::string info = style.distributed_info
                               ? fmt::format(R"(
      "distributedInfo": {{"backend": "nccl", "rank": {}, "world_size": {}, "pg_count": 1, "nccl_version": "2.26.2"}},)",
                                             rank * style.world_rank_step, run.num_ranks * style.world_rank_step)
                               : "";
  return fmt::format(kFile, info, kBase, body);
}

std::vector<std::string> write_kineto_files(const std::string& folder, const RunRows& run, const KinetoStyle& style) {
  std::vector<std::string> paths;
  for (int rank = 0; rank < run.num_ranks; ++rank) {
    paths.push_back(fmt::format("{}/rank{}.json", folder, rank));
    write_file_whole(paths.back(), kineto_text(run, rank, style));
  }
  return paths;
}

}  // namespace sluice::test

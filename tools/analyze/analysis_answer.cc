#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tools/analyze/analysis.h"
#include "traces/measured/remedies.h"

namespace sluice::tools {
namespace {

constexpr double kWorthALine = 0.001;  // of a step

// What to do about a cause whose replay is that of the remedy: without the cause.
std::string remedy_of(const MeasuredRun& run, const SlowCause& cause) {
  switch (cause.kind) {
    case SlowCause::Kind::stage:
      return "too little for a layer to move: divide head and embedding, or check its device";
    case SlowCause::Kind::worker:
      return cause.worker < 0 ? "check or replace them"
                              : fmt::format("check or replace device and host of {}", run.name_of(cause.worker));
    case SlowCause::Kind::replica: return "balance sequences over replicas";
    case SlowCause::Kind::link: return "check cables, NICs and switches between them";
    case SlowCause::Kind::pause: return "find what ran then: garbage collection, checkpoints, other jobs";
    case SlowCause::Kind::sequence_lengths: return "balance sequences over microbatches and replicas";
    case SlowCause::Kind::collectives: return "find what delays the slow ones: a slow rank, or traffic of other jobs";
    case SlowCause::Kind::host: return "launch ahead: fewer synchronizations, CUDA graphs";
  }
  return "";
}

}  // namespace

std::vector<AnswerLine> answer_of(const MeasuredRun& run, const std::vector<StepGraph>& graphs,
                                  const Counterfactuals& what_if, std::optional<int> layers) {
  std::vector<AnswerLine> lines;
  bool moved = false;
  for (const SlowCause& cause : what_if.causes) {
    AnswerLine line{std::string(name_of(cause.kind)), cause.what, remedy_of(run, cause), cause.saved_seconds,
                    cause.saved_seconds};
    // One division of the layers answers for all stages, and one of the sequences for all replicas.
    if (cause.kind == SlowCause::Kind::stage && moved) continue;
    if (cause.kind == SlowCause::Kind::stage) {
      if (const std::optional<StepRemedy> remedy = move_layers(run, graphs, layers)) {
        moved = true;
        line.remedy = remedy->text;
        line.gain_seconds = remedy->saved_seconds;
      }
    }
    if (cause.kind == SlowCause::Kind::replica) {
      if (std::any_of(lines.begin(), lines.end(), [&](const AnswerLine& other) { return other.kind == line.kind; }))
        continue;
      const StepRemedy remedy = balance_replicas(run, graphs);
      line.remedy = remedy.text;
      line.gain_seconds = remedy.saved_seconds;
    }
    lines.push_back(std::move(line));
  }
  const double transfers = what_if.replayed - what_if.free_transfers;
  if (transfers > kWorthALine * what_if.measured) {
    lines.push_back({"transfers", "pipeline transfers are exposed",
                     "overlap them with compute, or place neighboring ranks closer", transfers, transfers});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const AnswerLine& a, const AnswerLine& b) { return a.cause_seconds > b.cause_seconds; });
  return lines;
}

}  // namespace sluice::tools

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/to_size.h"
#include "tools/analyze/answer.h"
#include "tools/analyze/profile_analysis.h"
#include "tools/command/document.h"

namespace sluice::tools {
namespace {

std::vector<AnswerLine> profile_answer(const ProfileAnalysis& analysis) {
  std::vector<AnswerLine> lines;
  for (const KernelCause& cause : analysis.what_if.causes) {
    lines.push_back({cause.kind, cause.cause, cause.remedy, cause.saved_seconds, cause.saved_seconds});
  }
  return lines;
}

double per_step(const ProfiledRank& rank, Duration time) {
  return to_seconds(time) / static_cast<double>(std::max<std::size_t>(rank.steps.size(), 1));
}

class ProfileText : private TextLines {
 public:
  ProfileText(const ProfileAnalysis& analysis, std::size_t top) : analysis_(analysis), top_(top) {}

  std::string text() {
    out_ = analysis_.what_if.steps.empty() ? "no step was recorded on all ranks: no replay\n\n"
                                           : answer_text(profile_answer(analysis_), analysis_.what_if.measured);
    write_traces();
    write_ranks();
    write_classes();
    write_kernels();
    return std::move(out_);
  }

 private:
  void write_traces() {
    const std::vector<std::int64_t>& steps = analysis_.ranks[0].steps;
    const bool whole = steps.empty() || steps.front() < 0;
    std::int64_t kernels = 0;
    for (const ProfiledRank& rank : analysis_.ranks) kernels += rank.kernels;
    line("PyTorch profile: {} {}, {}, {} kernels", analysis_.ranks.size(),
         analysis_.ranks.size() == 1 ? "rank" : "ranks",
         whole ? "no ProfilerStep, so that the whole trace is one step"
               : fmt::format("{} {} (number {} to {})", steps.size(), steps.size() == 1 ? "step" : "steps",
                             steps.front(), steps.back()),
         kernels);
    if (!analysis_.calls.empty()) {
      std::map<std::string, std::int64_t> count;
      for (const MatchedCall& call : analysis_.calls) ++count[call.name];
      std::string text;
      for (const auto& [name, number] : count) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", number, name);
      line("matched between ranks: {}", text);
    }
    if (!analysis_.slowest.empty()) line("slowest: {}", analysis_.slowest);
    for (const std::string& note : analysis_.notes) line("note: {}", note);
  }

  void write_ranks() {
    const StepUnit unit = unit_of(per_step(analysis_.ranks[0], analysis_.ranks[0].sum.span));
    line("\n{:<14} {:>9} {:>9} {:>19} {:>9} {:>19} {:>9} {:>9}", fmt::format("{} per step", unit.name), "span",
         "compute", "communication", "copies", "idle", "waits in", "others");
    line("{:<14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}", "", "", "", "exposed", "hidden", "exposed",
         "all", "for host", "calls", "wait");
    for (std::size_t i = 0; i < std::min(top_, analysis_.ranks.size()); ++i) {
      const ProfiledRank& rank = analysis_.ranks[i];
      std::string row = fmt::format("{:<14}", rank.name);
      for (const Duration time :
           {rank.sum.span, rank.sum.compute, rank.sum.exposed_communication, rank.sum.hidden_communication(),
            rank.sum.exposed_copies, rank.sum.idle, rank.sum.idle_for_host, rank.waits.waits, rank.waits.keeps}) {
        row += fmt::format(" {:>9}", unit.text(per_step(rank, time)));
      }
      line("{}", row);
    }
    if (analysis_.ranks.size() > top_) line("and {} more (--top)", analysis_.ranks.size() - top_);
  }

  double percent(double seconds) const { return analysis_.kernel_s > 0 ? 100 * seconds / analysis_.kernel_s : 0; }

  void write_classes() {
    line("\n{:<16} {:>10} {:>8} {:>10}", "class", "total s", "of all", "kernels");
    for (const auto& [name, row] : analysis_.classes) {
      line("{:<16} {:>10.4f} {:>6.1f} % {:>10}", name, row.total_s, percent(row.total_s), row.count);
    }
  }

  void write_kernels() {
    line("\n{:>10} {:>8} {:>8} {:>10}  {:<13} {}", "total s", "of all", "kernels", "mean us", "class", "kernel");
    for (std::size_t i = 0; i < std::min(top_, analysis_.kernels.size()); ++i) {
      const KernelRow& row = analysis_.kernels[i];
      line("{:>10.4f} {:>6.1f} % {:>8} {:>10.1f}  {:<13} {}", row.total_s, percent(row.total_s), row.count,
           1e6 * row.total_s / static_cast<double>(row.count), name_of(row.kind),
           short_kernel_name(row.name).substr(0, 70));
    }
    if (analysis_.kernels.size() > top_) line("and {} more names (--top)", analysis_.kernels.size() - top_);
  }

  const ProfileAnalysis& analysis_;
  std::size_t top_;
};

OrderedJson breakdown_document(const Breakdown& of, double steps) {
  const auto seconds = [&](Duration time) { return to_seconds(time) / steps; };
  return {{"span_s", seconds(of.span)},
          {"compute_s", seconds(of.compute)},
          {"communication_s", seconds(of.communication)},
          {"exposed_communication_s", seconds(of.exposed_communication)},
          {"hidden_communication_s", seconds(of.hidden_communication())},
          {"copies_s", seconds(of.copies)},
          {"exposed_copies_s", seconds(of.exposed_copies)},
          {"idle_s", seconds(of.idle)},
          {"idle_for_host_s", seconds(of.idle_for_host)}};
}

OrderedJson rank_document(const ProfiledRank& rank) {
  OrderedJson out = {{"rank", rank.rank}, {"name", rank.name}, {"source", rank.source}, {"kernels", rank.kernels}};
  out["mean"] = breakdown_document(rank.sum, static_cast<double>(std::max<std::size_t>(rank.steps.size(), 1)));
  auto& steps = out["steps"] = OrderedJson::array();
  for (std::size_t i = 0; i < rank.steps.size(); ++i) {
    OrderedJson step = breakdown_document(rank.breakdowns[i], 1);
    step["step"] = rank.steps[i] < 0 ? OrderedJson(nullptr) : OrderedJson(rank.steps[i]);
    steps.push_back(std::move(step));
  }
  auto& classes = out["class_s"] = OrderedJson::object();
  for (int kind = 0; kind < kNumKernelClasses; ++kind) {
    classes[std::string(name_of(static_cast<GpuKernelClass>(kind)))] = rank.class_s[to_size(kind)];
  }
  out["calls"] = {{"matched", rank.waits.calls},
                  {"started_last", rank.waits.last},
                  {"waits_s", per_step(rank, rank.waits.waits)},
                  {"others_wait_s", per_step(rank, rank.waits.keeps)}};
  return out;
}

OrderedJson kernel_document(const KernelRow& row, double all) {
  return {{"class", std::string(name_of(row.kind))},
          {"collective", row.collective.empty() ? OrderedJson(nullptr) : OrderedJson(row.collective)},
          {"count", row.count},
          {"total_s", row.total_s},
          {"mean_s", row.total_s / static_cast<double>(row.count)},
          {"fraction", all > 0 ? row.total_s / all : 0}};
}

}  // namespace

std::string profile_text(const ProfileAnalysis& analysis, std::size_t top) { return ProfileText(analysis, top).text(); }

OrderedJson profile_document(const ProfileAnalysis& analysis) {
  OrderedJson out;
  out["schema"] = "sluice.profile/1";
  out["answer"] = answer_document(profile_answer(analysis), analysis.what_if.measured);
  out["mean_step"] = {{"steps", analysis.what_if.steps},
                      {"measured_s", analysis.what_if.measured},
                      {"replayed_s", analysis.what_if.replayed}};
  if (!analysis.what_if.steps.empty() && analysis.what_if.steps[0] < 0) out["mean_step"]["steps"] = nullptr;
  auto& ranks = out["ranks"] = OrderedJson::array();
  for (const ProfiledRank& rank : analysis.ranks) ranks.push_back(rank_document(rank));
  out["slowest"] = analysis.slowest.empty() ? OrderedJson(nullptr) : OrderedJson(analysis.slowest);
  std::map<std::string, std::int64_t> count;
  for (const MatchedCall& call : analysis.calls) ++count[call.name];
  out["calls"] = {{"matched", count},
                  {"unmatched_collective_kernels", analysis.num_unmatched},
                  {"unmatched_send_receive_kernels", analysis.num_unmatched_sends}};
  auto& classes = out["classes"] = OrderedJson::array();
  for (const auto& [name, row] : analysis.classes) {
    OrderedJson each = {{"name", name}};
    each.update(kernel_document(row, analysis.kernel_s));
    classes.push_back(std::move(each));
  }
  auto& kernels = out["kernels"] = OrderedJson::array();
  for (const KernelRow& row : analysis.kernels) {
    OrderedJson each = {{"name", row.name}};
    each.update(kernel_document(row, analysis.kernel_s));
    kernels.push_back(std::move(each));
  }
  out["notes"] = analysis.notes;
  return out;
}

}  // namespace sluice::tools

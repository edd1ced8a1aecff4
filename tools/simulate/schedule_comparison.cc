#include "tools/simulate/schedule_comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "sim/engine/parallel.h"
#include "tools/simulate/report_run.h"
#include "tools/simulate/sweep.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

constexpr const char* kFlag = "--compare-with ";

// Throws InputError with all names for a word that is none.
void check_word(const std::string& word) {
  if (word == kAutomatic || compares_with_file(word)) return;
  try {
    static_cast<void>(find_family(word, kFlag + word));
  } catch (const InputError& unknown) {
    std::vector<std::string_view> names;
    for (const Family& family : all_families()) names.push_back(family.name);
    throw InputError(
        fmt::format("{}; expected a scenario file, auto, or a family: {}", unknown.what(), fmt::join(names, ", ")));
  }
}

OtherRun compared_run(const std::string& word, const nlohmann::json& document, const std::string& file,
                      const std::atomic<bool>* stop) {
  OtherRun out{.word = word, .run = {}, .error = {}};
  try {
    out.run = second_run(word, document, file, stop);
  } catch (const InputError& reason) {
    if (compares_with_file(word)) throw;
    out.error = reason.what();
  } catch (const ScheduleError& reason) {
    if (compares_with_file(word)) throw;
    out.error = reason.what();
  }
  return out;
}

// Returns the number of layers of each stage, without those of multi-token prediction.
std::vector<int> layers_of(const Setup& setup) {
  std::vector<int> out;
  for (const StageContents& stage : setup.stages()) out.push_back(stage.layers);
  return out;
}

OrderedJson row_of(const std::string& word, const Setup& setup, const Prediction& prediction, double first_s) {
  OrderedJson row = {{"schedule", word}};
  row.update(run_results(setup, prediction));
  row["relative_time"] = known(first_s > 0 ? prediction.iteration_s() / first_s : 0);
  row["chunks"] = setup.schedule().num_chunks();
  row["slices"] = setup.schedule().max_slices();
  if (!setup.stages().empty()) row["layers_per_stage"] = layers_of(setup);
  return row;
}

// Returns "4, 5x6, 2" for numbers of which several in a row are equal.
std::string run_lengths_of(const OrderedJson& numbers) {
  std::vector<std::string> out;
  for (std::size_t i = 0, next = 0; i < numbers.size(); i = next) {
    while (next < numbers.size() && numbers[next] == numbers[i]) ++next;
    out.push_back(numbers[i].dump() + (next - i > 1 ? fmt::format("x{}", next - i) : ""));
  }
  return fmt::format("{}", fmt::join(out, ", "));
}

// Returns the reason of a row without the flag and the schedule, which stand before it.
std::string reason_of(const OrderedJson& row) {
  auto reason = row["error"].get<std::string>();
  const auto name = row["schedule"].get<std::string>() + ": ";
  for (const std::string& prefix : {kFlag + name, name}) {
    if (reason.starts_with(prefix)) reason.erase(0, prefix.size());
  }
  return reason;
}

std::string parameters_of(const OrderedJson& row, const auto& shown) {
  std::vector<std::string> out;
  const auto add = [&](const char* key, const std::string& text) {
    if (row.contains(key) && shown(key)) out.push_back(text);
  };
  add("chunks", counted(row.value("chunks", 0), "chunk", "s"));
  add("slices", counted(row.value("slices", 0), "slice", "s"));
  add("layers_per_stage", "layers " + run_lengths_of(row.value("layers_per_stage", OrderedJson::array())));
  return fmt::format("{}", fmt::join(out, ", "));
}

bool differs(const OrderedJson& rows, const char* key) {
  const OrderedJson& first = rows.front();
  return std::any_of(rows.begin(), rows.end(), [&](const OrderedJson& row) {
    return !row.contains("error") && row.value(key, OrderedJson()) != first.value(key, OrderedJson());
  });
}

}  // namespace

std::vector<OtherRun> compared_runs(const std::vector<std::string>& words, const nlohmann::json& document,
                                    const std::string& file, const std::atomic<bool>* stop) {
  std::for_each(words.begin(), words.end(), check_word);
  const bool searches = std::find(words.begin(), words.end(), kAutomatic) != words.end();
  nlohmann::json plain = document;
  if (searches) ScenarioFlags::drop_automatic_keys(plain);
  std::vector<OtherRun> out(words.size());
  parallel_for(std::ssize(words), [&](std::int64_t i) {
    const std::string& word = words[static_cast<std::size_t>(i)];
    out[static_cast<std::size_t>(i)] = compared_run(word, word == kAutomatic ? document : plain, file, stop);
  });
  const bool any = std::any_of(out.begin(), out.end(), [](const OtherRun& each) { return each.simulated(); });
  if (!any && !out.empty()) throw InputError(out.front().error);
  return out;
}

OrderedJson comparison_json(const Setup& first, const Prediction& prediction, std::span<const OtherRun> others) {
  const double first_s = prediction.iteration_s();
  OrderedJson out = OrderedJson::array({row_of(schedule_name(first), first, prediction, first_s)});
  for (const OtherRun& other : others) {
    if (!other.simulated()) {
      out.push_back({{"schedule", other.word}, {"error", other.error}});
      continue;
    }
    OrderedJson& row = out.emplace_back(row_of(other.word, *other.run.setup, other.run.prediction, first_s));
    row["adapted"] = other.run.adapted.changes;
    row["inherited"] = other.run.adapted.inherited;
  }
  return out;
}

std::string comparison_parameters(const OrderedJson& row) {
  return parameters_of(row, [](const char*) { return true; });
}

std::string comparison_table(const OrderedJson& rows) {
  OrderedJson lines = rows;
  const bool twice = std::any_of(rows.begin() + 1, rows.end(),
                                 [&](const OrderedJson& row) { return row["schedule"] == rows.front()["schedule"]; });
  if (twice) lines.front()["schedule"] = rows.front()["schedule"].get<std::string>() + " (given)";
  for (OrderedJson& row : lines) {
    if (!row.value("fits", true)) row["verdict"] = "does not fit";
    row["parameters"] = row.contains("error") ? "not possible: " + reason_of(row)
                                              : parameters_of(row, [&](const char* key) { return differs(rows, key); });
  }
  return table(
      "<schedule={schedule}|iteration=[{iteration_s:t}]|ratio=[{relative_time:.3f}]|bubble=[{bubble_fraction:.1%}]|"
      "MFU=[{mfu:.1%}]|in flight=[{peak_in_flight:.4g}]|peak GiB=[{peak_memory_bytes:.2G}]|"
      "<memory=[{verdict}]|<parameters={parameters}",
      lines);
}

}  // namespace sluice::tools

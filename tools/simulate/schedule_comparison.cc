#include "tools/simulate/schedule_comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "sim/engine/parallel.h"
#include "sim/planner/partition.h"
#include "sim/planner/plan_space.h"
#include "tools/simulate/report_run.h"
#include "tools/simulate/sweep.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

constexpr int kMostChunks = 8;
constexpr PartitionLimits kEffort = {.vertices = 1'000'000, .simulations = 16, .nodes = 20'000};
// Of a schedule without a flush, which is simulated in full for every partition.
constexpr PartitionLimits kEffortWithoutFlush = {.vertices = 16, .simulations = 16, .nodes = 20'000};

// One configuration of the schedule and its result.
struct Choice {
  Json document;
  Scenario scenario;
  PlanResult result{.status = PlanStatus::refused};
};

auto order_of(const PlanResult& result) {
  return std::tuple(result.status != PlanStatus::simulated, !result.fits,
                    result.fits ? result.iteration.count() : result.needed_bytes);
}

class OwnBest {
 public:
  OwnBest(const Json& given, const Json& adapted, const std::vector<std::string>& fixed,
          const std::function<Scenario(const Json&)>& read, const std::atomic<bool>* stop)
      : given_(given), adapted_(adapted), fixed_(fixed), read_(read), stop_(stop) {}

  // Returns the best configuration, or none without the analytic cost model or a backward.
  std::optional<Choice> run() const {
    const Scenario scenario = read_(adapted_);
    if (scenario.schedule == kAutomatic || names_file(scenario.schedule)) return std::nullopt;
    if (!scenario.model || !scenario.cluster || scenario.cost != CostKind::analytic) return std::nullopt;
    if (scenario.training.pp < 2 || scenario.training.forward_only()) return std::nullopt;
    const Family& family = find_family(scenario.schedule);
    Choice best{.document = adapted_, .scenario = scenario};
    const std::vector<int> chunks = chunks_for(family, scenario);
    const std::vector<int> slices = slices_for(family);
    for (const int v : chunks) {
      for (const int k : slices) consider(with(adapted_, v, k), best);
    }
    if (best.result.status != PlanStatus::simulated) return std::nullopt;
    if (!is_given(keys_.layers)) divide_layers(family, best);
    return best;
  }

 private:
  bool is_given(const char* key) const {
    const Json::json_pointer place(key);
    return (given_.contains(place) && !given_.at(place).is_null() && adapted_.contains(place)) ||
           std::any_of(fixed_.begin(), fixed_.end(), [&](const std::string& each) { return is_within(key, each); });
  }
  bool is_given(std::span<const char* const> keys) const {
    return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return is_given(key); });
  }

  // Numbers to try; 0: as in the document.
  std::vector<int> chunks_for(const Family& family, const Scenario& scenario) const {
    if (family.fixed_chunks != 0 || is_given(keys_.chunks) || is_given(keys_.layers)) return {0};
    std::vector<int> out;
    const int most = std::min(kMostChunks, scenario.model->layers / scenario.training.pp);
    for (int v = family.with_one_chunk.empty() ? 1 : 2; v <= most; ++v) out.push_back(v);
    if (out.empty()) out.push_back(0);
    return out;
  }
  std::vector<int> slices_for(const Family& family) const {
    if (!family.sliced || is_given(keys_.slices) || is_given(keys_.slice_lengths)) return {0};
    return {2, 4, 8};
  }

  Json with(Json document, int chunks, int slices) const {
    if (chunks > 0) document[Json::json_pointer(keys_.chunks)] = chunks;
    if (slices > 0) document[Json::json_pointer(keys_.slices)] = slices;
    return document;
  }

  void consider(Json document, Choice& best) const try {
    if (stop_ != nullptr && *stop_) return;
    Choice choice{.document = std::move(document), .scenario = {}};
    choice.scenario = read_(choice.document);
    choice.result = StructureRuns(choice.scenario).run(choice.scenario);
    if (order_of(choice.result) < order_of(best.result)) best = std::move(choice);
  } catch (const InputError&) {
    return;  // such as more slices than tokens
  }

  void divide_layers(const Family& family, Choice& best) const {
    const PartitionLimits& limits = family.asynchronous ? kEffortWithoutFlush : kEffort;
    Partition found = regular_partition(best.scenario, limits, stop_);
    if (order_of(found.result) >= order_of(best.result)) return;
    if (found.mtp_stage == kLastStage) {
      best.document[Json::json_pointer(keys_.stage_layers)] = found.layers;
    } else {
      const PlanPoint point{.pp = best.scenario.training.pp,
                            .chunks = static_cast<int>(std::ssize(found.layers)) / best.scenario.training.pp,
                            .stage_layers = found.layers,
                            .mtp_stage = found.mtp_stage};
      best.document[Json::json_pointer(keys_.layout)] = uneven_layout(best.scenario, point);
    }
    best.result = std::move(found.result);
  }

  const ScenarioFlags::ChoiceKeys& keys_ = ScenarioFlags::choice_keys();
  const Json& given_;
  const Json& adapted_;
  const std::vector<std::string>& fixed_;
  const std::function<Scenario(const Json&)>& read_;
  const std::atomic<bool>* stop_;
};

std::string value_at(const Json& document, const char* key, const std::string& otherwise) {
  const Json::json_pointer place(key);
  return document.contains(place) ? document.at(place).dump() : otherwise;
}

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
  for (const StageContents& stage : setup.stages()) {
    if (stage.embedding || !stage.has_encoder()) out.push_back(stage.layers);
  }
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

bool choose_own_best(Json& document, const Json& given, const std::vector<std::string>& fixed,
                     const std::function<Scenario(const Json&)>& read, ScenarioFlags::Adapted& adapted,
                     const std::atomic<bool>* stop) try {
  std::optional<Choice> best = OwnBest(given, document, fixed, read, stop).run();
  if (!best) return false;
  const std::string chunks = std::to_string(find_family(best->scenario.schedule).default_chunks);
  const ScenarioFlags::ChoiceKeys& keys = ScenarioFlags::choice_keys();
  for (const auto& [key, otherwise] : {std::pair<const char*, std::string>(keys.chunks, chunks),
                                       {keys.slices, "1"},
                                       {keys.stage_layers, "even"},
                                       {keys.layout, "even"}}) {
    const std::string before = value_at(given, key, otherwise);
    const std::string now = value_at(best->document, key, otherwise);
    const std::string what = fmt::format("{} {} -> ", Json::json_pointer(key).back(), before);
    if (value_at(document, key, otherwise) == now) continue;
    std::erase_if(adapted.changes, [&](const std::string& change) { return change.starts_with(what); });
    if (before != now) adapted.changes.push_back(what + now);
  }
  document = std::move(best->document);
  return true;
} catch (const InputError&) {
  return false;  // simulating the document reports it
} catch (const ScheduleError&) {
  return false;
}

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

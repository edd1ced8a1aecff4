#include "tools/command/assumptions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/cluster/catalogue.h"
#include "tools/command/calibration_warning.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

constexpr const char* kTableSource = "default: docs/formats.md, Scenario files";
constexpr std::size_t kMostLines = 6;

// --- settings -----------------------------------------------------------------------------------------------------

bool is_set(const Json& document, std::string_view pointer) {
  const Json::json_pointer place{std::string(pointer)};
  return document.contains(place) && !document.at(place).is_null();
}

// Whether the key has this number, or any word.
bool is_set_alike(const Json& document, std::string_view pointer, const Json& value) {
  return is_set(document, pointer) &&
         (value.is_string() || document.at(Json::json_pointer{std::string(pointer)}) == value);
}

// Whether the scenario has another value than the default, as far as its place has a number.
bool differs_from_default(const Setting& row, Scenario& scenario) {
  const Json fallback = Json::parse(row.fallback, nullptr, false);
  if (row.place == nullptr || fallback.is_discarded()) return false;
  const SettingPlace place = row.place(scenario);
  if (const auto* whole = std::get_if<int*>(&place)) return Json(**whole) != fallback;
  if (const auto* bytes = std::get_if<std::int64_t*>(&place)) return Json(**bytes) != fallback;
  if (const auto* real = std::get_if<double*>(&place)) return **real != fallback.get<double>();
  if (const auto* yes = std::get_if<bool*>(&place)) return Json(**yes) != fallback;
  return false;
}

template <typename Member>
bool is_place(const Setting& row, Scenario& scenario, Member& member) {
  if (row.place == nullptr) return false;
  const SettingPlace place = row.place(scenario);
  const auto* found = std::get_if<Member*>(&place);
  return found != nullptr && *found == &member;
}

// Settings whose rows need nothing else, but which have an effect only on several ranks or with narrow operands.
bool has_ranks_for(const Setting& row, Scenario& scenario) {
  Training& training = scenario.training;
  const bool shards = training.tp > 1, stages = training.pp > 1, replicas = training.dp * training.cp > 1;
  const std::pair<bool*, bool> needs[] = {{&training.sequence_parallel, shards},
                                          {&training.scatter_gather, shards && stages},
                                          {&training.pipeline_before_data, stages && (shards || replicas)},
                                          {&training.torch_pipelining, stages},
                                          {&training.distributed_optimizer, replicas},
                                          {&training.overlap_grad_reduce, replicas},
                                          {&training.narrow_activation_inputs, traits_of(training.precision).narrow()}};
  const bool ranks = std::all_of(std::begin(needs), std::end(needs), [&](const auto& need) {
    return need.second || !is_place(row, scenario, *need.first);
  });
  return ranks && (stages || !is_place(row, scenario, scenario.overlap_transfers));
}

// Whether the scenario has what a row's `with` requires for the setting to matter.
bool has_conditions(const Setting& row, const Json& document, Scenario& scenario, bool joint) {
  if (row.with.empty()) return has_ranks_for(row, scenario);
  const Json with = Json::parse(row.with);
  Training& training = scenario.training;
  if (with.contains("model") && !scenario.model->has_experts()) return false;
  if (with.contains("schedule") && !joint) return false;
  if (with.contains("cluster")) return false;  // narrow attention
  const Json sizes = with.value("parallelism", Json::object());
  for (const auto& [key, value] : sizes.items()) {
    const Setting* const other = find_setting("/parallelism/" + key);
    const bool beside = is_place(*other, scenario, training.tp) || is_place(*other, scenario, training.dp) ||
                        is_place(*other, scenario, training.sequence_parallel);
    if (beside && with.contains("model")) continue;  // of the example, not of the setting
    if (!differs_from_default(*other, scenario) && !is_set_alike(document, other->pointer, value)) return false;
  }
  return true;
}

bool is_assumed(const Setting& row, const Json& document, Scenario& scenario, const PredictedScenario& of) {
  constexpr std::string_view kSections[] = {"/parallelism/", "/software"};
  const bool of_section = std::any_of(std::begin(kSections), std::end(kSections),
                                      [&](std::string_view section) { return row.pointer.starts_with(section); });
  const bool size = row.kind == SettingKind::whole && row.megatron.ends_with("-parallel-size");
  if (!of_section || size || row.fallback.empty() || (row.reads & of.reader) == 0) return false;
  if ((row.reads & kBackward) != 0 && scenario.training.forward_only()) return false;
  if (row.group.starts_with("Schedule") || row.group.starts_with("Layers") || row.pointer.ends_with("gpus"))
    return false;
  const std::vector<std::string> others = split_words(row.drops);
  const bool set = is_set(document, row.pointer) || std::any_of(others.begin(), others.end(), [&](const auto& other) {
                     return is_set(document, other);
                   });
  return !set && !differs_from_default(row, scenario) && has_conditions(row, document, scenario, of.joint);
}

// --- catalogue ----------------------------------------------------------------------------------------------------

// Returns an entry of the catalogue with this name, with its file as "file".
std::optional<Json> entry_of(std::string_view folder, const std::string& name) {
  for (const CatalogueFile& file : catalogue_files()) {
    if (!file.name.starts_with(folder)) continue;
    Json entry = Json::parse(file.text);
    if (entry.value("name", "") != name) continue;
    entry["file"] = fmt::format("catalogue/{}.json", file.name);
    return entry;
  }
  return std::nullopt;
}

std::string source_of(const Json& entry, const char* key) {
  const Json& value = entry.contains(key) ? entry.at(key) : entry;
  const std::string source = value.is_object() ? value.value("source", "") : "";
  const auto file = entry.at("file").get<std::string>();
  return source.empty() ? file : file + ": " + source;
}

void add_catalogue(const Scenario& scenario, std::string_view heading, std::vector<Assumption>& out) {
  const Cluster& cluster = *scenario.cluster;
  const Link& link = cluster.nodes > 1 ? cluster.inter_node : cluster.intra_node;
  if (const auto entry = entry_of("links/", link.name)) {
    out.push_back({"network", "network",
                   fmt::format("{}, {:.0f} % of {:.4g} GB/s in collectives", link.name,
                               100 * link.collective_efficiency, link.bandwidth_bytes_per_s / 1e9),
                   source_of(*entry, "collective_efficiency"), heading});
  }
  const auto gpu = entry_of("gpus/", cluster.gpu.name);
  if (!gpu) return;
  const int bits = traits_of(scenario.training.precision).bits;
  const GemmConstants& gemm = cluster.gpu.gemm;
  const double clock = bits == 16 ? gemm.sustained_fraction : cluster.gpu.gemm_8bit.sustained_fraction;
  if (bits >= 8 && clock > 0) {
    out.push_back({"clock under power", "clock under power",
                   fmt::format("{:.0f} %, of the GEMM rates of short timings", 100 * clock),
                   source_of(*gpu, bits == 16 ? "gemm" : "gemm_8bit"), heading});
  }
  if (scenario.training.flash_attention) {
    out.push_back({"attention kernel", "attention kernel",
                   fmt::format("fused, {:.0f} % of the peak", 100 * cluster.gpu.attention_forward.peak_fraction),
                   source_of(*gpu, "attention_forward"), heading});
  }
}

// --- text ---------------------------------------------------------------------------------------------------------

// Returns "kernels" of "Kernels, precision and overlap".
std::string label_of(std::string_view heading) {
  std::string out(heading.substr(0, heading.find_first_of(" ,")));
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

// Returns `lead` and as many items as fit on a line.
std::string line_of(std::string lead, const std::vector<std::string>& items) {
  constexpr std::string_view kMore = ", 99 more (--json)";
  std::size_t shown = 0;
  for (const std::string& item : items) {
    const std::size_t room = kAssumptionColumns - (shown + 1 < items.size() ? kMore.size() : 0);
    if (lead.size() + 2 + item.size() > room) break;
    lead += (shown++ > 0 ? ", " : "") + item;
  }
  if (shown < items.size()) lead += fmt::format("{}{} more (--json)", shown > 0 ? ", " : "", items.size() - shown);
  return lead + "\n";
}

}  // namespace

bool has_joint_blocks(const Schedule& schedule) {
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto ops = schedule.ops(rank);
    if (std::any_of(ops.begin(), ops.end(), [](const Op& op) { return op.joined; })) return true;
  }
  return false;
}

std::vector<Assumption> assumptions_of(const PredictedScenario& of) {
  const Scenario& scenario = of.scenario;
  std::vector<Assumption> out;
  const bool uniform = scenario.cost == CostKind::uniform;
  for (const std::string& each : assumed_times(scenario)) {
    out.push_back({uniform ? "--uniform" : "model", "", each, uniform ? kTableSource : scenario.model->name, ""});
  }
  if (scenario.cost != CostKind::analytic || !scenario.model || !scenario.cluster) return out;
  Scenario read = scenario;
  Json given = of.document;
  for (const Setting& row : settings()) {
    if (!is_assumed(row, given, read, of)) continue;
    const bool framework = row.key() == row.pointer.substr(1);
    const auto entry = framework ? entry_of("software/", scenario.software.name) : std::nullopt;
    out.push_back({std::string(row.pointer), row.key(), framework ? scenario.software.name : row.fallback_text(),
                   entry ? entry->at("file").get<std::string>() : kTableSource, row.group});
    if (framework) add_catalogue(scenario, row.group, out);
    if (!row.drops.empty()) given[Json::json_pointer(std::string(row.pointer))] = row.fallback_text();
  }
  if (is_set(of.document, "/software")) add_catalogue(scenario, find_setting("/software")->group, out);
  return out;
}

std::vector<std::string> not_modeled(const Scenario& scenario) {
  std::vector<std::string> out = {"data loading, evaluation and checkpoints"};
  if (!scenario.cluster || !scenario.model) return out;
  if (scenario.cluster->nodes > 1) out.emplace_back("traffic of other jobs");
  if (!scenario.perturbation.slows() && scenario.perturbation.trials == 0) out.emplace_back("slow GPUs and noise");
  if (scenario.model->has_experts()) out.emplace_back("an imbalance of experts that changes from step to step");
  if (scenario.training.graph_implementation != Training::GraphImplementation::none)
    out.emplace_back("memory of CUDA graphs");
  if (scenario.training.deferred_head_gradients > 0) out.emplace_back("the time of deferred gradients of the head");
  if (scenario.training.work == Training::Work::prefill) out.emplace_back("the head of the last token");
  if (!scenario.model->left_out.empty()) out.push_back(scenario.model->left_out);
  return out;
}

void add_assumptions(OrderedJson& results, const std::vector<Assumption>& assumed,
                     const std::vector<std::string>& not_modeled) {
  OrderedJson& rows = results["assumptions"] = OrderedJson::array();
  for (const Assumption& each : assumed) {
    rows.push_back({{"setting", each.setting}, {"value", each.value}, {"source", each.source}});
  }
  results["not_modeled"] = not_modeled;
}

void add_assumptions(OrderedJson& results, const PredictedScenario& of) {
  add_assumptions(results, assumptions_of(of), not_modeled(of.scenario));
}

std::string assumptions_text(const PredictedScenario& of) {
  const std::vector<Assumption> all = assumptions_of(of);
  std::vector<std::pair<std::string_view, std::vector<std::string>>> groups;
  for (const Assumption& each : all) {
    if (each.heading.empty()) continue;  // assumed_times_line prints it
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.first == each.heading; });
    if (group == groups.end()) group = groups.insert(group, {each.heading, {}});
    group->second.push_back(fmt::format("{} {}", each.name, each.value.substr(0, each.value.find(','))));
  }
  // What is off is last, where the line may end.
  for (auto& [heading, items] : groups) {
    std::stable_partition(items.begin(), items.end(),
                          [](const std::string& item) { return !item.ends_with(" off") && !item.ends_with(" 0"); });
  }
  if (groups.empty()) return "";
  // The framework and the catalogue first.
  std::rotate(groups.begin(), std::prev(groups.end()), groups.end());
  std::string out;
  for (std::size_t i = 0; i < std::min(groups.size(), kMostLines - 1); ++i) {
    out +=
        line_of(fmt::format("  {:<8} {:<14} ", i == 0 ? "assumed" : "", label_of(groups[i].first)), groups[i].second);
  }
  return out + line_of(fmt::format("  {:<23} ", "not modeled"), not_modeled(of.scenario));
}

void add_assumptions(OrderedJson& results, std::string& text, const PredictedScenario& of) {
  add_assumptions(results, of);
  text += assumptions_text(of);
}

}  // namespace sluice::tools

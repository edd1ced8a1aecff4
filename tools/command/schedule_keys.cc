// Changes of scenario keys that depend on the schedule.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {

using Json = nlohmann::json;

namespace {

constexpr const char* kAutomaticKeys[] = {"/schedule/memory_cap", "/schedule/placement", "/schedule/time_budget_s",
                                          "/schedule/evaluations"};

// What is chosen for a schedule, besides its number of slices; from the second to the sixth, its layers per stage.
constexpr const char* kChosenKeys[] = {"/parallelism/vpp",
                                       "/parallelism/layers_per_virtual_stage",
                                       "/parallelism/stage_layers",
                                       "/parallelism/pipeline_layout",
                                       "/parallelism/first_stage_layers",
                                       "/parallelism/last_stage_layers",
                                       "/schedule/group",
                                       "/schedule/slice_lengths"};

}  // namespace

const ScenarioFlags::ChoiceKeys& ScenarioFlags::choice_keys() {
  static const ChoiceKeys keys{.chunks = kChosenKeys[0],
                               .slices = "/schedule/slices",
                               .slice_lengths = kChosenKeys[7],
                               .stage_layers = kChosenKeys[2],
                               .layout = kChosenKeys[3],
                               .layers = std::span(kChosenKeys).subspan(1, 5)};
  return keys;
}

void ScenarioFlags::drop_automatic_keys(nlohmann::json& document) {
  const Json::json_pointer name("/schedule/name");
  if (document.contains(name) && document.at(name) == kAutomatic) return;
  for (const char* key : kAutomaticKeys) {
    const Json::json_pointer place(key);
    if (document.contains(place)) document.at("schedule").erase(place.back());
  }
}

std::string ScenarioFlags::schedule_of(const nlohmann::json& document) {
  const Json::json_pointer name("/schedule/name");
  return document.contains(name) && document[name].is_string() ? document[name].get<std::string>() : "";
}

ScenarioFlags::Adapted ScenarioFlags::adapt_to_family(nlohmann::json& document, const std::string& own,
                                                      const std::vector<std::string>& fixed,
                                                      const std::vector<std::string>& forgotten) {
  const std::string schedule = schedule_of(document);
  if (schedule.empty() || names_file(schedule) || schedule == kAutomatic) return {};
  const Family* family = nullptr;
  try {
    family = &find_family(schedule);
  } catch (const InputError&) {
    return {};  // reading the document reports it
  }
  Adapted out;
  const auto is_fixed = [&](const char* pointer) {
    return std::any_of(fixed.begin(), fixed.end(), [&](const auto& key) { return is_within(pointer, key); });
  };
  const auto drop = [&](const char* pointer, bool suits, const std::string& now) {
    const Json::json_pointer place(pointer);
    if (suits || !document.contains(place) || document[place].is_null() || is_fixed(pointer)) return;
    out.changes.push_back(fmt::format("{} {} -> {}", place.back(), document[place].dump(), now));
    document[place.parent_pointer()].erase(place.back());
  };
  const auto is = [&](const char* pointer, int value) {
    const Json::json_pointer place(pointer);
    return document.contains(place) && document[place] == value;
  };
  const int chunks = family->fixed_chunks != 0 ? family->fixed_chunks : family->default_chunks;
  const std::string now = fmt::format("vpp {}", chunks);
  for (const std::string& key : forgotten) {
    drop(key.c_str(), false, key == choice_keys().chunks ? std::to_string(chunks) : "even");
  }
  const bool suits =
      family->fixed_chunks == 0 ? chunks == 1 || !is("/parallelism/vpp", 1) : is("/parallelism/vpp", chunks);
  drop("/parallelism/vpp", suits, std::to_string(chunks));
  drop("/parallelism/layers_per_virtual_stage", family->fixed_chunks == 0, now);
  const Json::json_pointer pp("/parallelism/pp"), vpp("/parallelism/vpp"), layers("/parallelism/stage_layers");
  if (document.contains(layers) && document.contains(pp) && document[pp].is_number_integer()) {
    const bool chosen = document.contains(vpp) && document[vpp].is_number_integer();
    const std::int64_t stages =
        document[pp].get<std::int64_t>() * (chosen ? document[vpp].get<std::int64_t>() : chunks);
    drop("/parallelism/stage_layers", std::ssize(document[layers]) == stages, "even");
  }
  drop("/parallelism/pipeline_layout", family->fixed_chunks == 0, "even");
  drop("/schedule/group", family->grouped, "none");
  for (const char* key : {"/schedule/slices", "/schedule/slice_lengths", "/schedule/slicing"}) {
    drop(key, family->sliced || is(key, 1), "not sliced");
  }
  drop("/schedule/batches", family->asynchronous || is("/schedule/batches", 1), "1");
  for (const char* key : kAutomaticKeys) drop(key, false, "none");
  const auto same = [&](const Family& other) {
    return other.name == own || std::find(other.aliases.begin(), other.aliases.end(), own) != other.aliases.end();
  };
  const bool another = !same(*family);
  const Json::json_pointer slices("/schedule/slices");
  const auto given = [&](const char* key) { return document.contains(Json::json_pointer(key)) || is_fixed(key); };
  if (another && family->sliced && !given("/schedule/slices") && !given("/schedule/slice_lengths")) {
    if (document.contains(Json::json_pointer("/batch/sequence_length"))) {
      document[slices] = 2;
      out.changes.emplace_back("slices 1 -> 2");
    } else {
      out.inherited.emplace_back("slices 1");
    }
  } else if (another && given("/schedule/slices") && !is_fixed("/schedule/slices")) {
    out.inherited.push_back(fmt::format("slices {}", document[slices].dump()));
  }
  for (const char* key : kChosenKeys) {
    const Json::json_pointer place(key);
    if (!another || is_fixed(key) || !document.contains(place) || document[place].is_null()) continue;
    if (place.back() == "vpp" && family->fixed_chunks != 0) continue;  // its placement fixes the number
    out.inherited.push_back(fmt::format("{} {}", place.back(), document[place].dump()));
  }
  return out;
}

std::vector<std::string> ScenarioFlags::choices_of_file(const nlohmann::json& document, const std::string& file) {
  const Json own = file_document(file);
  std::vector<std::string> out(choice_keys().layers.begin(), choice_keys().layers.end());
  out.emplace_back(choice_keys().chunks);
  std::erase_if(out, [&](const std::string& key) {
    const Json::json_pointer place(key);
    return !document.contains(place) || !own.contains(place) || own.at(place) != document.at(place);
  });
  return out;
}

}  // namespace sluice::tools

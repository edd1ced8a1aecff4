#include "tools/simulate/simulation_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/schedule/family.h"
#include "sim/planner/auto_setup.h"
#include "tools/command/assumptions.h"
#include "tools/command/scenario_flags.h"
#include "tools/command/version.h"
#include "tools/simulate/schedule_comparison.h"

namespace sluice::tools {
namespace {

// Returns a word quoted for a shell where needed.
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Reads a document of `--compare-with WORD`. Throws InputError naming the flag.
Scenario scenario_of_word(const std::string& word, const Json& document, const std::string& file) {
  return scenario_from_json(document, "--compare-with " + word, ScenarioFlags::folder_of(file));
}

// Returns the document with the schedule `word`, adapted to it, and with what is open chosen. If chunks and layers per
// stage can be chosen, those of the file, which are for its own schedule, are open too.
Json own_best_document(const std::string& word, const Json& document, const std::string& file,
                       ScenarioFlags::Adapted& adapted, const std::atomic<bool>* stop) {
  Json given = document;
  Json& schedule = given["schedule"];
  if (!schedule.is_object()) schedule = Json::object();
  schedule["name"] = word;
  const auto read = [&](const Json& each) { return scenario_of_word(word, each, file); };
  const std::string own = ScenarioFlags::schedule_of(document);
  for (const auto& forgotten : {ScenarioFlags::choices_of_file(document, file), std::vector<std::string>()}) {
    Json other = given;
    adapted = ScenarioFlags::adapt_to_family(other, own, {}, forgotten);
    if (choose_own_best(other, given, {}, read, adapted, stop) || forgotten.empty()) return other;
  }
  return given;
}

}  // namespace

bool compares_with_file(const std::string& word) {
  std::error_code error;
  return names_file(word) || std::filesystem::is_regular_file(word, error);
}

SimulatedRun second_run(const std::string& word, const nlohmann::json& document, const std::string& file,
                        const std::atomic<bool>* stop) {
  SimulatedRun run;
  if (compares_with_file(word)) {
    run.scenario = read_file(word);
    const Json other = parse_json(run.scenario, word);
    run.setup = planned_setup(scenario_from_json(other, word, ScenarioFlags::folder_of(word)), {}, stop).setup;
  } else {
    const Json other = own_best_document(word, document, file, run.adapted, stop);
    run.scenario = other.dump(2) + "\n";
    try {
      run.setup = planned_setup(scenario_of_word(word, other, file), {}, stop).setup;
    } catch (const InputError& wrong) {
      const std::string source = "--compare-with " + word, what = wrong.what();
      throw InputError(what.starts_with(source) ? what : source + ": " + what);
    }
  }
  run.prediction = predict(*run.setup, {.keep_memory = true});
  run.interrupted = stop != nullptr && *stop;
  return run;
}

std::string scenario_text(const nlohmann::json& document, const std::string& text) {
  if (!text.empty()) {
    Json written = parse_json(text, "scenario");
    // Short forms are equal to what they expand to.
    for (const auto& [key, name] : {std::pair("schedule", "name"), {"cluster", "name"}, {"cost", "kind"}}) {
      if (written.contains(key) && written[key].is_string()) written[key] = Json{{name, written[key]}};
    }
    if (written == document) return text;
  }
  return document.dump(2) + "\n";
}

std::string shell_line(const std::vector<std::string>& arguments) {
  std::string out = "sluice";
  for (std::size_t i = 1; i < arguments.size(); ++i) out += " " + shell_word(arguments[i]);
  return out;
}

Report simulation_report(const Setup& setup, const Prediction& prediction, const std::string& scenario,
                         std::span<const OtherRun> others, const std::string& command_line) {
  Report report;
  report.version = kVersion;
  report.command_line = command_line;
  report.runs.push_back(report_run(setup, prediction, scenario));
  report.title = report.runs[0].name;
  if (setup.scenario().model) {
    report.title = setup.scenario().model->name + ": " + report.title;
    if (setup.scenario().cluster) report.title += " on " + setup.scenario().cluster->name;
  }
  add_assumptions(report, setup, Json::parse(scenario, nullptr, false));
  for (const OtherRun& other : others) {
    if (!other.simulated()) continue;
    report.runs.push_back(report_run(*other.run.setup, other.run.prediction, other.run.scenario));
    report.title += report.runs.size() == 2 ? " against " + report.runs.back().name : ", " + other.word;
  }
  if (!is_gallery(report)) return report;
  const OrderedJson rows = comparison_json(setup, prediction, others);
  std::size_t run = 0;
  for (const OrderedJson& row : rows) {
    if (!row.contains("error")) report.runs[run++].about = comparison_parameters(row);
  }
  return report;
}

void write_simulation_report(const std::string& path, const Setup& setup, const Prediction& prediction,
                             const std::string& scenario, std::span<const OtherRun> others,
                             std::optional<LivePage> live, const std::string& command_line) {
  Report report = simulation_report(setup, prediction, scenario, others, command_line);
  report.live = std::move(live);
  write_report_file(path, report);
}

}  // namespace sluice::tools

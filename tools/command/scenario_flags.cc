#include "tools/command/scenario_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <list>
#include <map>
#include <optional>

#include "import/import.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"
#include "model/schedule/family.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flag_rows.h"

namespace sluice::tools {

namespace {

const std::string kFlagsOnly = "command line";  // the source of a scenario without a file, in errors

// Paths of flags are relative to the current folder, paths in a file relative to the file's folder.
std::string path_of_flag(const std::string& path, const std::string& file) {
  return file.empty() ? path : std::filesystem::absolute(path).string();
}

std::string text_value(const ScenarioFlagRow& row, const std::string& text, const std::string& file) {
  std::error_code error;
  const bool path =
      row.kind == ScenarioValueKind::path ||
      (row.kind == ScenarioValueKind::name && (names_file(text) || std::filesystem::is_regular_file(text, error)));
  return path ? path_of_flag(text, file) : text;
}

// Returns the list "[a,b]", or one of the word "a".
Json words_of(std::string_view text) {
  const bool list = text.starts_with('[') && text.ends_with(']');
  if (list) text = text.substr(1, text.size() - 2);
  Json out = Json::array();
  while (!text.empty()) {
    const std::size_t end = list ? std::min(text.find(','), text.size()) : text.size();
    out.push_back(std::string(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

// Replaces short forms ("schedule": "1f1b") by objects, so that keys can be added to them.
void expand_short_forms(Json& document) {
  for (const auto& [key, name] : {std::pair("schedule", "name"), {"cluster", "name"}, {"cost", "kind"}}) {
    if (document.contains(key) && document[key].is_string()) document[key] = Json{{name, document[key]}};
  }
}

// Throws InputError unless every section has a type to which flags can add keys.
void check_sections(const Json& document, const std::string& source) {
  JsonReader root(document, source);
  for (const char* key : {"parallelism", "batch", "perturbation"}) {
    if (root.has(key) && !document[key].is_object()) root.at(key).fail("expected an object");
  }
  for (const char* key : {"model", "cluster", "software", "schedule", "cost", "kernel_times", "calibration"}) {
    if (root.has(key) && !document[key].is_object() && !document[key].is_string()) {
      root.at(key).fail("expected a name or an object");
    }
  }
}

// Throws InputError unless a value of the file, which a flag replaces, has a type that the flag's key may have.
void check_replaced(const ScenarioFlagRow& row, const Json& value, const std::string& source) {
  const auto require = [&](bool good, const char* expected) {
    if (!good && !value.is_null()) JsonReader(value, source, row.pointer).fail(std::string("expected ") + expected);
  };
  switch (row.kind) {
    case ScenarioValueKind::whole: return require(value.is_number_integer(), "a whole number");
    case ScenarioValueKind::real: return require(value.is_number(), "a number");
    case ScenarioValueKind::text:
    case ScenarioValueKind::name: return require(value.is_string() || value.is_object(), "a string");
    case ScenarioValueKind::path: return require(value.is_string() || value.is_object(), "a file or an object");
    case ScenarioValueKind::whole_list:
    case ScenarioValueKind::text_list: return require(value.is_array(), "an array");
    case ScenarioValueKind::yes: return require(value.is_boolean(), "true or false");
  }
}

Json& place_of(Json& document, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  const Json::json_pointer above = place.parent_pointer();
  Json* parent = above.empty() ? &document : &document[above];
  const bool element = parent->is_array() && place.back().find_first_not_of("0123456789") == std::string::npos;
  if (element) return parent->at(place);
  if (parent->is_string() && above.to_string() == "/model") *parent = Json::object();  // flags replace a model file
  if (!parent->is_object() && !parent->is_null()) {
    throw InputError(fmt::format("{}: expected an object, got {}", above.to_string(), parent->dump()));
  }
  return (*parent)[place.back()];
}

// Returns the list at `key` of the section "perturbation", to which flags add elements.
Json& slow_list(Json& document, const char* key, const std::string& source) {
  Json& list = document["perturbation"][key];
  if (!list.is_null() && !list.is_array()) {
    JsonReader(list, source, std::string("/perturbation/") + key).fail("expected an array");
  }
  return list;
}

// Returns the flag that sets the scenario key at `pointer`, or a key that it is an element of; "" if there is none.
std::string flag_of(const std::string& pointer) {
  constexpr std::pair<std::string_view, std::string_view> kOthers[] = {{"/cost/stage_weights", "--stage-weights"},
                                                                       {"/cost/file", "--cost"},
                                                                       {"/cost/kind", "--cost"},
                                                                       {"/cost", "--uniform"},
                                                                       {"/perturbation/slow_ranks", "--slow-rank"},
                                                                       {"/perturbation/slow_links", "--slow-link"}};
  std::string_view flag;
  std::size_t longest = 0;
  for (const ScenarioFlagRow& row : scenario_flag_rows()) {
    const std::string_view place = row.pointer;
    if (!is_within(pointer, place) || place.size() <= longest) continue;
    longest = place.size();
    flag = row.names;
  }
  if (longest > 0) return std::string(flag.substr(0, flag.find(',')));
  for (const auto& [place, name] : kOthers) {
    if (is_within(pointer, place)) return std::string(name);
  }
  return "";
}

// Keys that exclude each other: setting one removes the other.
struct Alternative {
  std::string_view one;
  std::string_view other;
};
constexpr Alternative kAlternatives[] = {
    {"/schedule/slices", "/schedule/slice_lengths"},
    {"/schedule/slice_lengths", "/schedule/slices"},
    {"/schedule/slicing", "/schedule/slice_lengths"},
    {"/batch/microbatches", "/batch/global_batch"},
    {"/batch/global_batch", "/batch/microbatches"},
    {"/cluster/name", "/cluster/node"},
    {"/parallelism/dp", "/parallelism/gpus"},
    {"/parallelism/gpus", "/parallelism/dp"},
    {"/parallelism/zero", "/parallelism/distributed_optimizer"},
    {"/parallelism/distributed_optimizer", "/parallelism/zero"},
    {"/parallelism/dp_shard", "/parallelism/dp_replicate"},
    {"/parallelism/dp_replicate", "/parallelism/dp_shard"},
    {"/parallelism/pipeline_layout", "/parallelism/stage_layers"},
    {"/parallelism/pipeline_layout", "/parallelism/first_stage_layers"},
    {"/parallelism/pipeline_layout", "/parallelism/last_stage_layers"},
    {"/parallelism/stage_layers", "/parallelism/pipeline_layout"},
};

void drop_alternatives(Json& document, const std::string& set, const auto& also_set) {
  for (const auto& [one, other] : kAlternatives) {
    if (set != one || also_set(other)) continue;
    const Json::json_pointer place{std::string(other)};
    if (document.contains(place)) document[place.parent_pointer()].erase(place.back());
  }
}

// The numbers of "R=1.1" or "A-B=2".
struct Slow {
  std::vector<std::int64_t> ranks;
  double factor = 1;
};
Slow parse_slow(const char* flag, const std::string& text, std::size_t num_ranks) {
  Slow slow;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  bool good = true;
  for (std::size_t i = 0; i < num_ranks && good; ++i) {
    std::int64_t rank = 0;
    const auto [rest, error] = std::from_chars(at, end, rank);
    good = error == std::errc() && rank >= 0 && rest != end && *rest == (i + 1 == num_ranks ? '=' : '-');
    slow.ranks.push_back(rank);
    at = rest + (good ? 1 : 0);
  }
  const auto [rest, error] = std::from_chars(at, end, slow.factor);
  good = good && error == std::errc() && rest == end;
  if (good && !(slow.factor >= 1e-6 && slow.factor <= kMostSlowdown)) {
    throw InputError(fmt::format("{}: expected a factor from 1e-06 to {}, got '{}'", flag, kMostSlowdown, text));
  }
  if (!good) {
    throw InputError(fmt::format(
        "{}: expected {}, got '{}'", flag,
        num_ranks == 1 ? "a rank and a factor such as 3=1.1" : "two ranks and a factor such as 0-1=2", text));
  }
  return slow;
}

}  // namespace

struct ScenarioFlags::Values {
  struct Flag {
    const ScenarioFlagRow* row = nullptr;
    CLI::Option* option = nullptr;
    std::int64_t whole = 0;
    double real = 0;
    std::string text;
    std::vector<std::int64_t> wholes;
    std::vector<std::string> texts;
    bool yes = false;
  };
  std::list<Flag> flags;  // CLI11 keeps pointers into it
  std::string uniform;
  std::vector<double> stage_weights;
  std::string cost;
  std::vector<std::string> slow_ranks;
  std::vector<std::string> slow_links;
  bool sets_gpus = true;  // otherwise the command has its own number of GPUs
  CLI::Option* uniform_option = nullptr;
  CLI::Option* weights_option = nullptr;
  CLI::Option* cost_option = nullptr;
};

ScenarioFlags::ScenarioFlags(CLI::App& command, std::span<const std::string_view> without)
    : values_(std::make_unique<Values>()) {
  const auto left_out = [&](std::string_view names) {
    return std::find(without.begin(), without.end(), names.substr(0, names.find(','))) != without.end();
  };
  for (const ScenarioFlagRow& row : scenario_flag_rows()) {
    if (left_out(row.names)) {
      if (std::string_view(row.pointer) == "/parallelism/gpus") values_->sets_gpus = false;
      continue;
    }
    Values::Flag& flag = values_->flags.emplace_back();
    flag.row = &row;
    switch (row.kind) {
      case ScenarioValueKind::whole: flag.option = command.add_option(row.names, flag.whole, row.help); break;
      case ScenarioValueKind::real: flag.option = command.add_option(row.names, flag.real, row.help); break;
      case ScenarioValueKind::text: flag.option = command.add_option(row.names, flag.text, row.help); break;
      case ScenarioValueKind::name:
      case ScenarioValueKind::path:
        flag.option = command.add_option(row.names, flag.text, row.help)
                          ->type_name(row.kind == ScenarioValueKind::path ? kReadFile : kNameOrFile);
        break;
      case ScenarioValueKind::whole_list:
        flag.option = command.add_option(row.names, flag.wholes, row.help)->delimiter(',')->allow_extra_args(false);
        break;
      case ScenarioValueKind::text_list:
        flag.option = command.add_option(row.names, flag.texts, row.help)->delimiter(',')->allow_extra_args(false);
        break;
      case ScenarioValueKind::yes: flag.option = command.add_flag(row.names, flag.yes, row.help); break;
    }
    flag.option->group(row.group);
    if (*row.words != '\0') flag.option->type_name(fmt::format("TEXT:{{{}}}", row.words));
  }
  if (!left_out("--uniform")) add_uniform(command);
  if (!left_out("--cost")) {
    values_->cost_option =
        command
            .add_option("--cost", values_->cost,
                        "Cost model: analytic, uniform, or a cost file from 'sluice fit' (default: analytic with a "
                        "model, uniform without)")
            ->type_name(kNameOrFile)
            ->group(flag_groups::kCost);
  }
  if (!left_out("--slow-rank")) add_slow(command);
}

void ScenarioFlags::add_uniform(CLI::App& command) {
  values_->uniform_option =
      command
          .add_option("--uniform", values_->uniform,
                      "Seconds per microbatch for 1/pp of the layers: f=1,b=1,w=1[,fb=X][,comm=X], each 0 to 1e8; "
                      "f=4:5:6 lists the slices (default: f=1,b=1,w=1,comm=0; fb: the sum of its ops)")
          ->group(flag_groups::kCost);
  values_->weights_option = command
                                .add_option("--stage-weights", values_->stage_weights,
                                            "Relative work of each stage with --uniform, as a,b,c (default: all 1)")
                                ->delimiter(',')
                                ->allow_extra_args(false)
                                ->group(flag_groups::kCost);
}

void ScenarioFlags::add_slow(CLI::App& command) {
  command
      .add_option("--slow-rank", values_->slow_ranks,
                  "R=X: multiply the compute time of rank R by X, 1e-6 to 1e6; repeatable (default: none)")
      ->expected(1)
      ->take_all()
      ->group(flag_groups::kPerturbation);
  command
      .add_option("--slow-link", values_->slow_links,
                  "A-B=X: multiply the transfer time between ranks A and B by X, 1e-6 to 1e6; repeatable "
                  "(default: none)")
      ->expected(1)
      ->take_all()
      ->group(flag_groups::kPerturbation);
}

ScenarioFlags::~ScenarioFlags() = default;

// Checks the document of a file and flags if the file is that of another framework.
void ScenarioFlags::complete_import(nlohmann::json& document, const std::string& file) const {
  if (!is_imported(file)) return;
  check_complete(document, file, imported(file));
  if (!values_->sets_gpus) return;
  complete_gpus(document, file, [&](const Json& cluster) { return read(cluster, file); });
}

void ScenarioFlags::complete_gpus(nlohmann::json& document, const std::string& file,
                                  const std::function<Scenario(const nlohmann::json&)>& read) {
  Json& parallelism = document["parallelism"];
  if (parallelism.contains("gpus") || parallelism.contains("dp")) return;
  const Json cluster = document.contains("cluster") ? Json{{"cluster", document.at("cluster")}} : Json::object();
  const Scenario scenario = read(cluster);
  if (!scenario.cluster || !scenario.cluster->nodes_specified) {
    throw InputError(fmt::format(
        "{}: the number of GPUs is not known, which the launcher sets: specify --gpus, --dp, or --cluster and --nodes",
        file));
  }
  parallelism["gpus"] = scenario.cluster->num_gpus();
}

std::string ScenarioFlags::folder_of(const std::string& file) {
  std::error_code error;
  const bool pipe = file.starts_with("/dev/") || !std::filesystem::is_regular_file(file, error);
  return pipe ? "" : std::filesystem::path(file).parent_path().string();
}

nlohmann::json ScenarioFlags::file_document(const std::string& file) {
  if (file.empty()) return Json::object();
  std::error_code error;
  const auto families = all_families();
  const auto is_family = [&](const Family& family) { return family.name == file; };
  if (std::any_of(families.begin(), families.end(), is_family) && !std::filesystem::exists(file, error)) {
    throw InputError(fmt::format("{0}: expected a scenario file; --schedule {0} selects the schedule family", file));
  }
  Json document = file_json(file);
  if (!document.is_object()) throw InputError(file + ": /: expected a scenario object");
  check_sections(document, file);
  expand_short_forms(document);
  return document;
}

nlohmann::json ScenarioFlags::document(const std::string& file) const {
  Json document = file_document(file);
  const auto given = [&](const std::string_view pointer) {
    return std::any_of(values_->flags.begin(), values_->flags.end(),
                       [&](const auto& flag) { return flag.option->count() > 0 && pointer == flag.row->pointer; });
  };
  for (const Values::Flag& flag : values_->flags) {
    if (flag.option->count() == 0) continue;
    if (given("/model") && std::string_view(flag.row->pointer).starts_with("/model/")) {
      throw InputError(fmt::format("--model and {0} exclude each other: {0} describes a model without a file",
                                   flag.option->get_name()));
    }
    Json& value = place_of(document, flag.row->pointer);
    if (!file.empty()) check_replaced(*flag.row, value, file);
    switch (flag.row->kind) {
      case ScenarioValueKind::whole: value = flag.whole; break;
      case ScenarioValueKind::real: value = flag.real; break;
      case ScenarioValueKind::path:
      case ScenarioValueKind::name:
      case ScenarioValueKind::text: value = text_value(*flag.row, flag.text, file); break;
      case ScenarioValueKind::whole_list: value = flag.wholes; break;
      case ScenarioValueKind::text_list: value = flag.texts; break;
      case ScenarioValueKind::yes: value = flag.yes; break;
    }
    if (!file.empty()) drop_alternatives(document, flag.row->pointer, given);
  }
  if (values_->cost_option != nullptr && values_->cost_option->count() > 0) {
    const bool kind = values_->cost == "uniform" || values_->cost == "analytic";
    document["cost"] =
        kind ? Json{{"kind", values_->cost}} : Json{{"kind", "fitted"}, {"file", path_of_flag(values_->cost, file)}};
  }
  if (values_->uniform_option != nullptr && values_->uniform_option->count() > 0) {
    const UniformTimes times = parse_uniform(values_->uniform);
    Json cost = {{"kind", "uniform"},
                 {"f", times.forward},
                 {"b", times.input_gradient},
                 {"w", times.weight_gradient},
                 {"comm", times.hop}};
    if (times.joint) cost["fb"] = *times.joint;
    document["cost"] = std::move(cost);
  }
  if (values_->weights_option != nullptr && values_->weights_option->count() > 0) {
    if (!document.contains("cost")) document["cost"] = Json{{"kind", "uniform"}};
    document["cost"]["stage_weights"] = values_->stage_weights;
  }
  for (const std::string& text : values_->slow_ranks) {
    const Slow slow = parse_slow("--slow-rank", text, 1);
    slow_list(document, "slow_ranks", file).push_back({{"rank", slow.ranks[0]}, {"factor", slow.factor}});
  }
  for (const std::string& text : values_->slow_links) {
    const Slow slow = parse_slow("--slow-link", text, 2);
    slow_list(document, "slow_links", file).push_back({{"between", slow.ranks}, {"factor", slow.factor}});
  }
  complete_import(document, file);
  return document;
}

void ScenarioFlags::check_file(const std::string& file, const nlohmann::json& document) {
  if (file.empty()) return;
  Json own = file_document(file);
  const bool own_model = own.contains("model") && !is_imported(file);  // imported models may lack the vocabulary
  if (!own_model && document.contains("model")) own["model"] = document["model"];
  static_cast<void>(read(own, file));
}

std::string ScenarioFlags::ignored(const std::string& file, std::string_view command,
                                   std::span<const std::string_view> pointers) {
  const Json document = file_document(file);
  std::vector<std::string_view> found;
  for (const std::string_view pointer : pointers) {
    const Json::json_pointer place{std::string(pointer)};
    if (document.contains(place) && !document.at(place).is_null()) found.push_back(pointer);
  }
  return found.empty() ? "" : fmt::format("{}: {} ignores {}", file, command, fmt::join(found, ", "));
}

namespace {

// Returns the row of a flag by one of its names, with or without "--"; null if there is none. Appends all names.
const ScenarioFlagRow* row_of(const std::string& key, std::vector<std::string>& names) {
  const ScenarioFlagRow* row = nullptr;
  for (const ScenarioFlagRow& each : scenario_flag_rows()) {
    std::string_view rest = each.names;
    while (!rest.empty()) {
      const std::string_view name = rest.substr(2, rest.find(',') - 2);  // without "--"
      if (key == name || (key.starts_with("--") && key.substr(2) == name)) row = &each;
      names.emplace_back(name);
      rest.remove_prefix(std::min(rest.size(), name.size() + 3));
    }
  }
  return row;
}

}  // namespace

bool is_within(std::string_view pointer, std::string_view place) {
  return pointer == place || (pointer.starts_with(place) && pointer[place.size()] == '/');
}

std::string ScenarioFlags::pointer_of(const std::string& key) {
  std::vector<std::string> names;
  const ScenarioFlagRow* const row = row_of(key, names);
  if (row != nullptr) return row->pointer;
  if (key.find('/') != std::string::npos) return (key.starts_with('/') ? "" : "/") + key;
  throw InputError(fmt::format("--sweep: expected a flag or a scenario key such as parallelism/pp, got '{}'{}", key,
                               did_you_mean(key, names)));
}

void ScenarioFlags::set(nlohmann::json& document, const std::string& key, const std::string& text,
                        const std::string& file) {
  const std::string pointer = pointer_of(key);
  std::vector<std::string> names;
  const ScenarioFlagRow* const row = row_of(key, names);
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded() && row != nullptr && row->kind == ScenarioValueKind::text_list) value = words_of(text);
  if (value.is_discarded()) value = row != nullptr ? text_value(*row, text, file) : text;
  try {
    place_of(document, pointer) = std::move(value);
  } catch (const Json::exception&) {
    throw InputError(fmt::format("--sweep: the scenario has no key '{}'", key));
  }
  expand_short_forms(document);
  drop_alternatives(document, pointer, [](std::string_view) { return false; });
}

bool ScenarioFlags::exclude_each_other(const std::string& pointer, const std::string& other) {
  if (pointer == other) return true;
  return std::any_of(std::begin(kAlternatives), std::end(kAlternatives), [&](const Alternative& pair) {
    return (pair.one == pointer && pair.other == other) || (pair.one == other && pair.other == pointer);
  });
}

Scenario ScenarioFlags::scenario(const std::string& file) const { return read(document(file), file); }

Scenario ScenarioFlags::read(const nlohmann::json& document, const std::string& file) {
  try {
    return scenario_from_json(document, file.empty() ? kFlagsOnly : file, folder_of(file));
  } catch (const InputError& error) {
    throw InputError(naming_flags(error.what(), document, file));
  }
}

std::string ScenarioFlags::naming_flags(const std::string& what, const nlohmann::json& document,
                                        const std::string& file) {
  const std::string source = (file.empty() ? kFlagsOnly : file) + ": ";
  const std::size_t end = what.find(": ", source.size());
  if (!what.starts_with(source + "/") || end == std::string::npos) return what;
  const std::string pointer = what.substr(source.size(), end - source.size());
  std::string of_file = is_imported(file) ? naming_arguments(what, file, imported(file)) : what;
  const std::string flag = pointer.find('~') == std::string::npos ? flag_of(pointer) : "";  // no flag's key has a ~
  if (flag.empty()) return of_file;
  const Json::json_pointer place(pointer);
  if (!document.contains(place)) return of_file;
  const Json own = file_document(file);
  if (own.contains(place) && own.at(place) == document.at(place)) return of_file;
  return flag + what.substr(end);
}

int ScenarioFlags::naming_flags(const std::string& file, const std::function<int()>& work) const {
  try {
    return work();
  } catch (const DoesNotFit&) {
    throw;
  } catch (const InputError& error) {
    const std::string what = error.what();
    if (!what.starts_with((file.empty() ? kFlagsOnly : file) + ": /")) throw;
    throw InputError(naming_flags(what, document(file), file));
  }
}

}  // namespace sluice::tools

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
#include "model/scenario/settings.h"
#include "model/schedule/family.h"
#include "tools/command/outputs.h"

namespace sluice::tools {

namespace {

const std::string kFlagsOnly = "command line";  // the source of a scenario without a file, in errors

// Paths of flags are relative to the current folder, paths in a file relative to the file's folder.
std::string path_of_flag(const std::string& path, const std::string& file) {
  return file.empty() ? path : std::filesystem::absolute(path).string();
}

std::string text_value(const Setting& row, const std::string& text, const std::string& file) {
  std::error_code error;
  const bool path =
      row.kind == SettingKind::path ||
      (row.kind == SettingKind::name && (names_file(text) || std::filesystem::is_regular_file(text, error)));
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
void check_replaced(const Setting& row, const Json& value, const std::string& source) {
  const auto require = [&](bool good, const char* expected) {
    if (!good && !value.is_null()) {
      JsonReader(value, source, std::string(row.pointer)).fail(std::string("expected ") + expected);
    }
  };
  switch (row.kind) {
    case SettingKind::whole: return require(value.is_number_integer(), "a whole number");
    case SettingKind::real: return require(value.is_number(), "a number");
    case SettingKind::word:
    case SettingKind::text:
    case SettingKind::name: return require(value.is_string() || value.is_object(), "a string");
    case SettingKind::path: return require(value.is_string() || value.is_object(), "a file or an object");
    case SettingKind::wholes:
    case SettingKind::reals:
    case SettingKind::words: return require(value.is_array(), "an array");
    case SettingKind::yes: return require(value.is_boolean(), "true or false");
    case SettingKind::other: return;
  }
}

Json& place_of(Json& document, std::string_view pointer) {
  const Json::json_pointer place{std::string(pointer)};
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
  std::string_view flag;
  std::size_t longest = 0;
  for (const Setting& row : settings()) {
    if (row.flags.empty() || !is_within(pointer, row.pointer) || row.pointer.size() <= longest) continue;
    longest = row.pointer.size();
    flag = row.flag();
  }
  if (flag == "--cost" && pointer != "/cost/file" && pointer != "/cost/kind") return "--uniform";
  return std::string(flag);
}

// Removes the keys of a document that setting the key at a pointer replaces.
void drop_alternatives(Json& document, std::string_view set, const auto& also_set) {
  const Setting* const row = find_setting(set);
  if (row == nullptr) return;
  for (const std::string& other : split_words(row->drops)) {
    const Json::json_pointer place(other);
    if (!also_set(other) && document.contains(place)) document[place.parent_pointer()].erase(place.back());
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
    const Setting* row = nullptr;
    CLI::Option* option = nullptr;
    std::int64_t whole = 0;
    double real = 0;
    std::string text;
    std::vector<std::int64_t> wholes;
    std::vector<double> reals;
    std::vector<std::string> texts;
    bool yes = false;
  };
  std::list<Flag> flags;   // CLI11 keeps pointers into it
  bool sets_gpus = false;  // otherwise the command has its own number of GPUs
  Commands reader = 0;
  std::vector<std::string> assumed;  // of --assume
};

namespace {

CLI::Option* add_flag(CLI::App& command, auto& flag) {
  const std::string names(flag.row->flags);
  const std::string help = flag.row->full_help();
  const auto list = [](CLI::Option* option) { return option->delimiter(',')->allow_extra_args(false); };
  switch (flag.row->kind) {
    case SettingKind::whole: {
      CLI::Option* const option = command.add_option(names, flag.whole, help);
      // `plan` takes these and prints them again after what it was given: the last one counts.
      const bool printed = (flag.row->offers & kPlan) != 0 && flag.row->pointer.starts_with("/parallelism/");
      return printed ? option->take_last() : option;
    }
    case SettingKind::real: return command.add_option(names, flag.real, help);
    case SettingKind::word:
      return command.add_option(names, flag.text, help)->type_name(fmt::format("TEXT:{{{}}}", flag.row->words));
    case SettingKind::text: return command.add_option(names, flag.text, help);
    case SettingKind::name: return command.add_option(names, flag.text, help)->type_name(kNameOrFile);
    case SettingKind::path: return command.add_option(names, flag.text, help)->type_name(kReadFile);
    case SettingKind::wholes: return list(command.add_option(names, flag.wholes, help));
    case SettingKind::reals: return list(command.add_option(names, flag.reals, help));
    case SettingKind::words: return list(command.add_option(names, flag.texts, help));
    case SettingKind::yes: return command.add_flag(names, flag.yes, help);
    case SettingKind::other: break;
  }
  if (flag.row->pointer == "/cost") return command.add_option(names, flag.text, help)->type_name(kNameOrFile);
  if (flag.row->pointer == "/cost/f") return command.add_option(names, flag.text, help);
  return command.add_option(names, flag.texts, help)->expected(1)->take_all();  // of a perturbation
}

}  // namespace

ScenarioFlags::ScenarioFlags(CLI::App& command, Commands reader, std::span<const std::string_view> without)
    : values_(std::make_unique<Values>()) {
  for (const Setting& row : settings()) {
    const bool refused = (row.refuses & reader) != 0 && !row.flags.empty();
    if ((row.offers & reader) == 0 && !refused) continue;
    if (std::find(without.begin(), without.end(), row.flag()) != without.end()) continue;
    if (row.pointer == "/parallelism/gpus") values_->sets_gpus = !refused;
    Values::Flag& flag = values_->flags.emplace_back();
    flag.row = &row;
    flag.option = add_flag(command, flag);
    flag.option->group(refused ? "" : std::string(row.group));  // it can only take back what a file sets
  }
  values_->reader = reader;
  if ((reader & (kSimulate | kPlan)) == 0) return;
  command
      .add_option("--assume", values_->assumed,
                  "KEY=VALUE: set a key of the scenario that neither its file nor a flag gives, such as "
                  "parallelism/moe_token_dispatcher=deepep; the output names the keys that matter (default: none)")
      ->type_name("TEXT")
      ->expected(1)
      ->take_all()
      ->group(kRareGroup);
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

namespace {

// Sets what flags with a syntax of their own stand for: --cost, --uniform, --slow-rank and --slow-link.
void set_other(Json& document, const Setting& row, const std::string& text, const std::vector<std::string>& texts,
               const std::string& file) {
  if (row.pointer == "/cost") {
    const bool kind = text == "uniform" || text == "analytic";
    document["cost"] = kind ? Json{{"kind", text}} : Json{{"kind", "fitted"}, {"file", path_of_flag(text, file)}};
  } else if (row.pointer == "/cost/f") {
    const UniformTimes times = parse_uniform(text);
    Json cost = {{"kind", "uniform"}};
    if (!times.forward.empty()) cost["f"] = times.forward;
    if (!times.input_gradient.empty()) cost["b"] = times.input_gradient;
    if (!times.weight_gradient.empty()) cost["w"] = times.weight_gradient;
    if (times.vocabulary) cost["s"] = *times.vocabulary;
    if (times.vocabulary_gradient) cost["t"] = *times.vocabulary_gradient;
    if (times.joint) cost["fb"] = *times.joint;
    if (times.hop) cost["comm"] = *times.hop;
    if (times.copy) cost["copy"] = *times.copy;
    document["cost"] = std::move(cost);
  }
  for (const std::string& each : texts) {
    const bool of_link = row.key() == "slow_links";
    const Slow slow = parse_slow(std::string(row.flag()).c_str(), each, of_link ? 2 : 1);
    Json entry = {{"factor", slow.factor}};
    if (of_link) {
      entry["between"] = slow.ranks;
    } else {
      entry["rank"] = slow.ranks[0];
    }
    slow_list(document, std::string(row.key()).c_str(), file).push_back(std::move(entry));
  }
}

}  // namespace

// Sets a key that the document does not have.
void ScenarioFlags::assume(nlohmann::json& document, const std::string& text, const std::string& file) const {
  const std::size_t end = text.find('=');
  if (end == std::string::npos) throw InputError(fmt::format("--assume: expected KEY=VALUE, got '{}'", text));
  const std::string pointer = (text.starts_with('/') ? "" : "/") + text.substr(0, end);
  const Setting* const row = find_setting(pointer);
  if (row == nullptr || (row->reads & values_->reader) == 0) {
    std::vector<std::string> names;
    for (const Setting& each : settings()) {
      if ((each.reads & values_->reader) != 0) names.emplace_back(each.pointer);
    }
    throw InputError(
        fmt::format("--assume: the command reads no key {} of a scenario{}", pointer, did_you_mean(pointer, names)));
  }
  for (const Setting& each : settings()) {
    if (exclude_each_other(pointer, std::string(each.pointer)) &&
        document.contains(Json::json_pointer(std::string(each.pointer)))) {
      throw InputError(fmt::format("--assume: {} is given by the scenario or a flag", each.pointer));
    }
  }
  set(document, pointer, text.substr(end + 1), file);
}

nlohmann::json ScenarioFlags::document(const std::string& file) const {
  Json document = file_document(file);
  const auto given = [&](const std::string_view pointer) {
    return std::any_of(values_->flags.begin(), values_->flags.end(),
                       [&](const auto& flag) { return flag.option->count() > 0 && pointer == flag.row->pointer; });
  };
  for (const Values::Flag& flag : values_->flags) {
    if (flag.option->count() == 0) continue;
    if (given("/model") && flag.row->pointer.starts_with("/model/")) {
      throw InputError(fmt::format("--model and {0} exclude each other: {0} describes a model without a file",
                                   flag.option->get_name()));
    }
    if (flag.row->kind == SettingKind::other) {
      set_other(document, *flag.row, flag.text, flag.texts, file);
      continue;
    }
    if (flag.row->kind == SettingKind::reals && !document.contains("cost")) document["cost"] = {{"kind", "uniform"}};
    Json& value = place_of(document, flag.row->pointer);
    if (!file.empty()) check_replaced(*flag.row, value, file);
    switch (flag.row->kind) {
      case SettingKind::whole: value = flag.whole; break;
      case SettingKind::real: value = flag.real; break;
      case SettingKind::path:
      case SettingKind::name:
      case SettingKind::word:
      case SettingKind::text: value = text_value(*flag.row, flag.text, file); break;
      case SettingKind::wholes: value = flag.wholes; break;
      case SettingKind::reals: value = flag.reals; break;
      case SettingKind::words: value = flag.texts; break;
      case SettingKind::yes: value = flag.yes; break;
      case SettingKind::other: break;
    }
    if (!file.empty()) drop_alternatives(document, flag.row->pointer, given);
  }
  for (const std::string& text : values_->assumed) assume(document, text, file);
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

std::vector<std::string> ScenarioFlags::unused_keys(const std::string& file, Commands reader) {
  const Json document = file_document(file);
  const auto reads = [&](const Setting& row) { return ((row.reads | row.refuses) & reader) != 0; };
  std::vector<std::string> found;
  for (const Setting& row : settings()) {
    const std::string top(row.pointer.substr(0, row.pointer.find('/', 1)));
    if (!document.contains(Json::json_pointer(top)) || std::find(found.begin(), found.end(), top) != found.end())
      continue;
    const Json& section = document.at(Json::json_pointer(top));
    const bool none = std::none_of(settings().begin(), settings().end(),
                                   [&](const Setting& each) { return is_within(each.pointer, top) && reads(each); });
    if (none) {
      if (!section.is_null() && !section.empty()) found.push_back(top);
      continue;
    }
    const Json::json_pointer place{std::string(row.pointer)};
    if (reads(row) || top == "/model" || !document.contains(place)) continue;
    const Json fallback = Json::parse(row.fallback, nullptr, false);
    const Json& value = document.at(place);
    if (!value.is_null() && (fallback.is_discarded() || value != fallback)) found.emplace_back(row.pointer);
  }
  return found;
}

std::string ScenarioFlags::unused(const std::string& file, std::string_view command, Commands reader) {
  const std::vector<std::string> found = unused_keys(file, reader);
  return found.empty() ? "" : fmt::format("{}: {} ignores {}", file, command, fmt::join(found, ", "));
}

nlohmann::json ScenarioFlags::effective(nlohmann::json document) {
  const auto has = [&](const std::string& pointer) { return document.contains(Json::json_pointer(pointer)); };
  for (const Setting& row : settings()) {
    const std::string pointer(row.pointer);
    if (!pointer.starts_with("/parallelism/") && !pointer.starts_with("/batch/")) continue;
    const std::vector<std::string> others = split_words(row.drops);
    if (has(pointer) || std::any_of(others.begin(), others.end(), has)) continue;
    Json fallback = Json::parse(row.fallback, nullptr, false);
    if (!fallback.is_discarded()) document[Json::json_pointer(pointer)] = std::move(fallback);
  }
  return document;
}

std::string refused_flag(std::string_view command, std::string_view flag) {
  const Setting* const row = find_setting_of_flag(flag);
  if (row == nullptr) return "";
  constexpr std::pair<Commands, std::string_view> kReaders[] = {
      {kSimulate, "simulate"}, {kPlan, "plan"}, {kSlice, "slice"},           {kWeave, "weave"},
      {kSchedule, "schedule"}, {kRun, "run"},   {kKernels, "profile --like"}};
  std::vector<std::string_view> readers;
  bool reads = false;
  for (const auto& [reader, name] : kReaders) {
    if ((row->offers & reader) != 0) readers.push_back(name);
    reads = reads || (name == command && (row->reads & reader) != 0);
  }
  return fmt::format("{}: {} {}; flag of {}", command, flag,
                     reads ? fmt::format("is given by the key {} of a scenario file here", row->pointer)
                           : std::string("has no effect on this command"),
                     fmt::join(readers, ", "));
}

bool is_within(std::string_view pointer, std::string_view place) {
  return pointer == place || (pointer.starts_with(place) && pointer[place.size()] == '/');
}

std::string ScenarioFlags::pointer_of(const std::string& key) {
  if (const Setting* const row = find_setting_of_flag(key); row != nullptr && row->kind != SettingKind::other) {
    return std::string(row->pointer);
  }
  if (key.find('/') != std::string::npos) return (key.starts_with('/') ? "" : "/") + key;
  std::vector<std::string> names;
  for (const Setting& row : settings()) {
    for (const std::string& name : split_words(row.flags)) names.push_back(name.substr(2));
  }
  throw InputError(fmt::format("--sweep: expected a flag or a scenario key such as parallelism/pp, got '{}'{}", key,
                               did_you_mean(key, names)));
}

void ScenarioFlags::set(nlohmann::json& document, const std::string& key, const std::string& text,
                        const std::string& file) {
  const std::string pointer = pointer_of(key);
  const Setting* const row = find_setting(pointer);
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded() && row != nullptr && row->kind == SettingKind::words) value = words_of(text);
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
  const auto drops = [](const std::string& one, const std::string& another) {
    const Setting* const row = find_setting(one);
    const std::vector<std::string> dropped = split_words(row == nullptr ? "" : row->drops);
    return std::find(dropped.begin(), dropped.end(), another) != dropped.end();
  };
  return pointer == other || drops(pointer, other) || drops(other, pointer);
}

void ScenarioFlags::check_read(Commands reader, std::string_view command, std::string_view without) const {
  for (const Values::Flag& flag : values_->flags) {
    if (flag.option->count() == 0 || ((flag.row->reads | flag.row->refuses) & reader) != 0) continue;
    throw InputError(fmt::format("{}: {} has no effect without {}", command, flag.option->get_name(), without));
  }
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

#include "tools/command/command_tree.h"

#include <algorithm>
#include <map>

#include "model/cluster/cluster.h"
#include "model/scenario/settings.h"
#include "model/schedule/family.h"
#include "tools/command/outputs.h"

namespace sluice::tools {
namespace {

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : all_families()) names.emplace_back(family.name);
  return names;
}

// Values that CLI11 does not know, by the option's long name or by "command operand".
std::vector<std::string> known_words(const std::string& name) {
  static const std::map<std::string, std::vector<std::string> (*)()> kKnown = {
      {"--schedule", family_names},   {"schedule name", family_names},    {"--for", family_names},
      {"--cluster", catalogue_nodes}, {"--software", catalogue_software}, {"--model", catalogue_models}};
  const auto known = kKnown.find(name);
  return known == kKnown.end() ? std::vector<std::string>{} : known->second();
}

// Returns the words of "TEXT:{auto,always,never}".
std::vector<std::string> member_words(const std::string& type) {
  std::vector<std::string> words;
  const std::size_t open = type.find('{');
  if (open == std::string::npos || type.back() != '}') return words;
  std::istringstream list(type.substr(open + 1, type.size() - open - 2));
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}

OptionEntry entry_of(const CLI::Option& option, const std::string& command) {
  OptionEntry entry;
  if (option.get_positional()) {
    entry.names = {option.get_single_name()};
    entry.words = known_words(command + " " + entry.names[0]);
  } else {
    for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) {
      entry.names.push_back("--" + name);
      if (entry.words.empty()) entry.words = known_words(entry.names.back());
    }
  }
  entry.description = option.get_description();
  entry.group = option.get_group();
  entry.required = option.get_required();
  const Setting* const setting = entry.names.empty() ? nullptr : find_setting_of_flag(entry.names.back());
  entry.common = setting != nullptr && entry.group == setting->group
                     ? setting->common
                     : entry.group != kRareGroup && entry.group != kFailures;
  if (option.get_items_expected_max() == 0) return entry;
  const std::string type = option.get_type_name();
  entry.type = type.substr(0, type.find(':'));
  entry.repeated = option.get_items_expected_max() > 1;
  const std::vector<std::string> members = member_words(type);
  entry.files =
      type == kWrittenFile || type == kReadFile || type == kNameOrFile || (option.get_positional() && members.empty());
  entry.closed = !members.empty();
  if (entry.closed) entry.words = members;
  return entry;
}

CommandEntry tree_of(const CLI::App& app, const std::string& path) {
  CommandEntry entry{
      .path = path, .description = app.get_description(), .footer = app.get_footer(), .group = app.get_group()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? entry.operands : entry.options).push_back(entry_of(*option, app.get_name()));
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;
    entry.subcommands.push_back(tree_of(*command, path + " " + command->get_name()));
  }
  return entry;
}

}  // namespace

CommandEntry command_tree(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* parent = app.get_parent(); parent != nullptr; parent = parent->get_parent()) {
    path.insert(0, parent->get_name() + " ");
  }
  return tree_of(app, path);
}

std::string first_sentence(const std::string& description) {
  std::string sentence = description.substr(0, std::min(description.find('\n'), description.find(". ")));
  if (sentence.ends_with('.')) sentence.pop_back();
  return sentence;
}

std::string last_word(const std::string& path) { return path.substr(path.rfind(' ') + 1); }

}  // namespace sluice::tools

#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "import/import.h"
#include "model/scenario/scenario.h"
#include "model/scenario/settings.h"

namespace sluice::tools {

// Whether `pointer` is the key at `place` or a part of it.
bool is_within(std::string_view pointer, std::string_view place);

// Returns why a command does not have a flag of a setting, "schedule: --tp has no effect ..."; "" if it is none.
std::string refused_flag(std::string_view command, std::string_view flag);

// The flags that set keys of a scenario, in Sluice's spelling and Megatron-LM's. Flags override the keys of a scenario
// file, so that both are read and checked in one place.
class ScenarioFlags {
 public:
  // Adds the flags of the settings that `reader`, one of Commands, offers to `command`, except those `without`, given
  // by their first names ("--pp"). Those that it refuses are hidden: they can only take back what a file sets. Must
  // outlive the parsing.
  ScenarioFlags(CLI::App& command, Commands reader, std::span<const std::string_view> without = {});
  ~ScenarioFlags();

  // Adds the flag --megatron-args, whose text takes the place of a scenario file: `file` becomes its name. `excluded`
  // is the option of the file.
  static void add_imports(CLI::App& command, std::string& file, const std::string& excluded = "scenario");

  // Returns the contents of a scenario file. A pipe is read once and its contents are kept. Throws InputError.
  static std::string file_text(const std::string& file);
  // Returns the folder of the relative paths in a scenario file: its own; of a pipe, the current folder ("").
  static std::string folder_of(const std::string& file);
  // Returns the document of a scenario file, with sections of the right types and short forms expanded; an empty object
  // without a file. The configuration of another framework (import/) is converted. Throws InputError.
  static nlohmann::json file_document(const std::string& file);
  // Returns the scenario document: the file, if `file` is not empty, overridden by the flags. Throws InputError.
  nlohmann::json document(const std::string& file) const;
  // Returns whether a file is the configuration of another framework.
  static bool is_imported(const std::string& file);
  // Returns such a configuration, which is read once. Throws InputError.
  static const Imported& imported(const std::string& file);
  // Prints what in such a file is not modeled, and what is unknown.
  static void print_notes(const std::string& file);
  // Reads such a document. Throws InputError that names the flag where a flag set the value, otherwise the file's key.
  static Scenario read(const nlohmann::json& document, const std::string& file);
  Scenario scenario(const std::string& file) const;

  // Returns an error message "SOURCE: /key: ..." about a document with the flag instead of source and key, if the value
  // is not the file's.
  static std::string naming_flags(const std::string& what, const nlohmann::json& document, const std::string& file);
  // Calls `work` and changes the message of its InputError in this way.
  int naming_flags(const std::string& file, const std::function<int()>& work) const;

  // Sets the number of GPUs of an imported document that has neither it nor a number of replicas to all GPUs of the
  // cluster, as the launcher of the framework does. `read` reads a scenario with only the cluster. Throws InputError.
  static void complete_gpus(nlohmann::json& document, const std::string& file,
                            const std::function<Scenario(const nlohmann::json&)>& read);
  // Throws InputError if a key of the file is invalid, also one that a command ignores or replaces. Because flags may
  // contradict such keys, the file is read alone, with the model of `document` if it has none.
  static void check_file(const std::string& file, const nlohmann::json& document);
  // Throws InputError for a flag that was given and that `reader` does not read: "... has no effect without `without`".
  void check_read(Commands reader, std::string_view command, std::string_view without) const;
  // Returns the keys of the file that `reader` does not read and that do not have their default. A section of which it
  // reads nothing is one key, and so is a model.
  static std::vector<std::string> unused_keys(const std::string& file, Commands reader);
  // Returns "FILE: COMMAND ignores KEY, KEY" for them; "" if there are none.
  static std::string unused(const std::string& file, std::string_view command, Commands reader);

  // Returns a document with the defaults of the settings of parallelism and batch that it does not set.
  static nlohmann::json effective(nlohmann::json document);

  // Sets a key of a document, named by a flag ("pp", "--pp") or by its path in the scenario ("parallelism/pp"), and
  // removes the keys that it excludes. The value is JSON, or else text. Throws InputError for an unknown name.
  static void set(nlohmann::json& document, const std::string& key, const std::string& value, const std::string& file);
  // Returns the path in the scenario of a key of `set`: "/parallelism/pp".
  static std::string pointer_of(const std::string& key);
  // Whether setting the key at one path with `set` removes or replaces the other, whichever is set first.
  static bool exclude_each_other(const std::string& pointer, const std::string& other);
  // Removes the keys of the automatic schedule from a document with another schedule.
  static void drop_automatic_keys(nlohmann::json& document);
  // What is chosen for a schedule, as JSON pointers.
  struct ChoiceKeys {
    const char* chunks;
    const char* slices;
    const char* slice_lengths;
    const char* stage_layers;
    const char* layout;
    std::span<const char* const> layers;  // all keys that set the layers per stage
  };
  static const ChoiceKeys& choice_keys();
  struct Adapted {
    std::vector<std::string> changes;    // "vpp 3 -> 1"
    std::vector<std::string> inherited;  // chosen for the schedule `own` and kept for another family: "vpp 3"
  };
  // Removes keys that the schedule family of the document does not support, such as another number of chunks than its
  // placement has, except those `fixed` and keys within them, and gives a sliced family two slices where the sequence
  // length is known and nothing cuts it. Also removes `forgotten` keys.
  static Adapted adapt_to_family(nlohmann::json& document, const std::string& own,
                                 const std::vector<std::string>& fixed = {},
                                 const std::vector<std::string>& forgotten = {});
  // Returns the keys of chunks and layers per stage that a document has from its file, not from flags.
  static std::vector<std::string> choices_of_file(const nlohmann::json& document, const std::string& file);
  // Returns the name of the schedule of a document, "" if it has none.
  static std::string schedule_of(const nlohmann::json& document);

 private:
  static nlohmann::json file_json(const std::string& file);
  void complete_import(nlohmann::json& document, const std::string& file) const;
  void assume(nlohmann::json& document, const std::string& text, const std::string& file) const;

  struct Values;
  std::unique_ptr<Values> values_;
};

}  // namespace sluice::tools

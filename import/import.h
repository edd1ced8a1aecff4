#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::imports {

// The configuration of another framework as a scenario (docs/formats.md, "Configurations of Megatron-LM", "... of
// torchtitan").
struct Imported {
  nlohmann::json scenario;         // "sluice.scenario/1"; without keys that the configuration does not determine
  std::vector<std::string> notes;  // what is not modeled and what is unknown, one line each, with the source
  // The place in the file of keys of the scenario, by their pointers: "line 3: training.seq_len". Those of
  // Megatron-LM's arguments are in megatron_names.h.
  std::map<std::string, std::string> places;
  std::string no_model;  // the reason why the scenario has no model, with its place; "" if it needs none
};

// Whether a text is a configuration that `import_text` reads, rather than JSON. Also true for UTF-16, which no command
// reads, and for which `import_text` throws.
bool is_foreign(std::string_view text);

// Throws InputError naming what a text that is no scenario looks like, if it looks like TOML or YAML.
void reject_other_formats(std::string_view text, const std::string& source);

// Reads a shell script that starts Megatron-LM, a line of its arguments, its output with a dump of them, a job
// configuration of torchtitan, or a configuration of NeMo. Throws InputError naming the source, the line where there
// are several, and the argument.
Imported import_text(std::string_view text, const std::string& source);

// Reads a line of Megatron-LM's arguments, in which only quotes, backslashes and blanks have a meaning.
Imported import_megatron_line(std::string_view line, const std::string& source);

// Whether a log prints Megatron-LM's arguments.
bool has_megatron_arguments(std::string_view text);

// Returns the argument in a line such as "  seq_length ................ 2048", possibly after a launcher's prefix.
struct PrintedArgument {
  std::string_view name;  // empty: none
  std::string_view value;
};
PrintedArgument printed_argument(std::string_view line);

// Returns an error message about an imported scenario, "SOURCE: /key: ...", with the framework's argument or key
// instead: "SOURCE: --argument: ...". Other messages are returned as they are.
std::string naming_arguments(const std::string& what, const std::string& source, const Imported& imported);

// Throws InputError naming the first argument that the framework requires and that neither it nor a flag, which has
// changed the scenario, specifies.
void check_complete(const nlohmann::json& scenario, const std::string& source, const Imported& imported);

}  // namespace sluice::imports

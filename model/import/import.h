#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

// The configuration of another framework as a scenario (docs/formats.md, "Configurations of Megatron-LM", "... of
// torchtitan").
struct Imported {
  nlohmann::json scenario;         // "sluice.scenario/1"; without keys that the configuration does not determine
  std::vector<std::string> notes;  // what is not modeled and what is unknown, one line each, with the source
};

// Whether a text is a configuration that `import_text` reads, rather than JSON.
bool is_foreign(std::string_view text);

// Reads a shell script that starts Megatron-LM, a line of its arguments, its output with a dump of them, or a job
// configuration of torchtitan. Throws InputError naming the source, the line where there are several, and the argument.
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

// Returns an error message about a scenario that was imported from `text`, "SOURCE: /key: ...", with Megatron-LM's
// argument instead of the key: "SOURCE: --argument: ...". Other messages are returned as they are.
std::string naming_arguments(const std::string& what, const std::string& source, std::string_view text);

// Throws InputError naming the first argument that the framework requires and that neither it nor a flag, which has
// changed the scenario, specifies.
void check_complete(const nlohmann::json& scenario, const std::string& source);

}  // namespace sluice::model

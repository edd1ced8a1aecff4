#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/input/json_reader.h"

namespace sluice::model {

struct Scenario;

// How the value of a setting is written in JSON and on the command line.
enum class SettingKind : std::uint8_t {
  whole,
  real,
  yes,     // true or false; a flag without a value
  word,    // one of `words`
  text,    // in a syntax of its own
  name,    // of a catalogue or a registry, or a file
  path,    // of a file
  wholes,  // lists, on the command line as a,b,c
  reals,
  words,
  other,  // neither flag nor file have a plain value
};

// Commands, as bits of a set. `profile` and `validate` read what `run` reads, `compare` and `analyze` simulate.
using Commands = std::uint16_t;
inline constexpr Commands kSimulate = 1;
inline constexpr Commands kPlan = 2;
inline constexpr Commands kSlice = 4;
inline constexpr Commands kWeave = 8;
inline constexpr Commands kSchedule = 16;
inline constexpr Commands kRun = 32;
inline constexpr Commands kKernels = 64;    // profile --like
inline constexpr Commands kBackward = 256;  // of reads: without effect on work that is forward-only
inline constexpr Commands kComplete = 128;  // import and calibrate, whose files have most settings already

// An enumeration whose enumerators are the words of a setting, in their order.
struct WordPlace {
  void* member;
  void (*set)(void* member, int word);
};
// Where a setting of a scenario is stored; nothing: special code reads it.
using SettingPlace = std::variant<std::monostate, int*, std::int64_t*, double*, bool*, std::string*,
                                  std::optional<bool>*, std::vector<int>*, WordPlace>;

// A setting of a scenario. Everything that is known of it stands here: reader, flags, help, documents, the keywords of
// Python and the refusals of commands are derived from its row.
struct Setting {
  std::string_view pointer;  // of its key in a scenario file
  SettingKind kind = SettingKind::whole;
  SettingPlace (*place)(Scenario& scenario) = nullptr;
  double low = 0;  // of a number, or of the elements of a list, if low < high
  double high = 0;
  std::string_view words = "";     // all values, as a,b,c
  std::string_view fallback = "";  // the default: its JSON text, or what it is
  std::string_view flags = "";     // "--tp,--tensor-model-parallel-size"; "": has none
  std::string_view group = "";     // heading in the help
  std::string_view help = "";      // {} is the range
  std::string_view details = "";   // for the documents only
  Commands reads = 0;              // on which commands its key has an effect
  Commands offers = 0;             // which commands have its flags
  Commands refuses = 0;            // which commands refuse values besides the default, instead of ignoring the key
  bool common = false;             // part of the short help
  bool analytic = false;           // has no effect with a cost file
  std::string_view drops = "";     // pointers of the keys of a file that setting this one removes, as a,b,c
  // The argument of Megatron-LM, without "--"; "=NAME" has the same values as ours, of NAME others follow too, or its
  // effect depends on others.
  std::string_view megatron = "";
  std::string_view example = "";  // JSON text of a value that differs from the default
  std::string_view with = "";     // JSON text of what else must be set for it to matter, merged into a scenario

  bool has_range() const { return low < high; }
  // Returns "--tp".
  std::string_view flag() const { return flags.substr(0, flags.find(',')); }
  // Returns "tp".
  std::string_view key() const { return pointer.substr(pointer.rfind('/') + 1); }
  // Returns "1 to 4096".
  std::string range() const;
  // Returns the default as text: "off", "none", "1".
  std::string fallback_text() const;
  // Returns the help with the range and the default.
  std::string full_help() const;
};

// All settings of scenarios, by section.
std::span<const Setting> settings();
// Returns the row of a key; null if there is none.
const Setting* find_setting(std::string_view pointer);
// Returns the row of a flag, with or without "--"; null if there is none.
const Setting* find_setting_of_flag(std::string_view flag);
// Returns the parts of a list "a,b,c".
std::vector<std::string> split_words(std::string_view list);

// Reads the keys of a section ("/parallelism") that have a place, checks type and range of the others, and marks all as
// known. Throws InputError.
void read_settings(std::string_view section, JsonReader& object, Scenario& scenario);

}  // namespace sluice::model

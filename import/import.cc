#include "import/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "import/deepspeed.h"
#include "import/megatron.h"
#include "import/megatron_names.h"
#include "import/names.h"
#include "import/nemo.h"
#include "import/shell.h"
#include "import/torchtitan.h"
#include "model/errors.h"
#include "model/input/files.h"

namespace sluice::imports {
namespace {

constexpr std::size_t kMostScript = std::size_t{1} << 20;  // characters
constexpr std::string_view kDumpBegin = "- arguments -";
constexpr std::string_view kDumpEnd = "- end of arguments -";
constexpr std::string_view kPaddedVocabulary = "padded vocab (size: ";

std::string_view line_of(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

// Whether a text begins with a byte order mark of UTF-16, or with an ASCII character in UTF-16.
bool is_utf16(std::string_view text) {
  return text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") ||
         (text.size() > 1 && (text[0] == '\0') != (text[1] == '\0'));
}

std::string_view without_mark(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  return text;
}

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r"), text.size()));
  return text.substr(0, text.find_last_not_of(" \t\r") + 1);
}

// Returns a positive number, 0 if `text` is none.
std::int64_t count_of_gpus(std::string_view text) {
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && rest == text.data() + text.size() && value > 0 && value < (1 << 25) ? value : 0;
}

// Returns the name of an argument as Megatron-LM documents it: "num-layers" for "--num_layers".
std::string argument_name(std::string_view word) {
  std::string name(word);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool begins_argument(std::string_view word) {
  return word.size() > 2 && word.starts_with("--") && word[2] != '-' && word[2] != '=';
}

// Groups words by the argument before them. Words before the first argument are those of the program.
std::vector<MegatronArgument> arguments_in(std::span<const ShellWord> words, bool lines) {
  std::vector<MegatronArgument> out;
  for (const auto& [text, line] : words) {
    if (begins_argument(text)) {
      const std::size_t equals = text.find('=');
      out.push_back({argument_name(std::string_view(text).substr(2, equals == std::string::npos ? equals : equals - 2)),
                     {},
                     lines ? line : 0});
      if (equals != std::string::npos) out.back().words.push_back(text.substr(equals + 1));
    } else if (!out.empty()) {
      out.back().words.push_back(text);
    }
  }
  return out;
}

// Returns the place of the program: a file such as pretrain_gpt.py, or a module after -m. The size if there is none.
std::size_t program_in(std::span<const ShellWord> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].text.ends_with(".py") || (i > 0 && words[i - 1].text == "-m")) return i;
  }
  return words.size();
}

// Returns the number of GPUs that a launcher such as torchrun or srun uses; 0 if its words do not determine it.
std::int64_t gpus_of_launcher(std::span<const ShellWord> words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& before = words[i - 1].text;
    const bool value = before.starts_with('-') && before.find('=') == std::string::npos;
    if (words[i].text.starts_with('$') && !value) return 0;  // any arguments
  }
  const auto has = [&](std::string_view name) {
    return std::any_of(words.begin(), words.end(), [&](const ShellWord& word) {
      return argument_name(std::string_view(word.text).substr(0, word.text.find('='))) == name;
    });
  };
  const auto value = [&](std::initializer_list<std::string_view> names) {
    std::int64_t out = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i].text;
      const std::size_t equals = word.find('=');
      const std::string name = argument_name(word.substr(0, equals));
      if (std::find(names.begin(), names.end(), name) == names.end()) continue;
      out = count_of_gpus(equals != std::string::npos ? word.substr(equals + 1)
                          : i + 1 < words.size()      ? words[i + 1].text
                                                      : "");
    }
    return out;
  };
  if (const std::int64_t each = value({"--nproc-per-node", "-nproc-per-node"}); each > 0) {
    return has("--nnodes") || has("-nnodes") ? each * value({"--nnodes", "-nnodes"}) : each;
  }
  if (const std::int64_t each = value({"--num-gpus"}); each > 0) {
    return has("--num-nodes") ? each * value({"--num-nodes"}) : each;
  }
  if (const std::int64_t all = value({"-np", "-n", "--ntasks"}); all > 0) return all;
  return value({"-N", "--nodes"}) * value({"--ntasks-per-node"});
}

// Returns how to obtain the arguments of a script that cannot be followed.
std::string ask_a_shell(const std::string& source) {
  return fmt::format("'sluice-args bash {} > args.txt' writes the arguments of the run, and sluice reads args.txt",
                     source);
}

// Throws InputError if a word contains a variable that control flow may set.
void check_certain(const ShellWord& word, const ShellScript& script, const std::string& source) {
  for (const auto& [name, place] : script.doubts) {
    const std::size_t at = word.text.find("$" + name);
    const std::size_t end = at + 1 + name.size();
    const bool longer = at != std::string::npos && end < word.text.size() &&
                        (std::isalnum(static_cast<unsigned char>(word.text[end])) != 0 || word.text[end] == '_');
    if (at == std::string::npos || longer) continue;
    throw InputError(fmt::format("{}: line {}: ${} depends on '{}' in line {}, which only a shell can follow: {}",
                                 source, word.line, name, place.word, place.line, ask_a_shell(source)));
  }
}

// Returns variables and outputs of commands that only a shell knows and that may hold arguments: those that are not the
// value of an argument. Throws InputError for those that control flow may set, unless they are the value of an argument
// that changes neither time nor memory.
std::vector<std::string> unknown_expansions(std::span<const ShellWord> words, const ShellScript& script,
                                            const std::string& source) {
  std::vector<std::string> out;
  std::string name;        // of the last argument
  bool has_effect = true;  // whether it changes time or memory
  int values = 0;          // that it still takes
  for (const ShellWord& word : words) {
    if (begins_argument(word.text)) {
      const MegatronArgument argument = arguments_in(std::span(&word, 1), true).front();
      const MegatronKey* const key = megatron_key(argument.name);
      name = argument.name;
      const std::string value = argument.words.empty() ? "" : argument.words.front();
      has_effect =
          key != nullptr || !megatron_without_effect(argument.name) || megatron_not_modeled(argument.name, value);
      const bool list = key != nullptr && key->value == MegatronValue::words;
      const bool flag = (key != nullptr && key->value == MegatronValue::flag) || !argument.words.empty();
      values = list ? std::numeric_limits<int>::max() : flag ? 0 : 1;
      if (has_effect) check_certain(word, script, source);
    } else {
      if (values == 0 || has_effect) check_certain(word, script, source);
      if (values > 0 && has_effect && word.text.starts_with('$') && !script.commands.empty()) {
        throw InputError(fmt::format("{}: line {}: --{}: the value of {} is not known: {}", source, word.line, name,
                                     word.text, ask_a_shell(source)));
      }
      if (values == 0 && word.text.starts_with('$')) out.push_back(fmt::format("{} (line {})", word.text, word.line));
      values = std::max(0, values - 1);
    }
  }
  return out;
}

// Texts of files by their names, as far as the import has them.
using FileTexts = std::map<std::string, std::string>;

// Removes lines such as `ds_config.json: {...}`, as `plan --runs-on deepspeed` prints them, and returns them.
FileTexts take_configurations(std::string& text) {
  FileTexts out;
  constexpr std::string_view kBetween = ".json: {";
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = without_blanks(std::string_view(text).substr(begin, end - begin));
    const std::size_t name = line.find(kBetween);
    if (name != std::string_view::npos && line.find_first_of(" \t") > name && line.ends_with('}')) {
      out[std::string(line.substr(0, name + 5))] = line.substr(name + kBetween.size() - 1);
      std::fill(text.begin() + static_cast<std::ptrdiff_t>(begin), text.begin() + static_cast<std::ptrdiff_t>(end),
                ' ');
    }
    begin = end + 1;
  }
  return out;
}

// Adds what DeepSpeed's configuration file determines to the arguments. Returns the notes about it.
std::vector<std::string> read_deepspeed_file(std::vector<MegatronArgument>& arguments, const FileTexts& files,
                                             const std::string& source) {
  std::string name;
  bool used = false;
  for (const MegatronArgument& argument : arguments) {
    used = used || argument.name == "deepspeed";
    if (argument.name == "deepspeed-config" && !argument.words.empty()) name = argument.words.front();
  }
  if (!used) return {};
  const std::filesystem::path path = std::filesystem::path(source).parent_path() / name;
  std::error_code error;
  DeepSpeedConfig config;
  if (const auto found = files.find(name); found != files.end()) {
    config = read_deepspeed(found->second, fmt::format("{}: {}", source, name));
  } else if (!name.empty() && std::filesystem::is_regular_file(path, error)) {
    config = read_deepspeed(read_file(path.string(), std::int64_t{kMostScript}), path.string());
  } else {
    const auto stage = std::find_if(arguments.begin(), arguments.end(),
                                    [](const MegatronArgument& argument) { return argument.name == "zero-stage"; });
    const bool given = stage != arguments.end() && !stage->words.empty();
    return {fmt::format(
        "{}: {}, so that its ZeRO stage is assumed to be {}", source,
        name.empty() ? "--deepspeed-config is missing" : fmt::format("--deepspeed-config {}: not found", name),
        given ? fmt::format("{} (--zero-stage)", stage->words.front()) : "0")};
  }
  add_deepspeed(config, fmt::format("{}: {}", source, name), arguments);
  return config.notes;
}

Imported import_words(std::span<const ShellWord> words, std::int64_t gpus, bool lines, const ShellScript& script,
                      const FileTexts& files, const std::string& source) {
  const std::size_t program = program_in(words);
  const std::size_t launcher = program == words.size() ? 0 : program;
  const std::vector<std::string> unknown = unknown_expansions(words.subspan(launcher), script, source);
  if (const std::int64_t launched = gpus_of_launcher(words.first(launcher)); launched > 0) gpus = launched;
  std::vector<MegatronArgument> arguments = arguments_in(words.subspan(launcher), lines);
  std::vector<std::string> notes = read_deepspeed_file(arguments, files, source);
  Imported out = scenario_of_megatron(arguments, gpus, source);
  out.notes.insert(out.notes.end(), notes.begin(), notes.end());
  if (program < words.size() && !unknown.empty()) {
    out.notes.push_back(fmt::format("{}: only the shell knows, so that arguments in them are missing: {}", source,
                                    fmt::join(unknown, ", ")));
  }
  return out;
}

bool trains(std::span<const ShellWord> command) {
  constexpr std::string_view kTelling[] = {"num-layers", "hidden-size", "micro-batch-size",
                                           "tensor-model-parallel-size"};
  return std::any_of(command.begin(), command.end(), [&](const ShellWord& word) {
    if (!begins_argument(word.text)) return false;
    const std::string name = argument_name(std::string_view(word.text).substr(2, word.text.find('=') - 2));
    return std::find(std::begin(kTelling), std::end(kTelling), name) != std::end(kTelling);
  });
}

Imported import_script(std::string_view text, const std::string& source) {
  if (text.size() > kMostScript) {
    throw InputError(
        fmt::format("{}: expected a script of at most {} bytes, got {}", source, kMostScript, text.size()));
  }
  std::string commands(text);
  const FileTexts files = take_configurations(commands);
  const ShellScript script = read_shell(commands, source);
  const ShellCommand* chosen = nullptr;
  for (const ShellCommand& command : script.commands) {
    if (!trains(command.words)) continue;
    if (chosen != nullptr) {
      throw InputError(fmt::format("{}: lines {} and {}: expected one command with arguments of Megatron-LM: {}",
                                   source, chosen->words.front().line, command.words.front().line,
                                   ask_a_shell(source)));
    }
    chosen = &command;
  }
  if (chosen == nullptr) {
    throw InputError(fmt::format(
        "{}: expected a scenario in JSON, a dump of Megatron-LM's arguments, or a script with a command such as "
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 ...: {}",
        source, ask_a_shell(source)));
  }
  if (const auto& [line, word] = chosen->within; line > 0 && word != ShellPlace::kChain && word != ShellPlace::kShell) {
    throw InputError(
        fmt::format("{}: line {}: the command depends on '{}' in line {}, which only a shell can follow: {}", source,
                    chosen->words.front().line, word, line, ask_a_shell(source)));
  }
  std::int64_t gpus = 0;
  const auto world = script.variables.find("WORLD_SIZE");
  const auto doubt = script.doubts.find("WORLD_SIZE");
  const bool certain = doubt == script.doubts.end() || doubt->second.word == ShellPlace::kEnvironment;
  if (world != script.variables.end() && !world->second.empty() && certain) gpus = count_of_gpus(world->second.front());
  Imported out = import_words(chosen->words, gpus, true, script, files, source);
  for (const std::string& note : script.notes) out.notes.push_back(fmt::format("{}: {}", source, note));
  return out;
}

// Returns the argument that sets an attribute to the printed value; without a name if that is the default.
MegatronArgument argument_of_attribute(const PrintedArgument& printed, std::int64_t line) {
  MegatronArgument out{argument_name(printed.name), {}, line, true};
  const bool no = printed.value == "False";
  const bool none = no || printed.value == "None" || printed.value == "[]" || printed.value.empty();
  const MegatronAttribute* const attribute = megatron_attribute(out.name);
  if (attribute != nullptr) out.name = attribute->name;
  const bool inverted = attribute != nullptr && attribute->inverted;
  if (inverted ? !no : none) return {};
  if (inverted || printed.value == "True") return out;
  const MegatronKey* const key = megatron_key(out.name);
  if (key != nullptr && key->value == MegatronValue::words) {
    out.words = words_of_list(printed.value);
  } else {
    out.words.emplace_back(printed.value);
  }
  return out;
}

// Reads the arguments of a log: those of its last dump, or all if it has no frame.
std::vector<MegatronArgument> arguments_of_dump(std::string_view text, const std::string& source) {
  const bool framed = text.find(kDumpBegin) != std::string_view::npos || text.find(kDumpEnd) != std::string_view::npos;
  std::vector<MegatronArgument> arguments;
  std::map<std::string_view, std::pair<std::int64_t, std::string_view>> seen;  // lines and values
  std::int64_t begin = 0;
  std::int64_t line_number = 0;
  while (!text.empty()) {
    const std::string_view line = line_of(text);
    ++line_number;
    if (line.find(kDumpBegin) != std::string_view::npos) {
      begin = line_number;
      arguments.clear();
      seen.clear();
    } else if (line.find(kDumpEnd) != std::string_view::npos) {
      if (begin == 0 && arguments.empty()) {
        throw InputError(fmt::format("{}: line {}: the begin of the arguments is missing", source, line_number));
      }
      begin = 0;
    }
    const PrintedArgument printed = framed && begin == 0 ? PrintedArgument{} : printed_argument(line);
    if (printed.name.empty()) continue;
    const auto [before, added] = seen.try_emplace(printed.name, line_number, printed.value);
    if (!added && before->second.second != printed.value) {
      throw InputError(fmt::format("{}: lines {} and {}: {} is '{}' and '{}'", source, before->second.first,
                                   line_number, printed.name, before->second.second, printed.value));
    }
    if (!added) continue;
    MegatronArgument argument = argument_of_attribute(printed, line_number);
    if (!argument.name.empty()) arguments.push_back(std::move(argument));
  }
  if (begin > 0) {
    throw InputError(fmt::format("{}: line {}: the end of the arguments is missing", source, begin));
  }
  return arguments;
}

Imported import_dump(std::string_view text, const std::string& source) {
  std::vector<MegatronArgument> arguments = arguments_of_dump(text, source);
  std::string_view vocabulary;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = line_of(rest);
    if (const std::size_t at = line.find(kPaddedVocabulary); at != std::string_view::npos) {
      const std::string_view size = line.substr(at + kPaddedVocabulary.size());
      vocabulary = size.substr(0, size.find(')'));
    }
  }
  const bool known = std::any_of(arguments.begin(), arguments.end(), [](const MegatronArgument& argument) {
    return argument.name == "vocab-size" || argument.name == "padded-vocab-size";
  });
  if (!known && count_of_gpus(vocabulary) > 0) arguments.push_back({"vocab-size", {std::string(vocabulary)}, 0});
  const std::vector<std::string> notes = read_deepspeed_file(arguments, {}, source);
  Imported out = scenario_of_megatron(arguments, 0, source);
  out.notes.insert(out.notes.end(), notes.begin(), notes.end());
  return out;
}

}  // namespace

PrintedArgument printed_argument(std::string_view line) {
  const std::size_t dots = line.find(" ..");
  if (dots == std::string_view::npos) return {};
  const std::size_t after = line.find_first_not_of('.', dots + 1);
  if (after != std::string_view::npos && line[after] != ' ' && line[after] != '\r') return {};
  const std::string_view before = line.substr(0, dots);
  const std::string_view name = before.substr(before.find_last_of(" \t:]") + 1);
  return {name, after == std::string_view::npos ? "" : without_blanks(line.substr(after))};
}

bool has_megatron_arguments(std::string_view text) {
  while (!text.empty()) {
    const PrintedArgument printed = printed_argument(line_of(text));
    if (!printed.name.empty() && megatron_key(argument_name(printed.name)) != nullptr) return true;
  }
  return false;
}

bool is_foreign(std::string_view text) {
  if (is_utf16(text)) return true;
  text = without_mark(text);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] == '{') return false;
  if (text.starts_with("#!") || text.substr(first).starts_with("--")) return true;
  for (std::size_t at = text.find(" --"); at != std::string_view::npos; at = text.find(" --", at + 1)) {
    if (at + 3 < text.size() && text[at + 3] >= 'a' && text[at + 3] <= 'z') return true;
  }
  return has_megatron_arguments(text) || is_torchtitan(text) || is_nemo(text);
}

void reject_other_formats(std::string_view text, const std::string& source) {
  std::string_view line;
  for (text = without_mark(text); !text.empty() && (line.empty() || line.starts_with('#'));) {
    line = without_blanks(line_of(text));
  }
  const auto is_letter = [&](std::size_t i) {
    return i < line.size() && std::isalpha(static_cast<unsigned char>(line[i])) != 0;
  };
  const bool header = line.starts_with('[') && line.ends_with(']') && is_letter(1);
  const std::string_view rest = is_letter(0) ? line.substr(std::min(line.find_first_of(" :="), line.size())) : "";
  if (header || rest.starts_with(" = ")) {
    throw InputError(fmt::format(
        "{}: expected a scenario in JSON, or a job configuration of torchtitan, which has a table model, training or "
        "parallelism, got TOML without them",
        source));
  }
  if (line == "---" || rest == ":" || rest.starts_with(": ")) {
    throw InputError(fmt::format(
        "{}: expected a scenario in JSON, or a configuration of NeMo or Megatron-Bridge, which has sections model, and "
        "trainer or train, got YAML without them",
        source));
  }
}

Imported import_text(std::string_view text, const std::string& source) {
  if (is_utf16(text)) {
    throw InputError(fmt::format("{0}: expected UTF-8, got UTF-16: iconv -f UTF-16 -t UTF-8 {0} converts it", source));
  }
  text = without_mark(text);
  if (is_torchtitan(text)) return import_torchtitan(text, source);
  if (is_nemo(text)) return import_nemo(text, source);
  if (has_megatron_arguments(text)) return import_dump(text, source);
  reject_other_formats(text, source);
  return import_script(text, source);
}

Imported import_megatron_line(std::string_view line, const std::string& source) {
  if (line.size() > kMostScript) {
    throw InputError(fmt::format("{}: expected at most {} bytes, got {}", source, kMostScript, line.size()));
  }
  std::string arguments_alone(line);
  const FileTexts files = take_configurations(arguments_alone);
  const std::vector<ShellWord> words = split_words(arguments_alone, source);
  const bool program = program_in(words) < words.size();
  const bool arguments =
      std::any_of(words.begin(), words.end(), [](const ShellWord& word) { return begins_argument(word.text); });
  if (!arguments || (!program && !begins_argument(words.front().text))) {
    throw InputError(fmt::format("{}: expected arguments of Megatron-LM, such as --num-layers 32, got '{}'", source,
                                 words.empty() ? "" : words.front().text));
  }
  return import_words(words, 0, false, {}, files, source);
}

std::string naming_arguments(const std::string& what, const std::string& source, const Imported& imported) {
  const std::string begin = source + ": ";
  if (!what.starts_with(begin + "/")) return what;
  const std::size_t end = what.find(": ", begin.size());
  if (end == std::string::npos) return what;
  std::string pointer = what.substr(begin.size(), end - begin.size());
  if (imported.places.empty()) {
    const std::string_view name = megatron_argument_of(pointer);
    return name.empty() ? what : fmt::format("{}--{}{}", begin, name, what.substr(end));
  }
  while (!pointer.empty() && !imported.places.contains(pointer)) pointer.resize(pointer.rfind('/'));
  return pointer.empty() ? what : begin + imported.places.at(pointer) + what.substr(end);
}

void check_complete(const nlohmann::json& scenario, const std::string& source, const Imported& imported) {
  if (!scenario.contains("model") && !imported.no_model.empty()) {
    throw InputError(fmt::format("{}: {}", source, imported.no_model));
  }
  constexpr std::pair<std::string_view, std::string_view> kRequired[] = {
      {"/model/num_layers", "required, or --model"},
      {"/model/hidden_size", "required"},
      {"/model/num_attention_heads", "required"},
      {"/model/vocab_size", "required, because only the tokenizer of the run knows it"},
      {"/batch/sequence_length", "required"},
      {"/batch/micro_batch", "required"}};
  const bool own_model = !scenario.contains("model") || scenario.at("model").is_object();
  const bool of_blocks =
      scenario.contains("model") && scenario.at("model").is_object() && scenario.at("model").contains("kinds");
  for (const auto& [pointer, what] : kRequired) {
    if (pointer.starts_with("/model/") && (!own_model || of_blocks)) continue;
    if (scenario.contains(nlohmann::json::json_pointer(std::string(pointer)))) continue;
    throw InputError(fmt::format("{}: --{}: {}", source, megatron_argument_of(pointer), what));
  }
}

}  // namespace sluice::imports

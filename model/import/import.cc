#include "model/import/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "model/errors.h"
#include "model/import/megatron.h"
#include "model/import/megatron_names.h"
#include "model/import/shell.h"
#include "model/import/torchtitan.h"

namespace sluice::model {
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

bool is_program(const ShellWord& word) { return word.text.ends_with(".py"); }

// Returns the number of GPUs that a launcher such as torchrun or srun uses; 0 if its words do not determine it.
std::int64_t gpus_of_launcher(std::span<const ShellWord> words) {
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
    const bool nodes = std::any_of(words.begin(), words.end(), [](const ShellWord& word) {
      return argument_name(word.text).starts_with("--nnodes");
    });
    return nodes ? each * value({"--nnodes"}) : each;
  }
  if (const std::int64_t each = value({"--num-gpus"}); each > 0) {
    return each * std::max<std::int64_t>(1, value({"--num-nodes"}));
  }
  if (const std::int64_t all = value({"-np", "-n", "--ntasks"}); all > 0) return all;
  return value({"-N", "--nodes"}) * value({"--ntasks-per-node"});
}

// Returns variables and outputs of commands that only a shell knows and that may hold arguments: those that are not the
// value of an argument.
std::vector<std::string> unknown_expansions(std::span<const ShellWord> words) {
  std::vector<std::string> out;
  int values = 0;  // that the last argument still takes
  for (const auto& [text, line] : words) {
    if (begins_argument(text)) {
      const std::size_t equals = text.find('=');
      const MegatronKey* const key = megatron_key(
          argument_name(std::string_view(text).substr(2, equals == std::string::npos ? equals : equals - 2)));
      const bool list = key != nullptr && key->value == MegatronValue::words;
      values = list ? std::numeric_limits<int>::max() : key != nullptr && key->value == MegatronValue::flag ? 0 : 1;
      if (equals != std::string::npos && !list) values = 0;
      continue;
    }
    if (text.starts_with('$') && values == 0) out.push_back(fmt::format("{} (line {})", text, line));
    values = std::max(0, values - 1);
  }
  return out;
}

Imported import_words(std::span<const ShellWord> words, std::int64_t gpus, bool lines, const std::string& source) {
  const auto program = std::find_if(words.begin(), words.end(), is_program);
  if (program == words.end()) return scenario_of_megatron(arguments_in(words, lines), gpus, source);
  const auto launcher = static_cast<std::size_t>(program - words.begin());
  if (const std::int64_t launched = gpus_of_launcher(words.first(launcher)); launched > 0) gpus = launched;
  Imported out = scenario_of_megatron(arguments_in(words.subspan(launcher), lines), gpus, source);
  const std::vector<std::string> unknown = unknown_expansions(words.subspan(launcher));
  if (!unknown.empty()) {
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

// Returns the command with each word that is a command line itself, as of `bash -c "..."`, split into its words.
std::vector<ShellWord> opened(const std::vector<ShellWord>& command, const std::string& source) {
  std::vector<ShellWord> out;
  for (const ShellWord& word : command) {
    const bool line = word.text.find(" --") != std::string::npos && word.text.find(".py") != std::string::npos;
    if (!line) {
      out.push_back(word);
      continue;
    }
    for (ShellWord& inner : split_words(word.text, source)) out.push_back({std::move(inner.text), word.line});
  }
  return out;
}

Imported import_script(std::string_view text, const std::string& source) {
  if (text.size() > kMostScript) {
    throw InputError(
        fmt::format("{}: expected a script of at most {} bytes, got {}", source, kMostScript, text.size()));
  }
  const ShellScript script = read_shell(text, source);
  std::vector<ShellWord> chosen;
  for (const std::vector<ShellWord>& command : script.commands) {
    std::vector<ShellWord> words = opened(command, source);
    if (!trains(words)) continue;
    if (!chosen.empty()) {
      throw InputError(fmt::format("{}: lines {} and {}: expected one command with arguments of Megatron-LM", source,
                                   chosen.front().line, words.front().line));
    }
    chosen = std::move(words);
  }
  if (chosen.empty()) {
    throw InputError(fmt::format(
        "{}: expected a scenario in JSON, a dump of Megatron-LM's arguments, or a script with a command such as "
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 ...",
        source));
  }
  std::int64_t gpus = 0;
  if (const auto world = script.variables.find("WORLD_SIZE"); world != script.variables.end()) {
    gpus = world->second.empty() ? 0 : count_of_gpus(world->second.front());
  }
  return import_words(chosen, gpus, true, source);
}

// Returns the words of a printed list such as ['p2p'].
std::vector<std::string> words_of_list(std::string_view value) {
  std::vector<std::string> out(1);
  for (const char c : value) {
    if (c == ',') out.emplace_back();
    if (std::string_view("[]'\" ,").find(c) == std::string_view::npos) out.back() += c;
  }
  std::erase(out, "");
  return out;
}

// Returns the argument that sets an attribute to the printed value; without a name if that is the default.
MegatronArgument argument_of_attribute(const PrintedArgument& printed, std::int64_t line) {
  MegatronArgument out{argument_name(printed.name), {}, line};
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

Imported import_dump(std::string_view text, const std::string& source) {
  const bool framed = text.find(kDumpBegin) != std::string_view::npos;
  bool inside = !framed;
  std::vector<MegatronArgument> arguments;
  std::string_view vocabulary;
  std::int64_t line_number = 0;
  while (!text.empty()) {
    const std::string_view line = line_of(text);
    ++line_number;
    if (framed && line.find(kDumpBegin) != std::string_view::npos) {
      inside = true;
      arguments.clear();
    } else if (line.find(kDumpEnd) != std::string_view::npos) {
      inside = false;
    }
    if (const std::size_t at = line.find(kPaddedVocabulary); at != std::string_view::npos) {
      const std::string_view rest = line.substr(at + kPaddedVocabulary.size());
      vocabulary = rest.substr(0, rest.find(')'));
    }
    const PrintedArgument printed = inside ? printed_argument(line) : PrintedArgument{};
    if (printed.name.empty()) continue;
    MegatronArgument argument = argument_of_attribute(printed, line_number);
    if (!argument.name.empty()) arguments.push_back(std::move(argument));
  }
  const bool known = std::any_of(arguments.begin(), arguments.end(), [](const MegatronArgument& argument) {
    return argument.name == "vocab-size" || argument.name == "padded-vocab-size";
  });
  if (!known && count_of_gpus(vocabulary) > 0) arguments.push_back({"vocab-size", {std::string(vocabulary)}, 0});
  return scenario_of_megatron(arguments, 0, source);
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
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] == '{') return false;
  if (text.starts_with("#!") || text.substr(first).starts_with("--")) return true;
  for (std::size_t at = text.find(" --"); at != std::string_view::npos; at = text.find(" --", at + 1)) {
    if (at + 3 < text.size() && text[at + 3] >= 'a' && text[at + 3] <= 'z') return true;
  }
  return has_megatron_arguments(text) || is_torchtitan(text);
}

Imported import_text(std::string_view text, const std::string& source) {
  if (is_torchtitan(text)) return import_torchtitan(text, source);
  return has_megatron_arguments(text) ? import_dump(text, source) : import_script(text, source);
}

Imported import_megatron_line(std::string_view line, const std::string& source) {
  if (line.size() > kMostScript) {
    throw InputError(fmt::format("{}: expected at most {} bytes, got {}", source, kMostScript, line.size()));
  }
  const std::vector<ShellWord> words = split_words(line, source);
  if (std::none_of(words.begin(), words.end(), [](const ShellWord& word) { return begins_argument(word.text); })) {
    throw InputError(fmt::format("{}: expected arguments of Megatron-LM, such as --num-layers 32", source));
  }
  return import_words(words, 0, false, source);
}

std::string naming_arguments(const std::string& what, const std::string& source, std::string_view text) {
  const std::string begin = source + ": ";
  if (!what.starts_with(begin + "/") || is_torchtitan(text)) return what;
  const std::size_t end = what.find(": ", begin.size());
  if (end == std::string::npos) return what;
  const std::string_view name = megatron_argument_of(what.substr(begin.size(), end - begin.size()));
  return name.empty() ? what : fmt::format("{}--{}{}", begin, name, what.substr(end));
}

void check_complete(const nlohmann::json& scenario, const std::string& source) {
  constexpr std::pair<std::string_view, std::string_view> kRequired[] = {
      {"/model/num_layers", "required, or --model"},
      {"/model/hidden_size", "required"},
      {"/model/num_attention_heads", "required"},
      {"/model/vocab_size", "required, because only the tokenizer of the run knows it"},
      {"/batch/sequence_length", "required"},
      {"/batch/micro_batch", "required"}};
  const bool own_model = !scenario.contains("model") || scenario.at("model").is_object();
  for (const auto& [pointer, what] : kRequired) {
    if (pointer.starts_with("/model/") && !own_model) continue;
    if (scenario.contains(nlohmann::json::json_pointer(std::string(pointer)))) continue;
    throw InputError(fmt::format("{}: --{}: {}", source, megatron_argument_of(pointer), what));
  }
}

}  // namespace sluice::model

#include "import/megatron_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "import/import.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/schedule/family.h"

namespace sluice::imports {
namespace {

constexpr std::string_view kElapsed = "elapsed time per iteration (ms):";
constexpr std::string_view kGlobalBatch = "global batch size:";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t\r"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t\r") + 1);
}

// Returns the text between `mark` and the next "|" or the end of the line; nullopt without `mark`.
std::optional<std::string_view> field(std::string_view line, std::string_view mark) {
  const std::size_t at = line.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = line.substr(at + mark.size());
  return trimmed(rest.substr(0, rest.find('|')));
}

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

// An argument of Megatron-LM and the scenario's value for it; nullopt if the scenario does not determine it.
struct Setting {
  const char* argument;
  std::optional<std::int64_t> value;
};

std::optional<std::int64_t> known_if(bool known, std::int64_t value) {
  return known ? std::optional(value) : std::nullopt;
}

std::vector<Setting> settings_of_model(const Transformer& model) {
  return {{"num_layers", model.layers},
          {"hidden_size", model.hidden},
          {"num_attention_heads", model.heads},
          {"ffn_hidden_size", model.ffn_hidden},
          {"num_query_groups", known_if(model.kv_heads != model.heads, model.kv_heads)},
          {"num_experts", model.experts.count},
          {"moe_router_topk", known_if(model.has_experts(), model.experts.per_token)},
          {"swiglu", model.gated ? 1 : 0},
          {"untie_embeddings_and_output_weights", model.tied_embeddings ? 0 : 1}};
}

std::vector<Setting> settings_of_layers(const Model& model) {
  return {{"num_layers", model.layers},
          {"hidden_size", model.hidden},
          {"untie_embeddings_and_output_weights", model.tied_embeddings ? 0 : 1}};
}

// Returns the number of chunks per rank, where a key or the family determines it.
std::optional<std::int64_t> chunks_of(const Scenario& scenario) {
  if (scenario.chunks > 0) return scenario.chunks;
  if (names_file(scenario.schedule) || scenario.schedule == kAutomatic) return std::nullopt;
  return known_if(find_family(scenario.schedule).fixed_chunks == 1, 1);
}

std::vector<Setting> settings_of(const Scenario& scenario) {
  const Training& training = scenario.training;
  const std::int64_t replicas = training.dp;
  std::vector<Setting> out;
  if (scenario.model)
    out = scenario.model->flat ? settings_of_model(*scenario.model->flat) : settings_of_layers(*scenario.model);
  const std::int64_t batch = std::int64_t{training.micro_batch} * scenario.microbatches * replicas;
  const bool full = training.recompute == Training::Recompute::full;
  const std::vector<Setting> more = {
      {"seq_length", known_if(training.sequence_length > 0, training.sequence_length)},
      {"micro_batch_size", training.micro_batch},
      {"global_batch_size", known_if(scenario.microbatches > 0, batch)},
      {"tensor_model_parallel_size", training.tp},
      {"pipeline_model_parallel_size", known_if(training.pp > 0, training.pp)},
      {"virtual_pipeline_model_parallel_size", chunks_of(scenario)},
      {"context_parallel_size", training.cp},
      {"expert_model_parallel_size", training.ep},
      {"data_parallel_size", replicas},
      {"world_size", known_if(training.pp > 0, training.world_size())},
      {"sequence_parallel", known_if(training.tp > 1, training.sequence_parallel ? 1 : 0)},
      // FSDP shards optimizer states with this argument or without it.
      {"use_distributed_optimizer",
       known_if(replicas > 1 && training.zero_stage() < 2, training.distributed_optimizer ? 1 : 0)},
      {"overlap_grad_reduce", known_if(replicas > 1, training.overlap_grad_reduce ? 1 : 0)},
      {"recompute_granularity", full ? 1 : 0}};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

// Returns the value of an argument as in `settings_of`; nullopt for words that have no such value.
std::optional<std::int64_t> value_of(const LoggedValue& argument) {
  if (argument.name == "recompute_granularity") return argument.value == "full" ? 1 : 0;
  if (argument.value == "True") return 1;
  if (argument.value == "False") return 0;
  if (argument.name == "virtual_pipeline_model_parallel_size" && argument.value == "None") return 1;
  if (argument.name == "num_experts" && argument.value == "None") return 0;
  return number_of<std::int64_t>(argument.value);
}

[[noreturn]] void contradict(const MegatronLog& log, const LoggedValue& logged, const Scenario& scenario,
                             std::int64_t expected) {
  const bool word = logged.value == "True" || logged.value == "False";
  const std::string value = logged.name == "recompute_granularity" ? (expected == 1 ? "full" : "none or selective")
                            : word                                 ? (expected == 1 ? "True" : "False")
                                                                   : std::to_string(expected);
  throw InputError(fmt::format("{}: line {}: {} is {}, but the scenario ({}) has {}", log.source, logged.line,
                               logged.name, logged.value, scenario.source, value));
}

// The number after the last "iteration" before the elapsed time; 0 without one.
std::int64_t iteration_number(std::string_view line) {
  constexpr std::string_view kWord = "iteration";
  const std::size_t at = line.substr(0, line.find(kElapsed)).find(kWord);
  if (at == std::string_view::npos) return 0;
  const std::string_view rest = trimmed(line.substr(at + kWord.size()));
  return number_of<std::int64_t>(rest.substr(0, rest.find_first_not_of("0123456789"))).value_or(0);
}

// Reads the timers that follow the line of an iteration.
class TimerReader {
 public:
  explicit TimerReader(MegatronLog& log) : log_(log) {}

  // Whether the line belongs to a block of timers. Throws InputError.
  bool take(std::string_view line, std::int64_t number) {
    if (line.find("across ranks (ms):") != std::string_view::npos) {
      inside_ = true;
      timer_ = nullptr;
      return true;
    }
    if (!inside_) return false;
    const std::string_view text = without_prefix(line);
    const std::size_t colon = text.find(':');
    inside_ = colon != std::string_view::npos && (text.starts_with("rank ") ? timer_ != nullptr : is_name(text, colon));
    if (!inside_) return false;
    if (log_.seconds.empty()) return true;  // of the setup
    const std::string_view value = trimmed(text.substr(colon + 1));
    const auto wrong = [&](const char* expected) {
      return InputError(
          fmt::format("{}: line {}: expected {}, got '{}'", log_.source, number, expected, text.substr(0, 60)));
    };
    if (text.starts_with("rank ")) {
      const auto rank = number_of<std::int64_t>(trimmed(text.substr(5, colon - 5)));
      const auto seconds = time_of(value);
      if (!rank || *rank < 0 || *rank >= kMostRanks || !seconds) throw wrong("'rank N: milliseconds'");
      if (std::ssize(timer_->ranks_s) <= *rank) timer_->ranks_s.resize(static_cast<std::size_t>(*rank) + 1);
      timer_->ranks_s[static_cast<std::size_t>(*rank)] = *seconds;
      timer_->min_s = timer_->max_s == 0 ? *seconds : std::min(timer_->min_s, *seconds);
      timer_->max_s = std::max(timer_->max_s, *seconds);
      return true;
    }
    const std::size_t iteration = log_.seconds.size() - 1;
    if (log_.tables.empty() || log_.tables.back().iteration != iteration) log_.tables.push_back({iteration, {}});
    const std::string_view name = text.substr(0, colon);
    timer_ = &log_.tables.back().timers.emplace_back();
    timer_->name = trimmed(name.substr(0, name.find(" .")));
    if (value.empty()) return true;  // a line for each rank follows
    const bool pair = value.front() == '(' && value.back() == ')';
    const std::size_t comma = value.find(',');
    const auto low =
        pair && comma != std::string_view::npos ? time_of(trimmed(value.substr(1, comma - 1))) : time_of(value);
    const auto high = pair && comma != std::string_view::npos
                          ? time_of(trimmed(value.substr(comma + 1, value.size() - comma - 2)))
                          : low;
    if (!low || !high || *low > *high) throw wrong("'timer ...: (least, most)' or 'timer ...: most' in milliseconds");
    timer_->min_s = *low;
    timer_->max_s = *high;
    return true;
  }

  void end() {
    inside_ = false;
    timer_ = nullptr;
  }

 private:
  static constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;

  // Without "[default0]:" of launchers.
  static std::string_view without_prefix(std::string_view line) {
    line = trimmed(line);
    if (line.starts_with('[')) {
      const std::size_t end = line.find("]:");
      if (end != std::string_view::npos) line = trimmed(line.substr(end + 2));
    }
    return line;
  }

  // "forward-compute ......: ", or "forward-compute:" before the lines of the ranks.
  static bool is_name(std::string_view text, std::size_t colon) {
    const std::string_view name = trimmed(text.substr(0, colon));
    const bool dotted = name.ends_with('.');
    return !name.empty() && (dotted || colon + 1 == text.size()) &&
           name.substr(0, dotted ? name.find(" .") : name.size())
                   .find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_/") == std::string_view::npos;
  }

  static std::optional<double> time_of(std::string_view text) {
    const auto milliseconds = number_of<double>(text);
    if (!milliseconds || !(*milliseconds >= 0 && *milliseconds < 1e10)) return std::nullopt;
    return *milliseconds / 1e3;
  }

  MegatronLog& log_;
  LoggedTimer* timer_ = nullptr;  // of which lines of ranks follow
  bool inside_ = false;
};

}  // namespace

MegatronLog parse_megatron_log(std::string_view text, const std::string& source) {
  MegatronLog log{.source = source};
  TimerReader timers(log);
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const auto elapsed = field(line, kElapsed);
    if (!elapsed) {
      if (timers.take(line, number)) continue;
      const PrintedArgument argument = printed_argument(line);
      if (!argument.name.empty()) {
        log.arguments.push_back({std::string(argument.name), std::string(argument.value), number});
      }
      continue;
    }
    const auto milliseconds = number_of<double>(*elapsed);
    if (!milliseconds || !(*milliseconds >= 1e-3 && *milliseconds < 1e10)) {
      throw InputError(
          fmt::format("{}: line {}: expected milliseconds after '{}', then '|' or the end of the line, got '{}'",
                      source, number, kElapsed, elapsed->substr(0, 40)));
    }
    log.seconds.push_back(*milliseconds / 1e3);
    log.iterations.push_back(iteration_number(line));
    timers.end();
    log.global_batches.push_back({"global batch size", std::string(field(line, kGlobalBatch).value_or("")), number});
  }
  if (log.seconds.empty()) {
    throw InputError(fmt::format("{}: expected a table (.csv), or a log with lines '{} ...'", source, kElapsed));
  }
  return log;
}

MegatronLog read_megatron_log(const std::string& path) {
  return parse_megatron_log(read_file(path, std::int64_t{1} << 30), path);
}

void check_arguments(const MegatronLog& log, const Scenario& scenario, int skip) {
  const std::vector<Setting> settings = settings_of(scenario);
  for (const LoggedValue& logged : log.arguments) {
    const auto setting = std::find_if(settings.begin(), settings.end(),
                                      [&](const Setting& each) { return each.argument == logged.name; });
    if (setting == settings.end() || !setting->value) continue;
    const auto value = value_of(logged);
    if (value && *value != *setting->value) contradict(log, logged, scenario, *setting->value);
  }
  const auto batch = std::find_if(settings.begin(), settings.end(), [](const Setting& each) {
    return each.argument == std::string_view("global_batch_size");
  });
  for (std::size_t i = skip; i < log.global_batches.size(); ++i) {
    const LoggedValue& logged = log.global_batches[i];
    const auto value = number_of<std::int64_t>(logged.value);
    if (value && batch->value && *value != *batch->value) contradict(log, logged, scenario, *batch->value);
  }
}

}  // namespace sluice::imports

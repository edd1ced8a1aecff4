#include "sim/calibration/megatron_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "model/errors.h"
#include "model/import/import.h"
#include "model/input/files.h"
#include "model/schedule/family.h"

namespace sluice::sim {
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
  if (scenario.model) out = settings_of_model(*scenario.model);
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

}  // namespace

MegatronLog parse_megatron_log(std::string_view text, const std::string& source) {
  MegatronLog log{.source = source, .seconds = {}, .global_batches = {}, .arguments = {}};
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const auto elapsed = field(line, kElapsed);
    if (!elapsed) {
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

}  // namespace sluice::sim

#include "tools/command/scenario_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <list>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"

namespace sluice::tools {
namespace {

enum class ValueKind { whole, real, text, path, whole_list, yes };

struct FlagRow {
  const char* names;    // CLI11's list
  const char* pointer;  // of the scenario's key
  ValueKind kind;
  const char* group;
  const char* help;
};

constexpr const char* kSchedule = "Schedule";
constexpr const char* kAutomaticSchedule = "Schedule auto";
constexpr const char* kParallelism = "Parallelism";
constexpr const char* kBatch = "Batch";
constexpr const char* kModel = "Model and cluster";
constexpr const char* kPerturbation = "Stragglers and noise";

const FlagRow kRows[] = {
    {"--schedule", "/schedule/name", ValueKind::text, kSchedule,
     "family ('sluice schedules' lists them), schedule file, or auto: one made for these costs"},
    {"--pp,--pipeline-model-parallel-size", "/parallelism/pp", ValueKind::whole, kSchedule, "ranks in the pipeline"},
    {"--vpp,--num-virtual-stages-per-pipeline-rank", "/parallelism/vpp", ValueKind::whole, kSchedule,
     "chunks (virtual stages) a rank; hanayo: twice its waves"},
    {"--num-layers-per-virtual-pipeline-stage", "/parallelism/layers_per_virtual_stage", ValueKind::whole, kSchedule,
     "layers a chunk, instead of --vpp"},
    {"--group", "/schedule/group", ValueKind::whole, kSchedule, "G of the interleaved families, in units"},
    {"--microbatches", "/batch/microbatches", ValueKind::whole, kSchedule, "microbatches of one batch and pipeline"},
    {"--slices", "/schedule/slices", ValueKind::whole, kSchedule,
     "slices of each sequence (--slicing says how they are cut)"},
    {"--slicing", "/schedule/slicing", ValueKind::text, kSchedule,
     "how to cut: even (default), or balanced: slices of equal FLOPs under causal attention"},
    {"--slice-lengths", "/schedule/slice_lengths", ValueKind::whole_list, kSchedule, "tokens of each slice: a,b,c"},
    {"--batches", "/schedule/batches", ValueKind::whole, kSchedule, "batches, for schedules without a flush"},

    {"--memory-cap", "/schedule/memory_cap", ValueKind::text, kAutomaticSchedule,
     "of a rank: bytes, as in 60GiB, or activations of microbatches, as in 3mb (default: the device's memory)"},
    {"--time-budget", "/schedule/time_budget_s", ValueKind::real, kAutomaticSchedule, "seconds to search (default 10)"},
    {"--placement", "/schedule/placement", ValueKind::text, kAutomaticSchedule,
     "linear, looped, v, or any that --vpp allows (default; without --vpp one and two chunks a rank)"},

    {"--tp,--tensor-model-parallel-size", "/parallelism/tp", ValueKind::whole, kParallelism, "tensor-parallel ranks"},
    {"--dp,--data-parallel-size", "/parallelism/dp", ValueKind::whole, kParallelism, "data-parallel replicas"},
    {"--use-tp-pp-dp-mapping", "/parallelism/pipeline_before_data", ValueKind::yes, kParallelism,
     "the stages of a replica on GPUs next to each other, before its next replica"},
    {"--cp,--context-parallel-size", "/parallelism/cp", ValueKind::whole, kParallelism,
     "ranks that split each sequence"},
    {"--cp-comm-type", "/parallelism/cp_comm_type", ValueKind::text, kParallelism,
     "how these exchange keys and values: p2p or a2a"},
    {"--ep,--expert-model-parallel-size", "/parallelism/ep", ValueKind::whole, kParallelism,
     "expert-parallel ranks, of tp x cp x dp"},
    {"--etp,--expert-tensor-parallel-size", "/parallelism/etp", ValueKind::whole, kParallelism,
     "1: each expert is whole on its rank"},
    {"--sequence-parallel", "/parallelism/sequence_parallel", ValueKind::yes, kParallelism,
     "split norms and dropout over the tensor-parallel ranks too"},
    {"--recompute,--recompute-granularity", "/parallelism/recompute", ValueKind::text, kParallelism,
     "none, selective or full"},
    {"--recompute-num-layers", "/parallelism/recompute_layers", ValueKind::whole, kParallelism,
     "with full recomputation: only so many of each stage's first layers"},
    {"--use-distributed-optimizer", "/parallelism/distributed_optimizer", ValueKind::yes, kParallelism,
     "split the optimizer's state over the replicas"},
    {"--overlap-grad-reduce", "/parallelism/overlap_grad_reduce", ValueKind::yes, kParallelism,
     "reduce gradients while the backward runs"},
    {"--cross-entropy-loss-fusion", "/parallelism/fused_cross_entropy", ValueKind::yes, kParallelism,
     "the loss is written over the logits"},
    {"--overlap-p2p-communication", "/parallelism/overlap_transfers", ValueKind::yes, kParallelism,
     "ranks compute while they send, whatever the software does"},
    {"--stage-layers", "/parallelism/stage_layers", ValueKind::whole_list, kParallelism, "layers of each stage: a,b,c"},
    {"--decoder-first-pipeline-num-layers", "/parallelism/first_stage_layers", ValueKind::whole, kParallelism,
     "layers of the first stage"},
    {"--decoder-last-pipeline-num-layers", "/parallelism/last_stage_layers", ValueKind::whole, kParallelism,
     "layers of the last stage"},

    {"--mbs,--micro-batch-size", "/batch/micro_batch", ValueKind::whole, kBatch, "sequences of a microbatch"},
    {"--gbs,--global-batch-size", "/batch/global_batch", ValueKind::whole, kBatch,
     "sequences of a batch over all replicas; gives the microbatches"},
    {"--seq-length", "/batch/sequence_length", ValueKind::whole, kBatch, "tokens of a sequence"},

    {"--model", "/model", ValueKind::path, kModel, "Hugging Face config.json, or Megatron-style JSON"},
    {"--num-layers", "/model/num_layers", ValueKind::whole, kModel, "Megatron's flags instead of a file"},
    {"--hidden-size", "/model/hidden_size", ValueKind::whole, kModel, ""},
    {"--ffn-hidden-size", "/model/ffn_hidden_size", ValueKind::whole, kModel, ""},
    {"--num-attention-heads", "/model/num_attention_heads", ValueKind::whole, kModel, ""},
    {"--num-query-groups", "/model/num_query_groups", ValueKind::whole, kModel, ""},
    {"--vocab-size", "/model/vocab_size", ValueKind::whole, kModel, ""},
    {"--kv-channels", "/model/kv_channels", ValueKind::whole, kModel, ""},
    {"--swiglu", "/model/swiglu", ValueKind::yes, kModel, ""},
    {"--normalization", "/model/normalization", ValueKind::text, kModel, ""},
    {"--position-embedding-type", "/model/position_embedding_type", ValueKind::text, kModel, ""},
    {"--max-position-embeddings", "/model/max_position_embeddings", ValueKind::whole, kModel, ""},
    {"--untie-embeddings-and-output-weights", "/model/untie_embeddings_and_output_weights", ValueKind::yes, kModel, ""},
    {"--disable-bias-linear", "/model/disable_bias_linear", ValueKind::yes, kModel, ""},
    {"--add-qkv-bias", "/model/add_qkv_bias", ValueKind::yes, kModel, ""},
    {"--qk-layernorm", "/model/qk_layernorm", ValueKind::yes, kModel, ""},
    {"--num-experts", "/model/num_experts", ValueKind::whole, kModel, ""},
    {"--moe-router-topk", "/model/moe_router_topk", ValueKind::whole, kModel, ""},
    {"--moe-ffn-hidden-size", "/model/moe_ffn_hidden_size", ValueKind::whole, kModel, ""},
    {"--moe-shared-expert-intermediate-size", "/model/moe_shared_expert_intermediate_size", ValueKind::whole, kModel,
     ""},
    {"--moe-layer-freq", "/model/moe_layer_freq", ValueKind::whole_list, kModel, ""},
    {"--multi-latent-attention", "/model/multi_latent_attention", ValueKind::yes, kModel, ""},
    {"--q-lora-rank", "/model/q_lora_rank", ValueKind::whole, kModel, ""},
    {"--kv-lora-rank", "/model/kv_lora_rank", ValueKind::whole, kModel, ""},
    {"--qk-head-dim", "/model/qk_head_dim", ValueKind::whole, kModel, ""},
    {"--qk-pos-emb-head-dim", "/model/qk_pos_emb_head_dim", ValueKind::whole, kModel, ""},
    {"--v-head-dim", "/model/v_head_dim", ValueKind::whole, kModel, ""},
    {"--cluster", "/cluster/name", ValueKind::text, kModel, "a node of the catalogue, or a node or cluster file"},
    {"--nodes", "/cluster/nodes", ValueKind::whole, kModel, "nodes of the cluster (default: as many as the run needs)"},

    {"--software", "/software", ValueKind::text, kModel,
     "the program that trains: megatron-lm (default), megatron-deepspeed, nemo-fp8, or a file"},

    {"--calibration", "/calibration", ValueKind::path, kModel,
     "what 'sluice calibrate' made of measured iterations: corrects the iteration time and says how sure it is"},

    {"--jitter", "/perturbation/jitter", ValueKind::text, kPerturbation,
     "noise on every duration, of mean 1: lognormal:0.05, normal:0.05 or uniform:0.1"},
    {"--trials", "/perturbation/trials", ValueKind::whole, kPerturbation, "how often to draw it (default 1000)"},
    {"--seed", "/perturbation/seed", ValueKind::whole, kPerturbation,
     "of the draws, and of the search of --schedule auto (default 1)"},
};

// A path is the caller's; in a file, paths are taken from the file's folder.
std::string callers(const std::string& path, const std::string& file) {
  return file.empty() ? path : std::filesystem::absolute(path).string();
}

std::string text_value(const FlagRow& row, const std::string& text, const std::string& file) {
  std::error_code error;
  const bool path = row.kind == ValueKind::path ||
                    (row.kind == ValueKind::text &&
                     (text.find('/') != std::string::npos || std::filesystem::is_regular_file(text, error)));
  return path ? callers(text, file) : text;
}

// The short forms, so that keys can be added to them.
void lengthen(Json& document) {
  for (const auto& [key, name] : {std::pair("schedule", "name"), {"cluster", "name"}, {"cost", "kind"}}) {
    if (document.contains(key) && document[key].is_string()) document[key] = Json{{name, document[key]}};
  }
}

Json& place_of(Json& document, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  Json* parent = place.parent_pointer().empty() ? &document : &document[place.parent_pointer()];
  const bool element = parent->is_array() && place.back().find_first_not_of("0123456789") == std::string::npos;
  if (element) return parent->at(place);
  if (!parent->is_object() && !parent->is_null()) *parent = Json::object();  // a model file gives way to flags
  return (*parent)[place.back()];
}

// Ways to say the same: setting the one takes the other out.
struct Alternative {
  const char* one;
  const char* other;
};
constexpr Alternative kAlternatives[] = {
    {"/schedule/slices", "/schedule/slice_lengths"},  {"/schedule/slice_lengths", "/schedule/slices"},
    {"/schedule/slicing", "/schedule/slice_lengths"}, {"/batch/microbatches", "/batch/global_batch"},
    {"/batch/global_batch", "/batch/microbatches"},   {"/cluster/name", "/cluster/node"},
};

void drop_alternatives(Json& document, const std::string& set, const auto& also_set) {
  for (const auto& [one, other] : kAlternatives) {
    if (set != one || also_set(other)) continue;
    const Json::json_pointer place(other);
    if (document.contains(place)) document[place.parent_pointer()].erase(place.back());
  }
}

// "R=1.1" or "A-B=2": the numbers in it.
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
    throw InputError(
        fmt::format("{}: expected {}, got '{}'", flag,
                    num_ranks == 1 ? "a rank and a factor, as in 3=1.1" : "two ranks and a factor, as in 0-1=2", text));
  }
  return slow;
}

}  // namespace

struct ScenarioFlags::Values {
  struct Flag {
    const FlagRow* row = nullptr;
    CLI::Option* option = nullptr;
    std::int64_t whole = 0;
    double real = 0;
    std::string text;
    std::vector<std::int64_t> wholes;
    bool yes = false;
  };
  std::list<Flag> flags;  // CLI11 keeps pointers into it
  std::string uniform;
  std::vector<double> stage_weights;
  std::string cost;
  std::vector<std::string> slow_ranks;
  std::vector<std::string> slow_links;
  CLI::Option* uniform_option = nullptr;
  CLI::Option* weights_option = nullptr;
  CLI::Option* cost_option = nullptr;
};

ScenarioFlags::ScenarioFlags(CLI::App& command, std::span<const std::string_view> without)
    : values_(std::make_unique<Values>()) {
  const auto left_out = [&](std::string_view names) {
    return std::find(without.begin(), without.end(), names.substr(0, names.find(','))) != without.end();
  };
  for (const FlagRow& row : kRows) {
    if (left_out(row.names)) continue;
    Values::Flag& flag = values_->flags.emplace_back();
    flag.row = &row;
    switch (row.kind) {
      case ValueKind::whole: flag.option = command.add_option(row.names, flag.whole, row.help); break;
      case ValueKind::real: flag.option = command.add_option(row.names, flag.real, row.help); break;
      case ValueKind::text:
      case ValueKind::path: flag.option = command.add_option(row.names, flag.text, row.help); break;
      case ValueKind::whole_list:
        flag.option = command.add_option(row.names, flag.wholes, row.help)->delimiter(',')->allow_extra_args(false);
        break;
      case ValueKind::yes: flag.option = command.add_flag(row.names, flag.yes, row.help); break;
    }
    flag.option->group(row.group);
  }
  if (!left_out("--uniform")) add_uniform(command);
  if (!left_out("--cost")) {
    values_->cost_option =
        command
            .add_option("--cost", values_->cost, "analytic, uniform, or a cost file (default: analytic with a model)")
            ->group("Cost");
  }
  if (!left_out("--slow-rank")) add_slow(command);
}

void ScenarioFlags::add_uniform(CLI::App& command) {
  values_->uniform_option =
      command
          .add_option(
              "--uniform", values_->uniform,
              "seconds of one microbatch in 1/pp of the layers: f=1,b=1,w=1[,fb=..][,comm=..]; a list f=4:5:6 gives "
              "each slice its own")
          ->group("Cost");
  values_->weights_option =
      command
          .add_option("--stage-weights", values_->stage_weights, "relative work of each stage under --uniform: a,b,c")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->group("Cost");
}

void ScenarioFlags::add_slow(CLI::App& command) {
  command
      .add_option("--slow-rank", values_->slow_ranks,
                  "R=1.1: what rank R computes takes 1.1 times as long; may be repeated")
      ->expected(1)
      ->take_all()
      ->group(kPerturbation);
  command
      .add_option("--slow-link", values_->slow_links,
                  "A-B=2: transfers between ranks A and B take twice as long; may be repeated")
      ->expected(1)
      ->take_all()
      ->group(kPerturbation);
}

ScenarioFlags::~ScenarioFlags() = default;

nlohmann::json ScenarioFlags::document(const std::string& file) const {
  Json document = Json::object();
  if (!file.empty()) {
    document = parse_json(read_file(file), file);
    if (!document.is_object()) throw InputError(file + ": /: expected a scenario: an object");
  }
  lengthen(document);
  const auto given = [&](const std::string_view pointer) {
    return std::any_of(values_->flags.begin(), values_->flags.end(),
                       [&](const auto& flag) { return flag.option->count() > 0 && pointer == flag.row->pointer; });
  };
  for (const Values::Flag& flag : values_->flags) {
    if (flag.option->count() == 0) continue;
    Json& value = place_of(document, flag.row->pointer);
    switch (flag.row->kind) {
      case ValueKind::whole: value = flag.whole; break;
      case ValueKind::real: value = flag.real; break;
      case ValueKind::path:
      case ValueKind::text: value = text_value(*flag.row, flag.text, file); break;
      case ValueKind::whole_list: value = flag.wholes; break;
      case ValueKind::yes: value = flag.yes; break;
    }
    if (!file.empty()) drop_alternatives(document, flag.row->pointer, given);
  }
  if (values_->cost_option != nullptr && values_->cost_option->count() > 0) {
    const bool kind = values_->cost == "uniform" || values_->cost == "analytic";
    document["cost"] =
        kind ? Json{{"kind", values_->cost}} : Json{{"kind", "fitted"}, {"file", callers(values_->cost, file)}};
  }
  if (values_->uniform_option != nullptr && values_->uniform_option->count() > 0) {
    const UniformTimes times = parse_uniform(values_->uniform);
    Json cost = {{"kind", "uniform"},
                 {"f", times.forward},
                 {"b", times.input_gradient},
                 {"w", times.weight_gradient},
                 {"comm", times.hop}};
    if (times.joint) cost["fb"] = *times.joint;
    document["cost"] = std::move(cost);
  }
  if (values_->weights_option != nullptr && values_->weights_option->count() > 0) {
    if (!document.contains("cost")) document["cost"] = Json{{"kind", "uniform"}};
    document["cost"]["stage_weights"] = values_->stage_weights;
  }
  for (const std::string& text : values_->slow_ranks) {
    const Slow slow = parse_slow("--slow-rank", text, 1);
    document["perturbation"]["slow_ranks"].push_back({{"rank", slow.ranks[0]}, {"factor", slow.factor}});
  }
  for (const std::string& text : values_->slow_links) {
    const Slow slow = parse_slow("--slow-link", text, 2);
    document["perturbation"]["slow_links"].push_back({{"between", slow.ranks}, {"factor", slow.factor}});
  }
  return document;
}

void ScenarioFlags::set(nlohmann::json& document, const std::string& key, const std::string& text,
                        const std::string& file) {
  lengthen(document);
  const FlagRow* row = nullptr;
  std::vector<std::string> names;
  for (const FlagRow& each : kRows) {
    std::string_view rest = each.names;
    while (!rest.empty()) {
      const std::string_view name = rest.substr(2, rest.find(',') - 2);  // without "--"
      if (key == name || (key.starts_with("--") && key.substr(2) == name)) row = &each;
      names.emplace_back(name);
      rest.remove_prefix(std::min(rest.size(), name.size() + 3));
    }
  }
  if (row == nullptr && key.find('/') == std::string::npos) {
    throw InputError(fmt::format("--sweep: '{}' is neither a flag nor a place in the scenario such as parallelism/pp{}",
                                 key, did_you_mean(key, names)));
  }
  const std::string pointer = row != nullptr ? row->pointer : (key.starts_with('/') ? "" : "/") + key;
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) value = row != nullptr ? text_value(*row, text, file) : text;
  try {
    place_of(document, pointer) = std::move(value);
  } catch (const Json::exception&) {
    throw InputError(fmt::format("--sweep: there is no place '{}' in the scenario", key));
  }
  drop_alternatives(document, pointer, [](const char*) { return false; });
}

Scenario ScenarioFlags::scenario(const std::string& file) const { return read(document(file), file); }

Scenario ScenarioFlags::read(const nlohmann::json& document, const std::string& file) {
  static const std::string kFlagsAlone = "command line";
  if (!file.empty()) return scenario_from_json(document, file, std::filesystem::path(file).parent_path().string());
  try {
    return scenario_from_json(document, kFlagsAlone, "");
  } catch (const InputError& error) {
    // Somebody who gave flags knows them by their names, not by the keys that they stand for.
    const std::string what = error.what();
    for (const FlagRow& row : kRows) {
      const std::string place = kFlagsAlone + ": " + row.pointer + ": ";
      const std::string_view names = row.names;
      if (what.starts_with(place))
        throw InputError(std::string(names.substr(0, names.find(','))) + ": " + what.substr(place.size()));
    }
    throw;
  }
}

}  // namespace sluice::tools

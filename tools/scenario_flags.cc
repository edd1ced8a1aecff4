#include "tools/scenario_flags.h"

#include <filesystem>
#include <list>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"

namespace sluice::tools {
namespace {

enum class ValueKind { whole, text, path, whole_list, yes };

struct FlagRow {
  const char* names;    // CLI11's list
  const char* pointer;  // of the scenario's key
  ValueKind kind;
  const char* group;
  const char* help;
};

constexpr const char* kSchedule = "Schedule";
constexpr const char* kParallelism = "Parallelism";
constexpr const char* kBatch = "Batch";
constexpr const char* kModel = "Model and cluster";

const FlagRow kRows[] = {
    {"--schedule", "/schedule/name", ValueKind::text, kSchedule,
     "family ('sluice schedules' lists them) or schedule file"},
    {"--pp,--pipeline-model-parallel-size", "/parallelism/pp", ValueKind::whole, kSchedule, "ranks in the pipeline"},
    {"--vpp,--num-virtual-stages-per-pipeline-rank", "/parallelism/vpp", ValueKind::whole, kSchedule,
     "chunks (virtual stages) a rank; hanayo: twice its waves"},
    {"--num-layers-per-virtual-pipeline-stage", "/parallelism/layers_per_virtual_stage", ValueKind::whole, kSchedule,
     "layers a chunk, instead of --vpp"},
    {"--group", "/schedule/group", ValueKind::whole, kSchedule, "G of the interleaved families, in units"},
    {"--microbatches", "/batch/microbatches", ValueKind::whole, kSchedule, "microbatches of one batch and pipeline"},
    {"--slices", "/schedule/slices", ValueKind::whole, kSchedule, "equal slices of each sequence"},
    {"--slice-lengths", "/schedule/slice_lengths", ValueKind::whole_list, kSchedule, "tokens of each slice: a,b,c"},
    {"--batches", "/schedule/batches", ValueKind::whole, kSchedule, "batches, for schedules without a flush"},

    {"--tp,--tensor-model-parallel-size", "/parallelism/tp", ValueKind::whole, kParallelism, "tensor-parallel ranks"},
    {"--dp,--data-parallel-size", "/parallelism/dp", ValueKind::whole, kParallelism, "data-parallel replicas"},
    {"--sequence-parallel", "/parallelism/sequence_parallel", ValueKind::yes, kParallelism,
     "split norms and dropout over the tensor-parallel ranks too"},
    {"--recompute,--recompute-granularity", "/parallelism/recompute", ValueKind::text, kParallelism,
     "none, selective or full"},
    {"--use-distributed-optimizer", "/parallelism/distributed_optimizer", ValueKind::yes, kParallelism,
     "split the optimizer's state over the replicas"},
    {"--overlap-grad-reduce", "/parallelism/overlap_grad_reduce", ValueKind::yes, kParallelism,
     "reduce gradients while the backward runs"},
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
    {"--cluster", "/cluster/name", ValueKind::text, kModel, "a node of the catalogue, or a node or cluster file"},
    {"--nodes", "/cluster/nodes", ValueKind::whole, kModel, "nodes of the cluster (default: as many as the run needs)"},
};

}  // namespace

struct ScenarioFlags::Values {
  struct Flag {
    const FlagRow* row = nullptr;
    CLI::Option* option = nullptr;
    std::int64_t whole = 0;
    std::string text;
    std::vector<std::int64_t> wholes;
    bool yes = false;
  };
  std::list<Flag> flags;  // CLI11 keeps pointers into it
  std::string uniform;
  std::vector<double> stage_weights;
  std::string cost;
  CLI::Option* uniform_option = nullptr;
  CLI::Option* weights_option = nullptr;
  CLI::Option* cost_option = nullptr;
};

ScenarioFlags::ScenarioFlags(CLI::App& command) : values_(std::make_unique<Values>()) {
  for (const FlagRow& row : kRows) {
    Values::Flag& flag = values_->flags.emplace_back();
    flag.row = &row;
    switch (row.kind) {
      case ValueKind::whole: flag.option = command.add_option(row.names, flag.whole, row.help); break;
      case ValueKind::text:
      case ValueKind::path: flag.option = command.add_option(row.names, flag.text, row.help); break;
      case ValueKind::whole_list:
        flag.option = command.add_option(row.names, flag.wholes, row.help)->delimiter(',');
        break;
      case ValueKind::yes: flag.option = command.add_flag(row.names, flag.yes, row.help); break;
    }
    flag.option->group(row.group);
  }
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
          ->group("Cost");
  values_->cost_option =
      command.add_option("--cost", values_->cost, "analytic, uniform, or a cost file (default: analytic with a model)")
          ->group("Cost");
}

ScenarioFlags::~ScenarioFlags() = default;

nlohmann::json ScenarioFlags::document(const std::string& file) const {
  Json document = Json::object();
  if (!file.empty()) {
    document = parse_json(read_file(file), file);
    if (!document.is_object()) throw InputError(file + ": /: expected a scenario: an object");
  }
  // The short forms, so that flags can add to them.
  const auto lengthen = [&](const char* key, const char* name) {
    if (document.contains(key) && document[key].is_string()) document[key] = Json{{name, document[key]}};
  };
  lengthen("schedule", "name");
  lengthen("cluster", "name");
  lengthen("cost", "kind");
  // A flag's path is the caller's, a file's is beside the file.
  const auto callers = [&](const std::string& path) {
    return file.empty() ? path : std::filesystem::absolute(path).string();
  };
  for (const Values::Flag& flag : values_->flags) {
    if (flag.option->count() == 0) continue;
    const Json::json_pointer pointer(flag.row->pointer);
    Json* parent = pointer.parent_pointer().empty() ? &document : &document[pointer.parent_pointer()];
    if (!parent->is_object() && !parent->is_null()) *parent = Json::object();  // a model file gives way to flags
    Json& value = (*parent)[pointer.back()];
    switch (flag.row->kind) {
      case ValueKind::whole: value = flag.whole; break;
      case ValueKind::path: value = callers(flag.text); break;
      case ValueKind::text: {
        std::error_code error;
        const bool path =
            flag.text.find('/') != std::string::npos || std::filesystem::is_regular_file(flag.text, error);
        value = path ? callers(flag.text) : flag.text;
        break;
      }
      case ValueKind::whole_list: value = flag.wholes; break;
      case ValueKind::yes: value = flag.yes; break;
    }
  }
  // One way to cut a sequence gives way to the other, and one way to say the batch.
  const auto given = [&](const char* pointer) {
    for (const Values::Flag& flag : values_->flags) {
      if (std::string_view(flag.row->pointer) == pointer) return flag.option->count() > 0;
    }
    return false;
  };
  const auto drop = [&](const char* section, const char* key) {
    if (document.contains(section) && document[section].is_object()) document[section].erase(key);
  };
  if (!file.empty()) {
    if (given("/schedule/slices") && !given("/schedule/slice_lengths")) drop("schedule", "slice_lengths");
    if (given("/schedule/slice_lengths") && !given("/schedule/slices")) drop("schedule", "slices");
    if (given("/batch/microbatches") && !given("/batch/global_batch")) drop("batch", "global_batch");
    if (given("/batch/global_batch") && !given("/batch/microbatches")) drop("batch", "microbatches");
    if (given("/cluster/name")) drop("cluster", "node");
  }
  if (values_->cost_option->count() > 0) {
    const bool kind = values_->cost == "uniform" || values_->cost == "analytic";
    document["cost"] =
        kind ? Json{{"kind", values_->cost}} : Json{{"kind", "fitted"}, {"file", callers(values_->cost)}};
  }
  if (values_->uniform_option->count() > 0) {
    const UniformTimes times = parse_uniform(values_->uniform);
    Json cost = {{"kind", "uniform"},
                 {"f", times.forward},
                 {"b", times.input_gradient},
                 {"w", times.weight_gradient},
                 {"comm", times.hop}};
    if (times.joint) cost["fb"] = *times.joint;
    document["cost"] = std::move(cost);
  }
  if (values_->weights_option->count() > 0) {
    if (!document.contains("cost")) document["cost"] = Json{{"kind", "uniform"}};
    document["cost"]["stage_weights"] = values_->stage_weights;
  }
  return document;
}

Scenario ScenarioFlags::scenario(const std::string& file) const {
  static const std::string kFlagsAlone = "command line";
  if (!file.empty()) {
    return scenario_from_json(document(file), file, std::filesystem::path(file).parent_path().string());
  }
  try {
    return scenario_from_json(document(file), kFlagsAlone, "");
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

#include "sim/calibration/measured_iterations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/errors.h"
#include "model/schedule/family.h"

namespace sluice::sim {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostInColumn = std::int64_t{1} << 40;

// Integer columns and their places in a scenario.
struct Column {
  const char* name;
  const char* pointer;
};
constexpr Column kColumns[] = {
    {"layers", "/model/num_layers"},
    {"hidden", "/model/hidden_size"},
    {"ffn_hidden", "/model/ffn_hidden_size"},
    {"heads", "/model/num_attention_heads"},
    {"kv_heads", "/model/num_query_groups"},
    {"vocab", "/model/vocab_size"},
    {"seq", "/batch/sequence_length"},
    {"tp", "/parallelism/tp"},
    {"pp", "/parallelism/pp"},
    {"dp", "/parallelism/dp"},
    {"vp", "/parallelism/vpp"},
    {"interleave", "/parallelism/vpp"},
    {"micro_batch", "/batch/micro_batch"},
    {"microbatches", "/batch/microbatches"},
    {"num_microbatches", "/batch/microbatches"},
    {"global_batch", "/batch/global_batch"},
    {"slices", "/schedule/slices"},
    {"mbs", "/batch/micro_batch"},
    {"gbs", "/batch/global_batch"},
    {"vpp", "/parallelism/vpp"},
    {"ep", "/parallelism/ep"},
    {"seq_length", "/batch/sequence_length"},
};

struct TimeColumn {
  const char* name;
  double seconds;  // of one unit
};
constexpr TimeColumn kTimes[] = {{"iter_ms", 1e-3},     {"iter_s", 1},        {"derived_iter_ms", 1e-3},
                                 {"derived_iter_s", 1}, {"median_step_s", 1}, {"iteration_s", 1},
                                 {"iteration_ms", 1e-3}};
constexpr const char* kThroughput = "tokens_per_s_thousands";

const TimeColumn* time_column(const CsvTable& table) {
  for (const TimeColumn& column : kTimes) {
    if (table.has(column.name)) return &column;
  }
  return nullptr;
}

class IterationRow {
 public:
  IterationRow(const CsvTable& table, int row, const Json& base, const std::string& folder)
      : table_(table), row_(row), folder_(folder), document_(base) {}

  MeasuredIteration read() {
    for (const Column& column : kColumns) {
      if (table_.has(column.name)) place(column.pointer) = table_.integer(row_, column.name, 1, kMostInColumn);
    }
    // Omitted if 1.
    if (table_.has("cp") && table_.integer(row_, "cp", 1, kMostInColumn) > 1) {
      place("/parallelism/cp") = table_.integer(row_, "cp", 1, kMostInColumn);
    }
    if (table_.has("gpus")) read_gpus();
    read_schedule();
    if (table_.has("recompute")) read_recompute();
    learn_positions();
    // The global batch determines the number of microbatches.
    if (table_.has("global_batch") || table_.has("gbs")) document_["batch"].erase("microbatches");

    MeasuredIteration out{.place = table_.place(row_)};
    out.scenario = scenario_from_json(document_, out.place, folder_);
    out.setting = setting();
    read_time(out);
    return out;
  }

 private:
  Json& place(const char* pointer) { return document_[Json::json_pointer(pointer)]; }
  std::int64_t count(const char* pointer) const {
    const Json::json_pointer where(pointer);
    return document_.contains(where) ? document_[where].get<std::int64_t>() : 1;
  }

  void read_gpus() {
    const std::int64_t gpus = table_.integer(row_, "gpus", 1, kMostInColumn);
    const std::int64_t each = count("/parallelism/tp") * count("/parallelism/cp") * count("/parallelism/pp");
    if (!table_.has("dp")) {
      if (gpus % each != 0) table_.fail(row_, "gpus", fmt::format("expected a multiple of tp x cp x pp = {}", each));
      place("/parallelism/dp") = gpus / each;
    } else if (gpus != each * count("/parallelism/dp")) {
      table_.fail(row_, "gpus", fmt::format("expected tp x cp x pp x dp = {}", each * count("/parallelism/dp")));
    }
  }

  void read_schedule() {
    if (document_.contains("schedule") && document_["schedule"].is_string()) {
      document_["schedule"] = Json{{"name", document_["schedule"]}};
    }
    if (table_.has("schedule")) place("/schedule/name") = table_.text(row_, "schedule");
    cut_sequences();
  }

  // Drops the slices of the base for families without slices.
  void cut_sequences() {
    Json& schedule = document_["schedule"];
    // Without a name, the number of chunks determines the schedule.
    if (!document_.contains(Json::json_pointer("/schedule/name"))) {
      place("/schedule/name") = count("/parallelism/vpp") > 1 ? "interleaved-1f1b" : "1f1b";
    }
    const std::string name = schedule["name"].get<std::string>();
    if (names_file(name)) return;
    const Family& family = find_family(name);
    if (!family.sliced && !table_.has("slices")) {
      for (const char* key : {"slices", "slicing", "slice_lengths"}) schedule.erase(key);
    }
  }

  void read_recompute() {
    std::string word = table_.text(row_, "recompute");
    constexpr std::string_view kSequence = "+sequence-parallel";
    if (word.ends_with(kSequence)) {
      word.erase(word.size() - kSequence.size());
      place("/parallelism/sequence_parallel") = true;
    }
    place("/parallelism/recompute") = word;
  }

  void learn_positions() {
    const Json& model = document_["model"];
    if (!model.is_object() || model.contains("max_position_embeddings")) return;
    if (model.value("position_embedding_type", "learned") != "learned") return;
    place("/model/max_position_embeddings") = count("/batch/sequence_length");
  }

  std::string setting() const {
    std::string out;
    for (const char* name :
         {"mbs", "gbs", "vpp", "ep", "seq_length", "hidden", "layers", "seq", "tp", "pp", "dp", "vp", "interleave",
          "micro_batch", "microbatches", "num_microbatches", "global_batch", "schedule", "recompute"}) {
      if (table_.has(name)) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, table_.text(row_, name));
    }
    return out;
  }

  void read_time(MeasuredIteration& out) const {
    const TimeColumn* column = time_column(table_);
    const char* name = column != nullptr ? column->name : kThroughput;
    if (table_.text(row_, name) == "OOM") {
      out.out_of_memory = true;
      return;
    }
    const double value = table_.number(row_, name, 1e-6, 1e9);
    if (column != nullptr) {
      out.seconds = value * column->seconds;
      return;
    }
    const Scenario& scenario = out.scenario;
    const double tokens = static_cast<double>(scenario.training.sequence_length) * scenario.microbatches *
                          scenario.training.micro_batch * scenario.training.dp;
    out.seconds = tokens / (1e3 * value);
  }

  const CsvTable& table_;
  int row_;
  const std::string& folder_;
  Json document_;
};

}  // namespace

bool has_measured_times(const CsvTable& table) { return time_column(table) != nullptr || table.has(kThroughput); }

MeasuredIteration read_measured_iteration(const CsvTable& table, int row, const nlohmann::json& base,
                                          const std::string& folder) {
  if (!has_measured_times(table)) {
    throw InputError(table.source() + ": header: expected a column of measured times, such as iter_ms");
  }
  return IterationRow(table, row, base, folder).read();
}

std::vector<MeasuredIteration> read_measured_iterations(const CsvTable& table, const nlohmann::json& base,
                                                        const std::string& folder) {
  std::vector<MeasuredIteration> out;
  for (int row = 0; row < table.num_rows(); ++row) out.push_back(read_measured_iteration(table, row, base, folder));
  return out;
}

std::vector<std::string> unused_columns(const CsvTable& table) {
  std::vector<std::string> known = {"cp", "gpus", "schedule", "recompute", kThroughput};
  for (const Column& column : kColumns) known.emplace_back(column.name);
  for (const TimeColumn& column : kTimes) known.emplace_back(column.name);
  std::vector<std::string> out;
  for (const std::string& column : table.columns()) {
    if (std::find(known.begin(), known.end(), column) == known.end()) out.push_back(column);
  }
  return out;
}

}  // namespace sluice::sim

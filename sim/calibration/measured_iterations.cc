#include "sim/calibration/measured_iterations.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/input/nearest.h"
#include "model/schedule/family.h"

namespace sluice::sim {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostInColumn = std::int64_t{1} << 31;
constexpr std::int64_t kMostParallel = 1 << 14;
constexpr std::int64_t kMostReplicas = 1 << 20;

// Integer columns and their places in a scenario.
struct Column {
  const char* name;
  const char* pointer;
  std::int64_t most = kMostInColumn;
};
constexpr Column kColumns[] = {
    {"layers", "/model/num_layers"},
    {"hidden", "/model/hidden_size"},
    {"ffn_hidden", "/model/ffn_hidden_size"},
    {"ffn", "/model/ffn_hidden_size"},
    {"heads", "/model/num_attention_heads"},
    {"kv_heads", "/model/num_query_groups"},
    {"vocab", "/model/vocab_size"},
    {"seq", "/batch/sequence_length"},
    {"tp", "/parallelism/tp", kMostParallel},
    {"pp", "/parallelism/pp", kMostParallel},
    {"dp", "/parallelism/dp", kMostReplicas},
    {"cp", "/parallelism/cp", kMostParallel},
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

// Columns that describe a row and do not change its prediction.
constexpr const char* kDescriptions[] = {"source", "comment", "note", "notes", "name", "peak_memory_gib"};

// A key that a row sets, and the key of the base that it replaces.
struct Replacement {
  const char* set;
  const char* replaced;
};
constexpr Replacement kReplacements[] = {{"/batch/global_batch", "/batch/microbatches"},
                                         {"/batch/microbatches", "/batch/global_batch"},
                                         {"/parallelism/vpp", "/parallelism/layers_per_virtual_stage"},
                                         {"/schedule/slices", "/schedule/slice_lengths"}};

// "/parallelism/precision"
bool names_key(const std::string& column) { return column.starts_with('/'); }

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

  // The scenario of the row.
  const Json& document() {
    check_base();
    read_keys();
    read_schedule_name();
    for (const Column& column : kColumns) {
      if (table_.has(column.name)) place(column.pointer) = table_.integer(row_, column.name, 1, column.most);
    }
    drop_replaced();
    if (table_.has("gpus")) read_gpus();
    cut_sequences();
    if (table_.has("recompute")) read_recompute();
    learn_positions();
    return document_;
  }

  // Without the time.
  MeasuredIteration configuration() {
    document();
    MeasuredIteration out{.place = table_.place(row_)};
    out.scenario = scenario_from_json(document_, out.place, folder_);
    out.setting = setting();
    return out;
  }

  MeasuredIteration read() {
    MeasuredIteration out = configuration();
    read_time(out);
    return out;
  }

 private:
  Json& place(const char* pointer) { return document_[Json::json_pointer(pointer)]; }
  // Returns a size of the document; 1 if it is missing, or invalid, which is reported with the scenario.
  std::int64_t count(const char* pointer, std::int64_t most) const {
    const Json::json_pointer where(pointer);
    if (!document_.contains(where) || !document_[where].is_number_integer()) return 1;
    const auto value = document_[where].get<std::int64_t>();
    return value < 1 || value > most ? 1 : value;
  }

  // Throws if the base has another value where a cell would set a key of an object.
  void check_base() const {
    if (!document_.is_object()) throw InputError(table_.place(row_) + ": expected a scenario object");
    for (const char* key : {"model", "batch", "parallelism", "schedule"}) {
      if (!document_.contains(key) || document_[key].is_object() || document_[key].is_null()) continue;
      if (key == std::string_view("schedule") && document_[key].is_string()) continue;
      for (const Column& column : kColumns) {
        if (!table_.has(column.name) || !std::string_view(column.pointer).starts_with(fmt::format("/{}/", key)))
          continue;
        table_.fail(row_, column.name,
                    fmt::format("cannot change a value of the scenario's /{}, which is not an object", key));
      }
      if (key == std::string_view("model")) continue;  // a file
      throw InputError(fmt::format("{}: /{}: expected an object", table_.place(row_), key));
    }
  }

  // Cells replace keys of the base that exclude them, but not each other: contradictions within a row are errors.
  void drop_replaced() {
    const auto sets = [&](const char* pointer) {
      return std::any_of(std::begin(kColumns), std::end(kColumns), [&](const Column& column) {
        return pointer == std::string_view(column.pointer) && table_.has(column.name);
      });
    };
    for (const auto& [set, replaced] : kReplacements) {
      const Json::json_pointer where(replaced);
      if (!sets(set) || sets(replaced) || !document_.contains(where)) continue;
      document_[where.parent_pointer()].erase(where.back());
    }
  }

  void read_gpus() {
    const std::int64_t gpus = table_.integer(row_, "gpus", 1, kMostInColumn);
    const std::int64_t each = count("/parallelism/tp", kMostParallel) * count("/parallelism/cp", kMostParallel) *
                              count("/parallelism/pp", kMostParallel);
    const std::int64_t dp = count("/parallelism/dp", kMostReplicas);
    if (!table_.has("dp")) {
      if (gpus % each != 0) table_.fail(row_, "gpus", fmt::format("expected a multiple of tp x cp x pp = {}", each));
      place("/parallelism/dp") = gpus / each;
    } else if (gpus != each * dp) {
      table_.fail(row_, "gpus", fmt::format("expected tp x cp x pp x dp = {}", each * dp));
    }
  }

  // Columns that are named by keys of the scenario.
  void read_keys() {
    for (const std::string& column : table_.columns()) {
      if (!names_key(column)) continue;
      const std::string& cell = table_.text(row_, column);
      if (cell.empty()) continue;
      const Json value = Json::parse(cell, nullptr, false);
      try {
        document_[Json::json_pointer(column)] = value.is_discarded() ? Json(cell) : value;
      } catch (const Json::exception&) {
        table_.fail(row_, column, "cannot set this key in the scenario");
      }
    }
  }

  void read_schedule_name() {
    if (document_.contains("schedule") && document_["schedule"].is_string()) {
      document_["schedule"] = Json{{"name", document_["schedule"]}};
    }
    if (table_.has("schedule")) place("/schedule/name") = table_.text(row_, "schedule");
  }

  // Drops the slices of the base for families without slices.
  void cut_sequences() {
    Json& schedule = document_["schedule"];
    // Without a name, the number of chunks determines the schedule.
    if (!document_.contains(Json::json_pointer("/schedule/name"))) {
      place("/schedule/name") = count("/parallelism/vpp", kMostInColumn) > 1 ? "interleaved-1f1b" : "1f1b";
    }
    if (!schedule["name"].is_string()) return;  // reported with the scenario
    const std::string name = schedule["name"].get<std::string>();
    if (names_file(name) || name == kAutomatic) return;
    const bool named = table_.has("schedule");
    const Family& family = find_family(name, table_.place(row_) + (named ? ", column schedule" : ": /schedule/name"));
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
    if (model.value("position_embedding_type", Json("learned")) != "learned") return;
    place("/model/max_position_embeddings") = count("/batch/sequence_length", kMostInColumn);
  }

  std::string setting() const {
    std::string out;
    for (const char* name :
         {"mbs", "gbs", "vpp", "ep", "seq_length", "hidden", "layers", "seq", "tp", "pp", "dp", "vp", "interleave",
          "micro_batch", "microbatches", "num_microbatches", "global_batch", "schedule", "recompute"}) {
      if (table_.has(name)) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, table_.text(row_, name));
    }
    for (const std::string& column : table_.columns()) {
      if (names_key(column)) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", column, table_.text(row_, column));
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
    std::vector<std::string> times = {kThroughput};
    for (const TimeColumn& column : kTimes) times.emplace_back(column.name);
    std::string hint;
    for (const std::string& column : table.columns()) {
      if (hint.empty()) hint = did_you_mean(column, times);
    }
    throw InputError(table.source() + ": header: expected a column of measured times, such as iter_ms" + hint);
  }
  return IterationRow(table, row, base, folder).read();
}

MeasuredIteration read_configuration(const CsvTable& table, int row, const nlohmann::json& base,
                                     const std::string& folder) {
  return IterationRow(table, row, base, folder).configuration();
}

nlohmann::json configuration_document(const CsvTable& table, int row, const nlohmann::json& base) {
  return IterationRow(table, row, base, "").document();
}

std::vector<MeasuredIteration> read_measured_iterations(const CsvTable& table, const nlohmann::json& base,
                                                        const std::string& folder) {
  std::vector<MeasuredIteration> out;
  for (int row = 0; row < table.num_rows(); ++row) out.push_back(read_measured_iteration(table, row, base, folder));
  return out;
}

void check_columns(const CsvTable& table) {
  std::vector<std::string> known = {"gpus", "schedule", "recompute"};
  std::map<std::string, std::string> column_of;  // by what it sets
  const auto sets_once = [&](const char* name, const std::string& what) {
    known.emplace_back(name);
    if (!table.has(name)) return;
    const auto [first, fresh] = column_of.emplace(what, name);
    if (fresh) return;
    throw InputError(fmt::format("{}: header: columns '{}' and '{}' have the same meaning: keep one", table.source(),
                                 first->second, name));
  };
  for (const Column& column : kColumns) sets_once(column.name, column.pointer);
  for (const TimeColumn& column : kTimes) sets_once(column.name, "time");
  sets_once(kThroughput, "time");
  for (const char* name : kDescriptions) known.emplace_back(name);
  for (const std::string& column : table.columns()) {
    if (std::find(known.begin(), known.end(), column) != known.end()) continue;
    if (names_key(column)) {
      sets_once(column.c_str(), column);
      continue;
    }
    throw InputError(fmt::format("{}: header: unknown column '{}'{} (--ignore-columns ignores it)", table.source(),
                                 column, did_you_mean(column, known)));
  }
}

}  // namespace sluice::sim

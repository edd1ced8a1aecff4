#include "sim/calibration/constants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/cluster/catalogue.h"
#include "model/cost/analytic.h"
#include "model/cost/price.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/nearest.h"
#include "model/scenario/setup.h"
#include "sim/engine/engine.h"
#include "sim/engine/parallel.h"

namespace sluice::sim {
namespace {

using Document = nlohmann::ordered_json;

constexpr std::string_view kSoftware = "software/";

// Loads documents: of the catalogue or of a file by its name, or the object itself.
class Documents {
 public:
  explicit Documents(std::string folder) : folder_(std::move(folder)) {}

  Document whole(const Document& named, const std::string& kind) const {
    if (!named.is_string()) return named;
    const auto name = named.get<std::string>();
    for (const CatalogueFile& file : catalogue_files()) {
      if (file.name == kind + name) return Document::parse(file.text);
    }
    const std::filesystem::path path(name);
    return Document::parse(read_file(path.is_absolute() || folder_.empty() ? name : folder_ + "/" + name));
  }

  Document node(const Document& cluster) const {
    Document named = cluster;
    if (cluster.is_object() && cluster.contains("name") && !cluster.contains("node")) named = cluster["name"];
    Document node = whole(named, "nodes/");
    if (node.contains("node")) node = whole(node["node"], "nodes/");
    node["gpu"] = whole(node["gpu"], "gpus/");
    for (const char* link : {"intra_node", "inter_node"}) node[link] = whole(node[link], "links/");
    for (const char* part : {"gpu", "intra_node", "inter_node"}) node[part].erase("schema");
    return node;
  }

 private:
  std::string folder_;
};

double three_digits(double value) { return std::stod(fmt::format("{:.3g}", value)); }

// A single constant becomes {"value", "source"}; the source of one in a group is appended to that of the group.
void set_constant(Document& document, const std::string& place, double value, const std::string& source) {
  const Document::json_pointer pointer("/" + place);
  const Document::json_pointer parent = pointer.parent_pointer();
  const bool grouped = !document[parent].contains("name");
  if (!grouped) {
    document[pointer] = Document{{"value", three_digits(value)}, {"source", source}};
    return;
  }
  document[pointer] = three_digits(value);
  const std::string before = document[parent].value("source", "");
  document[parent]["source"] = fmt::format("{}{}{}: {}", before, before.empty() ? "" : "; ", pointer.back(), source);
}

// A row whose graph is lowered once and priced anew for each set of constants.
class SimulatedRow {
 public:
  SimulatedRow(const Scenario& scenario, int table) : table_(table), setup_(scenario) {}

  double seconds(std::span<const Constant> constants, std::span<const double> values) const {
    const Scenario& scenario = setup_.scenario();
    Cluster cluster = *scenario.cluster;
    Software software = scenario.software;
    for (std::size_t i = 0; i < constants.size(); ++i) {
      if (constants[i].table < 0 || constants[i].table == table_) constants[i].value(cluster, software) = values[i];
    }
    const AnalyticCost cost(*scenario.model, scenario.training, setup_.stages(), std::move(cluster),
                            std::move(software), scenario.kernel_times.value_or(KernelTimes{}));
    const Prices prices = price(setup_.graph(), cost);
    const Timeline timeline = simulate(setup_.graph(), prices);
    return to_seconds(*std::max_element(timeline.end.begin(), timeline.end.end()));
  }

 private:
  int table_;
  Setup setup_;
};

// Weight of a table, in rows, whatever its number of rows, as their errors are correlated.
constexpr double kTableWeight = 20;

// FNV-1a, which is the same on every machine.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash ^ (hash >> 29U);
}

// The constant's belief, with the value of its first row's scenario as the guess.
FitConstant belief_of(const Constant& constant, std::span<const MeasuredTable> tables) {
  FitConstant belief = constant.belief;
  if (constant.guessed) return belief;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    if (tables[t].rows.empty() || (constant.table >= 0 && constant.table != static_cast<int>(t))) continue;
    const Scenario& scenario = tables[t].rows[0].scenario;
    Cluster cluster = *scenario.cluster;
    Software software = scenario.software;
    const double given = constant.value(cluster, software);
    if (given > 0) belief.guess = std::clamp(given, belief.low, belief.high);
    break;
  }
  return belief;
}

}  // namespace

ConstantsFiles files_with_constants(const nlohmann::json& scenario, const std::string& folder,
                                    std::span<const Constant> constants, std::span<const double> values,
                                    const std::string& source) {
  const Documents documents(folder);
  ConstantsFiles out;
  std::optional<Document> node;
  std::optional<Document> software;
  for (std::size_t i = 0; i < constants.size(); ++i) {
    const std::string& name = constants[i].name;
    if (name.starts_with(kSoftware)) {
      if (!software) {
        software =
            documents.whole(scenario.contains("software") ? Document(scenario["software"]) : Document("megatron-lm"),
                            std::string(kSoftware));
      }
      set_constant(*software, name.substr(kSoftware.size()), values[i], source);
    } else {
      if (!scenario.contains("cluster")) throw InputError("/cluster: required, as its node is to be written");
      if (!node) node = documents.node(Document(scenario["cluster"]));
      set_constant(*node, name, values[i], source);
    }
  }
  if (node) out.node = node->dump(2) + "\n";
  if (software) out.software = software->dump(2) + "\n";
  return out;
}

const std::vector<Constant>& fittable_constants() {
  static const std::vector<Constant> constants = {
      {"gpu/memory_efficiency",
       {.guess = 0.75, .low = 0.2, .high = 1, .spread = 0.2},
       [](Cluster& c, Software&) -> double& { return c.gpu.memory_efficiency; }},
      {"gpu/cast_efficiency",
       {.guess = 0.6, .low = 0.1, .high = 1, .spread = 0.3},
       [](Cluster& c, Software&) -> double& { return c.gpu.cast_efficiency; }},
      {"gpu/gemm/peak_fraction",
       {.guess = 0.894, .low = 0.3, .high = 1, .spread = 0.05},
       [](Cluster& c, Software&) -> double& { return c.gpu.gemm.peak_fraction; }},
      {"gpu/gemm/sustained_fraction",
       {.guess = 0.95, .low = 0.3, .high = 1, .spread = 0.05},
       [](Cluster& c, Software&) -> double& { return c.gpu.gemm.sustained_fraction; }},
      {"gpu/gemm_8bit/peak_fraction",
       {.guess = 0.8, .low = 0.2, .high = 1, .spread = 0.3},
       [](Cluster& c, Software&) -> double& { return c.gpu.gemm_8bit.peak_fraction; }},
      {"gpu/gemm_8bit/sustained_fraction",
       {.guess = 0.95, .low = 0.3, .high = 1, .spread = 0.05},
       [](Cluster& c, Software&) -> double& { return c.gpu.gemm_8bit.sustained_fraction; }},
      {"gpu/gemm_4bit/peak_fraction",
       {.guess = 0.6, .low = 0.1, .high = 1, .spread = 0.3},
       [](Cluster& c, Software&) -> double& { return c.gpu.gemm_4bit.peak_fraction; }},
      {"gpu/gemm_4bit/sustained_fraction",
       {.guess = 0.95, .low = 0.3, .high = 1, .spread = 0.05},
       [](Cluster& c, Software&) -> double& { return c.gpu.gemm_4bit.sustained_fraction; }},
      {"gpu/attention_forward/peak_fraction",
       {.guess = 0.8, .low = 0.3, .high = 1, .spread = 0.1},
       [](Cluster& c, Software&) -> double& { return c.gpu.attention_forward.peak_fraction; }},
      {"gpu/attention_backward/peak_fraction",
       {.guess = 0.65, .low = 0.3, .high = 1, .spread = 0.1},
       [](Cluster& c, Software&) -> double& { return c.gpu.attention_backward.peak_fraction; }},
      {"gpu/overlap_slowdown",
       {.guess = 1.13, .low = 1, .high = 2, .spread = 0.2},
       [](Cluster& c, Software&) -> double& { return c.gpu.overlap_slowdown; }},
      {"gpu/kernel_s",
       {.guess = 2.1e-6, .low = 1e-7, .high = 2e-5, .spread = 0.3},
       [](Cluster& c, Software&) -> double& { return c.gpu.kernel_s; }},
      {"intra_node/collective_efficiency",
       {.guess = 0.74, .low = 0.1, .high = 1, .spread = 0.1},
       [](Cluster& c, Software&) -> double& { return c.intra_node.collective_efficiency; }},
      {"intra_node/collective_latency_s",
       {.guess = 3.5e-5, .low = 1e-6, .high = 1e-3, .spread = 0.5},
       [](Cluster& c, Software&) -> double& { return c.intra_node.collective_latency_s; }},
      {"inter_node/collective_efficiency",
       {.guess = 0.8, .low = 0.1, .high = 1, .spread = 0.3},
       [](Cluster& c, Software&) -> double& { return c.inter_node.collective_efficiency; }},
      {"inter_node/transfer_efficiency",
       {.guess = 0.8, .low = 0.1, .high = 1, .spread = 0.3},
       [](Cluster& c, Software&) -> double& { return c.inter_node.transfer_efficiency; }},
      {"inter_node/latency_s",
       {.guess = 2e-5, .low = 1e-6, .high = 1e-1, .spread = 2},
       [](Cluster& c, Software&) -> double& { return c.inter_node.latency_s; }},
      {"software/issue_s",
       {.guess = 6e-5, .low = 1e-6, .high = 1e-3, .spread = 0.5},
       [](Cluster&, Software& s) -> double& { return s.issue_s; }},
      {"software/gemm_speed",
       {.guess = 1, .low = 0.3, .high = 2, .spread = 0.3},
       [](Cluster&, Software& s) -> double& { return s.gemm_speed; }},
      {"software/attention_speed",
       {.guess = 1, .low = 0.3, .high = 2, .spread = 0.3},
       [](Cluster&, Software& s) -> double& { return s.attention_speed; }},
      {"software/memory_speed",
       {.guess = 1, .low = 0.1, .high = 2, .spread = 0.3},
       [](Cluster&, Software& s) -> double& { return s.memory_speed; }},
      {"software/step_s",
       {.guess = 2e-3, .low = 1e-5, .high = 10, .spread = 2},
       [](Cluster&, Software& s) -> double& { return s.step_s; }},
  };
  return constants;
}

const Constant& find_constant(const std::string& name) {
  std::vector<std::string> names;
  for (const Constant& constant : fittable_constants()) {
    if (constant.name == name) return constant;
    names.push_back(constant.name);
  }
  throw InputError(fmt::format("unknown constant '{}'{}", name, did_you_mean(name, names)));
}

ConstantsFit fit_constants(std::span<const MeasuredTable> tables, std::span<const Constant> constants, int folds) {
  std::vector<std::unique_ptr<SimulatedRow>> rows;
  std::vector<double> measured;
  std::vector<double> weights;
  std::vector<std::uint64_t> hashes;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    for (const MeasuredIteration& row : tables[t].rows) {
      rows.push_back(std::make_unique<SimulatedRow>(row.scenario, static_cast<int>(t)));
      measured.push_back(row.seconds);
      weights.push_back(kTableWeight / static_cast<double>(tables[t].rows.size()));
      hashes.push_back(hash_of(tables[t].name + row.setting));
    }
  }
  if (std::ssize(rows) < folds) {
    throw InputError(fmt::format("--folds: expected at least as many measured iterations as folds ({1}), got {0}",
                                 rows.size(), folds));
  }
  // The rank of each setting among all, so that folds have about the same size.
  std::vector<std::uint64_t> settings = hashes;
  std::sort(settings.begin(), settings.end());
  settings.erase(std::unique(settings.begin(), settings.end()), settings.end());
  std::vector<int> groups;
  for (const std::uint64_t hash : hashes) {
    groups.push_back(static_cast<int>(std::lower_bound(settings.begin(), settings.end(), hash) - settings.begin()));
  }
  std::vector<FitConstant> beliefs;
  for (const Constant& constant : constants) beliefs.push_back(belief_of(constant, tables));
  const FitModel predict = [&](std::span<const double> values, int row) {
    return rows[row]->seconds(constants, values);
  };
  ConstantsFit out;
  out.fit = fit_logarithms(beliefs, predict, measured, groups,
                           {.folds = folds, .weights = weights, .several_starts = false, .parallel = true});
  std::size_t at = 0;
  for (const MeasuredTable& table : tables) {
    const auto part = [&](const std::vector<double>& all) { return std::span(all).subspan(at, table.rows.size()); };
    out.in_sample.push_back(fit_errors(part(out.fit.predicted), part(measured)));
    out.held_out.push_back(fit_errors(part(out.fit.predicted_held_out), part(measured)));
    at += table.rows.size();
  }
  return out;
}

}  // namespace sluice::sim

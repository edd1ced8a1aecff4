#include "tools/simulate/live_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/cluster/cluster.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "tools/simulate/live_engine.h"
#include "tools/simulate/live_run.h"

namespace sluice::tools {
namespace {

bool has_string(const Json& document, const char* key) { return document.contains(key) && document[key].is_string(); }

// Replaces the names of files in a scenario by their contents.
class SelfContained {
 public:
  SelfContained(const Setup& setup, Json document, std::string folder)
      : setup_(setup), document_(std::move(document)), folder_(std::move(folder)) {}

  // Returns the request without its sizes.
  Json run() {
    Json request;
    if (has_string(document_, "model")) read_model_file();
    for (const char* key : {"software", "kernel_times", "calibration"}) {
      if (!has_string(document_, key)) continue;
      const std::string name = document_[key];
      if (key == std::string_view("software") && !is_file(name)) continue;
      document_[key] = parsed(name);
    }
    refuse_cluster_file();
    if (setup_.scenario().cost == CostKind::fitted) {
      throw InputError(
          "--live: /cost: a page cannot simulate with a file of measured costs (uniform and analytic work)");
    }
    if (setup_.scenario().cost == CostKind::uniform) write_times();
    const std::string& schedule = setup_.scenario().schedule;
    if (names_file(schedule)) {
      request["schedule"] = read_file(schedule);
      document_["schedule"]["name"] = std::filesystem::path(schedule).filename().string();
    }
    request["scenario"] = std::move(document_);
    return request;
  }

 private:
  std::string resolved(const std::string& name) const {
    return std::filesystem::path(name).is_absolute() || folder_.empty() ? name : folder_ + "/" + name;
  }
  bool is_file(const std::string& name) const {
    std::error_code error;
    return std::filesystem::is_regular_file(resolved(name), error);
  }
  Json parsed(const std::string& name) const { return parse_json(read_file(resolved(name)), name); }

  // A model file, or a folder with a config.json. Names of the catalogue stay.
  void read_model_file() {
    std::string name = document_["model"];
    if (!is_file(name) && is_file(name + "/config.json")) name += "/config.json";
    if (!is_file(name)) return;
    document_["model"] = parsed(name);
    document_["model"]["name"] = setup_.scenario().model->name;
  }

  // The page shows the times that are not given, too.
  void write_times() {
    UniformTimes times = setup_.scenario().uniform;
    complete(times);
    Json& cost = document_["cost"];
    if (!cost.is_object()) cost = {{"kind", "uniform"}};
    if (!times.stages.empty()) return;
    cost["f"] = times.forward;
    cost["b"] = times.input_gradient;
    cost["w"] = times.weight_gradient;
  }

  void refuse_cluster_file() const {
    if (!document_.contains("cluster")) return;
    const Json& cluster = document_["cluster"];
    const Json& name = cluster.is_object() && cluster.contains("name") ? cluster["name"] : cluster;
    const std::vector<std::string> known = catalogue_nodes();
    if (!name.is_string() || std::find(known.begin(), known.end(), name.get<std::string>()) != known.end()) return;
    throw InputError(
        fmt::format("--live: /cluster/name: expected a cluster of the catalogue, or its keys in place of "
                    "its name, got the file {}",
                    name.get<std::string>()));
  }

  const Setup& setup_;
  Json document_;
  std::string folder_;
};

}  // namespace

void require_live_engine() {
  if (!live_engine().empty()) return;
  throw InputError(
      "--live: this build has no engine for live pages. Install Emscripten (Debian and Ubuntu: emscripten) and build "
      "with "
      "cmake --preset release -DSLUICE_LIVE=ON");
}

LivePage live_page(const Setup& setup, const Prediction& prediction, const nlohmann::json& document,
                   const std::string& folder) {
  Json request = SelfContained(setup, document, folder).run();
  Json checked = request;
  checked["tables"] = false;
  const LiveResult result = run_live(checked.dump());
  if (!result.header.starts_with('{')) throw InputError("--live: " + result.header);
  const std::int64_t makespan = Json::parse(result.header)["run"]["makespan"];
  // A search of --schedule auto in the page is shorter.
  if (setup.scenario().schedule != kAutomatic && makespan != prediction.metrics.makespan.count()) {
    throw InputError(fmt::format("--live: the page would predict {} ns instead of {} ns", makespan,
                                 prediction.metrics.makespan.count()));
  }
  request["sizes"] = live_sizes(setup);
  return {.engine = live_engine(), .request = request.dump()};
}

}  // namespace sluice::tools

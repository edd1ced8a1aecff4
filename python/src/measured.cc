// Tables of measured runs, and what is fitted to them.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/csv.h"
#include "model/weave/weave.h"
#include "python/src/bindings.h"
#include "python/src/scenario.h"
#include "sim/calibration/correction_fit.h"
#include "sim/calibration/measured_iterations.h"
#include "sim/planner/shortlist.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sluice::python {
namespace {

// The scenario of a row, as JSON, its description, its seconds (0 without a time), and whether it ran out of memory.
std::tuple<std::string, std::string, double, bool> run_of(const CsvTable& table, int row, const std::string& base,
                                                          const std::string& folder, bool timed) {
  if (row < 0 || row >= table.num_rows()) throw nb::index_error("no such row");
  const nlohmann::json scenario = nlohmann::json::parse(base);
  const MeasuredIteration run =
      timed ? read_measured_iteration(table, row, scenario, folder) : read_configuration(table, row, scenario, folder);
  return {configuration_document(table, row, scenario).dump(), run.setting, run.seconds, run.out_of_memory};
}

std::tuple<double, double, double> fitted(const std::vector<std::pair<double, double>>& rows,
                                          const std::string& terms) {
  std::vector<PredictedAndMeasured> pairs;
  for (const auto& [predicted, measured] : rows) pairs.push_back({predicted, measured});
  const auto kind = terms == "scale"   ? CorrectionTerms::scale
                    : terms == "fixed" ? CorrectionTerms::fixed
                                       : CorrectionTerms::automatic;
  if (kind == CorrectionTerms::automatic && terms != "automatic") {
    throw InputError("terms: expected automatic, scale or fixed, got '" + terms + "'");
  }
  const Correction found = fit_correction(pairs, kind);
  return {found.scale, found.fixed_s, found.shortest_s};
}

std::vector<int> shortlisted(const std::vector<std::pair<double, int>>& rows, int size, double group_error,
                             double own_error) {
  std::vector<Candidate> candidates;
  for (const auto& [seconds, group] : rows) candidates.push_back({seconds, group});
  return shortlist(candidates, size, {.group = group_error, .own = own_error}).chosen;
}

using PartSeconds = std::map<std::string, double>;
using WovenTuple = std::tuple<std::string, int, double, double, int>;

std::vector<LayerTimes> layer_times(const std::vector<PartSeconds>& layers) {
  std::vector<LayerTimes> out;
  for (const PartSeconds& layer : layers) {
    LayerTimes& times = out.emplace_back();
    for (const auto& [word, seconds] : layer) {
      const std::optional<PassPart> part = parse_part(word);
      if (!part) throw InputError("expected a part of a layer such as attention(F), got '" + word + "'");
      times.of(part->pass, part->part) = seconds;
    }
  }
  return out;
}

std::pair<double, std::vector<WovenTuple>> woven(const std::vector<PartSeconds>& forward,
                                                 const std::vector<PartSeconds>& backward, const std::string& order) {
  const WovenBlock block = weave_block(find_weave(order), layer_times(forward), layer_times(backward));
  std::vector<WovenTuple> parts;
  for (const WovenPart& part : block.parts) {
    parts.emplace_back(to_string(part.part), part.layer, part.start_s, part.end_s, part.after);
  }
  return {block.seconds, std::move(parts)};
}

}  // namespace

void bind_measured(nb::module_& module) {
  nb::class_<CsvTable>(module, "Table")
      .def(
          "__init__", [](CsvTable* self, const std::string& path) { new (self) CsvTable(read_csv(path)); }, "path"_a)
      .def(nb::init<const CsvTable&>())
      .def_prop_ro("source", &CsvTable::source)
      .def_prop_ro("columns", &CsvTable::columns)
      .def_prop_ro("num_rows", &CsvTable::num_rows)
      .def("drop", &CsvTable::drop, "column"_a)
      .def("check_columns", &check_columns)
      .def("place", &CsvTable::place, "row"_a)
      .def("text", &CsvTable::text, "row"_a, "column"_a)
      .def("number", &CsvTable::number, "row"_a, "column"_a, "low"_a, "high"_a)
      .def("integer", &CsvTable::integer, "row"_a, "column"_a, "low"_a, "high"_a)
      .def("fail", &CsvTable::fail, "row"_a, "column"_a, "rule"_a)
      .def("run", &run_of, "row"_a, "base"_a, "folder"_a, "timed"_a);
  module.def("fit_correction", &fitted, "rows"_a, "terms"_a);
  module.def("shortlist", &shortlisted, "rows"_a, "size"_a, "group_error"_a, "own_error"_a);
  module.def("weave", &woven, "forward"_a, "backward"_a, "order"_a);
}

}  // namespace sluice::python

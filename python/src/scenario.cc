#include "python/src/scenario.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "python/src/bindings.h"
#include "tools/command/scenario_flags.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sluice::python {

ScenarioDocument ScenarioDocument::from_import(Imported imported, std::string source) {
  ScenarioDocument out;
  out.document_ = imported.scenario;
  out.folder_ = ScenarioFlags::folder_of(source);
  out.source_ = std::move(source);
  out.imported_ = std::move(imported);
  return out;
}

ScenarioDocument ScenarioDocument::from_file(const std::string& path) {
  const std::string text = read_file(path);
  if (is_foreign(text)) return from_import(import_text(text, path), path);
  ScenarioDocument out;
  out.document_ = ScenarioFlags::file_document(path);
  out.file_ = out.source_ = path;
  out.folder_ = ScenarioFlags::folder_of(path);
  return out;
}

ScenarioDocument ScenarioDocument::from_text(const std::string& text, const std::string& folder,
                                             const std::string& source) {
  if (is_foreign(text)) return from_import(import_text(text, source), source);
  ScenarioDocument out;
  out.source_ = source;
  out.folder_ = folder;
  out.document_ = parse_json(text, out.source_);
  if (!out.document_.is_object()) throw InputError(source + ": /: expected a scenario object");
  return out;
}

ScenarioDocument ScenarioDocument::from_megatron(const std::string& arguments, const std::string& source) {
  return from_import(import_megatron_line(arguments, source), source);
}

void ScenarioDocument::set(const std::string& key, const std::string& value) {
  ScenarioFlags::set(document_, key, value, source_);
}

Scenario ScenarioDocument::parse(const nlohmann::json& document) const {
  if (source_.empty() || !file_.empty()) return ScenarioFlags::read(document, file_);
  try {
    return scenario_from_json(document, source_, folder_);
  } catch (const InputError& error) {
    throw InputError(naming(error.what()));
  }
}

std::string ScenarioDocument::naming(const std::string& what) const {
  if (imported_) return naming_arguments(what, source_, *imported_);
  return file_.empty() && !source_.empty() ? what : ScenarioFlags::naming_flags(what, document_, file_);
}

nlohmann::json ScenarioDocument::complete() const {
  nlohmann::json document = document_;
  if (!imported_) return document;
  check_complete(document, source_, *imported_);
  ScenarioFlags::complete_gpus(document, source_, [&](const nlohmann::json& cluster) { return parse(cluster); });
  return document;
}

Scenario ScenarioDocument::read() const { return parse(complete()); }

void bind_scenario(nb::module_& module) {
  nb::class_<ScenarioDocument>(module, "ScenarioDocument")
      .def(nb::init<>())
      .def(nb::init<const ScenarioDocument&>())
      .def_static("from_file", &ScenarioDocument::from_file, "path"_a)
      .def_static("from_text", &ScenarioDocument::from_text, "text"_a, "folder"_a, "source"_a)
      .def_static("from_megatron", &ScenarioDocument::from_megatron, "arguments"_a, "source"_a)
      .def("set", &ScenarioDocument::set, "key"_a, "value"_a)
      .def("check", [](const ScenarioDocument& self) { static_cast<void>(self.read()); })
      .def("text", [](const ScenarioDocument& self) { return self.complete().dump(); })
      .def_prop_ro("file", &ScenarioDocument::file)
      .def_prop_ro("notes", &ScenarioDocument::notes);
  module.def("scenario_keys", [] {
    std::vector<std::tuple<std::string, std::string, int, std::string>> out;
    for (const Setting& row : settings()) {
      if (row.flags.empty() || row.kind == SettingKind::other) continue;
      out.emplace_back(row.flags, row.pointer, static_cast<int>(row.kind), row.full_help());
    }
    return out;
  });
}

}  // namespace sluice::python

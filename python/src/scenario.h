#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "import/import.h"
#include "model/scenario/scenario.h"
#include "python/src/bindings.h"

namespace sluice::python {

// The document of a scenario: keys as in a scenario file, from a file, from another framework, or set one by one.
class ScenarioDocument {
 public:
  ScenarioDocument() = default;
  // Reads a scenario file, or the configuration of another framework. Throws InputError.
  static ScenarioDocument from_file(const std::string& path);
  // Reads the JSON text of a scenario, which errors name `source`. Relative paths in it are resolved against `folder`.
  static ScenarioDocument from_text(const std::string& text, const std::string& folder, const std::string& source);
  // Reads a line of Megatron-LM's arguments, which errors name `source`. Throws InputError.
  static ScenarioDocument from_megatron(const std::string& arguments, const std::string& source);

  // Sets a key, by its flag's name ("pp") or its path ("parallelism/pp"), to a JSON value or a text. Throws InputError.
  void set(const std::string& key, const std::string& value);

  // Returns the checked scenario. Throws InputError.
  Scenario read() const;
  // Returns the message of an InputError about this scenario as `read` writes it.
  std::string naming(const std::string& what) const;

  // The document, with the number of GPUs that an imported one leaves to the cluster. Throws InputError.
  nlohmann::json complete() const;
  const nlohmann::json& document() const { return document_; }
  const std::string& file() const { return file_; }  // of a scenario file; otherwise empty
  std::vector<std::string> notes() const { return imported_ ? imported_->notes : std::vector<std::string>(); }

 private:
  static ScenarioDocument from_import(Imported imported, std::string source);
  Scenario parse(const nlohmann::json& document) const;

  nlohmann::json document_ = nlohmann::json::object();
  std::string file_;
  std::string source_;  // in errors; empty: keywords only
  std::string folder_;  // of relative paths
  std::optional<Imported> imported_;
};

}  // namespace sluice::python

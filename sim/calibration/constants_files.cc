#include "sim/calibration/constants_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/cluster/catalogue.h"
#include "model/errors.h"
#include "model/input/files.h"

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

}  // namespace sluice::sim

#include "import/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "model/errors.h"

namespace sluice::imports {
namespace {

constexpr int kMostYamlNodes = 100'000;  // aliases repeat nodes
constexpr int kMostYamlDepth = 50;
constexpr int kMostReferences = 10;  // that follow each other

class YamlReader {
 public:
  explicit YamlReader(const std::string& source) : source_(source) {}

  YamlFile run(const YAML::Node& root) {
    if (!root.IsMap()) fail(root, "expected sections with keys");
    add(root, "", 0);
    for (auto& [key, value] : out_) value.text = resolved(value.text, key, 0);
    return out_;
  }

 private:
  [[noreturn]] void fail(const YAML::Node& node, const std::string& what) const {
    throw InputError(fmt::format("{}: line {}: {}", source_, node.Mark().line + 1, what));
  }

  void add(const YAML::Node& node, const std::string& name, int depth) {
    if (++nodes_ > kMostYamlNodes) fail(node, fmt::format("expected at most {} values", kMostYamlNodes));
    if (depth > kMostYamlDepth) fail(node, "values are nested too deeply");
    const bool object = node.IsMap() && (name.empty() || !node["_target_"] || node["_target_"].IsMap() || holds(node));
    if (!object || (node.size() == 0 && !name.empty())) {
      out_[name] = {text_of(node, depth), node.Mark().line + 1};
      return;
    }
    std::set<std::string> keys;
    for (const auto& pair : node) {
      if (!pair.first.IsScalar()) fail(pair.first, "expected a name");
      const std::string& key = pair.first.Scalar();
      if (key == "<<") fail(pair.first, "merged sections (<<) are not supported");
      const std::string whole = name.empty() ? key : fmt::format("{}.{}", name, key);
      if (!keys.insert(key).second) fail(pair.first, whole + " occurs twice");
      add(pair.second, whole, depth + 1);
      // A null has no line of its own.
      if (const auto found = out_.find(whole); found != out_.end()) found->second.line = pair.first.Mark().line + 1;
    }
  }

  // Whether an object with a _target_ is a section: it has more keys than what describes a call.
  static bool holds(const YAML::Node& node) {
    return std::any_of(node.begin(), node.end(), [](const auto& pair) {
      return !pair.first.IsScalar() || !pair.first.Scalar().starts_with('_');
    });
  }

  std::string text_of(const YAML::Node& node, int depth) {
    if (++nodes_ > kMostYamlNodes) fail(node, fmt::format("expected at most {} values", kMostYamlNodes));
    if (depth > kMostYamlDepth) fail(node, "values are nested too deeply");
    if (node.IsSequence()) {
      std::vector<std::string> out;
      for (const YAML::Node& each : node) out.push_back(text_of(each, depth + 1));
      return fmt::format("[{}]", fmt::join(out, ", "));
    }
    if (node.IsMap()) {
      for (const char* key : {"_name_", "_args_", "_target_"}) {
        if (node[key]) return text_of(node[key], depth + 1);
      }
      return "None";
    }
    if (!node.IsScalar()) return "None";
    const std::string& text = node.Scalar();
    if (node.Tag() == "!") return text;  // quoted
    const auto is = [&](std::initializer_list<const char*> words) {
      return std::any_of(words.begin(), words.end(), [&](const char* word) { return text == word; });
    };
    if (is({"", "~", "null", "Null", "NULL"})) return "None";
    if (is({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return "True";
    if (is({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) return "False";
    const bool digits = !text.empty() && text.find_first_not_of("0123456789_") == std::string::npos && text[0] != '_';
    std::string number = text;
    if (digits) std::erase(number, '_');
    return number;
  }

  // Returns the value of a reference ${a.b}, or ${.b} and ${..b} relative to the section of `key`.
  std::string resolved(const std::string& text, const std::string& key, int depth) const {
    if (!text.starts_with("${") || !text.ends_with('}') || depth > kMostReferences) return text;
    std::string name = text.substr(2, text.size() - 3);
    if (name.starts_with('.')) {
      std::string section = key;
      while (name.starts_with('.')) {
        section.resize(section.find('.') == std::string::npos ? 0 : section.rfind('.'));
        name.erase(0, 1);
      }
      if (!section.empty()) name = section + "." + name;
    }
    const auto found = out_.find(name);
    return found == out_.end() ? text : resolved(found->second.text, name, depth + 1);
  }

  std::string source_;
  int nodes_ = 0;
  YamlFile out_;
};

}  // namespace

YamlFile read_yaml(std::string_view text, const std::string& source) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() != 1) {
      throw InputError(fmt::format("{}: expected one YAML document, got {}", source, documents.size()));
    }
    return YamlReader(source).run(documents.front());
  } catch (const YAML::Exception& error) {
    throw InputError(fmt::format("{}: line {}: {}", source, error.mark.line + 1, error.msg));
  }
}

}  // namespace sluice::imports

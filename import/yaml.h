#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::imports {

// A value of a YAML file as Python prints it: "True", "None", "8192", "[1, 2]".
struct YamlValue {
  std::string text;
  std::int64_t line = 0;
};
using YamlFile = std::map<std::string, YamlValue>;  // by "section.key"

// Reads a YAML file with yaml-cpp. References such as ${model.seq_length} and ${.seq_length} are replaced by their
// values; others stay as they are written. An object that OmegaConf describes by _target_ is the text of its target. An
// empty section has the value "None". Throws InputError naming the line.
YamlFile read_yaml(std::string_view text, const std::string& source);

}  // namespace sluice::imports

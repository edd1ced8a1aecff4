#pragma once

#include <string_view>

namespace sluice::model {

// Returns whether a text that is not JSON is YAML, by the name of its source or its first line besides comments: "---"
// or "key: value".
bool looks_like_yaml(std::string_view text, std::string_view source);

}  // namespace sluice::model

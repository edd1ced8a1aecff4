#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::imports {

// The arguments of Megatron-LM, named without "--".

// The words of an argument that sets a key of a scenario.
enum class MegatronValue { flag, whole, real, text, words };

// An argument that is read. Without `pointer`, its effect depends on others.
struct MegatronKey {
  std::string_view name;
  MegatronValue value;
  std::string_view pointer = "";  // of the scenario's key
};

// Returns the argument of that name; null if it is not read.
const MegatronKey* megatron_key(std::string_view name);
// Returns the argument that sets a key of the scenario, or a key that it is an element of; "" if there is none.
std::string_view megatron_argument_of(std::string_view pointer);

// Whether an argument changes time or memory, and is not modeled.
bool megatron_not_modeled(std::string_view name, std::string_view value);
// Whether an argument is known to change neither.
bool megatron_without_effect(std::string_view name);

// The words of a list of modules: words of a command line, or one in the form of a printed list, also of enumerators as
// Python prints them ("[<CudaGraphScope.attn: 2>]"). Without numbers and "None".
std::vector<std::string> listed_words(std::span<const std::string> words);

// An attribute in a dump of the arguments whose argument has another name. `inverted`: the argument sets it to false.
struct MegatronAttribute {
  std::string_view attribute;
  std::string_view name;
  bool inverted = false;
};
const MegatronAttribute* megatron_attribute(std::string_view attribute);

}  // namespace sluice::imports

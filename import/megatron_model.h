#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "model/blocks/model.h"

namespace sluice::imports {

// A line of arguments.
class Arguments {
 public:
  template <typename T>
  void add(const char* name, const T& value) {
    fmt::format_to(std::back_inserter(text_), "{}{} {}", text_.empty() ? "" : " ", name, value);
  }
  void add(const char* name, bool given) {
    if (given) fmt::format_to(std::back_inserter(text_), "{}{}", text_.empty() ? "" : " ", name);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// Returns what Megatron-LM's arguments cannot express of a model, such as "attention in chunks"; "" if they can express
// all of it. A model is one of its GPTs, whose layers are attention or a scan and an MLP or experts, or one of its
// hybrid models, whose layers are single blocks in a pattern.
std::string megatron_lacks(const Model& model);

// Whether its layers are single blocks.
bool is_megatron_hybrid(const Model& model);

// Returns the pattern of a hybrid model with '|' between stages of these numbers of layers, and that of multi-token
// prediction.
std::string megatron_pattern(const Model& model, const std::vector<int>& stage_layers);

// Adds the arguments for a model, but for a hybrid model's pattern. Throws InputError if there are none.
void add_megatron_model(const Model& model, std::int64_t sequence_length, Arguments& out);

}  // namespace sluice::imports

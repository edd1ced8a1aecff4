#pragma once

#include <string>

#include "model/blocks/layer.h"
#include "model/blocks/model_files.h"
#include "model/blocks/stage.h"
#include "model/errors.h"

namespace sluice::test {

// A file of examples/models/.
inline Transformer example(const std::string& name) {
  return read_model(std::string(SLUICE_SOURCE_DIR "/examples/models/") + name).transformer("a test");
}

// Elements of the matrices of a layer's linear layers, and of its routed experts' parameters.
inline std::int64_t layer_matrix_elements(const Model& model, KindIndex kind = 0) {
  return layer_parameters(model.kind(kind), model.style(), {}).linear;
}
inline std::int64_t routed_expert_parameters(const Model& model) {
  return layer_parameters(model.kind(LayerKind::experts), model.style(), {}).routed;
}

// The message of the InputError that `call` throws.
inline std::string error_of(const auto& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace sluice::test

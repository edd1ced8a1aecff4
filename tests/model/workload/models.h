#pragma once

#include <string>

#include "model/errors.h"
#include "model/workload/training.h"
#include "model/workload/transformer.h"

namespace sluice::test {

// A file of examples/models/.
inline Transformer example(const std::string& name) {
  return read_model(std::string(SLUICE_SOURCE_DIR "/examples/models/") + name);
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

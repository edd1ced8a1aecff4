#pragma once

#include <string>

#include "model/errors.h"

namespace sluice::test {

// Returns the text of the Error that `call` throws, or `otherwise`.
template <class Error = InputError>
std::string error_from(const auto& call, const char* otherwise = "no error") {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return otherwise;
}

}  // namespace sluice::test

// Public header.
#pragma once

#include <stdexcept>
#include <string>

#include "model/namespaces.h"

namespace sluice::model {

// Wrong usage or input: the message names the location and what was expected. The command exits with 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A valid request with no feasible configuration: it does not fit into the memory. Exit 3.
class DoesNotFit : public InputError {
 public:
  using InputError::InputError;
};

// A schedule that parses but is invalid: a duplicate, missing or misplaced op, or a deadlock. Exit 4.
class ScheduleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace sluice::model

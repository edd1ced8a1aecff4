#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "model/namespaces.h"

namespace sluice::exec {

// Why a run ended early.
enum class FailureKind : std::uint8_t {
  non_finite,  // an op, the loss or the gradient norm is NaN or infinite
  stuck,       // an op is past its deadline, or every worker waits for something that will not happen
  lost,        // a worker's process has died
  elsewhere,   // another process reports that its worker failed; that process has the details
};

// The first failure of a run: what happened, on which rank and in which op.
class RunFailure : public std::runtime_error {
 public:
  RunFailure(FailureKind kind, int world_rank, const std::string& what)
      : std::runtime_error(what), kind_(kind), world_rank_(world_rank) {}
  FailureKind kind() const { return kind_; }
  int world_rank() const { return world_rank_; }

 private:
  FailureKind kind_;
  int world_rank_;
};

}  // namespace sluice::exec

// Public header.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// The purpose of a collective of the OpGraph.
enum class CollectiveKind : std::uint8_t {
  gradient_reduce,   // data-parallel reduction of one stage's gradients
  replica_reduce,    // all-reduce between the two ranks that have a copy of a stage (DualPipe, Chimera)
  tied_embedding,    // all-reduce of the embedding's gradient between the first and the last stage
  global_norm,       // gradient norm and overflow check over all ranks
  parameter_gather,  // distributed optimizer: all-gather of the updated parameters
};

// "gradient reduce", ...: the name in reports and timelines.
constexpr std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::gradient_reduce: return "gradient reduce";
    case CollectiveKind::replica_reduce: return "replica reduce";
    case CollectiveKind::tied_embedding: return "tied embedding";
    case CollectiveKind::global_norm: return "global norm";
    case CollectiveKind::parameter_gather: return "parameter gather";
  }
  return "collective";
}

}  // namespace sluice::model

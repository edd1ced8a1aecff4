#pragma once

#include <functional>
#include <string>

#include "model/schedule/family.h"

namespace sluice::test {

// Calls `use` with the schedules of all families and all shapes up to these sizes, except those that a family rejects.
// Returns their number.
struct Sizes {
  int ranks = 4;
  int microbatches = 8;
  int chunks = 3;
  int slices = 4;
  bool vocabulary = true;  // families with vocabulary passes, too
};
int for_each_schedule(const Sizes& sizes, const std::function<void(const Schedule&)>& use);

// "zb-v p=4 m=8 v=2 k=1": for SCOPED_TRACE.
std::string describe(const Schedule& schedule);

}  // namespace sluice::test

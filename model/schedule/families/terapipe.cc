#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family terapipe() {
  return {.name = "terapipe",
          .aliases = {},
          .summary = "gpipe over slices of sequences: 1/k of the bubble, stores the activations of every microbatch",
          .source = "Li et al. 2021, arXiv:2102.07988",
          .sliced = true,
          .leaner = {"seq1f1b"},
          .make = [](const FamilyParams& params) { return orders::forwards_then_backwards(terapipe(), params); }};
}

}  // namespace sluice::model::families

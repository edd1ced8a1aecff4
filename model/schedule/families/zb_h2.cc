#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family zb_h2() {
  return {.name = "zb-h2",
          .aliases = {"ZB2P", "ZBH2"},
          .summary = "zb-h1 with twice the memory: no bubble between one batch and the next when F, I and W take alike",
          .source = "Qi et al. 2023, arXiv:2401.10241, section 2.2",
          .split_backward = true,
          .make = [](const FamilyParams& params) { return orders::alternating(zb_h2(), params, 2); }};
}

}  // namespace sluice::model::families

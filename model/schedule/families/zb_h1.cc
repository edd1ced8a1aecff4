#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {

Family zb_h1() {
  return {.name = "zb-h1",
          .aliases = {"ZB1P", "ZBH1"},
          .summary = "1f1b with delayed weight gradients: a third of the bubble with 1f1b's memory",
          .source = "Qi et al. 2023, arXiv:2401.10241, section 2.1",
          .split_backward = true,
          .make = [](const FamilyParams& params) { return orders::alternating(zb_h1(), params, 1); }};
}

}  // namespace sluice::model::families

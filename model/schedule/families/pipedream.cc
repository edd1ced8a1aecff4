#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

ScheduleParts make_pipedream(const FamilyParams& params) {
  ScheduleParts parts = orders::alternating(pipedream(), params, 1);
  parts.weight_policy = WeightPolicy::stashed;
  return parts;
}

}  // namespace

Family pipedream() {
  return {.name = "pipedream",
          .aliases = {},
          .summary = "1f1b without a flush: a step after every backward; rank r stores p - r versions of its weights",
          .source = "Narayanan et al. 2019, arXiv:1806.03377",
          .asynchronous = true,
          .make = make_pipedream};
}

}  // namespace sluice::model::families

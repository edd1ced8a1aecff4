#include "tests/support/all_schedules.h"

#include "model/errors.h"

namespace sluice::test {

int for_each_schedule(const Sizes& sizes, const std::function<void(const Schedule&)>& use) {
  int count = 0;
  for (const Family& family : all_families()) {
    if (family.vocabulary_barriers > 0 && !sizes.vocabulary) continue;
    for (int p = 1; p <= sizes.ranks; ++p) {
      for (int m = 1; m <= sizes.microbatches; ++m) {
        for (int v = 1; v <= sizes.chunks; ++v) {
          for (int k = 1; k <= sizes.slices; ++k) {
            FamilyParams params{.ranks = p, .chunks = v, .microbatches = m};
            params.shape.slice_lengths.clear();
            for (int i = 0; i < k; ++i) params.shape.slice_lengths.push_back(k + 2 - i);
            try {
              const Schedule schedule = make_schedule(family, params);
              ++count;
              use(schedule);
            } catch (const InputError&) {
              continue;  // not for this family
            }
          }
        }
      }
    }
  }
  return count;
}

std::string describe(const Schedule& schedule) {
  return schedule.family() + " p=" + std::to_string(schedule.num_ranks()) +
         " m=" + std::to_string(schedule.num_microbatches()) + " v=" + std::to_string(schedule.num_chunks()) +
         " k=" + std::to_string(schedule.max_slices());
}

}  // namespace sluice::test

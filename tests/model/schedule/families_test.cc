#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "tests/support/oracle.h"

namespace sluice {
namespace {

using test::longest_path;
using test::OracleTimes;
using test::uniform;

MicrobatchShape slices(int count) {
  return {.sequences = 1, .slice_lengths = std::vector<std::int64_t>(static_cast<std::size_t>(count), 1)};
}

std::string described(const Family& family, const FamilyParams& params) {
  return std::string(family.name) + " p=" + std::to_string(params.ranks) + " m=" + std::to_string(params.microbatches) +
         " v=" + std::to_string(params.chunks) + " k=" + std::to_string(params.slices()) +
         " G=" + std::to_string(params.group) + " batches=" + std::to_string(params.batches);
}

// Calls `check(params, schedule)` for all shapes that the family takes: ranks to 4, microbatches to 8, chunks to 4,
// slices to 4, groups to 8 units, batches to 3. Returns how many.
int for_small_shapes(const Family& family, const auto& check) {
  int taken = 0;
  const auto try_one = [&](const FamilyParams& params) {
    SCOPED_TRACE(described(family, params));
    try {
      check(params, make_schedule(family, params));
      ++taken;
    } catch (const InputError&) {
    }
  };
  for (int p = 1; p <= 4; ++p) {
    for (int m = 1; m <= 8; ++m) {
      for (int v = 1; v <= (family.fixed_chunks == 0 ? 4 : 1); ++v) {
        for (int k = 1; k <= (family.sliced ? 4 : 1); ++k) {
          for (int group = 0; group <= (family.grouped ? 8 : 0); ++group) {
            for (int batches = 1; batches <= (family.asynchronous ? 3 : 1); ++batches) {
              try_one({.ranks = p,
                       .chunks = family.fixed_chunks == 0 ? v : 0,
                       .microbatches = m,
                       .batches = batches,
                       .group = group,
                       .shape = slices(k)});
            }
          }
        }
      }
    }
  }
  return taken;
}

// Each op once, on the rank of its stage, with F, and B or I and W, for each cell.
void expect_complete(const Schedule& schedule) {
  std::set<std::tuple<int, int, int, char>> seen;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const Op& op : schedule.ops(rank)) {
      EXPECT_TRUE(seen.emplace(op.stage, op.microbatch, op.slice, letter(op.kind)).second) << to_string(op, true);
      EXPECT_EQ(schedule.rank_of(op.stage, op.microbatch), rank);
    }
  }
  std::size_t expected = 0;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    for (int mb = 0; mb < schedule.total_microbatches(); ++mb) {
      for (int slice = 0; slice < schedule.num_slices(mb); ++slice) {
        const auto has = [&](char kind) { return seen.contains({stage, mb, slice, kind}); };
        EXPECT_TRUE(has('F') && has('B') != has('I') && has('W') == has('I'))
            << "stage " << stage << ", mb " << mb << ", slice " << slice;
        expected += has('B') ? 2 : 3;
      }
    }
  }
  EXPECT_EQ(seen.size(), expected);
}

class EveryFamily : public testing::TestWithParam<std::string_view> {};

TEST_P(EveryFamily, IsCompleteFreeOfDeadlockAndNoShorterThanItsWork) {
  const Family& family = find_family(GetParam());
  const int taken = for_small_shapes(family, [&](const FamilyParams&, const Schedule& schedule) {
    expect_complete(schedule);
    const OracleTimes times = longest_path(schedule, uniform(2, 3, 5));
    ASSERT_FALSE(times.deadlock);
    // The path of one microbatch down and up again: every F, and the gradient that the next stage waits for.
    std::int64_t path = 0;
    for (int stage = 0; stage < schedule.num_stages(); ++stage) path += 2 + (schedule.split_backward() ? 3 : 8);
    EXPECT_GE(times.makespan(), path);
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      std::int64_t work = 0;
      for (const Op& op : schedule.ops(rank)) work += uniform(2, 3, 5).op(op);
      EXPECT_EQ(times.busy(rank), work);
      EXPECT_GE(times.span(rank), work);
    }
  });
  EXPECT_GT(taken, 0);
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const Family& family : all_families()) names.push_back(family.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryFamily, testing::ValuesIn(family_names()), [](const auto& row) {
  std::string name(row.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace sluice

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "tests/support/errors.h"
#include "tests/support/oracle.h"
#include "tests/support/shapes.h"

// Properties of every family, over all small shapes, and the parameters that each rejects. The orders themselves are in
// orders_test.cc.
namespace sluice::test {
namespace {

constexpr test::Limits kSmall = {.ranks = 4, .microbatches = 8, .chunks = 4, .slices = 4, .batches = 3};

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
        EXPECT_TRUE(!schedule.has_vocabulary(stage) || (has('S') && has('T')));
        expected += schedule.has_vocabulary(stage) ? 2 : 0;
      }
    }
  }
  EXPECT_EQ(seen.size(), expected);
}

class EveryFamily : public testing::TestWithParam<std::string_view> {
 protected:
  const std::string name{GetParam()};
};

TEST_P(EveryFamily, IsCompleteWithoutDeadlockAndNoShorterThanItsWork) {
  const int checked = test::for_shapes(name, kSmall, everywhere, [](const Shape&, const Schedule& schedule) {
    expect_complete(schedule);
    const test::OracleCosts costs = uniform(2, 3, 5);
    const OracleTimes times = longest_path(schedule, costs);
    ASSERT_FALSE(times.deadlock);
    // The path of one microbatch to the last stage and back: every F, and the gradient that the next stage waits for.
    std::int64_t path = 0;
    for (int stage = 0; stage < schedule.num_stages(); ++stage) path += 2 + (schedule.split_backward() ? 3 : 8);
    EXPECT_GE(times.makespan(), path);
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      std::int64_t work = 0;
      for (const Op& op : schedule.ops(rank)) work += costs.op(op);
      EXPECT_EQ(times.busy(rank), work);
      EXPECT_GE(times.span(rank), work);
    }
  });
  EXPECT_GT(checked, 0);
}

TEST_P(EveryFamily, HasThePropertiesOfItsRow) {
  const Family& family = find_family(name);
  EXPECT_FALSE(family.summary.empty());
  EXPECT_FALSE(family.source.empty());
  test::for_shapes(name, kSmall, everywhere, [&](const Shape& shape, const Schedule& schedule) {
    EXPECT_EQ(schedule.family(), name);
    EXPECT_EQ(schedule.split_backward(), family.split_backward);
    EXPECT_EQ(schedule.num_routes(), family.replicas);
    EXPECT_EQ(schedule.weight_policy() != WeightPolicy::flush, family.asynchronous);
    EXPECT_EQ(schedule.num_chunks(), family.fixed_chunks == 0 ? shape.v : family.fixed_chunks);
    EXPECT_EQ(schedule.num_microbatches(), shape.m);
    EXPECT_EQ(schedule.num_batches(), shape.batches);
  });
}

TEST_P(EveryFamily, IsGeneratedDeterministically) {
  test::for_shapes(name, {.ranks = 3, .microbatches = 6, .chunks = 2, .slices = 2}, everywhere,
                   [&](const Shape& shape, const Schedule& schedule) {
                     EXPECT_EQ(make(name, shape).parts().orders, schedule.parts().orders);
                   });
}

TEST_P(EveryFamily, OrderDependsOnlyOnTheNumberOfSlices) {
  const Family& family = find_family(name);
  if (!family.sliced) return;
  FamilyParams params = {.ranks = 2, .microbatches = 4, .shape = {.sequences = 1, .slice_lengths = {1, 1, 1}}};
  const Schedule even = make_schedule(family, params);
  params.shape = {.sequences = 2, .slice_lengths = {7, 1, 300}};
  const Schedule uneven = make_schedule(family, params);
  EXPECT_EQ(even.parts().orders, uneven.parts().orders);
  EXPECT_EQ(uneven.shape(3), params.shape);
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

TEST(Registry, FindsNamesAndAliasesInAnyCase) {
  const auto upper = [](std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
    return text;
  };
  std::set<std::string> seen;
  for (const Family& family : all_families()) {
    std::vector<std::string_view> names = family.aliases;
    names.push_back(family.name);
    std::set<std::string> own;
    for (const std::string_view view : names) {
      const std::string name(view);
      for (const std::string& written : {name, upper(name), "Schedule" + name}) {
        EXPECT_EQ(find_family(written).name, family.name) << written;
      }
      own.insert(upper(name));
    }
    for (const std::string& name : own) EXPECT_TRUE(seen.insert(name).second) << name << " names two families";
  }
}

TEST(Registry, RelatedFamiliesAreRegisteredByTheirName) {
  for (const Family& family : all_families()) {
    for (const std::string_view leaner : family.leaner) {
      EXPECT_EQ(find_family(leaner).name, leaner);
      EXPECT_NE(leaner, family.name);
    }
    if (family.sliced_variant.empty()) continue;
    EXPECT_FALSE(family.sliced);
    EXPECT_EQ(find_family(family.sliced_variant).name, family.sliced_variant);
    EXPECT_TRUE(find_family(family.sliced_variant).sliced);
  }
}

// Megatron-LM runs 1F1B where the virtual size is 1: no more microbatches in flight than that.
TEST(Registry, FamiliesWithOneChunkEqualTheirBase) {
  int compared = 0;
  for (const Family& family : all_families()) {
    if (family.with_one_chunk.empty()) continue;
    ++compared;
    const std::string_view interleaved = family.name;
    const std::string_view base = find_family(family.with_one_chunk).name;
    EXPECT_EQ(base, family.with_one_chunk);
    EXPECT_EQ(family.fixed_chunks, 0);
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int microbatches = 1; microbatches <= 9; ++microbatches) {
        SCOPED_TRACE(testing::Message() << interleaved << " p=" << ranks << " m=" << microbatches);
        FamilyParams params{.ranks = ranks, .chunks = 1, .microbatches = microbatches};
        if (find_family(base).sliced) params.shape.slice_lengths = {1, 1, 1};
        const Schedule one = make_schedule(find_family(interleaved), params);
        const Schedule other = make_schedule(find_family(base), params);
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_TRUE(
              std::equal(one.ops(rank).begin(), one.ops(rank).end(), other.ops(rank).begin(), other.ops(rank).end()));
        }
      }
    }
  }
  EXPECT_EQ(compared, 3);
}

TEST(Registry, SuggestsTheNearestFamily) {
  const auto error = [](const char* name) -> std::string {
    try {
      find_family(name);
    } catch (const InputError& refused) {
      return refused.what();
    }
    return "no error";
  };
  EXPECT_EQ(error("zb-h3").substr(0, 37), "there is no schedule family 'zb-h3'; ");
  EXPECT_EQ(error("quantum"), "there is no schedule family 'quantum' ('sluice schedules' lists them)");
  EXPECT_EQ(error(""), "there is no schedule family '' ('sluice schedules' lists them)");
}

TEST(Registry, FindsPyTorchsClasses) {
  EXPECT_EQ(find_family("ScheduleGPipe").name, "gpipe");
  EXPECT_EQ(find_family("Schedule1F1B").name, "1f1b");
  EXPECT_EQ(find_family("ScheduleInterleaved1F1B").name, "interleaved-1f1b");
  EXPECT_EQ(find_family("ScheduleLoopedBFS").name, "looped-bfs");
  EXPECT_EQ(find_family("ScheduleInterleavedZeroBubble").name, "interleaved-zb");
  EXPECT_EQ(find_family("ScheduleZBVZeroBubble").name, "zb-v");
  EXPECT_EQ(find_family("ScheduleDualPipeV").name, "dualpipe-v");
}

std::string refusal(const std::string& name, const FamilyParams& params) {
  return test::error_from([&] { make_schedule(find_family(name), params); }, "no refusal");
}

TEST(Refusals, OfParametersThatAreAlwaysInvalid) {
  EXPECT_EQ(refusal("1f1b", {.ranks = 0}), "1f1b: ranks (--pp): expected 1 to 8192, got 0");
  EXPECT_EQ(refusal("1f1b", {.ranks = 8193}), "1f1b: ranks (--pp): expected 1 to 8192, got 8193");
  EXPECT_EQ(refusal("1f1b", {.microbatches = 0}), "1f1b: microbatches: expected at least 1, got 0");
  EXPECT_EQ(refusal("looped-bfs", {.chunks = -1}), "looped-bfs: chunks (--vpp): expected at least 1, got -1");
  EXPECT_EQ(refusal("seq1f1b", {.shape = {.slice_lengths = {}}}), "seq1f1b: slices: expected 1 to 32767, got 0");
  EXPECT_EQ(refusal("seq1f1b", {.shape = {.slice_lengths = {3, 0}}}),
            "seq1f1b: slice length: expected 1 to 2^40, got 0");
  EXPECT_EQ(refusal("seq1f1b", {.shape = {.slice_lengths = {std::int64_t{1} << 40, 1}}}),
            "seq1f1b: slice lengths: more than 2^40 tokens together");
  EXPECT_EQ(refusal("1f1b", {.shape = {.sequences = 0}}), "1f1b: sequences: expected at least 1, got 0");
  EXPECT_EQ(refusal("looped-bfs", {.ranks = 4096, .chunks = 8}), "looped-bfs: 32768 stages: more than 32767");
  // 4 stages x 10^7 microbatches x 2 kinds
  EXPECT_EQ(refusal("1f1b", {.ranks = 4, .microbatches = 10'000'000}),
            "1f1b: 80000000 ops (4 stages x 10000000 microbatches x 1 batches x 1 slices x F, B): more than 60000000");
}

TEST(Refusals, OfParametersThatTheFamilyDoesNotHave) {
  EXPECT_EQ(refusal("1f1b", {.chunks = 2}), "1f1b: chunks (--vpp): its placement fixes 1, got 2");
  EXPECT_EQ(refusal("zb-v", {.chunks = 4}), "zb-v: chunks (--vpp): its placement fixes 2, got 4");
  EXPECT_EQ(refusal("1f1b", {.shape = {.slice_lengths = {1, 1}}}),
            "1f1b: does not slice sequences: expected 1 slice, got 2");
  EXPECT_EQ(refusal("1f1b", {.group = 2}), "1f1b: group: only the interleaved families take one");
  EXPECT_EQ(refusal("1f1b", {.batches = 2}),
            "1f1b: flushes after every batch: expected 1 batch, got 2 (period_s is the time per batch)");
}

TEST(Refusals, OfInterleavedGroups) {
  EXPECT_EQ(refusal("interleaved-1f1b", {.ranks = 4, .microbatches = 10}),
            "interleaved-1f1b: microbatches: 10 in groups of 4 leave a last group of 2, less than the 4 ranks");
  EXPECT_EQ(refusal("interleaved-zb", {.ranks = 4, .microbatches = 3}),
            "interleaved-zb: microbatches: 3 in groups of 4 leave a last group of 3, less than the 4 ranks");
  EXPECT_EQ(refusal("interleaved-1f1b", {.ranks = 4, .microbatches = 8, .group = 3}),
            "interleaved-1f1b: group: expected at least one microbatch for each of 4 ranks, or all 8, got 3");
  EXPECT_EQ(refusal("interleaved-1f1b", {.ranks = 4, .microbatches = 3, .group = 3}), "no refusal");
  EXPECT_EQ(refusal("interleaved-1f1b", {.ranks = 4, .microbatches = 9, .group = 5}), "no refusal");  // 5 and 4
}

TEST(Refusals, OfSlicedGroups) {
  const MicrobatchShape two = {.slice_lengths = {1, 1}};
  const std::string rule =
      "seq1f1b-interleaved: group: expected at least 4 units (ranks), a multiple of 2 (slices) that divides 16 "
      "(microbatches x slices), got ";
  for (const int bad : {2, 5, 6, 32}) {
    EXPECT_EQ(refusal("seq1f1b-interleaved", {.ranks = 4, .microbatches = 8, .group = bad, .shape = two}),
              rule + std::to_string(bad));
  }
  EXPECT_EQ(refusal("seq1f1b-interleaved", {.ranks = 4, .microbatches = 1, .shape = two}),
            "seq1f1b-interleaved: 1 microbatches of 2 slices are 2 units, fewer than the 4 ranks");
}

TEST(Refusals, OfBidirectionalAndWaveShapes) {
  EXPECT_EQ(refusal("dualpipe", {.ranks = 3, .microbatches = 8}), "dualpipe: ranks: expected an even number, got 3");
  EXPECT_EQ(refusal("dualpipe", {.ranks = 4, .microbatches = 9}),
            "dualpipe: microbatches: expected an even number of at least 8 (twice the ranks), got 9");
  EXPECT_EQ(refusal("dualpipe", {.ranks = 4, .microbatches = 6}),
            "dualpipe: microbatches: expected an even number of at least 8 (twice the ranks), got 6");
  EXPECT_EQ(refusal("dualpipe-v", {.ranks = 3, .microbatches = 5}),
            "dualpipe-v: microbatches: expected at least 6 (twice the ranks), got 5");
  EXPECT_EQ(refusal("chimera", {.ranks = 1, .microbatches = 2}), "chimera: ranks: expected an even number, got 1");
  EXPECT_EQ(refusal("chimera", {.ranks = 4, .microbatches = 6}),
            "chimera: microbatches: expected a multiple of 4 (ranks), got 6");
  EXPECT_EQ(refusal("hanayo", {.ranks = 4, .chunks = 3, .microbatches = 4}),
            "hanayo: chunks (--vpp): expected an even number (two per wave), got 3");
  EXPECT_EQ(refusal("hanayo", {.ranks = 3, .microbatches = 3}), "hanayo: ranks: expected an even number or 1, got 3");
  EXPECT_EQ(refusal("hanayo", {.ranks = 4, .microbatches = 8}),
            "hanayo: microbatches: expected 4 (as many as ranks), got 8");
}

TEST(Refusals, OfTooShortBatchesForTwoVersions) {
  EXPECT_EQ(refusal("pipedream-2bw", {.ranks = 8, .microbatches = 6}),
            "pipedream-2bw: microbatches: two versions of the weights need at least 7 per batch (ranks - 1), got 6");
  EXPECT_EQ(refusal("pipedream-2bw", {.ranks = 8, .microbatches = 7}), "no refusal");
}

}  // namespace
}  // namespace sluice::test

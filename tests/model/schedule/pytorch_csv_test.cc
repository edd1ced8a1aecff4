#include "model/schedule/pytorch_csv.h"

#include <gtest/gtest.h>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/schedule/schedule_file.h"
#include "model/schedule/with_communication.h"
#include "tests/support/all_schedules.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

std::string wrong_input(const std::string& text) {
  return error_from<InputError>([&] { schedule_from_csv(text, "s.csv"); });
}

std::string invalid(const std::string& text) {
  return error_from<ScheduleError>([&] { schedule_from_csv(text, "s.csv"); });
}

TEST(PytorchCsv, ExportThenImportIsTheIdentityForEveryUnslicedFamily) {
  int count = 0;
  test::for_each_schedule({.ranks = 4, .microbatches = 8, .chunks = 3, .slices = 1}, [&](const Schedule& schedule) {
    if (schedule.num_routes() > 1 || schedule.weight_policy() != WeightPolicy::flush ||
        schedule.vocabulary_barriers() > 0) {
      EXPECT_THROW(schedule_to_csv(schedule), InputError);
      return;
    }
    SCOPED_TRACE(test::describe(schedule));
    ++count;
    const Schedule back = schedule_from_csv(schedule_to_csv(schedule), "s.csv");
    EXPECT_EQ(back.routes(), schedule.routes());
    EXPECT_EQ(back.num_microbatches(), schedule.num_microbatches());
    EXPECT_EQ(back.parts().orders, schedule.parts().orders);
    // Also with communication, and through Sluice's own format.
    const Schedule communicating = with_communication(schedule);
    const Schedule csv = schedule_from_csv(schedule_to_csv(communicating, true), "s.csv");
    EXPECT_EQ(csv.parts().orders, schedule.parts().orders);
    if (schedule.num_ranks() == 1) {
      EXPECT_FALSE(csv.has_communication());  // one rank has no transfers
    } else {
      EXPECT_EQ(csv.parts().communication, communicating.parts().communication);
      EXPECT_EQ(schedule_from_json(schedule_to_json(communicating), "s.json").parts().communication,
                communicating.parts().communication);
    }
    EXPECT_EQ(schedule_to_csv(communicating), schedule_to_csv(schedule));
  });
  EXPECT_GT(count, 200);
  EXPECT_EQ(error_from<InputError>([] { schedule_to_csv(test::make("seq1f1b", {.p = 2, .m = 2, .k = 2})); }),
            "seq1f1b: PyTorch's CSV has no slices of a sequence");
}

TEST(PytorchCsv, RanksWithoutOpsAreRejected) {
  ScheduleParts parts{.family = "custom", .num_ranks = 2, .routes = {{0}}};
  parts.orders = {{{.kind = OpKind::F}, {.kind = OpKind::B}}, {}};
  EXPECT_EQ(error_from<InputError>([&] { schedule_to_csv(Schedule(parts)); }),
            "custom: PyTorch's CSV has no ranks without ops");
}

TEST(PytorchCsv, IsWrittenInPyTorchsFormat) {
  // 1F1B on two ranks: rank 0 warms up with one forward.
  EXPECT_EQ(schedule_to_csv(test::make("1f1b", {.p = 2, .m = 2})), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(PytorchCsv, IdleStepsLineEndsAndQuotesAreIgnored) {
  const Schedule schedule = schedule_from_csv(
      "\xEF\xBB\xBF"
      "0F0,0F1,,\"0B0\",,0B1\r\n,1F0, 1B0 ,1F1,1B1,\r\n",
      "s.csv");
  EXPECT_EQ(schedule_to_csv(schedule), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(PytorchCsv, ReadsJointBlocks) {
  const std::string text = "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n";
  const Schedule schedule = schedule_from_csv(text, "s.csv");
  EXPECT_TRUE(schedule.has_joint_blocks());
  EXPECT_EQ(schedule_to_csv(schedule), text);
}

TEST(PytorchCsv, RecognisesTheDialectBeforeLate2024) {
  // In that dialect B is the input gradient, W the weight gradient, BW both.
  EXPECT_EQ(schedule_to_csv(schedule_from_csv("0F0,0F1,0B0,0W0,0BW1\n", "s.csv")), "0F0,0F1,0I0,0W0,0B1\n");
  // With an I in the file, B is the whole backward.
  EXPECT_EQ(schedule_to_csv(schedule_from_csv("0F0,0F1,0I0,0W0,0B1\n", "s.csv")), "0F0,0F1,0I0,0W0,0B1\n");
}

TEST(PytorchCsv, ErrorsNameRowAndCell) {
  const std::string rule =
      ": expected an op such as 2F0, 1I3, 0W2 or 3B1, a block (0F1;3B0)OVERLAP_F_B, communication such as 2SEND_F0, "
      "0UNSHARD, or nothing, got ";
  EXPECT_EQ(wrong_input("0F0,0B0\n1F0,,1X0\n"), "s.csv: row 2, cell 3" + rule + "'1X0'");
  EXPECT_EQ(wrong_input("0F0junk,0B0\n"), "s.csv: row 1, cell 1" + rule + "'0F0junk'");
  EXPECT_EQ(wrong_input("0F0.1,0B0\n"), "s.csv: row 1, cell 1" + rule + "'0F0.1'");
  EXPECT_EQ(wrong_input("-1F0,0B0\n"), "s.csv: row 1, cell 1" + rule + "'-1F0'");
  EXPECT_EQ(wrong_input("(0F0;0B0)\n"), "s.csv: row 1, cell 1" + rule + "'(0F0;0B0)'");
  EXPECT_EQ(wrong_input("0F99999999999\n"), "s.csv: row 1, cell 1" + rule + "'0F99999999999'");
  for (const char* junk : {"0SEND_F", "0SEND_F0x", "0SEND_F0.1", "0SEND_X0", "SEND_F0", "0UNSHARD1", "0REDUCE_GRADx"}) {
    EXPECT_EQ(wrong_input(std::string("0F0,") + junk + ",0B0\n"), "s.csv: row 1, cell 2" + rule + "'" + junk + "'");
  }
  EXPECT_EQ(wrong_input(""), "s.csv: expected a row for each rank, with ops");
  // Written again, the second row would be the empty line that may end a file.
  EXPECT_EQ(wrong_input("0F0,0B0\n,\n"), "s.csv: row 2: expected ops");
  EXPECT_EQ(wrong_input("\n0F0,0B0\n"), "s.csv: row 1: expected ops");
  EXPECT_EQ(wrong_input("32766F59999999\n"), "s.csv: 32767 stages and 60000000 microbatches: more than 60000000 ops");
}

TEST(PytorchCsv, IsCheckedMoreStrictlyThanByPyTorch) {
  EXPECT_EQ(invalid("0F0,,0F0,0B0\n"), "s.csv: row 1, cell 3: F(stage 0, mb 0): occurs twice, first at row 1, cell 1");
  EXPECT_EQ(invalid("0F0,0F1,0B0\n"), "s.csv: row 1: B(stage 0, mb 1) is missing");
  EXPECT_EQ(invalid("0F0,0B0\n,0F1,0B1\n"),
            "s.csv: row 2, cell 2: F(stage 0, mb 1): stage 0 is also in row 1, at cell 1");
  EXPECT_EQ(invalid("0F0,0B0\n2F0,2B0\n"), "s.csv: no row has stage 1");
}

// One microbatch over two ranks, with both rows given.
std::string two_ranks(const std::string& first, const std::string& second) { return first + "\n" + second + "\n"; }
const char* const kFirst = "0F0,0SEND_F0,0RECV_B0,0B0";
const char* const kSecond = "1RECV_F0,1F0,1B0,1SEND_B0";

TEST(PytorchCsv, CommunicationIsCheckedAtBothEnds) {
  EXPECT_TRUE(schedule_from_csv(two_ranks(kFirst, kSecond), "s.csv").has_communication());
  const auto bad = [](const std::string& first, const std::string& second) {
    return invalid(two_ranks(first, second));
  };
  EXPECT_EQ(bad("0F0,0RECV_B0,0B0", kSecond), "s.csv: row 1: 0SEND_F0 is missing");
  EXPECT_EQ(bad(kFirst, "1F0,1B0,1SEND_B0"), "s.csv: row 2: 1RECV_F0 is missing");
  EXPECT_EQ(bad("0SEND_F0,0F0,0RECV_B0,0B0", kSecond),
            "s.csv: row 1, cell 1: 0SEND_F0: precedes F(stage 0, mb 0), which produces it");
  EXPECT_EQ(bad("0F0,0SEND_F0,0B0,0RECV_B0", kSecond),
            "s.csv: row 1, cell 4: 0RECV_B0: follows B(stage 0, mb 0), which reads it");
  EXPECT_EQ(bad("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0", kSecond),
            "s.csv: row 1, cell 3: 0SEND_F0: occurs twice, first at row 1, cell 2");
  EXPECT_EQ(bad("0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0", kSecond),
            "s.csv: row 1, cell 5: 0SEND_B0: there is no stage before it");
  EXPECT_EQ(bad("0F0,0SEND_F0,1RECV_F0,0RECV_B0,0B0", kSecond),
            "s.csv: row 1, cell 3: 1RECV_F0: the stage is on rank 1");
  EXPECT_EQ(bad("0F0,0SEND_F9,0RECV_B0,0B0", kSecond), "s.csv: row 1, cell 2: 0SEND_F9: there are microbatches 0 to 0");
  EXPECT_EQ(bad("1UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0", kSecond),
            "s.csv: row 1, cell 1: 1UNSHARD: this rank does not have the stage");
  EXPECT_EQ(invalid("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n"),
            "s.csv: row 1, cell 2: 0SEND_F0: stage 1 is on the same rank");
}

// Messages have no tags: both ends need the same order, except for checks of communicators.
TEST(PytorchCsv, CrossedMessagesAreReadButNotLowered) {
  const Schedule schedule = schedule_from_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
      "s.csv");
  EXPECT_EQ(test::error_from<ScheduleError>([&] { lower(schedule); }),
            "row 2, cell 1: 1RECV_F1: the next message from rank 0 is 0SEND_F0, at row 1, cell 2: both must have "
            "the same order");
}

TEST(PytorchCsv, ShardingActionsKeepTheirPositions) {
  const std::string text = "0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n";
  EXPECT_EQ(schedule_to_csv(schedule_from_csv(text, "s.csv"), true), text);
  EXPECT_EQ(schedule_to_csv(schedule_from_csv(text, "s.csv")), "0F0,0B0\n");
}

// PyTorch's own artifact: test/distributed/pipelining/artifacts/zb1p_2rank_2stagep_compute.csv is interleaved-zb with
// two ranks, two chunks and eight microbatches, and ..._comms.csv is the output of `_merge_bw` and `_add_send_recv` for
// it. The golden file was written by Sluice and equals that artifact byte for byte, once its old dialect (B, W, BW) is
// read and written in the current one.
TEST(PytorchCsv, CommunicationIsWherePyTorchPutsIt) {
  const Schedule compute = test::make("interleaved-zb", {.p = 2, .m = 8, .v = 2});
  const std::string text = schedule_to_csv(with_communication(with_merged_backwards(compute)), true);
  test::expect_golden("model/schedule/golden/interleaved-zb-p2-m8-communication.csv", text);
}

TEST(PytorchCsv, TheOldDialectOfCommunicationIsRecognised) {
  EXPECT_EQ(
      schedule_to_csv(schedule_from_csv("0F0,0SEND_F0,0RECV_B0,0BW0\n1RECV_F0,1F0,1B0,1SEND_B0,1W0\n", "s.csv"), true),
      "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1I0,1SEND_B0,1W0\n");
  // BW alone also identifies the dialect.
  EXPECT_EQ(schedule_to_csv(schedule_from_csv("0F0,0BW0\n", "s.csv")), "0F0,0B0\n");
}

TEST(MergedBackwards, MergesAnIWithTheWThatFollowsIt) {
  const auto merged = [](const std::string& text) {
    return schedule_to_csv(with_merged_backwards(schedule_from_csv(text, "s.csv")));
  };
  EXPECT_EQ(merged("0F0,0F1,0I0,0W0,0I1,0W1\n"), "0F0,0F1,0B0,0B1\n");
  EXPECT_EQ(merged("0F0,0F1,0I0,0I1,0W0,0W1\n"), "0F0,0F1,0I0,0I1,0W0,0W1\n");
  EXPECT_EQ(merged("0F0,(0F1;0I0)OVERLAP_F_B,0W0,0I1,0W1\n"), "0F0,(0F1;0I0)OVERLAP_F_B,0W0,0B1\n");
}

}  // namespace
}  // namespace sluice::test

#include "model/schedule/pytorch_csv.h"

#include <gtest/gtest.h>

#include "model/errors.h"
#include "tests/support/all_schedules.h"
#include "tests/support/shapes.h"

namespace sluice {
namespace {

template <typename Error>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string wrong_input(const std::string& text) {
  return error_of<InputError>([&] { schedule_from_csv(text, "s.csv"); });
}

std::string invalid(const std::string& text) {
  return error_of<ScheduleError>([&] { schedule_from_csv(text, "s.csv"); });
}

TEST(PytorchCsv, ExportThenImportIsTheIdentityForEveryUnslicedFamily) {
  int count = 0;
  test::for_each_schedule({.ranks = 4, .microbatches = 8, .chunks = 3, .slices = 1}, [&](const Schedule& schedule) {
    if (schedule.num_routes() > 1 || schedule.weight_policy() != WeightPolicy::flush) {
      EXPECT_THROW(schedule_to_csv(schedule), InputError);
      return;
    }
    SCOPED_TRACE(test::describe(schedule));
    ++count;
    const Schedule back = schedule_from_csv(schedule_to_csv(schedule), "s.csv");
    EXPECT_EQ(back.routes(), schedule.routes());
    EXPECT_EQ(back.num_microbatches(), schedule.num_microbatches());
    EXPECT_EQ(back.parts().orders, schedule.parts().orders);
  });
  EXPECT_GT(count, 200);
  EXPECT_EQ(error_of<InputError>([] { schedule_to_csv(test::make("seq1f1b", {.p = 2, .m = 2, .k = 2})); }),
            "seq1f1b: PyTorch's CSV has no slices of a sequence");
}

TEST(PytorchCsv, RanksWithoutOpsAreRefused) {
  ScheduleParts parts{.family = "custom", .num_ranks = 2, .routes = {{0}}};
  parts.orders = {{{.kind = OpKind::F}, {.kind = OpKind::B}}, {}};
  EXPECT_EQ(error_of<InputError>([&] { schedule_to_csv(Schedule(parts)); }),
            "custom: PyTorch's CSV has no ranks without ops");
}

TEST(PytorchCsv, IsWrittenAsPyTorchWritesIt) {
  // 1F1B on two ranks: rank 0 warms up with one forward.
  EXPECT_EQ(schedule_to_csv(test::make("1f1b", {.p = 2, .m = 2})), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(PytorchCsv, IdleStepsLineEndsAndQuotesDoNotMatter) {
  const Schedule schedule = schedule_from_csv("0F0,0F1,,\"0B0\",,0B1\r\n,1F0, 1B0 ,1F1,1B1,\r\n", "s.csv");
  EXPECT_EQ(schedule_to_csv(schedule), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(PytorchCsv, ReadsJointBlocks) {
  const std::string text = "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n";
  const Schedule schedule = schedule_from_csv(text, "s.csv");
  EXPECT_TRUE(schedule.has_joint_blocks());
  EXPECT_EQ(schedule_to_csv(schedule), text);
}

TEST(PytorchCsv, RecognisesTheDialectBeforeLate2024) {
  // There B was the input gradient, W the weight gradient, BW both.
  EXPECT_EQ(schedule_to_csv(schedule_from_csv("0F0,0F1,0B0,0W0,0BW1\n", "s.csv")), "0F0,0F1,0I0,0W0,0B1\n");
  // With an I in it, B is the whole backward.
  EXPECT_EQ(schedule_to_csv(schedule_from_csv("0F0,0F1,0I0,0W0,0B1\n", "s.csv")), "0F0,0F1,0I0,0W0,0B1\n");
}

TEST(PytorchCsv, ErrorsNameRowAndCell) {
  const std::string rule =
      ": expected an op such as 2F0, 1I3, 0W2 or 3B1, a block (0F1;3B0)OVERLAP_F_B, or nothing, got ";
  EXPECT_EQ(wrong_input("0F0,0B0\n1F0,,1X0\n"), "s.csv: row 2, cell 3" + rule + "'1X0'");
  EXPECT_EQ(wrong_input("0F0junk,0B0\n"), "s.csv: row 1, cell 1" + rule + "'0F0junk'");
  EXPECT_EQ(wrong_input("0F0.1,0B0\n"), "s.csv: row 1, cell 1" + rule + "'0F0.1'");
  EXPECT_EQ(wrong_input("-1F0,0B0\n"), "s.csv: row 1, cell 1" + rule + "'-1F0'");
  EXPECT_EQ(wrong_input("(0F0;0B0)\n"), "s.csv: row 1, cell 1" + rule + "'(0F0;0B0)'");
  EXPECT_EQ(wrong_input("0F99999999999\n"), "s.csv: row 1, cell 1" + rule + "'0F99999999999'");
  EXPECT_EQ(wrong_input("0F0,0SEND_F0,0B0\n"),
            "s.csv: row 1, cell 2: '0SEND_F0' is a communication op: give the compute-only file");
  EXPECT_EQ(wrong_input(""), "s.csv: expected a row for each rank, with ops");
  // Written back, the second row would be the empty line that may end a file.
  EXPECT_EQ(wrong_input("0F0,0B0\n,\n"), "s.csv: row 2: expected ops");
  EXPECT_EQ(wrong_input("\n0F0,0B0\n"), "s.csv: row 1: expected ops");
  EXPECT_EQ(wrong_input("32766F59999999\n"), "s.csv: 32767 stages and 60000000 microbatches: more than 60000000 ops");
}

TEST(PytorchCsv, IsCheckedMoreStrictlyThanByPyTorch) {
  EXPECT_EQ(invalid("0F0,0F0,0B0\n"), "s.csv: rank 0, position 1: F(stage 0, mb 0): occurs twice");
  EXPECT_EQ(invalid("0F0,0F1,0B0\n"), "s.csv: rank 0: B(stage 0, mb 1) is missing");
  EXPECT_EQ(invalid("0F0,0B0\n0F1,0B1\n"), "s.csv: stage 0 stands in row 1 and in row 2");
  EXPECT_EQ(invalid("0F0,0B0\n2F0,2B0\n"), "s.csv: no row has stage 1");
}

}  // namespace
}  // namespace sluice

// Runs all inputs for which a fuzzer found a bug, and all seeds, through their targets, without a fuzzer. A target
// throws on any unexpected result.

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <vector>

#include "model/input/files.h"
#include "tests/fuzz/targets.h"

namespace sluice::test::fuzz {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> inputs_of(std::string_view target) {
  std::vector<fs::path> inputs;
  for (const char* folder : {"found", "corpus"}) {
    const fs::path path = fs::path(SLUICE_SOURCE_DIR "/tests/fuzz") / folder / target;
    if (!fs::exists(path)) continue;  // no bugs found with this target
    for (const auto& entry : fs::directory_iterator(path)) inputs.push_back(entry.path());
  }
  return inputs;
}

class Replay : public ::testing::TestWithParam<Target> {};

TEST_P(Replay, PassesInTime) {
  constexpr double kMaxSeconds = 2;
  const std::vector<fs::path> inputs = inputs_of(GetParam().name);
  EXPECT_GT(inputs.size(), 1U) << "no seeds in tests/fuzz/corpus";
  for (const fs::path& input : inputs) {
    SCOPED_TRACE(input);
    const std::clock_t begin = std::clock();
    EXPECT_NO_THROW(GetParam().run(read_file(input)));
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, kMaxSeconds);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Replay, ::testing::ValuesIn(kTargets),
                         [](const auto& param) { return std::string(param.param.name); });

// Checks accepts() and require(), on which all targets depend.
TEST(Targets, RejectionAcceptanceAndOtherErrorsDiffer) {
  EXPECT_TRUE(accepts([] {}));
  EXPECT_FALSE(accepts([] { throw InputError("x: no"); }));
  EXPECT_FALSE(accepts([] { throw ScheduleError("x: no"); }));
  EXPECT_THROW(accepts([] { throw InputError(""); }), std::logic_error);
  EXPECT_THROW(accepts([] { throw std::out_of_range("x"); }), std::out_of_range);
  EXPECT_THROW(require(false, "x"), std::logic_error);
}

}  // namespace
}  // namespace sluice::test::fuzz

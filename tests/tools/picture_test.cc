// Figures written by the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/svg_elements.h"

namespace sluice::test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using std::string_literals::operator""s;

std::vector<std::string> texts(const std::string& svg) {
  std::vector<std::string> out;
  for (const SvgElement& element : svg_elements(svg)) {
    if (element.name == "text") out.push_back(element.text);
  }
  return out;
}

std::string picture(const std::string& flags) {
  const TemporaryFolder folder;
  const CommandResult result = run_sluice(words("simulate " + flags + " --svg " + folder.path("picture.svg")));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out, "");
  return read_file(folder.path("picture.svg"));
}

constexpr const char* kSmallPicture = "--pp 4 --microbatches 8 --uniform f=1,b=1,w=1 ";

TEST(Picture, DrawsOneRunOrTwo) {
  EXPECT_THAT(texts(picture(std::string(kSmallPicture) + "--schedule 1f1b")), Contains("makespan 33 s, bubble 27.3 %"));
  // The closed forms: (8 + 3) 3 s, and zb-h1 6 s less.
  const auto both = texts(picture(std::string(kSmallPicture) + "--schedule 1f1b --compare-with zb-h1"));
  EXPECT_THAT(both, Contains("makespan 33 s, bubble 27.3 %"));
  EXPECT_THAT(both, Contains("makespan 27 s (-18.2 %), bubble 11.1 %"));
  EXPECT_EQ(read_file(SLUICE_SOURCE_DIR "/docs/figures/1f1b-above-zb-v.svg"),
            picture(std::string(kSmallPicture) + "--schedule 1f1b --compare-with zb-v"))
      << "the README's figure is another; make it again by the command that stands above it";
}

TEST(Picture, OtherFormatsAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.path("a.pdf");
  const CommandResult result = run_sluice(words("simulate " + std::string(kSmallPicture) + "--svg " + path));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--svg: " + path + ": expected another name than *.pdf: write " +
                                    folder.path("a.svg") + " and convert it, with 'rsvg-convert -f pdf -o "));
  EXPECT_EQ(folder.num_files(), 0);
}

TEST(Picture, DrawsMemoryWithAModel) {
  const std::string example = SLUICE_SOURCE_DIR "/examples/llama3-8b-zbv-h100.json";
  const auto all = texts(picture(example + " --svg-width 336 --svg-transfers"));
  EXPECT_THAT(all, Contains("zb-v, 8 ranks x 2 chunks, 32 microbatches"));
  EXPECT_THAT(all, Contains(HasSubstr("memory (GiB): peak on rank")));
  EXPECT_THAT(all, Contains("communication"));
  EXPECT_EQ(svg_elements(picture(example + " --svg-width 336"))[0].get("width"), "336");
}

TEST(Picture, DrawsACurveOfASweep) {
  const auto all = texts(picture(std::string(kSmallPicture) + "--sweep schedule=gpipe,1f1b,hanayo"));
  for (const char* text : {"schedule", "iteration (s)", "gpipe", "1f1b", "hanayo", "invalid"}) {
    EXPECT_THAT(all, Contains(text));  // hanayo needs as many microbatches as ranks
  }
}

TEST(Picture, TitleAndMemoryFollowTheFlags) {
  const auto with = [](const std::string& flags, const std::string& title) {
    const TemporaryFolder folder;
    std::vector<std::string> arguments = words("simulate " + std::string(kSmallPicture) + flags);
    for (const std::string& each : {"--svg-title"s, title, "--svg"s, folder.path("p.svg")}) arguments.push_back(each);
    const CommandResult result = run_sluice(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return texts(read_file(folder.path("p.svg")));
  };
  EXPECT_EQ(with("--schedule 1f1b", "a schedule")[1], "a schedule");
  EXPECT_EQ(with("--schedule 1f1b", "")[0], "rank 0");
  EXPECT_EQ(texts(picture(std::string(kSmallPicture) + "--schedule 1f1b --svg-title="))[0], "rank 0");
  EXPECT_EQ(with("--schedule 1f1b --compare-with zb-h1", "")[0], "rank 0");
  EXPECT_EQ(with("--sweep schedule=gpipe,1f1b", "two schedules")[0], "two schedules");
  EXPECT_THAT(with("--schedule 1f1b --svg-no-memory", "x"), Not(Contains(HasSubstr("in flight"))));
  EXPECT_THAT(with("--schedule 1f1b", "x"), Contains(HasSubstr("in flight")));
}

TEST(Picture, WidthAppliesToCurves) {
  const std::string sweep = std::string(kSmallPicture) + "--sweep schedule=gpipe,1f1b";
  EXPECT_EQ(svg_elements(picture(sweep))[0].get("width"), "560");
  EXPECT_EQ(svg_elements(picture(sweep + " --svg-width 336"))[0].get("width"), "336");
}

TEST(Picture, InvalidFlagsAreRejected) {
  const auto error = [](const std::string& flags) {
    const CommandResult result = run_sluice(words("simulate " + (kSmallPicture + flags)));
    EXPECT_EQ(result.exit_code, 2) << flags;
    return result.err;
  };
  for (const char* flag : {"--svg-transfers", "--svg-no-memory", "--svg-title x", "--svg-width 400"}) {
    EXPECT_EQ(error(flag), "sluice: simulate: " + words(flag)[0] + " needs --svg\n");
  }
  EXPECT_THAT(error("--sweep schedule=gpipe,1f1b --svg x.svg --svg-no-memory"), HasSubstr("--sweep excludes"));
  EXPECT_THAT(error("--svg x.svg --svg-width 100"), HasSubstr("--svg-width"));
  const TemporaryFolder folder;
  EXPECT_THAT(error("--svg " + folder.path("missing/x.svg")), HasSubstr("missing"));
  EXPECT_EQ(folder.num_files(), 0);
}

}  // namespace
}  // namespace sluice::test

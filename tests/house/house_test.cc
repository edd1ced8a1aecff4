// The rules of the house that a machine can see: who includes whom, what a header begins with, how long a file gets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kMaxLines = 700;

// What each folder may include, as prefixes of a path from the root of the project.
const std::map<std::string, std::vector<std::string>, std::less<>> kMayInclude = {
    {"model", {"model/"}},
    {"sim", {"sim/", "model/"}},
    {"kernels", {"kernels/", "model/workload/", "model/errors.h"}},
    {"exec", {"exec/", "kernels/", "model/"}},
    {"traces", {"traces/", "model/"}},
    {"tools", {"tools/", "traces/", "exec/", "kernels/", "sim/", "model/"}},
    {"tests", {"tests/", "benchmarks/", "tools/", "traces/", "exec/", "kernels/", "sim/", "model/"}},
    {"benchmarks", {"benchmarks/", "tests/", "tools/", "traces/", "exec/", "kernels/", "sim/", "model/"}},
};

// The path between quotes, if `line` is an #include "..." directive.
std::string_view quoted_include(std::string_view line) {
  const auto skip_blanks = [&line] { line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size())); };
  skip_blanks();
  if (!line.starts_with('#')) return {};
  line.remove_prefix(1);
  skip_blanks();
  if (!line.starts_with("include")) return {};
  line.remove_prefix(7);
  skip_blanks();
  if (!line.starts_with('"')) return {};
  line.remove_prefix(1);
  return line.substr(0, line.find('"'));
}

// Every breach of the rules by a file with this path (from the root) and content.
std::vector<std::string> breaches(const std::string& path, const std::string& content) {
  std::vector<std::string> found;
  const std::vector<std::string>& allowed = kMayInclude.at(path.substr(0, path.find('/')));
  std::istringstream lines(content);
  std::string line;
  int number = 0;
  bool pragma_once = false;
  while (std::getline(lines, line)) {
    ++number;
    pragma_once = pragma_once || line == "#pragma once";
    const std::string_view target = quoted_include(line);
    if (target.empty()) continue;
    if (std::none_of(allowed.begin(), allowed.end(), [&](const std::string& a) { return target.starts_with(a); })) {
      found.push_back(path + ":" + std::to_string(number) + ": may not include " + std::string(target));
    }
  }
  if ((path.ends_with(".h") || path.ends_with(".cuh")) && !pragma_once) found.push_back(path + ": no #pragma once");
  if (number > kMaxLines) found.push_back(path + ": " + std::to_string(number) + " lines, split it");
  return found;
}

TEST(House, EveryFileKeepsTheRules) {
  const std::set<std::string> kinds = {".h", ".cc", ".cu", ".cuh"};
  std::vector<std::string> found;
  int files = 0;
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(SLUICE_SOURCE_DIR) / folder)) {
      if (!entry.is_regular_file() || !kinds.contains(entry.path().extension().string())) continue;
      ++files;
      std::ostringstream content;
      content << std::ifstream(entry.path()).rdbuf();
      const std::string path = fs::relative(entry.path(), SLUICE_SOURCE_DIR).generic_string();
      for (std::string& breach : breaches(path, content.str())) found.push_back(std::move(breach));
    }
  }
  EXPECT_GT(files, 10) << "the sources were not found";
  EXPECT_THAT(found, IsEmpty());
}

TEST(House, IncludesUpTheListAreCaught) {
  EXPECT_THAT(breaches("model/a.cc", "#include \"sim/engine.h\"\n"),
              ElementsAre("model/a.cc:1: may not include sim/engine.h"));
  EXPECT_THAT(breaches("sim/a.cc", "\n  #  include \"exec/run.h\"\n"),
              ElementsAre("sim/a.cc:2: may not include exec/run.h"));
  EXPECT_THAT(breaches("exec/a.cc", "#include \"sim/engine.h\"\n"), ElementsAre(HasSubstr("sim/engine.h")));
  EXPECT_THAT(breaches("traces/a.cc", "#include \"sim/engine.h\"\n"), ElementsAre(HasSubstr("sim/engine.h")));
  EXPECT_THAT(breaches("kernels/a.cu", "#include \"model/schedule/op.h\"\n"),
              ElementsAre(HasSubstr("model/schedule/op.h")));
  EXPECT_THAT(breaches("model/a.cc", "#include \"op.h\"\n"), ElementsAre(HasSubstr("op.h")));  // not from the root
  EXPECT_THAT(breaches("tools/a.cc", "#include \"tests/support/x.h\"\n"), ElementsAre(HasSubstr("tests/support/x.h")));
}

TEST(House, LawfulIncludesPass) {
  EXPECT_THAT(breaches("sim/a.cc", "#include \"model/units.h\"\n#include <vector>\n// #include \"exec/run.h\"\n"),
              IsEmpty());
  EXPECT_THAT(breaches("kernels/a.h", "#pragma once\n#include \"model/workload/shape.h\"\n"), IsEmpty());
}

TEST(House, HeadersWithoutGuardAndLongFilesAreCaught) {
  EXPECT_THAT(breaches("sim/a.h", "// pragma once\n"), ElementsAre("sim/a.h: no #pragma once"));
  EXPECT_THAT(breaches("sim/a.cc", std::string(kMaxLines, '\n')), IsEmpty());
  EXPECT_THAT(breaches("sim/a.cc", std::string(kMaxLines + 1, '\n')), ElementsAre("sim/a.cc: 701 lines, split it"));
}

}  // namespace

#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "model/input/files.h"

namespace sluice::test {

// Compares `actual` with the golden file `name`, a path relative to tests/. With SLUICE_UPDATE_GOLDEN set it writes the
// file instead; review the difference before committing it.
inline void expect_golden(const std::string& name, const std::string& actual) {
  const std::string path = std::string(SLUICE_SOURCE_DIR) + "/tests/" + name;
  if (std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) {
    write_file_whole(path, actual);
    return;
  }
  ASSERT_TRUE(std::filesystem::exists(path)) << path;
  EXPECT_EQ(actual, read_file(path)) << "differs from " << path << " (SLUICE_UPDATE_GOLDEN=1 rewrites it)";
}

// Returns whether exhaustive tests use fewer cases: unless SLUICE_TEST_SCOPE=all (tools/test.sh --all).
inline bool small_scope() {
  const char* scope = std::getenv("SLUICE_TEST_SCOPE");
  return scope == nullptr || std::string(scope) != "all";
}

// Returns every fourth of the cases of a test in the small scope, otherwise all.
template <class Cases>
auto in_scope(const Cases& cases) {
  std::vector<std::decay_t<decltype(*std::begin(cases))>> out;
  std::size_t i = 0;
  for (const auto& one : cases) {
    if (i++ % 4 == 0 || !small_scope()) out.push_back(one);
  }
  return out;
}

}  // namespace sluice::test

#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "model/input/files.h"

namespace sluice::test {

// Compares with the file `name`, a path from the folder of tests. With SLUICE_UPDATE_GOLDEN set it writes the file
// instead: read the difference before you commit it.
inline void expect_golden(const std::string& name, const std::string& actual) {
  const std::string path = std::string(SLUICE_SOURCE_DIR) + "/tests/" + name;
  if (std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) {
    write_file_whole(path, actual);
    return;
  }
  ASSERT_TRUE(std::filesystem::exists(path)) << path;
  EXPECT_EQ(actual, read_file(path)) << "differs from " << path << " (SLUICE_UPDATE_GOLDEN=1 rewrites it)";
}

// Whether tests that go through many cases should take fewer of them: SLUICE_TEST_SCOPE=small, which the sanitizers'
// preset sets.
inline bool small_scope() {
  const char* scope = std::getenv("SLUICE_TEST_SCOPE");
  return scope != nullptr && std::string(scope) == "small";
}

}  // namespace sluice::test

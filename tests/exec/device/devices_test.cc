// Device requests, and the provider of emulated devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "exec/device/dynamic_library.h"
#include "exec/device/provider.h"
#include "kernels/emulation/device.h"
#include "model/errors.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DeviceRequest, IsParsedAndPrinted) {
  EXPECT_EQ(parse_devices("gpu").kind, DeviceRequest::gpu);
  EXPECT_EQ(parse_devices("gpu").count, 0);
  EXPECT_EQ(parse_devices("gpu:2").count, 2);
  EXPECT_EQ(parse_devices("green:4").kind, DeviceRequest::green);
  EXPECT_EQ(parse_devices("green:4").count, 4);
  EXPECT_EQ(parse_devices("stream:1").kind, DeviceRequest::stream);
  for (const char* const text : {"gpu", "gpu:2", "green:4", "stream:1", "green:1024"}) {
    EXPECT_EQ(to_string(parse_devices(text)), text);
  }
}

TEST(DeviceRequest, OtherTextIsRejected) {
  for (const char* const text :
       {"", "cpu", "gpus", "gpu:", "gpu:0", "gpu:-1", "gpu:2x", "gpu: 2", "green", "stream", "green:1025", "gpu:2:3"}) {
    EXPECT_THAT(test::error_from([&] { parse_devices(text); }), HasSubstr(std::string("'") + text + "'"));
  }
}

TEST(DeviceRequest, ProcessesOfAHostUseDifferentGpus) {
  EXPECT_EQ(ordinal_of(3, 8), 3);
  EXPECT_EQ(ordinal_of(3, 1), 0);  // the launcher shows it its own alone
  EXPECT_EQ(ordinal_of(5, 4), 1);  // two processes a GPU
}

std::vector<int> ordinals(const std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<int> out;
  for (const auto& device : devices) out.push_back(device->ordinal());
  return out;
}

TEST(EmulatedDevices, OpenTheRequestedNumber) {
  const DeviceProvider* const provider = device_provider();
  ASSERT_NE(provider, nullptr);
  EXPECT_EQ(why_no_devices(), "");
  EXPECT_THAT(ordinals(provider->open(parse_devices("gpu:3"))), ElementsAre(0, 1, 2));
  EXPECT_THAT(ordinals(provider->open(parse_devices("green:3"))), ElementsAre(0, 0, 0));
  EXPECT_EQ(static_cast<int>(provider->open(parse_devices("gpu")).size()), provider->num_devices());
  EXPECT_EQ(static_cast<int>(provider->devices().size()), provider->num_devices());
  const std::vector<int> given = {5, 2};
  EXPECT_THAT(ordinals(provider->open(parse_devices("gpu"), given)), ElementsAre(5, 2));
  EXPECT_THAT(ordinals(provider->open(parse_devices("gpu:1"), given)), ElementsAre(5));
  EXPECT_THAT(ordinals(provider->open(parse_devices("stream:2"), given)), ElementsAre(5, 5));
  EXPECT_THROW(provider->open(parse_devices("gpu:3"), given), InputError);
  EXPECT_THROW(provider->open(parse_devices("gpu:1"), std::array{99}), InputError);
}

TEST(EmulatedDevices, WithoutBfloat16AreRejected) {
  const auto turing = emulation::make_device({.name = "an old one", .compute_capability = 75});
  const auto ampere = emulation::make_device({.compute_capability = 80});
  EXPECT_NO_THROW(require_bfloat16(*ampere));
  EXPECT_EQ(test::error_from([&] { require_bfloat16(*turing); }),
            "an old one is sm_75: bfloat16 needs sm_80 or later; use float16, which runs with a loss scale");
}

TEST(DynamicLibrary, MissingLibraryIsNamed) {
  constexpr std::array<const char*, 2> kNames = {"libsluice-has-none.so.2", "libsluice-has-none.so.1"};
  const std::vector<std::string> folders = {"/nowhere"};
  EXPECT_THAT(test::error_from<DeviceError>([&] { const DynamicLibrary library("Nothing", kNames, folders); }),
              HasSubstr("Nothing not found: libsluice-has-none.so.2"));
}

// Python environments with a library in a package nvidia-nothing.
class PythonLibraries : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-python-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    for (const char* const variable : {"VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH"}) unsetenv(variable);
    setenv("PATH", "/nowhere", 1);
    setenv("HOME", "/nowhere", 1);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string environment(const std::string& name) const {
    const std::filesystem::path folder = root_ / name;
    const std::filesystem::path libraries = folder / kLibraries;
    create_directories(libraries);
    create_directories(folder / "bin");
    const DynamicLibrary mathematics("the mathematics library", std::array{"libm.so.6"}, {});
    copy_file(mathematics.path(), libraries / "libsluice-wheel.so.1");
    return folder.string();
  }
  static std::string found() {
    return DynamicLibrary("a wheel", std::array{"libsluice-wheel.so.1"}, python_library_folders()).path();
  }

  static constexpr const char* kLibraries = "lib/python3.11/site-packages/nvidia/nothing/lib";
  std::filesystem::path root_;
};

TEST_F(PythonLibraries, AreFoundInTheActiveEnvironment) {
  EXPECT_THROW(found(), DeviceError);
  for (const char* const variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string folder = environment(variable);
    setenv(variable, folder.c_str(), 1);
    EXPECT_EQ(found(), folder + "/" + kLibraries + "/libsluice-wheel.so.1");
    unsetenv(variable);
  }
  const std::string home = environment("home/.local");
  setenv("HOME", (root_ / "home").c_str(), 1);
  EXPECT_EQ(found(), home + "/" + kLibraries + "/libsluice-wheel.so.1");
}

TEST_F(PythonLibraries, AreFoundBesideThePythonOnThePath) {
  const std::string folder = environment("a [strange] name");
  setenv("PATH", ("relative::/nowhere:" + folder + "/bin").c_str(), 1);
  EXPECT_THROW(found(), DeviceError);
  std::filesystem::create_symlink("/bin/sh", folder + "/bin/python3");
  EXPECT_EQ(found(), folder + "/" + kLibraries + "/libsluice-wheel.so.1");
}

TEST_F(PythonLibraries, AreFoundWhereThePythonOnThePathIsALinkTo) {
  const std::string folder = environment("environment");
  std::filesystem::create_symlink("/bin/sh", folder + "/bin/python3.11");
  std::filesystem::create_symlink("python3.11", folder + "/bin/python3");
  create_directories(root_ / "bin");
  std::filesystem::create_symlink("../environment/bin/python3", root_ / "bin/python3");
  setenv("PATH", (root_ / "bin").c_str(), 1);
  EXPECT_EQ(found(), folder + "/" + kLibraries + "/libsluice-wheel.so.1");
  EXPECT_EQ(python_library_folders().size(), 1U);  // not once per link
}

// pip install --target FOLDER
TEST_F(PythonLibraries, AreFoundInPythonPath) {
  const std::string folder = environment("environment") + "/lib/python3.11/site-packages";
  setenv("PYTHONPATH", ("relative:/nowhere:" + folder).c_str(), 1);
  EXPECT_EQ(found(), folder + "/nvidia/nothing/lib/libsluice-wheel.so.1");
}

// The current folder may belong to someone else.
TEST_F(PythonLibraries, AreNotLookedForInRelativeFolders) {
  const std::string folder = environment("environment");
  const std::filesystem::path before = std::filesystem::current_path();
  current_path(std::filesystem::path(folder));
  setenv("VIRTUAL_ENV", ".", 1);
  setenv("CONDA_PREFIX", "", 1);
  setenv("PATH", "bin:", 1);
  setenv("PYTHONPATH", "lib/python3.11/site-packages", 1);
  std::filesystem::create_symlink("/bin/sh", "bin/python3");
  EXPECT_THROW(found(), DeviceError);
  current_path(before);
}

TEST(DynamicLibrary, FindsSymbols) {
  constexpr std::array<const char*, 1> kNames = {"libm.so.6"};
  const DynamicLibrary library("the mathematics library", kNames, {});
  double (*root)(double) = nullptr;
  library.find(root, "sqrt");
  EXPECT_EQ(root(9.0), 3.0);
  EXPECT_THAT(library.path(), HasSubstr("/libm.so.6"));
  library.find_if_there(root, "sluice_has_none");
  EXPECT_EQ(root, nullptr);
  EXPECT_THAT(test::error_from<DeviceError>([&] { library.find(root, "sluice_has_none"); }),
              HasSubstr("the mathematics library has no symbol sluice_has_none"));
}

}  // namespace
}  // namespace sluice::test

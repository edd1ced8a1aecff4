// `sluice doctor` on the command line, with and without a GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// It takes memory and starts a thread per core. (A program with the library inside, or without any, loads none.)
TEST(Doctor, OpenBlasIsLoadedOnlyByCommandsThatMultiply) {
  const auto loads = [](const std::vector<std::string>& arguments) {
    return run_sluice(arguments, {"LD_DEBUG=files"}).err.find("libopenblas") != std::string::npos;
  };
  EXPECT_FALSE(loads({"simulate", "--schedule", "1f1b", "--pp", "2", "--microbatches", "2"}));
  EXPECT_FALSE(loads({"schedules"}));
  const std::string blas = json::parse(run_sluice({"doctor", "--json"}).out).at("cpu").at("blas").get<std::string>();
  EXPECT_TRUE(loads({"doctor"}) || blas.starts_with("Eigen"));
}

TEST(Doctor, PrintsOneJsonDocument) {
  const auto began = std::chrono::steady_clock::now();
  const json document = test::json_of({"doctor", "--json"});
  EXPECT_EQ(document.at("schema"), "sluice.doctor/1");
  EXPECT_GE(document.at("cpu").at("cores").get<int>(), 1);
  EXPECT_GT(document.at("cpu").at("memory_bytes").get<std::int64_t>(), 0);
  EXPECT_THAT(document.at("cpu").at("blas").get<std::string>(), ContainsRegex("OpenBLAS|Eigen"));
  // Either GPUs, or one line with the reason why there is none.
  const json& why = document.at("cuda").at("why_not");
  EXPECT_EQ(document.at("devices").empty(), why.is_string()) << why;
  if (why.is_string()) {
    EXPECT_THAT(why.get<std::string>(), Not(IsEmpty()));
    EXPECT_THAT(why.get<std::string>(), Not(HasSubstr("\n")));
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(2));
  }
  const json& link = document.at("links").back();
  EXPECT_EQ(link.at("from"), "thread");
  EXPECT_GT(link.at("bytes_per_s").get<double>(), 1e6);
}

// Kernels for AVX2 on a CPU with AVX-512; the rest depends on the machine.
TEST(Doctor, AdvisesFasterKernels) {
  if (!std::ifstream("/proc/cpuinfo")) GTEST_SKIP() << "SKIPPED: there is no /proc/cpuinfo";
  const json slow = json::parse(run_sluice({"doctor", "--json"}, {"OPENBLAS_CORETYPE=Haswell"}).out).at("cpu");
  const json fast = json::parse(run_sluice({"doctor", "--json"}, {"OPENBLAS_CORETYPE=SkylakeX"}).out).at("cpu");
  EXPECT_TRUE(fast.at("faster_coretype").is_null()) << fast;
  std::stringstream cpuinfo;
  cpuinfo << std::ifstream("/proc/cpuinfo").rdbuf();
  const bool dynamic = slow.at("blas").get<std::string>().find("DYNAMIC_ARCH") != std::string::npos;
  const bool advised = dynamic && cpuinfo.str().find(" avx512vl") != std::string::npos;
  EXPECT_EQ(slow.at("faster_coretype"), advised ? json("SkylakeX") : json()) << slow;
  const std::string run = test::output_of({"run", "--steps", "1"}, {"OPENBLAS_CORETYPE=Haswell"});
  EXPECT_EQ(run.find("OPENBLAS_CORETYPE=SkylakeX is faster") != std::string::npos, advised) << run;
}

TEST(Doctor, AdviceDependsOnTheKernelsAndTheCpu) {
  const std::string config = "OpenBLAS 0.3.21 DYNAMIC_ARCH NO_AFFINITY Haswell MAX_THREADS=64";
  EXPECT_EQ(cpu::faster_blas_kernels("Haswell", config, true), "SkylakeX");
  EXPECT_EQ(cpu::faster_blas_kernels("zen", config, true), "SkylakeX");
  EXPECT_EQ(cpu::faster_blas_kernels("Haswell", config, false), "");
  EXPECT_EQ(cpu::faster_blas_kernels("Cooperlake", config, true), "");
  EXPECT_EQ(cpu::faster_blas_kernels("Haswell", "OpenBLAS 0.3.21 Haswell", true), "");  // built for one CPU
}

TEST(Doctor, ReportsWhyThereIsNoGpuInOneLine) {
  const CommandResult result = run_sluice({"doctor"}, {"CUDA_VISIBLE_DEVICES="});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("GPUs +none: [a-zA-Z].*\n"));
  EXPECT_THAT(result.out, ContainsRegex("launcher +none: one process\n"));
  EXPECT_THAT(result.err, IsEmpty());
}

// A Python environment with a cuDNN that is none.
TEST(Doctor, ReportsLibrariesAndWhereTheyWereSearched) {
  const TemporaryFolder folder;
  const std::string cudnn = folder.path("python/lib/python3.12/site-packages/nvidia/cudnn/lib");
  std::filesystem::create_directories(cudnn);
  std::ofstream(cudnn + "/libcudnn.so.9") << "not a library";
  const std::vector<std::string> environment = {"VIRTUAL_ENV=" + folder.path("python"), "CUDA_HOME=relative"};
  const json cuda = json::parse(run_sluice({"doctor", "--json"}, environment).out).at("cuda");
  if (cuda.at("architectures").is_null()) GTEST_SKIP() << "SKIPPED: this build has no CUDA kernels";
  EXPECT_THAT(cuda.at("searched").dump(), HasSubstr('"' + cudnn + '"'));
  EXPECT_THAT(cuda.at("searched").dump(), Not(HasSubstr("relative")));
  const std::string why = "cuDNN not found: " + cudnn + "/libcudnn.so.9: ";
  for (const json& each : cuda.at("software")) {
    if (each.at("name") != "cuDNN") continue;
    EXPECT_TRUE(each.at("version").is_null());
    EXPECT_THAT(each.at("detail").get<std::string>(), HasSubstr(why));
  }
  const std::string text = test::output_of({"doctor"}, environment);
  EXPECT_THAT(text, HasSubstr("\ncuDNN         no: " + why));
  EXPECT_THAT(text, HasSubstr("\nsearched      the loader's folders (LD_LIBRARY_PATH)\n"));
  EXPECT_THAT(text, HasSubstr("\n              " + cudnn + "\n"));
}

// A cuDNN that loads, on the loader's path, and the libraries that it needs, one after the other, in a Python
// environment.
TEST(Doctor, ReportsCudnnAndItsCompanions) {
  const TemporaryFolder folder;
  const std::string loader = folder.path("loader");
  std::filesystem::create_directories(loader);
  std::filesystem::copy_file(SLUICE_STUB_CUDNN, loader + "/libcudnn.so.9");
  const std::vector<std::string> environment = {"VIRTUAL_ENV=" + folder.path("python"), "LD_LIBRARY_PATH=" + loader};
  const auto cudnn = [&] {
    const json document = json::parse(run_sluice({"doctor", "--json"}, environment).out);
    for (const json& each : document.at("cuda").at("software")) {
      if (each.at("name") == "cuDNN") return each;
    }
    return json();
  };
  json found = cudnn();
  if (found.is_null()) GTEST_SKIP() << "SKIPPED: this build has no CUDA kernels";
  const auto add = [&](const std::string& package, const std::string& library) {
    const std::string packages = folder.path("python/lib/python3.12/site-packages/nvidia/" + package + "/lib");
    std::filesystem::create_directories(packages);
    std::filesystem::copy_file(SLUICE_STUB_CUDNN, packages + "/" + library);
  };
  EXPECT_TRUE(found.at("version").is_null());
  EXPECT_THAT(found.at("detail").get<std::string>(), HasSubstr("cuBLASLt for cuDNN not found: libcublasLt.so.99: "));
  EXPECT_EQ(found.at("optional"), "--attention cudnn");
  add("cublas", "libcublasLt.so.99");
  found = cudnn();
  EXPECT_TRUE(found.at("version").is_null());
  EXPECT_THAT(found.at("detail").get<std::string>(), HasSubstr("NVRTC for cuDNN not found: libnvrtc.so.99: "));
  EXPECT_THAT(run_sluice({"doctor"}, environment).out,
              ContainsRegex("\ncuDNN         no: NVRTC for cuDNN .*; optional: --attention cudnn\n"));
  add("cuda_nvrtc", "libnvrtc.so.99");
  found = cudnn();
  EXPECT_EQ(found.at("version"), "9.12.0");
  EXPECT_EQ(found.at("detail"), loader + "/libcudnn.so.9");
  EXPECT_THAT(run_sluice({"doctor"}, environment).out,
              HasSubstr("\ncuDNN         9.12.0 (" + loader + "/libcudnn.so.9); optional: --attention cudnn\n"));
}

TEST(Doctor, ReportsWhatIsOptional) {
  const json document = json::parse(run_sluice({"doctor", "--json"}).out);
  if (document.at("cuda").at("architectures").is_null()) GTEST_SKIP() << "SKIPPED: this build has no CUDA kernels";
  for (const json& each : document.at("cuda").at("software")) {
    const json expected = each.at("name") == "cuDNN" ? json("--attention cudnn") : json();
    EXPECT_EQ(each.at("optional"), expected) << each;
  }
}

TEST(Doctor, ReportsTheLauncherVariables) {
  const std::string result =
      test::output_of({"doctor"}, {"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "MASTER_ADDR=here"});
  EXPECT_THAT(result, HasSubstr("torchrun: rank 3 of 8, local rank 1\n"));
  EXPECT_THAT(result, HasSubstr("MASTER_ADDR=here\n"));
  const nlohmann::json wrong = test::json_of({"doctor", "--json"}, {"RANK=8", "WORLD_SIZE=8", "LOCAL_RANK=1"});
  EXPECT_EQ(wrong.at("launcher").at("error"), "RANK: expected a number below 8 (WORLD_SIZE), got 8");
}

}  // namespace
}  // namespace sluice::test

// What commands derive from what a user gives, and name.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "model/input/files.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string written(const TemporaryFolder& folder, const std::string& name, const std::string& text) {
  std::string path = folder.path(name);
  model::write_file_whole(path, text);
  return path;
}

// Without w, b is the whole backward; missing times follow from the given ones, and the output names what it assumed.
TEST(Simulate, DerivesTimesThatAreNotGivenAndNamesThem) {
  const auto text_of = [](double f, double b, double w) {
    std::string out;
    for (const auto& [key, value] : {std::pair("f", f), {"b", b}, {"w", w}}) {
      if (value >= 0) out += fmt::format("{}{}={}", out.empty() ? "" : ",", key, value);
    }
    return out;
  };
  struct Case {
    double f, b, w;            // -1: not given
    double all[3];             // what they mean
    std::string_view assumed;  // in the text
  };
  const Case cases[] = {{0.25, 0.5, -1, {0.25, 0.25, 0.25}, "b is the whole backward"},
                        {0.25, 1, -1, {0.25, 0.5, 0.5}, "b is the whole backward"},
                        {-1, 0.5, -1, {0.25, 0.25, 0.25}, "f is half of b"},
                        {0.25, -1, -1, {0.25, 0.25, 0.25}, "b is f; w is f"},
                        {0.25, -1, 0.5, {0.25, 0.25, 0.5}, "b is f"},
                        {-1, -1, 0.5, {0.5, 0.5, 0.5}, "f is w; b is f"},
                        {-1, 0.25, 0.5, {0.25, 0.25, 0.5}, "f is b"},
                        {0.25, 0.5, 0.75, {0.25, 0.5, 0.75}, ""}};
  for (const Case& c : cases) {
    for (const char* family : {"1f1b", "zb-h1", "dualpipe-v"}) {
      const std::string run = fmt::format("simulate --schedule {} --pp 4 --microbatches 8 --uniform ", family);
      const std::string given = text_of(c.f, c.b, c.w);
      SCOPED_TRACE(run + given);
      const json document = json::parse(run_sluice(words(run + given + " --json")).out);
      const json all = json::parse(run_sluice(words(run + text_of(c.all[0], c.all[1], c.all[2]) + " --json")).out);
      EXPECT_EQ(document.at("makespan_s"), all.at("makespan_s"));
      EXPECT_EQ(document.at("ranks"), all.at("ranks"));
      EXPECT_THAT(document.at("assumptions").dump(), HasSubstr("comm is 0"));
      const std::string text = run_sluice(words(run + given)).out;
      EXPECT_THAT(text, HasSubstr(c.assumed));
      EXPECT_EQ(text.find("assumed") != std::string::npos, !c.assumed.empty());
      const TemporaryFolder folder;
      json cost = {{"kind", "uniform"}};
      for (const auto& [key, value] : {std::pair("f", c.f), {"b", c.b}, {"w", c.w}}) {
        if (value >= 0) cost[key] = value;
      }
      const std::string file = written(
          folder, "s.json",
          json{{"schedule", family}, {"parallelism", {{"pp", 4}}}, {"batch", {{"microbatches", 8}}}, {"cost", cost}}
              .dump());
      const json of_file = json::parse(run_sluice({"simulate", file, "--json"}).out);
      EXPECT_EQ(of_file.at("makespan_s"), document.at("makespan_s"));
      EXPECT_EQ(of_file.at("assumptions"), document.at("assumptions"));
    }
  }
  // Other commands with these costs say so beside their output.
  for (const char* line : {"slice --pp 4 --seq-length 64 --uniform f=1,b=2 --backward --granularity 8",
                           "simulate --pp 4 --uniform f=1,b=2 --sweep microbatches=4,8",
                           "schedule auto --pp 2 --microbatches 4 --uniform f=1,b=2 --time-budget 0.1"}) {
    EXPECT_THAT(run_sluice(words(line)).err, HasSubstr("b is the whole backward")) << line;
  }
}

}  // namespace
}  // namespace sluice::test

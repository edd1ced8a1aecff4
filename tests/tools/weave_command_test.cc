// Joint blocks with experts on the command line.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/report_text.h"

namespace sluice::test {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Four layers of experts per stage, which dispatch over eight nodes.
const std::string kWovenRun =
    "--model deepseek-v3 --cluster h800 --pp 16 --ep 64 --gpus 1024 --seq-length 4096 --mbs 1 --gbs 4096 "
    "--mtp-num-layers 0 ";

json simulated(const std::string& flags) {
  const CommandResult result = run_sluice(words("simulate " + kWovenRun + flags + " --json"));
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

TEST(Weaves, HideMoreThanASchedulesOpsApart) {
  const json apart = simulated("--schedule dualpipe --joint-overlap none");
  const json woven = simulated("--schedule dualpipe");
  const json whole = simulated("--schedule dualpipe --weave whole-backward");
  const json searched = simulated("--schedule dualpipe --weave search");
  const json fewer = simulated("--schedule dualpipe --moe-communication-sms 0");
  const auto hidden = [](const json& run) { return run["expert_communication"]["hidden_fraction"].get<double>(); };
  const auto seconds = [](const json& run) { return run["makespan_s"].get<double>(); };
  EXPECT_GT(hidden(woven), 0.5);
  EXPECT_LT(seconds(woven), 0.9 * seconds(apart));
  EXPECT_GT(seconds(whole), seconds(woven));
  EXPECT_LE(seconds(searched), seconds(woven));
  EXPECT_LT(seconds(fewer), seconds(woven));
  EXPECT_EQ(hidden(apart), 0);
  EXPECT_LE(seconds(simulated("--schedule dualpipe --joint-overlap all")), seconds(woven));
  // Recomputed layers dispatch again.
  const auto communication = [](const json& run) {
    return run["expert_communication"]["communication_s"].get<double>();
  };
  EXPECT_NEAR(
      communication(simulated("--schedule 1f1b --recompute full")) / communication(simulated("--schedule 1f1b")), 1.5,
      1e-6);
  // Idle time of the last stage's block is what is exposed, without embedding, head and loss.
  const json last = json::parse(run_sluice(words("weave " + kWovenRun + "--schedule dualpipe --stage 15 --json")).out);
  EXPECT_GT(last["outside_s"], 0.01);
  EXPECT_NEAR(last["seconds"].get<double>() - last["compute_s"].get<double>() - last["outside_s"].get<double>(),
              last["communication_s"].get<double>() * (1 - last["hidden_fraction"].get<double>()), 1e-9);
  EXPECT_THAT(run_sluice(words("simulate " + kWovenRun + "--schedule dualpipe --moe-communication-sms 132")).err,
              HasSubstr("expected less than the 132 multiprocessors of H800-80GB, got 132"));
  // Of ops without a partner everything is exposed.
  EXPECT_EQ(hidden(simulated("--schedule 1f1b")), 0);
}

TEST(Weaves, CombinedOneFOneBIsInterleavedWithMoreOverlap) {
  const json interleaved = simulated("--schedule interleaved-1f1b --vpp 2");
  const json combined = simulated("--schedule combined-1f1b --vpp 2");
  EXPECT_LT(combined["makespan_s"], interleaved["makespan_s"]);
  EXPECT_GT(combined["expert_communication"]["hidden_fraction"], 0.4);
  EXPECT_NEAR(combined["expert_communication"]["communication_s"].get<double>() /
                  interleaved["expert_communication"]["communication_s"].get<double>(),
              1, 1e-9);
}

TEST(Weaves, AreDrawn) {
  TemporaryFolder folder;
  const std::string trace = folder.path("trace.json");
  const std::string svg = folder.path("figure.svg");
  const CommandResult result =
      run_sluice(words("simulate " + kWovenRun + "--schedule dualpipe --gantt --trace " + trace + " --svg " + svg));
  EXPECT_THAT(result.out, ContainsRegex("dispatch and combine [0-9.]+ s per rank, [0-9]+ % of it hidden"));
  EXPECT_THAT(result.out, ContainsRegex("│[·DCdc]+│ [0-9]+ % hidden"));
  const json events = json::parse(read_file(trace))["traceEvents"];
  int dispatches = 0;
  for (const json& event : events) {
    if (event.value("cat", "") != "part") continue;
    EXPECT_EQ(
        event["tid"],
        event["name"].get<std::string>().find("co") == 0 || event["name"].get<std::string>()[0] == 'd' ? 100000 : 1);
    dispatches += event["name"] == "dispatch(F)" ? 1 : 0;
  }
  EXPECT_EQ(dispatches, 64 * 58);  // per microbatch, all layers with experts
  EXPECT_THAT(read_file(svg), HasSubstr("#9b59b6"));
  const std::string percent = between(result.out, "s per rank, ", " % of it hidden");
  EXPECT_THAT(read_file(svg), HasSubstr(", " + percent + " % of dispatch and combine hidden</text>"));
  // A trace with parts is read like one without.
  EXPECT_EQ(run_sluice(words("compare " + trace + " " + trace)).exit_code, 0);
}

TEST(Weaves, AreInTheReport) {
  const TemporaryFolder folder;
  const std::string path = folder.path("report.html");
  const CommandResult result = run_sluice(words("simulate " + kWovenRun + "--schedule dualpipe --report " + path));
  const std::string report = read_file(path);
  // The number of the terminal.
  const std::string percent = between(result.out, "s per rank, ", " % of it hidden");
  EXPECT_THAT(report, HasSubstr("<dt>Dispatch and combine</dt><dd><strong>" + percent + " % hidden</strong>"));
  // So are the parts.
  const ReportColumns data = columns_of(report, 0);
  std::vector<std::pair<std::int64_t, std::int64_t>> patterns;  // duration and hidden time, ns
  std::size_t at = 0;
  for (const std::int64_t size : data["pattern_parts"]) {
    patterns.emplace_back();
    for (const std::size_t end = at + static_cast<std::size_t>(size); at < end; ++at) {
      patterns.back().first += data["part_duration"][at];
      patterns.back().second += data["part_hidden"][at];
    }
  }
  double all = 0;
  double hidden = 0;
  for (const std::int64_t pattern : data["part_pattern"]) {
    if (pattern < 0) continue;
    all += static_cast<double>(patterns[static_cast<std::size_t>(pattern)].first);
    hidden += static_cast<double>(patterns[static_cast<std::size_t>(pattern)].second);
  }
  const json simulation = simulated("--schedule dualpipe");
  EXPECT_NEAR(all / 1e9 / 16, simulation["expert_communication"]["communication_s"].get<double>(), 1e-3);
  EXPECT_NEAR(hidden / all, simulation["expert_communication"]["hidden_fraction"].get<double>(), 1e-6);
  // Dense models have neither.
  run_sluice(words("simulate --schedule 1f1b --pp 2 --microbatches 2 --report " + path));
  EXPECT_THAT(read_file(path), Not(HasSubstr("<dt>Dispatch and combine</dt>")));
  EXPECT_FALSE(columns_of(read_file(path), 0).header.contains("parts"));
}

TEST(Weaves, DoNotChangeTheOutputOfDenseModels) {
  const TemporaryFolder folder;
  const auto outputs = [&](const std::string& flags) {
    const std::string ops = folder.path("ops.csv");
    const std::string svg = folder.path("figure.svg");
    const std::string report = folder.path("report.html");
    const CommandResult result =
        run_sluice(words("simulate --model llama3-8b --cluster dgx-h100 --pp 4 --microbatches 8 --seq-length 4096 "
                         "--schedule dualpipe --gantt --ops " +
                         ops + " --svg " + svg + " --report " + report + flags));
    EXPECT_EQ(result.err, "");
    return std::vector<std::string>{result.out, read_file(ops), read_file(svg),
                                    between(read_file(report), "<main>", "<h2 id=\"h-command\">"),
                                    between(read_file(report), "id=\"columns-0\">", "</script>")};
  };
  const std::vector<std::string> plain = outputs("");
  EXPECT_THAT(plain[1], HasSubstr("F(stage 0, mb 0)"));
  EXPECT_EQ(outputs(" --joint-overlap none"), plain);
  EXPECT_EQ(outputs(" --weave search --moe-communication-sms 7"), plain);
}

TEST(Weaves, AreComparedByPart) {
  const TemporaryFolder folder;
  const std::string woven = folder.path("woven.json");
  const std::string apart = folder.path("apart.json");
  const std::string out = run_sluice(words("simulate " + kWovenRun + "--schedule dualpipe --trace " + woven)).out;
  run_sluice(words("simulate " + kWovenRun + "--schedule dualpipe --joint-overlap none --trace " + apart));
  const json compared = json::parse(run_sluice(words("compare --json " + apart + " " + woven)).out);
  EXPECT_EQ(compared["hidden_fraction"]["first"], 0);
  // The number of the terminal.
  EXPECT_EQ(fmt::format("{:.0f}", 100 * compared["hidden_fraction"]["second"].get<double>()),
            between(out, "s per rank, ", " % of it hidden"));
  std::map<std::string, json> parts;
  for (const json& part : compared["parts"]) parts[part["part"]] = part;
  // Per microbatch all layers with experts. Communication takes the same time, compute beside it longer.
  EXPECT_EQ(parts["combine(B)"]["count"], (json{{"first", 64 * 58}, {"second", 64 * 58}}));
  EXPECT_NEAR(parts["combine(B)"]["total_s"]["relative"].get<double>(), 0, 1e-6);
  EXPECT_GT(parts["experts(F)"]["total_s"]["relative"], 0.01);
  EXPECT_THAT(
      run_sluice(words("compare " + apart + " " + woven)).out,
      ContainsRegex("dispatch\\(F\\) [^\n]* 3712\n[^$]*hidden +0.0 % +[0-9.]+ % +[+][0-9.]+ pts   of dispatch"));
}

TEST(WeaveCommand, PrintsTheBlockOfAScenario) {
  const CommandResult table = run_sluice(words("weave " + kWovenRun + "--schedule dualpipe"));
  EXPECT_EQ(table.err, "");
  EXPECT_THAT(table.out, HasSubstr("order combine(B) attention(F) experts(B)"));
  EXPECT_THAT(table.out, ContainsRegex("communication +0  combine\\(B\\) +0\\.000"));
  const json block = json::parse(run_sluice(words("weave " + kWovenRun + "--schedule dualpipe --json")).out);
  EXPECT_EQ(block["parts"].size(), 40U);
  EXPECT_EQ(block["parts"][0]["after"], nullptr);
  EXPECT_THAT(
      run_sluice(words("weave --model llama3-8b --cluster dgx-h100 --pp 4 --microbatches 8 --seq-length 4096")).err,
      HasSubstr("has no dispatch and combine: expected --ep above 1 and a stage with layers of experts"));
  EXPECT_THAT(run_sluice(words("weave " + kWovenRun + "--stage 99")).err,
              HasSubstr("--stage: expected 0 to 15, got 99"));
  EXPECT_THAT(run_sluice(words("weave " + kWovenRun + "--weave dualpip")).err, HasSubstr("did you mean 'dualpipe'"));
}

// Parts without time are not listed, but the order has them.
TEST(WeaveCommand, PrintsAnOrderThatItTakes) {
  TemporaryFolder folder;
  const std::string parts = folder.path("parts.csv");
  write_file_whole(parts, "part,layer,seconds\nattention(F),0,2\nexperts(F),0,3\nexperts(B),0,4\ndispatch(B),0,1\n");
  for (const char* weave : {"search", "dualpipe", "whole-backward"}) {
    const json first = json::parse(run_sluice({"weave", "--parts", parts, "--weave", weave, "--json"}).out);
    const std::string order = first.at("order");
    EXPECT_EQ(json::parse(run_sluice({"weave", "--parts", parts, "--weave", order, "--json"}).out), first);
  }
}

TEST(WeaveCommand, ReplaysMeasuredParts) {
  TemporaryFolder folder;
  const std::string parts = folder.path("parts.csv");
  std::string text = "part,layer,seconds\n";
  for (const char* pass : {"F", "B"}) {
    for (const char* part : {"attention", "experts"}) text += std::string(part) + "(" + pass + "),0,0.010\n";
    for (const char* part : {"dispatch", "combine"}) text += std::string(part) + "(" + pass + "),0,0.004\n";
  }
  text += "attention(W),0,0.010\nexperts(W),0,0.010\n";
  write_file_whole(parts, text);
  const json block = json::parse(run_sluice(words("weave --json --parts " + parts)).out);
  EXPECT_DOUBLE_EQ(block["seconds"], 0.06);
  EXPECT_DOUBLE_EQ(block["hidden_fraction"], 1);
  // 16 ms of communication, beside compute at half the speed.
  const json slow = json::parse(run_sluice(words("weave --json --compute-rate 0.5 --parts " + parts)).out);
  EXPECT_DOUBLE_EQ(slow["seconds"], 0.068);
  const json slower = json::parse(run_sluice(words("weave --json --communication-rate 0.8 --parts " + parts)).out);
  EXPECT_DOUBLE_EQ(slower["communication_s"], 0.02);
  EXPECT_THAT(run_sluice(words("weave --communication-rate 0 --parts " + parts)).err,
              HasSubstr("--communication-rate"));
  EXPECT_THAT(run_sluice(words("weave --communication-rate 0.8 " + kWovenRun)).err,
              HasSubstr("--communication-rate needs --parts"));
  // Busy times of kernels: two kernels with gaps of 1 ms in one part, and half of a second stream's 6 ms.
  write_file_whole(
      parts, "part,layer,seconds,kernels,second_stream_s\nattention(F),0,0.010,2,0\nexperts(F),0,0.010,0,0.006\n");
  const std::string gaps = " --kernel-gap 0.001 --second-stream-exposed 0.5";
  const json longer = json::parse(run_sluice(words("weave --json --parts " + parts + gaps)).out);
  EXPECT_DOUBLE_EQ(longer["seconds"], 0.010 + 0.002 + 0.010 + 0.003);
  const json serial = json::parse(run_sluice(words("weave --json --parts " + parts)).out);
  EXPECT_DOUBLE_EQ(serial["seconds"], 0.010 + 0.010 + 0.006);
  EXPECT_THAT(run_sluice(words("weave --kernel-gap -1 --parts " + parts)).err, HasSubstr("--kernel-gap"));
  EXPECT_THAT(run_sluice(words("weave --second-stream-exposed 2 --parts " + parts)).err,
              HasSubstr("--second-stream-exposed"));
  write_file_whole(parts, text);
  EXPECT_THAT(run_sluice(words("weave --kernel-gap 0.001 --parts " + parts)).err,
              HasSubstr("parts.csv: --kernel-gap needs the column kernels"));
  EXPECT_THAT(run_sluice(words("weave --second-stream-exposed 0.5 --parts " + parts)).err,
              HasSubstr("parts.csv: --second-stream-exposed needs the column second_stream_s"));
  EXPECT_THAT(run_sluice(words("weave --kernel-gap 0.001 " + kWovenRun)).err, HasSubstr("--kernel-gap needs --parts"));
  EXPECT_THAT(run_sluice(words("weave --second-stream-exposed 0.5 " + kWovenRun)).err,
              HasSubstr("--second-stream-exposed needs --parts"));
  write_file_whole(parts, text + "experts(W),0,0.010\n");
  EXPECT_THAT(run_sluice(words("weave --parts " + parts)).err,
              HasSubstr("parts.csv: row 11, column part: this part of this layer occurs twice"));
  write_file_whole(parts, "part,layer,seconds\nmlp(F),0,1\n");
  EXPECT_THAT(run_sluice(words("weave --parts " + parts)).err, HasSubstr("expected a part such as dispatch(F)"));
  write_file_whole(parts, "part,layer,seconds\n");
  EXPECT_THAT(run_sluice(words("weave --parts " + parts)).err, HasSubstr("expected at least one part"));
  EXPECT_THAT(run_sluice(words("weave --compute-rate 0.5 " + kWovenRun)).err,
              HasSubstr("--compute-rate needs --parts"));
  EXPECT_THAT(run_sluice(words("weave --stage 0 --parts " + parts)).err, HasSubstr("--stage needs a scenario"));
}

}  // namespace
}  // namespace sluice::test

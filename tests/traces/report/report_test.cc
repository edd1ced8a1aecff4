#include "traces/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <map>
#include <numeric>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/report_text.h"
#include "tests/support/simulated.h"
#include "tests/support/trace_text.h"
#include "traces/report/packed.h"
#include "traces/report/part_data.h"
#include "traces/report/report_data.h"
#include "traces/report/report_tables.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A run with the data that a report refers to.
struct ReportInput {
  explicit ReportInput(Simulated made)
      : run(std::move(made)),
        metrics(measure(run.graph, run.timeline)),
        memory(memory_over_time(run.graph, run.timeline, true)) {}

  ReportRun report_run(const std::string& name) const {
    ReportRun out;
    out.name = name;
    out.drawn = {.graph = &run.graph, .timeline = &run.timeline, .metrics = &metrics, .memory = memory, .parts = parts};
    out.headline = {{"Makespan", "33 s", "first start to last end", 33.0}};
    out.scenario = "{\"schedule\": \"1f1b\"}";
    return out;
  }

  Simulated run;
  Metrics metrics;
  std::vector<RankMemory> memory;
  std::vector<PartRow> parts;
};

std::string text_of(const Report& report) {
  std::string text;
  write_report([&text](std::string_view bytes) { text.append(bytes); }, report);
  return text;
}

std::string text_of(const ReportInput& drawn) {
  return text_of(
      {.title = "a run", .command_line = "sluice simulate", .version = "1", .runs = {drawn.report_run("a")}});
}

ReportInput one_f_one_b() { return ReportInput(simulated("1f1b", {.ranks = 4, .microbatches = 8})); }

TEST(Report, Base64) {  // RFC 4648, section 10
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foob"), "Zm9vYg==");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

TEST(Report, PolicyContainsHashesOfStyleAndScript) {
  // FIPS 180-2, B.1: the hash of "abc".
  ASSERT_EQ(base64(test::sha256("abc")), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
  const std::string text = text_of(one_f_one_b());
  const std::string policy = between(text, "Content-Security-Policy\" content=\"", "\">");
  const std::string style = between(text, "<style>", "</style>");
  const std::string script = between(text, "<script>", "</script>");
  EXPECT_GT(script.size(), 10'000u);
  EXPECT_EQ(policy, "default-src 'none'; style-src 'sha256-" + base64(test::sha256(style)) + "'; script-src 'sha256-" +
                        base64(test::sha256(script)) + "'; img-src data:; base-uri 'none'; form-action 'none'");
}

TEST(Report, CompliesWithItsPolicy) {
  const std::string text = text_of(one_f_one_b());
  EXPECT_THAT(text, Not(HasSubstr(" style=")));
  for (const char* handler : {" onclick=", " onload=", " onerror=", "javascript:", "src=", "href=\"http"}) {
    EXPECT_THAT(text, Not(HasSubstr(handler)));
  }
}

TEST(Report, UserTextIsEscaped) {
  EXPECT_EQ(html_escaped("<a b=\"c\" d='e'>&amp;"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;amp;");
  const ReportInput drawn = one_f_one_b();
  const std::string evil = "</script><img src=x onerror=alert(1)>";
  ReportRun a = drawn.report_run(evil);
  a.headline = {{evil, evil, evil, 1.0}, {"only in A", evil, ""}};
  a.scenario = evil;
  ReportRun b = a;
  b.headline = {{evil, evil, evil + "2", 2.0}};
  for (const std::vector<ReportRun>& runs : {std::vector{a}, std::vector{a, b}}) {
    const std::string text = text_of({.title = evil, .command_line = evil, .version = evil, .runs = runs});
    EXPECT_THAT(text, Not(HasSubstr("<img")));
    EXPECT_THAT(text, HasSubstr("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;"));
    EXPECT_THAT(text, HasSubstr("\\u003c/script>"));  // the run's name in JSON
  }
}

using Lanes = std::vector<std::vector<VertexId>>;

// Vertices by lane in the order of their ids, collectives on every lane that they occupy.
Lanes lanes_of(const OpGraph& graph) {
  Lanes lanes(graph.lanes().size());
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind == VertexKind::collective) {
      for (const int rank : graph.collective(graph[v]).ranks) lanes[graph.collective_lane(rank)].push_back(v);
    } else {
      lanes[graph[v].lane].push_back(v);
    }
  }
  return lanes;
}

// `vertex_at` is by index in the report.
void expect_ops(const ReportInput& drawn, const ReportColumns& data, const Lanes& lanes,
                const std::vector<VertexId>& vertex_at) {
  const OpGraph& graph = drawn.run.graph;
  const Timeline& timeline = drawn.run.timeline;
  ASSERT_EQ(data["kind"].size(), vertex_at.size());
  const std::vector<Duration> slacks = slack(graph, timeline);
  std::vector<char> on_path(graph.size(), 0);
  for (const VertexId v : critical_path(graph, timeline).vertices) on_path[v] = 1;

  std::size_t i = 0;
  std::size_t joint = 0;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    EXPECT_EQ(data.header.at("lanes").at(l).at("ops"), lanes[l].size());
    EXPECT_EQ(data.header.at("lanes").at(l).at("rank"), graph.lanes()[l].rank);
    std::int64_t free = 0;
    std::array<std::array<std::int64_t, 3>, 24> last{};
    for (const VertexId v : lanes[l]) {
      const Vertex& vertex = graph[v];
      const std::int64_t start = free + data["gap"][i];
      free = start + data["duration"][i];
      ASSERT_EQ(start, timeline.start[v].count()) << graph.name(v);
      ASSERT_EQ(free, timeline.end[v].count()) << graph.name(v);
      const auto kind = static_cast<std::size_t>(data["kind"][i]);
      constexpr std::array<std::size_t, 6> kFirstKind = {0, 4, 8, 12, 16, 17};  // by VertexKind
      const bool has_op = vertex.kind != VertexKind::collective && vertex.kind != VertexKind::optimizer;
      const std::size_t first = vertex.op < OpKind::S ? kFirstKind[static_cast<std::size_t>(vertex.kind)]
                                : vertex.kind == VertexKind::transfer ? 18
                                                                      : 16;  // S is op 4
      ASSERT_EQ(kind, first + (has_op ? static_cast<std::size_t>(vertex.op) : 0));
      auto& [microbatch, need, left] = last[kind];
      microbatch += data["microbatch"][i];
      need += data["need"][i];
      left += data["slack"][i];
      ASSERT_EQ(microbatch, vertex.microbatch);
      const VertexId needed = last_need(graph, timeline, v).vertex;
      ASSERT_EQ(need < 0 ? kNoVertex : vertex_at[need], needed) << graph.name(v);
      ASSERT_EQ(left, slacks[v].count()) << graph.name(v);
      ASSERT_EQ(data["critical"][i], on_path[v]);
      ASSERT_EQ(data["slice"][i], vertex.slice);
      if (vertex.kind == VertexKind::collective) {
        const auto& described = data.header.at("collectives").at(static_cast<std::size_t>(data["stage"][i]));
        ASSERT_EQ(described.at("stage"), graph.collective(vertex).stage);
        ASSERT_EQ(described.at("bytes"), graph.collective(vertex).bytes);
      } else {
        ASSERT_EQ(data["stage"][i], vertex.stage);
      }
      if (vertex.kind == VertexKind::joint) {
        const Vertex& partner = graph.joint_partner(vertex);
        ASSERT_EQ(data["partner_kind"][joint], static_cast<int>(partner.op));
        ASSERT_EQ(data["partner_stage"][joint], partner.stage);
        ASSERT_EQ(data["partner_microbatch"][joint], partner.microbatch);
        ASSERT_EQ(data["partner_slice"][joint++], partner.slice);
      }
      ++i;
    }
  }
  EXPECT_EQ(data["partner_kind"].size(), joint);
}

void expect_idle(const ReportInput& drawn, const ReportColumns& data, const std::vector<VertexId>& vertex_at) {
  const std::vector<IdleInterval> intervals = idle_intervals(drawn.run.graph, drawn.run.timeline);
  ASSERT_EQ(data["idle_cause"].size(), intervals.size());
  std::int64_t free = 0;
  for (std::size_t k = 0; k < intervals.size(); ++k) {
    if (k == 0 || intervals[k].rank != intervals[k - 1].rank) free = 0;
    const auto vertex = [&](const char* column) {
      const std::int64_t at = data[column][k];
      return at < 0 ? kNoVertex : vertex_at[at];
    };
    const std::int64_t start = free + data["idle_gap"][k];
    free = start + data["idle_duration"][k];
    EXPECT_EQ(start, intervals[k].start.count());
    EXPECT_EQ(free, intervals[k].end.count());
    EXPECT_EQ(data["idle_cause"][k], static_cast<int>(intervals[k].cause));
    EXPECT_EQ(data["idle_from"][k], intervals[k].from_rank);
    EXPECT_EQ(vertex("idle_next"), intervals[k].next);
    EXPECT_EQ(vertex("idle_need"), intervals[k].waits_for);
  }
}

void expect_memory(const ReportInput& drawn, const ReportColumns& data) {
  if (!drawn.run.graph.has_bytes()) {
    EXPECT_FALSE(data.header.contains("memory"));
    return;
  }
  std::size_t sample = 0;
  for (std::size_t rank = 0; rank < drawn.memory.size(); ++rank) {
    EXPECT_EQ(data.header.at("memory").at("samples").at(rank), drawn.memory[rank].samples.size());
    std::int64_t time = 0;
    BytesByClass held{};
    for (const MemorySample& expected : drawn.memory[rank].samples) {
      time += data["memory_time"][sample];
      for (std::size_t c = 0; c < held.size(); ++c) {
        const std::string name = "memory_" + std::string(kMemoryClassNames[c]);
        if (data.columns.contains(name)) held[c] += data[name][sample];
      }
      ASSERT_EQ(time, expected.time.count());
      ASSERT_EQ(held, expected.bytes);
      ++sample;
    }
  }
  EXPECT_EQ(data["memory_time"].size(), sample);
}

// Checks all columns of a run against the graph and timeline that they encode.
void expect_decodes(const ReportInput& drawn) {
  const ReportColumns data = columns_of(text_of(drawn), 0);
  EXPECT_EQ(data.header.at("makespan"), drawn.metrics.makespan.count());
  const Lanes lanes = lanes_of(drawn.run.graph);
  std::vector<VertexId> vertex_at;
  for (const auto& lane : lanes) vertex_at.insert(vertex_at.end(), lane.begin(), lane.end());
  expect_ops(drawn, data, lanes, vertex_at);
  expect_idle(drawn, data, vertex_at);
  expect_memory(drawn, data);
}

TEST(Report, DataRoundTrips) {
  const SmallFootprint footprint;
  const LoweringOptions bytes{.footprint = &footprint};
  const LoweringOptions recompute{.footprint = &footprint, .recompute = true};
  const MicrobatchShape slices{1, {1, 1, 1}};
  for (const Family& family : all_families()) {
    SCOPED_TRACE(family.name);
    const FamilyParams params{.ranks = 4, .microbatches = family.name == "hanayo" ? 4 : 8};
    expect_decodes(ReportInput(simulated(make_schedule(family, params), "f=1.1,b=1.3,w=0.9,fb=2.7,comm=0.17")));
    expect_decodes(ReportInput(simulated(make_schedule(family, params), "f=1.1,b=1.3,w=0.9,fb=2.7,comm=0.17", bytes)));
  }
  const LoweringOptions collectives{.footprint = &footprint,
                                    .data_parallel = 2,
                                    .gather_parameters = true,
                                    .tied_embedding = true,
                                    .global_norm = true};
  expect_decodes(ReportInput(simulated("1f1b", {.ranks = 3, .microbatches = 5}, "f=1,b=1,w=1,comm=0.1", recompute)));
  expect_decodes(ReportInput(simulated("1f1b", {.ranks = 3, .microbatches = 5}, "f=1,b=1,w=1,comm=0.1", collectives)));
  expect_decodes(
      ReportInput(simulated("seq1f1b", {.ranks = 3, .microbatches = 4, .shape = slices}, "f=3,b=3,w=3", bytes)));
}

TEST(Report, TimesBeyond32BitsAreExact) {
  // A million seconds per forward: 10^15 ns, beyond 2^49.
  expect_decodes(ReportInput(simulated("1f1b", {.ranks = 2, .microbatches = 3}, "f=1000000.000000001,b=2,w=3,comm=7")));
}

TEST(Report, OutputIsDeterministic) { EXPECT_EQ(text_of(one_f_one_b()), text_of(one_f_one_b())); }

TEST(Report, IsSmall) {
  // 2 x 16 x 2048 ops and 2 x 15 x 2048 transfers: 127 thousand, 30 bytes each before compression.
  const ReportInput drawn(simulated("1f1b", {.ranks = 16, .microbatches = test::small_scope() ? 200 : 2048},
                                    "f=1.234567891,b=1.345678912,w=0.987654321,comm=0.012345678"));
  EXPECT_LT(text_of(drawn).size(), 1'500'000u);
}

TEST(Report, TablesContainTheMetrics) {
  const std::string text = text_of(one_f_one_b());
  // Rank 1 of 1F1B with p = 4, m = 8, f = 1, x = 2: busy 24 of 33, 3 in flight; idle 5 s before its first B, 4 s after.
  EXPECT_THAT(text,
              HasSubstr(R"(<td data-v="24">24 s</td><td data-v="0.727272727273">72.7 %</td><td data-v="3">3</td>)"));
  EXPECT_THAT(text, HasSubstr(R"(<td data-v="9">9 s (27.3 %)</td><td data-v="5">5 s (15.2 %)</td><td data-v="4">4 s)"));
  EXPECT_THAT(text, HasSubstr("<dt>Makespan</dt><dd><strong>33 s</strong><small>first start to last end</small>"));
}

TEST(Report, TwoRunsAreCompared) {
  const ReportInput drawn = one_f_one_b();
  ReportRun a = drawn.report_run("a");
  ReportRun b = drawn.report_run("b");
  a.headline = {{"Time", "4 s", "of A", 4.0},
                {"Share", "20 %", "", 0.2, true},
                {"Words", "yes", "of both"},
                {"Gone", "1", "", 1.0}};
  b.headline = {{"Time", "5 s", "of B", 5.0},
                {"Share", "15 %", "", 0.15, true, "too < small"},
                {"Words", "no", "of both"},
                {"New", "2", "", 2.0}};
  const std::string text = text_of({.title = "t", .command_line = "c", .version = "v", .runs = {a, b}});
  const std::string badge_a = R"(<span class="run">A</span> )";
  const std::string badge_b = R"(<span class="run">B</span> )";
  const auto card = [&](const std::string& name, const std::string& of_a, const std::string& of_b,
                        const std::string& change) {
    return "<dt>" + name + "</dt><dd>" + badge_a + "<strong>" + of_a + "</strong></dd><dd>" + badge_b + "<strong>" +
           of_b + "</strong>" + (change.empty() ? "" : " <span class=\"change\">" + change + "</span>") + "</dd></div>";
  };
  EXPECT_THAT(text, HasSubstr(card("Time", "4 s", "5 s", "+25.0 %")));
  EXPECT_THAT(text, HasSubstr("<strong>15 %</strong> <span class=\"bad\">too &lt; small</span> <span "
                              "class=\"change\">-5.0 points</span>"));
  EXPECT_THAT(text, HasSubstr(card("Words", "yes", "no", "")));
  EXPECT_THAT(text, HasSubstr(card("Gone", "1", "–", "")));
  EXPECT_THAT(text, HasSubstr(card("New", "–", "2", "")));
  const std::string about = between(text, "<details class=\"about\">", "</details>");
  EXPECT_THAT(about, HasSubstr("<dt>Time</dt><dd>" + badge_a + "of A</dd><dd>" + badge_b + "of B</dd></div>"));
  EXPECT_THAT(about, HasSubstr("<dt>Words</dt><dd>of both</dd></div>"));
  EXPECT_THAT(about, Not(HasSubstr("<dt>Gone</dt>")));
  EXPECT_EQ(columns_of(text, 1)["kind"], columns_of(text, 0)["kind"]);
}

TEST(Report, ManyMemorySamplesAreReducedToExtremes) {
  const SmallFootprint footprint;
  ReportInput drawn(simulated("1f1b", {.ranks = 2, .microbatches = 2}, "f=1,b=1,w=1", {.footprint = &footprint}));
  // 1 100 001 samples per rank that alternate, with one outlier.
  for (RankMemory& memory : drawn.memory) {
    memory.samples.clear();
    for (std::int64_t i = 0; i <= 1'100'000; ++i) {
      MemorySample sample{Duration(i), {}};
      sample.bytes[0] = i == 777'777 ? 1000 : 100 + i % 2;
      memory.samples.push_back(sample);
    }
  }
  const ReportColumns data = columns_of(text_of(drawn), 0);
  EXPECT_TRUE(data.header.at("memory").at("thinned").get<bool>());
  const auto& times = data["memory_time"];
  const auto& bytes = data["memory_weights"];
  const std::size_t first = data.header.at("memory").at("samples").at(0);
  EXPECT_LE(static_cast<std::int64_t>(times.size()), kMaxReportSamples + 4);
  std::int64_t held = 0;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < first; ++i) most = std::max(most, held += bytes[i]);
  EXPECT_EQ(most, 1000);
  EXPECT_EQ(std::accumulate(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(first), std::int64_t{0}),
            1'100'000);
}

// Adds `layers` layers to each op of a run: per layer attention, dispatch, experts and combine of equal duration in
// sequence; the attention of the next layer runs beside the second half of combine.
void add_layers(ReportInput& drawn, int layers) {
  const Timeline& timeline = drawn.run.timeline;
  for (VertexId v = 0; v < drawn.run.graph.size(); ++v) {
    const Vertex& vertex = drawn.run.graph[v];
    if (vertex.kind != VertexKind::compute && vertex.kind != VertexKind::joint) continue;
    const Duration unit = (timeline.end[v] - timeline.start[v]) / (8 * layers + 1);
    for (int layer = 0; layer < layers; ++layer) {
      for (int part = 0; part < static_cast<int>(kNumLayerParts); ++part) {
        const Duration start = timeline.start[v] + (8 * layer + 2 * part) * unit;
        drawn.parts.push_back({.vertex = v,
                               .rank = drawn.run.graph.rank_of(v),
                               .part = {static_cast<LayerPart>(part), vertex.op},
                               .layer = layer,
                               .start = part == 0 && layer > 0 ? start - unit : start,
                               .end = start + 2 * unit});
      }
    }
  }
}

// Checks that the patterns of ops give the times of `drawn.parts` that communicate.
void expect_parts(const ReportInput& drawn, const ReportColumns& data) {
  std::vector<VertexId> vertex_at;
  for (const auto& lane : lanes_of(drawn.run.graph)) vertex_at.insert(vertex_at.end(), lane.begin(), lane.end());
  ASSERT_EQ(data["part_pattern"].size(), vertex_at.size());
  std::vector<std::size_t> first = {0};
  for (const std::int64_t size : data["pattern_parts"]) first.push_back(first.back() + static_cast<std::size_t>(size));
  ASSERT_EQ(data["part_gap"].size(), first.back());
  std::map<VertexId, std::vector<PartRow>> expected;
  for (const PartRow& part : drawn.parts) {
    if (communicates(part.part.part)) expected[part.vertex].push_back(part);
  }
  std::size_t with_parts = 0;
  for (std::size_t i = 0; i < vertex_at.size(); ++i) {
    if (data["part_pattern"][i] < 0) continue;
    ++with_parts;
    const auto pattern = static_cast<std::size_t>(data["part_pattern"][i]);
    const std::vector<PartRow>& parts = expected.at(vertex_at[i]);
    ASSERT_EQ(parts.size(), first[pattern + 1] - first[pattern]);
    std::int64_t free = drawn.run.timeline.start[vertex_at[i]].count();
    for (std::size_t k = 0; k < parts.size(); ++k) {
      const std::size_t at = first[pattern] + k;
      ASSERT_EQ(free += data["part_gap"][at], parts[k].start.count());
      ASSERT_EQ(free += data["part_duration"][at], parts[k].end.count());
      ASSERT_EQ(data["part_layer"][at], parts[k].layer);
      const auto name = static_cast<std::size_t>(data["part_name"][at]);
      ASSERT_EQ(data.header.at("parts").at("names").at(name), to_string(parts[k].part));
      // The next layer's attention covers half of a combine; the last layer has no next one.
      const bool covered = parts[k].part.part == LayerPart::combine && k + 1 < parts.size();
      ASSERT_EQ(data["part_hidden"][at], covered ? (parts[k].end - parts[k].start).count() / 2 : 0);
    }
  }
  EXPECT_EQ(with_parts, expected.size());
}

TEST(Report, PartsRoundTrip) {
  ReportInput drawn(simulated("dualpipe", {.ranks = 4, .microbatches = 10}, "f=1.1,b=1.3,w=0.9,fb=2.7,comm=0.17"));
  const ReportColumns without = columns_of(text_of(drawn), 0);
  EXPECT_FALSE(without.header.contains("parts"));
  EXPECT_FALSE(without.columns.contains("part_pattern"));
  add_layers(drawn, 3);
  const ReportColumns data = columns_of(text_of(drawn), 0);
  EXPECT_FALSE(data.header.at("parts").at("merged").get<bool>());
  expect_parts(drawn, data);
  // F, B, I, W and joint blocks that start with F or with B.
  EXPECT_LE(data["pattern_parts"].size(), 6U);
  // All else is as without parts.
  for (const auto& [name, values] : without.columns) EXPECT_EQ(data[name], values) << name;
  // Parts that only compute are no communication.
  std::erase_if(drawn.parts, [](const PartRow& part) { return communicates(part.part.part); });
  EXPECT_EQ(columns_of(text_of(drawn), 0).header, without.header);
}

TEST(Report, ManyPartsAreMerged) {
  // 2 ranks with 2 x 500 ops, of 2 x 600 parts that communicate: 2.4 million. 1/4 of a combine is hidden on average.
  ReportInput drawn(simulated("1f1b", {.ranks = 2, .microbatches = 500}));
  add_layers(drawn, 600);
  const PartData merged = part_data(drawn.parts, drawn.run.timeline, 2);
  EXPECT_TRUE(merged.merged);
  EXPECT_EQ(merged.names, (std::vector<std::string>{"dispatch", "combine"}));
  std::int64_t parts = 0;
  HiddenCommunication sum;
  for (const std::int32_t pattern : merged.pattern_of) {
    if (pattern < 0) continue;
    parts += merged.num_parts[pattern];
    const auto first = std::accumulate(merged.num_parts.begin(), merged.num_parts.begin() + pattern, std::ptrdiff_t{0});
    for (std::ptrdiff_t i = first; i < first + merged.num_parts[pattern]; ++i) {
      ASSERT_GE(merged.gap[i], 0);
      sum.all += Duration(merged.duration[i]);
      sum.hidden += Duration(merged.hidden[i]);
    }
  }
  EXPECT_LE(parts, kMaxReportParts);
  EXPECT_GT(parts, kMaxReportParts / 2);
  const HiddenCommunication expected = hidden_of_run(drawn.parts, 2);
  EXPECT_EQ(sum.all, expected.all);
  EXPECT_NEAR(sum.fraction(), expected.fraction(), 1e-5);
  EXPECT_NEAR(expected.fraction(), 0.25, 1e-3);
}

TEST(Report, FailureKeepsTheExistingFile) {
  const std::string folder = ::testing::TempDir() + "report_test";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/report.html";
  const ReportInput drawn = one_f_one_b();
  Report report{.title = "t", .command_line = "c", .version = "v", .runs = {drawn.report_run("a")}};
  write_report_file(path, report);
  EXPECT_EQ(read_file(path), text_of(report));
  Report three = report;
  three.runs = {report.runs[0], report.runs[0], report.runs[0]};
  EXPECT_THROW(write_report_file(path, three), InputError);
  EXPECT_EQ(read_file(path), text_of(report));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  EXPECT_THAT(test::error_from([&] { write_report_file(folder + "/missing/report.html", report); }),
              HasSubstr("missing/report.html"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sluice::test

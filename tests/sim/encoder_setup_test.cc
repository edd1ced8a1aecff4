#include "sim/planner/encoder_setup.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>

#include "model/schedule/encoder_stages.h"
#include "model/schedule/family.h"
#include "model/schedule/schedule_file.h"
#include "sim/engine/predict.h"
#include "sim/planner/auto_setup.h"

namespace sluice::test {
namespace {

using namespace sim;  // NOLINT(google-build-using-namespace)
using nlohmann::json;

// One encoder of f 1 x 2 per microbatch before stages of f 2 x 4, unless `stages` has other times.
json scenario_with(int ranks, int microbatches, const std::string& placement, bool frozen, json stages = {}) {
  if (stages.empty()) {
    stages = json::array({{{"f", 1}, {"b", 1}, {"w", 1}}});
    for (int i = 0; i < ranks; ++i) stages.push_back({{"f", 2}, {"b", 2}, {"w", 2}});
  }
  return {{"parallelism", {{"pp", ranks}, {"encoder_placement", placement}}},
          {"batch", {{"microbatches", microbatches}, {"freeze_encoder", frozen}}},
          {"cost", {{"kind", "uniform"}, {"stages", stages}}}};
}

Duration makespan_of(const json& document) {
  return predict(*planned_setup(scenario_from_json(document, "test", "")).setup).metrics.makespan;
}

constexpr Duration kSecond{1'000'000'000};

// Exact optima of a constraint solver.
TEST(EncoderSetup, ReachesTheOptimaOfSmallCases) {
  struct Case {
    int ranks, microbatches, phases, bubbles, frozen_phases, frozen_bubbles;
  };
  for (const Case& each : {Case{2, 3, 30, 27, 26, 25}, Case{2, 4, 36, 33, 32, 31}, Case{4, 8, 72, 69, 68, 67}}) {
    const auto seconds = [&](const char* placement, bool frozen) {
      return makespan_of(scenario_with(each.ranks, each.microbatches, placement, frozen)) / kSecond;
    };
    EXPECT_EQ(seconds("phases", false), each.phases);
    EXPECT_EQ(seconds("bubbles", false), each.bubbles);
    EXPECT_EQ(seconds("phases", true), each.frozen_phases);
    EXPECT_EQ(seconds("bubbles", true), each.frozen_bubbles);
  }
}

// The time of the language model alone, plus the first forward of the encoder, is a bound; so is the mean work.
TEST(EncoderSetup, BubblesAreBetweenTheBoundAndPhases) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < 20; ++i) {
    const int ranks = pick(2, 5);
    const int microbatches = pick(1, 12);
    const bool frozen = pick(0, 1) == 1;
    json stages = json::array();
    std::int64_t work = 0;
    for (int stage = 0; stage <= ranks; ++stage) {
      stages.push_back({{"f", pick(1, 9)}, {"b", pick(1, 9)}, {"w", pick(1, 9)}});
      for (const char* part : {"f", "b", "w"}) {
        if (stage > 0 || !frozen || std::string(part) == "f") work += stages.back()[part].get<int>();
      }
    }
    const json document = scenario_with(ranks, microbatches, "bubbles", frozen, stages);
    EncoderRun run;
    const Scenario scenario = scenario_from_json(document, "test", "");
    const Duration found = predict(*encoder_setup(scenario, run)).metrics.makespan;
    EXPECT_EQ(found, run.makespan);
    EXPECT_LE(found, run.in_phases);
    EXPECT_EQ(run.in_phases, makespan_of(scenario_with(ranks, microbatches, "phases", frozen, stages)));
    json alone = document;
    alone["parallelism"].erase("encoder_placement");
    alone["batch"].erase("freeze_encoder");
    alone["cost"]["stages"].erase(0);
    EXPECT_GE(found, makespan_of(alone) + kSecond * stages[0]["f"].get<int>()) << document.dump();
    EXPECT_GE(found * ranks, kSecond * work * microbatches);
    EncoderRun again;
    encoder_setup(scenario, again);
    EXPECT_EQ(again.makespan, found);
  }
}

// Every microbatch is encoded once, before the language model reads it, by schedules of all families that can have it.
TEST(EncoderStages, OfAllFamiliesRunAndAreReadBack) {
  int families = 0;
  for (const Family& family : all_families()) {
    const bool possible = !family.asynchronous && family.replicas == 1 && family.vocabulary_barriers == 0;
    for (const EncoderPlacement placement : {EncoderPlacement::own_ranks, EncoderPlacement::phases}) {
      for (const bool frozen : {false, true}) {
        FamilyParams params{.ranks = 4, .microbatches = family.name == "hanayo" ? 4 : 8};
        if (family.sliced) params.shape.slice_lengths = {1, 1};
        const EncoderChoices choices{.placement = placement, .pp = 2, .dp = 2, .frozen = frozen};
        const auto with = [&] { return with_encoder(make_schedule(family, params), choices); };
        if (!possible) {
          EXPECT_THROW(with(), std::runtime_error) << family.name;
          continue;
        }
        const Schedule schedule = with();
        const int encoders = placement == EncoderPlacement::own_ranks ? 2 : 4;
        EXPECT_EQ(schedule.num_routes(), encoders);
        EXPECT_EQ(schedule.encoder_stages(), placement == EncoderPlacement::own_ranks ? 2 : 1);
        EXPECT_EQ(schedule.num_chunks(), make_schedule(family, params).num_chunks()) << family.name;
        const OpGraph graph = lower(schedule, {});
        std::int64_t ops = 0;
        for (VertexId v = 0; v < graph.size(); ++v) {
          const bool encodes = graph[v].kind == VertexKind::compute && graph[v].stage < schedule.encoder_stages();
          ops += encodes ? 1 : 0;
          EXPECT_FALSE(encodes && frozen && graph[v].op != OpKind::F);
          EXPECT_FALSE(frozen && graph[v].kind == VertexKind::optimizer && graph[v].stage < schedule.encoder_stages());
        }
        EXPECT_EQ(ops, schedule.encoder_stages() * schedule.num_units() * (frozen ? 1 : 2));
        EXPECT_EQ(schedule_to_json(schedule_from_json(schedule_to_json(schedule), "test")), schedule_to_json(schedule));
        ++families;
      }
    }
  }
  EXPECT_GE(families, 15 * 4);
}

// Encoders that take turns make up for one that is slower than the stages of the language model.
TEST(EncoderStages, OwnRanksTakeTurns) {
  const auto seconds = [](int ranks, int encoders) {
    json stages = json::array({{{"f", 4}, {"b", 4}, {"w", 4}}});
    for (int i = 0; i < 2; ++i) stages.push_back({{"f", 2}, {"b", 2}, {"w", 2}});
    json document = scenario_with(ranks, 12, "own-ranks", false, stages);
    document["parallelism"]["encoder_dp"] = encoders;
    return makespan_of(document) / kSecond;
  };
  EXPECT_GE(seconds(3, 1), 12 * 12);
  EXPECT_LE(seconds(4, 2), 12 * 6 + 2 * 6 + 12 + 4);  // the language model's time, and encoders at both ends
}

TEST(EncoderSetup, RefusesWhatIsNotModeled) {
  const auto error = [](const json& document) -> std::string {
    try {
      planned_setup(scenario_from_json(document, "test", ""));
    } catch (const std::runtime_error& thrown) {
      return thrown.what();
    }
    return "no error";
  };
  json document = scenario_with(2, 4, "bubbles", false);
  document["schedule"] = "dualpipe";
  EXPECT_EQ(error(document), "dualpipe: an encoder apart is not modeled with stages on two ranks");
  document["schedule"] = "pipedream-2bw";
  EXPECT_EQ(error(document), "pipedream-2bw: an encoder apart is not modeled with a schedule without a flush");
  const json stage = {{"f", 1}, {"b", 1}, {"w", 1}};
  document = scenario_with(2, 4, "bubbles", false, {stage, stage, stage, stage, stage});
  document["schedule"] = "combined-1f1b";
  EXPECT_NE(error(document).find("which has joint blocks"), std::string::npos) << error(document);
  document["schedule"] = "auto";
  EXPECT_EQ(error(document),
            "test: /parallelism/encoder_placement: expected first-stage with the automatic schedule (auto)");
  document = scenario_with(2, 4, "phases", false);
  document["cost"] = {{"kind", "uniform"}};
  EXPECT_EQ(error(document), "test: /cost/stages: required with stages of an encoder: the times of each stage");
  document = scenario_with(2, 4, "own-ranks", false);
  document["parallelism"]["encoder_dp"] = 2;
  EXPECT_EQ(error(document), "test: /parallelism/pp: expected more than the encoder's 2, got 2");
  document = scenario_with(2, 4, "phases", false);
  document["parallelism"]["encoder_pp"] = 2;
  EXPECT_EQ(error(document), "test: /parallelism/encoder_pp: requires encoder_placement own-ranks");
}

}  // namespace
}  // namespace sluice::test

#include <algorithm>

#include "import/import.h"
#include "model/blocks/model_files.h"
#include "model/blocks/stage.h"
#include "model/cluster/cluster.h"
#include "model/cost/cost_table.h"
#include "model/cost/gemm.h"
#include "model/cost/profile_fit.h"
#include "model/input/json_reader.h"
#include "model/scenario/scenario.h"
#include "model/slicing/slice_times_file.h"
#include "model/slicing/terapipe.h"
#include "tests/fuzz/targets.h"

namespace sluice::test::fuzz {

void try_model(std::string_view text) {
  accepts([&] {
    const Json document = parse_json(text, "input");
    JsonReader reader(document, "input");
    const Model model = model_from_json(reader);
    require(parameters(model) > 0, "a model without parameters");
    const std::int64_t tokens = model.max_positions > 0 ? model.max_positions : 4096;
    require(iteration_model_flops(model, tokens, 8, true) > 0, "a model without FLOPs");
    require(layer_slice_flops(model, 1, tokens - 1).forward() > 0, "a layer without FLOPs");
    const Training training{
        .tp = 2, .pp = 2, .ep = model.has_experts() ? 2 : 1, .sequence_length = tokens, .sequence_parallel = true};
    check_training(model, training);
    for (const StageContents& stage : split_layers(model, training.pp, {}, 0, 0)) {
      require(stage_parameters_per_device(model, training.tp, stage, training.ep) >
                  stage_expert_parameters_per_device(model, stage, training.ep),
              "a stage with only expert parameters");
    }
  });
}

void try_cost_table(std::string_view text) {
  accepts([&] {
    const CostTable table = parse_cost_table(text, "input");
    for (const auto& part : table.curves) {
      for (const auto& curve : part) {
        if (!curve) continue;
        for (const std::int64_t tokens : {std::int64_t{1}, curve->tokens.front() + 1, curve->tokens.back() * 2}) {
          require(curve->at(tokens, 0) >= 0 && curve->at(tokens, tokens) >= 0, "a negative time");
        }
      }
    }
    const std::string written = to_json_text(table);
    try {
      require(to_json_text(parse_cost_table(written, "written")) == written, "second output differs: " + written);
    } catch (const InputError& error) {
      require(false, error.what());
    }
  });
}

void try_profile(std::string_view text) {
  accepts([&] {
    const Profile profile = parse_profile(text, "input");
    const std::string written = to_json_text(profile);
    require(to_json_text(parse_profile(written, "written")) == written, "second output differs: " + written);
    const std::string fitted = to_json_text(fit_profile(profile, {}).table);
    try {
      parse_cost_table(fitted, "fitted");
    } catch (const InputError& error) {
      require(false, error.what());
    }
  });
}

void try_slice_times(std::string_view text) {
  accepts([&] {
    constexpr std::int64_t kMaxGranules = 64;
    const SliceTimesTable table = parse_slice_times(text, "input");
    if (table.forward.granules() > kMaxGranules) return;
    const SlicingProblem problem{.forward = table.forward, .backward = table.backward, .num_cells = 7};
    const SlicePlan plan = best_slices(problem);
    require(plan.latency == pipeline_latency(problem, plan.lengths), "the latency of the plan is wrong");
    const auto whole = even_slices(table.forward.tokens, table.forward.granularity, 1);
    require(plan.latency <= pipeline_latency(problem, whole), "a plan is worse than one slice");
  });
}

void try_import(std::string_view text) {
  const auto read = [](const Imported& imported) {
    for (const std::string& note : imported.notes) require(note.starts_with("input: "), "a note without its source");
    scenario_from_json(imported.scenario, "input", "");
  };
  accepts([&] { read(import_text(text, "input")); });
  accepts([&] { read(import_megatron_line(text, "input")); });
  is_foreign(text);
}

namespace {

void use(const Cluster& cluster) {
  require(cluster.num_gpus() >= 1, "a cluster without GPUs");
  for (const double size : {1.0, 100.0, 1e5}) {
    const GemmShape shape{.m = size, .n = 64, .k = size};
    const double seconds = gemm_time(cluster.gpu, shape, shape.bytes()).seconds();
    require(1.000001 * seconds * cluster.gpu.peak_flops_per_s >= shape.flops() && seconds < 1e30,
            "a GEMM above peak FLOP/s");
  }
  for (const int gpus : {2, 3, 8, 1000}) {
    require(cluster.intra_node.ring_bandwidth(gpus) > 0, "a ring with bandwidth 0");
    require(cluster.inter_node.ring_bandwidth(gpus) > 0, "a ring with bandwidth 0");
  }
}

void try_as_cluster(const Json& document) {
  accepts([&] { use(cluster_from_json(JsonReader(document, "input"))); });
}

}  // namespace

void try_cluster(std::string_view text) {
  accepts([&] {
    const Json document = parse_json(text, "input");
    try_as_cluster(document);
    try_as_cluster(Json{{"node", document}});
  });
}

void try_catalogue(std::string_view text) {
  accepts([&] {
    const Json document = parse_json(text, "input");
    const Json node = {{"gpu", "a100-80gb"}, {"gpus", 8}, {"intra_node", "nvlink3"}, {"inter_node", "infiniband-hdr"}};
    for (const char* part : {"gpu", "intra_node", "inter_node"}) {
      Json changed = node;
      changed[part] = document;
      try_as_cluster(Json{{"node", changed}});
    }
    try_as_cluster(Json{{"node", document}});
  });
}

}  // namespace sluice::test::fuzz

// Public header.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/blocks/stage.h"
#include "model/cluster/cluster.h"
#include "model/cost/kernel_times.h"
#include "model/cost/uniform.h"
#include "model/graph/communicator_options.h"
#include "model/scenario/automatic.h"
#include "model/scenario/correction.h"
#include "model/scenario/perturbation.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

struct Batch;                               // model/batches/batch.h
enum class ContextGrouping : std::uint8_t;  // likewise

enum class CostKind : std::uint8_t { uniform, analytic, fitted };

// A configuration to predict: a model on a cluster, its parallelization, the schedule, and the cost model. Read from a
// scenario file ("sluice.scenario/1", docs/formats.md), which the command line's flags override.
struct Scenario {
  std::string source;  // its name in errors
  std::optional<Model> model;
  std::optional<Cluster> cluster;
  Software software;                      // by default the catalogue's megatron-lm
  Training training;                      // pp is 0 until it is known from the schedule
  bool clip_gradients = true;             // every step waits for the global norm
  std::optional<bool> overlap_transfers;  // ranks compute while they send; by default as in the software

  bool blocks_transfers() const { return overlap_transfers ? !*overlap_transfers : software.blocking_transfers; }

  std::vector<int> stage_layers;  // explicit, or empty
  int first_stage_layers = 0;
  int last_stage_layers = 0;
  int mtp_stage = kLastStage;            // of multi-token prediction
  std::vector<Predictions> predictions;  // by stage, if it or its losses are on several

  std::string schedule = "1f1b";  // a family, the path of a schedule file, or kAutomatic
  int chunks = 0;                 // zero: the family's default
  int group = 0;
  int batches = 0;
  AutomaticChoices automatic;                        // for kAutomatic
  std::optional<CommunicatorOptions> communicators;  // of transfers; otherwise they only wait for their data
  int microbatches = 0;                              // of one batch and one pipeline
  std::int64_t global_batch = 0;
  MicrobatchShape shape;
  std::shared_ptr<const Batch> documents;  // of different length; otherwise all sequences are alike
  ContextGrouping context_grouping{};      // of the documents, over the data-parallel ranks
  std::int64_t most_tokens_per_rank = 0;   // of one document
  EncoderChoices encoder;                  // of images, or, without a model, the first stages

  CostKind cost = CostKind::uniform;
  UniformTimes uniform;
  std::string cost_file;
  std::optional<KernelTimes> kernel_times;  // measured, for the analytic cost

  Perturbation perturbation;
  std::optional<Correction> correction;  // of the iteration time, from measurements
};

// Returns what a correction that is fitted to this scenario is made from.
CorrectionOrigin origin_of(const Scenario& scenario);

// Whether `schedule` names a file (it has a slash, or ends in .json or .csv) rather than a family.
bool names_file(const std::string& schedule);

// Reads the model that `model`, a string, names: the file `path`, a folder with a config.json, or a model of the
// catalogue; a file precedes a model of the same name. Throws InputError naming the key and the nearest name.
Model find_model(const JsonReader& model, const std::string& path);

// Reads a scenario. Relative paths in it are relative to `folder`. Throws InputError.
Scenario scenario_from_json(const nlohmann::json& document, const std::string& source, const std::string& folder);

}  // namespace sluice::model

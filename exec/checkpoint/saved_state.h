#pragma once

#include <cstdint>
#include <string>

#include "exec/checkpoint/checkpoint.h"
#include "exec/plan/run_plan.h"
#include "exec/run/token_source.h"
#include "exec/run/worker.h"
#include "exec/transport/transport.h"

namespace sluice::exec {

// Returns the metadata that identifies a run, so that a checkpoint is not resumed as another run by accident.
CheckpointMetadata run_metadata(const RunPlan& plan, const std::string& data);

// Gathers the weights and optimizer states of the first replica and writes them on rank 0; called by all workers
// between two runs of the graph. `step`: completed training steps. Throws InputError naming `path` on rank 0.
void save_state(Worker& worker, Transport& transport, const RunPlan& plan, const std::string& path, std::int64_t step,
                const std::string& data);

// Loads a checkpoint of `save_state`, written with any parallelism. Throws InputError naming the file and the tensor.
void load_state(Worker& worker, const RunPlan& plan, const CheckpointReader& checkpoint);

// Throws InputError if the checkpoint is of another model, precision, seed, optimizer or data than the run.
void check_resumes(const CheckpointReader& checkpoint, const RunPlan& plan, const std::string& data);

}  // namespace sluice::exec

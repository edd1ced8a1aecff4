#pragma once

#include <cstdint>
#include <string>

#include "exec/checkpoint/checkpoint.h"
#include "exec/plan/run_plan.h"
#include "exec/run/token_source.h"
#include "exec/run/worker.h"
#include "exec/transport/transport.h"

namespace sluice::exec {

// What a checkpoint of a run says besides its tensors, so that it is not resumed by accident as another run.
CheckpointMetadata run_metadata(const RunPlan& plan, const std::string& data);

// Gathers the weights and moments of the first replica and writes them at rank 0; called by all workers between two
// runs of the graph. `step`: training steps that are done. Throws InputError naming `path` at rank 0.
void save_state(Worker& worker, Transport& transport, const RunPlan& plan, const std::string& path, std::int64_t step,
                const std::string& data);

// Loads what `save_state` wrote, whatever cut it was written from. Throws InputError naming the file, and the tensor.
void load_state(Worker& worker, const RunPlan& plan, const CheckpointReader& checkpoint);

// Throws InputError if the checkpoint is of another model, precision, seed, optimizer or data than the run.
void check_resumes(const CheckpointReader& checkpoint, const RunPlan& plan, const std::string& data);

}  // namespace sluice::exec

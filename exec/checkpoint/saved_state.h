#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "exec/checkpoint/checkpoint.h"
#include "exec/plan/run_plan.h"
#include "exec/run/token_source.h"
#include "exec/run/worker.h"
#include "exec/transport/transport.h"
#include "model/errors.h"

namespace sluice::exec {

// An error that all ranks throw together, after they have told each other.
class SharedError : public InputError {
 public:
  using InputError::InputError;
};

// Returns the metadata that identifies a run, so that a checkpoint is not resumed as another run by accident.
CheckpointMetadata run_metadata(const RunPlan& plan, const std::string& data);

// Writes the weights and optimizer states of the first replica on rank 0, which receives them in pieces of a few MiB;
// called by all workers between two runs of the graph. `step`: completed training steps. Throws SharedError naming
// `path`, on rank 0 after `report`, which is called there before the others know: a launcher may end rank 0 as soon as
// one of them has ended.
void save_state(Worker& worker, Transport& transport, const RunPlan& plan, const std::string& path, std::int64_t step,
                const std::string& data, const std::function<void(const std::string& error)>& report = {});

// Loads a checkpoint of `save_state`, written with any parallelism. Throws InputError naming the file and the tensor.
void load_state(Worker& worker, const RunPlan& plan, const CheckpointReader& checkpoint);

// Throws InputError if the checkpoint is of another model, precision, seed, optimizer or data than the run.
void check_resumes(const CheckpointReader& checkpoint, const RunPlan& plan, const std::string& data);

}  // namespace sluice::exec

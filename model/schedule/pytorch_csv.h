#pragma once

#include <string>
#include <string_view>

#include "model/schedule/schedule.h"

namespace sluice {

// The compute-only CSV of torch.distributed.pipelining: a row for each rank, a cell for each step, empty where the rank
// is idle. A cell is "<stage><op><microbatch>", ops F, I, W and B, or a joint block "(0F1;3B0)OVERLAP_F_B".

// Throws InputError for what PyTorch does not have: slices, stages on two ranks, ranks without ops, schedules without a
// flush.
std::string schedule_to_csv(const Schedule& schedule);

// Reads it; the placement is where the stages' ops stand. A file with W but no I is of the dialect before late 2024,
// where B is the input gradient and BW both. `source` names the text in errors. Throws InputError naming row and cell
// (from 1) for text that does not parse and for communication ops, ScheduleError for a schedule that is invalid.
Schedule schedule_from_csv(std::string_view text, const std::string& source);

}  // namespace sluice

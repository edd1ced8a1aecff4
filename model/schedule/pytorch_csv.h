#pragma once

#include <string>
#include <string_view>

#include "model/schedule/schedule.h"

namespace sluice::model {

// The CSV of torch.distributed.pipelining: a row for each rank, a cell for each step, empty where the rank is idle. A
// cell is "<stage><op><microbatch>", ops F, I, W and B, or a joint block "(0F1;3B0)OVERLAP_F_B"; with communication
// also 0SEND_F1, 1RECV_F1, 1SEND_B0, 0RECV_B0, 0UNSHARD, 0RESHARD, 0REDUCE_GRAD.

// The compute-only form, or `with_communication` the schedule's own (none if it has none). Throws InputError for what
// PyTorch does not have: slices, stages on two ranks, ranks without ops, schedules without a flush.
std::string schedule_to_csv(const Schedule& schedule, bool with_communication = false);

// Reads either; the placement is where the stages' ops stand. A file with W or BW but no I is of the dialect before
// late 2024, where B is the input gradient and BW both. `source` names the text in errors. Throws InputError naming row
// and cell (from 1) for text that does not parse, ScheduleError naming them for a schedule that is invalid.
Schedule schedule_from_csv(std::string_view text, const std::string& source);

}  // namespace sluice::model

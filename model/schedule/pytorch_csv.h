#pragma once

#include <string>
#include <string_view>

#include "model/schedule/family.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

// The CSV format of torch.distributed.pipelining: one row per rank and one cell per step, empty where the rank is idle.
// A cell is "<stage><op><microbatch>" with op F, I, W or B, or a joint block "(0F1;3B0)OVERLAP_F_B"; with communication
// also 0SEND_F1, 1RECV_F1, 1SEND_B0, 0RECV_B0, 0UNSHARD, 0RESHARD, 0REDUCE_GRAD.

// Throws InputError for schedules of a family that have no CSV, as schedule_to_csv does, before any is made.
void check_csv(const Family& family, int slices);

// Writes the compute ops, and `with_communication` also the schedule's communication, if it has any. Throws InputError
// for what PyTorch does not support: slices, stages on two ranks, ranks without ops, schedules without a flush.
std::string schedule_to_csv(const Schedule& schedule, bool with_communication = false);

// Parses either form; the placement follows from the rows of the stages' ops. A file with W or BW but no I is of the
// dialect before late 2024, in which B is the input gradient and BW the whole backward. `source` names the text in
// errors. Throws InputError naming row and cell (from 1) for text that does not parse, ScheduleError naming them for an
// invalid schedule.
Schedule schedule_from_csv(std::string_view text, const std::string& source);

}  // namespace sluice::model

#pragma once

#include "model/schedule/schedule.h"

namespace sluice::model {

// Adds the stages of an encoder before those of a language model. Its own ranks run 1F1B: before the backward of a
// microbatch as many forwards as the language model's first stage runs before its own, and for each hop to it one more
// of each encoder. On all ranks, microbatches take turns; bubbles are those of phases until they are filled. Throws
// ScheduleError for a schedule without a flush, with several routes, vocabulary passes, sends and receives, or, on all
// ranks, joint blocks. Precondition: the placement is not first_stage.
Schedule with_encoder(const Schedule& language, const EncoderChoices& choices);

}  // namespace sluice::model

#pragma once

#include <cstdint>

#include "model/schedule/schedule.h"

namespace sluice::model {

// Where the encoder of images of a language model runs.
enum class EncoderPlacement : std::uint8_t {
  first_stage,  // as part of it
  own_ranks,    // on the first ranks of the pipeline, alone
  phases,       // on all ranks: all of its forwards before the language model, all of its backwards after it
  bubbles,      // on all ranks, where they wait for the language model (sim/planner/encoder_setup.h)
};

struct EncoderChoices {
  EncoderPlacement placement = EncoderPlacement::first_stage;
  int pp = 1;           // on own ranks: its pipeline ranks,
  int dp = 1;           // and encoders that take turns with the microbatches of one language model
  int tp = 0;           // its tensor ranks; 0: those of the language model
  bool frozen = false;  // it has no backward
  bool search = true;   // for a better order in bubbles

  bool apart() const { return placement != EncoderPlacement::first_stage; }
  int own_ranks() const { return placement == EncoderPlacement::own_ranks ? pp * dp : 0; }
  friend bool operator==(const EncoderChoices&, const EncoderChoices&) = default;
};

// Adds the stages of an encoder before those of a language model. Its own ranks run 1F1B: before the backward of a
// microbatch as many forwards as the language model's first stage runs before its own, and for each hop to it one more
// of each encoder. On all ranks, microbatches take turns; bubbles are those of phases until they are filled. Throws
// ScheduleError for a schedule without a flush, with several routes, vocabulary passes, sends and receives, or, on all
// ranks, joint blocks. Precondition: the placement is not first_stage.
Schedule with_encoder(const Schedule& language, const EncoderChoices& choices);

}  // namespace sluice::model

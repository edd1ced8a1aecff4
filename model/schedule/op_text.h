#pragma once

#include <string>
#include <string_view>

#include "model/schedule/communication.h"
#include "model/schedule/op.h"

namespace sluice::model {

// Appends "<stage><kind><microbatch>", as PyTorch's pipelining writes it; with `sliced`, also ".<slice>".
void append_op_text(std::string& out, const Op& op, bool sliced);

// Reads that, and nothing else; `old_backward` also takes "BW" for a B. False if `text` is anything else or out of
// range.
bool parse_op_text(std::string_view text, Op& op, bool old_backward = false);

}  // namespace sluice::model

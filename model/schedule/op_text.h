#pragma once

#include <string>
#include <string_view>

#include "model/schedule/communication.h"
#include "model/schedule/op.h"

namespace sluice::model {

// Appends "<stage><kind><microbatch>", as in PyTorch's pipelining; with `sliced`, also ".<slice>".
void append_op_text(std::string& out, const Op& op, bool sliced);

// Parses such a text; with `old_backward`, also "BW" for a B. Returns false for any other text, or a number out of
// range.
bool parse_op_text(std::string_view text, Op& op, bool old_backward = false);

}  // namespace sluice::model

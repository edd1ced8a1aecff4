#pragma once

#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// A number at the beginning of a text, as std::from_chars reads it: decimal, rounded to nearest, without a leading plus
// sign or blanks.
struct LeadingNumber {
  double value = 0;
  std::string_view rest;  // what follows the number
  bool found = false;     // false if the text begins with no number, or with one out of the range of double
};
LeadingNumber leading_number(std::string_view text);

// Returns whether `text` is one number as above, and writes it to `value`.
bool parse_number(std::string_view text, double& value);

}  // namespace sluice::model

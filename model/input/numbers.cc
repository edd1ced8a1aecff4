#include "model/input/numbers.h"

#include <charconv>
#ifndef __cpp_lib_to_chars
#include <cerrno>
#include <cstdlib>
#include <string>
#endif

namespace sluice::model {

#ifdef __cpp_lib_to_chars

LeadingNumber leading_number(std::string_view text) {
  LeadingNumber out;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, out.value);
  out.found = error == std::errc();
  out.rest = {rest, static_cast<std::size_t>(end - rest)};
  return out;
}

#else

// For C++ libraries whose from_chars reads integers only (libc++ before 20). strtod also accepts blanks, a plus sign,
// hexadecimal digits and words, which are cut off first.
LeadingNumber leading_number(std::string_view text) {
  const std::string digits(text.substr(0, text.find_first_not_of("0123456789.eE+-")));
  if (digits.empty() || digits.front() == '+') return {.rest = text};
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(digits.c_str(), &end);
  const auto length = static_cast<std::size_t>(end - digits.c_str());
  return {.value = value, .rest = text.substr(length), .found = length > 0 && errno != ERANGE};
}

#endif

bool parse_number(std::string_view text, double& value) {
  const LeadingNumber number = leading_number(text);
  value = number.value;
  return number.found && number.rest.empty();
}

}  // namespace sluice::model

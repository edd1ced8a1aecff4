#pragma once

#include <string>
#include <string_view>

#include "traces/report/report.h"

namespace sluice::traces {

// Text that cannot be taken for markup, in elements and in quoted attributes.
std::string html_escaped(std::string_view text);

// The static parts of a report, as HTML.
std::string headline_html(const Report& report);
std::string idle_html(const Report& report);   // idle time by cause, bars and numbers
std::string ranks_html(const Report& report);  // a row for each rank

}  // namespace sluice::traces

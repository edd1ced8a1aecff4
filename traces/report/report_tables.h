#pragma once

#include <string>
#include <string_view>

#include "traces/report/report.h"

namespace sluice::traces {

// Escapes text for elements and quoted attributes.
std::string html_escaped(std::string_view text);

// The static parts of a report, as HTML.
std::string headline_html(const Report& report);
std::string idle_html(const Report& report);         // idle time by cause, as bars and numbers
std::string ranks_html(const Report& report);        // one row per rank
std::string assumptions_html(const Report& report);  // a section, or "" without assumptions
std::string table_html(const ReportTable& table, bool caption_shown);

}  // namespace sluice::traces

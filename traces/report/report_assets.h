#pragma once

#include <string_view>

#include "model/namespaces.h"

namespace sluice::traces {

// The fixed parts of a report, from the folder report/, built into the program.
struct ReportAssets {
  std::string_view page;  // with {{places}} to fill
  std::string_view style;
  std::string_view script;
  std::string_view style_sha256;  // in hexadecimal
  std::string_view script_sha256;
};
ReportAssets report_assets();

}  // namespace sluice::traces

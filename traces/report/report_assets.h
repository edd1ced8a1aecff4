#pragma once

#include <string_view>

#include "model/namespaces.h"

namespace sluice::traces {

// The static parts of a report, from the files in this folder, embedded in the program.
struct ReportAssets {
  std::string_view page;  // with {{placeholders}}
  std::string_view style;
  std::string_view script;
  std::string_view style_sha256;  // in hexadecimal
  std::string_view script_sha256;
  // What a live page has in addition.
  std::string_view live_page;
  std::string_view live_style;
  std::string_view live_script;
  std::string_view live_style_sha256;
  std::string_view live_script_sha256;
};
ReportAssets report_assets();

}  // namespace sluice::traces

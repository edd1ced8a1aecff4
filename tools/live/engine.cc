// The functions that the WebAssembly module exports to the script of a live page (traces/report/engine.js).

#include <string>

#include "model/input/protected_files.h"
#include "tools/simulate/live_run.h"

// A page has no files to protect.
void sluice::model::note_input(const std::string& /*path*/, bool /*is_checkpoint*/) {}
void sluice::model::check_replaceable(const std::string& /*path*/, bool /*derived*/) {}

namespace {

std::string request_text;
sluice::tools::LiveResult last_result;

}  // namespace

extern "C" {

// Returns where the page writes the next request, of `bytes` bytes.
char* sluice_request(int bytes) {
  request_text.resize(static_cast<std::size_t>(bytes));
  return request_text.data();
}

// Runs the request. Returns LiveResult::status. The texts below are valid until the next request.
int sluice_run() {
  last_result = sluice::tools::run_live(request_text);
  return last_result.status;
}

const char* sluice_header() { return last_result.header.data(); }
int sluice_header_bytes() { return static_cast<int>(last_result.header.size()); }
const char* sluice_columns() { return last_result.columns.data(); }
int sluice_columns_bytes() { return static_cast<int>(last_result.columns.size()); }

}  // extern "C"

#pragma once

#include <string_view>

#include "model/namespaces.h"

namespace sluice::tools {

// Returns the engine of live pages, a WebAssembly module (engine.cc); empty in a build without it (SLUICE_LIVE=OFF).
std::string_view live_engine();

}  // namespace sluice::tools

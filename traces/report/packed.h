#pragma once

#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::traces {

// Returns `bytes` as a zlib stream.
std::string deflated(std::string_view bytes);

// RFC 4648, with padding.
std::string base64(std::string_view bytes);

}  // namespace sluice::traces

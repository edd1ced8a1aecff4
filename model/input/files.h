// Public header.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// Consumes the next bytes of an output.
using ByteSink = std::function<void(std::string_view)>;

// Returns the contents of a file. Throws InputError naming `path` if it is missing, a folder, unreadable, or larger
// than `max_bytes`.
std::string read_file(const std::string& path, std::int64_t max_bytes = std::int64_t{1} << 31);

// Writes `content` to a temporary file beside `path`, then renames it: afterwards `path` has all of it, or its previous
// contents. "/dev/stdout" and other non-regular targets are written in place. Throws InputError naming `path`.
void write_file_whole(const std::string& path, std::string_view content);

// The same for content that `produce` passes piece by piece. Exceptions of `produce` are passed on and leave `path` as
// it was.
void write_file_whole(const std::string& path, const std::function<void(const ByteSink&)>& produce);

}  // namespace sluice::model

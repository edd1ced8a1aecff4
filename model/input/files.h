// Public header.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// Takes the next bytes of an output.
using ByteSink = std::function<void(std::string_view)>;

// The whole file. Throws InputError naming `path` if it is missing, a folder, unreadable, or larger than
// `max_bytes`.
std::string read_file(const std::string& path, std::int64_t max_bytes = std::int64_t{1} << 31);

// Writes `content` under a temporary name beside `path`, then renames: `path` afterwards holds all of it,
// or what it held before. "/dev/stdout" and other non-regular targets are written in place. Throws
// InputError naming `path`.
void write_file_whole(const std::string& path, std::string_view content);

// The same for content that `produce` hands on piece by piece. What `produce` throws is passed on, and `path` is left
// as it was.
void write_file_whole(const std::string& path, const std::function<void(const ByteSink&)>& produce);

}  // namespace sluice::model

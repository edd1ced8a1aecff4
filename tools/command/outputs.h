#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "model/namespaces.h"

namespace sluice::tools {

// Headings of a command's own options that the short help leaves out.
inline constexpr const char* kRareGroup = "Other options";
inline constexpr const char* kFailures = "Failures";

// The types of options with files that the command writes or reads, and of names that may also be a file.
inline constexpr const char* kWrittenFile = "FILE";
inline constexpr const char* kReadFile = "FILE:read";
inline constexpr const char* kNameOrFile = "TEXT:name or file";

// Adds the flag of a file that the command writes.
CLI::Option* add_output(CLI::App& command, const std::string& flags, std::string& value,
                        const std::string& description);

// Protects the files that the command reads from its outputs, and these from each other
// (model/input/protected_files.h). Throws InputError naming the flags of two outputs that are one file, and for
// pictures named as PDF or PNG.
void protect_files(const CLI::App& command);

}  // namespace sluice::tools

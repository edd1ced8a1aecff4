#pragma once

#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

// Keeps a command from replacing the files that it reads, by whatever name or through whatever other file it finds
// them: everything that opens an input reports it here, and everything that replaces a file asks here first.

// A file that a command writes, and the flag that names it.
struct OutputFile {
  std::string flag;
  std::string path;
  bool is_checkpoint = false;
};

// Starts to protect the inputs of this process, and names its outputs, so that most conflicts are found when an input
// is opened. Before the first call (in a library) nothing is refused: a program may read a file and replace it. Throws
// InputError naming the flags if two outputs are one file.
void protect_inputs(std::vector<OutputFile> outputs);

// Reports that `path` has been opened for reading. Throws InputError naming the flag if it is an output. A checkpoint
// may be replaced by a checkpoint.
void note_input(const std::string& path, bool is_checkpoint = false);

// Throws InputError if `path`, which is about to be replaced, is an input; for the name of a file that no flag names by
// itself (`derived`) also if it is an output.
void check_replaceable(const std::string& path, bool derived = false);

}  // namespace sluice::model

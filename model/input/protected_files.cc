#include "model/input/protected_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "model/errors.h"

namespace sluice::model {
namespace {

namespace fs = std::filesystem;

struct ProtectedFiles {
  std::mutex mutex;  // workers of a run open files
  bool on = false;
  std::vector<OutputFile> outputs;
  std::set<std::string> inputs;
};

ProtectedFiles& protected_files() {
  static ProtectedFiles files;
  return files;
}

// Whether writing one of the two names changes the other. Devices and pipes may be written twice.
bool same_file(const std::string& first, const std::string& second) {
  std::error_code error;
  if (fs::exists(first, error)) {
    return fs::is_regular_file(first, error) && fs::equivalent(first, second, error);
  }
  const fs::path one = fs::weakly_canonical(fs::absolute(first, error), error);
  return !error && one == fs::weakly_canonical(fs::absolute(second, error), error) && !error;
}

// Returns the message of an output that is another file of the command, `what`.
std::string conflict(const std::string& output, const std::string& what, const std::string& other) {
  return fmt::format("{} is also {} '{}'", output, what, other);
}

std::string named(const OutputFile& output) { return fmt::format("{}: '{}'", output.flag, output.path); }

}  // namespace

void protect_inputs(std::vector<OutputFile> outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = i + 1; j < outputs.size(); ++j) {
      if (!same_file(outputs[i].path, outputs[j].path)) continue;
      throw InputError(conflict(named(outputs[i]), outputs[j].flag, outputs[j].path));
    }
  }
  ProtectedFiles& files = protected_files();
  const std::lock_guard lock(files.mutex);
  files.on = true;
  files.outputs = std::move(outputs);
}

void note_input(const std::string& path, bool is_checkpoint) {
  ProtectedFiles& files = protected_files();
  const std::lock_guard lock(files.mutex);
  if (!files.on) return;
  if (!is_checkpoint) files.inputs.insert(path);
  for (const OutputFile& output : files.outputs) {
    if (is_checkpoint && output.is_checkpoint) continue;
    if (same_file(output.path, path)) throw InputError(conflict(named(output), "the input", path));
  }
}

void check_replaceable(const std::string& path, bool derived) {
  ProtectedFiles& files = protected_files();
  const std::lock_guard lock(files.mutex);
  for (const std::string& input : files.inputs) {
    if (same_file(path, input)) throw InputError(conflict(path, "the input", input));
  }
  for (const OutputFile& output : files.outputs) {
    if (derived && same_file(path, output.path)) throw InputError(conflict(path, output.flag, output.path));
  }
}

}  // namespace sluice::model

#include "tools/run/run_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "exec/watch/diagnosis.h"
#include "exec/watch/recorder_file.h"
#include "kernels/device.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "tools/command/exit_codes.h"
#include "tools/command/messages.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "sluice-run-";
constexpr const char* kKept = "/kept";  // its run has failed and reported the path

enum class FolderLock { taken, busy, unknown };

// Locks a folder without waiting. `fd` is its descriptor, or -1. Some file systems have no locks: unknown.
FolderLock lock_folder(const std::string& path, int& fd) {
  fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return FolderLock::unknown;
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return FolderLock::taken;
  return errno == EWOULDBLOCK ? FolderLock::busy : FolderLock::unknown;
}

// Whether `path` is still the folder of the descriptor.
bool is_folder_of(int fd, const std::string& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(fd, &open) == 0 && ::lstat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

// Whether a worker may still use the recorders of a folder, or it is on another host.
bool has_live_recorders(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    try {
      const auto process = RecorderFile(entry->path().string()).process();
      if (!process || *process != ProcessState::dead) return true;
    } catch (const InputError&) {
      // Not a recorder, or one that its worker had not completed.
    }
  }
  return false;
}

void remove_if_stale(const std::string& folder) {
  int fd = -1;
  struct stat status {};
  const FolderLock lock = lock_folder(folder, fd);
  const bool ours = fd >= 0 && ::fstat(fd, &status) == 0 && status.st_uid == ::geteuid();
  std::error_code ignored;
  if (lock == FolderLock::taken && ours && is_folder_of(fd, folder) && !fs::exists(folder + kKept, ignored) &&
      !has_live_recorders(folder)) {
    fs::remove_all(folder, ignored);
  }
  if (fd >= 0) ::close(fd);
}

// Removes folders that killed runs have left. A run does not wait long for it: the next one continues.
void remove_stale_folders(const std::string& parent) {
  constexpr int kMostFolders = 1000;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  int folders = 0;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (folders == kMostFolders || std::chrono::steady_clock::now() > deadline) return;
    if (!entry->path().filename().string().starts_with(kPrefix)) continue;
    ++folders;
    remove_if_stale(entry->path().string());
  }
}

// Creates and locks a temporary folder.
std::string make_temporary(int& lock) {
  constexpr int kMostTries = 10;
  const std::string parent = temporary_folder();
  remove_stale_folders(parent);
  for (int i = 0; i < kMostTries; ++i) {
    std::string name = fmt::format("{}/{}XXXXXX", parent, kPrefix);
    if (::mkdtemp(name.data()) == nullptr) {
      throw InputError(
          fmt::format("{}: cannot create a folder for the flight recorders: {}", name, std::strerror(errno)));
    }
    const FolderLock result = lock_folder(name, lock);
    if (lock < 0) {
      const int error = errno;
      ::rmdir(name.c_str());
      if (error == ENOENT) continue;  // another run has removed it
      throw InputError(
          fmt::format("{}: cannot open the folder of the flight recorders: {}", name, std::strerror(error)));
    }
    // Another run may have found it before it was locked, and removes it.
    if (result != FolderLock::busy && is_folder_of(lock, name)) return name;
    ::close(lock);
    lock = -1;
  }
  throw InputError(
      fmt::format("{}: other runs removed the folder of the flight recorders {} times", parent, kMostTries));
}

// Creates and locks the folder of --recorder, and removes the recorders of earlier runs, which may have had more ranks.
void open_requested(const std::string& path, int& lock) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw InputError(fmt::format("--recorder: {}: {}", path, error.message()));
  const fs::path folder = fs::canonical(path, error);  // of a link, the folder
  if (error) throw InputError(fmt::format("--recorder: {}: {}", path, error.message()));
  const FolderLock result = lock_folder(folder.string(), lock);
  if (result == FolderLock::busy) {
    ::close(lock);
    throw InputError(fmt::format("--recorder: {}: is in use by another run: expected a folder of its own", path));
  }
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    const bool is_recorder = name.starts_with("rank-") && name.ends_with(".rec");
    if (is_recorder || name == kDiagnosisName || "/" + name == kKept) fs::remove(entry->path(), ignored);
  }
}

int exit_code_of(FailureKind kind) {
  switch (kind) {
    case FailureKind::lost: return kWorkerLost;
    case FailureKind::stuck: return kRunStuck;
    case FailureKind::non_finite: return kNotFinite;
    case FailureKind::elsewhere: return kStoppedByAnother;
  }
  return kInternalError;
}

}  // namespace

RecorderFolder::RecorderFolder(const std::string& requested, const RunPlace& place, const MpiRanks& ranks)
    : path_(requested), temporary_(requested.empty()), first_(place.first()), shared_(place.processes()) {
  std::string error;
  if (first_) {
    try {
      temporary_ ? void(path_ = make_temporary(lock_)) : open_requested(path_, lock_);
    } catch (const std::exception& failure) {  // any, because the others wait
      error = failure.what();
    }
  }
  // The other processes wait for the folder, and end with the first one if there is none.
  ranks.within("the message with the folder of the flight recorders",
               [&] { path_ = place.broadcast(error.empty() ? path_ : ""); });
  if (path_.empty()) throw InputError(error);
  // On another host, the folder may not be shared.
  if (!first_ && temporary_ && ::mkdir(path_.c_str(), S_IRWXU) == 0) {
    first_ = true;
    static_cast<void>(lock_folder(path_, lock_));
  }
}

RecorderFolder::~RecorderFolder() {
  std::error_code ignored;
  if (temporary_ && first_ && !fs::exists(path_ + kKept, ignored)) fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

bool RecorderFolder::keep() {
  const int fd = ::open((path_ + kKept).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  const bool others_have = fd < 0 && errno == EEXIST;
  if (fd >= 0) ::close(fd);
  return !others_have;
}

void RecorderFolder::leave() const {
  std::error_code ignored;
  if (temporary_ && !shared_ && !fs::exists(path_ + kKept, ignored)) fs::remove_all(path_, ignored);
}

void WatchFlags::add_to(CLI::App& command) {
  command
      .add_option("--recorder", recorders,
                  "Folder for the flight recorders, of this run only (default: a temporary folder)")
      ->type_name(kReadFile)
      ->group(kFailures);
  command
      .add_option("--deadline", deadline,
                  "Minimum time limit in seconds per op and for a suspended process, 0.01 to 1000000; the limit per op "
                  "is at least 20 times its previous time (default 30)")
      ->check(number_from(0.01, 1e6))
      ->group(kFailures);
  command
      .add_option("--start-timeout", start_timeout,
                  "Time limit in seconds for all processes of the launcher to start, 1 to 1000000 (default 600)")
      ->check(number_from(1, 1e6))
      ->group(kFailures);
}

RunWatch::RunWatch(const WatchFlags& flags, const RunPlace& place, const MpiRanks& ranks)
    : place_(place),
      recorders_(flags.recorders, place, ranks),
      deadline_(flags.deadline),
      start_timeout_(flags.start_timeout) {}

Supervision RunWatch::supervision() {
  Supervision out{.folder = recorders_.path()};
  out.limits.floor_ns = static_cast<std::int64_t>(deadline_ * 1e9);
  out.limits.start_ns = static_cast<std::int64_t>(start_timeout_ * 1e9);
  out.signals = true;
  out.end_now = [this](int signal, bool in_step) {
    recorders_.leave();
    if (in_step) print_message("a second signal: ended in the middle of a step");
    std::fflush(nullptr);
    std::_Exit(128 + signal);
  };
  out.give_up = [this](const RunFailure& failure) {
    print(failure);
    std::_Exit(exit_code_of(failure.kind()));
  };
  return out;
}

int RunWatch::run(const std::function<void()>& work, const std::function<void()>& after_failure) {
  try {
    work();
    return kDone;
  } catch (const RunFailure& failure) {
    if (after_failure) after_failure();
    return report(failure, exit_code_of(failure.kind()));
  } catch (const DeviceError& failure) {
    return report(failure, kInternalError);
  }
}

void RunWatch::end_alone(const std::exception& failure) const {
  print_message(fmt::format("rank {}: {}", place_.transport()->rank(), failure.what()));
  std::fflush(nullptr);
  std::_Exit(dynamic_cast<const InputError*>(&failure) != nullptr ? kWrongInput : kInternalError);
}

int RunWatch::report(const std::exception& failure, int code) {
  print(failure);
  if (place_.processes()) std::_Exit(code);
  return code;
}

// Prints why the run failed in the last line, and keeps its flight recorders.
void RunWatch::print(const std::exception& failure) {
  if (recorders_.keep()) {
    print_message(
        fmt::format("the last events of each rank are in {0} (sluice run --post-mortem {0})", recorders_.path()));
  }
  print_message(failure.what());
  std::fflush(nullptr);
}

}  // namespace sluice::tools

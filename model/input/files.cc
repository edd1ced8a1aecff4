#include "model/input/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "model/errors.h"
#include "model/input/file_set.h"
#include "model/input/protected_files.h"

namespace sluice::model {
namespace {

[[noreturn]] void fail(const std::string& path, std::string_view what, int error) {
  throw InputError(fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

// Calls `step` until it has moved all of `bytes`; it returns what it moved, or -1 with errno.
template <typename Step>
void move_all(const std::string& path, const char* what, std::size_t bytes, const Step& step) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = step(done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, what, errno);
    if (n == 0) fail(path, what, EIO);
    done += static_cast<std::size_t>(n);
  }
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, HOST_NAME_MAX) == 0 ? name : "host";
}

std::string folder_of(const std::string& target) {
  const std::string folder = std::filesystem::path(target).parent_path();
  return folder.empty() ? "." : folder;
}

// Names of temporary files of `target`: a process number and a count follow.
std::string temporary_prefix(const std::string& target) { return target + "." + host_name() + "."; }

// Removes temporary files and folders that processes of this host left when they were killed.
void remove_stale(const std::string& target) {
  const std::string prefix = std::filesystem::path(temporary_prefix(target)).filename();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(target), error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix) || !name.ends_with(".tmp")) continue;
    const long process = std::strtol(name.c_str() + prefix.size(), nullptr, 10);
    if (process <= 0 || ::kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH) continue;
    std::error_code ignored;
    std::filesystem::remove_all(entry.path(), ignored);
  }
}

// Calls `create` with names that do not exist yet until it does not fail with EEXIST; returns the name.
template <typename Create>
std::string under_new_name(const std::string& path, const std::string& target, const Create& create) {
  static std::atomic<int> count{0};
  while (true) {
    std::string name = fmt::format("{}{}.{}.tmp", temporary_prefix(target), ::getpid(), count++);
    if (create(name)) return name;
    if (errno != EEXIST) fail(path, "cannot create", errno);
  }
}

void flush_folder(const std::string& path, const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // no permission to list it
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (result != 0 && error != EINVAL && error != EROFS) fail(path, "cannot flush its folder", error);
}

}  // namespace

std::string read_file(const std::string& path, std::int64_t max_bytes) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw InputError(path + ": is a folder, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path, "cannot open", errno);
  note_input(path);
  std::string content;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    content.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (static_cast<std::int64_t>(content.size()) > max_bytes) {
      throw InputError(fmt::format("{}: larger than {} bytes", path, max_bytes));
    }
  }
  if (in.bad()) fail(path, "cannot read", EIO);
  return content;
}

std::string temporary_folder() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (!error) return folder.string();
  const char* const variable = std::getenv("TMPDIR");
  throw InputError(fmt::format("TMPDIR={}: {}", variable == nullptr ? "" : variable, error.message()));
}

void write_file_whole(const std::string& path, std::string_view content) {
  write_file_whole(path, [content](const ByteSink& sink) { sink(content); });
}

void write_file_whole(const std::string& path, const std::function<void(const ByteSink&)>& produce) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status) ||
      std::filesystem::is_directory(status)) {
    WholeFile file(path);
    produce([&file](std::string_view bytes) { file.append(bytes); });
    return file.commit();
  }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail(path, "cannot open for writing", errno);
  try {
    produce([&](std::string_view bytes) {
      move_all(path, "cannot write", bytes.size(),
               [&](std::size_t done) { return ::write(fd, bytes.data() + done, bytes.size() - done); });
    });
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (::close(fd) != 0) fail(path, "cannot write", errno);
}

// --- WholeFile -------------------------------------------------------------------------------------------------------

WholeFile::WholeFile(std::string path) : path_(std::move(path)), target_(path_) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::is_directory(status)) throw InputError(path_ + ": is a folder, expected a file name");
  if (fs::exists(status) && !fs::is_regular_file(status)) throw InputError(path_ + ": expected a regular file");
  check_replaceable(path_);
  if (fs::exists(status)) {
    target_ = fs::canonical(path_).string();
  } else if (fs::is_symlink(fs::symlink_status(path_, error))) {
    throw InputError(path_ + ": is a link to a file that does not exist");
  }
  fd_ = ::open(folder_of(target_).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  // A file without a name gets one through /proc.
  if (fd_ >= 0 && ::access(fmt::format("/proc/self/fd/{}", fd_).c_str(), F_OK) != 0) ::close(std::exchange(fd_, -1));
  if (fd_ < 0) {
    remove_stale(target_);
    temporary_ = under_new_name(path_, target_, [this](const std::string& name) {
      fd_ = ::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
      return fd_ >= 0;
    });
  }
  if (struct stat old{}; ::stat(target_.c_str(), &old) == 0) ::fchmod(fd_, old.st_mode & 07777);
}

WholeFile::~WholeFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void WholeFile::reserve(std::int64_t bytes) {
  const int error = ::posix_fallocate(fd_, 0, bytes);
  if (error != 0 && error != EINVAL && error != EOPNOTSUPP) fail(path_, "cannot write", error);
}

void WholeFile::append(std::string_view content) {
  write_at(end_, content);
  end_ += std::ssize(content);
}

void WholeFile::write_at(std::int64_t offset, std::string_view content) {
  move_all(path_, "cannot write", content.size(), [&](std::size_t done) {
    return ::pwrite(fd_, content.data() + done, content.size() - done, offset + static_cast<std::int64_t>(done));
  });
}

void WholeFile::read_at(std::int64_t offset, std::span<char> out) const {
  move_all(path_, "cannot read", out.size(), [&](std::size_t done) {
    return ::pread(fd_, out.data() + done, out.size() - done, offset + static_cast<std::int64_t>(done));
  });
}

void WholeFile::commit() {
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) fail(path_, "cannot write", errno);
  if (temporary_.empty()) {
    const std::string unnamed = fmt::format("/proc/self/fd/{}", fd_);
    const auto link = [&](const std::string& name) {
      return ::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    temporary_ = under_new_name(path_, target_, link);
  }
  if (::close(std::exchange(fd_, -1)) != 0) fail(path_, "cannot write", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(path_, "cannot replace", errno);
  temporary_.clear();
  flush_folder(path_, folder_of(target_));
}

// --- FileSet ---------------------------------------------------------------------------------------------------------

FileSet::FileSet(std::string prefix) : prefix_(std::move(prefix)) { remove_stale(prefix_); }

FileSet::~FileSet() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

void FileSet::write(const std::string& name, const std::function<void(const ByteSink&)>& produce) {
  std::error_code error;
  if (std::filesystem::is_directory(prefix_ + name, error)) {
    throw InputError(prefix_ + name + ": is a folder, expected a file name");
  }
  check_replaceable(prefix_ + name, true);
  if (folder_.empty()) {
    folder_ = under_new_name(prefix_ + name, prefix_,
                             [](const std::string& folder) { return ::mkdir(folder.c_str(), 0777) == 0; });
  }
  const std::string path = folder_ + "/" + name;
  try {
    write_file_whole(path, produce);
  } catch (const InputError& failure) {
    const std::string what = failure.what();
    if (!what.starts_with(path)) throw;
    throw InputError(prefix_ + name + what.substr(path.size()));
  }
  names_.push_back(name);
}

void FileSet::commit() {
  for (const std::string& name : names_) {
    const std::string path = prefix_ + name;
    if (::rename((folder_ + "/" + name).c_str(), path.c_str()) != 0) fail(path, "cannot replace", errno);
  }
  names_.clear();
  flush_folder(prefix_, folder_of(prefix_));
}

}  // namespace sluice::model

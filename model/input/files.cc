#include "model/input/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "model/errors.h"

namespace sluice {
namespace {

[[noreturn]] void fail(const std::string& path, std::string_view what, int error) {
  throw InputError(fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

void write_all(int fd, std::string_view content, const std::string& path, const std::string& temporary) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      ::close(fd);
      if (!temporary.empty()) ::unlink(temporary.c_str());
      fail(path, "cannot write", error);
    }
    content.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace

std::string read_file(const std::string& path, std::int64_t max_bytes) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw InputError(path + ": is a folder, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path, "cannot open", errno);
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

void write_file_whole(const std::string& path, std::string_view content) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) throw InputError(path + ": is a folder, expected a file name");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) fail(path, "cannot open for writing", errno);
    write_all(fd, content, path, "");
    if (::close(fd) != 0) fail(path, "cannot write", errno);
    return;
  }
  // A link is followed, so that the file it names is the one replaced.
  const std::string target = std::filesystem::exists(status) ? std::filesystem::canonical(path).string() : path;
  std::string temporary = target + ".XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) fail(path, "cannot create", errno);
  mode_t mode = 0666;
  if (struct stat old{}; ::stat(target.c_str(), &old) == 0) {
    mode = old.st_mode & 07777;
  } else {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    mode &= ~mask;
  }
  ::fchmod(fd, mode);
  write_all(fd, content, path, temporary);
  if (::close(fd) != 0) {
    const int close_error = errno;
    ::unlink(temporary.c_str());
    fail(path, "cannot write", close_error);
  }
  if (::rename(temporary.c_str(), target.c_str()) != 0) {
    const int rename_error = errno;
    ::unlink(temporary.c_str());
    fail(path, "cannot replace", rename_error);
  }
}

}  // namespace sluice

#include "model/input/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "model/errors.h"

namespace sluice::model {
namespace {

[[noreturn]] void fail(const std::string& path, std::string_view what, int error) {
  throw InputError(fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

// A file that is being written: closed, and removed if it is temporary, unless `close` and `keep` were called.
class Output {
 public:
  Output(const std::string& path, int fd, std::string temporary)
      : path_(path), fd_(fd), temporary_(std::move(temporary)) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  void write(std::string_view content) {
    while (!content.empty()) {
      const ssize_t n = ::write(fd_, content.data(), content.size());
      if (n < 0) {
        if (errno == EINTR) continue;
        fail(path_, "cannot write", errno);
      }
      content.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  void close() {
    if (::close(std::exchange(fd_, -1)) != 0) fail(path_, "cannot write", errno);
  }

  void keep_as(const std::string& target) {
    if (::rename(temporary_.c_str(), target.c_str()) != 0) fail(path_, "cannot replace", errno);
    temporary_.clear();
  }

 private:
  const std::string& path_;
  int fd_;
  std::string temporary_;  // empty: written in place
};

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
  write_file_whole(path, [content](const ByteSink& sink) { sink(content); });
}

void write_file_whole(const std::string& path, const std::function<void(const ByteSink&)>& produce) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) throw InputError(path + ": is a folder, expected a file name");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) fail(path, "cannot open for writing", errno);
    Output output(path, fd, "");
    produce([&output](std::string_view bytes) { output.write(bytes); });
    output.close();
    return;
  }
  // Follows a link, so that the file it points to is replaced.
  const std::string target = std::filesystem::exists(status) ? std::filesystem::canonical(path).string() : path;
  std::string temporary = target + ".XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) fail(path, "cannot create", errno);
  Output output(path, fd, temporary);
  mode_t mode = 0666;
  if (struct stat old{}; ::stat(target.c_str(), &old) == 0) {
    mode = old.st_mode & 07777;
  } else {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    mode &= ~mask;
  }
  ::fchmod(fd, mode);
  produce([&output](std::string_view bytes) { output.write(bytes); });
  output.close();
  output.keep_as(target);
}

}  // namespace sluice::model

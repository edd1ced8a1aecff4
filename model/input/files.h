// Public header.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// Consumes the next bytes of an output.
using ByteSink = std::function<void(std::string_view)>;

// The largest scenario, schedule and configuration files (docs/formats.md).
inline constexpr std::int64_t kMaxInputBytes = std::int64_t{1} << 28;

// Returns the contents of a file or a pipe. Throws InputError naming `path` if it is missing, a folder, unreadable, or
// larger than `max_bytes`.
std::string read_file(const std::string& path, std::int64_t max_bytes = kMaxInputBytes);

// Returns the folder for temporary files. Throws InputError naming the TMPDIR that is none.
std::string temporary_folder();

// A regular file that is written whole: until `commit`, `path` keeps its previous contents or does not exist. The new
// file has no name until then, so that nothing stays behind if the process is killed; where the file system has no
// unnamed files it is called PATH.HOST.PROCESS.NUMBER.tmp, and is removed by the next process that writes `path`. Links
// are followed. Errors are InputErrors that name `path`.
class WholeFile {
 public:
  explicit WholeFile(std::string path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  // Reserves space, so that a full file system is noticed before the data is there.
  void reserve(std::int64_t bytes);
  void append(std::string_view content);
  void write_at(std::int64_t offset, std::string_view content);
  void read_at(std::int64_t offset, std::span<char> out) const;
  // Flushes the file to the device, gives it its name, and flushes the folder.
  void commit();

 private:
  std::string path_;
  std::string target_;     // what `path` links to
  std::string temporary_;  // its name until `commit`; empty: none
  std::int64_t end_ = 0;   // where `append` writes
  int fd_ = -1;
};

// Writes `content` as a WholeFile. "/dev/stdout" and other non-regular targets are written in place. Throws InputError
// naming `path`.
void write_file_whole(const std::string& path, std::string_view content);

// The same for content that `produce` passes piece by piece. Exceptions of `produce` are passed on and leave `path` as
// it was.
void write_file_whole(const std::string& path, const std::function<void(const ByteSink&)>& produce);

}  // namespace sluice::model

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/input/files.h"

namespace sluice::traces {

// Compresses the bytes written to it and passes the gzip stream to `sink`. The stream is deterministic: it contains no
// name or time. `finish` must be called once, at the end.
class GzipStream {
 public:
  explicit GzipStream(const ByteSink& sink);
  ~GzipStream();
  void write(std::string_view bytes);
  void finish();

 private:
  struct State;
  void drain(int flush);

  const ByteSink& sink_;
  std::unique_ptr<State> state_;
};

// Fills the front of a buffer with the next bytes of an input and returns their number, 0 at the end.
using ByteFill = std::function<std::size_t(std::span<char>)>;

// Reads an input block by block, and decompresses it if it is gzipped: with any header, and of any number of members
// (RFC 1952). Bytes after the last member are ignored, as by gzip. Throws InputError "source: ..." for a corrupt or
// truncated stream, more than 16 GiB of output, or, after 64 MiB of it, more than 200 times the size of the input.
class GzipReader {
 public:
  GzipReader(std::string source, ByteFill fill);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  // Returns the next block, valid until the next call; empty at the end.
  std::span<const char> next();

 private:
  struct Inflater;
  // Reads until `bytes` compressed bytes are available, or all that there are.
  void want(std::size_t bytes);
  bool at_member();  // whether a gzip member begins here
  std::span<const char> inflated();
  void check_size(std::size_t more);

  std::string source_;
  ByteFill fill_;
  std::vector<char> in_;
  std::size_t begin_ = 0;  // of the bytes of in_ that are not consumed
  std::size_t end_ = 0;
  std::int64_t consumed_ = 0;  // bytes of the input
  std::int64_t produced_ = 0;
  bool started_ = false;
  std::unique_ptr<Inflater> inflater_;  // null: not gzipped
};

// Writes the output of `produce` to a file, gzipped if its name ends in ".gz". The file is replaced only when the
// output is complete. Throws InputError naming `path`.
void write_maybe_zipped(const std::string& path, const std::function<void(const ByteSink&)>& produce);

}  // namespace sluice::traces

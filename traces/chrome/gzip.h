#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

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

// Writes the output of `produce` to a file, gzipped if its name ends in ".gz". The file is replaced only when the
// output is complete. Throws InputError naming `path`.
void write_maybe_zipped(const std::string& path, const std::function<void(const ByteSink&)>& produce);

}  // namespace sluice::traces

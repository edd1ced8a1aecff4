#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "model/input/files.h"

namespace sluice::traces {

// Compresses what is written to it into a gzip stream for `sink`. The same bytes give the same stream: no name or
// time goes into it. `finish` must be called once, at the end.
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

// Writes what `produce` makes into a file, gzipped where its name ends in ".gz": afterwards it holds all of it, or what
// it held before. Throws InputError naming `path`.
void write_maybe_zipped(const std::string& path, const std::function<void(const ByteSink&)>& produce);

}  // namespace sluice::traces

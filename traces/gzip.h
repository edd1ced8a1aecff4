#pragma once

#include <memory>
#include <string_view>

#include "model/input/files.h"

namespace sluice {

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

}  // namespace sluice

#include "traces/chrome/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>
#include <vector>

namespace sluice::traces {

struct GzipStream::State {
  z_stream stream{};
  std::vector<char> out = std::vector<char>(std::size_t{1} << 18);
};

GzipStream::GzipStream(const ByteSink& sink) : sink_(sink), state_(std::make_unique<State>()) {
  constexpr int kGzipHeader = 16;
  constexpr int kMemoryLevel = 9;
  // The fastest level: traces are so repetitive that higher levels save little.
  if (deflateInit2(&state_->stream, Z_BEST_SPEED, Z_DEFLATED, MAX_WBITS + kGzipHeader, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
}

GzipStream::~GzipStream() { deflateEnd(&state_->stream); }

void GzipStream::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t part = std::min<std::size_t>(bytes.size(), std::numeric_limits<uInt>::max());
    // zlib's interface is not const-correct; deflate only reads its input.
    state_->stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    state_->stream.avail_in = static_cast<uInt>(part);
    drain(Z_NO_FLUSH);
    bytes.remove_prefix(part);
  }
}

void GzipStream::finish() { drain(Z_FINISH); }

void GzipStream::drain(int flush) {
  z_stream& stream = state_->stream;
  std::vector<char>& out = state_->out;
  do {
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    deflate(&stream, flush);  // cannot fail on an initialized stream
    const std::size_t produced = out.size() - stream.avail_out;
    if (produced > 0) sink_({out.data(), produced});
  } while (stream.avail_out == 0);
}

void write_maybe_zipped(const std::string& path, const std::function<void(const ByteSink&)>& produce) {
  write_file_whole(path, [&](const ByteSink& sink) {
    if (!path.ends_with(".gz")) return produce(sink);
    GzipStream gzip(sink);
    produce([&gzip](std::string_view bytes) { gzip.write(bytes); });
    gzip.finish();
  });
}

}  // namespace sluice::traces

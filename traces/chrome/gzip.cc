#include "traces/chrome/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "model/errors.h"

namespace sluice::traces {
namespace {

constexpr int kGzipHeader = 16;
constexpr std::size_t kBlock = std::size_t{1} << 18;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 34;
// Traces compress 10 to 60 times; deflate compresses at most 1032 times.
constexpr std::int64_t kMostRatio = 200;
constexpr std::int64_t kBytesAtAnyRatio = std::int64_t{1} << 26;

}  // namespace

struct GzipStream::State {
  z_stream stream{};
  std::vector<char> out = std::vector<char>(kBlock);
};

GzipStream::GzipStream(const ByteSink& sink) : sink_(sink), state_(std::make_unique<State>()) {
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

struct GzipReader::Inflater {
  z_stream stream{};
  std::vector<char> out = std::vector<char>(kBlock);
  bool in_member = true;
  bool done = false;

  Inflater() {
    if (inflateInit2(&stream, MAX_WBITS + kGzipHeader) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

GzipReader::GzipReader(std::string source, ByteFill fill)
    : source_(std::move(source)), fill_(std::move(fill)), in_(kBlock) {}

GzipReader::~GzipReader() = default;

void GzipReader::want(std::size_t bytes) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ - begin_ >= bytes) return;
  std::copy(in_.begin() + static_cast<std::ptrdiff_t>(begin_), in_.begin() + static_cast<std::ptrdiff_t>(end_),
            in_.begin());
  end_ -= begin_;
  begin_ = 0;
  while (end_ < bytes) {
    const std::size_t got = fill_(std::span(in_).subspan(end_));
    if (got == 0) return;
    end_ += got;
  }
}

bool GzipReader::at_member() {
  want(2);
  return end_ - begin_ >= 2 && in_[begin_] == '\x1f' && in_[begin_ + 1] == '\x8b';
}

void GzipReader::check_size(std::size_t more) {
  produced_ += static_cast<std::int64_t>(more);
  if (produced_ > kMostBytes) {
    throw InputError(
        fmt::format("{}: larger than {} GiB{}", source_, kMostBytes >> 30, inflater_ ? " decompressed" : ""));
  }
  if (produced_ > kBytesAtAnyRatio && produced_ > kMostRatio * consumed_) {
    throw InputError(
        fmt::format("{}: the gzip stream decompresses to more than {} times its size", source_, kMostRatio));
  }
}

std::span<const char> GzipReader::next() {
  if (!std::exchange(started_, true) && at_member()) inflater_ = std::make_unique<Inflater>();
  if (inflater_) return inflated();
  want(1);
  const auto block = std::span<const char>(in_).subspan(begin_, end_ - begin_);
  begin_ = end_;
  consumed_ += std::ssize(block);
  check_size(block.size());
  return block;
}

std::span<const char> GzipReader::inflated() {
  Inflater& inflater = *inflater_;
  z_stream& stream = inflater.stream;
  while (!inflater.done) {
    if (!inflater.in_member) {
      inflater.in_member = at_member();
      inflater.done = !inflater.in_member;
      if (inflater.in_member) inflateReset(&stream);
      continue;
    }
    want(1);
    const std::size_t available = end_ - begin_;
    stream.next_in = reinterpret_cast<Bytef*>(in_.data() + begin_);
    stream.avail_in = static_cast<uInt>(available);
    stream.next_out = reinterpret_cast<Bytef*>(inflater.out.data());
    stream.avail_out = static_cast<uInt>(inflater.out.size());
    const int code = inflate(&stream, Z_NO_FLUSH);
    const std::size_t used = available - stream.avail_in;
    const std::size_t got = inflater.out.size() - stream.avail_out;
    begin_ += used;
    consumed_ += static_cast<std::int64_t>(used);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      throw InputError(fmt::format("{}: the gzip stream is corrupt: {}", source_,
                                   stream.msg == nullptr ? "it needs a dictionary" : stream.msg));
    }
    if (code == Z_STREAM_END) inflater.in_member = false;
    check_size(got);
    if (got > 0) return std::span<const char>(inflater.out).first(got);
    if (available == 0 && inflater.in_member) throw InputError(source_ + ": the gzip stream is truncated");
  }
  return {};
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

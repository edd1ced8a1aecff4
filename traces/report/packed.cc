#include "traces/report/packed.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

namespace sluice::traces {

std::string deflated(std::string_view bytes) {
  z_stream stream{};
  constexpr int kLevel = 6;
  if (deflateInit(&stream, kLevel) != Z_OK) throw std::bad_alloc();
  std::string out;
  std::vector<char> piece(std::size_t{1} << 18);
  std::string_view rest = bytes;
  do {
    const std::size_t part = std::min<std::size_t>(rest.size(), std::numeric_limits<uInt>::max());
    // zlib's interface is not const-correct; deflate only reads its input.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest.data()));
    stream.avail_in = static_cast<uInt>(part);
    rest.remove_prefix(part);
    do {
      stream.next_out = reinterpret_cast<Bytef*>(piece.data());
      stream.avail_out = static_cast<uInt>(piece.size());
      deflate(&stream, rest.empty() ? Z_FINISH : Z_NO_FLUSH);  // cannot fail on an initialized stream
      out.append(piece.data(), piece.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  } while (!rest.empty());
  deflateEnd(&stream);
  return out;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < left ? static_cast<std::uint8_t>(bytes[i + k]) : std::uint32_t{0});
    for (std::size_t k = 0; k < 4; ++k) out.push_back(k <= left ? kDigits[word >> (18 - 6 * k) & 63] : '=');
  }
  return out;
}

}  // namespace sluice::traces

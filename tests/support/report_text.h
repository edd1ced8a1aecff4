#pragma once

#include <zlib.h>

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::test {

// Returns the text between the first `open` and the next `close`.
inline std::string between(std::string_view text, std::string_view open, std::string_view close) {
  const std::size_t begin = text.find(open);
  if (begin == std::string_view::npos) throw std::runtime_error("no " + std::string(open));
  const std::size_t end = text.find(close, begin + open.size());
  return std::string(text.substr(begin + open.size(), end - begin - open.size()));
}

inline std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t word = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    word = word << 6 | static_cast<std::uint32_t>(kDigits.find(c));
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<char>(word >> bits & 0xFF));
  }
  return bytes;
}

inline std::string inflated(const std::string& stream) {
  std::string bytes(std::size_t{1} << 16, '\0');
  while (true) {
    uLongf size = bytes.size();
    const int result = uncompress(reinterpret_cast<Bytef*>(bytes.data()), &size,
                                  reinterpret_cast<const Bytef*>(stream.data()), stream.size());
    if (result == Z_OK) return bytes.substr(0, size);
    if (result != Z_BUF_ERROR) throw std::runtime_error("not a zlib stream");
    bytes.resize(bytes.size() * 4);
  }
}

// The decoded columns of a run in a report, by name, as 64-bit numbers.
struct ReportColumns {
  nlohmann::json header;
  std::map<std::string, std::vector<std::int64_t>> columns;

  const std::vector<std::int64_t>& operator[](const std::string& name) const { return columns.at(name); }
};

inline ReportColumns columns_of(const std::string& report, int run) {
  const std::string id = std::to_string(run);
  ReportColumns out;
  out.header =
      nlohmann::json::parse(between(report, R"(<script type="application/json" id="run-)" + id + "\">", "</script>"));
  const std::string bytes =
      inflated(from_base64(between(report, R"(<script type="text/plain" id="columns-)" + id + "\">", "</script>")));
  std::size_t at = 0;
  const auto number = [&bytes](std::size_t from, int size) {
    std::uint64_t value = 0;
    for (int i = 0; i < size; ++i) {
      value |= std::uint64_t{static_cast<std::uint8_t>(bytes.at(from + static_cast<std::size_t>(i)))} << (8 * i);
    }
    return value;
  };
  for (const auto& column : out.header.at("columns")) {
    const std::string type = column.at(1);
    const std::size_t size = column.at(2);
    std::vector<std::int64_t>& values = out.columns[column.at(0)];
    for (std::size_t i = 0; i < size; ++i) {
      if (type == "i64") {
        values.push_back(static_cast<std::int64_t>(number(at + 4 * i, 4) | number(at + 4 * (size + i), 4) << 32));
      } else if (type == "i32") {
        values.push_back(static_cast<std::int32_t>(number(at + 4 * i, 4)));
      } else if (type == "i16") {
        values.push_back(static_cast<std::int16_t>(number(at + 2 * i, 2)));
      } else {
        values.push_back(static_cast<std::int64_t>(number(at + i, 1)));
      }
    }
    at += size * (type == "i64" ? 8 : type == "i32" ? 4 : type == "i16" ? 2 : 1);
    at = (at + 3) / 4 * 4;
  }
  if (at != bytes.size()) throw std::runtime_error("bytes after the last column");
  return out;
}

// Returns the SHA-256 hash (FIPS 180-4) of `text` as bytes.
inline std::string sha256(std::string text) {
  // The first 32 bits of the fractional parts of cube and square roots of primes: sections 4.2.2 and 5.3.3.
  constexpr std::array<std::uint32_t, 64> kRounds = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 8> hash = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const std::uint64_t bits = text.size() * 8;
  text.push_back('\x80');
  while (text.size() % 64 != 56) text.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8) text.push_back(static_cast<char>(bits >> shift & 0xFF));
  for (std::size_t block = 0; block < text.size(); block += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 64; ++i) {
      if (i < 16) {
        for (std::size_t k = 0; k < 4; ++k) w[i] = w[i] << 8 | static_cast<std::uint8_t>(text[block + 4 * i + k]);
        continue;
      }
      const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
      const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = hash;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
      const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + t1;
      d = c;
      c = b;
      b = a;
      a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> add = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) hash[i] += add[i];
  }
  std::string out;
  for (const std::uint32_t word : hash) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(word >> shift & 0xFF));
  }
  return out;
}

}  // namespace sluice::test

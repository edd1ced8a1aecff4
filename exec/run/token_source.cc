#include "exec/run/token_source.h"

#include <fmt/format.h>

#include <limits>

#include "model/errors.h"
#include "model/input/files.h"

namespace sluice::exec {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection that spreads every bit.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr std::uint64_t mixed(std::uint64_t a, std::uint64_t b) { return mixed(mixed(a) ^ b); }
constexpr std::uint64_t mixed(std::uint64_t a, std::uint64_t b, std::uint64_t c) { return mixed(mixed(a, b), c); }

// Returns a number from 0 to n - 1: the high word of random * n.
constexpr std::uint64_t below(std::uint64_t n, std::uint64_t random) {
  constexpr std::uint64_t kLow = 0xffffffff;
  const std::uint64_t a = (random & kLow) * (n & kLow);
  const std::uint64_t b = (random >> 32) * (n & kLow) + (a >> 32);
  const std::uint64_t c = (random & kLow) * (n >> 32) + (b & kLow);
  return (random >> 32) * (n >> 32) + (b >> 32) + (c >> 32);
}

std::uint64_t bits(std::int64_t x) { return static_cast<std::uint64_t>(x); }

}  // namespace

TokenSource::TokenSource(int vocabulary, std::int64_t sequence_length, std::uint64_t seed)
    : vocabulary_(vocabulary), sequence_length_(sequence_length), seed_(seed) {
  if (sequence_length < 1 || sequence_length > std::numeric_limits<std::int32_t>::max()) {
    throw InputError(fmt::format("sequence length: expected a whole number from 1 to {}, got {}",
                                 std::numeric_limits<std::int32_t>::max(), sequence_length));
  }
}

TokenSource TokenSource::of_text(const std::string& path, int vocabulary, std::int64_t sequence_length,
                                 std::uint64_t seed) {
  TokenSource source(vocabulary, sequence_length, seed);
  if (vocabulary < 256) {
    throw InputError(
        fmt::format("{}: the bytes of a text are tokens 0 to 255: expected a vocabulary of at least 256, got {}", path,
                    vocabulary));
  }
  source.text_ = read_file(path, std::int64_t{1} << 36);
  if (std::ssize(source.text_) < sequence_length + 1) {
    throw InputError(fmt::format("{}: expected at least {} bytes, one more than the sequence length, got {}", path,
                                 sequence_length + 1, source.text_.size()));
  }
  return source;
}

TokenSource TokenSource::synthetic(int vocabulary, std::int64_t sequence_length, std::uint64_t seed) {
  if (vocabulary < 2) {
    throw InputError(fmt::format("synthetic tokens: expected a vocabulary of at least 2, got {}", vocabulary));
  }
  return {vocabulary, sequence_length, seed};
}

void TokenSource::fill(std::int64_t step, std::int64_t first_sequence, int sequences, std::int64_t first_token,
                       std::int64_t num_tokens, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  const auto count = static_cast<std::size_t>(num_tokens);
  for (int s = 0; s < sequences; ++s) {
    const std::uint64_t sample = mixed(seed_, bits(step), bits(first_sequence + s));
    const auto row = tokens.subspan(static_cast<std::size_t>(s) * count, count);
    const auto next = targets.subspan(static_cast<std::size_t>(s) * count, count);
    if (text_.empty()) {
      fill_synthetic(sample, first_token, row, next);
      continue;
    }
    const std::uint64_t places = text_.size() - static_cast<std::size_t>(sequence_length_);
    const char* from = text_.data() + below(places, sample) + first_token;
    for (std::size_t i = 0; i < count; ++i) {
      row[i] = static_cast<unsigned char>(from[i]);
      next[i] = static_cast<unsigned char>(from[i + 1]);
    }
  }
}

std::int32_t TokenSource::successor(std::int32_t token, std::uint64_t random) const {
  const std::uint64_t eighth = random >> 61;
  const std::uint64_t choice = eighth < 4 ? 0 : eighth < 6 ? 1 : eighth - 4;
  return static_cast<std::int32_t>(
      below(static_cast<std::uint64_t>(vocabulary_), mixed(~seed_, static_cast<std::uint64_t>(token), choice)));
}

// The chain is generated from its start, whichever part of it is requested.
void TokenSource::fill_synthetic(std::uint64_t sample, std::int64_t first_token, std::span<std::int32_t> tokens,
                                 std::span<std::int32_t> targets) const {
  auto token = static_cast<std::int32_t>(below(static_cast<std::uint64_t>(vocabulary_), sample));
  for (std::int64_t i = 0; i < first_token + std::ssize(tokens); ++i) {
    const std::int32_t next = successor(token, mixed(sample, bits(i)));
    if (i >= first_token) {
      tokens[i - first_token] = token;
      targets[i - first_token] = next;
    }
    token = next;
  }
}

}  // namespace sluice::exec

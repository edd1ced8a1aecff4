#include "benchmarks/kernels/one_gpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "exec/device/provider.h"

namespace sluice::bench {

Memory::~Memory() {
  for (std::byte* const held : held_) device_.release(held);
}

std::byte* Memory::room(std::int64_t bytes) { return held_.emplace_back(device_.allocate(bytes)); }

std::byte* Memory::numbers(std::int64_t count, std::uint32_t seed, float deviation) {
  std::byte* const out = room(count * 2);
  write_numbers(out, count, seed, deviation);
  return out;
}

void Memory::write_numbers(std::byte* to, std::int64_t count, std::uint32_t seed, float deviation, float mean) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  // The upper half of a float32 is a bfloat16 rounded towards zero.
  std::vector<std::uint16_t> some(65521);
  for (auto& number : some) number = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  const auto known = std::min(count, static_cast<std::int64_t>(some.size()));
  std::byte* const host = device_.allocate_host(known * 2);
  std::memcpy(host, some.data(), static_cast<std::size_t>(known) * 2);
  device_.copy(to, host, known * 2, *stream_);
  for (std::int64_t done = known; done < count;) {
    const std::int64_t next = std::min(done, count - done);
    device_.copy(to + done * 2, to, next * 2, *stream_);
    done += next;
  }
  device_.synchronize(*stream_);
  device_.release_host(host);
}

std::vector<float> Memory::read(const void* from, std::int64_t count, Element element) const {
  std::byte* const host = device_.allocate_host(count * bytes_of(element));
  device_.copy(host, from, count * bytes_of(element), *stream_);
  device_.synchronize(*stream_);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (element == Element::float32) {
      std::memcpy(&out[i], host + i * 4, 4);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, host + i * 2, 2);
      out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
  }
  device_.release_host(host);
  return out;
}

double relative_error(const std::vector<float>& out, const std::vector<float>& reference) {
  double difference = 0;
  double all = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    difference += std::pow(double{out[i]} - double{reference[i]}, 2);
    all += std::pow(double{reference[i]}, 2);
  }
  return std::sqrt(difference / all);
}

const Gpu& gpu() {
  static const Gpu one = [] {
    Gpu made{.device = std::move(device_provider()->open({.kind = DeviceRequest::gpu, .count = 1}).front())};
    made.device->make_current();
    Memory memory(*made.device);
    const auto stream = made.device->make_stream(StreamPriority::normal);
    constexpr std::int64_t kSide = 8192;
    const GemmCall product{.rows = kSide,
                           .columns = kSide,
                           .inner = kSide,
                           .a = memory.numbers(kSide * kSide, 1),
                           .a_stride = kSide,
                           .b = memory.numbers(kSide * kSide, 2),
                           .b_stride = kSide,
                           .c = memory.room(kSide * kSide * 2),
                           .c_stride = kSide};
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 20; ++i) {
      least = std::min(least, seconds(*made.device, *stream, [&] { made.device->multiply(product, *stream); }));
    }
    made.peak = 2.0 * kSide * kSide * kSide / least;
    return made;
  }();
  return one;
}

}  // namespace sluice::bench

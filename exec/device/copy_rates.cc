#include <algorithm>
#include <cstddef>

#include "exec/device/provider.h"

namespace sluice::exec {
namespace {

constexpr std::int64_t kManyBytes = std::int64_t{64} << 20;
constexpr std::int64_t kFewBytes = 4096;
constexpr int kCopies = 4;

// A memory block, and the device whose streams copy from and to it.
struct Place {
  std::string name;
  Device* device = nullptr;
  std::byte* memory = nullptr;
};

// Returns the shortest time of several copies after a warm-up.
std::int64_t shortest_ns(Device& device, const Place& from, const Place& to, std::int64_t bytes) {
  device.make_current();
  const auto stream = device.make_stream(StreamPriority::normal);
  const auto begin = device.make_event();
  const auto end = device.make_event();
  std::int64_t least = 0;
  for (int copy = 0; copy <= kCopies; ++copy) {
    device.record(*begin, *stream);
    device.copy(to.memory, from.memory, bytes, *stream);
    device.record(*end, *stream);
    device.synchronize(*end);
    const std::int64_t took = device.nanoseconds_between(*begin, *end);
    if (copy == 1 || (copy > 1 && took < least)) least = took;
  }
  return std::max<std::int64_t>(least, 1);
}

CopyRate rate_of(Device& device, const Place& from, const Place& to) {
  const std::int64_t many = shortest_ns(device, from, to, kManyBytes);
  const std::int64_t few = shortest_ns(device, from, to, kFewBytes);
  return {from.name, to.name, 1e9 * static_cast<double>(kManyBytes) / static_cast<double>(many),
          1e-9 * static_cast<double>(few)};
}

}  // namespace

std::vector<CopyRate> measured_copies(std::span<const std::unique_ptr<Device>> devices) {
  std::vector<CopyRate> rates;
  std::vector<Place> places;
  for (const auto& device : devices) {
    device->make_current();
    places.push_back({"GPU " + std::to_string(device->ordinal()), device.get(), device->allocate(kManyBytes)});
  }
  for (const Place& place : places) {
    place.device->make_current();
    const Place host{"host", place.device, place.device->allocate_host(kManyBytes)};
    rates.push_back(rate_of(*place.device, host, place));
    rates.push_back(rate_of(*place.device, place, host));
    place.device->release_host(host.memory);
  }
  for (const Place& from : places) {
    for (const Place& to : places) {
      if (&from != &to) rates.push_back(rate_of(*from.device, from, to));
    }
  }
  for (const Place& place : places) {
    place.device->make_current();
    place.device->release(place.memory);
  }
  return rates;
}

}  // namespace sluice::exec

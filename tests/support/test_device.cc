#include "tests/support/test_device.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstring>

namespace sluice::test {
namespace {

constexpr std::int64_t kDeviceGuard = 256;
constexpr std::byte kDeviceGuardByte{0xA5};

template <class T>
std::vector<std::byte> bytes_of_numbers(const std::vector<double>& numbers) {
  std::vector<std::byte> out(numbers.size() * sizeof(T));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const T number(static_cast<float>(numbers[i]));
    std::memcpy(out.data() + i * sizeof(T), &number, sizeof(T));
  }
  return out;
}

template <class T>
std::vector<double> numbers_of_bytes(std::span<const std::byte> bytes) {
  std::vector<double> out(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T number{};
    std::memcpy(&number, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(static_cast<float>(number));
  }
  return out;
}

}  // namespace

DeviceMemory::DeviceMemory(Device& device, Stream& stream, std::int64_t bytes)
    : device_(device),
      stream_(stream),
      memory_(device.allocate(bytes + 2 * kDeviceGuard)),
      host_(device.allocate_host(bytes + 2 * kDeviceGuard)),
      data_(memory_ + kDeviceGuard),
      size_(bytes) {
  begin();
}

DeviceMemory::DeviceMemory(Device& device, std::int64_t bytes)
    : device_(device),
      own_stream_(device.make_stream(StreamPriority::normal)),
      stream_(*own_stream_),
      memory_(device.allocate(bytes + 2 * kDeviceGuard)),
      host_(device.allocate_host(bytes + 2 * kDeviceGuard)),
      data_(memory_ + kDeviceGuard),
      size_(bytes) {
  begin();
}

void DeviceMemory::begin() {
  std::fill_n(host_, size_ + 2 * kDeviceGuard, kDeviceGuardByte);
  copy(memory_, host_, size_ + 2 * kDeviceGuard);
  fill(std::byte{0xff});
}

DeviceMemory::~DeviceMemory() {
  device_.release(memory_);
  device_.release_host(host_);
}

void DeviceMemory::copy(std::byte* to, const std::byte* from, std::int64_t bytes) const {
  device_.copy(to, from, bytes, stream_);
  device_.synchronize(stream_);
}

void DeviceMemory::fill(std::byte value) {
  std::fill_n(host_, size_, value);
  copy(data_, host_, size_);
}

void DeviceMemory::write(std::span<const std::byte> bytes) {
  std::copy(bytes.begin(), bytes.end(), host_);
  copy(data_, host_, static_cast<std::int64_t>(bytes.size()));
}

std::vector<std::byte> DeviceMemory::read() const {
  copy(host_, data_, size_);
  return {host_, host_ + size_};
}

bool DeviceMemory::intact() const {
  copy(host_, memory_, size_ + 2 * kDeviceGuard);
  const auto is_guard = [](std::byte b) { return b == kDeviceGuardByte; };
  return std::all_of(host_, host_ + kDeviceGuard, is_guard) &&
         std::all_of(host_ + kDeviceGuard + size_, host_ + size_ + 2 * kDeviceGuard, is_guard);
}

std::vector<std::byte> as_bytes(Element element, const std::vector<double>& numbers) {
  switch (element) {
    case Element::float16: return bytes_of_numbers<Eigen::half>(numbers);
    case Element::bfloat16: return bytes_of_numbers<Eigen::bfloat16>(numbers);
    case Element::float32: break;
  }
  return bytes_of_numbers<float>(numbers);
}

std::vector<double> as_numbers(Element element, std::span<const std::byte> bytes) {
  switch (element) {
    case Element::float16: return numbers_of_bytes<Eigen::half>(bytes);
    case Element::bfloat16: return numbers_of_bytes<Eigen::bfloat16>(bytes);
    case Element::float32: break;
  }
  return numbers_of_bytes<float>(bytes);
}

std::vector<double> rounded(Element element, const std::vector<double>& numbers) {
  return as_numbers(element, as_bytes(element, numbers));
}

double relative_error(const std::vector<double>& out, const std::vector<double>& reference) {
  double difference = 0;
  double all = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    difference += (out.at(i) - reference[i]) * (out[i] - reference[i]);
    all += reference[i] * reference[i];
  }
  return std::sqrt(difference / all);
}

double allowed_error(Element element) { return element == Element::float16 ? 2e-3 : 1e-2; }

}  // namespace sluice::test

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "exec/device/provider.h"
#include "model/errors.h"

namespace sluice::exec {
namespace {

constexpr std::array<std::pair<std::string_view, DeviceRequest::Kind>, 3> kKinds = {
    {{"gpu", DeviceRequest::gpu}, {"green", DeviceRequest::green}, {"stream", DeviceRequest::stream}}};

[[noreturn]] void refuse(const std::string& text) {
  throw InputError(
      fmt::format("devices: expected gpu, gpu:N, green:N or stream:N with N from 1 to 1024, got '{}'", text));
}

}  // namespace

DeviceRequest parse_devices(const std::string& text) {
  constexpr int kMost = 1024;
  const std::string_view all = text;
  const std::size_t colon = all.find(':');
  DeviceRequest request;
  const auto* const kind = std::find_if(kKinds.begin(), kKinds.end(),
                                        [&](const auto& known) { return known.first == all.substr(0, colon); });
  if (kind == kKinds.end()) refuse(text);
  request.kind = kind->second;
  if (colon == std::string_view::npos) {
    if (request.kind != DeviceRequest::gpu) refuse(text);
    return request;
  }
  const std::string_view count = all.substr(colon + 1);
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), request.count);
  if (error != std::errc() || end != count.data() + count.size() || request.count < 1 || request.count > kMost) {
    refuse(text);
  }
  return request;
}

std::string to_string(const DeviceRequest& request) {
  std::string text(kKinds[request.kind].first);
  if (request.count != 0) text += fmt::format(":{}", request.count);
  return text;
}

void require_bfloat16(const Device& device) {
  if (device.has_bfloat16()) return;
  throw InputError(fmt::format("{} is sm_{}: bfloat16 needs sm_80 or later; use float16, which runs with a loss scale",
                               device.name(), device.compute_capability()));
}

int ordinal_of(int local_rank, int visible) { return visible > 0 ? local_rank % visible : 0; }

}  // namespace sluice::exec

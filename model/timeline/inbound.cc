#include "model/timeline/inbound.h"

#include <algorithm>

#include "model/to_size.h"

namespace sluice::model {

void Inbound::receive(Duration time, std::int64_t& bytes, Duration& last) {
  for (std::size_t i = first_; i < transfers_.size() && transfers_[i].start < time; ++i) {
    Transfer& each = transfers_[i];
    const std::int64_t begun =
        1 + (each.growth > Duration{0}
                 ? std::min<std::int64_t>(copies_, (time - Duration{1} - each.start) / each.growth)
                 : 0);
    if (begun > each.received && each.bytes > 0) {
      bytes += (begun - each.received) * each.bytes;
      last = std::max(last, each.start + (begun - 1) * each.growth);
    }
    each.received = begun;
  }
  const auto done = [&](const Transfer& of) { return of.received == (of.growth > Duration{0} ? copies_ + 1 : 1); };
  while (first_ < transfers_.size() && done(transfers_[first_])) ++first_;
}

std::optional<std::int64_t> Inbound::most_in(Duration length, Duration begin, Duration end) const {
  const auto repeats = [](const Transfer& of) { return of.growth > Duration{0}; };
  const auto first = std::find_if(transfers_.begin(), transfers_.end(), repeats);
  const auto per_block = std::find_if_not(first, transfers_.end(), repeats) - first;
  if (per_block == 0) return transfers_.empty() ? std::optional<std::int64_t>(0) : std::nullopt;
  Duration apart = Duration::max();
  std::int64_t bytes = 0;  // of a block
  for (std::ptrdiff_t i = 0; i < std::ssize(transfers_); ++i) {
    const Transfer& late = transfers_[to_size(i)];
    if (i < per_block) {
      std::int64_t most = 0;
      for (auto k = to_size(i); k < transfers_.size(); k += to_size(per_block)) {
        most = std::max(most, transfers_[k].bytes);
      }
      bytes += most;
      continue;
    }
    const Transfer& early = transfers_[to_size(i - per_block)];
    if (late.start <= begin || early.start > end) continue;
    apart = std::min(apart, repeats(early) ? early.growth : late.start - early.start);
  }
  if (apart <= Duration{0}) return std::nullopt;
  if (apart == Duration::max()) return 0;  // none starts then
  return bytes * ((length + apart - Duration{1}) / apart);
}

}  // namespace sluice::model

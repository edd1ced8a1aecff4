#include "model/slicing/slice_times.h"

#include <fmt/format.h>

#include <utility>

#include "model/errors.h"

namespace sluice::model {

Duration SliceTimes::time(std::int64_t begin, std::int64_t granules) const {
  std::vector<Duration> out(static_cast<std::size_t>(granules));
  row(begin * granularity, out);
  return out.back();
}

SliceTimes slice_times(std::int64_t tokens, std::int64_t granularity,
                       std::function<Duration(std::int64_t tokens, std::int64_t context)> time) {
  auto row = [tokens, granularity, time = std::move(time)](std::int64_t context, std::span<Duration> out) {
    std::int64_t end = context;
    for (Duration& entry : out) {
      end = std::min(end + granularity, tokens);
      entry = time(end - context, context);
    }
  };
  return {.tokens = tokens, .granularity = granularity, .row = std::move(row)};
}

SliceTimes tabulated_times(std::int64_t tokens, std::int64_t granularity,
                           std::vector<std::vector<Duration>> by_context) {
  const std::int64_t granules = granularity > 0 ? (tokens + granularity - 1) / granularity : 0;
  if (std::ssize(by_context) < granules) {
    throw InputError(fmt::format("expected {} rows of times, one for each granule of {} tokens of {}, got {}", granules,
                                 granularity, tokens, by_context.size()));
  }
  for (std::int64_t j = 0; j < granules; ++j) {
    if (std::ssize(by_context[j]) < granules - j) {
      throw InputError(fmt::format("expected {} times after a prefix of {} tokens, got {}", granules - j,
                                   j * granularity, by_context[j].size()));
    }
  }
  auto row = [granularity, table = std::move(by_context)](std::int64_t context, std::span<Duration> out) {
    std::copy_n(table[context / granularity].begin(), out.size(), out.begin());
  };
  return {.tokens = tokens, .granularity = granularity, .row = std::move(row)};
}

}  // namespace sluice::model

#include "tests/support/shapes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

#include "model/errors.h"

namespace sluice::test {

Schedule make(const std::string& name, const Shape& shape) {
  const Family& family = find_family(name);
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(shape.k), 1);
  return make_schedule(family, {.ranks = shape.p,
                                .chunks = family.fixed_chunks == 0 ? shape.v : 0,
                                .microbatches = shape.m,
                                .batches = shape.batches,
                                .group = shape.group,
                                .shape = {.sequences = 1, .slice_lengths = lengths}});
}

int for_shapes(const std::string& name, const Limits& limits, const std::function<bool(const Shape&)>& in_range,
               const std::function<void(const Shape&, const Schedule&)>& check) {
  const Family& family = find_family(name);
  const int chunks = family.fixed_chunks == 0 ? limits.chunks : 1;
  const int slices = family.sliced ? limits.slices : 1;
  const int batches = family.asynchronous ? limits.batches : 1;
  int checked = 0;
  const auto check_one = [&](const Shape& shape) {
    if (!in_range(shape)) return;
    std::optional<Schedule> schedule;
    try {
      schedule = make(name, shape);
    } catch (const InputError&) {
      return;
    }
    ++checked;
    SCOPED_TRACE(fmt::format("{} p={} m={} v={} k={} G={} batches={}", name, shape.p, shape.m, shape.v, shape.k,
                             shape.group, shape.batches));
    check(shape, *schedule);
  };
  for (int p = 1; p <= limits.ranks; ++p) {
    for (int m = 1; m <= limits.microbatches; ++m) {
      for (int v = 1; v <= chunks; ++v) {
        for (int k = 1; k <= slices; ++k) {
          for (int group = 0; group <= (family.grouped ? m * k : 0); ++group) {
            for (int b = 1; b <= batches && !testing::Test::HasFatalFailure(); ++b) {
              check_one({.p = p, .m = m, .v = v, .k = k, .group = group, .batches = b});
            }
          }
        }
      }
    }
  }
  return checked;
}

Schedule repeated(const Schedule& schedule, int times) {
  ScheduleParts parts = schedule.parts();
  parts.num_microbatches *= times;
  parts.route_of.clear();
  for (int i = 0; i < times; ++i) {
    parts.route_of.insert(parts.route_of.end(), schedule.parts().route_of.begin(), schedule.parts().route_of.end());
  }
  for (auto& order : parts.orders) {
    const std::vector<Op> once = order;
    for (int i = 1; i < times; ++i) {
      for (Op op : once) {
        op.microbatch += i * schedule.num_microbatches();
        order.push_back(op);
      }
    }
  }
  return Schedule(parts);
}

}  // namespace sluice::test

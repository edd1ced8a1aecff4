#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

namespace detail {

template <typename T>
T nth_smallest(std::vector<T>& values, std::size_t n) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(n);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace detail

// The medians of `values`, T{} if there are none. They differ with an even number of values: of the two in the middle,
// the larger, the smaller or the mean.
template <typename T>
T upper_median(std::vector<T> values) {
  return values.empty() ? T{} : detail::nth_smallest(values, values.size() / 2);
}

template <typename T>
T lower_median(std::vector<T> values) {
  return values.empty() ? T{} : detail::nth_smallest(values, (values.size() - 1) / 2);
}

template <typename T>
T median(std::vector<T> values) {
  if (values.size() % 2 == 1 || values.empty()) return upper_median(std::move(values));
  const T upper = detail::nth_smallest(values, values.size() / 2);
  return (upper + *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2))) /
         2;
}

}  // namespace sluice::model

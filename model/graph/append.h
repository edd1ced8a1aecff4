#pragma once

#include <vector>

namespace sluice::model {

// As push_back, with the reallocation apart, so that a function with [[gnu::flatten]] keeps its values in registers.
template <typename T>
[[gnu::noinline]] void grow(std::vector<T>& list) {
  list.reserve(2 * list.capacity() + 1);
}
template <typename T>
void append(std::vector<T>& list, const T& value) {
  if (list.size() == list.capacity()) grow(list);
  if (list.size() == list.capacity()) __builtin_unreachable();
  list.push_back(value);
}

}  // namespace sluice::model

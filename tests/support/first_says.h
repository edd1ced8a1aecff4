#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <latch>
#include <span>
#include <vector>

namespace sluice::test {

// Passes the bytes of rank 0, once, to the other ranks, which are threads. Must outlive the functions that it returns.
class FirstSays {
 public:
  std::function<void(std::span<std::byte>)> to(int rank) {
    return [this, rank](std::span<std::byte> bytes) {
      if (rank == 0) {
        said_.assign(bytes.begin(), bytes.end());
        written_.count_down();
      }
      written_.wait();
      std::copy(said_.begin(), said_.end(), bytes.begin());
    };
  }

 private:
  std::vector<std::byte> said_;
  std::latch written_{1};
};

}  // namespace sluice::test

// The entry point of libFuzzer, compiled once per target.

#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  SLUICE_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}

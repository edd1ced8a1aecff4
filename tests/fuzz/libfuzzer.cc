// The entry points of libFuzzer. One program has all targets, because linking it takes seconds.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/targets.h"

namespace {

const sluice::test::fuzz::Target* selected = nullptr;

}  // namespace

// SLUICE_FUZZ_TARGET names the target.
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  using sluice::test::fuzz::kTargets;
  const char* const name = std::getenv("SLUICE_FUZZ_TARGET");
  const std::string_view wanted = name != nullptr ? name : "";
  const auto* const found =
      std::find_if(kTargets.begin(), kTargets.end(), [&](const auto& target) { return target.name == wanted; });
  if (found == kTargets.end()) {
    std::fputs("fuzz: SLUICE_FUZZ_TARGET: expected the name of a target in tests/fuzz/targets.h\n", stderr);
    std::exit(2);
  }
  selected = found;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  selected->run({reinterpret_cast<const char*>(data), size});
  return 0;
}

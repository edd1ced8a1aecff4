#include "benchmarks/kernels/gpu_main.h"

#include <cstdio>
#include <exception>

#include "exec/device/provider.h"

namespace sluice::bench {
namespace {
bool any_failed = false;
}

void fail(benchmark::State& state, const std::string& what) {
  any_failed = true;
  state.SkipWithError(what.c_str());
}

}  // namespace sluice::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const std::string why = sluice::exec::why_no_devices();
  if (!why.empty()) {
    std::printf("nothing timed: %s\n", why.c_str());
    return 0;
  }
  try {
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  benchmark::Shutdown();
  return sluice::bench::any_failed ? 1 : 0;
}

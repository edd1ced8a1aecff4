#!/usr/bin/env bash
# Everything that must pass before a change is merged: format, release build and tests, the same under the address and
# undefined-behaviour sanitizers (with SLUICE_TEST_SCOPE=small, set by the test preset), the executor's under the thread
# sanitizer, a minute of fuzzing, clang-tidy.
# SLUICE_TIDY=all|no overrides the choice of files for clang-tidy. SLUICE_FUZZ_SECONDS sets the time of all fuzz targets
# together. SLUICE_JOBS sets how many jobs run at once.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${SLUICE_JOBS:-$(nproc)}
step() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

step "packages"
tools/install-packages.sh clang-format clang-tidy libsimgrid-dev clang libclang-rt-dev zsh fish mandoc file dpkg-dev

step "clang-format"
git ls-files -z -- '*.cc' '*.h' '*.cu' '*.cu' '*.cuh' | xargs -0 -n 16 -P "$jobs" clang-format --dry-run --Werror

step "browser"
tests/browser/install.sh

for preset in release dev; do
  step "build $preset"
  cmake --preset "$preset"
  cmake --build --preset "$preset" -j "$jobs"
  step "test $preset"
  ctest --preset "$preset" -j "$jobs" 2>&1 | tee "build/$preset/ctest.log"
done

step "build tsan"
cmake --preset tsan
cmake --build --preset tsan -j "$jobs"
step "test tsan"
ctest --preset tsan -j "$jobs" 2>&1 | tee build/tsan/ctest.log

step "fuzz"
tools/fuzz.sh "${SLUICE_FUZZ_SECONDS:-60}"

step "clang-tidy"
tools/tidy.sh "$jobs"

step "summary"
for preset in release dev tsan; do
  printf '%s: ' "$preset"
  grep -E 'tests passed' "build/$preset/ctest.log"
done

#!/usr/bin/env bash
# tools/test.sh [--all]: installs what the build needs, builds the release preset and runs its tests. On a bare Debian 12
# machine this is all that is needed. With --all, exhaustive tests try all their cases, which takes some minutes longer.
# SLUICE_JOBS sets the number of concurrent jobs (default: the number of cores). tools/check.sh has the deeper checks.
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
if [ "${1:-}" = --all ]; then
  export SLUICE_TEST_SCOPE=all
  shift
fi
takes_no_arguments "$@"

jobs=${SLUICE_JOBS:-$(nproc)}

step "packages" tools/install-packages.sh &&
  step "configure release" cmake --preset release &&
  step "build release" cmake --build --preset release -j "$jobs" &&
  step "test release" run_tests release "$jobs"
mkdir -p build/times
steps_summary "tools/test.sh" | tee build/times/test.txt

#!/usr/bin/env bash
# The checks beyond tools/test.sh: format, tests under the address, undefined-behavior and thread sanitizers, benchmarks,
# instruction counts, fuzzing, clang-tidy, the report in a browser, scripts with PyTorch, the Python package, and the site.
# Expects the release build of tools/test.sh.
# A failing step does not keep the later ones from running; all results are listed at the end.
# tools/check.sh --install-only: installs the packages and ends.
# SLUICE_JOBS: number of concurrent jobs. SLUICE_FUZZ_SECONDS: time of all fuzz targets together (default 60).
# SLUICE_TIDY=all|no: all files get the clang-analyzer checks (default: those that changed); no clang-tidy.
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh

jobs=${SLUICE_JOBS:-$(nproc)}

check_format() {
  git ls-files -z -- '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 -n 64 -P "$jobs" clang-format --dry-run --Werror
}
build() { cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs"; }
browser() {
  # The command with the engine of live pages, which Emscripten compiles.
  tests/browser/install.sh || return
  if command -v em++ >/dev/null; then
    cmake --preset release -DSLUICE_LIVE=ON >/dev/null && cmake --build --preset release -j "$jobs" --target sluice || return
  fi
  ctest --preset release -L browser
}

pytorch() {
  tests/pytorch/install.sh && SLUICE_TEST_PYTHON=$PWD/build/pytorch/bin/python ctest --preset release -R ProfileLike
}

python_package() {
  local code=0
  tests/python/check.sh || code=$?
  [ $code -eq 0 ] || [ $code -eq 77 ]
}

# With the package that the step before has installed beside PyTorch.
site() {
  local python=$PWD/build/pytorch/bin/python code=0
  if ! "$python" -c 'import sluice, torch' 2>/dev/null; then
    echo "SKIPPED: build/pytorch has no sluice: the site was not built" >&2
    return
  fi
  SLUICE_PYTHON=$python tools/site.sh && tests/browser/run.sh --site build/site || code=$?
  [ $code -eq 0 ] || [ $code -eq 77 ]
}

install() {
  tools/install-packages.sh clang clang-format clang-tidy libclang-rt-dev libsimgrid-dev zsh fish mandoc file dpkg-dev \
    emscripten valgrind
}

case ${1:-} in
  "") ;;
  --install-only)
    install
    exit
    ;;
  *) takes_no_arguments "$@" ;;
esac
step "packages" install
step "format" check_format
for preset in dev tsan; do
  step "build $preset" build "$preset" && step "test $preset" run_tests "$preset" "$jobs"
done
step "benchmarks" cmake --build --preset release -j "$jobs" --target sluice_benchmarks
step "instructions" tools/instructions.sh
step "fuzz" tools/fuzz.sh "${SLUICE_FUZZ_SECONDS:-60}"
step "clang-tidy" tools/tidy.sh "$jobs"
step "browser" browser
step "PyTorch" pytorch
step "Python package" python_package
step "site" site
mkdir -p build/times
steps_summary "tools/check.sh" | tee build/times/check.txt

#!/usr/bin/env bash
# tools/packed_command.sh FOLDER: builds the command in build/bundle for x86-64 Linux with glibc 2.28 or newer, and installs it
# into FOLDER with its manual page, shell completions, examples, documentation and licenses. For tools/bundle.sh and
# tools/wheel.sh. SLUICE_INSTALL and SLUICE_JOBS as there.
set -euo pipefail
folder=$(realpath -m "${1:?usage: tools/packed_command.sh FOLDER}")
cd "$(dirname "$0")/.."

build=build/bundle
fail() {
  echo "packed_command.sh: $*" >&2
  exit 1
}
[ "$(uname -sm)" = "Linux x86_64" ] || fail "packages are built on x86-64 Linux, not on $(uname -sm)"
tools/install-packages.sh binutils emscripten python3-venv
tools/glibc/stubs.sh build/glibc
cmake --preset bundle
cmake --build --preset bundle -j "${SLUICE_JOBS:-$(nproc)}"
cmake --install "$build" --prefix "$folder" --component command --strip >/dev/null
# The licenses of what is linked statically (that of Boost does not ask for it).
licenses=$folder/share/doc/sluice/licenses
mkdir "$licenses"
for package in libcli11-dev libeigen3-dev libfmt-dev libopenblas-dev libprotobuf-dev libstdc++-*-dev libtomlplusplus-dev libyaml-cpp-dev nlohmann-json3-dev zlib1g-dev; do
  for file in /usr/share/doc/$package/copyright; do
    [ -r "$file" ] || fail "$file is missing: packages contain the licenses of what is linked statically"
    cp "$file" "$licenses/$(basename "$(dirname "$file")")"
  done
done
tools/bundle.sh --check "$folder/bin/sluice"
grep -o 'SLUICE_SUMMARY:INTERNAL=.*' "$build/CMakeCache.txt" | tr ';' '\n' | sed -nE 's/^(CUDA|OpenBLAS|live pages)\|(.*)/\1: \2/p'

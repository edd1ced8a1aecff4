#!/usr/bin/env bash
# Builds build/packages/sluice-VERSION-*-manylinux_2_28_x86_64.whl: the Python package and the sluice command, for
# `pip install` on machines without build tools. See docs/bundle.md.
set -euo pipefail
start=$PWD
cd "$(dirname "$0")/.."

output=build/packages
pythons=()
usage() {
  cat <<END
usage: tools/wheel.sh [--output DIR] [--python PYTHON]...

Builds wheels that pip installs on x86-64 Linux with glibc 2.28 or newer (RHEL 8, Debian 10, Ubuntu 20.04), one for each
PYTHON; one that is built with CPython 3.12 or newer is for all of these. They contain the Python package, and what
tools/bundle.sh packs: the command with its manual page, shell completions, examples and documentation. They need no
library but the C library.

  --output DIR     folder of the wheels (default: $output)
  --python PYTHON  interpreter, with its headers, to build a wheel for; can be repeated (default: python3)
  --help           print this text

Builds are in build/bundle and build/wheel-*. SLUICE_INSTALL=no installs no packages of the system; pip needs PyPI or its
copy. SLUICE_JOBS sets the number of parallel compile jobs.
END
}
from_start() { case $1 in /*) echo "$1" ;; *) echo "$start/$1" ;; esac; }
fail() {
  echo "wheel.sh: $*" >&2
  exit 1
}
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h)
      usage
      exit 0
      ;;
    --output | --python)
      [ $# -gt 1 ] || fail "$1 needs a value"
      case $1 in
        --output) output=$(from_start "$2") ;;
        --python) case $2 in */*) pythons+=("$(from_start "$2")") ;; *) pythons+=("$2") ;; esac ;;
      esac
      shift
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift
done
[ ${#pythons[@]} -gt 0 ] || pythons=(python3)
for python in "${pythons[@]}"; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9) or sys.implementation.name != "cpython")' 2>/dev/null || fail "$python is not CPython 3.9 or newer"
done

source tools/steps.sh  # for ccache
rm -rf build/command
tools/packed_command.sh build/command
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$output"
export CXX=${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=${SLUICE_JOBS:-$(nproc)}

# build PYTHON FOLDER: builds the wheel in FOLDER/wheel, and checks each program and library in it.
build() {
  "$1" -m venv "$2/venv"
  "$2/venv/bin/pip" install --quiet wheel
  # Warnings are errors as in the build of the command: ccache has its libraries.
  "$2/venv/bin/pip" wheel --quiet --no-deps --wheel-dir "$2" --config-settings=build-dir=build/wheel-{wheel_tag} \
    --config-settings=cmake.define.SLUICE_WERROR=ON --config-settings=cmake.define.SLUICE_STATIC=ON \
    --config-settings=cmake.define.SLUICE_GLIBC_STUBS="$PWD/build/glibc" \
    --config-settings=cmake.define.SLUICE_COMMAND_PREFIX="$PWD/build/command" .
  "$2/venv/bin/python" -m zipfile -e "$2"/sluice-*.whl "$2/files"
  local file files=0
  while IFS= read -r -d '' file; do
    readelf -h "$file" >/dev/null 2>&1 || continue
    echo "${file#"$2/files/"} $(tools/bundle.sh --check "$file")"
    files=$((files + 1))
  done < <(find "$2/files" -type f -print0)
  [ "$files" -ge 2 ] || fail "$files programs and libraries are in the wheel: the command or the extension is missing"
  "$2/venv/bin/python" -m wheel tags --remove --platform-tag manylinux_2_28_x86_64 "$2"/sluice-*.whl
}
# try PYTHON WHEEL FOLDER: installs the wheel in a new environment, and runs it from another folder.
try() {
  "$1" -m venv "$3"
  "$3/bin/pip" install --quiet "$2"
  (cd "$3" && for command in "bin/sluice --version" "bin/sluice simulate share/sluice/examples/gpt3-175b-a100.json" \
    "bin/sluice simulate --schedule 1f1b --pp 4 --microbatches 8 --report live.html --live" "bin/sluice run --steps 2"; do
    # shellcheck disable=SC2086
    env -i $command >out 2>&1 || {
      cat out >&2
      fail "the installed '$command' fails"
    }
  done)
  (cd / && env -i "$3/bin/python" -c 'import sluice; assert sluice.simulate(pp=2, microbatches=4).makespan_s == 15') ||
    fail "the installed package of $1 fails"
}
for python in "${pythons[@]}"; do
  folder=$(mktemp -d -p "$work")
  build "$python" "$folder"
  wheel=$(echo "$folder"/sluice-*.whl)
  try "$python" "$wheel" "$folder/installed"
  mv "$wheel" "$output"
  echo "$output/${wheel##*/}: $(du -k --apparent-size "$output/${wheel##*/}" | awk '{printf "%.1f MiB", $1 / 1024}')"
done

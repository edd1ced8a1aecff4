#!/usr/bin/env bash
# tools/install-packages.sh [PACKAGE...]: installs the Debian or Ubuntu packages that the build needs, and PACKAGE... Does
# nothing if all are installed; otherwise needs root or sudo. SLUICE_INSTALL=no installs nothing.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config git
  libboost-graph-dev libboost-context-dev nlohmann-json3-dev libeigen3-dev libcli11-dev libfmt-dev zlib1g-dev libtbb-dev
  libtomlplusplus-dev libyaml-cpp-dev libprotobuf-dev protobuf-compiler
  libopenblas-dev libopenmpi-dev openmpi-bin
  libgtest-dev libgmock-dev libbenchmark-dev libexpat1-dev
  "$@"
)

if [ "${SLUICE_INSTALL:-yes}" = no ]; then
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install-packages.sh: apt-get is missing. Install the content of these Debian packages, then set SLUICE_INSTALL=no:" >&2
  echo "  ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  # A package that is installed for several architectures has one status per architecture.
  case "$status" in installed*) ;; *) missing+=("$package") ;; esac
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install-packages.sh: cannot install these packages without root or sudo:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  if ! ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    echo "install-packages.sh: apt-get $1 failed" >&2
    exit 1
  fi
}
apt update
apt install --no-install-recommends -y "${missing[@]}"

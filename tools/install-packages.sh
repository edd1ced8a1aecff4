#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Sluice builds with, and those named as arguments; only what is missing.
# Needs root or sudo only when something is missing. SLUICE_INSTALL=no leaves the machine as it is.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config git
  libboost-graph-dev libboost-context-dev nlohmann-json3-dev libeigen3-dev libcli11-dev libfmt-dev zlib1g-dev libtbb-dev
  libopenblas-dev libopenmpi-dev openmpi-bin
  libgtest-dev libgmock-dev libbenchmark-dev libexpat1-dev
  "$@"
)

if [ "${SLUICE_INSTALL:-yes}" = no ]; then
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install-packages.sh: no apt-get here. Install what these Debian packages hold, then set SLUICE_INSTALL=no:" >&2
  echo "  ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  # Packages that several architectures share are listed once for each.
  case "$status" in installed*) ;; *) missing+=("$package") ;; esac
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install-packages.sh: these packages are missing, and neither root nor sudo is there to install them:" >&2
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

#!/usr/bin/env bash
# Builds build/packages/sluice-VERSION-linux-x86_64.tar.xz: the sluice command with its manual page, shell completions,
# examples and documentation, for machines without root access or build tools. See docs/bundle.md.
set -euo pipefail
start=$PWD
cd "$(dirname "$0")/.."

output=build/packages
usage() {
  cat <<END
usage: tools/bundle.sh [--output DIR]
       tools/bundle.sh --check FILE

Builds sluice in build/bundle and packs it into a relocatable archive that runs on x86-64 Linux with glibc 2.28 or newer.
The command needs no shared library but the C library. It loads the NVIDIA driver, cuBLAS and NCCL at run time, and is
built without MPI: processes are started by srun or torchrun, and communicate over NCCL.

  --output DIR     folder of the archive and its checksum (default: $output)
  --check FILE     build nothing; check that the program or shared library FILE can be packed: it needs the C library
                   only, of a version that all these systems have, and has no library search path
  --help           print this text

SLUICE_INSTALL=no installs no packages. SLUICE_JOBS sets the number of parallel compile jobs.
END
}
from_start() { case $1 in /*) echo "$1" ;; *) echo "$start/$1" ;; esac; }
fail() {
  echo "bundle.sh: $*" >&2
  exit 1
}
newest_glibc=2.28  # that of RHEL 8
# check_file FILE: prints what it needs, or exits with an error.
check_file() {
  local dynamic libraries others glibc
  dynamic=$(readelf -d "$1")
  libraries=$(sed -nE 's/.*\(NEEDED\).*\[(.*)\]$/\1/p' <<<"$dynamic")
  others=$(grep -vE '^(libc|libm|libdl|librt|libpthread)\.so\.[0-9]+$|^ld-linux-x86-64\.so\.2$' <<<"$libraries" || true)
  [ -z "$others" ] || fail "$1 needs libraries other than the C library: ${others//$'\n'/ }"
  ! grep -qE '\((RPATH|RUNPATH)\)' <<<"$dynamic" || fail "$1 has a library search path"
  glibc=$(objdump -T "$1" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1) || fail "$1 is not linked with the C library"
  glibc=${glibc#GLIBC_}
  [ "$(printf '%s\n' "$glibc" "$newest_glibc" | sort -V | tail -n 1)" = "$newest_glibc" ] ||
    fail "$1 needs glibc $glibc, newer than $newest_glibc: link it with tools/glibc/stubs.sh"
  echo "needs glibc $glibc or newer and no other library (${libraries//$'\n'/ })"
}

while [ $# -gt 0 ]; do
  case $1 in
    --help | -h)
      usage
      exit 0
      ;;
    --output)
      output=$(from_start "${2:?bundle.sh: --output needs a folder}")
      shift
      ;;
    --output=*) output=$(from_start "${1#*=}") ;;
    --check)
      check_file "$(from_start "${2:?bundle.sh: --check needs a file}")"
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/install-packages.sh xz-utils
tools/packed_command.sh "$work/bundle"
version=$("$work/bundle/bin/sluice" --version | cut -d ' ' -f 2)
name=sluice-$version-linux-x86_64
bundle=$work/$name
mv "$work/bundle" "$bundle"
cp LICENSE README.md "$bundle"

mkdir -p "$output"
archive=$(cd "$output" && pwd)/$name.tar.xz
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode=go+u,go-w \
  --mtime="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}" -c "$name" |
  xz -T0 -9 >"$archive.part"
mv "$archive.part" "$archive"
(cd "$(dirname "$archive")" && sha256sum "$name.tar.xz" >"$name.tar.xz.sha256")

# The archive, unpacked elsewhere and started through a symbolic link from another folder, without the environment.
mkdir "$work/unpacked" "$work/elsewhere"
tar -C "$work/unpacked" -xJf "$archive"
ln -s "../unpacked/$name/bin/sluice" "$work/elsewhere/linked"
for arguments in --version "simulate ../unpacked/$name/share/sluice/examples/gpt3-175b-a100.json" "run --steps 2"; do
  # shellcheck disable=SC2086
  (cd "$work/elsewhere" && env -i ./linked $arguments) >"$work/out" 2>&1 || {
    cat "$work/out" >&2
    fail "the packed 'sluice $arguments' fails"
  }
done

size() { du -k --apparent-size -s "$1" | awk '{printf "%.1f MiB", $1 / 1024}'; }
echo "$archive: $(size "$archive"), unpacked $(size "$bundle"), the command $(size "$bundle/bin/sluice")"

#!/usr/bin/env bash
# Builds build/packages/sluice-gpu-VERSION-linux-x86_64.tar.xz: tests, benchmarks and the sluice command for a machine with a
# GPU that has no compiler and no packages. See docs/cluster.md.
set -euo pipefail
start=$PWD
cd "$(dirname "$0")/.."

output=build/packages
most_mib=16
usage() {
  cat <<END
usage: tools/gpu_bundle.sh [--output DIR]

Builds what tools/gpu_check.sh needs in build/gpu-bundle, for sm_80, sm_90 and, as PTX, later GPUs, and packs it with the
script into an archive of at most $most_mib MiB for x86-64 Linux with glibc 2.36 or newer (Ubuntu 24.04). On the machine with the GPU:

  tar -xJf sluice-gpu-VERSION-linux-x86_64.tar.xz             # without xz: python3 -m tarfile -e FILE
  sluice-gpu-VERSION-linux-x86_64/tools/gpu_check.sh --from-bundle

  --output DIR  folder of the archive (default: $output)
  --help        print this text

SLUICE_INSTALL=no installs no packages. SLUICE_JOBS sets the number of parallel compile jobs.
END
}
fail() {
  echo "gpu_bundle.sh: $*" >&2
  exit 1
}
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h)
      usage
      exit 0
      ;;
    --output | --output=*)
      if [ "$1" = --output ]; then shift && output=${1:?gpu_bundle.sh: --output needs a folder}; else output=${1#*=}; fi
      case $output in /*) ;; *) output=$start/$output ;; esac
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift
done
[ "$(uname -sm)" = "Linux x86_64" ] || fail "bundles are built on x86-64 Linux, not on $(uname -sm)"

build=build/gpu-bundle
tools/install-packages.sh xz-utils binutils
cmake --preset gpu-bundle
cmake --build --preset gpu-bundle -j "${SLUICE_JOBS:-$(nproc)}"
architectures=$(tools/built.sh "$build" | sed -n 's/^CUDA kernels: //p')
[ -n "$architectures" ] || fail "there is no CUDA toolkit with nvcc on this machine"

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
name=sluice-gpu-$version-linux-x86_64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/$name
mkdir -p "$bundle"/{bin,lib,tools,benchmarks/kernels,docs/licenses}
for program in tools/sluice tools/sluice_emulated tests/gpu_test tests/exec_test benchmarks/{attention_benchmark,device_layer_benchmark,device_executor_benchmark}; do
  strip -o "$bundle/bin/${program##*/}" "$build/$program"
done

# Shared libraries but the C library's are put beside the programs, which look for them in ../lib.
ldd "$bundle"/bin/* | sed -nE 's/^\t([^ ]+) => (\/[^ ]+) .*/\1 \2/p' | sort -u |
  grep -vE '^(libc|libm|libdl|librt|libpthread)\.so\.' >"$work/libraries" || true
packages=(libbenchmark-dev libcli11-dev libeigen3-dev libfmt-dev libgtest-dev libstdc++-*-dev libtomlplusplus-dev libyaml-cpp-dev nlohmann-json3-dev zlib1g-dev)
while read -r library file; do
  cp -L "$file" "$bundle/lib/$library"
  package=$( (dpkg-query -S "$file" "$(readlink -f "$file")" 2>/dev/null || true) | sed -n '1s/:.*//p')
  packages+=("${package:?gpu_bundle.sh: no package has $file, whose license is packed}")
done <"$work/libraries"
for package in "${packages[@]}"; do
  for file in /usr/share/doc/$package/copyright; do
    [ -r "$file" ] || fail "$file is missing: the bundle contains the licenses of what it links"
    cp -L "$file" "$bundle/docs/licenses/$(basename "$(dirname "$file")")"
  done
done

cp tools/gpu_check.sh "$bundle/tools"
cp benchmarks/kernels/{pytorch_{layer,loss,pipeline,rates,scans},nccl_communicators}.py "$bundle/benchmarks/kernels"
cp LICENSE "$bundle"
cp docs/cluster.md docs/formats.md "$bundle/docs"
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
cuda=$(sed -nE 's/^ *CUDA +([0-9.]+).*/\1/p' "$build/summary.txt")
echo "sluice $version, commit $commit, CUDA $cuda, $architectures" >"$bundle/VERSION"

mkdir -p "$output"
archive=$(cd "$output" && pwd)/$name.tar.xz
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode=go+u,go-w \
  --mtime="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}" -c "$name" |
  xz -T0 -9e >"$archive"

# Unpacked elsewhere, all programs start without the environment, and need no newer C library than Debian 12's.
mkdir "$work/unpacked"
tar -C "$work/unpacked" -xJf "$archive"
for program in "$work/unpacked/$name"/bin/*; do
  case ${program##*/} in sluice*) argument=--version ;; *_test) argument=--gtest_list_tests ;; *) argument=--benchmark_list_tests ;; esac
  env -i "$program" "$argument" >"$work/out" 2>&1 || { cat "$work/out" >&2 && fail "the packed ${program##*/} does not start"; }
  glibc=$(objdump -T "$program" "$work/unpacked/$name"/lib/* | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
  [ "$(printf '%s\n' "${glibc#GLIBC_}" 2.36 | sort -V | tail -n 1)" = 2.36 ] || fail "${program##*/} needs glibc ${glibc#GLIBC_}, newer than 2.36"
done

bytes=$(stat -c %s "$archive")
echo "$(cat "$bundle/VERSION"); $(cut -d ' ' -f 1 "$work/libraries" | paste -sd ' ' -) beside the programs"
awk -v bytes="$bytes" -v file="$archive" 'BEGIN {printf "%s: %.2f MiB\n", file, bytes / 1048576}'
[ "$bytes" -le $((most_mib * 1048576)) ] || fail "the archive is larger than $most_mib MiB"

#!/usr/bin/env bash
# Builds sluice for V100 (sm_70), which CUDA 13 has dropped, without a CUDA 12 toolkit: clang's CUDA mode with the headers, the
# runtime and ptxas of CUDA 12.9's Python packages. See docs/cluster.md.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<END
usage: tools/v100.sh [--output DIR]

Downloads the Python packages nvidia-cuda-{nvcc,runtime,cccl}-cu12 and nvidia-nvtx-cu12 12.9 (40 MB), makes a CUDA toolkit of them in
DIR/toolkit, and builds the command for sm_70 with clang in DIR/build. Prints registers and spills of each kernel.

  --output DIR  folder of the toolkit and the build (default: build/v100)
  --help        print this text

Needs clang 16 or newer (CLANG names it; default: the newest clang++-N on PATH, then clang++), Python 3 with pip, and fatbinary of any
CUDA toolkit, which the packages lack. SLUICE_JOBS sets the number of parallel compile jobs.
END
}
output=build/v100
case ${1-} in
  --help | -h) usage && exit 0 ;;
  --output) output=${2:?v100.sh: --output needs a folder} ;;
  --output=*) output=${1#*=} ;;
  ?*) usage >&2 && exit 2 ;;
esac
fail() {
  echo "v100.sh: $*" >&2
  exit 1
}
clang=${CLANG:-$(compgen -c clang++- | grep -xE 'clang\+\+-[0-9]+' | sort -t - -k 2 -rn | sed -n 1p || true)}
clang=$(command -v "${clang:-clang++}") || fail "clang++ is missing"
major=$("$clang" -dumpversion | cut -d . -f 1)
[ "$major" -ge 16 ] || fail "$clang is version $major, expected 16 or newer"
fatbinary=$(command -v fatbinary || ls /usr/local/cuda/bin/fatbinary 2>/dev/null) || fail "fatbinary is missing: it is part of every CUDA toolkit"

mkdir -p "$output"
output=$(cd "$output" && pwd)
rm -rf "$output/build"  # CMake remembers the toolkit
toolkit=$output/toolkit
packages=$output/packages/nvidia
if [ ! -e "$toolkit/version.json" ]; then
  python3 -m pip install -q --disable-pip-version-check --target "$output/packages" \
    'nvidia-cuda-nvcc-cu12==12.9.*' 'nvidia-cuda-runtime-cu12==12.9.*' 'nvidia-cuda-cccl-cu12==12.9.*' 'nvidia-nvtx-cu12==12.9.*'
  mkdir -p "$toolkit"/{bin,include,lib64,nvvm/libdevice}
  for part in cuda_nvcc cuda_runtime cuda_cccl nvtx; do cp -rn "$packages/$part/include/." "$toolkit/include"; done
  # clang's wrapper includes a header of cuRAND, which is not used.
  [ -e "$toolkit/include/curand_mtgp32_kernel.h" ] || : >"$toolkit/include/curand_mtgp32_kernel.h"
  cp "$packages"/cuda_runtime/lib/*.a "$toolkit/lib64"
  ln -sf libcudart.so.12 "$toolkit/lib64/libcudart.so"
  cp "$packages"/cuda_runtime/lib/libcudart.so.12 "$toolkit/lib64"
  cp "$packages"/cuda_nvcc/nvvm/libdevice/* "$toolkit/nvvm/libdevice"
  cp "$packages"/cuda_nvcc/bin/ptxas "$toolkit/bin"
  # The packages have no nvcc, which CMake asks for the version and the folder, and no fatbinary. That of CUDA 13 has no
  # --image=profile=sm_70,file=FILE, which clang 19 passes.
  cat >"$toolkit/bin/nvcc" <<END
#!/bin/sh
echo '#\$ TOP=$toolkit' >&2
echo 'Cuda compilation tools, release 12.9, V12.9.86'
END
  cat >"$toolkit/bin/fatbinary" <<END
#!/usr/bin/env bash
arguments=()
for each in "\$@"; do
  if [[ \$each =~ ^--image=profile=(sm|compute)_([0-9]+),file=(.*)\$ ]]; then
    case \${BASH_REMATCH[1]} in sm) kind=elf ;; *) kind=ptx ;; esac
    each=--image3=kind=\$kind,sm=\${BASH_REMATCH[2]},file=\${BASH_REMATCH[3]}
  fi
  arguments+=("\$each")
done
exec '$fatbinary' "\${arguments[@]}"
END
  chmod +x "$toolkit"/bin/*
  echo '{"cuda": {"version": "12.9"}}' >"$toolkit/version.json"
fi

# The toolkit's headers define __noinline__, which the C++ library spells as an attribute; clang has the word without them.
# clang 16 includes these headers first.
echo '#undef __noinline__' >"$toolkit/include/plain_noinline.h"
flags=(--cuda-path="$toolkit" -include "$toolkit/include/plain_noinline.h" -Wno-unknown-cuda-version)

# Each kernel alone, for the table of ptxas.
printf '%-28s %8s %14s %14s\n' file kernels 'most registers' 'with spills'
for source in kernels/cuda/*.cu; do
  "$clang" -x cuda "${flags[@]}" --cuda-gpu-arch=sm_70 --cuda-device-only -std=c++20 -O3 -I. -w \
    -Xcuda-ptxas -v -c "$source" -o "$output/kernel.cubin" 2>"$output/ptxas.log" || {
    cat "$output/ptxas.log" >&2
    fail "$source does not compile for sm_70"
  }
  awk -v file="$(basename "$source")" '
    /spill stores/ { if ($0 !~ / 0 bytes spill stores/) ++spilled }
    /Used [0-9]+ registers/ { ++kernels; match($0, /Used [0-9]+/); n = substr($0, RSTART + 5, RLENGTH - 5) + 0; if (n > most) most = n }
    END { printf "%-28s %8d %14d %14d\n", file, kernels, most, spilled }' "$output/ptxas.log"
done

cmake -S . -B "$output/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_COMPILER="$clang" -DCUDAToolkit_ROOT="$toolkit" \
  -DCMAKE_CUDA_ARCHITECTURES=70-real -DCMAKE_CUDA_FLAGS="${flags[*]}" -DSLUICE_TESTS=OFF -DSLUICE_BENCHMARKS=OFF
cmake --build "$output/build" -j "${SLUICE_JOBS:-$(nproc)}" --target sluice
"$output/build/tools/sluice" doctor | grep -E '^(kernels|CUDA runtime)'
echo "built $output/build/tools/sluice"

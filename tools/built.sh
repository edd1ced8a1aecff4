#!/usr/bin/env bash
# tools/built.sh BUILD_FOLDER: prints which optional parts a build has, and fails if it has no CUDA kernels.
set -euo pipefail

build=${1:?usage: tools/built.sh BUILD_FOLDER}
cat "$build/summary.txt"
kernels=$build/kernels/libsluice_cuda_kernels.a
if [ ! -f "$kernels" ]; then
  echo "built.sh: no CUDA kernels in $build: is there a CUDA toolkit with nvcc on this machine?" >&2
  exit 1
fi
# The architectures that the archive really holds, rather than those that were asked for.
architectures=$(strings -a "$kernels" | grep -oE 'sm_[0-9]+[a-z]?' | sort -u | paste -sd ' ' -)
if [ -z "$architectures" ]; then
  echo "built.sh: $kernels holds no device code" >&2
  exit 1
fi
echo "CUDA kernels: $architectures"

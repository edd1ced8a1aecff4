#!/usr/bin/env bash
# tools/registers.sh [ARCHITECTURE...]: compiles the kernels of flash attention with nvcc for each architecture (default: 80 90) and
# prints their registers, stack frame and spill stores and loads in bytes, as ptxas reports them. Fails if a kernel has any of the
# last three. NVCC: the compiler (default: nvcc). Exit code 77: there is no nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."
nvcc=${NVCC:-nvcc}
if ! command -v "$nvcc" >/dev/null; then
  echo "registers.sh: SKIPPED: there is no $nvcc, so that spills of the kernels were not checked" >&2
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ $# -gt 0 ] || set -- 80 90
printf '%-40s %5s %9s %5s %6s %6s\n' kernel sm registers stack stores loads
for architecture; do
  for file in flash_attention flash_attention_gradient; do
    "$nvcc" -std=c++20 -O3 -DNDEBUG --extended-lambda --expt-relaxed-constexpr -I. -arch="sm_$architecture" -cubin -Xptxas -v \
      -o "$work/kernel.cubin" "kernels/cuda/$file.cu" >"$work/ptxas.log" 2>&1 || {
      cat "$work/ptxas.log" >&2
      exit 1
    }
    c++filt <"$work/ptxas.log" | awk -v architecture="$architecture" '
      /Compiling entry function/ { match($0, /[A-Za-z]+<[A-Za-z_0-9]+, [0-9]+>/); name = substr($0, RSTART, RLENGTH); stack = "" }
      /bytes stack frame/ { if (stack == "") { stack = $1; stores = $5; loads = $9 } }
      / Used [0-9]+ registers/ { match($0, /Used [0-9]+/); print name "|" architecture "|" substr($0, RSTART + 5, RLENGTH - 5) "|" stack "|" stores "|" loads }'
  done
done | sort | tee "$work/table" | awk -F '|' '{ printf "%-40s %5s %9s %5s %6s %6s\n", $1, $2, $3, $4, $5, $6 }'
[ "$(grep -c '^Flash' "$work/table")" = $(($# * 16)) ] || { echo "registers.sh: expected 16 kernels per architecture" >&2 && exit 1; }
awk -F '|' '$4 + $5 + $6 > 0 { print "registers.sh: " $1 " has a stack frame on sm_" $2; bad = 1 } END { exit bad }' "$work/table" >&2

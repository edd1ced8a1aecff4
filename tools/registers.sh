#!/usr/bin/env bash
# Prints registers, stack frame and spills of each CUDA kernel as ptxas reports them. See usage below.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<END
usage: tools/registers.sh [ARCHITECTURE...]

Compiles the kernels in kernels/cuda with nvcc for each architecture (default: 80 90), and prints their registers per thread, and
stack frame, spill stores and spill loads in bytes.

  --help   print this text

NVCC names the compiler (default: nvcc). Exit code: 0 if no kernel but those that the script lists has one of the last three; 1 if
one has or does not compile; 2 for invalid options; 77 if there is no nvcc.
END
}
architectures=()
for argument; do
  case $argument in
    --help | -h) usage && exit 0 ;;
    [0-9]*) architectures+=("$argument") ;;
    *) usage >&2 && exit 2 ;;
  esac
done
[ ${#architectures[@]} -gt 0 ] || architectures=(80 90)
# Kernels with a stack frame but no spills: CUDA reduces large arguments of sine and cosine in an array in local memory.
known='^RotaryAngles$'

nvcc=${NVCC:-nvcc}
if ! command -v "$nvcc" >/dev/null; then
  echo "registers.sh: SKIPPED: there is no $nvcc, so that spills of the kernels were not checked" >&2
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%-60s %5s %9s %5s %6s %6s\n' kernel sm registers stack stores loads
for architecture in "${architectures[@]}"; do
  for file in kernels/cuda/*.cu; do
    "$nvcc" -std=c++20 -O3 -DNDEBUG --extended-lambda --expt-relaxed-constexpr -I. -arch="sm_$architecture" -cubin -Xptxas -v \
      -o "$work/kernel.cubin" "$file" >"$work/ptxas.log" 2>&1 || {
      cat "$work/ptxas.log" >&2
      exit 1
    }
    c++filt <"$work/ptxas.log" | awk -v architecture="$architecture" '
      /Compiling entry function/ {
        name = $0
        sub(/^[^<]*</, "", name)  # of run_kernel
        sub(/ ?>\(.*/, "", name)
        gsub(/sluice::kernels::|cuda::|\(anonymous namespace\)::/, "", name)
        stack = ""
      }
      /bytes stack frame/ { if (stack == "") { stack = $1; stores = $5; loads = $9 } }
      / Used [0-9]+ registers/ { match($0, /Used [0-9]+/); print name "|" architecture "|" substr($0, RSTART + 5, RLENGTH - 5) "|" stack "|" stores "|" loads }'
  done
done | sort | tee "$work/table" | awk -F '|' '{ printf "%-60s %5s %9s %5s %6s %6s\n", $1, $2, $3, $4, $5, $6 }'
[ -s "$work/table" ] || { echo "registers.sh: ptxas reported no kernel" >&2 && exit 1; }
awk -F '|' -v known="$known" '
  $5 + $6 > 0 { print "registers.sh: " $1 " spills on sm_" $2; bad = 1 }
  $4 > 0 && $5 + $6 == 0 && $1 !~ known { print "registers.sh: " $1 " has a stack frame on sm_" $2; bad = 1 }
  END { exit bad }' "$work/table" >&2

#!/usr/bin/env bash
# Runs the real programs in the groups correctness and circle of tools/gpu_check.sh --dry-run: gpu_dry_run.sh BUILD [PYTHON].
# With PYTHON, an interpreter with PyTorch, runs group speed and the comparisons of circle with PyTorch instead. Writes into
# temporary folders only. Exit code 77: skipped, because the build has no emulated devices or PYTHON no PyTorch.
set -euo pipefail

build=$(cd "${1:?usage: gpu_dry_run.sh BUILD [PYTHON]}" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
skip() {
  echo "SKIPPED: $*: the dry run of tools/gpu_check.sh was not tried" >&2
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  for log in "$work"/results/*/*.log "$work"/results/*/*.err; do [ ! -e "$log" ] || tail -n 5 "$log" /dev/null >&2; done
  exit 1
}
[ -x "$build/tools/sluice_emulated" ] || skip "$build has no sluice_emulated"
if [ $# -ge 2 ]; then
  [ -x "$2" ] && "$2" -c 'import torch' 2>/dev/null || skip "$2 has no PyTorch"
  folder=$(cd "$(dirname "$2")" && pwd)
  PATH=$folder:$PATH
fi
export TMPDIR=$work

# dry_run GROUP STEPS ROW...: runs the steps; each row is in the output, and no step fails.
dry_run() {
  local group=$1 steps=$2 code=0
  shift 2
  "$source/tools/gpu_check.sh" --build "$build" --dry-run --output "$work/results" --minutes 30 --group "$group" --steps "$steps" |
    tee "$work/out" || code=$?
  [ "$code" -eq 0 ] || fail "exit code $code"
  for row; do grep -qE "^$row" "$work/out" || fail "no '$row'"; done
}
written() { (cd "$source" && ls -A . benchmarks/* tools); }

before=$(written)
if [ $# -ge 2 ]; then
  dry_run speed . 'layers-beside-pytorch +ok' 'attention-beside-pytorch +ok'
  dry_run circle 'losses|pytorch' 'losses-beside-pytorch +ok' 'schedules-in-pytorch +ok'
else
  # Without the text of doctor, and trains 1f1b by seq1f1b alone.
  dry_run correctness 'doctor$|gpu-tests|cpu|stream|green-2-seq|attention|nccl-tests' 'doctor +ok' 'train-green-2-seq1f1b-losses +ok' 'train-stream-4-seq1f1b-losses +ok' \
    'attention-losses +ok' 'nccl-tests +ok'
  dry_run circle 'executor|validate|losses-(first|sluice)' 'validate-green-[248] +ok' 'losses-sluice +ok'
fi
[ "$before" = "$(written)" ] || fail "files were written into the source tree"

#!/usr/bin/env bash
# tools/gpu_check.sh [RESULTS]: runs every check that needs a GPU, on a machine with one and CUDA 12 or 13: the build and its
# tests, compute-sanitizer, benchmarks, predictions and runs on partitions of the GPU, NCCL between processes that share
# the GPU, and comparisons with PyTorch if it is installed. Writes to the folder RESULTS (default:
# benchmarks/results/DATE-GPU). A step that fails does not stop the later ones.
# Exit code: 0 if all steps passed, 1 if one failed, was missing a program or was left out, 2 without a GPU.
#
# SLUICE_MINUTES sets the time limit in minutes (default 25). SLUICE_BUILD=DIR uses an existing build and builds nothing.
# SLUICE_STEPS='nccl|doctor' runs only the steps whose names match. SLUICE_INSTALL=no installs no packages;
# CMAKE_PREFIX_PATH then names their folders.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

minutes=${SLUICE_MINUTES:-25}
budget=$((minutes * 60))
jobs=${SLUICE_JOBS:-$(nproc)}
wanted=${SLUICE_STEPS:-.}

if ! command -v nvidia-smi >/dev/null || [[ $(nvidia-smi -L 2>/dev/null) != GPU* ]]; then
  echo "gpu_check.sh: nvidia-smi finds no GPU" >&2
  exit 2
fi
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | sed -n 1p)
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sed -n 1p | tr -d '.')
slug=$(echo "$gpu" | tr '[:upper:] ' '[:lower:]-' | tr -cd '[:alnum:]-')
results=${1:-benchmarks/results/$(date -u +%Y-%m-%d)-$slug}
mkdir -p -- "$results" && results=$(cd -- "$results" && pwd) || {
  echo "gpu_check.sh: cannot write to $results" >&2
  exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
summary=$results/summary.txt
: >"$summary"

report() { echo "$*" | tee -a "$summary"; }
failed=0
missing() {  # missing NAME PURPOSE: reports that NAME is missing and what it is needed for
  report "$(printf '%-34s MISSING  %s' "$1" "$2")"
  failed=1
}

# step NAME SECONDS COMMAND...: runs COMMAND for at most SECONDS, and within the remaining time. Writes its output to
# NAME.log; if NAME ends in .json, writes standard output to NAME.
step() {
  local name=$1 limit=$2 code began out
  shift 2
  [[ $name =~ $wanted ]] || return 0
  local left=$((budget - SECONDS))
  if [ "$left" -lt 20 ]; then
    report "$(printf '%-34s NOT RUN  the limit of %d minutes is reached' "$name" "$minutes")"
    failed=1
    return 1
  fi
  [ "$limit" -gt "$left" ] && limit=$left
  began=$SECONDS
  case $name in *.json) out=$results/$name ;; *) out=$results/$name.log ;; esac
  timeout --kill-after=10 "$limit" "$@" >"$out" 2>"$work/err"
  code=$?
  if [ "$out" != "$results/$name" ]; then cat "$work/err" >>"$out"; elif [ -s "$work/err" ]; then cp "$work/err" "$out.err"; fi
  case $code in
    0) report "$(printf '%-34s ok       %4d s' "$name" $((SECONDS - began)))" ;;
    124 | 137) report "$(printf '%-34s TIMEOUT  after %d s' "$name" "$limit")" ;;
    *) report "$(printf '%-34s FAILED   %4d s, exit %d: %s' "$name" $((SECONDS - began)) "$code" "$(tail -n 1 "$work/err" | cut -c 1-140)")" ;;
  esac
  [ "$code" -eq 0 ] || failed=1
  return "$code"
}

report "$gpu, sm_$capability, $(date -u '+%Y-%m-%d %H:%M') UTC, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
nvidia-smi >"$results/nvidia-smi.log" 2>&1

# --- build ------------------------------------------------------------------------------------------------------------

build=${SLUICE_BUILD:-}
if [ -z "$build" ]; then
  build=build/gpu
  for toolkit in /usr/local/cuda "${CUDA_HOME:-/nowhere}"; do
    [ -x "$toolkit/bin/nvcc" ] && PATH=$toolkit/bin:$PATH
  done
  command -v nvcc >/dev/null || missing nvcc "the build (it is part of the CUDA toolkit)"
  command -v cmake >/dev/null || missing cmake "the build"
  if [ "${SLUICE_INSTALL:-yes}" != no ]; then step packages 180 tools/install-packages.sh || true; fi
  generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  step configure 120 cmake -S . -B "$build" ${generator[@]+"${generator[@]}"} -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CUDA_ARCHITECTURES="$capability" || grep -m 3 -h 'Could NOT\|Could not find\|CMake Error' "$results/configure.log" | tee -a "$summary"
  targets=(sluice gpu_test exec_test flash_benchmark
    device_layer_benchmark device_executor_benchmark)
  step build 600 cmake --build "$build" -j "$jobs" --target "${targets[@]}" || true
fi
sluice=$build/tools/sluice
if [ ! -x "$sluice" ]; then
  missing "$sluice" "all further steps"
  exit 1
fi
sluice=$(cd "$(dirname "$sluice")" && pwd)/sluice
step doctor.json 60 "$sluice" doctor --json
step doctor 60 "$sluice" doctor

# --- kernels and devices ----------------------------------------------------------------------------------------------

if [ -x "$build/tests/gpu_test" ]; then
  for part in devices='*GpuDevice*:CudaDevices*:ColumnMajor*:Cublas*' flash='*Flash*' kernels='-*GpuDevice*:CudaDevices*:ColumnMajor*:Cublas*:*Flash*'; do
    name=gpu-tests-${part%%=*}
    step "$name" 240 "$build/tests/gpu_test" --gtest_filter="${part#*=}" || continue
    if ! grep -q '\[       OK \]' "$results/$name.log" 2>/dev/null && [[ $name =~ $wanted ]]; then
      missing "$name" "all of its tests were skipped"
    fi
  done
else
  missing gpu_test "the tests of kernels and devices"
fi
[ -x "$build/tests/exec_test" ] && step nccl-tests 60 "$build/tests/exec_test" --gtest_filter='Nccl*'

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
tiny=(--num-layers 4 --hidden-size 256 --num-attention-heads 4 --vocab-size 512 --max-position-embeddings 256
  --position-embedding-type learned_absolute --seq-length 256 --mbs 1 --microbatches 4 --backend cuda)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    step "sanitizer-$tool-run" 150 "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$sluice" run "${tiny[@]}" --pp 2 --devices green:2 --schedule seq1f1b --slices 2 --steps 1
  done
  [ -x "$build/tests/gpu_test" ] && step sanitizer-memcheck-devices 120 "$sanitizer" --tool memcheck \
    --error-exitcode 9 "$build/tests/gpu_test" --gtest_filter='*GemmMatchesDoublePrecision*gpu_1:*EventsOrder*green_2'
else
  missing compute-sanitizer "memory checks of the kernels"
fi

# --- speed ------------------------------------------------------------------------------------------------------------

if [ -x "$build/benchmarks/flash_benchmark" ]; then
  step flash_benchmark 120 "$build/benchmarks/flash_benchmark" --benchmark_min_time=0.2
fi
if [ -x "$build/benchmarks/device_layer_benchmark" ]; then
  step device_layer_benchmark 240 "$build/benchmarks/device_layer_benchmark" --benchmark_out_format=json \
    --benchmark_out="$results/layers.json"
  step device_executor_benchmark 120 "$build/benchmarks/device_executor_benchmark" --benchmark_out_format=json \
    --benchmark_out="$results/executor.json"
fi
python=$(command -v python3)
if [ -n "$python" ] && "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  step layer-beside-pytorch 240 "$python" benchmarks/kernels/pytorch_layer.py --json "$results/layers-pytorch.json" \
    --against "$results/layers.json"
  text=/usr/share/common-licenses/GPL-3
  [ -r "$text" ] || text=docs/formats.md
  curve=(--data "$text" --backend cuda --precision bf16 --devices green:2)
  step losses-first-step 60 "$sluice" run "${curve[@]}" --steps 1 --checkpoint "$work/first.safetensors"
  step losses-sluice.json 120 "$sluice" run "${curve[@]}" --steps 200 --resume "$work/first.safetensors" --json
  # bfloat16 changes these losses by at most 0.075, on average 0.01 (PyTorch in bfloat16 against sluice in float32).
  step losses-beside-pytorch 240 "$python" benchmarks/kernels/pytorch_loss.py --checkpoint "$work/first.safetensors" \
    --run "$results/losses-sluice.json" --data "$text" --json "$results/losses-pytorch.json" --tolerance 0.15
else
  missing PyTorch "comparisons of layer speed and loss"
fi

# --- NCCL on one GPU --------------------------------------------------------------------------------------------------

# nccl_ranks SIZE ARGUMENTS...: starts one process per rank with the environment variables of torchrun, and prints the output
# of rank 0. Fails if any process fails. Checks results only: messages use the loopback interface.
nccl_ranks() {
  local size=$1 run
  run=$(date +%s%N)
  shift
  local pids=() code=0
  for ((rank = 0; rank < size; ++rank)); do
    env RANK="$rank" WORLD_SIZE="$size" LOCAL_RANK="$rank" LOCAL_WORLD_SIZE="$size" MASTER_ADDR=127.0.0.1 \
      MASTER_PORT="$run" TORCHELASTIC_RUN_ID="check" NCCL_HOSTID="sluice-$rank" NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo \
      NCCL_PROTO=Simple NCCL_MULTI_RANK_GPU_ENABLE=1 "$sluice" "$@" >"$work/rank-$rank.out" 2>"$work/rank-$rank.err" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=1; done
  for ((rank = 0; rank < size; ++rank)); do sed "s/^/rank $rank: /" "$work/rank-$rank.err" >&2; done
  cat "$work/rank-0.out"
  return "$code"
}
export -f nccl_ranks
export sluice work

# same_losses A B: compares the losses of two runs, which must agree within 2e-3 in each step (GEMMs of different shapes round
# differently).
same_losses() {
  awk '
    FNR == 1 { ++file }
    /"loss":/ { gsub(/[^0-9.e+-]/, "", $2); if (file == 1) a[++n] = $2; else b[++m] = $2 }
    END {
      worst = 0
      for (i = 1; i <= n; ++i) { d = a[i] - b[i]; if (d < 0) d = -d; if (d > worst) worst = d }
      printf "%d and %d steps, losses differ by at most %g\n", n, m, worst
      exit !(n > 0 && n == m && worst <= 2e-3)
    }' "$1" "$2"
}
export -f same_losses

for size in 2 4; do
  for schedule in 1f1b seq1f1b; do
    run=(run "${tiny[@]}" --pp "$size" --schedule "$schedule" --steps 5 --json)
    [ "$schedule" = seq1f1b ] && run+=(--slices 4)
    step "nccl-$size-$schedule-alone.json" 60 "$sluice" "${run[@]}" --devices "stream:$size"
    step "nccl-$size-$schedule.json" 120 bash -c 'nccl_ranks "$@"' nccl "$size" "${run[@]}" --transport nccl
    step "nccl-$size-$schedule-losses" 10 bash -c 'same_losses "$@"' same \
      "$results/nccl-$size-$schedule-alone.json" "$results/nccl-$size-$schedule.json"
  done
done

# --- prediction on partitions of the GPU ------------------------------------------------------------------------------

# The number of layers is the same for schedules with one and with two stages per rank.
for parts in 2 4 8; do
  model=(--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --vocab-size 32768 --max-position-embeddings 4096
    --position-embedding-type learned_absolute --seq-length 4096 --mbs 1 --microbatches $((2 * parts)) --backend cuda)
  step "validate-green-$parts.json" 300 "$sluice" validate "${model[@]}" --pp "$parts" --devices "green:$parts" \
    --schedule gpipe,1f1b,interleaved-1f1b,seq1f1b,zb-h1,zb-v,seq1f1b-zb2p --slices 4 --steps 5 \
    --time-budget 45 --tolerance 3% --memory-tolerance 3% --json
done

report "$([ "$failed" -eq 0 ] && echo 'all steps passed' || echo 'NOT all steps passed'), after $((SECONDS / 60)) min $((SECONDS % 60)) s; results in $results"
exit "$failed"

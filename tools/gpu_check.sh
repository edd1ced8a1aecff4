#!/usr/bin/env bash
# Runs every check that needs a GPU, in three groups that each take at most nine minutes. See usage below and
# docs/cluster.md.
set -uo pipefail
started_in=$PWD
cd "$(dirname "$0")/.." || exit 2

usage() {
  cat <<END
usage: tools/gpu_check.sh [OPTION...]

Tests and measures on a machine with one GPU. Each group writes its logs and a summary to a folder, and packs them into
OUTPUT/GROUP.tar.gz. A step that fails does not stop the later ones.

  --group GROUP    correctness: doctor, tests of devices and kernels, training on partitions and streams, NCCL
                   between two processes on one GPU, hangs of communicators, compute-sanitizer.
                   speed: layers, weight gradients and attention beside PyTorch; ncu on the five slowest kernels.
                   circle: executor overhead, predictions and runs on 2, 4 and 8 partitions, a loss curve beside PyTorch.
                   all (default): one after the other
  --from-bundle    use the programs of the bundle that this script is in (tools/gpu_bundle.sh); build and install nothing
  --build DIR      use the build in DIR. Without this and --from-bundle, build in build/gpu, which needs CUDA 12 or 13
  --output DIR     folder of the results (default: benchmarks/results/DATE-GPU, or DATE-GPU in the current folder with
                   --from-bundle)
  --minutes N      time limit per group, in minutes (default: 9)
  --steps REGEX    run only the steps whose names match
  --dry-run        run the same steps with emulated devices and tiny sizes, which shows that the programs start; nothing
                   that needs a GPU is run
  --help           print this text

Exit code: 0 if all steps passed; 1 if one failed, timed out, measured nothing, was missing a program or was left out; 2
for invalid options or without a GPU.
END
}
invalid() {
  echo "gpu_check.sh: $*" >&2
  exit 2
}
from_start() { case $1 in /*) echo "$1" ;; *) echo "$started_in/$1" ;; esac; }

groups=all minutes=9 wanted=. build='' output='' bundle=no dry=no
while [ $# -gt 0 ]; do
  flag=${1%%=*}
  case $flag in
    --help | -h) usage && exit 0 ;;
    --from-bundle) bundle=yes ;;
    --dry-run) dry=yes ;;
    --group | --build | --output | --minutes | --steps)
      if [ "$flag" != "$1" ]; then value=${1#*=}; else value=${2-} && shift; fi
      [ -n "$value" ] || invalid "$flag: expected a value"
      case $flag in
        --group) groups=$value ;;
        --build) build=$(from_start "$value") ;;
        --output) output=$(from_start "$value") ;;
        --minutes) minutes=$value ;;
        --steps) wanted=$value ;;
      esac
      ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
case $groups in
  all) groups='correctness speed circle' ;;
  correctness | speed | circle) ;;
  *) invalid "--group: expected correctness, speed, circle or all, got '$groups'" ;;
esac
[[ $minutes =~ ^[0-9]{1,4}(\.[0-9]{1,3})?$ && $minutes =~ [1-9] ]] || invalid "--minutes: expected a positive number below 10000, got '$minutes'"
echo | grep -qE -e "$wanted"
[ $? -ne 2 ] || invalid "--steps: expected a regular expression, got '$wanted'"

gpu=none capability=''
if command -v nvidia-smi >/dev/null && [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]]; then
  gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | sed -n 1p)
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sed -n 1p | tr -d '.')
elif [ "$dry" = no ]; then
  invalid "nvidia-smi finds no GPU"
fi
slug=$(echo "$gpu" | tr '[:upper:] ' '[:lower:]-' | tr -cd '[:alnum:]-')
if [ -z "$output" ]; then
  output=$(date -u +%Y-%m-%d)-$slug
  if [ "$bundle" = yes ]; then output=$started_in/$output; else output=benchmarks/results/$output; fi
fi
{ mkdir -p -- "$output" && output=$(cd -- "$output" && pwd); } || invalid "cannot write to $output"
work=$(mktemp -d) || exit 2

# --- steps ------------------------------------------------------------------------------------------------------------

failed=0 running='' group='' results='' summary='' limit_s=0 group_began=0
report() { echo "$*" | tee -a "$summary"; }
row() { report "$(printf '%-34s %-8s %s' "$1" "$2" "$3")"; }  # row NAME RESULT TEXT
missing() {  # missing NAME PURPOSE: reports that a program is missing and what it is needed for
  row "$1" MISSING "$2"
  [ "$dry" = yes ] || failed=1
}
nothing() {  # nothing NAME TEXT: reports a step that succeeded without a result. Not an error in a dry run.
  row "$1" NOTHING "$2"
  [ "$dry" = yes ] || failed=1
}
counted() { grep -cE "$1" "$2" 2>/dev/null; }

# judge KIND NAME SECONDS OUT ERRORS: reports a step whose command returned 0. Fails if it has no result.
judge() {
  local text ok skipped fallback="note: attention without cuDNN"
  text=$(printf '%4d s' "$3")
  if grep -qsE '^nothing (timed|compared)' "$4"; then
    nothing "$2" "$(grep -m 1 -E '^nothing (timed|compared)' "$4")"
    return 1
  fi
  case $1 in
    tests)
      ok=$(counted '^\[       OK \]' "$4") skipped=$(counted '^\[  SKIPPED \].*ms\)$' "$4")
      if [ "$ok" -eq 0 ] && [ "$skipped" -eq 0 ]; then nothing "$2" "no test ran"; return 1; fi
      # Some tests need no GPU: without one, a few pass and most are skipped.
      if [ "$skipped" -gt "$ok" ]; then nothing "$2" "$skipped of $((ok + skipped)) tests were skipped"; return 1; fi
      text+=", $ok tests passed"
      if [ "$skipped" -gt 0 ]; then text+=", $skipped skipped"; fi
      ;;
    times)
      ok=$(counted '^[A-Za-z_0-9]+/[^ ]+ .*[0-9] (ns|us|ms|s)( |$)' "$4") skipped=$(counted 'ERROR OCCURRED' "$4")
      if [ "$ok" -eq 0 ]; then nothing "$2" "nothing was timed$(grep -m 1 -o 'ERROR OCCURRED.*' "$4" | sed 's/^/: /')"; return 1; fi
      text+=", $ok rows timed"
      if [ "$skipped" -gt 0 ]; then text+=", $skipped not"; fi
      if grep -q '^left out' "$4"; then text+=", some left out"; fi
      ;;
    json)
      if [ "$(head -c 1 "$4")" != '{' ]; then nothing "$2" "no JSON document was printed"; return 1; fi
      # The run went on without the library that it is to show. Emulated devices have none.
      if [ "$dry" = no ] && [ "$2" = attention-cudnn ] && grep -qE "$fallback" "$5" 2>/dev/null; then
        nothing "$2" "$(grep -m 1 -oE "$fallback.*" "$5" | cut -c 1-160)"
        return 1
      fi
      ;;
  esac
  row "$2" ok "$text"
}

# step KIND NAME SECONDS COMMAND...: runs COMMAND for at most SECONDS, within the group's time, and judges the output by KIND:
# tests (at least one ran and passed), times (at least one was measured), json (the output is a document, NAME.json), or any.
# Writes the output to NAME.log, or NAME.json and NAME.err.
step() {
  local kind=$1 name=$2 limit=$3 code began out errors left
  shift 3
  [[ $name =~ $wanted ]] || return 1
  [ "$dry" = no ] || limit=$((3 * limit))  # the CPU may be busy
  left=$((limit_s - (SECONDS - group_began)))
  if [ "$left" -lt 1 ]; then
    row "$name" 'NOT RUN' "the limit of $minutes min per group is reached"
    failed=1
    return 1
  fi
  [ "$limit" -le "$left" ] || limit=$left
  out=$results/$name.log errors=$results/$name.log
  if [ "$kind" = json ]; then out=$results/$name.json errors=$results/$name.err; fi
  began=$SECONDS
  : >"$out"
  # In the background, so that a signal to this script ends the step.
  timeout --kill-after=10 "$limit" "$@" >>"$out" 2>>"$errors" &
  running=$!
  wait "$running"
  code=$?
  running=''
  [ -s "$errors" ] || rm -f "$errors"
  case $code in
    0)
      judge "$kind" "$name" $((SECONDS - began)) "$out" "$errors"
      return
      ;;
    124 | 137) row "$name" TIMEOUT "after $limit s" ;;
    *) row "$name" FAILED "$(printf '%4d s, exit %d: %s' $((SECONDS - began)) "$code" "$(tail -n 1 "$errors" 2>/dev/null | cut -c 1-140)")" ;;
  esac
  failed=1
  return 1
}

# gpu_step: a step that is not possible with emulated devices.
gpu_step() {
  if [ "$dry" = no ]; then
    step "$@"
    return
  fi
  if [[ $2 =~ $wanted ]]; then row "$2" 'NO GPU' "not part of a dry run"; fi
  return 1
}

begin_group() {
  group=$1 results=$output/$1 summary=$output/$1/summary.txt group_began=$SECONDS
  limit_s=$(awk -v minutes="$minutes" 'BEGIN {print int(minutes * 60 + 0.5)}')
  rm -rf "$results"
  mkdir -p "$results" || exit 2
  : >"$summary"
  report "$group: $gpu${capability:+, sm_$capability}, $(date -u '+%Y-%m-%d %H:%M') UTC, $version"
  if [ "$gpu" != none ]; then nvidia-smi >"$results/nvidia-smi.log" 2>&1; fi
}
end_group() {
  [ -n "$group" ] || return 0
  if [ "$gpu" != none ]; then nvidia-smi -q -d CLOCK,TEMPERATURE,POWER >"$results/nvidia-smi-after.log" 2>&1; fi
  report "$group took $((SECONDS - group_began)) s"
  tar -C "$output" -czf "$output/$group.tar.gz.part" "$group" && mv "$output/$group.tar.gz.part" "$output/$group.tar.gz"
  echo "results: $output/$group.tar.gz"
  group=''
}
interrupted() {
  trap '' INT TERM
  [ -z "$running" ] || kill "$running" 2>/dev/null
  [ -z "$group" ] || row "$group" 'NOT RUN' "the rest: interrupted"
  exit 1
}
trap 'end_group; rm -rf "$work"' EXIT
trap interrupted INT TERM

# --- programs ---------------------------------------------------------------------------------------------------------

version="commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
build_here() {
  build=$PWD/build/gpu
  results=$output/build summary=$output/build/summary.txt limit_s=1800 group_began=$SECONDS
  mkdir -p "$results"
  : >"$summary"
  for toolkit in /usr/local/cuda "${CUDA_HOME:-/nowhere}"; do
    if [ -x "$toolkit/bin/nvcc" ]; then PATH=$toolkit/bin:$PATH; fi
  done
  command -v nvcc >/dev/null || missing nvcc "the build (it is part of the CUDA toolkit)"
  command -v cmake >/dev/null || missing cmake "the build"
  local configure=(cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="${capability:-90}")
  if command -v ninja >/dev/null; then configure+=(-G Ninja); fi
  # Packages are installed only if the build cannot be configured without.
  if ! "${configure[@]}" >"$results/first-configure.log" 2>&1; then
    step any packages 300 tools/install-packages.sh
    step any configure 120 "${configure[@]}" || grep -m 3 -h 'Could NOT\|Could not find\|CMake Error' "$results/configure.log"
  fi
  local targets=(sluice gpu_test exec_test attention_benchmark device_layer_benchmark device_executor_benchmark)
  if [ "$dry" = yes ]; then targets+=(sluice_emulated); fi
  step any build 1500 cmake --build "$build" -j "${SLUICE_JOBS:-$(nproc)}" --target "${targets[@]}"
}
if [ "$bundle" = yes ]; then
  version=$(cat VERSION 2>/dev/null) || invalid "--from-bundle: $PWD is not a bundle of tools/gpu_bundle.sh: it has no file VERSION"
elif [ -z "$build" ]; then
  wanted_steps=$wanted wanted=.
  build_here
  wanted=$wanted_steps
fi
# program NAME: the path of a program of the bundle or the build, which may not exist.
program() {
  local folder
  if [ "$bundle" = yes ]; then
    echo "$PWD/bin/$1"
    return
  fi
  case $1 in sluice*) folder=tools ;; *_test) folder=tests ;; *) folder=benchmarks ;; esac
  echo "$build/$folder/$1"
}
# has NAME PURPOSE: whether the program is there. Reports if it is not.
has() { [ -x "$(program "$1")" ] || { missing "$1" "$2" && false; }; }

sluice=$(program sluice)
if [ "$dry" = yes ]; then sluice=$(program sluice_emulated); fi
[ -x "$sluice" ] || invalid "$sluice is missing"
python=$(command -v python3)
has_pytorch() {
  local device=cuda
  if [ "$dry" = yes ]; then device=cpu; fi
  [ -n "$python" ] && "$python" -c "import sys, torch; torch.zeros(1, device='$device'); sys.exit(0)" 2>"$results/pytorch.err"
}
# cuda_tool NAME: the path of a tool of the CUDA toolkit or of Nsight Compute; empty if it is not installed.
cuda_tool() {
  local each
  for each in "$(command -v "$1")" /usr/local/cuda/bin/"$1" /opt/nvidia/nsight-compute/*/"$1"; do
    if [ -x "$each" ]; then echo "$each" && return; fi
  done
}
export sluice work

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

# same_losses A B TOLERANCE: compares the losses of two runs in each step.
same_losses() {
  awk -v tolerance="$3" '
    FNR == 1 { ++file }
    /"loss":/ { gsub(/[^0-9.e+-]/, "", $2); if (file == 1) a[++n] = $2; else b[++m] = $2 }
    END {
      worst = 0
      for (i = 1; i <= n; ++i) { d = a[i] - b[i]; if (d < 0) d = -d; if (d > worst) worst = d }
      printf "%d and %d steps, losses differ by at most %g\n", n, m, worst
      exit !(n > 0 && n == m && worst <= tolerance)
    }' "$1" "$2"
}
export -f nccl_ranks same_losses
# same_losses_step NAME A B TOLERANCE: of the steps A and B, if both were run.
same_losses_step() {
  [ -s "$results/$2.json" ] && [ -s "$results/$3.json" ] || return 0
  step any "$1" 20 bash -c 'same_losses "$@"' same "$results/$2.json" "$results/$3.json" "$4"
}

# --- groups -----------------------------------------------------------------------------------------------------------

tiny=(--num-layers 4 --hidden-size 256 --num-attention-heads 4 --vocab-size 512 --max-position-embeddings 256
  --position-embedding-type learned_absolute --seq-length 256 --mbs 1 --microbatches 4)
if [ "$dry" = yes ]; then
  tiny=(--num-layers 4 --hidden-size 32 --num-attention-heads 2 --vocab-size 64 --max-position-embeddings 32
    --position-embedding-type learned_absolute --seq-length 32 --mbs 1 --microbatches 4)
fi

correctness() {
  step json doctor 60 "$sluice" doctor --json
  step any doctor-text 60 "$sluice" doctor
  if has gpu_test "the tests of kernels and devices"; then
    local part devices='*GpuDevice*:CudaDevices*:ColumnMajor*:Cublas*'
    for part in devices="$devices" kernels="-$devices:GpuCudnn*"; do
      step tests "gpu-tests-${part%%=*}" 120 "$(program gpu_test)" --gtest_filter="${part#*=}"
    done
  fi

  if [ -x "$(program gpu_test)" ]; then
    gpu_step tests gpu-tests-cudnn 90 "$(program gpu_test)" --gtest_filter='GpuCudnn*'
  fi

  # Losses of the same model on the CPU in float32, on partitions and streams in bfloat16, and over NCCL. GEMMs of different
  # shapes round differently: 2e-3 between devices, and 0.05 to float32.
  local size schedule run devices
  step json train-cpu 60 "$sluice" run "${tiny[@]}" --pp 2 --steps 5 --json
  for schedule in 1f1b seq1f1b; do
    for size in 2 4; do
      [ "$size-$schedule" = 4-1f1b ] && continue
      run=(run "${tiny[@]}" --backend cuda --pp "$size" --schedule "$schedule" --steps 5 --json)
      if [ "$schedule" = seq1f1b ]; then run+=(--slices 4); fi
      for devices in stream green; do
        [ "$size-$devices" = 4-green ] && continue
        step json "train-$devices-$size-$schedule" 60 "$sluice" "${run[@]}" --devices "$devices:$size"
        same_losses_step "train-$devices-$size-$schedule-losses" train-cpu "train-$devices-$size-$schedule" 0.05
      done
      gpu_step json "nccl-$size-$schedule" 90 bash -c 'nccl_ranks "$@"' nccl "$size" "${run[@]}" --transport nccl
      same_losses_step "nccl-$size-$schedule-losses" "train-stream-$size-$schedule" "nccl-$size-$schedule" 2e-3
    done
  done
  # Attention by cuDNN, where it is used, and by GEMMs.
  run=(run "${tiny[@]}" --backend cuda --pp 2 --devices stream:2 --steps 5 --json)
  step json attention-gemm 60 "$sluice" "${run[@]}" --attention gemm
  step json attention-cudnn 60 "$sluice" "${run[@]}" --attention cudnn &&
    same_losses_step attention-losses attention-cudnn attention-gemm 2e-2
  if has exec_test "the tests of NCCL's communicators"; then
    local communicators='Nccl*'
    if [ "$dry" = yes ]; then communicators='Nccl.*'; fi
    step tests nccl-tests 60 "$(program exec_test)" --gtest_filter="$communicators"
  fi

  # Hangs and swapped data of real communicators, against the verdicts of `sluice schedule --check`.
  if [ -n "$python" ]; then
    gpu_step any communicators 130 "$python" benchmarks/kernels/nccl_communicators.py --sluice "$sluice" --seconds 3 --limit 110 \
      --json "$results/communicators.json"
  else
    missing python3 "lists of sends and receives over NCCL"
  fi

  local sanitizer
  sanitizer=$(cuda_tool compute-sanitizer)
  if [ -z "$sanitizer" ]; then
    missing compute-sanitizer "memory checks of the kernels"
    return
  fi
  # On a run, racecheck reports hazards in kernels of cuDNN, or ends with an error of its own: it checks the tests of kernels.
  run=("$sluice" run "${tiny[@]}" --backend cuda --pp 2 --schedule seq1f1b --slices 2 --steps 1)
  gpu_step any sanitizer-memcheck-run 100 "$sanitizer" --tool memcheck --error-exitcode 9 "${run[@]}" --devices green:2
  gpu_step any sanitizer-memcheck-gemm 100 "$sanitizer" --tool memcheck --error-exitcode 9 "${run[@]}" --devices stream:2 --attention gemm
  if [ -x "$(program gpu_test)" ]; then
    gpu_step tests sanitizer-racecheck-kernels 100 "$sanitizer" --tool racecheck --error-exitcode 9 "$(program gpu_test)" \
      --gtest_filter='*DeviceElementwise.*:*DeviceOptimizer.*:*DeviceRouting.*'
    gpu_step tests sanitizer-memcheck-devices 90 "$sanitizer" --tool memcheck \
      --error-exitcode 9 "$(program gpu_test)" --gtest_filter='*GemmMatchesDoublePrecision*gpu_1:*EventsOrder*green_2'
  fi
}

# slowest_kernels TABLE: prints the launch numbers of the slowest launch of each of the five kernels with the largest total time,
# from `ncu --csv --metrics gpu__time_duration.sum`.
slowest_kernels() {
  "$python" - "$1" <<'END'
import csv, sys

lines = [line for line in open(sys.argv[1], encoding="utf-8", errors="replace") if line.startswith('"')]
kernels = {}
for row in csv.DictReader(lines):
    try:
        time = float(row["Metric Value"].replace(",", ""))
    except ValueError:
        continue
    kernels.setdefault(row["Kernel Name"], []).append((time, int(row["ID"])))
for name in sorted(kernels, key=lambda name: -sum(time for time, _ in kernels[name]))[:5]:
    print(max(kernels[name])[1])
END
}

speed() {
  local layers=(--sluice-layers "$(program device_layer_benchmark)") attention=(--sluice-attention "$(program attention_benchmark)")
  has device_layer_benchmark "the times of layers" || layers=()
  has attention_benchmark "the times of attention" || attention=()
  local beside_layers=("${layers[@]}") beside_attention=("${attention[@]}")
  # The benchmarks have no rows of these sizes, and need a GPU.
  if [ "$dry" = yes ]; then beside_layers=(--try) beside_attention=(--try); fi
  if has_pytorch; then
    step times layers-beside-pytorch 345 "$python" benchmarks/kernels/pytorch_layer.py "${beside_layers[@]}" \
      --json "$results/layers.json" --seconds 300
    step times attention-beside-pytorch 70 "$python" benchmarks/kernels/pytorch_layer.py --only-attention "${beside_attention[@]}" \
      --json "$results/attention.json" --seconds 60
  else
    missing PyTorch "the comparison with PyTorch"
    if [ ${#layers[@]} -gt 0 ]; then
      step times layers 260 "${layers[1]}" --benchmark_out_format=json --benchmark_out="$results/layers.json"
    fi
    if [ ${#attention[@]} -gt 0 ]; then
      step times attention 100 "${attention[1]}" --benchmark_filter='^attention/' --benchmark_out_format=json --benchmark_out="$results/attention.json"
    fi
  fi

  if has_pytorch && "$python" -c "import mamba_ssm" 2>/dev/null; then
    gpu_step any pytorch-scans 150 "$python" benchmarks/kernels/pytorch_scans.py --kernels mamba2,conv --seconds 140
  else
    row pytorch-scans 'LEFT OUT' "mamba-ssm is not installed"
  fi
  if has_pytorch; then gpu_step any pytorch-rates 130 "$python" benchmarks/kernels/pytorch_rates.py --seconds 110; fi

  # One forward, one backward and one weight gradient of a layer, after the launches that measure the peak.
  local ncu skip=20 one=1 number launches
  ncu=$(cuda_tool ncu)
  if [ -z "$ncu" ]; then
    missing ncu "the profiles of the slowest kernels"
  elif [ ${#layers[@]} -gt 0 ]; then
    launches=("${layers[1]}" --benchmark_filter='layer/gpt_cudnn/tokens:4096/context:8192/op:[13]')
    gpu_step any ncu-times 60 "$ncu" --csv --clock-control none --metrics gpu__time_duration.sum \
      --launch-skip "$skip" --launch-count 400 "${launches[@]}" || return
    slowest_kernels "$results/ncu-times.log" >"$work/slowest"
    [ -s "$work/slowest" ] || nothing ncu-kernels "ncu timed no kernel"
    while read -r number; do
      step any "ncu-kernel-$((one++))" 25 "$ncu" --set full --clock-control none --launch-skip "$((skip + number))" --launch-count 1 "${launches[@]}"
    done <"$work/slowest"
  fi
}

circle() {
  local parts model tolerance steps=200 text=/usr/share/common-licenses/GPL-3 budget=(--steps 4 --time-budget 5 --memory-tolerance 3%)
  [ -r "$text" ] || text=docs/formats.md
  if has device_executor_benchmark "the overhead of the executor"; then
    step times executor 60 "$(program device_executor_benchmark)" --benchmark_out_format=json \
      --benchmark_out="$results/executor.json"
  fi
  if [ "$dry" = yes ]; then
    steps=3 budget=(--steps 1 --time-budget 0.05 --max-wait 100% --memory-tolerance 1000000%)
  fi
  # The number of layers is the same for schedules with one and with two stages per rank. The parts of a GPU share its memory:
  # ops are profiled while all parts work, and are faster while some wait, the more the more parts there are. Between GPUs
  # nothing is shared. What eight parts need must fit in 80 GB.
  for parts in 2 4 8; do
    local heads=$((parts < 8 ? 16 : 8))
    model=(--num-layers 16 --hidden-size $((128 * heads)) --num-attention-heads "$heads" --vocab-size 8192 --max-position-embeddings 2048
      --position-embedding-type learned_absolute --seq-length 2048 --mbs 1 --microbatches $((2 * parts)))
    tolerance=$((parts == 2 ? 3 : 8))%
    if [ "$dry" = yes ]; then
      tolerance=1000000%
      model=(--num-layers $((2 * parts)) --hidden-size 16 --num-attention-heads 2 --vocab-size 32 --max-position-embeddings 16
        --position-embedding-type learned_absolute --seq-length 16 --mbs 1 --microbatches "$parts" --tokens "4,16" --contexts 12)
    fi
    step json "validate-green-$parts" 130 "$sluice" validate "${model[@]}" --backend cuda --pp "$parts" --devices "green:$parts" \
      --schedule 1f1b,seq1f1b,zb-h1,zb-v,interleaved-1f1b --slices 4 --tolerance "$tolerance" "${budget[@]}" --json
  done
  local curve=(--data "$text" --backend cuda --precision bf16 --devices green:2) device=cuda sizes=()
  if [ "$dry" = yes ]; then curve+=(--seq-length 32 --mbs 1) device=cpu sizes=(--width 64 --rows 16); fi
  step any losses-first-step 60 "$sluice" run "${curve[@]}" --steps 1 --checkpoint "$work/first.safetensors"
  step json losses-sluice 60 "$sluice" run "${curve[@]}" --steps "$steps" --resume "$work/first.safetensors" --json
  # bfloat16 changes these losses by at most 0.075, on average 0.01 (PyTorch in bfloat16 against sluice in float32).
  if has_pytorch; then
    step any losses-beside-pytorch 90 "$python" benchmarks/kernels/pytorch_loss.py --checkpoint "$work/first.safetensors" \
      --run "$results/losses-sluice.json" --data "$text" --json "$results/losses-pytorch.json" --tolerance 0.15 --device "$device"
    step any schedules-in-pytorch 60 "$python" benchmarks/kernels/pytorch_pipeline.py --sluice "$sluice" --device "$device" \
      "${sizes[@]}" --json "$results/schedules-in-pytorch.json"
  else
    missing PyTorch "the comparison of losses and our schedules in PyTorch"
  fi
}

for each in $groups; do
  begin_group "$each"
  "$each"
  end_group
done
if [ "$failed" -ne 0 ]; then
  text='NOT all steps passed'
elif [ "$dry" = yes ]; then
  text='dry run: no step failed'
else
  text='all steps passed'
fi
echo "$text after $((SECONDS / 60)) min $((SECONDS % 60)) s"
exit "$failed"

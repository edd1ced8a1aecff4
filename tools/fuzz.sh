#!/usr/bin/env bash
# tools/fuzz.sh [SECONDS]: builds the fuzz targets and runs all of them, for SECONDS of wall time in total (default 60).
# Exits with an error if a target crashes or times out. The input that caused it is in build/fuzz/finds/<target>/: fix the
# defect and copy the input to tests/fuzz/found/<target>/, which fuzz_replay_test runs under the sanitizers. Inputs that reached
# new code are kept in build/fuzz/corpus/<target>/.
# SLUICE_FUZZ_TARGETS="scenario model" selects targets; SLUICE_FUZZ_EACH sets the seconds per target; SLUICE_JOBS sets the
# number of targets that run concurrently.
set -euo pipefail
cd "$(dirname "$0")/.."

total=${1:-60}
if ! [[ $total =~ ^[0-9]+$ ]]; then
  sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
  [ "$total" = --help ] && exit || exit 2
fi
jobs=${SLUICE_JOBS:-$(nproc)}
build=build/dev
read -r -a targets <<<"${SLUICE_FUZZ_TARGETS:-scenario schedule_json schedule_csv model cost_table cluster catalogue profile slice_times checkpoint fault recorder flags trace kineto measured_steps kernels gzip measured_table megatron_log calibration software import}"
each=${SLUICE_FUZZ_EACH:-$((total * jobs / ${#targets[@]}))}
if [ "$each" -lt 1 ]; then each=1; fi

tools/install-packages.sh clang libclang-rt-dev
cmake --preset dev
cmake --build --preset dev -j "$jobs" --target fuzz

run_one() {  # run_one SECONDS TARGET
  local name=$2 build=build/dev dictionary=tests/fuzz/json.dict seeds=()
  local corpus=build/fuzz/corpus/$name finds=build/fuzz/finds/$name log=build/fuzz/$name.log
  case $name in
    scenario) seeds=(examples) ;;
    model) seeds=(examples/models) ;;
    cluster) seeds=(model/cluster/catalogue/nodes) ;;
    catalogue) seeds=(model/cluster/catalogue) ;;
    schedule_csv) dictionary=tests/fuzz/csv.dict ;;
    measured_table | megatron_log) dictionary=tests/fuzz/measured.dict ;;
    software) seeds=(model/cluster/catalogue/software) ;;
    trace | kineto | measured_steps | kernels) dictionary=tests/fuzz/trace.dict ;;
  esac
  for folder in tests/fuzz/corpus/$name tests/fuzz/found/$name; do
    if [ -d "$folder" ]; then seeds+=("$folder"); fi
  done
  mkdir -p "$corpus" "$finds"
  # Seeds may be longer than the inputs that the fuzzer generates. The limit is in wall time, so it is five times the two
  # seconds that an input may take: the machine may be busy. fuzz_replay_test measures CPU time.
  if ! SLUICE_FUZZ_TARGET=$name "$build/tests/fuzz/fuzz" -max_total_time="$1" -max_len=4096 -timeout=10 \
      -report_slow_units=2 -rss_limit_mb=2048 -malloc_limit_mb=1024 -dict="$dictionary" -artifact_prefix="$finds/" \
      -print_final_stats=1 \
      "$corpus" "${seeds[@]}" >"$log" 2>&1 </dev/null; then
    tail -n 60 "$log"
    echo "fuzz.sh: $name failed, see above; the input is in $finds/" >&2
    return 1
  fi
  printf '%-14s %s\n' "$name" "$(grep -E '^#[0-9]+\s+DONE' "$log")"
}
export -f run_one
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$jobs" bash -c 'set -euo pipefail; run_one "$0" "$1"' "$each"

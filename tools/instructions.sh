#!/usr/bin/env bash
# tools/instructions.sh [--accept]: counts the instructions of five paths of the release build with valgrind, and fails if one
# takes over 3 % more than in tools/instructions.csv. --accept: writes the counts to that file. They depend neither on the load nor
# on the CPU of the machine, but on the compiler: with another version, and without valgrind, nothing is compared.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  "" | --accept) ;;
  *)
    sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
    [ "$1" = --help ] && exit || exit 2
    ;;
esac

accepted=tools/instructions.csv
build=build/release
skip() {
  printf 'instructions.sh: SKIPPED, no instructions were counted: %s\n' "$1" >&2
  exit 0
}
tools/install-packages.sh valgrind || true
command -v valgrind >/dev/null || skip "no valgrind"
compiler=$("$(sed -n 's/^CMAKE_CXX_COMPILER:.*=//p' $build/CMakeCache.txt)" --version | head -n 1)
if [ "${1:-}" != --accept ] && [ "$compiler" != "$(sed -n 's/^compiler,//p' $accepted)" ]; then
  skip "the compiler is '$compiler', $accepted is of '$(sed -n 's/^compiler,//p' $accepted)'"
fi
cmake --build --preset release --target sluice prediction_benchmark >/dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The C library and OpenBLAS use the instructions that every x86-64 has, and one core.
settings=(OPENBLAS_CORETYPE=Prescott OPENBLAS_NUM_THREADS=1
  GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-RTM,-SSSE3,-SSE4_2)
core=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')
# profile NAME COMMAND...: runs the command under callgrind, which writes a file per NAME. Its output is in NAME.out.
profile() {
  local name=$1
  shift
  env -i "${settings[@]}" taskset -c "$core" valgrind --tool=callgrind --compress-strings=no --compress-pos=no \
    --callgrind-out-file="$work/$name" "$@" >"$work/$name.out" 2>"$work/$name.err" || {
    cat "$work/$name.err" >&2
    exit 1
  }
}
# per_call NAME FUNCTION [UNITS]: prints the mean number of instructions of a call of a function with all that it calls, per unit.
per_call() {
  awk -v begin="cfn=$2(" -v units="${3:-1}" '/^cfn=/ { found = index($0, begin) == 1 }
    /^calls=/ { calls = substr($1, 7); getline; if (found) { sum += $2; all += calls } }
    END { if (!all) exit 1; printf "%.1f\n", sum / all / units }' "$work/$1" || {
    echo "instructions.sh: $2 was not called" >&2
    exit 1
  }
}

profile family $build/benchmarks/prediction_benchmark --benchmark_filter='family_to_result/0/100000$' --benchmark_min_time=0 \
  --benchmark_format=json
profile plan $build/tools/sluice plan examples/gpt3-175b-a100.json --schedule megatron --tp 4 --pp 8 --even-stages
timeline=tests/traces/measured/samples/bytedance/timeline-ST.json.gz
profile analyze $build/tools/sluice analyze $timeline
profile version $build/tools/sluice --version
vertices=$(sed -n 's/^ *"vertices": \([0-9.e+]*\).*/\1/p' "$work/family.out")
{
  printf 'compiler,%s\npath,instructions\n' "$compiler"
  printf 'family to result: per vertex,%s\n' "$(per_call family 'sluice::bench::(anonymous namespace)::family_to_result' "$vertices")"
  printf 'plan: per assessed configuration,%s\n' "$(per_call plan sluice::sim::StructureRuns::assess)"
  printf 'plan: per simulated configuration,%s\n' "$(per_call plan sluice::sim::StructureRuns::run)"
  printf 'analyze: per event,%s\n' "$(per_call analyze sluice::tools::analyze "$(zcat $timeline | grep -o '"ph"' | wc -l)")"
  printf 'sluice --version,%s\n' "$(sed -n 's/^summary: //p' "$work/version")"
} >"$work/counts.csv"

awk -F, 'NR == FNR { old[$1] = $2; next }
  FNR == 2 { printf "%-36s %12s %12s %9s\n", "instructions", "accepted", "now", "change" }
  FNR > 2 {
    change = old[$1] ? ($2 / old[$1] - 1) * 100 : 0
    printf "%-36s %12.1f %12.1f %+7.2f %%\n", $1, old[$1], $2, change
    if (change > 3) failed = 1
  }
  END { exit failed }' $accepted "$work/counts.csv" || [ "${1:-}" = --accept ] || {
  printf "instructions.sh: more than 3 %% over %s; if that is justified: tools/instructions.sh --accept\n" $accepted >&2
  exit 1
}
if [ "${1:-}" = --accept ]; then cp "$work/counts.csv" $accepted; fi

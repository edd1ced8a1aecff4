#!/usr/bin/env bash
# Runs tools/gpu_check.sh with stubs instead of a GPU and of all programs: how it judges their output, time limits and what is
# packed. The real programs run in a dry run: see chroot.sh.
set -euo pipefail

source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  cat "$work/out" >&2
  exit 1
}

# A bundle of stubs. The files below $work/say replace the output of a program; `sleep` and `fail` there make it do so.
mkdir -p "$work"/{bundle/bin,bundle/tools,bundle/benchmarks,stubs,say}
cp "$source/tools/gpu_check.sh" "$work/bundle/tools"
echo "stubs 0" >"$work/bundle/VERSION"
stub() {  # stub FILE OUTPUT: a program that prints OUTPUT, or $work/say/NAME if there is one
  cat >"$1" <<END
#!/usr/bin/env bash
name=${1##*/}
echo "\$name \$*" >>"$work/calls"
if [ -e "$work/say/\$name.sleep" ]; then sleep 100; fi
if [ -e "$work/say/\$name" ]; then cat "$work/say/\$name"; else printf '%b' '$2'; fi
if [ -e "$work/say/\$name.fail" ]; then echo "\$name broke" >&2; exit 3; fi
END
  chmod +x "$1"
}
for each in sluice sluice_emulated; do stub "$work/bundle/bin/$each" '{"steps": [\n  "loss": 2.5\n]}\n'; done
for each in gpu_test exec_test; do stub "$work/bundle/bin/$each" '[       OK ] A.B (1 ms)\n[  SKIPPED ] A.C (0 ms)\n'; done
for each in attention device_layer device_executor; do stub "$work/bundle/bin/${each}_benchmark" 'layer/a/tokens:1        1.25 ms\n'; done
stub "$work/stubs/compute-sanitizer" '[       OK ] A.B (1 ms)\n'
cat >"$work/stubs/nvidia-smi" <<'END'
#!/bin/sh
case "$*" in -L) echo "GPU 0: Stub" ;; *compute_cap*) echo 9.0 ;; *--query-gpu=name*) echo "NVIDIA Stub" ;; esac
END
cat >"$work/stubs/python3" <<END
#!/bin/sh
echo "python3 \$*" >>"$work/calls"
case "\$*" in
  '- '*) exec $(command -v python3) "\$@" ;;
  *pytorch_loss*) echo "3 steps: losses differ by at most 0.01" ;;
  *pytorch_pipeline*) echo "1f1b  1  0.0e+00  equal" ;;
  *pytorch_layer*) printf 'layer/a/tokens:1  F  1.250 ms\nleft out, for lack of time: gpt, 2048 tokens after 0\n' ;;
esac
END
chmod +x "$work/stubs"/*

# check CODE ARGUMENTS...: runs it, and compares the exit code. says TEXT...: each is in its output.
check() {
  local expected=$1 code=0
  shift
  rm -rf "$work/results"
  PATH=$work/stubs:$PATH "$work/bundle/tools/gpu_check.sh" --from-bundle --output "$work/results" "$@" >"$work/out" 2>&1 || code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected: $*"
}
says() { for text in "$@"; do grep -qE -- "$text" "$work/out" || fail "no '$text' in:"; done; }
packed() { grep -qx "$1/$2" <<<"$(tar -tzf "$work/results/$1.tar.gz")" || fail "$1.tar.gz has no $2"; }

# ncu profiles the slowest launch of the slowest kernels: b takes 5 + 7, a 9.
stub "$work/stubs/ncu" '"ID","Kernel Name","Metric Value"\n"0","b","5"\n"1","a","9"\n"2","b","7"\n'
check 0
says 'correctness: NVIDIA Stub, sm_90, .*, stubs 0' 'doctor +ok' 'gpu-tests-kernels +ok .* 1 tests passed, 1 skipped' \
  'train-green-2-1f1b-losses +ok' 'nccl-2-seq1f1b-losses +ok' 'communicators +ok' 'sanitizer-racecheck-kernels +ok' 'layers-beside-pytorch +ok .* 1 rows timed, some left out' 'pytorch-scans +ok' \
  'ncu-kernel-1 +ok' 'ncu-kernel-2 +ok' 'executor +ok' 'validate-green-8 +ok' 'losses-beside-pytorch +ok' 'schedules-in-pytorch +ok' \
  'all steps passed'
grep -q 'launch-skip 21 ' <<<"$(grep -A 1 'set full --clock-control none --launch-skip 22 ' "$work/calls" | tail -n 1)" || fail "ncu profiles other kernels: $(grep ^ncu "$work/calls")"
for group in correctness speed circle; do packed $group summary.txt; done
packed correctness doctor.json
packed circle validate-green-4.json

# In a dry run, the scripts with PyTorch get tiny sizes, for which the benchmarks of sluice have no rows.
: >"$work/calls"
check 0 --dry-run
says 'layers-beside-pytorch +ok' 'schedules-in-pytorch +ok' 'dry run: no step failed'
called() { grep -E "$1" "$work/calls"; }
[ "$(called 'pytorch_layer.*--try ' | wc -l)" -eq 2 ] || fail "expected --try: $(called pytorch_layer)"
if called 'pytorch_layer.*--sluice'; then fail "compared with sluice without a GPU"; fi
called 'pytorch_pipeline.* --device cpu --width 64 --rows 16 ' >/dev/null || fail "expected tiny sizes: $(called pytorch_pipeline)"

# Programs that end without an error and without a result.
printf '[  SKIPPED ] A.B (0 ms)\n[  SKIPPED ] A.C (0 ms)\n[       OK ] A.D (0 ms)\n' >"$work/say/gpu_test"
echo '0 tests from 0 test suites ran.' >"$work/say/exec_test"
: >"$work/say/sluice"
check 1 --group correctness
says 'gpu-tests-kernels +NOTHING +2 of 3 tests were skipped' 'nccl-tests +NOTHING +no test ran' 'doctor +NOTHING +no JSON' 'NOT all steps passed'
echo 'nothing timed: there is no GPU' >"$work/say/device_executor_benchmark"
check 1 --group=circle --steps '^executor$'
says 'executor +NOTHING +nothing timed: there is no GPU'
echo "overhead/a/b:1 ERROR OCCURRED: 'too old'" >"$work/say/device_executor_benchmark"
check 1 --group circle --steps '^executor$'
says "executor +NOTHING +nothing was timed: ERROR OCCURRED: 'too old'"
rm "$work/say"/*

# Libraries that are missing: sluice computes without them, and says so.
cp "$work/bundle/bin/sluice" "$work/bundle/bin/sluice_emulated" "$work"
for each in sluice sluice_emulated; do
  cat >"$work/bundle/bin/$each" <<'END'
#!/bin/sh
case "$*" in
  *cudnn*) echo "note: attention without cuDNN: cuDNN not found: libcudnn.so.9" >&2 ;;
  *gemm*) echo "note: something else" >&2 ;;
esac
printf '{"steps": [\n "loss": 2.5\n]}\n'
END
done
check 1 --group correctness --steps '^attention-'
says 'attention-gemm +ok' 'attention-cudnn +NOTHING +note: attention without cuDNN: cuDNN not found: libcudnn.so.9'
if grep -q -- '-losses ' "$work/out"; then fail "the losses of one library were compared with themselves"; fi
check 0 --dry-run --group correctness --steps '^attention-'
says 'attention-cudnn +ok' 'attention-losses +ok'
mv "$work/sluice" "$work/sluice_emulated" "$work/bundle/bin"

# Failures, and losses that differ: one process of NCCL has others than the run on streams.
touch "$work/say/gpu_test.fail"
check 1 --group correctness --steps 'gpu-tests-kernels|train-cpu'
says 'gpu-tests-kernels +FAILED .*exit 3: gpu_test broke' 'train-cpu +ok'
cat >"$work/bundle/bin/sluice" <<'END'
#!/bin/sh
case "$*" in *green*) loss=2.6 ;; *) loss=2.5 ;; esac
printf '{"steps": [\n "loss": %s\n]}\n' $loss
END
check 1 --group correctness --steps train
says 'train-stream-2-1f1b-losses +ok' 'train-green-2-1f1b-losses +FAILED .*1 and 1 steps, losses differ by at most 0.1'

# The time limit of a group ends a step, and nothing is started after it.
touch "$work/say/exec_test.sleep"
check 1 --group correctness --minutes 0.05 --steps 'nccl-tests|sanitizer-memcheck-run'
says 'nccl-tests +TIMEOUT +after [123] s' 'sanitizer-memcheck-run +NOT RUN +the limit of 0.05 min' 'correctness.tar.gz'

# A signal ends the step, and what is there is packed.
rm -rf "$work/results"
PATH=$work/stubs:$PATH "$work/bundle/tools/gpu_check.sh" --from-bundle --output "$work/results" --group correctness --steps nccl-tests >"$work/out" 2>&1 &
until [ -e "$work/results/correctness/nccl-tests.log" ]; do sleep 0.02; done
kill -TERM $!
wait $! && fail "interrupted, and exit code 0"
says 'NOT RUN +the rest: interrupted'
packed correctness summary.txt
rm "$work/say"/*

# Missing programs.
rm "$work/bundle/bin/attention_benchmark" "$work/bundle/bin/gpu_test"
check 1
says 'attention_benchmark +MISSING' 'gpu_test +MISSING' 'layers-beside-pytorch +ok'

# Without PyTorch or a GPU, the comparison measures nothing.
if ! python3 -c 'import torch' 2>/dev/null; then
  python3 "$source/benchmarks/kernels/pytorch_layer.py" >"$work/out"
  says '^nothing timed: PyTorch is not installed'
fi

# Input that is not valid.
check 2 --group fast && says "--group: expected correctness, speed, circle or all, got 'fast'"
check 2 --minutes 0 && says "--minutes: expected a positive number below 10000, got '0'"
check 2 --steps '[' && says "--steps: expected a regular expression, got '\['"
check 2 --group && says "--group: expected a value"
check 2 --fast && says usage
rm "$work/bundle/VERSION"
check 2 && says "is not a bundle"
printf '#!/bin/sh\nexit 9\n' >"$work/stubs/nvidia-smi"
check 2 && says "nvidia-smi finds no GPU"
echo "passed"

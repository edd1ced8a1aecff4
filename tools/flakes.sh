#!/usr/bin/env bash
# tools/flakes.sh [--preset PRESET] [--repeat N] [--filter REGEX] [--busy N]
# Repeats the tests that depend on signals, threads, processes, sockets or time while every core is kept busy by something
# else, and prints a table. A test that fails once is a failure.
#   --preset PRESET  build to test (default: release; dev and tsan are the sanitizer builds)
#   --repeat N       number of runs of each test (default: 200)
#   --filter REGEX   tests by their CTest names (default: all that run commands, workers, watchdogs or launchers)
#   --busy N         number of busy processes (default: the number of cores)
#   --jobs N         number of tests at a time (default: the number of cores)
# Long trainings are shortened (SLUICE_TEST_SCOPE=small).
set -euo pipefail
cd "$(dirname "$0")/.."

preset=release
repeat=200
busy=$(nproc)
jobs=$(nproc)
# Suites with threads, processes, signals, sockets or deadlines.
filter='^(AllReduceGroup|AutoCommand|Bootstrap.*|BrokenRun|CheckpointTest|CoreWait|DeviceCommands|DeviceWorker|Doctor|EmulatedDevices|Fault.*|Launcher|Nccl.*|PlanCommand|Profil.*|RecorderTest|RunCommand|Trials|Validate|WaitChainRuns|WatchdogTest)\.'
usage() { sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'; }
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h)
      usage
      exit 0
      ;;
    --preset | --repeat | --filter | --busy | --jobs)
      if [ $# -lt 2 ]; then
        echo "flakes.sh: $1 needs a value" >&2
        exit 2
      fi
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    *)
      echo "flakes.sh: unknown argument '$1' (see --help)" >&2
      exit 2
      ;;
  esac
done

build=build/$preset
if [ ! -d "$build" ]; then
  echo "flakes.sh: $build is missing: cmake --preset $preset && cmake --build --preset $preset" >&2
  exit 2
fi

burners=()
trap 'kill "${burners[@]}" 2>/dev/null || true' EXIT
for ((i = 0; i < busy; ++i)); do
  (while :; do :; done) &
  burners+=($!)
done

results=$build/flakes.xml
rm -f "$results"
status=0
SLUICE_TEST_SCOPE=small ctest --test-dir "$build" -R "$filter" --repeat "until-fail:$repeat" --output-junit "$PWD/$results" --no-tests=error \
  -j "$jobs" >"$build/flakes.log" 2>&1 || status=$?
if [ ! -f "$results" ]; then
  tail -n 20 "$build/flakes.log"
  echo "flakes.sh: ctest wrote no results" >&2
  exit 1
fi

python3 - "$results" "$repeat" "$busy" "$build/flakes.log" <<'PY'
import re
import sys
import xml.etree.ElementTree as xml

results, repeat, busy, log = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
runs = {}
for line in open(log, errors="replace"):
    match = re.search(r"Test +#\d+: (\S+) \.*\s*\**(Passed|Failed|Skipped|Timeout|Exception|Subprocess aborted)", line)
    if match:
        runs[match.group(1)] = runs.get(match.group(1), 0) + 1
cases = [case for case in xml.parse(results).getroot().iter("testcase")]
failed = [case for case in cases if case.get("status") == "fail"]
skipped = [case for case in cases if case.get("status") in ("notrun", "disabled")]
print(f"{'test':72} {'runs':>5} {'last s':>7}  result")
for case in sorted(cases, key=lambda case: (case not in failed, case.get("name"))):
    result = "FAILED" if case in failed else "skipped" if case in skipped else "ok"
    print(f"{case.get('name'):72} {runs.get(case.get('name'), 0):5} {float(case.get('time')):7.2f}  {result}")
print(f"{len(cases)} tests, {repeat} runs each beside {busy} busy processes: {len(failed)} failed, {len(skipped)} skipped")
PY
exit "$status"

# Sourced by quickstart.sh, test.sh, check.sh and .ci/run: runs steps that may fail without stopping the later ones, and lists the
# duration and result of each at the end.

# ccache compares paths relative to the build folder: what the release build has compiled, the build of the Python package
# takes from it. Messages of the compiler have whole paths nevertheless.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_ABSSTDERR=1
# Python keeps what it compiles: compiling PyTorch's modules takes nine CPU seconds of each start.
unset PYTHONDONTWRITEBYTECODE

# takes_no_arguments "$@": prints the comment at the top of the script and ends for --help, and for anything else.
takes_no_arguments() {
  if [ $# -eq 0 ]; then return; fi
  sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
  [ "$1" = --help ] && exit || exit 2
}

step_names=()
step_results=()
step_seconds=()

# step NAME COMMAND...: runs the command and records its duration and result. Fails if the command fails.
step() {
  local name=$1 start=$SECONDS result=ok
  shift
  printf '\n== %s\n' "$name"
  "$@" || result=FAILED
  step_names+=("$name")
  step_results+=("$result")
  step_seconds+=($((SECONDS - start)))
  [ "$result" = ok ]
}

# run_tests PRESET JOBS [OPTION...]: runs the tests of a build, one more at a time than JOBS, because some wait for their
# processes. steps_summary lists those that fail.
test_logs=()
run_tests() {
  local preset=$1 jobs=$2
  shift 2
  test_logs+=("build/$preset/ctest.log")
  ctest --preset "$preset" -j $((jobs + 1)) "$@" 2>&1 | tee "build/$preset/ctest.log"
}

# Prints the table of steps, and the tests that failed. Fails if any step failed.
steps_summary() {
  local i failed=0
  printf '\n%-44s %8s  %s\n' "$1" seconds result
  for i in "${!step_names[@]}"; do
    printf '%-44s %8d  %s\n' "${step_names[$i]}" "${step_seconds[$i]}" "${step_results[$i]}"
    if [ "${step_results[$i]}" != ok ]; then failed=1; fi
  done
  printf '%-44s %8d\n' total "$SECONDS"
  for i in "${test_logs[@]}"; do
    sed -n "/^The following tests FAILED/,/^Errors while/s|^[[:space:]]\+[0-9]\+ - |FAILED in ${i%/ctest.log}: |p" "$i"
  done
  return "$failed"
}

# Sourced by test.sh, check.sh and .ci/run: runs steps that may fail without stopping the later ones, and lists the
# duration and result of each at the end.

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

# Prints the table of steps. Fails if any step failed.
steps_summary() {
  local i failed=0
  printf '\n%-44s %8s  %s\n' "$1" seconds result
  for i in "${!step_names[@]}"; do
    printf '%-44s %8d  %s\n' "${step_names[$i]}" "${step_seconds[$i]}" "${step_results[$i]}"
    if [ "${step_results[$i]}" != ok ]; then failed=1; fi
  done
  printf '%-44s %8d\n' total "$SECONDS"
  return "$failed"
}

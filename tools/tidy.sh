#!/usr/bin/env bash
# tools/tidy.sh [JOBS]: runs clang-tidy on the sources of the libraries and the command, with the compile commands of the
# release build. The clang-analyzer checks take four times as long as all others together, so they run only on files that
# changed since the merge base with origin/main (on main itself: in the last commit). SLUICE_TIDY=all runs them on all
# files; SLUICE_TIDY=no skips everything.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${1:-$(nproc)}
build=build/release
mode=${SLUICE_TIDY:-changed}
if [ "$mode" = no ]; then
  echo "skipped (SLUICE_TIDY=no)"
  exit 0
fi

base=$(git merge-base HEAD origin/main 2>/dev/null || true)
if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
  base=$(git rev-parse --verify -q HEAD~1 || true)
fi
changed=$([ -z "$base" ] || git diff --name-only "$base" --)

analysed=()
others=()
while IFS= read -r file; do
  # Files that this machine cannot build (without MPI, for example) have no compile command.
  if ! grep -qF "/$file\"" "$build/compile_commands.json"; then continue; fi
  if [ "$mode" = all ] || grep -qxF "$file" <<<"$changed"; then analysed+=("$file"); else others+=("$file"); fi
done < <(git ls-files -- {model,sim,kernels,exec,traces,tools}/'*.cc')

tidy() {  # tidy CHECKS FILE...
  local checks=$1
  shift
  if [ $# -eq 0 ]; then return; fi
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$jobs" sh -c '
    out=$(clang-tidy -p "$0" --quiet --extra-arg=-w --checks="$1" "$2" 2>&1) || { printf "%s\n" "$out"; exit 1; }' "$build" "$checks"
}
tidy "-clang-analyzer-*" ${others[@]+"${others[@]}"}
tidy "" ${analysed[@]+"${analysed[@]}"}
echo "clean: ${#analysed[@]} files with clang-analyzer, ${#others[@]} without"

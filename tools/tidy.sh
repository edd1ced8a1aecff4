#!/usr/bin/env bash
# tools/tidy.sh [JOBS]: clang-tidy over the libraries and the command.
# All sources are read in the batches of the unity build, so that headers are parsed once for several sources. The slow
# checks (clang-analyzer, which takes four times as long as all others together, and those below) are for files that changed
# since the merge base with origin/main (on main itself: in the last commit), or whose header did, each alone, which also
# shows that the header compiles alone. SLUICE_TIDY=all gives them to all files, SLUICE_TIDY=no skips everything.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${1:-$(nproc)}
mode=${SLUICE_TIDY:-changed}
if [ "$mode" = no ]; then
  echo "skipped (SLUICE_TIDY=no)"
  exit 0
fi

# Compile commands alone, with and without batches; nothing is compiled but the generated sources.
configure() {  # configure FOLDER UNITY
  cmake -S . -B "$1" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=OFF -DSLUICE_TESTS=OFF \
    -DSLUICE_BENCHMARKS=OFF -DSLUICE_WERROR=OFF -DSLUICE_UNITY="$2" >/dev/null
  cmake --build "$1" --target sluice_generated >/dev/null
}
configure build/tidy ON
configure build/tidy-single OFF

tidy() {  # tidy FOLDER CHECKS: reads file names from standard input
  xargs -r -n 1 -P "$jobs" sh -c '
    out=$(clang-tidy -p "$0" --quiet --extra-arg=-w --checks="$1" \
      --header-filter="(model|sim|import|exec|kernels|traces|tools)/.*\\.(h|cc)\$" "$2" 2>&1) || { printf "%s\n" "$out"; exit 1; }' "$1" "$2"
}

base=$(git merge-base HEAD origin/main 2>/dev/null || true)
if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
  base=$(git rev-parse --verify -q HEAD~1 || true)
fi
# Without the code that protobuf generates.
compiled() { sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$1/compile_commands.json" | sed '/\.pb\.cc$/d' | sort -u; }
analysed=$(compiled build/tidy-single | while IFS= read -r file; do
  if [ "$mode" = all ] || { [ -n "$base" ] && ! git diff --quiet "$base" -- "$file" "${file%.cc}.h" 2>/dev/null; }; then echo "$file"; fi
done)

# Sorts batches by the size of their sources, the largest first, so that no core waits for one at the end.
largest_first() {
  while IFS= read -r file; do
    printf '%d %s\n' "$(sed -n 's/^#include "\(.*\.cc\)"$/\1/p' "$file" | tr '\n' '\0' | xargs -r -0 cat | wc -c)" "$file"
  done | sort -rn | cut -d ' ' -f 2-
}

# A batch includes sources by design, and its diagnostics are in included files.
# Parameters passed by value take half of the time of all checks, the others a half of the rest: they look at every name,
# call, macro or operator of all headers.
slow=(performance-unnecessary-value-param bugprone-reserved-identifier bugprone-stringview-nullptr bugprone-unused-return-value
  bugprone-suspicious-string-compare bugprone-undelegated-constructor bugprone-assert-side-effect bugprone-multiple-statement-macro
  bugprone-suspicious-semicolon bugprone-unused-raii misc-unused-using-decls modernize-use-nullptr)
compiled build/tidy | largest_first | tidy build/tidy "-clang-analyzer-*,-bugprone-suspicious-include$(printf ',-%s' "${slow[@]}")"
printf '%s\n' "$analysed" | sed '/^$/d' | tidy build/tidy-single "-*,clang-analyzer-*$(printf ',%s' "${slow[@]}")"
echo "clean: $(compiled build/tidy-single | wc -l) files, $(sed '/^$/d' <<<"$analysed" | wc -l) of them with clang-analyzer"

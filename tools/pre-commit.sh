#!/usr/bin/env bash
# A Git hook of some 20 s (at most 15 s per folder): the format of the staged sources, the rules of the house, and the tests of the folders that
# changed, as far as they are built. Install it with: ln -s ../../tools/pre-commit.sh .git/hooks/pre-commit
# SLUICE_PRE_COMMIT_TESTS=no leaves out the tests of the folders.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"

mapfile -t changed < <(git diff --cached --name-only --diff-filter=ACMR)
if [ ${#changed[@]} -eq 0 ]; then
  exit 0
fi

sources=()
folders=()
for file in "${changed[@]}"; do
  case $file in *.cc | *.h | *.cu | *.cuh) sources+=("$file") ;; esac
  case $file in
    model/* | sim/* | import/* | kernels/* | exec/* | traces/* | tools/* | benchmarks/*) folders+=("${file%%/*}") ;;
    tests/*/*) folders+=("$(cut -d/ -f2 <<<"$file")") ;;
  esac
done

if [ ${#sources[@]} -gt 0 ] && ! clang-format --dry-run --Werror "${sources[@]}"; then
  echo "pre-commit: run clang-format -i on these files" >&2
  exit 1
fi

programs=build/release/tests
if [ ! -x "$programs/house_test" ]; then
  echo "pre-commit: the tests are not built (tools/test.sh): only the format was checked" >&2
  exit 0
fi
"$programs/house_test" --gtest_brief=1
if [ "${SLUICE_PRE_COMMIT_TESTS:-yes}" = no ]; then
  exit 0
fi
# Tests of the folders that changed, by the programs as they were built last; those of the command and of runs are long.
for folder in $(printf '%s\n' ${folders[@]+"${folders[@]}"} | sort -u); do
  program=$programs/${folder}_test
  case $folder in model | sim | import | kernels | traces) ;; *) continue ;; esac
  if [ -x "$program" ]; then
    SLUICE_TEST_SCOPE=small timeout 15 "$program" --gtest_brief=1 || {
      if [ $? -eq 124 ]; then
        echo "pre-commit: ${folder}_test was stopped after 15 s; no failure until then" >&2
      else
        echo "pre-commit: ${folder}_test failed" >&2
        exit 1
      fi
    }
  fi
done

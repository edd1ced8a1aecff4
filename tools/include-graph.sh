#!/usr/bin/env bash
# tools/include-graph.sh [--dot]: prints which folder includes which, one line per folder, each below the folders that it
# includes; with --dot for GraphViz. Fails if folders include each other in a cycle, and prints it.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  "" | --dot) ;;
  *)
    sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
    [ "$1" = --help ] && exit || exit 2
    ;;
esac

edges=$(git ls-files -- {model,sim,kernels,exec,import,traces,tools}/'*.h' {model,sim,kernels,exec,import,traces,tools}/'*.cc' \
  {model,sim,kernels,exec,import,traces,tools}/'*.cu' | xargs grep -HoE '^ *# *include "[^"]+"' |
  sed -E 's#^(.*)/[^/]+:.*"(.*)/[^/]+"$#\1 \2#' | sort -u | awk '$1 != $2')
if [ "${1:-}" = --dot ]; then
  printf 'digraph includes {\n'
  sed -E 's#(.*) (.*)#"\1" -> "\2";#' <<<"$edges"
  printf '}\n'
fi
order=$(tsort <<<"$edges" 2>&1) || {
  echo "include-graph.sh: a cycle:" >&2
  grep '^tsort' <<<"$order" >&2
  exit 1
}
if [ "${1:-}" != --dot ]; then
  tac <<<"$order" | while read -r folder; do
    printf '%-26s %s\n' "$folder" "$(awk -v f="$folder" '$1 == f { print $2 }' <<<"$edges" | paste -sd ' ' -)"
  done
fi

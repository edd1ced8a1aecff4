#!/usr/bin/env bash
# tools/site.sh [FOLDER] [TABLES]: writes the static site of Sluice, build/site by default: the documents, the reference of
# the Python package, all schedule families, a page that simulates in the browser, and, given a folder of measured runs
# (docs/results.md), predicted against measured times. It needs no server: any static host can have it.
# Needs the release build (with -DSLUICE_LIVE=ON for the page that simulates). SLUICE_PYTHON: a Python with the package
# `sluice`, and PyTorch for the reference of sluice.torch (default: build/site-python, made from the wheel); pdoc and
# markdown-it are installed there.
set -euo pipefail
case ${1:-} in
  -*)
    sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
    [ "$1" = --help ] && exit || exit 2
    ;;
esac
folder=$(realpath -m "${1:-$(dirname "$0")/../build/site}")
tables=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."

sluice=build/release/tools/sluice
[ -x "$sluice" ] || { echo "tools/site.sh: $sluice is missing: build the release preset first" >&2 && exit 2; }
python=${SLUICE_PYTHON:-build/site-python/bin/python}
if [ -z "${SLUICE_PYTHON:-}" ] && [ ! -x "$python" ]; then
  python3 -m venv build/site-python
  "$python" -m pip install --quiet .
fi
"$python" -m pip install --quiet pdoc==15.0.4 markdown-it-py==3.0.0 mdit-py-plugins==0.4.2

new=$folder.new
rm -rf "$new" && mkdir -p "$new"
"$sluice" schedules --gallery "$new/families.html"
example=examples/llama3-8b-zbv-h100.json
if ! "$sluice" simulate "$example" --report "$new/live.html" --live >"$new/log" 2>&1; then
  echo "without the page that simulates: $(cat "$new/log")" >&2
  rm -f "$new/live.html"
fi
rm "$new/log"
if [ -n "$tables" ]; then "$python" benchmarks/accuracy "$tables" --html "$new/accuracy.html" >/dev/null; fi
"$python" tools/site/build.py "$new"
rm -rf "$folder" && mv "$new" "$folder"
echo "wrote $folder/index.html"

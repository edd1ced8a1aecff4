#!/bin/sh
# Tests reports in headless Chromium: run.sh SLUICE; or the pages of tools/site.sh: run.sh --site FOLDER. Exit code 77 (skipped)
# if Chromium, Node.js or playwright-core is missing.
set -eu
if [ "$1" = --site ]; then set -- --site "$(realpath "$2")"; fi
cd "$(dirname "$0")"

skip() {
  echo "SKIPPED: the report was not tested in a browser: $1" >&2
  exit 77
}
command -v node >/dev/null || skip "node is not installed (Debian: nodejs)"
browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || true)}
[ -n "$browser" ] || skip "chromium is not installed"
[ -d node_modules/playwright-core ] || skip "playwright-core is not installed (npm ci in tests/browser)"
if [ "$1" = --site ]; then exec node site.mjs "$2" "$browser"; fi
node report.mjs "$1" "$browser"
if out=$("$1" simulate --schedule 1f1b --pp 2 --microbatches 2 --report /dev/null --live 2>&1); then
  exec node live.mjs "$1" "$browser"
fi
echo "SKIPPED: live pages were not tested: $out" >&2

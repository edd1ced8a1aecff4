#!/usr/bin/env bash
# Installs what opens reports in tests: Debian's Chromium, Node.js, npm, and playwright-core from the registry that npm
# is set up for; only what is missing. Without them those tests are skipped. SLUICE_INSTALL=no leaves the machine as it is.
set -euo pipefail
cd "$(dirname "$0")"

if [ "${SLUICE_INSTALL:-yes}" = no ]; then
  exit 0
fi
packages=(chromium)
# Node.js may be there from elsewhere, npm with it.
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
../../tools/install-packages.sh "${packages[@]}"
npm ci --no-progress || echo "npm ci failed: reports will NOT be tested in a browser" >&2

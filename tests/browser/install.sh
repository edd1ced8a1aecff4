#!/usr/bin/env bash
# Installs the programs that the browser tests need, if missing: Chromium, Node.js and npm from Debian, and playwright-core
# from the configured npm registry. Without them the browser tests are skipped. SLUICE_INSTALL=no installs nothing.
# tests/browser/install.sh --packages-only: installs Debian's packages alone, with which the tests are still skipped.
set -euo pipefail
cd "$(dirname "$0")"

if [ "${SLUICE_INSTALL:-yes}" = no ]; then
  exit 0
fi
packages=(chromium)
# Node.js and npm may be installed from another source.
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
../../tools/install-packages.sh "${packages[@]}"
if [ "${1:-}" = --packages-only ]; then
  exit 0
fi
npm ci --no-progress || echo "npm ci failed: the browser tests will be SKIPPED" >&2

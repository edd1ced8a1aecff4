#!/usr/bin/env bash
# Installs PyTorch for the CPU into build/pytorch, a virtual environment, if it is missing. Without it the tests that need it
# are skipped. SLUICE_INSTALL=no installs nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=build/pytorch
if [ "${SLUICE_INSTALL:-yes}" = no ] || "$folder/bin/python" -c 'import torch' 2>/dev/null; then
  exit 0
fi
tools/install-packages.sh python3-venv
# Other versions of this package bring CUDA libraries of several gigabytes.
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet torch==2.13.0 numpy; } ||
  echo "pip failed: the tests with PyTorch will be SKIPPED" >&2

#!/usr/bin/env bash
# Installs PyTorch for the CPU, Megatron-core, torchtitan and what the tests of the Python package need into build/pytorch,
# a virtual environment, if it is missing. Without it the tests that need it are skipped. SLUICE_INSTALL=no installs
# nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=build/pytorch
if [ "${SLUICE_INSTALL:-yes}" = no ] ||
  "$folder/bin/python" -c 'import torch, megatron.core, torchtitan, pytest, mypy, nbclient, ipykernel, pandas' 2>/dev/null; then
  exit 0
fi
packages=(python3-venv)
# Debian's Python has its headers, which the extension of the Python package needs, in a package of their own.
if ! python3 -c 'import os, sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; then
  packages+=(python3-dev)
fi
tools/install-packages.sh "${packages[@]}"
# Other versions of this package bring CUDA libraries of several gigabytes. Megatron-core and torchtitan without their
# dependencies, of which the code that the tests call needs none. Python compiles what is imported when it is imported.
{ python3 -m venv "$folder" &&
  "$folder/bin/pip" install --quiet --no-compile \
    torch==2.13.0 numpy pandas pytest mypy nbclient nbformat ipykernel packaging &&
  "$folder/bin/pip" install --quiet --no-compile --no-deps megatron-core==0.16.1 torchtitan==0.3.0; } ||
  echo "pip failed: the tests with PyTorch will be SKIPPED" >&2

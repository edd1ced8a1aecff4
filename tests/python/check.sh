#!/usr/bin/env bash
# Builds the wheel of the Python package, imports it in a clean virtual environment without a compiler, and checks its types
# and runs tests/python in build/pytorch (tests/pytorch/install.sh), which has PyTorch and Megatron-core. The notebook is
# executed by its test. Exits with 77 if that environment is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/pytorch/install.sh
python=$PWD/build/pytorch/bin/python
if ! "$python" -c 'import torch, megatron.core, pytest, mypy' 2>/dev/null; then
  echo "SKIPPED: build/pytorch has no PyTorch: the tests of the Python package did not run" >&2
  exit 77
fi

rm -rf build/wheel
# Compiler and options are those of the release build: ccache has its libraries.
CXX=${CXX:-c++} "$python" -m pip wheel --quiet --config-settings=cmake.define.SLUICE_WERROR=ON \
  --no-deps --wheel-dir build/wheel .
ls -l build/wheel

python3 -m venv --clear build/python-clean
build/python-clean/bin/pip install --quiet build/wheel/sluice-*.whl
clean=$PWD/build/python-clean/bin/python
(cd / && env -i PATH=/nowhere "$clean" -c 'import sluice; assert sluice.simulate(pp=2, microbatches=4).makespan_s == 15')

"$python" -m pip install --quiet --force-reinstall --no-deps build/wheel/sluice-*.whl
(cd build && "$python" -m mypy --config-file ../pyproject.toml) >build/mypy.log 2>&1 &
types=$!
tests() { "$python" -m pytest -q -p no:cacheprovider --durations=5 "$@"; }
tests -m "not quiet" tests/python/test_torch.py >build/test_torch.log 2>&1 &
torch=$!
code=0
tests -m "not quiet" --ignore=tests/python/test_torch.py tests/python || code=$?
wait "$types" || code=$?
wait "$torch" || code=$?
cat build/mypy.log build/test_torch.log
tests -m quiet tests/python/test_torch.py || code=$?
exit "$code"

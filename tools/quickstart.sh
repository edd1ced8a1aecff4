#!/usr/bin/env bash
# Installs what the build needs, builds Sluice, simulates an example, searches for a better configuration of it, trains a
# small model on this machine, and compares predicted with measured times.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
takes_no_arguments "$@"

example=examples/gpt3-175b-a100.json
trace=build/quickstart-trace.json.gz

tools/install-packages.sh
cmake --preset release
cmake --build --preset release --target sluice_install
build/release/tools/sluice simulate "$example" --gantt --trace "$trace"
build/release/tools/sluice plan "$example" --schedule megatron --top 5
build/release/tools/sluice run --steps 3
# A large error is not a failure: the machine may be busy.
build/release/tools/sluice validate --time-budget 3 --steps 5 --tolerance 1000% --max-wait 100%
echo "wrote $trace: open it at https://ui.perfetto.dev"
echo "install with: cmake --install build/release --prefix ~/.local"

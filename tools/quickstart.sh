#!/usr/bin/env bash
# From a bare machine to a first prediction: installs what the build needs, builds the sluice command, simulates an example.
set -euo pipefail
cd "$(dirname "$0")/.."

example=examples/gpt3-175b-a100.json
trace=build/quickstart-trace.json.gz

tools/install-packages.sh
cmake --preset release
cmake --build --preset release --target sluice
build/release/tools/sluice simulate "$example" --gantt --trace "$trace"
echo "wrote $trace: open it at https://ui.perfetto.dev"

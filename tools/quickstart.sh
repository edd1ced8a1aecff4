#!/usr/bin/env bash
# From a bare machine to a first prediction: installs what the build needs, builds the sluice command, simulates an example,
# plans how to run it better, and runs a small model here, held against its prediction.
set -euo pipefail
cd "$(dirname "$0")/.."

example=examples/gpt3-175b-a100.json
trace=build/quickstart-trace.json.gz

tools/install-packages.sh
cmake --preset release
cmake --build --preset release --target sluice
build/release/tools/sluice simulate "$example" --gantt --trace "$trace"
build/release/tools/sluice plan "$example" --schedule megatron --top 5
build/release/tools/sluice run --steps 3
# How far a busy machine is off is not a failure.
build/release/tools/sluice validate --tolerance 1000
echo "wrote $trace: open it at https://ui.perfetto.dev"

#!/usr/bin/env bash
# MAPPA's DSBench experiment on a node of 8 GPUs, in an environment with coachrl[openrlhf,llm]; the coach's key in
# GEMINI_API_KEY. Arguments go to `coachrl train`: tasks.root=data tasks.train=train.json tasks.heldout=test.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
coachrl doctor --backend openrlhf --config dsbench_8gpu
coachrl train --config dsbench_8gpu "$@" --dry-run
exec coachrl train --config dsbench_8gpu "$@"

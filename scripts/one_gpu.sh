#!/usr/bin/env bash
# The quickstart's team on one GPU, in an environment with coachrl[vllm]. Further arguments go to `coachrl train`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
coachrl doctor --backend vllm
exec coachrl train --config one_gpu "$@"

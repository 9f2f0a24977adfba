#!/usr/bin/env bash
# The quickstart's team on one GPU with the distributed backend, in an environment with coachrl[openrlhf,quickstart].
# Further arguments go to `coachrl train`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
coachrl doctor --backend openrlhf
exec coachrl train --config one_gpu "$@"

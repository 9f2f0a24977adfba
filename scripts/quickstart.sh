#!/usr/bin/env bash
# Trains a three-agent team on a laptop: no GPU, no key. Further arguments go to `coachrl train`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh quickstart
exec .venv/bin/coachrl train --config configs/quickstart.yaml "$@"

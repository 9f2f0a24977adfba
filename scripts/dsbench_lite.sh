#!/usr/bin/env bash
# Warm start on demonstrations, then coach training on dsbench-lite. Further arguments go to `coachrl train`.
# COUNT=… demonstrations of each role (default 150). What is there already is not made again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh quickstart
demos="demos/dsbench-${COUNT:-150}"
if [ ! -d "$demos" ]; then
  .venv/bin/python -m examples.dsbench_demonstrations "$demos" --count "${COUNT:-150}"
fi
for role in data_engineer modeler analyst; do
  if [ ! -d "models/dsbench/$role" ]; then
    mkdir -p models/dsbench
    .venv/bin/coachrl sft --data "$demos/$role.jsonl" --out "models/dsbench/$role" --epochs 2 --batch-size 4 --learning-rate 1e-4
  fi
done
exec .venv/bin/coachrl train --config dsbench_lite "$@"

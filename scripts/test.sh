#!/usr/bin/env bash
# Everything that a change must pass: lint, format, types, tests, then the distributed backend's tests in their own
# environment. With arguments, which go to pytest, the latter are left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh dev
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
if [ $# -gt 0 ]; then
  exec .venv/bin/pytest "$@"
fi
.venv/bin/pytest --ignore tests/distributed
echo "now the distributed backend: Ray, vLLM, DeepSpeed and OpenRLHF on CPU"
exec scripts/test_openrlhf_cpu.sh

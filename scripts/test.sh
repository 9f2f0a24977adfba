#!/usr/bin/env bash
# Everything that a change must pass: lint, format, types, tests, then the distributed backend's tests in their own
# environment. With --fast, neither those nor tests marked slow. Further arguments go to pytest, and leave the
# distributed backend's tests out too. What fails is tried once more, and listed: see CONTRIBUTING.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fast=false
if [ "${1:-}" = --fast ]; then
  fast=true
  shift
fi
scripts/setup.sh dev
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
if $fast; then
  .venv/bin/pytest --ignore tests/distributed -m "not slow" "$@"
  echo "left out: tests/distributed, which scripts/test_openrlhf_cpu.sh runs, and the slow tests that are listed above"
  exit
fi
if [ $# -gt 0 ]; then
  exec .venv/bin/pytest "$@"
fi
.venv/bin/pytest --ignore tests/distributed --reruns 1 -rR
echo "now the distributed backend: Ray, vLLM, DeepSpeed and OpenRLHF on CPU"
exec scripts/test_openrlhf_cpu.sh

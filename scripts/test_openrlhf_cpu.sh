#!/usr/bin/env bash
# Tests the backends with vLLM for real, at tiny size on CPU: Ray, vLLM, DeepSpeed and OpenRLHF's own classes, with gloo.
# Makes .venv-openrlhf first (3.5 GB). Further arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup_openrlhf_cpu.sh
unset PYTHONDONTWRITEBYTECODE  # or each of a hundred processes compiles vLLM and torch again
exec "${VENV:-.venv-openrlhf}/bin/python" -m pytest tests/distributed tests/trainers/backends/vllm --reruns 1 -rR "$@"

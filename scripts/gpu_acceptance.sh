#!/usr/bin/env bash
# What the first owner of a card runs: doctor, hand-over of weights, a learning curve, speed, memory against the plan,
# kill and resume, as one table. In an environment with coachrl[vllm]; --help has the rest. PYTHON=… is its interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python}" benchmarks/gpu_acceptance "$@"

#!/usr/bin/env bash
# MAPPA's DSBench experiment on a node of 8 GPUs, in an environment with coachrl[openrlhf,llm]; the coach's key in
# GEMINI_API_KEY. Arguments go to `coachrl train`: tasks.root=data tasks.train=train.json tasks.heldout=test.json
set -euo pipefail
settings=()  # which the doctor takes too; options are for train alone
for word in "$@"; do
  [[ $word == -* || $word != *=* ]] || settings+=("$word")
done
coachrl doctor --backend openrlhf --config dsbench_8gpu "${settings[@]}"
coachrl train --config dsbench_8gpu "$@" --dry-run
exec coachrl train --config dsbench_8gpu "$@"

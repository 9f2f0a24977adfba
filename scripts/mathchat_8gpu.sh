#!/usr/bin/env bash
# MAPPA's MathChat experiment on a node of 8 GPUs, in an environment with coachrl[openrlhf,llm]; the coach's key in
# GEMINI_API_KEY. Arguments go to `coachrl train`: tasks.train=train.json tasks.heldout=test.json
set -euo pipefail
settings=()  # which the doctor takes too; options are for train alone
for word in "$@"; do
  [[ $word == -* || $word != *=* ]] || settings+=("$word")
done
coachrl doctor --backend openrlhf --config mathchat_8gpu "${settings[@]}"
coachrl train --config mathchat_8gpu "$@" --dry-run
exec coachrl train --config mathchat_8gpu "$@"

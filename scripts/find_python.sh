#!/usr/bin/env bash
# Prints the Python that coachrl can use: $PYTHON, or the first of the usual names that is 3.11 to 3.13.
set -euo pipefail
for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
  if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)))' 2>/dev/null; then
    echo "$candidate"
    exit
  fi
done
echo "coachrl needs Python 3.11, 3.12 or 3.13; set PYTHON=/path/to/python" >&2
exit 2

"""Rollouts, credit and updates. Everything that touches torch lives below this package."""

import os

# OpenMP reads these once, when torch is first imported, so they are set here, before any module below can do that. By
# default its threads spin while they wait for each other; beside any other busy process (a sandbox, a judge) a spinning
# pair slows down tenfold. Sleeping costs a little on an idle machine. What the user has set is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

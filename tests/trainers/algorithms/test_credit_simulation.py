"""The simulation of `benchmarks/credit.py failures`, at a small size: no failed score and no cut reply moves others."""

import numpy as np
import pytest

from benchmarks.credit import MODES, called, pushes
from coachrl.trainers.algorithms.advantages.groups import Places


@pytest.mark.parametrize("options", MODES, ids=called)
def test_no_failed_or_cut_action_moves_anothers_advantage_on_average(options):
    """Within 4 standard errors over a dozen batches and a hundredth of a deviation: one of some 50 actions is missing
    from what the others are scaled by."""
    for push in pushes(options, failures=1000, episodes=10):
        assert abs(push.mean) < 4 * push.error + 0.01
        assert push.error > 0 or options["name"] not in ("reinforce_pp", "magrpo")


def test_the_simulation_sees_a_score_that_is_counted_as_0(monkeypatch):
    """What unknown scores were once: with the mean of the role and turn replaced by 0, earlier actions are punished."""
    monkeypatch.setattr(Places, "means", lambda self, values_N, known_N, otherwise_N=0.0: np.zeros(len(values_N)))
    earlier, _ = pushes(
        {"name": "reinforce_pp", "returns": "sum_as_in_the_paper", "kl_beta": 0.0}, failures=1000, episodes=10
    )
    assert earlier.mean < -10 * earlier.error

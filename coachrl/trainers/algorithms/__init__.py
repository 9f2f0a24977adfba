"""How rewards become advantages: one protocol (`base`), and one file for each algorithm.

The table of their names is `SHIPPED` in `coachrl.config.algorithm`, which reads the settings of each.
"""

from __future__ import annotations

from coachrl.config.algorithm import AlgorithmConfig, find_algorithm
from coachrl.trainers.algorithms.base import Algorithm


def make_algorithm(settings: AlgorithmConfig) -> Algorithm:
    """The algorithm that `settings.name` names, with its settings. Raises ConfigError."""
    algorithm: Algorithm = find_algorithm(settings.name)(settings)
    return algorithm

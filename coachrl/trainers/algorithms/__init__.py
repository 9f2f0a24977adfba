"""How rewards become advantages: one protocol (`base`), and one file for each algorithm.

The table of their names is `SHIPPED` in `coachrl.config.algorithm`, which reads the settings of each.
"""

from __future__ import annotations

from coachrl.config.algorithm import AlgorithmConfig, SavedAlgorithmConfig, find_algorithm, made_algorithm
from coachrl.config.load import make_section
from coachrl.trainers.algorithms.base import Algorithm


def make_algorithm(settings: AlgorithmConfig) -> Algorithm:
    """The algorithm that `settings.name` names, with its settings. Raises ConfigError."""
    found = find_algorithm(settings.name)
    if isinstance(settings, SavedAlgorithmConfig):
        settings = make_section(found.Config, **settings.model_dump())
    algorithm: Algorithm = made_algorithm(found, settings)
    return algorithm

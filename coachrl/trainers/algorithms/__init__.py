"""How rewards become advantages: one protocol (`base`), and one file for each algorithm."""

from __future__ import annotations

from coachrl.config.algorithm import AlgorithmConfig, find_algorithm
from coachrl.trainers.algorithms.base import Algorithm


def make_algorithm(settings: AlgorithmConfig) -> Algorithm:
    """The algorithm that `settings.name` names, with its settings. Raises ConfigError."""
    algorithm: Algorithm = find_algorithm(settings.name)(settings)
    return algorithm

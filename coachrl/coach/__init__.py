"""Coaches: score every action of every agent from 0 to 10. `make_coach` makes the one that a configuration names."""

from coachrl.coach.base import Coach, CoachRequest
from coachrl.coach.build import make_coach

__all__ = ["Coach", "CoachRequest", "make_coach"]

"""coachrl: train teams of language-model agents with process rewards from a coach."""

__version__ = "0.1.0"

"""Exceptions that a caller can act on. Each message says what was wrong, where, and what would be right."""


class CoachrlError(Exception):
    """Base of every error that coachrl raises on purpose.

    ``exit_code`` is what the command line returns: 2 for wrong usage or configuration, 1 for a run that failed.
    """

    exit_code = 1


class ConfigError(CoachrlError):
    """A configuration key, value or name that cannot be used."""

    exit_code = 2


class TaskError(CoachrlError):
    """A task set or a task file that cannot be read or does not hold what it must."""

    exit_code = 2


class SandboxError(CoachrlError):
    """The sandbox cannot isolate, or broke: never the doing of the code that ran in it."""


class SandboxUnavailable(SandboxError):
    """A control that the sandbox needs is missing on this machine. The message names it and says how to get it."""

    exit_code = 2


class CoachError(CoachrlError):
    """A coach call that gave no score: the reply did not parse, the provider refused, or retries ran out."""


class CoachUnavailable(CoachError):
    """The coach cannot be used at all (unknown model, wrong key, no such prompt). Raised before any rollout."""

    exit_code = 2


class PolicyError(CoachrlError):
    """A model that cannot be loaded, has no chat template, or cannot take the prompt that it was given."""

    exit_code = 2


class ContextOverflow(PolicyError):
    """A prompt that leaves no room for a reply in the model's context. The episode ends and says so."""

    exit_code = 1


class BudgetExceeded(CoachrlError):
    """A stated limit of spend or of failures was reached; the run was checkpointed and stopped."""


class CheckpointError(CoachrlError):
    """A checkpoint that is missing, cut short, or from another configuration."""


class BackendError(CoachrlError):
    """The distributed backend could not start, or lost a part of itself; or training gave figures that are not
    finite."""


class EngineLost(BackendError):
    """An engine died, and died again after it was replaced. What was trained so far is whole."""

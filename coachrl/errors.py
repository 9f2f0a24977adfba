"""Exceptions that a caller can act on. Each message says what was wrong, where, and what would be right.

Each class says by `blame` what it means where it comes up while an episode is played. The rollout goes by this alone.

agent            The agents' doing. The episode ends as a failure with the reason, and is trained on.
infrastructure   Nobody's doing among the agents. The episode is left out and counted: `Episode.infra_error`.
run              Nothing that one episode could be blamed for, or that the next would not meet again. The run ends.

An error that is none of these classes is a bug, of coachrl or of somebody's own pipeline, and ends the run too.
docs/pipelines.md has the table of all that can go wrong.
"""

from pathlib import Path
from typing import ClassVar, Literal

Blame = Literal["agent", "infrastructure", "run"]


class CoachrlError(Exception):
    """Base of every error that coachrl raises on purpose.

    ``exit_code`` is what the command line returns: 2 for wrong usage or configuration, 1 for a run that failed.
    ``blame`` is whose doing it is in an episode; ``label`` is what the reason of such an episode begins with.
    """

    exit_code: ClassVar[int] = 1
    blame: ClassVar[Blame] = "run"
    label: ClassVar[str] = ""

    def __init_subclass__(
        cls, exit_code: int | None = None, blame: Blame | None = None, label: str | None = None
    ) -> None:
        """A class names what it has otherwise than the one that it descends from."""
        super().__init_subclass__()
        cls.exit_code = cls.exit_code if exit_code is None else exit_code
        cls.blame = cls.blame if blame is None else blame
        cls.label = cls.label if label is None else label


class ConfigError(CoachrlError, exit_code=2):
    """A configuration key, value or name that cannot be used."""


class TaskError(CoachrlError, exit_code=2):
    """A task set or a task file that cannot be read or does not hold what it must."""


class SandboxError(CoachrlError, blame="infrastructure", label="sandbox"):
    """The sandbox cannot isolate, or broke: never the doing of the code that ran in it."""


class SandboxUnavailable(SandboxError, exit_code=2, blame="run"):
    """A control that the sandbox needs is missing on this machine. The message names it and says how to get it."""


class CoachError(CoachrlError):
    """A coach call that gave no score: the reply did not parse, the provider refused, or retries ran out."""

    price_known: bool = True
    """False where the coach may have spent what nobody has seen."""


class CoachUnavailable(CoachError, exit_code=2):
    """The coach cannot be used at all (unknown model, wrong key, no such prompt). Raised before any rollout."""


class KeyMissing(CoachUnavailable, exit_code=2):
    """The coach's provider wants a key, and the environment holds none."""


class PolicyError(CoachrlError, exit_code=2):
    """A model that cannot be loaded, has no chat template, or cannot take the prompt that it was given."""


class PackageMissing(PolicyError):
    """A package that a backend or a model needs is not installed here."""


def lacking(error: ImportError) -> str:
    """The name of the package that is missing; of one that is installed and fails to load, why it fails."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return error.name
    return f"a package that is installed here and cannot be imported ({' '.join(str(error).split())})"


class ContextOverflow(PolicyError, exit_code=1, blame="agent", label="context overflow"):
    """A prompt that leaves no room for a reply in the model's context. The episode ends and says so."""


class ToolError(CoachrlError, blame="agent", label="tool"):
    """A call of a tool that could not be made, or failed. It is told to the agent, and never leaves its turn."""


class AppFailed(CoachrlError, blame="agent", label="app"):
    """An app (pipeline `gateway`) that broke on what its agents wrote: it raised, or ended with an exit code."""


class AppBroken(CoachrlError, blame="infrastructure", label="app"):
    """An app that broke on nothing its agents wrote: before its first reply, or by hanging."""


class GraderFailed(CoachrlError, blame="infrastructure", label="grader"):
    """A grader of the user's own that raised in place of an outcome."""


class ProviderFailed(CoachrlError, blame="infrastructure", label="provider"):
    """A provider that did not answer for an external role."""


class EpisodeTimeout(CoachrlError, blame="infrastructure", label="timeout"):
    """An episode that did not end in the time that `train.episode_timeout_s` gives it, its waits included."""


class ReplayDiverged(CoachrlError, blame="infrastructure", label="not reproduced"):
    """An episode that was played again did not come to the state that it is on record with."""


class WorkerLost(CoachrlError, blame="infrastructure", label="worker"):
    """The process that played an episode died."""


class BudgetExceeded(CoachrlError):
    """A stated limit of spend or of failures was reached; the run was checkpointed and stopped."""


class Preempted(CoachrlError, exit_code=143):
    """The process was asked to end (SIGTERM, or its notice file), as a scheduler does that takes a machine back."""


class NothingTrained(CoachrlError):
    """A run that came to its end with every action left out of every update: its weights are what they were."""


class CheckpointError(CoachrlError, exit_code=2):
    """A checkpoint that is missing, cut short, or from another configuration."""


class BackendError(CoachrlError):
    """A backend's engines or trainers could not start, or were lost; or training gave figures that are not finite."""


class ClusterLost(BackendError):
    """The Ray cluster has not answered for too long. What was trained so far is whole."""


class ProcessLost(BackendError):
    """A process of the backend died: one that trains takes with it what was trained since the last checkpoint. A
    backend that is opened again can go on from there, see `train.restarts`."""


class EngineLost(ProcessLost):
    """An engine died and could not be replaced, or died again after it was. What was trained so far is whole."""


class EngineGone(EngineLost):
    """An engine in this process failed. What it holds, a GPU's memory above all, comes back with the end of the process
    alone, so that another process has to go on with the run."""


class EngineStuck(EngineGone):
    """An engine in this process does not answer: the thread that it hangs in ends with the process."""


class GoesOnElsewhere(Exception):
    """Not a failure: another process is to go on with the run in this `folder`, for the `restarts`-th time."""

    def __init__(self, folder: Path, restarts: int) -> None:
        super().__init__(f"restart {restarts} of {folder}")
        self.folder, self.restarts = folder, restarts

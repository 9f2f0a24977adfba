"""Reward functions of TRL's trainers, audited while they train.

    from coachrl.audit.trl import audited

    judge = audited(my_judge, "scores.jsonl", outcome=accuracy, category="subject", every=50)
    GRPOTrainer(model, reward_funcs=[judge], train_dataset=dataset, args=args).train()

    coachrl audit --from trl scores.jsonl

TRL calls a reward function with the prompts, the completions and the columns of its data set, and gives it the state of
training and a way to log figures; nothing of TRL is imported here.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coachrl.audit.data.imported import NO_REWARDS_OF_TRL, import_scores, import_settings
from coachrl.audit.training import score_audit
from coachrl.config.training import is_due
from coachrl.errors import ConfigError
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import append_jsonl

logger = logging.getLogger(__name__)  # `log` is the file of scores

RewardFunction = Callable[..., Any]


def audited(
    reward: RewardFunction,
    log: str | Path,
    *,
    outcome: RewardFunction | None = None,
    task: str | None = None,
    category: str | None = None,
    every: int = 0,
    scale: str = "0:1",
) -> RewardFunction:
    """The same reward function under the same name, sync or async as it was, which also appends each reply with its
    score to `log`, one JSON line each, as `coachrl audit --from trl` reads it.

    outcome: another reward function that says whether a reply is right, 1 or 0 (None: not known); it is asked of the
    same replies and adds nothing to the reward. task, category: columns of the data set; replies to one prompt are of
    one task where none is named. every: TRL logs `audit/...` of the last so many steps, on the main process (0: never).
    scale: the rewards that count as 0 and as 10 of 10, lowest first, for those figures. A reward that is no number, NaN
    as much as None, is a missing score; figures that cannot be made are warned of, and training goes on.

    Raises ConfigError for a scale that is none and for a function that is called as another column is, and, as it is
    called, for a column that the data set does not have and for a number of rewards that is not that of the replies.
    """
    import_settings("trl", (), scale)
    columns = {field: column for field, column in (("task", task), ("category", category)) if column}
    begin = Path(log).stat().st_size if Path(log).is_file() else 0
    name = getattr(reward, "__name__", type(reward).__name__)
    if name in NO_REWARDS_OF_TRL:
        raise ConfigError(f"audited: a column of the log is called '{name}': give the reward function another name")
    writer = _Writer(Path(log), name, columns, every, scale, begin)

    if inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(outcome):

        @functools.wraps(reward)
        async def asked(**given: Any) -> Any:
            scores = await _awaited(reward(**given))
            writer.keep(given, scores, await _awaited(outcome(**given)) if outcome is not None else None)
            return scores

    else:

        @functools.wraps(reward)
        def asked(**given: Any) -> Any:
            scores = reward(**given)
            writer.keep(given, scores, outcome(**given) if outcome is not None else None)
            return scores

    asked.__name__ = writer.reward
    return asked


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@dataclass
class _Writer:
    """Where scores go. reward: the column of the scores; columns: the data set's, by field; begin: where in the log the
    replies begin that were not audited yet; audited: the last step that was."""

    log: Path
    reward: str
    columns: Mapping[str, str]
    every: int
    scale: str
    begin: int
    audited: int = 0

    def keep(self, given: Mapping[str, Any], scores: Sequence[Any], outcomes: Sequence[Any] | None) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        append_jsonl(self.log, list(self._lines(given, scores, outcomes)))
        self._log_figures(given)

    def _lines(
        self, given: Mapping[str, Any], scores: Sequence[Any], outcomes: Sequence[Any] | None
    ) -> Iterator[dict[str, Any]]:
        count = len(given["completions"])
        columns = {"prompt": given["prompts"], "completion": given["completions"], self.reward: scores}
        if outcomes is not None:
            columns["outcome"] = outcomes
        if given.get("completion_ids") is not None:
            columns["tokens"] = [len(ids) for ids in given["completion_ids"]]
        for field, column in self.columns.items():
            if column not in given:
                raise ConfigError(f"audited: {field}='{column}' is no column of the data set")
            columns[field] = given[column]
        for name, values in columns.items():
            if len(values) != count:
                raise ConfigError(f"audited: {len(values)} values of '{name}' for {count} replies")
        for place in range(count):
            row = {name: _plain(values[place]) for name, values in columns.items()}
            yield {"step": _step(given), **row}

    def _log_figures(self, given: Mapping[str, Any]) -> None:
        """`audit/...` of the last steps, once for each `every` of them."""
        step, state, log_metric = _step(given), given.get("trainer_state"), given.get("log_metric")
        due = is_due(step, self.every) and step != self.audited
        if not due or log_metric is None or not getattr(state, "is_world_process_zero", True):
            return
        self.audited = step
        try:
            figures = self._figures(step)
        except (ConfigError, OSError) as error:  # no audit is worth a run of days
            logger.warning("audit/... is left out at step %d: %s", step, error)
            return
        for name, value in figures.items():
            log_metric(name, value)

    def _figures(self, step: int) -> dict[str, float]:
        """Of the replies since the last audit alone: the log of a long run may be larger than memory."""
        settings = import_settings("trl", [f"score={self.reward}"], self.scale)
        with tempfile.TemporaryDirectory(prefix="coachrl-trl-") as folder:
            recent = Path(folder) / "recent.jsonl"
            recent.write_bytes(self._recent())
            run = Run(import_scores(recent, settings, Path(folder)))
            return score_audit(run, step - self.every + 1, step)

    def _recent(self) -> bytes:
        """The whole lines that were not audited yet: another process may be writing the last one."""
        with self.log.open("rb") as log:
            log.seek(self.begin)
            found = log.read()
        lines = found[: found.rfind(b"\n") + 1]
        self.begin += len(lines)
        return lines


def _step(given: Mapping[str, Any]) -> int:
    """The step in the making, from 1."""
    return int(getattr(given.get("trainer_state"), "global_step", 0)) + 1


def _plain(value: Any) -> Any:
    """A number of a tensor or an array as a plain one, None for one that JSON does not have; text and messages as they
    are."""
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain

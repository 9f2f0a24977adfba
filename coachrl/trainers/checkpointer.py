"""What a checkpoint of a run holds, and that a run which ends before its time has one of its last whole step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from coachrl.config import RunConfig
from coachrl.errors import CoachrlError, EngineGone, EngineStuck
from coachrl.pipelines.base import Pipeline
from coachrl.runs import checkpoints
from coachrl.runs.folder import Run
from coachrl.runs.model_card import write_cards
from coachrl.runs.records import step_of
from coachrl.text import first_line
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.algorithms.boundary import restore, state_of
from coachrl.trainers.backends.base import Backend
from coachrl.trainers.checkpoint_writer import CheckpointWriter, is_done_within
from coachrl.trainers.rollout.kept_replies import KeptReplies

log = logging.getLogger(__name__)


class Checkpointer:
    """Writes and reads the checkpoints of one run: each policy's weights, and the state of the algorithm. The replies
    kept so far belong to them: a checkpoint makes those of its step needless. Writes none where
    `train.keep_checkpoints` is 0. made_with: what a checkpoint must have been made with to be read."""

    def __init__(
        self,
        config: RunConfig,
        run: Run,
        *,
        pipeline: Pipeline,
        backend: Backend,
        algorithm: Algorithm,
        replies: KeptReplies,
        made_with: Mapping[str, str],
    ) -> None:
        self._config, self._run, self._pipeline = config, run, pipeline
        self._backend, self._algorithm, self._replies = backend, algorithm, replies
        self._made_with = made_with
        self._writer = CheckpointWriter()

    def read(self, folder: Path) -> int:
        """Take up what the checkpoint in `folder` holds. Returns the step that it was made at. Raises CheckpointError
        where it is damaged, or was made with something else."""
        found = checkpoints.read(folder, self._made_with)
        self._replies.weights = found.weights
        self._backend.load(folder)
        if (state := checkpoints.read_state(folder)) is not None:
            restore(self._algorithm, state)
        return found.step

    def is_best(self, step: int) -> bool:
        """Whether `step`, whose metrics are written, is to be kept as the best so far."""
        is_asked = self._config.train.keep_best and self._config.evaluates_after(step)
        return is_asked and self._run.best_checkpoint([step]) == step

    def begin(self, step: int, keep_replies: bool = False) -> None:
        """Start to write a checkpoint of `step`, the last one made, beside what follows up to the next update. Once it
        is on disk, the replies up to now are deleted. keep_replies: not so, since some are of the step that follows."""
        self._writer.wait()
        if self._config.train.keep_checkpoints == 0:
            return
        with ExitStack() as stack:
            settings = self._config.train
            folder = stack.enter_context(self._run.checkpoint(step, settings.keep_checkpoints, settings.keep_best))
            wait_for_weights = self._backend.begin_save(folder)
            # What is written is of now: by then the next step may be under way.
            weights, state, metrics = self._replies.weights, state_of(self._algorithm), self._run.metrics()
            rewards = self._algorithm.rewarded_by(self._config)
            delete_replies = None if keep_replies else self._replies.put_aside()
            checkpoint = stack.pop_all()

        def write() -> None:
            with checkpoint:  # it has its name when the block ends
                wait_for_weights()
                checkpoints.write_state(folder, state)
                write_cards(folder, step, self._config, rewards, self._pipeline.roles, metrics)
                checkpoints.seal(folder, step, self._made_with, weights)
            if delete_replies is not None:
                delete_replies()

        self._writer.begin(write)

    async def written(self) -> None:
        """Return once what was begun is on disk, while other tasks go on."""
        await self._writer.written()

    def close(self) -> None:
        """The same where the run fails: see `CheckpointWriter.close`."""
        self._writer.close()

    def keep_last(self, error: CoachrlError, step: int, failed_in: int, whole: bool) -> None:
        """Have a checkpoint of `step`, the last one made, unless an update has changed the weights since (`whole`
        says that none has). error: what ends the run in step `failed_in`; it is logged where the disk takes none."""
        try:
            self._writer.wait()
        except OSError as not_written:  # tried once more below
            log.warning("the last checkpoint was not written: %s", not_written)
        if not whole or self._is_kept(step):
            return
        try:
            self.write_after(error, step)
        except OSError as not_written:
            log.error("step %d: %s; no checkpoint after step %d: %s", failed_in, error, step, not_written)
            raise

    def write_after(self, error: CoachrlError, step: int) -> None:
        """Write a checkpoint of `step` where `error` ends the run. Weights beside an engine that is gone may lie in the
        memory of a card that hangs, or gives nothing any more: they are not waited for without end, and where they are
        out of reach the run goes on from the checkpoint before."""
        limit_s = self._config.vllm.answer_timeout_s
        try:
            if not isinstance(error, EngineStuck):
                self._write(step)
            elif not is_done_within(limit_s, lambda: self._write(step)):
                log.error("no checkpoint after step %d: it was not written within %g s", step, limit_s)
        except (OSError, RuntimeError) as not_written:
            if not isinstance(error, EngineGone):
                raise
            log.error("no checkpoint after step %d: %s", step, first_line(not_written))

    def _write(self, step: int) -> None:
        self.begin(step, keep_replies=True)
        self._writer.wait()

    def _is_kept(self, step: int) -> bool:
        return step in map(step_of, self._run.checkpoints())

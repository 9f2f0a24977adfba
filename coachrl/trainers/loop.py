"""The training loop. A step plays episodes, scores them, makes advantages, updates the weights and hands them to what
generates; then come evaluation, checkpoint and a line of metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from coachrl.coach.base import CoachRequest
from coachrl.coach.pool import CoachPool
from coachrl.config import RunConfig
from coachrl.config.training import is_due
from coachrl.errors import (
    BudgetExceeded,
    CoachrlError,
    CoachUnavailable,
    ConfigError,
    EngineGone,
    EngineLost,
    Preempted,
)
from coachrl.pipelines.base import Pipeline
from coachrl.runs import checkpoints
from coachrl.runs.beginning import began_to_keep_best
from coachrl.runs.folder import Run
from coachrl.runs.initial_models import names_at_first
from coachrl.runs.lost import lost_steps, read_steps
from coachrl.runs.reading import tell_of_last_steps
from coachrl.runs.records import step_name
from coachrl.sandbox.base import Sandbox
from coachrl.seeding import generator
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.algorithms.advantages.batches import with_credit, without_few, without_frozen
from coachrl.trainers.algorithms.advantages.rewards import action_rewards
from coachrl.trainers.algorithms.boundary import batch_of, compared, explored, rewards_of
from coachrl.trainers.backends.base import Backend, Samples, require_finite
from coachrl.trainers.callbacks import Callback, StepAudit
from coachrl.trainers.checkpointer import Checkpointer
from coachrl.trainers.evaluate import evaluate, evaluation_metrics, speed_metrics
from coachrl.trainers.learning_rate import learning_rate_of
from coachrl.trainers.limits import require_training, too_much_failed
from coachrl.trainers.masking import training_samples
from coachrl.trainers.metrics import (
    Clock,
    behavior_metrics,
    cost_metrics,
    outcome_metrics,
    reward_metrics,
    score_metrics,
)
from coachrl.trainers.rollout.kept_replies import KeptReplies
from coachrl.trainers.rollout.prefetch import RolloutPrefetcher
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, RolloutExecutor, rollout
from coachrl.trainers.rollout.tree import make_tree
from coachrl.trainers.schedule import all_specs, further_specs, step_specs
from coachrl.types import CoachScore, Episode, SamplingParams, Task, policy_names

log = logging.getLogger(__name__)
T = TypeVar("T")


class Trainer:
    """One run: its parts, and the step it is at. `coach` is None where rewards need no coach; executor: see
    `RolloutContext`."""

    def __init__(
        self,
        config: RunConfig,
        run: Run,
        *,
        pipeline: Pipeline,
        backend: Backend,
        sandbox: Sandbox | None,
        coach: CoachPool | None,
        train_tasks: Sequence[Task],
        heldout_tasks: Sequence[Task],
        callback: Callback,
        audit: StepAudit | None = None,
        executor: RolloutExecutor | None = None,
    ) -> None:
        self.audit, self.executor = audit, executor
        self.config, self.run = config, run
        self.pipeline, self.backend, self.sandbox, self.coach = pipeline, backend, sandbox, coach
        self.train_tasks, self.heldout_tasks, self.callback = train_tasks, heldout_tasks, callback
        self.algorithm = make_algorithm(config.algorithm)
        self.step = self._last_update_begun = 0
        made_with = checkpoints.made_with(config, pipeline.roles, names_at_first(run))
        settings = json.dumps([made_with, config.torch.model_dump(mode="json")], sort_keys=True)
        # Without checkpoints a run cannot go on after a kill.
        replies = run.folder / "replies.jsonl" if config.train.keep_checkpoints else None
        self._replies = KeptReplies(backend, replies, settings)
        self._checkpointer = Checkpointer(
            config,
            run,
            pipeline=pipeline,
            backend=backend,
            algorithm=self.algorithm,
            replies=self._replies,
            made_with=made_with,
        )
        self._frozen = {name for name, policy in config.policies.items() if not policy.trainable}
        ahead = config.backend == "openrlhf" and config.openrlhf.one_step_off
        self._rollouts = RolloutPrefetcher(self._play, ahead, config.train.steps)
        self.ends_soon = False  # whether `end_soon` was called
        self._abortable: asyncio.Future[Any] | None = None

    async def train(self) -> None:
        """Run from the current step to the last.

        Raises BudgetExceeded where too much failed, or a step would cost more than is left, CoachUnavailable where the
        coach refuses every call, and Preempted after `end_soon`: all with a checkpoint to go on from. Raises
        NothingTrained at the end where every step left all of its actions out.
        """
        try:
            await self._train()
            await self._checkpointer.written()
        finally:
            await self._rollouts.stop()
            self._checkpointer.close()

    def end_soon(self) -> None:
        """Stop with a checkpoint: at once while episodes are played and scored, which are then played again by the run
        that goes on; else when the step under way is whole."""
        self.ends_soon = True
        self._rollouts.give_up()  # an update that goes on beside them then waits for them no longer
        if self._abortable is not None:
            self._abortable.cancel()

    def drawn_tokens(self, episodes: Sequence[Episode]) -> int:
        """How many tokens of the episodes were drawn, and not taken up from disk by a run that goes on."""
        return self._replies.drawn_tokens(action for episode in episodes for action in episode.all_actions)

    async def _unless_ending(self, work: Awaitable[T]) -> T:
        """What changes no weights, so that it may be given up. Raises Preempted where it is."""
        self._abortable = asyncio.ensure_future(work)
        try:
            if self.ends_soon:
                self._abortable.cancel()
            return await self._abortable
        except (asyncio.CancelledError, ConfigError) as error:
            if not self.ends_soon:
                raise
            why = f"; {error}" if isinstance(error, ConfigError) else ""
            raise Preempted(f"the process was asked to end{why}") from None
        finally:
            self._abortable = None

    async def _train(self) -> None:
        if self.step == 0 and not self.run.metrics():
            self._log(await self._unless_ending(self._evaluate()))
        elif self.config.evaluates_after(self.step) and self.run.lacks_evaluation(self.step):
            await self._make_up_evaluation()
        while self.step < self.config.train.steps:
            self.step += 1
            try:
                metrics = await self._train_step()
            except (BudgetExceeded, CoachUnavailable, EngineLost, Preempted) as error:
                raise self._paused(error) from error
            last = self.step == self.config.train.steps
            if self.config.evaluates_after(self.step):
                metrics |= await self._measured("evaluation", self._evaluate(), metrics)
            if self.audit is not None and self.audit.is_due(self.step):
                metrics |= await self._measured("audit", self.audit.metrics(self.step), metrics)
            self._log(metrics)
            if last or is_due(self.step, self.config.train.checkpoint_every) or self._checkpointer.is_best(self.step):
                self._checkpointer.begin(self.step)
            self._stop_where_too_much_failed(metrics)
        if self.run.lacks_evaluation(self.step):  # which a run that goes on makes up for
            await self._checkpointer.written()
            raise self._ended_in(f"evaluation after step {self.step}", Preempted("the process was asked to end"))
        policies = policy_names(self.pipeline.roles)
        if not policies or not self._frozen.issuperset(policies):  # none: all roles are played by providers
            require_training(self.run)

    async def _train_step(self) -> dict[str, Any]:
        clock = Clock()
        played, staleness = await self._unless_ending(self._rollouts.take(self.step))
        played, scores = await self._unless_ending(self._refill(played))
        specs = all_specs(self.train_tasks, self.config, self.step)
        context = self._context(self._training_draws, scored=False)
        found = await self._unless_ending(explored(self.algorithm, played, specs, context))
        episodes = found.episodes
        self._rollouts.begin(self.step + 1)
        clock.lap("rollout")
        scores |= await self._unless_ending(self._settle(episodes))
        clock.lap("coach")
        await self._unless_ending(self._checkpointer.written())
        clock.lap("checkpoint")
        samples = training_samples(episodes, self.pipeline.roles, self.config.train)
        samples = await self._rollouts.run(self.backend.with_reference, samples)
        if self.algorithm.needs_trainer_logprobs:
            samples = await self._rollouts.run(self.backend.with_trainer_logprobs, samples)
        clock.lap("reference")
        rewards = self._rewards(episodes, scores)
        batch = without_frozen(batch_of(self.algorithm, samples, rewards), self._frozen)
        batch = without_few(batch, self.config.train.min_actions)
        self._last_update_begun = self.step
        rate = learning_rate_of(self.step, self.config.train)
        statistics = await self._rollouts.run(self.backend.update, batch.samples, rate)
        require_finite(statistics)
        clock.lap("update")
        await self._rollouts.settle()
        self.backend.sync_weights()
        self._replies.note_update(statistics)
        clock.lap("sync")

        self.run.write_episodes(step_name(self.step), with_credit(episodes, rewards, batch), scores)
        if self.coach is not None:
            self.coach.observe(self.step, episodes, scores)
        return {
            **{f"train/{name}": value for name, value in outcome_metrics(episodes).items()},
            **reward_metrics(episodes, rewards, batch),
            "train/staleness": float(staleness),
            # A policy whose every gradient was not finite has no loss to write down; its `skipped` says so.
            **{f"train/{name}": value for name, value in statistics.items() if math.isfinite(value)},
            **score_metrics(episodes, scores),
            **behavior_metrics(episodes),
            **cost_metrics(episodes, scores),
            **found.metrics,
            **self._refill_metrics(episodes, rewards, samples),
            **clock.metrics(),
            **clock.rate("rollout", self.drawn_tokens(episodes), beside=staleness > 0),
        }

    async def _play(self, step: int) -> list[Episode]:
        """The episodes of one step, scored in the background."""
        return await self._play_specs(step_specs(self.train_tasks, self.config, step), f"step {step}")

    async def _play_specs(self, specs: Sequence[EpisodeSpec], what: str) -> list[Episode]:
        self.callback.on_phase(f"{what}/{self.config.train.steps}", len(specs))
        return await rollout(specs, self._context(self._training_draws, scored=True))

    async def _refill(self, episodes: list[Episode]) -> tuple[list[Episode], dict[str, CoachScore]]:
        """The episodes with those of further tasks, until the step has its number of tasks whose rewards can be
        compared or has played as many as it may; and what had to be scored to know that. Without a refill: the episodes
        as they are, with no score."""
        further = further_specs(self.train_tasks, self.config, self.step)
        scores: dict[str, CoachScore] = {}
        fresh = episodes
        while further:
            scores |= await self._settle(fresh)
            samples = training_samples(episodes, self.pipeline.roles, self.config.train)
            usable = self._tasks_compared(episodes, self._rewards(episodes, scores), samples)
            missing = self.config.train.tasks_per_step - usable
            if missing <= 0:
                break
            specs = [spec for of_task in further[:missing] for spec in of_task]
            further = further[missing:]
            fresh = await self._play_specs(specs, f"more tasks for step {self.step}")
            episodes = [*episodes, *fresh]
        return episodes, scores

    def _tasks_compared(
        self, episodes: Sequence[Episode], rewards: Mapping[str, float | None], samples: Samples
    ) -> int:
        """How many tasks of the step have rewards that differ. One that was played twice counts twice."""
        task_ids = compared(self.algorithm, samples, rewards)
        return sum(episode.task_id in task_ids for episode in episodes) // self.config.train.group_size

    def _refill_metrics(
        self, episodes: Sequence[Episode], rewards: Mapping[str, float | None], samples: Samples
    ) -> dict[str, float]:
        if self.algorithm.refill_up_to == 1:
            return {}
        played = len(episodes) // self.config.train.group_size
        return {
            "train/refill_tasks": float(played - self.config.train.tasks_per_step),
            "train/tasks_compared": float(self._tasks_compared(episodes, rewards, samples)),
        }

    def _submit(self, request: CoachRequest) -> None:
        if self.coach is not None and self.algorithm.scores_role(request.role.name):
            self.coach.submit(request)

    async def _settle(self, episodes: Sequence[Episode]) -> dict[str, CoachScore]:
        return await self.coach.settle(episodes) if self.coach is not None else {}

    def _rewards(self, episodes: Sequence[Episode], scores: Mapping[str, CoachScore]) -> dict[str, float | None]:
        rng = generator(self.config.seed, "shuffle", self.step)
        return action_rewards(partial(rewards_of, self.algorithm), episodes, scores, self.config.reward, rng)

    async def _evaluate(self) -> dict[str, Any]:
        settings = self.config.eval
        self.callback.on_phase("held-out tasks", len(self.heldout_tasks) * settings.samples_per_task)
        began = time.monotonic()
        context = self._context(SamplingParams(temperature=settings.temperature, top_p=settings.top_p), scored=False)
        label = f"eval-{self.step:06d}"
        episodes = await evaluate(self.heldout_tasks, context, settings.samples_per_task, self.config.seed, label)
        self.run.write_episodes(label, episodes, {})
        speed = speed_metrics(episodes, time.monotonic() - began, self.drawn_tokens(episodes))
        return {**evaluation_metrics(self.heldout_tasks, episodes), **speed}

    async def _make_up_evaluation(self) -> None:
        """Of the last step, whose own was given up."""
        try:
            measured = await self._unless_ending(self._evaluate())
        except (BudgetExceeded, CoachUnavailable, EngineLost, Preempted) as error:
            raise self._ended_in(f"evaluation after step {self.step}", error) from error
        self.run.add_to_metrics(self.step, measured)
        self.callback.on_metrics({"step": self.step, **measured})
        if self.step == self.config.train.steps:
            self._replies.remove()

    async def _measured(
        self, what: str, measuring: Awaitable[Mapping[str, Any]], metrics: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """What an evaluation or an audit after a step adds to its metrics; where the process must end it is given up,
        and not the step, and where nothing goes on the step is kept first. metrics: of it."""
        try:
            return await self._unless_ending(measuring)
        except Preempted:
            log.warning("step %d: its %s was given up, since the process was asked to end", self.step, what)
            return {}
        except (BudgetExceeded, CoachUnavailable, EngineGone) as error:
            self._log({**metrics})
            self._checkpointer.write_after(error, self.step)
            raise self._ended_in(f"{what} after step {self.step}", error) from error

    def _paused(self, error: BudgetExceeded | CoachUnavailable | EngineLost | Preempted) -> CoachrlError:
        """The error that ends the run in the middle of a step, once a checkpoint holds what was before that step; an
        older one has to do where the step's update has begun."""
        self.step -= 1
        self._keep_last(error, self.step + 1)
        return self._ended_in(f"step {self.step + 1}", error)

    def _ended_in(self, what: str, error: CoachrlError) -> CoachrlError:
        """The error with where the run was, and how to go on with it."""
        if isinstance(error, EngineLost):  # a restart may follow
            return type(error)(f"{what}: {error}")
        how = "no checkpoint is kept"
        if self.config.train.keep_checkpoints:
            more = " coach.budget_usd=…" if isinstance(error, BudgetExceeded) else ""
            how = f"go on with: coachrl train --resume {quote(str(self.run.folder))}{more}"
        return type(error)(f"{what}: {error}; {how}")

    def _keep_last(self, error: CoachrlError, failed_in: int) -> None:
        whole = self._last_update_begun == self.step
        self._checkpointer.keep_last(error, self.step, failed_in, whole)

    def resume(self, folder: Path) -> None:
        """Continue after the step that `folder` was made at; later lines of metrics are dropped, to be made again."""
        self.step = self._last_update_begun = self._checkpointer.read(folder)
        problems: list[str] = []
        steps = read_steps(self.run, problems)
        for problem in lost_steps(steps, self.step) if steps else problems:
            self.run.warn(problem)
        self.run.drop_after(self.step)
        settings = self.config.train
        self.run.tidy_checkpoints(settings.keep_checkpoints, settings.keep_best)  # a kill may have come before that
        if self.step == self.config.train.steps:
            self._replies.remove()
        if self.coach is not None:
            self.coach.note_resumed(self.step)
            tell_of_last_steps(self.coach, self.run, self.step)

    def start_over(self) -> None:
        """Continue a run that was killed before its first checkpoint: every step is made again, and no call to the
        coach that its cache has is paid for again. Raises CheckpointError where it must have had one."""
        settings = self.config.train
        self.run.check_has_had_none(settings, settings.keep_best and began_to_keep_best(self.run))
        self.run.drop_after(0)
        if self.coach is not None:
            self.coach.note_resumed(0)

    @property
    def _training_draws(self) -> SamplingParams:
        """How replies are drawn that may be trained on: from the whole distribution, that importance ratios are of."""
        return SamplingParams(temperature=self.config.sampling.temperature)

    def _context(self, sampling: SamplingParams, scored: bool) -> RolloutContext:
        return RolloutContext(
            pipeline=self.pipeline,
            backend=self._replies,
            sandbox=self.sandbox,
            sampling=sampling,
            submit=self._submit if scored and self.coach is not None else None,
            submit_episode=self.coach.submit_episode if scored and self.coach is not None else None,
            outcome_to=self.config.coach.evidence.ground_truth,
            on_episode=self.callback.on_episode,
            tree=make_tree(self.config, self.coach) if scored else None,
            episode_timeout_s=self.config.train.episode_timeout_s,
            executor=self.executor,
        )

    def _log(self, metrics: dict[str, Any]) -> None:
        record = {"step": self.step, **metrics}
        self.run.append_metrics(record)
        self.callback.on_metrics(record)

    def _stop_where_too_much_failed(self, metrics: Mapping[str, Any]) -> None:
        sentence = too_much_failed(metrics, self.config, self.coach.last_failure if self.coach is not None else "")
        if sentence is None:
            return
        self._keep_last(BudgetExceeded(sentence), self.step)
        kept = "checkpoint written" if self.run.checkpoints() else "no checkpoint is kept"
        raise BudgetExceeded(f"step {self.step}: {sentence}; {kept}, see {self.run.folder / 'log.txt'}")

"""Playing a saved run's episodes again, with the weights of its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from coachrl.audit.probes.replay import ReplayFidelity, last_checkpoint, replay_fidelity, scored_decisions
from coachrl.commands.build import open_components
from coachrl.commands.run import warn_where_changed
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.runs.folder import Run
from coachrl.trainers.rollout.replay import check_replayable
from coachrl.trainers.rollout.rollout import RolloutContext
from coachrl.types import SamplingParams


async def replay_run(
    run: Run, count: int, resamples: int, seed: int, on_progress: Callable[[int, int], None]
) -> ReplayFidelity:
    """How the run's scores go with what `count` of its actions were worth. Raises ConfigError where its weights, its
    episodes or its tasks are gone, or its pipeline cannot be replayed; CheckpointError where the weights do not load.
    """
    checkpoint, config = last_checkpoint(run), run.config()
    # A run that trains meanwhile would drop the checkpoint, and a second replay would measure the same again.
    with run.locked("replaying"):
        pipeline = make_pipeline(config.pipeline)
        check_replayable(pipeline)  # before models are loaded
        if external := [role.name for role in pipeline.roles if role.external]:
            raise ConfigError(
                f"--replay asks nobody who is paid, and a provider's model plays {', '.join(external)} in this run: "
                "its replies are not on record as others are, and each playout would ask for them again"
            )
        async with open_components(config, None, with_coach=False, checkpoint=checkpoint) as components:
            warn_where_changed(config, run, components)
            chosen = scored_decisions(run, config, components.train_tasks, count, seed)
            context = RolloutContext(
                pipeline=components.pipeline,
                backend=components.backend,
                sandbox=components.sandbox,
                sampling=SamplingParams(temperature=config.sampling.temperature),
                episode_timeout_s=config.train.episode_timeout_s,
            )
            return await replay_fidelity(
                run, chosen, context, checkpoint.name, resamples=resamples, seed=seed, on_progress=on_progress
            )

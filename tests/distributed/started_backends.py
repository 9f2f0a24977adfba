"""Backends at tiny size, for modules that start their own."""

import contextlib

from flat_config import with_settings

from coachrl.config import RolloutConfig, RunConfig

MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 16, 1024  # of an engine


@contextlib.contextmanager
def starter(model):
    """A function that starts a backend for policies of `model`, or of one each by a dictionary; all that it started end
    with the block."""
    from openrlhf_cpu import ENGINE_ARGS  # with its packages: this folder alone has them

    from coachrl.trainers.backends.openrlhf.backend import OpenRLHFBackend

    started = []

    def make(
        *policies,
        model=model,
        trainable=None,
        loss="ppo",
        keep_reference=False,
        wait_for_gpus=False,
        workers=1,
        **given,
    ):
        settings = {
            "learning_rate": 1e-2,
            "colocate": False,
            "engines": 1,
            "attention": "eager",
            "gradient_checkpointing": False,
            "sleep": False,
            "zero_stage": 2,
            "start_timeout_s": 1500.0,
            "max_num_seqs": MAX_NUM_SEQS,
            "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
            "engine_args": {key: value for key, value in ENGINE_ARGS.items() if not key.startswith("max_num_")},
            **given,
        }
        config = with_settings(RunConfig(backend="openrlhf", rollout=RolloutConfig(workers=workers)), **settings)
        models = model if isinstance(model, dict) else dict.fromkeys(policies, model)
        started.append(OpenRLHFBackend(models, config, trainable, loss, keep_reference, wait_for_gpus))
        return started[-1]

    yield make
    for backend in started:
        backend.close()

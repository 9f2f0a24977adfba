"""Builds the components of a run from its configuration, and closes them again."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coachrl.coach.base import is_import_path
from coachrl.coach.build import check_access as check_coach_access
from coachrl.coach.build import make_client_factory, make_coach, make_retrospective_coach, sandboxes_of
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.coach.pool import CoachPool
from coachrl.config import PolicyConfig, RunConfig
from coachrl.errors import CheckpointError, ConfigError, PackageMissing, lacking
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.base import Pipeline
from coachrl.pipelines.defaults import check_source
from coachrl.runs import checkpoints
from coachrl.runs.trackers import check_trackers
from coachrl.sandbox import make_sandbox
from coachrl.sandbox.base import Sandbox
from coachrl.tasks import check_code, load_tasks
from coachrl.tasks.code.problems import check_references
from coachrl.text import nearest
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.backends.base import Backend
from coachrl.trainers.backends.openrlhf.cluster.placement import Placement, plan_placement
from coachrl.trainers.backends.openrlhf.training.flash_attention import require_flash_attn
from coachrl.trainers.backends.torch.models.adapter_folders import whole_model
from coachrl.trainers.backends.torch.models.sources import check_brings_no_code, is_hub_name
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.trainers.backends.vllm.shapes import check_shapes
from coachrl.trainers.rollout.rollout import RolloutExecutor
from coachrl.trainers.rollout.tree import check_rewards
from coachrl.types import Task, policy_names

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What a run has once all that can be checked without asking anybody, or loading a model, was found good.
    client_factory: makes the calls of all whom the run asks. unchecked: see `unchecked_backend`."""

    pipeline: Pipeline
    policies: dict[str, PolicyConfig]
    train_tasks: list[Task]
    heldout_tasks: list[Task]
    sandbox: Sandbox | None
    client_factory: ChatClientFactory
    coach: CoachPool | None
    unchecked: str


@dataclass(frozen=True)
class RunComponents(Prepared):
    """What a trainer, an evaluation or a rollout works with."""

    backend: Backend
    executor: RolloutExecutor | None


def policies_of(config: RunConfig, pipeline: Pipeline) -> dict[str, PolicyConfig]:
    """Policy name -> its settings, for the policies that the pipeline's roles play with, in order of first use.

    Raises ConfigError for settings of a policy that no role plays with, and for a model that has to be made first."""
    names = policy_names(pipeline.roles)
    for name in config.policies:
        if name not in names:
            raise ConfigError(
                f"policies: no role plays with '{name}'{nearest(name, names)}; policies: {', '.join(names)}"
            )
    for name, policy in config.policies.items():
        if policy.made_by is not None and policy.model is not None and not Path(policy.model).is_dir():
            raise ConfigError(f"policies.{name}.model: no folder {policy.model} yet; {policy.made_by} makes it")
    return {name: config.policies.get(name, PolicyConfig()) for name in names}


def play_of(config: RunConfig) -> tuple[Pipeline, dict[str, PolicyConfig]]:
    """The pipeline, and its policies by name. Raises ConfigError where they cannot be had as configured, or do not go
    with rewards and tasks."""
    pipeline = make_pipeline(config.pipeline)
    check_rewards(config, pipeline)
    make_algorithm(config.algorithm).check_pipeline(pipeline)
    check_source(config.tasks, pipeline)
    pipeline.share_out(config.rollout.workers)
    return pipeline, policies_of(config, pipeline)


def check_access(config: RunConfig) -> None:
    """What of `prepare` takes no second: names, what goes with what, code of the user's own, and the keys of those who
    are asked. Raises ConfigError, and CoachUnavailable naming the variable to set."""
    pipeline, _ = play_of(config)
    check_code(config.tasks)
    check_trackers([name for name in config.track if is_import_path(name)])  # packages of others take long to import
    algorithm = make_algorithm(config.algorithm)
    if algorithm.needs_coach(config.reward):
        check_coach_access(config.coach, config.pipeline.name, algorithm.needs_retrospective_pass)
    if pipeline.adviser is not None:
        pipeline.adviser.check_key(config.coach)


@asynccontextmanager
async def prepare(
    config: RunConfig, ledger: Path | None, with_coach: bool, planning: bool = False
) -> AsyncIterator[Prepared]:
    """The checks that a run and its dry run share, from cheap to dear: names, keys, tasks, sandbox, then packages and
    tokenizers of the backend. `ledger` is where coach calls are written; needed where a coach is asked. planning: for a
    run that may be made on another machine."""
    pipeline, policies = play_of(config)
    client_factory, adviser = make_client_factory(config.coach, ledger), pipeline.adviser
    coach = (
        make_coach_pool(config, ledger, client_factory=client_factory)
        if with_coach and make_algorithm(config.algorithm).needs_coach(config.reward)
        else None
    )
    sandbox = _make_sandbox(config) if needs_sandbox(pipeline) else None
    try:
        pipeline.connect(client_factory, ledger)
        train_tasks, heldout_tasks = load_tasks(config)
        pipeline.check_tasks([*train_tasks, *heldout_tasks])
        if sandbox is not None:
            await sandbox.start()
            train_tasks, heldout_tasks = [
                await check_references(tasks, sandbox, skip=config.tasks.leaves_out_unusable)
                for tasks in (train_tasks, heldout_tasks)
            ]
        unchecked = ""
        if planning:
            unchecked = unchecked_backend(config, policies)
        else:
            check_backend(config, policies)
        yield Prepared(pipeline, policies, train_tasks, heldout_tasks, sandbox, client_factory, coach, unchecked)
    finally:
        if sandbox is not None:
            await sandbox.close()
        if adviser is not None:
            await adviser.close()
        if coach is not None:
            await coach.close()
        client_factory.close()


@asynccontextmanager
async def open_components(
    config: RunConfig, ledger: Path | None, with_coach: bool, checkpoint: Path | None = None
) -> AsyncIterator[RunComponents]:
    """Everything that plays, and nothing that trains: what `prepare` checks, then coaches that answer, then the models,
    with the weights of `checkpoint`, or without one the initial ones."""
    async with (
        prepare(config, ledger, with_coach) as ready,
        load_parts(config, ready, partial(load_generators, config, ready.policies, checkpoint)) as components,
    ):
        yield components


@asynccontextmanager
async def load_parts(
    config: RunConfig, ready: Prepared, load_backend: Callable[[], Backend]
) -> AsyncIterator[RunComponents]:
    """Ask whether the coaches can be asked, and load the models."""
    if ready.coach is not None:
        await ready.coach.check()
    if ready.pipeline.adviser is not None:
        await ready.pipeline.adviser.check()
    backend = load_backend()
    try:
        async with _open_players(config, backend, ready.sandbox is not None) as executor:
            yield RunComponents(**vars(ready), backend=backend, executor=executor)
    finally:
        backend.close()


@asynccontextmanager
async def _open_players(config: RunConfig, backend: Backend, sandboxed: bool) -> AsyncIterator[RolloutExecutor | None]:
    """The run's rollout workers, each with its part of the sandbox's executions; None where the driver plays alone."""
    if config.rollout.processes == 0:
        yield None
        return
    from coachrl.trainers.backends.openrlhf.backend import OpenRLHFBackend
    from coachrl.trainers.backends.openrlhf.rollout.workers import RolloutWorkers

    assert isinstance(backend, OpenRLHFBackend)
    workers = RolloutWorkers(
        backend, config.rollout.workers, partial(_make_sandbox, config, config.rollout.workers) if sandboxed else None
    )
    try:
        await workers.start()
        yield workers
    finally:
        await workers.close()


def needs_sandbox(pipeline: Pipeline) -> bool:
    """Whether a role runs code, or the pipeline itself does."""
    return pipeline.needs_workspace or any(role.python for role in pipeline.roles)


def make_backend(config: RunConfig, policies: dict[str, PolicyConfig], again: bool = False) -> Backend:
    """The backend with its policies loaded. again: after one that was closed because a process of it died, so that GPUs
    that are not free yet are waited for. Raises PolicyError, and ConfigError or BackendError where one with engines
    cannot be placed or started."""
    models = {name: config.initial_model(name) for name in policies}
    trainable = {name: policy.trainable for name, policy in policies.items()}
    algorithm = make_algorithm(config.algorithm)
    given = (models, config, trainable, algorithm.loss, algorithm.needs_reference)
    if config.backend == "openrlhf":
        make_placement(config, trainable)  # what contradicts itself is said before anything is imported
        backend: Backend = import_backend("openrlhf").OpenRLHFBackend(*given, again)
    else:
        backend = _in_one_process(config.backend)(*given)
    return backend


def load_generators(
    config: RunConfig, policies: Iterable[str], checkpoint: Path | None, in_process: bool = False
) -> Backend:
    """The run's backend with policies that only generate: no trainer, no optimizer. They have the weights of a
    checkpoint; those that were not trained, and all without one, their initial ones. Adapters that are saved alone come
    by the trainers that have made them.

    in_process: without a cluster. A run that vLLM played is then played by vLLM's engine where that is installed, else
    by the embedded one. Raises PolicyError and CheckpointError, and what `make_backend` raises of engines."""
    models: dict[str, str | Path] = {policy: config.initial_model(policy) for policy in policies}
    saved = {} if checkpoint is None else _saved(config, models, checkpoint)
    in_cluster = config.backend == "openrlhf" and not in_process
    # What reads the distributed backend's optimizer is not in this process: its adapters are models like others.
    merges = config.backend == "openrlhf" and in_process
    whole = {name: place for name, place in saved.items() if merges or (place / checkpoints.MODEL).is_file()}
    adapted = {policy: policy in saved and policy not in whole for policy in models}
    models |= whole
    if in_cluster:
        backend: Backend = import_backend("openrlhf").OpenRLHFBackend(models, config, adapted)
    else:
        by_vllm = config.backend != "torch" and (not in_process or importlib.util.find_spec("vllm") is not None)
        backend = _in_one_process("vllm" if by_vllm else "torch")(models, config, adapted)
    if checkpoint is not None:
        try:
            backend.load(checkpoint)
        except BaseException:
            backend.close()
            raise
    return backend


def _saved(config: RunConfig, policies: Iterable[str], checkpoint: Path) -> dict[str, Path]:
    """Policy -> its folder in the checkpoint. Raises CheckpointError where one that is trained has none."""
    saved = {place.name: place for place in checkpoints.policies(checkpoint)}
    trained = [policy for policy in policies if config.policies.get(policy, PolicyConfig()).trainable]
    if missing := [policy for policy in trained if policy not in saved]:
        raise CheckpointError(f"checkpoint {checkpoint}: nothing was saved there for policy {', '.join(missing)}")
    return {policy: saved[policy] for policy in policies if policy in saved}


def initial_models(config: RunConfig, policies: Iterable[str], fetch: bool) -> dict[str, tuple[str, Path]]:
    """Policy -> its initial model by name, and the folder that it is loaded from. fetch: those of the hub too, which
    are fetched where they are not here yet. Raises PolicyError where one cannot be had."""
    models = {policy: config.initial_model(policy) for policy in policies}
    return {
        policy: (checkpoints.whole_name(model), whole_model(model))
        for policy, model in models.items()
        if fetch or not is_hub_name(model)
    }


def check_backend(config: RunConfig, policies: dict[str, PolicyConfig]) -> None:
    """Raises what `make_backend` would raise for packages, places, devices and tokenizers, without loading a model. One
    that would have to be fetched from the hub first is not looked at."""
    if config.backend == "openrlhf":
        make_placement(config, {name: policy.trainable for name, policy in policies.items()})
    import_backend(config.backend)
    if config.backend == "openrlhf":
        require_flash_attn(config.openrlhf.attention)
    else:
        import_backend("torch").pick_device(config.torch.device)
    _check_models(config, policies)


def unchecked_backend(config: RunConfig, policies: dict[str, PolicyConfig]) -> str:
    """The same where a run on GPUs is planned on a machine without that backend's packages: the one that is missing,
    and what to install, where not everything could be checked; "" where it could."""
    try:
        check_backend(config, policies)
    except PackageMissing as missing:
        if config.backend == "torch":
            raise
        if importlib.util.find_spec("transformers") is not None:
            with suppress(PackageMissing):
                _check_models(config, policies)
        return str(missing)
    return ""


def _check_models(config: RunConfig, policies: Iterable[str]) -> None:
    models = dict.fromkeys(map(config.initial_model, policies))
    tokenizers = {model: ChatTokenizer(model) for model in models if not is_hub_name(model)}
    if config.pipeline.thinking or any(role.thinking for role in config.pipeline.roles.values()):
        for model in [model for model, tokenizer in tokenizers.items() if not tokenizer.knows_thinking]:
            log.warning("%s: its chat template has no enable_thinking, so that thinking changes nothing", model)
    if config.backend == "openrlhf":
        for tokenizer in tokenizers.values():
            check_brings_no_code(tokenizer.folder)
    if config.backend == "vllm":
        check_shapes([tokenizer.folder for tokenizer in tokenizers.values()], config.torch.share_base)


_BACKEND_NEEDS = {
    "torch": ("the embedded backend", "pip install 'coachrl[quickstart]'"),
    "vllm": (
        "backend=vllm",
        "pip install 'coachrl[vllm]' on a machine with a GPU; `coachrl doctor --backend vllm` says what is missing",
    ),
    "openrlhf": (
        "the distributed backend",
        "`coachrl doctor --backend openrlhf` on a GPU node says what is missing, and what to install in which order",
    ),
}
"""What a backend is called where its packages are missing, and how to get them."""


def import_backend(name: str) -> Any:
    """The module of a backend, which imports what is large. Raises PackageMissing."""
    called, remedy = _BACKEND_NEEDS[name]
    try:
        return importlib.import_module(f"coachrl.trainers.backends.{name}.backend")
    except ImportError as error:
        raise PackageMissing(f"{called} needs {lacking(error)}: {remedy}") from error


def _in_one_process(name: str) -> Any:
    """The class of a backend that is its own only process."""
    return import_backend("vllm").VllmBackend if name == "vllm" else import_backend("torch").TorchBackend


def make_placement(config: RunConfig, trainable: dict[str, bool]) -> Placement:
    """Where the distributed backend's processes will sit. Raises ConfigError where settings contradict each other."""
    reference = make_algorithm(config.algorithm).needs_reference
    adapters = config.torch.lora_rank is not None
    models = {policy: config.initial_model(policy) for policy in trainable}
    return plan_placement(config.openrlhf, trainable, reference, config.rollout.processes, adapters, models)


def _make_sandbox(config: RunConfig, workers: int = 1) -> Sandbox:
    """workers: how many the executions at once are divided among. The machine's memory is divided among the sandboxes
    of all that play, and the coaches' own, as if all were on one machine."""
    settings = config.sandbox
    if settings.concurrency is not None:
        settings = settings.model_copy(update={"concurrency": max(1, settings.concurrency // workers)})
    return make_sandbox(settings, sharers=_players(config) + sandboxes_of(config.coach))


def _players(config: RunConfig) -> int:
    """How many sandboxes the agents have: each rollout worker's, and the driver's own."""
    workers = config.rollout.workers
    return workers + (workers > 1)


def make_coach_pool(
    config: RunConfig, ledger: Path | None, repeat: int = 0, client_factory: ChatClientFactory | None = None
) -> CoachPool:
    """The coach that the configuration names, with its limits. repeat: as in `make_coach`. client_factory: what makes
    its calls, where others share it."""
    settings = config.coach
    client_factory = client_factory or make_client_factory(settings, ledger)
    coach = make_coach(settings, config.pipeline.name, client_factory, repeat, config.sandbox, players=_players(config))
    retrospects = make_algorithm(config.algorithm).needs_retrospective_pass
    retrospective = make_retrospective_coach(settings, client_factory) if retrospects else None
    return CoachPool(
        coach,
        retrospective=retrospective,
        concurrency=settings.concurrency,
        ledger=ledger,
        client_factory=client_factory,
    )

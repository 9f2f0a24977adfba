"""Serving a saved run's team, with the weights of one of its checkpoints."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.commands.build import import_backend, initial_models, load_generators
from coachrl.commands.interrupt import asked_to_end
from coachrl.config import RunConfig
from coachrl.errors import ConfigError, lacking
from coachrl.gateway.external import LiteLLMProviders
from coachrl.gateway.pipeline import GatewayOptions
from coachrl.gateway.served_team import ServedTeam
from coachrl.pipelines.options import read_options
from coachrl.runs import checkpoints
from coachrl.runs.chosen import LAST, checkpoint_kept
from coachrl.runs.folder import Run
from coachrl.runs.initial_models import changed_models
from coachrl.runs.reading import team_of
from coachrl.types import Role, SamplingParams, policy_names

log = logging.getLogger(__name__)

KEY = "COACHRL_SERVE_KEY"
"""The environment variable with the key that clients must give."""


@dataclass(frozen=True)
class Served:
    """What is served, for people. step: of training, that the weights are of."""

    url: str
    roles: tuple[Role, ...]
    step: int
    needs_key: bool

    def lines(self) -> Iterator[str]:
        """What to write into an app, and a call to try."""
        yield f"the team after step {self.step} answers at {self.url}/v1 (Anthropic's clients: {self.url})"
        yield f"models: {', '.join(role.name for role in self.roles)}"
        yield f"API key: what {KEY} holds" if self.needs_key else "API key: any"
        body = {"model": self.roles[0].name, "messages": [{"role": "user", "content": "Hello."}]}
        key = f' -H "Authorization: Bearer ${KEY}"' if self.needs_key else ""
        data = shlex.quote(json.dumps(body, ensure_ascii=False))
        yield f"curl {self.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d {data}"


def serve_run(
    run: Run,
    overrides: Sequence[str],
    host: str,
    port: int,
    on_load: Callable[[str], None],
    on_ready: Callable[[Served], None],
    which: str = LAST,
) -> None:
    """Serve until it is interrupted, or asked to end (SIGTERM). which: as for `chosen_checkpoint`. Raises ConfigError
    where the address cannot be had, or others could reach it without a key, or vLLM is named and not installed;
    CheckpointError and PolicyError where the weights do not load."""
    if "backend=vllm" in overrides:  # asked for by name, and not to be replaced by the embedded one
        import_backend("vllm")
    with _address(host, port) as listener, _loaded(run, run.config(overrides), which, on_load) as loaded:
        team, roles, step = loaded
        asyncio.run(_serve(team, listener, lambda url: on_ready(Served(url, roles, step, bool(_key())))))


async def _serve(team: ServedTeam, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    from coachrl.gateway.server import Server

    ended = asyncio.Event()
    with asked_to_end(ended.set):
        async with Server(team, listener) as server:
            on_ready(server.url)
            await ended.wait()  # or until Ctrl-C


@contextmanager
def _address(host: str, port: int) -> Iterator[socket.socket]:
    """The socket to serve at. It is had before models are loaded, which takes long."""
    try:
        from coachrl.gateway.server import is_loopback, listen
    except ImportError as error:
        raise ConfigError(f"serving needs {lacking(error)}: pip install 'coachrl[gateway]'") from error
    if not (_key().isascii() and _key().isprintable() and _key() == _key().strip()):  # a line end among them
        raise ConfigError(f"{KEY}: clients can send no such key: take letters and digits")
    with listen(host, port) as listener:
        if not is_loopback(listener) and not _key():
            raise ConfigError(
                f"--host {host}: others could reach it; set {KEY} to a key that clients must give, or leave --host out"
            )
        yield listener


@contextmanager
def _loaded(
    run: Run, config: RunConfig, which: str, on_load: Callable[[str], None]
) -> Iterator[tuple[ServedTeam, tuple[Role, ...], int]]:
    """The team with its weights, its roles, and the step that these are of."""
    roles, providers = team_of(run), _providers(config)
    sampling = SamplingParams(temperature=config.sampling.temperature)
    with checkpoint_kept(run, which) as checkpoint:
        on_load(f"reading {checkpoint}")
        step = checkpoints.read(checkpoint, {}).step
        _warn_where_changed(run, config, policy_names(roles), checkpoint)
        backend = load_generators(config, policy_names(roles), checkpoint, in_process=True)
    try:
        yield ServedTeam(roles, backend, providers, sampling, _key()), roles, step
    finally:
        backend.close()


def _warn_where_changed(run: Run, config: RunConfig, policies: Sequence[str], checkpoint: Path) -> None:
    """Where those whose weights are not in the checkpoint, or adapters alone, began with other ones."""
    whole = {place.name for place in checkpoints.policies(checkpoint) if (place / checkpoints.MODEL).is_file()}
    left = [policy for policy in policies if policy not in whole]
    if changed := changed_models(run, initial_models(config, left, fetch=True)):
        log.warning("%s: %s", run.folder, changed)


def _providers(config: RunConfig) -> LiteLLMProviders:
    """Who answers for external roles, which only apps have."""
    if config.pipeline.name != "gateway":
        return LiteLLMProviders({})
    options = read_options(GatewayOptions, config.pipeline, "gateway")
    assert isinstance(options, GatewayOptions)
    providers = LiteLLMProviders(options.roles)
    providers.check()
    providers.connect(ChatClientFactory(config.coach), None)  # its limits, without a budget
    return providers


def _key() -> str:
    return os.environ.get(KEY, "")

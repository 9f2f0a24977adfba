"""The pipeline `gateway`: a team that is somebody's app already, in whatever framework, which calls it by HTTP.

    pipeline:
      name: gateway
      options:
        run: my_app:solve
        grade: my_app:grade
        roles: {planner: {}, coder: {}, critic: {external: gemini/gemini-2.5-flash}}

Each episode starts the app with an endpoint of its own. What the app gives as the model's name is the role that
answers; each call becomes an action of the team. docs/gateway.md says all of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.config import PipelineConfig
from coachrl.config.choices import import_function
from coachrl.errors import AppBroken, AppFailed, CoachrlError, ConfigError, ContextOverflow
from coachrl.gateway.apps import App, CommandApp, Endpoint, FunctionApp
from coachrl.gateway.episode_tokens import SharedServer, check_packages
from coachrl.gateway.external import GatewayRole, LiteLLMProviders
from coachrl.gateway.grading import graded
from coachrl.gateway.played_episode import PlayedEpisode
from coachrl.gateway.refusals import came_of, tells_of_time_out
from coachrl.pipelines.base import Pipeline, PipelineOptions, Team
from coachrl.prompts import parse_prompt
from coachrl.sandbox.base import Workspace
from coachrl.text import brief, one_line
from coachrl.types import Outcome, Role, Task, Usage

log = logging.getLogger(__name__)

_NO_TEMPLATE = parse_prompt("---\nfields: []\n---\n", "of the app")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ENDING_S = 10.0
"""How long an app's coroutine may take to end once it is cancelled; after that nobody waits for it."""


class GatewayOptions(PipelineOptions):
    """See docs/gateway.md."""

    run: str | None = Field(None, description="The app: a function (task, endpoint) -> result, as my_app:solve.")
    command: str | None = Field(None, description="Or a command, as in python my_app.py {task_file}.")
    grade: str = Field(description="The grader: a function (task, result) -> Outcome, bool or number.")
    roles: dict[str, GatewayRole] = Field(min_length=1, description="Who acts, by the names that the app calls.")
    success_at: float = Field(1.0, description="From this grade up, a number of the grader's counts as success.")
    crashes: str = Field("fail", pattern="^(fail|leave_out)$", description="What an app's error makes of its episode.")
    idle_timeout_s: float = Field(600.0, gt=0, description="An app that makes no call for so long is given up.")
    grade_timeout_s: float = Field(600.0, gt=0, description="A grader that takes so long for one result is given up.")
    concurrency: int = Field(256, ge=1, description="So many apps run at once; other episodes wait.")
    patience_s: float = Field(
        2.0, ge=0, description="Where replies are drawn in lock-step, others wait so long for each app that is busy."
    )
    host: str = Field("127.0.0.1", description="The address to listen at, which apps are told.")
    port: int = Field(0, ge=0, le=65535, description="The port; 0 takes a free one.")
    pass_env: tuple[str, ...] = Field((), description="Secret-looking variables that a command gets all the same.")
    sandboxed: bool = Field(False, description="Refused: the sandbox has no network.")

    @field_validator("roles")
    @classmethod
    def _can_be_named(cls, roles: dict[str, GatewayRole]) -> dict[str, GatewayRole]:
        for name in roles:
            if not _NAME.fullmatch(name):
                raise ValueError(f"role {brief(name)}: a name has letters, digits, _, - and ., for it names files")
        return roles

    @field_validator("roles", mode="before")
    @classmethod
    def _nothing_is_a_role_too(cls, given: Any) -> Any:
        """`planner:` alone, which YAML reads as null."""
        return {k: {} if v is None else v for k, v in given.items()} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _can_be_run(self) -> GatewayOptions:
        if (self.run is None) == (self.command is None):
            raise ValueError("give the app either as run, my_app:solve, or as command, python my_app.py {task_file}")
        if self.pass_env and self.command is None:
            raise ValueError("pass_env is for a command: a function runs in this process, and sees its environment")
        if self.sandboxed:
            raise ValueError(
                "sandboxed: the sandbox has no network, so that no app in it could reach the endpoint; the app runs as "
                "your own code. Where it must be kept apart, let a command start it in a container"
            )
        if self.host in ("0.0.0.0", "::", ""):
            raise ValueError("host must be an address that apps can call, such as 127.0.0.1 or this machine's own")
        return self


class Gateway(Pipeline):
    """Lets an app play each episode, and grades what it gives back."""

    name = "gateway"
    branches = False
    asks_external = True
    Options = GatewayOptions
    options: GatewayOptions

    def __init__(self, settings: PipelineConfig) -> None:
        super().__init__(settings)
        check_packages()
        options = self.options
        self._app: App = (
            FunctionApp(options.run) if options.run else CommandApp(options.command or "", options.pass_env)
        )
        import_function(options.grade, "grader", ("task", "result"), may_be_async=True)
        self._providers = LiteLLMProviders(options.roles)
        self._providers.check()
        self.patience_s = options.patience_s
        self._unscored = frozenset(name for name, role in options.roles.items() if not role.scored)
        self._serving: SharedServer | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return {**self.__dict__, "_serving": None}

    def members(self) -> Sequence[tuple[Role, int]]:
        return [(_role(name, settings), 1) for name, settings in self.options.roles.items()]

    def connect(self, client_factory: ChatClientFactory, ledger: Path | None) -> None:
        """Calls to external roles count in the run's budget, and stand in its ledger."""
        super().connect(client_factory, ledger)
        self._providers.connect(client_factory, ledger)

    def share_out(self, processes: int) -> None:
        """Each process has a server of its own. Raises ConfigError where they would share a port or a budget."""
        if processes > 1 and any(role.external for role in self.options.roles.values()):
            raise ConfigError(
                f"pipeline.options.roles: external roles are asked by the process that keeps the run's budget, not by "
                f"{processes} rollout workers; set rollout.workers=1"
            )
        if processes > 1 and self.options.port:
            raise ConfigError(
                f"pipeline.options.port={self.options.port}: {processes} rollout workers cannot share one port; leave "
                "it out, so that each takes a free one, or set rollout.workers=1"
            )
        super().share_out(processes)

    @property
    def rounds_are_known(self) -> bool:
        """An app calls as often as it likes."""
        return False

    def check_tasks(self, tasks: Iterable[Task]) -> None:
        """Any task will do: what it holds is the app's and the grader's matter."""

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Its turn among the apps that may run at once. The server is there for those that wait, too."""
        serving = self._in_this_loop()
        async with serving.running(), serving.places:
            yield

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        """One episode of the app. Raises AppFailed, AppBroken, GraderFailed, ContextOverflow, and what the machinery
        raised while it answered."""
        serving = self._in_this_loop()
        async with serving.running() as base_url:
            roles = {role.name: role for role in self.roles}
            episode = PlayedEpisode(team, roles, self._unscored, self._providers, serving.noted)
            try:
                with serving.episodes.admitted(episode) as token:
                    told = replace(task, ground_truth=None, files=dict(task.files))
                    result = await self._play(told, Endpoint(base_url, token), episode)
            finally:
                await episode.close()
        given = self.options
        outcome = await graded(given.grade, task, result, given.success_at, given.grade_timeout_s)
        counts = {"calls": episode.answered, "calls_overflowed": episode.overflowed, "calls_given_up": episode.given_up}
        metrics = {**outcome.metrics, **{name: float(n) for name, n in counts.items()}, **_spent(episode.external)}
        return replace(outcome, metrics=metrics)

    async def _play(self, task: Task, endpoint: Endpoint, episode: PlayedEpisode) -> Any:
        """What the app gives back, or the error that the episode ends with."""
        playing = asyncio.create_task(self._app.play(task, endpoint))
        watching = asyncio.create_task(episode.stuck(self.options.idle_timeout_s))
        try:
            await asyncio.wait({playing, watching, episode.broken}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (episode.broken, playing, watching):  # an app that fails on a broken machinery has no blame
                if ended.done():
                    return ended.result()
        except AppFailed as error:
            if tells_of_time_out(error):
                await episode.seen_gone()
            raise self._blamed(error, episode) from error
        finally:
            await _ended(playing)
            await _ended(watching)

    def _blamed(self, error: AppFailed, episode: PlayedEpisode) -> CoachrlError:
        """Whose doing it is that the app failed."""
        if episode.overflowed:
            return ContextOverflow(str(error))
        if episode.answered == 0:
            return AppBroken(f"{error} (before it was answered a single call)")
        if episode.unheard:
            return AppBroken(f"{error} (after a call that it did not wait for)")
        if episode.refusal is not None and came_of(error, episode.refusal):
            refusal = one_line(str(episode.refusal), 300)
            said = "" if refusal in str(error) else f": {refusal}"
            return AppBroken(f"{error} (after a call that was refused{said})")
        if self.options.crashes == "leave_out":
            return AppBroken(str(error))
        kind = type(error.__cause__).__name__  # of what a function raised
        episode.note(f"failed {kind}", "an app failed, and with it its episode (pipeline.options.crashes): %s", error)
        return error

    def _in_this_loop(self) -> SharedServer:
        if self._serving is None or self._serving.loop is not asyncio.get_running_loop():
            most_apps = max(1, self.options.concurrency // self.processes)
            self._serving = SharedServer(self.options.host, self.options.port, most_apps)
        return self._serving


def _spent(external: Sequence[Usage]) -> dict[str, float]:
    """Calls to providers, and their dollars where all prices are known; nothing where there were none."""
    if not external:
        return {}
    usd = sum(external, Usage()).cost_usd
    return {"external/calls": float(len(external)), **({} if usd is None else {"external/usd": usd})}


def _role(name: str, settings: GatewayRole) -> Role:
    """The app writes the prompts, and takes as many turns as it likes."""
    role = Role(
        name,
        policy=settings.policy or name,
        prompt=_NO_TEMPLATE,
        description=settings.description,
        thinking=settings.thinking,
        external=settings.external,
    )
    return role if settings.max_new_tokens is None else replace(role, max_new_tokens=settings.max_new_tokens)


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _, still = await asyncio.wait({task}, timeout=_ENDING_S)
    if still:
        log.warning("an app does not end though it was told to; nobody waits for it any longer")
    elif not task.cancelled():
        task.exception()  # it is known, or came too late to matter

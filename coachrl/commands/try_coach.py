"""One saved action before a coach: what the model is asked, what it says, what that costs. `coachrl coaches try`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coachrl.coach.base import Coach, CoachRequest, OutcomeTo, is_import_path
from coachrl.coach.build import make_client_factory, make_coach, make_retrospective_coach
from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.coach.pool import CoachPool
from coachrl.coach.prompt_rendering import find_prompt_file, load_coach_prompt, use_of
from coachrl.config import CoachConfig, RetrospectiveConfig, RunConfig, StrategicConfig
from coachrl.errors import ConfigError
from coachrl.prompts import Prompt
from coachrl.runs.folder import Run
from coachrl.runs.reading import ScoredEpisode, requests_of, tasks_of, team_of, training_episodes
from coachrl.storage.files import at_home
from coachrl.text import counted, nearest
from coachrl.types import Action, CoachScore


@dataclass(frozen=True)
class SavedAction:
    """An action of a run, its episode, and what the run's own coach gave it."""

    run: Run
    scored: ScoredEpisode
    action: Action

    @property
    def score(self) -> CoachScore | None:
        return self.scored.scores.get(self.action.id)


@dataclass(frozen=True)
class CoachAnswer:
    """What a coach said of one action. calls: lines of the ledger, with messages, reply or error, tokens and cost; none
    from rules."""

    score: CoachScore
    calls: tuple[dict[str, Any], ...]


def find_action(spec: str) -> SavedAction:
    """The action that "RUN#12" names: the 12th that was trained on, from 1, or "RUN#ID". Raises ConfigError."""
    folder, separator, wanted = spec.rpartition("#")
    if not separator or not folder or not wanted:
        raise ConfigError(f"--action {spec}: write RUN#NUMBER or RUN#ID, such as runs/latest#12")
    run, count, ids = Run.open(Path(folder)), 0, []
    for scored in training_episodes(run):
        for action in scored.episode.actions:
            count += 1
            ids.append(action.id)
            if wanted in (str(count), action.id):
                return SavedAction(run, scored, action)
    hint = nearest(wanted, ids) if not wanted.isdigit() else ""
    raise ConfigError(f"--action {spec}: the run has {counted(count, 'action')}, numbered from 1{hint}")


def find_prompt(name: str) -> Prompt:
    """The prompt that `coaches try NAME` means, shipped or a file. Raises ConfigError where it judges no action."""
    prompt = load_coach_prompt(find_prompt_file(at_home(name)), use=None)
    if use_of(prompt) == "preface":
        raise ConfigError(f"coach prompt {name} only precedes others: set coach.strategic.window_steps in a run")
    return prompt


def request_of(saved: SavedAction, config: RunConfig, retrospective: bool) -> CoachRequest:
    """What the coach is asked about the action: as a run of `config` would ask, or in a retrospective pass, with the
    outcome and with the residual that the run's own pass had come to. Raises ConfigError for an action that no coach is
    asked about."""
    episode = saved.scored.episode
    shown_to: OutcomeTo = config.coach.evidence.ground_truth
    if retrospective:
        shown_to = "all" if episode.infra_error is None else "last"
    for request in requests_of(episode, tasks_of(saved.run, config), team_of(saved.run), shown_to):
        if request.action.id == saved.action.id:
            return replace(request, residual=_residual_after(saved)) if retrospective else request
    broke = episode.infra_error or saved.action.infra_error
    why = f"its episode broke ({broke})" if broke else "nobody waited for its reply"
    raise ConfigError(f"action {saved.action.id}: no coach is asked about it, since {why}")


async def try_coach(name: str, saved: SavedAction, request: CoachRequest, settings: CoachConfig) -> CoachAnswer:
    """Ask once. name: "rules", the import path of a coach, or a prompt for the model of `settings`. Raises
    CoachUnavailable where it cannot be asked; a call that fails is a failed score."""
    client_factory = make_client_factory(settings)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.jsonl"
        pool = CoachPool(_coach(name, settings, client_factory), ledger=ledger, client_factory=client_factory)
        try:
            pool.submit(request)
            [score] = (await pool.settle([saved.scored.episode])).values()
        finally:
            await pool.close()
        calls = tuple(line for line in read_ledger(ledger) if line["kind"] == "call") if ledger.exists() else ()
    return CoachAnswer(score, calls)


def _coach(name: str, settings: CoachConfig, client_factory: ChatClientFactory) -> Coach:
    """The run's coach with the prompt `name` alone: without fallbacks, and without statistics of a run."""
    if name == "rules" or is_import_path(name):
        return make_coach(CoachConfig(name=name))
    path = find_prompt_file(at_home(name))
    alone = {"ensemble": (), "fallbacks": (), "strategic": StrategicConfig()}
    if use_of(find_prompt(name)) == "retrospective":
        asked = {**alone, "retrospective": RetrospectiveConfig(prompt=path)}
        return make_retrospective_coach(settings.model_copy(update=asked), client_factory)
    return make_coach(settings.model_copy(update={**alone, "prompt": path}), client_factory=client_factory)


def _residual_after(saved: SavedAction) -> str:
    """What the actions after this one left to be explained, where the run has a retrospective pass."""
    later = saved.scored.episode.actions[saved.action.index + 1 :]
    said = [score.residual for action in later if (score := saved.scored.scores.get(action.id)) is not None]
    return next((residual for residual in said if residual), "")

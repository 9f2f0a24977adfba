"""What a saved run held, read again: its team, its scored episodes, what its coach is asked, what its agents read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from coachrl.coach.base import CoachRequest, OutcomeTo, make_request, sees_outcome
from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.generation import Message, opening
from coachrl.pipelines.parts import part_so_far
from coachrl.runs.beginning import changed_tasks
from coachrl.runs.folder import Run
from coachrl.runs.records import ScoredEpisode, read_each_once, step_name
from coachrl.tasks import load_tasks
from coachrl.types import Action, Episode, Role, Task

if TYPE_CHECKING:  # with the clients of coaches, which few readers need
    from coachrl.coach.pool import CoachPool

IMPORTED = "imported.json"
"""In a run's folder: how it was made of another trainer's scores."""


def check_played(run: Run) -> None:
    """Raises ConfigError where the run was not played here, but made of another trainer's scores: what its
    configuration says of team and tasks is then nobody's."""
    if (run.folder / IMPORTED).exists():
        raise ConfigError(
            f"{run.folder} holds another trainer's scores, and neither its team nor its tasks: coachrl audit without "
            "asking a coach, view, report and label are for it"
        )


def team_of(run: Run) -> tuple[Role, ...]:
    """The team as the run kept it, or else as its configuration makes it today. Raises ConfigError."""
    return run.roles() or make_pipeline(run.config().pipeline).roles


def tasks_of(run: Run, config: RunConfig) -> dict[str, Task]:
    """The run's tasks by id, of both sets. Two files of one name, and two splits of a data set, give both sets the same
    ids: then it is the training task, since a coach is asked about training steps. Warns where the tasks are not those
    that it began with: a coach is told, and a reply graded by, the reference answers of now. Raises ConfigError where
    it has none (`check_played`)."""
    check_played(run)
    train, heldout = load_tasks(config)
    if changed := changed_tasks(run, train, heldout):
        run.warn(changed)
    return {task.id: task for task in (*heldout, *train)}


def training_episodes(run: Run) -> Iterator[ScoredEpisode]:
    """The episodes of every training step, in order. Evaluations are left out: no coach is asked there. So is, with a
    warning for each file, what is no episode, or has an action that the run has already."""
    seen: set[str] = set()
    for path in run.episode_files("step"):
        problems: list[str] = []
        yield from read_each_once(path, seen, problems)
        for problem in problems:
            run.warn(problem)


def tell_of_last_steps(coach: CoachPool, run: Run, step: int) -> None:
    """What a coach that goes by the run goes by after `step`, from the run's files."""
    for number in range(max(1, step - coach.memory_steps + 1), step + 1):
        coach.observe(number, *run.read_episodes(step_name(number)))


def requests_of(
    episode: Episode, tasks: Mapping[str, Task], team: tuple[Role, ...], outcome_to: OutcomeTo
) -> list[CoachRequest]:
    """What a coach is asked about the episode's actions, as it was while the episode ran: actions that broke for no
    fault of the agent are left out, and so are replies that nobody waited for, and, where the episode broke, those that
    wait for its outcome.

    Raises ConfigError where the task set or the team does not hold the episode's, or has another problem in its place.
    """
    its_task = f"episode {episode.id}: its task {episode.task_id}"
    if episode.task_id not in tasks:
        raise ConfigError(f"{its_task} is not in the run's task set any more")
    task, roles = tasks[episode.task_id], {role.name: role for role in team}
    if episode.task_prompt not in ("", task.prompt):  # "" in what was written before there was one
        raise ConfigError(f"{its_task} is another problem now than the one that was played: put the task set back")
    requests = []
    for action in episode.all_actions:
        role, previous = _role(roles, action), tuple(a for a in episode.actions if a.index < action.index)
        shown = sees_outcome(action.role, team, outcome_to)
        is_asked_about = action.infra_error is None and not action.is_given_up
        if is_asked_about and not (shown and episode.infra_error is not None):
            requests.append(make_request(task, team, role, action, previous, episode.outcome if shown else None))
    return requests


def conversations(episode: Episode, team: Sequence[Role]) -> dict[str, tuple[Message, ...]]:
    """Action id -> the messages that the agent read before it answered: few-shot examples, earlier turns, the last
    message.

    An action goes on from an earlier one of its role where its prompt's ids begin with that one's prompt and reply.
    """
    roles = {role.name: role for role in team}
    read: dict[str, tuple[Message, ...]] = {}
    for action in episode.all_actions:
        part = part_so_far(action, [a for a in episode.actions if a.index < action.index])
        if len(part) == 1:
            read[action.id] = opening(_role(roles, action), action.prompt_text)
        else:
            before = part[-2]
            reply = {"role": "assistant", "content": before.text}
            read[action.id] = (*read[before.id], reply, {"role": "user", "content": action.prompt_text})
    return read


def _role(roles: Mapping[str, Role], action: Action) -> Role:
    if action.role not in roles:
        raise ConfigError(f"action {action.id}: the team has no role '{action.role}' (roles: {', '.join(roles)})")
    return roles[action.role]

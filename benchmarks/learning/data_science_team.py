"""Does the coach teach a team whose agents take several turns, and which returns teach it best? Five conditions, three
seeds each, at a size that two cores train in an hour and a half. `--tiny` takes minutes and shows only that it runs.

    python -m examples.dsbench_demonstrations demos --count 600
    python benchmarks/learning/data_science_team.py --demonstrations demos

Trains `configs/dsbench_lite.yaml`, but for a model of 0.7 million weights that is made on the spot, has read the
demonstrations of all three roles, and is what each agent starts from; for tables cut to 160 rows; and for what
`small` sets. The id and the target of every table are called that, in demonstrations and tasks, since so small a
model does not learn to copy their names (`tiny_coder`). Ten steps in a process of its own for each condition and seed;
what is finished is not run again.

    coach                rules coach, `returns: own`, as shipped
    outcome              the episode's outcome, broadcast to every action: no coach
    shuffled             the coach's scores, permuted among the actions of each role: a control that must not learn
    centered_sum         coach; an action also earns what the same agent's second turn earns above the mean of its place
    sum_as_in_the_paper  coach; an action also earns all that the same agent's second turn earns

What was expected, written before the first of these runs:

- coach learns more than outcome: a chain breaks at one agent, and the outcome blames all three alike.
- shuffled gains nothing, beside what the KL term and drift do.
- sum_as_in_the_paper is behind own. An agent's part ends as soon as its files are saved, so that who saves at once has
  one turn. To fail, be scored 2 and then mend it for 8 returns 10 to the first turn, where to save at once returns 8.
  Its agents should keep taking second turns, and so draw more tokens, where own's take fewer and fewer; its held-out
  success should rise less.
- centered_sum is not told apart from own: with two turns, the second of which mends the first, what the second earns
  above its peers owes little to how the first failed.

Held out: dsbench-lite's six tasks and `--made` more, tables by the demonstrations' generator from other numbers.
Writes `<out>/data_science_team.json` (all that the tables are made of), `.md` and `.png`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from equal_budget import AFTER, Condition, arguments, finished_runs, shown, tokens_of
from plot import plot_curves
from tiny_coder import sft_settings, warm_coder, write_tasks

from coachrl.pipelines.dsbench import ROLES
from coachrl.report.contents import draw_key
from coachrl.runs.folder import Run
from coachrl.runs.records import read_episodes
from coachrl.stats import POSITIVE, SHARE, Limits, estimate_mean, paired_difference
from coachrl.tasks.tabular.grading import FAILED
from coachrl.tasks.tabular.handover import read_faults
from coachrl.types import Action, CoachScore, Episode

NAME = "data_science_team"
CONDITIONS = {
    "coach": [],
    "outcome": ["algorithm.name=outcome"],
    "shuffled": ["reward.shuffle=true"],
    "centered_sum": ["algorithm.returns=centered_sum"],
    "sum_as_in_the_paper": ["algorithm.returns=sum_as_in_the_paper"],
}
TINY = ["train.tasks_per_step=2", "tasks.heldout_count=2", "pipeline.max_new_tokens=24", "eval.samples_per_task=1"]
FAIR: dict[str, tuple[str, Limits]] = {
    "accuracy": ("classification", SHARE),
    "f1": ("classification", SHARE),
    "rmse_pct_range": ("regression", POSITIVE),
}
"""Metric of a submission -> (tasks that have it, what it can be); failures count as `FAILED` says."""


@dataclass(frozen=True)
class Draw:
    """One held-out episode. fair: its metrics. stopped_at: whose files were missing or wrong, "" where it succeeded.
    turns: by role."""

    task: str
    draw: str
    success: bool
    fair: dict[str, float]
    stopped_at: str
    turns: dict[str, int]


@dataclass(frozen=True)
class Result:
    """A finished run. tokens: drawn by the team, in all steps together. By step, from 1: success on the training tasks,
    and the coach's mean score and the number of actions by "<role>/<turn>"."""

    condition: str
    seed: int
    tokens: float
    before: list[Draw]
    after: list[Draw]
    success: list[float]
    scores: list[dict[str, float]]
    actions: list[dict[str, int]]


def main() -> None:
    parser = arguments(__doc__, steps=10, tokens=None)
    parser.add_argument("--demonstrations", type=Path, required=True, help="The folder of the three roles' files.")
    parser.add_argument("--conditions", nargs="+", choices=list(CONDITIONS), default=list(CONDITIONS))
    parser.add_argument("--epochs", type=int, default=3, help="Of a round of the warm start.")
    parser.add_argument("--rounds", type=int, default=2, help="Of the warm start.")
    parser.add_argument("--made", type=int, default=24, help="Further held-out tasks.")
    args = parser.parse_args()
    work = args.out / "runs" / NAME
    if not (work / "warm").exists():
        warmed = warm_coder(args.demonstrations, work, sft_settings(args.epochs, seed=0), args.rounds)
        (work / "warm.json").write_text(json.dumps(warmed) + "\n", encoding="utf-8")
    shared = [*small(work / "warm"), *write_tasks(work / "tasks", args.made), *(TINY if args.tiny else [])]
    conditions = [Condition(c, "dsbench_lite", [*shared, *CONDITIONS[c], *args.overrides]) for c in args.conditions]
    found: list[Result] = []
    for condition, seed, run in finished_runs(NAME, work.parent, conditions, args.seeds, args.steps, float("inf")):
        found.append(result_of(run, condition, seed))
        write(args.out, found)


def small(model: Path) -> list[str]:
    """The settings that differ from the shipped ones because the model is small."""
    policies = [f"policies.{role.policy}.model={model}" for role in ROLES]
    threads = ["torch.threads=1", "torch.precision=float32", "torch.micro_batch_tokens=8192"]
    return [f"model={model}", *policies, *threads, "train.learning_rate=5e-4", "eval.samples_per_task=2"]


def result_of(run: Run, condition: str, seed: int) -> Result:
    records = [record for record in run.metrics() if record["step"] > 0]
    played = [run.read_episodes(f"step-{record['step']:06d}") for record in records]
    return Result(
        condition,
        seed,
        sum(tokens_of(run, record)["team"] for record in records),
        draws(run.folder / "episodes" / "eval-000000.jsonl"),
        draws(run.folder / AFTER),
        [record["train/success"] for record in records],
        [mean_scores(episodes, scores) for episodes, scores in played],
        [counts(episodes) for episodes, _ in played],
    )


def draws(file: Path) -> list[Draw]:
    episodes = [one.episode for one in read_episodes(file, [])]
    return [
        Draw(*draw_key(e), e.outcome.success, fair_metrics(e), stopped_at(e), turns(e))
        for e in episodes
        if e.infra_error is None
    ]


def fair_metrics(episode: Episode) -> dict[str, float]:
    """Of a failure what `FAILED` says; a success whose metric is undefined has none."""
    known = episode.outcome.metrics if episode.outcome.success else FAILED[episode.task_category]
    return {
        metric: known[metric] for metric, (kind, _) in FAIR.items() if kind == episode.task_category and metric in known
    }


def stopped_at(episode: Episode) -> str:
    """The first role that left its files unsaved or, where all were saved, whose features cannot be fitted; else the
    last role, whose submission was refused."""
    if episode.outcome.success:
        return ""
    last = {action.role: action for action in episode.actions}
    for role in ROLES:
        if role.name not in last or not set(role.required_files) <= set(last[role.name].files_after):
            broken = last.get(ROLES[0].name)
            return (
                f"{ROLES[0].name}, features"
                if role != ROLES[0] and broken and read_faults(broken.result)
                else role.name
            )
    return ROLES[-1].name


def turns(episode: Episode) -> dict[str, int]:
    return {role.name: sum(action.role == role.name for action in episode.actions) for role in ROLES}


def mean_scores(episodes: Sequence[Episode], scores: dict[str, CoachScore]) -> dict[str, float]:
    known = {action_id: score.process_0_10 for action_id, score in scores.items() if score.process_0_10 is not None}
    return {
        place: float(np.mean([known[action.id] for action in actions if action.id in known]))
        for place, actions in by_place(episodes).items()
        if any(action.id in known for action in actions)
    }


def counts(episodes: Sequence[Episode]) -> dict[str, int]:
    return {place: len(actions) for place, actions in by_place(episodes).items()}


def by_place(episodes: Sequence[Episode]) -> dict[str, list[Action]]:
    """Actions by "<role>/<turn>"; the first turn is 1."""
    found: dict[str, list[Action]] = {}
    for action in (action for episode in episodes for action in episode.actions):
        found.setdefault(f"{action.role}/{action.turn + 1}", []).append(action)
    return found


def write(out: Path, results: Sequence[Result]) -> None:
    lines = [
        *success_table(results),
        "",
        *difference_table(results),
        "",
        *fair_table(results),
        "",
        *failure_table(results),
        "",
        *turn_table(results),
        "",
        *score_table(results),
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{NAME}.json").write_text(json.dumps([asdict(r) for r in results]) + "\n", encoding="utf-8")
    (out / f"{NAME}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    curves = {c: [list(enumerate(r.success, start=1)) for r in of(results, c)] for c in names(results)}
    title = "Data-science team: share of training episodes that reach a submission, per step"
    plot_curves(curves, out / f"{NAME}.png", title, "success")
    print("\n".join(lines), flush=True)


def names(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.condition for result in results))


def of(results: Sequence[Result], condition: str) -> list[Result]:
    return [result for result in results if result.condition == condition]


Measure = Callable[[Draw], float | None]


def observed(results: Sequence[Result], when: str, over: str, measure: Measure) -> dict[tuple[str, str], float]:
    """(cluster, draw) -> value. over: what the clusters are, "tasks" or "seeds"."""
    found = {}
    for result in results:
        for draw in getattr(result, when):
            value = measure(draw)
            if value is not None:
                key = (draw.task, f"{result.seed}.{draw.draw}")
                found[key if over == "tasks" else (str(result.seed), f"{draw.task}.{draw.draw}")] = float(value)
    return found


def compared(
    first: Sequence[Result], second: Sequence[Result], when: tuple[str, str], measure: Measure, limits: Limits
) -> list[str]:
    """The second's less the first's: with an interval over tasks, and one over seeds."""
    return [
        shown(
            paired_difference(
                observed(first, when[0], over, measure), observed(second, when[1], over, measure), limits
            ),
            True,
        )
        for over in ("tasks", "seeds")
    ]


def succeeded(draw: Draw) -> float:
    return float(draw.success)


def success_table(results: Sequence[Result]) -> list[str]:
    lines = [
        "Success on held-out tasks: interval over tasks (mean of each seed); the gain with intervals over tasks and "
        "over seeds. Training: of the last three steps' episodes (of each seed). Tokens: the team's, mean of a run.",
        "",
        "| condition | seeds | tokens | training | before | after | gain, over tasks | gain, over seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for condition in names(results):
        mine = of(results, condition)
        cells = [condition, ", ".join(str(r.seed) for r in mine), f"{np.mean([r.tokens for r in mine]):,.0f}"]
        ends = [np.mean(r.success[-3:]) for r in mine]
        cells.append(f"{np.mean(ends):.2f} ({', '.join(f'{end:.2f}' for end in ends)})")
        for when in ("before", "after"):
            by_seed = ", ".join(f"{np.mean([d.success for d in getattr(r, when)]):.2f}" for r in mine)
            cells.append(f"{shown(estimate_mean(observed(mine, when, 'tasks', succeeded), SHARE))} ({by_seed})")
        lines.append(f"| {' | '.join([*cells, *compared(mine, mine, ('before', 'after'), succeeded, SHARE)])} |")
    return lines


def difference_table(results: Sequence[Result]) -> list[str]:
    """The coach against each other condition, after training, on the seeds that both have."""
    lines = ["| held-out success after training | over tasks | over seeds |", "|---|---|---|"]
    for other in names(results)[1:]:
        baseline = names(results)[0]
        theirs = of(results, other)
        ours = [r for r in of(results, baseline) if r.seed in {r.seed for r in theirs}]
        cells = compared(theirs, ours, ("after", "after"), succeeded, SHARE)
        lines.append(f"| {baseline} less {other} | {' | '.join(cells)} |")
    return lines


def fair_table(results: Sequence[Result]) -> list[str]:
    """Before and after, and the gain over tasks."""
    lines = [f"| fair metric, over tasks | {' | '.join(FAIR)} |", "|---" * (len(FAIR) + 1) + "|"]
    for condition in names(results):
        mine, cells = of(results, condition), []
        for metric, (_, limits) in FAIR.items():

            def measure(draw: Draw, metric: str = metric) -> float | None:
                return draw.fair.get(metric)

            was, now = (estimate_mean(observed(mine, w, "tasks", measure), limits).value for w in ("before", "after"))
            cells.append(f"{was:.2f} -> {now:.2f}; {compared(mine, mine, ('before', 'after'), measure, limits)[0]}")
        lines.append(f"| {condition} | {' | '.join(cells)} |")
    return lines


def failure_table(results: Sequence[Result]) -> list[str]:
    """Where held-out episodes end, as shares of all of them."""
    places = [f"{ROLES[0].name}, features", *(role.name for role in ROLES)]
    lines = [f"| held-out episodes stopped at | {' | '.join(places)} |", "|---" * (len(places) + 1) + "|"]
    for condition in names(results):
        cells = []
        for place in places:
            was, now = (
                np.mean([draw.stopped_at == place for r in of(results, condition) for draw in getattr(r, when)])
                for when in ("before", "after")
            )
            cells.append(f"{was:.2f} -> {now:.2f}")
        lines.append(f"| {condition} | {' | '.join(cells)} |")
    return lines


def turn_table(results: Sequence[Result]) -> list[str]:
    """Turns that a role takes in a held-out episode."""
    roles = [role.name for role in ROLES]
    lines = [f"| turns of a held-out episode | {' | '.join(roles)} |", "|---" * (len(roles) + 1) + "|"]
    for condition in names(results):
        cells = []
        for role in roles:
            was, now = (
                np.mean([draw.turns[role] for r in of(results, condition) for draw in getattr(r, when)])
                for when in ("before", "after")
            )
            cells.append(f"{was:.2f} -> {now:.2f}")
        lines.append(f"| {condition} | {' | '.join(cells)} |")
    return lines


def score_table(results: Sequence[Result]) -> list[str]:
    """The coach's mean score in the first and in the last two training steps, where there was a coach."""
    places = [f"{role.name}/{turn}" for role in ROLES for turn in (1, 2)]
    lines = [
        f"| score of role/turn, first and last two steps | {' | '.join(places)} |",
        "|---" * (len(places) + 1) + "|",
    ]
    for condition in names(results):
        mine = [result for result in of(results, condition) if any(result.scores)]
        cells = [f"{mean_score(mine, p, slice(2))} -> {mean_score(mine, p, slice(-2, None))}" for p in places]
        lines += [f"| {condition} | {' | '.join(cells)} |"] if mine else []
    return lines


def mean_score(results: Sequence[Result], place: str, steps: slice) -> str:
    """Over all actions of the place in these steps."""
    pairs = [
        (scores[place], actions[place])
        for r in results
        for scores, actions in zip(r.scores[steps], r.actions[steps], strict=True)
        if place in scores
    ]
    return f"{np.average([s for s, _ in pairs], weights=[n for _, n in pairs]):.1f}" if pairs else "–"


if __name__ == "__main__":
    main()

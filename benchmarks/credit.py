"""Two figures of the algorithms: what advantages of a million samples take, and what a failed score does to others.

    python benchmarks/credit.py scale                       # 1,000,000 samples of 16 tokens on average
    python benchmarks/credit.py failures --failures 10000   # one score fails, or one reply is cut

`scale` gives CPU seconds and peak memory for each algorithm; the samples themselves are counted in the memory.
`failures` takes batches of teams whose turns differ in number and level, loses one score or one reply after the other,
and gives the mean change of the advantages of the agent's earlier actions, and of everything else, in deviations of the
batch's advantages and with its standard error: a failure that is neutral has a mean of 0.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from coachrl.config.algorithm import read_algorithm
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.samples import TRUNCATED
from coachrl.types import TrainSample

SUMS = ("own", "centered_sum", "sum_as_in_the_paper")
MODES: list[dict[str, object]] = [
    *({"name": "reinforce_pp", "returns": returns, "kl_beta": 0.0} for returns in SUMS),
    {"name": "reinforce_pp", "returns": "centered_sum", "normalize_over": "role_turn", "kl_beta": 0.0},
    {"name": "reinforce_pp", "returns": "centered_sum", "kl_beta": 0.01},
    {"name": "magrpo"},
    {"name": "magrpo", "returns": "sum_as_in_the_paper"},
    {"name": "grpo"},
    {"name": "grpo", "group_by": "role"},
    {"name": "at_grpo"},
    {"name": "counterfactual"},
    {"name": "counterfactual", "coach_roles": ("x",)},
]
SHAPES = {"one turn": ("x", 1), "several turns": ("x", 4), "two roles on one policy": ("xy", 4)}
"""Roles of a team, and the most turns that each takes in an episode: at least one."""
OF_STATE = ("at_grpo", "counterfactual")  # what they compare are candidates of one state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    scale_arguments = commands.add_parser("scale")
    scale_arguments.add_argument("--samples", type=int, default=1_000_000)
    failures_arguments = commands.add_parser("failures")
    failures_arguments.add_argument("--failures", type=int, default=10_000)
    failures_arguments.add_argument("--episodes", type=int, default=24, help="Of a batch.")
    failures_arguments.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.command == "scale":
        scale(args.samples)
    else:
        print("| setting | team | earlier actions of the agent | all others |\n|---|---|---|---|")
        for options in MODES:
            for shape in SHAPES:
                earlier, others = pushes(options, args.failures, shape, args.seed, args.episodes)
                print(f"| {called(options)} | {shape} | {earlier or ''} | {others} |", flush=True)


def called(options: dict[str, object]) -> str:
    return ", ".join(str(value) for key, value in options.items() if key != "kl_beta" or value)


def scale(count: int) -> None:
    rng = np.random.default_rng(0)
    team = [s for e in range(count // 8) for s in episode(str(e), {"x": 4, "y": 4}, str(e // 4), rng, longest=31)]
    rewards = {s.action_id: float(rng.integers(0, 11)) if rng.random() > 0.02 else None for s in team}
    print(f"{len(team):,} samples, {sum(len(s.response_ids_L) for s in team):,} tokens")
    for options in sorted(MODES, key=lambda options: options["name"] in OF_STATE):
        if options["name"] in OF_STATE:
            team = as_candidates(team)
        samples = {"shared": team}
        algorithm = make_algorithm(read_algorithm(options))
        began = time.process_time()
        algorithm.advantages(samples, rewards)
        used, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{called(options)}: {used:.1f} s of CPU, peak {peak:.2f} GB", flush=True)


@dataclass(frozen=True)
class Push:
    """The mean change that failures made, in deviations, and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.error:.4f}"


def pushes(
    options: dict[str, object], failures: int, shape: str = "two roles on one policy", seed: int = 0, episodes: int = 40
) -> tuple[Push | None, Push | None]:
    """What at least `failures` failures did to the earlier actions of the agent that they struck, and to all other
    actions but the one that failed. In each batch every action fails once by its score and once by its reply, alone."""
    rng = np.random.default_rng(seed)
    algorithm = make_algorithm(read_algorithm(options))
    earlier, others = [], []
    while sum(map(len, others)) < failures:
        team, rewards = random_batch(rng, episodes, *SHAPES[shape])
        if options["name"] in OF_STATE:
            team = as_candidates(team)
        before = credit(algorithm, team, rewards)
        of_batch: tuple[list[np.floating], list[np.floating]] = [], []
        scale_ = np.std(list(before.values()))
        for struck, cut in itertools.product(team, (False, True)):
            after = credit(algorithm, *with_failure(team, rewards, struck, cut))
            change = {key: (value - before[key]) / scale_ for key, value in after.items() if key != struck.action_id}
            own = {s.action_id for s in team if is_earlier(s, struck)}
            of_batch[0].extend([np.mean([change[key] for key in own])] if own else [])
            of_batch[1].append(np.mean([value for key, value in change.items() if key not in own]))
        earlier.append(of_batch[0])
        others.append(of_batch[1])
    return summary(earlier), summary(others)


def summary(changes: list[list[np.floating]]) -> Push | None:
    """Changes, batch by batch: failures of one batch strike the same rewards, so their errors are taken by batch. None
    where there was nothing to move: earlier actions of agents that act once."""
    counts = np.array([len(batch) for batch in changes])
    if not counts.any():
        return None
    sums = np.array([float(np.sum(batch)) for batch in changes])
    mean = sums.sum() / counts.sum()
    deviations = sums - mean * counts
    return Push(float(mean), float(np.sqrt((deviations**2).sum()) / counts.sum()))


def credit(algorithm: object, team: list[TrainSample], rewards: dict[str, float | None]) -> dict[str, float]:
    batch = algorithm.advantages({"shared": team}, rewards)  # type: ignore[attr-defined]
    return {s.action_id: float(s.advantages_L[0]) for s in batch.samples["shared"]}


def with_failure(
    team: list[TrainSample], rewards: dict[str, float | None], struck: TrainSample, cut: bool
) -> tuple[list[TrainSample], dict[str, float | None]]:
    if not cut:
        return team, {**rewards, struck.action_id: None}
    masked = replace(struck, mask_L=np.zeros_like(struck.mask_L), masked_because=TRUNCATED)
    return [masked if s is struck else s for s in team], rewards


def is_earlier(sample: TrainSample, struck: TrainSample) -> bool:
    same_agent = (sample.episode_id, sample.role) == (struck.episode_id, struck.role)
    return same_agent and sample.turn < struck.turn


def random_batch(
    rng: np.random.Generator, episodes: int, roles: str, most_turns: int
) -> tuple[list[TrainSample], dict[str, float | None]]:
    """Episodes of roles on one policy, four to a task. Roles and turns have levels of their own, as have episodes;
    replies differ in length, and agents in how many turns they take."""
    team: list[TrainSample] = []
    levels = {(role, turn): rng.uniform(2, 8) for role in roles for turn in range(most_turns)}
    rewards: dict[str, float | None] = {}
    for number in range(episodes):
        turns = {role: int(rng.integers(1, most_turns + 1)) for role in roles}
        quality = rng.normal(0, 1)
        for sample in episode(str(number), turns, str(number // 4), rng, longest=5):
            team.append(sample)
            rewards[sample.action_id] = levels[sample.role, sample.turn] + quality + rng.normal(0, 1)
    return team, rewards


def as_candidates(team: list[TrainSample]) -> list[TrainSample]:
    """The episodes of a task as candidates of one state each."""
    return [replace(sample, episode_id=sample.task_id) for sample in team]


def episode(
    name: str, turns: dict[str, int], task: str, rng: np.random.Generator, longest: int
) -> Iterator[TrainSample]:
    order = [(role, turn) for role, taken in turns.items() for turn in range(taken)]
    lengths = rng.integers(1, longest + 1, len(order))
    for index, ((role, turn), length) in enumerate(zip(order, lengths, strict=True)):
        tokens = np.zeros(length, dtype=np.int64)
        ones = np.ones(length, dtype=np.float32)
        yield TrainSample(
            policy="shared",
            action_id=f"{name}/{index}",
            episode_id=name,
            task_id=task,
            role=role,
            turn=turn,
            index=index,
            prompt_ids_P=tokens[:1],
            response_ids_L=tokens,
            old_logprobs_L=-ones,
            mask_L=ones,
            ref_logprobs_L=-1.1 * ones,
        )


if __name__ == "__main__":
    main()

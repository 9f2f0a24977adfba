"""Samples by hand, and their advantages by action."""

import numpy as np
from made_samples import train_sample

from coachrl.config.algorithm import read_algorithm
from coachrl.trainers.algorithms import make_algorithm


def sample(action_id, *, episode="e", role="a", index=0, turn=0, length=1, policy=None, task="t", gap=0.0, masked=None):
    """An action of `length` tokens whose log-probs exceed the reference by `gap` each."""
    return train_sample(
        range(3),
        range(length),
        logprobs=-1.0 + gap,
        mask=0.0 if masked else 1.0,
        policy=policy or role,
        action_id=action_id,
        episode_id=episode,
        task_id=task,
        role=role,
        turn=turn,
        index=index,
        trainer_logprobs_L=np.full(length, -1.0 + gap, dtype=np.float32),
        ref_logprobs_L=np.full(length, -1.0, dtype=np.float32),
        masked_because=masked,
    )


def grouped(samples):
    """By policy, as an algorithm takes them."""
    out = {}
    for s in samples:
        out.setdefault(s.policy, []).append(s)
    return out


def algorithm(name="reinforce_pp", **keys):
    """The algorithm as a run makes it: without a penalty, where it would have one."""
    if name in ("reinforce_pp", "retrospective", "outcome"):
        keys = {"kl_beta": 0.0, **keys}
    return make_algorithm(read_algorithm({"name": name, **keys}))


def advantages(samples, rewards, name="reinforce_pp", **keys):
    """Action id -> advantages of its tokens, and the whole batch."""
    batch = algorithm(name, **keys).advantages(grouped(samples), rewards)
    return {s.action_id: s.advantages_L for group in batch.samples.values() for s in group}, batch


def played(episode, turns, *, task="t", length=1, policies=None):
    """The samples of one episode in which the roles of `turns`, role -> turns taken, act in rounds. Ids are
    "<episode>/<role><turn>"; policies: role -> policy, where it is not the role's own."""
    rounds = range(max(turns.values(), default=0))
    order = [(role, turn) for turn in rounds for role, taken in turns.items() if turn < taken]
    return [
        sample(
            f"{episode}/{role}{turn}",
            episode=episode,
            role=role,
            turn=turn,
            index=index,
            task=task,
            length=length,
            policy=(policies or {}).get(role),
        )
        for index, (role, turn) in enumerate(order)
    ]

"""The data that flows through coachrl: plain frozen records, no behavior beyond small derived views. Read this first.

How the data flows: a `Task` is given to a team of `Role`s; each agent leaves `Action`s (tokens, text, what its code
did); an `Episode` collects them with its `Outcome`; a coach gives each action a `CoachScore`; a trainer takes
`TrainSample`s.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from coachrl.prompts import NO_PROMPT, Prompt

ExecutionState = Literal["ok", "error", "timeout", "oom", "output_limit", "infrastructure"]
FinishReason = Literal["stop", "length"]
ScoreStatus = Literal["scored", "abstained", "failed"]


@dataclass(frozen=True)
class Task:
    """One problem. `prompt` and `files` are what agents may see; `ground_truth` is what they may not.

    category: stratum for metrics and audits ("classification", "regression", "one-step", "AIME", ...).
    files: workspace name -> host path, copied into the workspace before the first action.
    ground_truth: whatever the task's grader needs; kept out of `repr`, of logs, of workspaces and of agents' prompts.
    """

    id: str
    category: str
    prompt: str
    files: Mapping[str, Path] = field(default_factory=dict)
    ground_truth: Any = field(default=None, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Task:
        """For code of somebody's own, which may change what it is given. A ground truth that cannot be copied, as one
        that holds an open file, is shared."""
        try:
            truth = copy.deepcopy(self.ground_truth)
        except Exception:  # noqa: BLE001  it is an object of somebody's own, which may raise anything
            truth = self.ground_truth
        return replace(self, files=dict(self.files), ground_truth=truth)


@dataclass(frozen=True)
class Example:
    """One demonstration in chat form, shown before the real prompt (few-shot)."""

    user: str
    assistant: str


@dataclass(frozen=True)
class Role:
    """What an agent is there for in a pipeline, and how it acts.

    Whenever a pipeline lets the agent act it takes a part of up to `max_turns` turns; it may take several parts in one
    episode. prompt: template of the first message of a part; feedback: template of the message after a turn, when
    another turn follows. description: one sentence for the coach. python: code blocks are run in the sandbox.
    required_files: artifacts that this role must leave in the workspace; needed_files: what it takes from upstream.
    stop_when: what ends a part before `max_turns`, see `coachrl.pipelines.parts`.
    tools: import paths of functions that it may call (`coachrl.pipelines.team.tools`), each within `tool_timeout_s`
    seconds and `tool_result_chars` characters of result.
    external: the model of a provider that plays it in place of a policy. It is never trained.
    """

    name: str
    policy: str
    prompt: Prompt = NO_PROMPT
    description: str = ""
    feedback: Prompt = NO_PROMPT
    examples: tuple[Example, ...] = ()
    python: bool = False
    max_turns: int = 1
    stop_when: Literal["answered", "ran", "saved"] = "answered"
    required_files: tuple[str, ...] = ()
    needed_files: tuple[str, ...] = ()
    max_new_tokens: int = 4096
    thinking: bool = False
    tools: tuple[str, ...] = ()
    tool_timeout_s: float = 10.0
    tool_result_chars: int = 4000
    external: str = ""


def policy_names(roles: Iterable[Role]) -> list[str]:
    """The policies that the roles play with, in order of first use."""
    return list(dict.fromkeys(role.policy for role in roles if not role.external))


@dataclass(frozen=True)
class SamplingParams:
    """How replies are drawn. temperature 0 is greedy. seed fixes the draw.

    For an episode they say what all its replies have in common; each reply then has the `max_new_tokens` of its role
    and a seed that is derived from the episode's.
    """

    max_new_tokens: int = 4096
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Generation:
    """What a backend returns for one prompt. `token_ids` holds the end-of-sequence token when finish_reason is "stop".

    logprobs: log pi_old(t) of each token under the distribution it was drawn from, natural log, as many as token_ids.
    batch: number and size of the batch that it was drawn in, where what is in a batch decides how its figures are
    rounded; None elsewhere.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weights_version: int
    batch: tuple[int, int] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Execution:
    """What one piece of agent code did in the sandbox. Only state "infrastructure" is not the agent's doing."""

    state: ExecutionState
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    files_written: tuple[str, ...] = ()
    wall_s: float = 0.0


def ran(execution: Execution | None) -> TypeGuard[Execution]:
    """Whether code was run, and went well."""
    return execution is not None and execution.state == "ok"


@dataclass(frozen=True)
class ToolCall:
    """One call of a function that a role was given. name: empty where the call could not be read. call: what the agent
    wrote, JSON where it was right; result: what it was told, cut where it is long; ok: whether the function gave it."""

    name: str
    call: str
    result: str
    ok: bool
    wall_s: float = 0.0


@dataclass(frozen=True)
class Reward:
    """What an environment gives for one action (Stronger-MAS, Eq. 3): `team_weight * team + local`.

    team: what the team gains by it; local: how well the agent did its own part, 0 to 1. checks: the parts that local is
    made of, by name, each 0 to 1.
    """

    team: float
    local: float
    checks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ActionCredit:
    """What training made of one action. reward: after scaling and shuffling, None where there was none.
    advantage: the mean over its trained tokens, None where it was not trained on; left_out: why it was not."""

    reward: float | None
    advantage: float | None
    left_out: str | None = None


def is_still(action_digest: str, now: str | None) -> bool:
    """Whether what was said of the action with that `Action.digest` is of the one whose digest is `now`, None where
    there is none; "", of before there were any, may be of any."""
    return action_digest in ("", now)


GIVEN_UP = "Nobody waited for this reply: the client went away."
"""The `result` of an action that has no reply, since an app left its call: see `Action.is_given_up`."""


@dataclass(frozen=True)
class Action:
    """One generation of one agent: what it saw and produced, and what the environment did in answer.

    id: "<episode id>/<index>", unique in a run. index: position in the episode; turn: how many turns this agent had
    taken before. Under tree sampling the `candidate`s of one state share index, role and turn, and ids end in
    ".<candidate>".
    prompt_text: what the agent read, without few-shot examples; text: the reply, decoded, without special tokens.
    response_ids: empty where no policy wrote the reply: an external model's, and one that nobody waited for.
    files_before / files_after: names in the workspace around the execution.
    tool_calls: the functions that it called, each with what it was told.
    value: how often the team succeeded when it was let go on from this action again and again, 0 to 1 (`replay`); None
    where that was not measured.
    result: what the environment did in answer, in words; rendering: its state after that, drawn as text; reward: what
    it gave for it. Empty and None without an environment. infra_error: why this action must not be trained on
    ("infrastructure", ...), or None. credit: what training made of it; None before its step was trained.
    """

    id: str
    episode_id: str
    index: int
    role: str
    policy: str
    turn: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weights_version: int
    prompt_text: str
    text: str
    code: str | None = None
    execution: Execution | None = None
    files_before: tuple[str, ...] = ()
    files_after: tuple[str, ...] = ()
    infra_error: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    candidate: int = 0
    result: str = ""
    rendering: str = ""
    reward: Reward | None = None
    credit: ActionCredit | None = None
    value: float | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether an app left the call before there was a reply. What an agent wrote is never taken for that, whatever
        came of it."""
        return self.result == GIVEN_UP and not (self.response_ids or self.text)

    @property
    def digest(self) -> str:
        """The start of a hash of what it was asked and what it replied, behind a letter: spreadsheets rewrite what may
        be a number. Ids are given anew by a run that goes on after its checkpoint: this tells whether what was scored
        under one still stands there."""
        both = json.dumps([self.prompt_text, self.text]).encode()
        return f"d{hashlib.blake2b(both, digest_size=6).hexdigest()}"

    def is_of(self, action_digest: str) -> bool:
        """Whether a score with that digest is of this action, see `is_still`."""
        return is_still(action_digest, self.digest)

    def __deepcopy__(self, memo: dict[int, Any]) -> Action:
        """Of all that it holds the checks of its reward alone could be changed: its tokens, thousands, are shared."""
        return replace(self, reward=copy.deepcopy(self.reward))


@dataclass(frozen=True)
class Outcome:
    """What the environment measured at the end of an episode. Never made by a coach.

    metrics: numbers by name, higher or lower being better as the name says. reason: why it failed, for people.
    summary: the measured outcome in words, as the coach of the last agent is shown it.
    """

    success: bool
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    summary: str = ""


@dataclass(frozen=True)
class Episode:
    """One run of a pipeline on one task. infra_error: why it does not count (never the agents' doing), or None.

    task_prompt: the problem as the task states it. overflowed: it ended early because a prompt did not fit the model's
    context; that counts as a failure.
    rejected_candidates: candidates of tree sampling that were drawn and rewarded, but not followed by what comes after.
    """

    id: str
    task_id: str
    task_category: str
    pipeline: str
    actions: tuple[Action, ...]
    outcome: Outcome
    wall_s: float = 0.0
    infra_error: str | None = None
    overflowed: bool = False
    rejected_candidates: tuple[Action, ...] = ()
    task_prompt: str = ""

    @property
    def all_actions(self) -> tuple[Action, ...]:
        """Everything that was generated: `actions` and `rejected_candidates`, those of one state side by side."""
        return tuple(
            sorted((*self.actions, *self.rejected_candidates), key=lambda action: (action.index, action.candidate))
        )


@dataclass(frozen=True)
class Usage:
    """What it took to ask a coach. Two usages add up to what both took together.

    attempts: how often it was asked, failed attempts and repairs included. tokens_in includes tokens_cached, tokens_out
    includes tokens_thinking. cost_usd: dollars; None where the price of a call is not known, 0.0 where it was free. A
    reply from the cache counts with the price that was paid for it then;
    calls_from_cache says how many of the attempts were such.
    """

    attempts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_thinking: int = 0
    tokens_cached: int = 0
    cost_usd: float | None = 0.0
    latency_s: float = 0.0
    calls_from_cache: int = 0

    def __add__(self, other: Usage) -> Usage:
        priced = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            attempts=self.attempts + other.attempts,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            tokens_thinking=self.tokens_thinking + other.tokens_thinking,
            tokens_cached=self.tokens_cached + other.tokens_cached,
            cost_usd=(self.cost_usd or 0.0) + (other.cost_usd or 0.0) if priced else None,
            latency_s=self.latency_s + other.latency_s,
            calls_from_cache=self.calls_from_cache + other.calls_from_cache,
        )


ONE_ATTEMPT = Usage(attempts=1)


@dataclass(frozen=True)
class CriterionScore:
    """What an action got under one criterion of a coach prompt, and what that weighs in the total (above 0)."""

    name: str
    weight: float
    score_0_10: float
    reason: str = ""


HIGHEST_SCORE = 10.0  # of a coach; the lowest is 0


@dataclass(frozen=True)
class CoachScore:
    """What a coach gave one action. A call that failed is never a number: status "failed" has process_0_10 None.

    process_0_10: how good the action was, 0 to 10. outcome_0_1: the coach's view of the outcome, where it was asked.
    model: the one that answered; fallbacks: models that failed before it. usage: what all calls for the
    score took, those of failed attempts included; rules are asked once, and make none.
    disagreement: standard deviation of the scores of an ensemble's members, in points, where two or more scored.
    contribution: this action's signed share of the outcome, -10 to 10, and residual what it leaves to earlier actions,
    in words: both from the retrospective pass, None and empty elsewhere.
    suggestion: the reply that the agent should have given in its place; empty where the coach was not asked for one, or
    saw nothing to improve.
    position: its place in the prompt, from 1, where siblings were compared in one call.
    criteria: what process_0_10 is the weighted mean of, where the coach's prompt lists criteria.
    action_digest: `Action.digest` of what was scored, in a rescore, which lies apart from the actions.
    """

    action_id: str
    status: ScoreStatus
    process_0_10: float | None = None
    outcome_0_1: float | None = None
    rationale: str = ""
    model: str = ""
    prompt_hash: str = ""
    usage: Usage = ONE_ATTEMPT
    fallbacks: int = 0
    disagreement: float | None = None
    contribution: float | None = None
    residual: str = ""
    suggestion: str = ""
    criteria: tuple[CriterionScore, ...] = ()
    position: int | None = None
    action_digest: str = ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What criteria, an ensemble of coaches, or a retrospective pass say beside the score, for people."""
        remarks = [f"{criterion.name} {criterion.score_0_10:.3g}" for criterion in self.criteria]
        if self.contribution is not None:
            remarks.append(f"contribution {self.contribution:+g}")
        if self.disagreement is not None:
            remarks.append(f"members differ by {self.disagreement:.1f}")
        return tuple(remarks)


@dataclass(frozen=True)
class TrainSample:
    """One action of one policy as tokens, as a trainer takes it. It knows no coach and no algorithm.

    P prompt tokens, L response tokens. old_logprobs_L: log pi_old, from the sampler. ref_logprobs_L: log pi_ref, None
    before `Backend.with_reference`. trainer_logprobs_L: log pi_old, from the weights that are trained; None before
    `Backend.with_trainer_logprobs`. mask_L: 1.0 where a token is trained on, 0.0 elsewhere. advantages_L: None before
    `Algorithm.advantages`. A sample of zero mask weighs nothing in the loss.
    """

    policy: str
    action_id: str
    episode_id: str
    task_id: str
    role: str
    turn: int
    index: int
    prompt_ids_P: NDArray[np.int64]
    response_ids_L: NDArray[np.int64]
    old_logprobs_L: NDArray[np.float32]
    mask_L: NDArray[np.float32]
    ref_logprobs_L: NDArray[np.float32] | None = None
    trainer_logprobs_L: NDArray[np.float32] | None = None
    advantages_L: NDArray[np.float32] | None = None
    masked_because: str | None = None

    @property
    def length(self) -> int:
        """How many tokens a forward pass reads of it: prompt and response."""
        return len(self.prompt_ids_P) + len(self.response_ids_L)

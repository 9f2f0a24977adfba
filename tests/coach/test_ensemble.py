"""Several coaches as one, with members of every kind of failure."""

from dataclasses import replace

import pytest
from coach_requests import make_action, request_for
from hypothesis import given
from hypothesis import strategies as st

from coachrl.coach.kinds.ensemble import COMBINE, EnsembleCoach, trimmed_mean
from coachrl.coach.pool import CoachPool
from coachrl.coach.rubric.rules import RulesCoach
from coachrl.errors import CoachError, CoachUnavailable
from coachrl.types import CoachScore, CriterionScore, Episode, Outcome, Usage

REQUEST = request_for(make_action("solver", "3 * 4"))


class Member:
    """Scores a constant, abstains (None), or raises."""

    def __init__(self, answer: float | Exception | None, name: str = "member", cost_usd: float | None = 0.5) -> None:
        self.name, self._answer, self._cost_usd, self.closed = name, answer, cost_usd, False

    async def check(self) -> None:
        if isinstance(self._answer, CoachUnavailable):
            raise self._answer

    async def score(self, request) -> CoachScore:
        if isinstance(self._answer, Exception):
            raise self._answer
        status = "abstained" if self._answer is None else "scored"
        return CoachScore(
            request.action.id,
            status,
            self._answer,
            rationale=f"{self.name} says so",
            model=self.name,
            prompt_hash=f"hash of {self.name}",
            usage=Usage(attempts=1, tokens_in=10, cost_usd=self._cost_usd),
        )

    async def close(self) -> None:
        self.closed = True


def ensemble(*answers, combine="mean"):
    return EnsembleCoach([Member(answer, f"m{place}") for place, answer in enumerate(answers)], combine)


@pytest.mark.parametrize(
    ("combine", "answers", "combined"),
    [
        ("mean", (2.0, 4.0, 9.0), 5.0),
        ("median", (2.0, 4.0, 9.0), 4.0),
        ("median", (2.0, 4.0), 3.0),
        ("trimmed", (1.0, 4.0, 6.0, 10.0), 5.0),
        ("trimmed", (1.0, 4.0), 2.5),
        ("mean", (2.0, None, CoachError("no"), 4.0), 3.0),
        ("trimmed", (0.0, 4.0, 10.0, CoachError("no")), 4.0),
    ],
)
async def test_scores_become_one(combine, answers, combined) -> None:
    score = await ensemble(*answers, combine=combine).score(REQUEST)
    assert (score.status, score.process_0_10) == ("scored", combined)


async def test_disagreement_words_and_costs_stay_on_the_score() -> None:
    score = await ensemble(2.0, 6.0, CoachError("broken off"), None).score(REQUEST)
    assert score.disagreement == 2.0  # the deviation of 2 and 6 from 4
    assert score.rationale.split("\n\n") == [
        "m0 2: m0 says so",
        "m1 6: m1 says so",
        "m3 abstained: m3 says so",
        "no score: broken off",
    ]
    assert (score.usage.tokens_in, score.usage.cost_usd, score.model) == (30, 1.5, "mean of m0, m1, m2, m3")
    assert score.prompt_hash not in ("", "hash of m0")


async def test_a_single_score_has_nobody_to_disagree_with() -> None:
    assert (await ensemble(2.0, CoachError("no")).score(REQUEST)).disagreement is None


async def test_an_unknown_price_of_one_is_an_unknown_price_of_all() -> None:
    coach = EnsembleCoach([Member(2.0), Member(4.0, cost_usd=None)])
    assert (await coach.score(REQUEST)).usage.cost_usd is None


async def test_all_failing_is_failed_and_never_a_number() -> None:
    pool = CoachPool(ensemble(CoachError("first"), CoachError("second")))
    pool.submit(REQUEST)
    episode = Episode("e1", "w1", "one-step", "mathchat", (REQUEST.action,), Outcome(True))
    [score] = (await pool.settle([episode])).values()
    assert (score.status, score.process_0_10) == ("failed", None)
    assert "first; second" in score.rationale
    await pool.close()


@pytest.mark.parametrize(
    ("answers", "status"),
    [((None, None), "abstained"), ((None, CoachError("no")), "abstained"), ((None, 3.0), "scored")],
)
async def test_abstaining_is_no_failure(answers, status) -> None:
    assert (await ensemble(*answers).score(REQUEST)).status == status


async def test_a_run_begins_with_every_member_and_ends_with_none_left() -> None:
    gone = CoachUnavailable("wrong key")
    with pytest.raises(CoachUnavailable, match="wrong key"):
        await ensemble(2.0, gone).check()
    assert (await ensemble(2.0, gone).score(REQUEST)).process_0_10 == 2.0
    with pytest.raises(CoachUnavailable):
        await ensemble(gone, gone).score(REQUEST)


async def test_a_bug_in_a_member_is_not_taken_for_a_failure() -> None:
    with pytest.raises(ZeroDivisionError):
        await ensemble(2.0, ZeroDivisionError()).score(REQUEST)


async def test_rules_may_be_a_member_and_all_are_closed() -> None:
    member = Member(0.0)
    coach = EnsembleCoach([RulesCoach(), member], "mean")
    alone = await RulesCoach().score(REQUEST)
    assert (await coach.score(REQUEST)).process_0_10 == pytest.approx(alone.process_0_10 / 2)
    await coach.close()
    assert member.closed


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9), st.sampled_from(sorted(COMBINE)))
def test_a_combined_score_lies_between_its_parts_whatever_their_order(values, combine) -> None:
    combined = COMBINE[combine](values)
    assert min(values) - 1e-9 <= combined <= max(values) + 1e-9
    assert combined == pytest.approx(COMBINE[combine](values[::-1]))


@given(st.lists(st.floats(0, 10), min_size=3, max_size=9), st.floats(0, 10))
def test_one_wild_member_cannot_pull_a_trimmed_mean_past_the_others(values, wild) -> None:
    assert min(values) - 1e-9 <= trimmed_mean([*values, wild]) <= max(values) + 1e-9


def test_an_ensemble_needs_members() -> None:
    with pytest.raises(ValueError, match="members"):
        EnsembleCoach([])


async def test_members_answer_side_by_side_so_that_the_slowest_gives_the_latency() -> None:
    class Timed(Member):
        async def score(self, request) -> CoachScore:
            return replace(await super().score(request), usage=Usage(latency_s=self._cost_usd))

    together = EnsembleCoach([Timed(4.0, cost_usd=0.5), Timed(6.0, cost_usd=2.0)])
    assert (await together.score(REQUEST)).usage.latency_s == 2.0


class Saying(Member):
    """Gives a whole score of its own."""

    def __init__(self, **said) -> None:
        super().__init__(None)
        self._said = CoachScore("e1/0", **{"status": "scored", "process_0_10": 5.0} | said)

    async def score(self, request) -> CoachScore:
        return self._said


async def together(*said, combine="mean") -> CoachScore:
    return await EnsembleCoach([Saying(**one) for one in said], combine).score(REQUEST)


async def test_outcomes_are_averaged_over_the_members_that_named_one() -> None:
    score = await together({"outcome_0_1": 1.0}, {"outcome_0_1": 0.0}, {"outcome_0_1": 1.0}, {"outcome_0_1": None})
    assert score.outcome_0_1 == pytest.approx(2 / 3)
    assert (await together({}, {})).outcome_0_1 is None


async def test_fallbacks_are_those_of_the_member_that_needed_most() -> None:
    assert (await together({"fallbacks": 1}, {"fallbacks": 2}, {"fallbacks": 0})).fallbacks == 2


async def test_members_of_one_prompt_keep_its_hash_and_others_share_one_whatever_their_order() -> None:
    one, other = {"prompt_hash": "a"}, {"prompt_hash": "b"}
    assert (await together(one, one)).prompt_hash == "a"
    assert (await together(one, other)).prompt_hash == (await together(other, one, one)).prompt_hash not in ("a", "b")


async def test_criteria_are_combined_one_by_one_where_all_that_scored_judge_by_the_same() -> None:
    def judged(right: float, clear: float, weight: float = 3.0) -> dict[str, object]:
        criteria = (CriterionScore("right", weight, right, f"r{right:g}"), CriterionScore("clear", 1, clear, "c"))
        return {"criteria": criteria}

    silent = {"status": "abstained", "process_0_10": None}
    score = await together(judged(2, 9), silent, judged(3, 5), judged(10, 4), combine="median")
    assert score.criteria == (CriterionScore("right", 3, 3, "r2\nr3\nr10"), CriterionScore("clear", 1, 5, "c\nc\nc"))
    for other in (judged(3, 5, weight=2.0), {}):
        assert (await together(judged(2, 9), other)).criteria == ()


async def test_an_ensemble_is_lost_only_where_every_member_is() -> None:
    gone = CoachUnavailable("wrong key")
    with pytest.raises(CoachError, match="wrong key; no reply") as caught:
        await ensemble(gone, CoachError("no reply")).score(REQUEST)
    assert not isinstance(caught.value, CoachUnavailable)


async def test_a_member_that_fails_is_named_in_the_log(caplog) -> None:
    await ensemble(2.0, CoachError("no reply")).score(REQUEST)
    assert caplog.messages == ["action e1/0: m1 leaves the ensemble's score: no reply"]


async def test_a_member_that_cannot_be_checked_is_taken_as_it_is() -> None:
    class Plain:
        name, score = "plain", Member(2.0).score

        async def close(self) -> None: ...

    await EnsembleCoach([Plain(), Member(4.0)]).check()
    with pytest.raises(CoachUnavailable):
        await EnsembleCoach([Plain(), Member(CoachUnavailable("wrong key"))]).check()

"""Each sentence of an audit from its figures: which grade, from which boundary on, and which figure a gate sees."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coachrl.audit.data.frame import Scorer
from coachrl.audit.findings import Counts, CrossRater, Findings
from coachrl.audit.stats.agreement import Agreement, Pair
from coachrl.audit.stats.calibration import Calibration, Prediction, Saturation
from coachrl.audit.stats.drift import Drift
from coachrl.audit.thresholds import TOPICS, crossed, parse_threshold
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.audit.topics.outcomes import inversion, reward_hacking
from coachrl.audit.verdicts import AuditVerdict, circular_words, grade_of, topic_verdicts, verdicts
from coachrl.errors import ConfigError
from coachrl.stats import Estimate

ANSWERED = Counts(actions=100, scored=100, abstained=0, failed=0, episodes=50, tasks=20, runs=1)


def found(
    counts: Counts = ANSWERED,
    calibration: Calibration | None = None,
    drift: Drift | None = None,
    topics: Sequence[TopicFinding] = (),
) -> Findings:
    scorer = Scorer("", "judge", "")
    return Findings(
        "p", "judge", scorer, counts, None, [], {}, [], None, [], calibration, drift, [], topics=topics
    )  # fmt: skip


def said(topic: str, **parts) -> list[tuple[str, float | None, str]]:
    made = verdicts([found(**parts)], [])
    return [(one.grade, one.value, one.text) for one in made if one.topic == topic]


def figure(value: float, low: float | None, high: float | None, tasks: int = 20, p: float | None = None) -> Estimate:
    return Estimate(value, low, high, 40, tasks, "episodes", p)


@pytest.mark.parametrize(
    ("scored", "abstained", "failed", "expected"),
    [
        (97, 3, 0, ("ok", 0.0, "every one of its 100 calls was answered, 3 abstained")),
        (90, 0, 10, ("ok", 0.1, "10 of 100 calls failed (10%)")),
        (87, 2, 11, ("warning", 0.11, "11 of 100 calls failed (11%), 2 abstained")),
        (1, 0, 99, ("warning", 0.99, "99 of 100 calls failed (99%)")),
        (0, 60, 40, ("alarm", 0.4, "none of its 100 calls gave a score (40 failed): nothing else can be said")),
    ],
)
def test_calls_that_failed_are_a_share_of_all_and_more_than_a_tenth_is_a_warning(scored, abstained, failed, expected):
    assert said("failed", counts=Counts(100, scored, abstained, failed, 50, 20, 1)) == [expected]


def prediction(auc: Estimate, of: str = "last action", category: str = "", circular: bool = False) -> Prediction:
    return Prediction(of, category, auc, auc, auc, 0.25, 20, circular)


def auc_said(*made: Prediction, notes: Sequence[str] = (), tested: bool = True) -> list[tuple[str, float | None, str]]:
    calibration = Calibration(made, [], [Saturation("a", 5.0, figure(0.1, 0.0, 0.2), figure(3, 2, 4), None)], notes)
    return said("auc", calibration=calibration, topics=[inversion(calibration)] if tested else [])


@pytest.mark.parametrize(
    ("auc", "circular", "grade", "words"),
    [
        (figure(0.9, None, None), False, "unknown", "too few episodes to say"),
        (figure(0.5, None, None, tasks=15), False, "unknown", "too few episodes to say"),
        (figure(0.5, None, None, tasks=16), False, "warning", "uninformative: "),
        (figure(0.6, 0.51, 0.7), False, "ok", "the last action's score predicts the outcome"),
        (figure(0.6, 0.51, 0.7), True, "note", "the last action's score predicts the outcome"),
        (figure(0.59, 0.51, 0.7), False, "note", "hardly predicts the outcome"),
        (figure(0.6, 0.5, 0.7), False, "warning", "uninformative: "),
        (figure(0.6, 0.5, 0.71), False, "unknown", "too few episodes to say"),
        (figure(0.3, 0.2, 0.45, p=0.01), False, "alarm", "inverted: the last action's score is lower"),
        (figure(0.3, 0.2, 0.55, p=0.2), False, "warning", "uninformative: "),
    ],
)
def test_how_well_the_last_score_predicts_the_outcome(auc, circular, grade, words):
    [(found_grade, value, text)] = auc_said(prediction(auc, circular=circular))
    assert found_grade == grade and words in text
    assert value == (None if auc.low is None and grade == "unknown" else auc.value)
    assert ("circular: the coach was shown this outcome" in text) == circular


def test_what_other_trainers_judges_were_shown_is_not_known():
    told = circular_words("imported from trl")
    assert told == "circular if the judge was shown this outcome, which its log does not say"
    assert circular_words("mathchat") == "circular: the coach was shown this outcome"


def test_a_role_that_is_scored_lower_where_the_team_succeeds_is_named_beside_the_last_action():
    fine, low = figure(0.8, 0.7, 0.9, p=0.001), figure(0.3, 0.2, 0.4, p=0.001)
    made = auc_said(
        prediction(fine), prediction(low, "coder"), prediction(fine, "critic"), prediction(low, category="k")
    )
    assert [(grade, value) for grade, value, _ in made] == [("alarm", 0.3), ("ok", 0.8)], "the worst stands first"
    assert made[0][2].startswith("scores coder lower where the team succeeds: AUC 0.30 [0.20, 0.40]")


def test_without_an_outcome_the_reason_is_said():
    assert auc_said(notes=["nothing ended", "more"]) == [
        ("unknown", None, "how well scores predict the outcome could not be measured: nothing ended")
    ]
    assert auc_said(prediction(figure(0.8, 0.7, 0.9), "coder"))[0][2].endswith("no last action has a score")
    assert said("auc") == said("saturation") == said("reward_hacking") == []


@pytest.mark.parametrize(
    ("share", "grade"),
    [
        (figure(0.5, 0.25, 0.7), "warning"),
        (figure(0.5, 0.24, 0.7), "unknown"),
        (figure(0.5, None, None), "unknown"),
        (figure(0.49, 0.4, 0.6), "ok"),
    ],
)
def test_the_role_with_most_ties_is_the_one_that_is_said(share, grade):
    roles = [Saturation("a", 3.0, figure(0.2, 0.1, 0.3), figure(3, 2, 4), None)]
    roles.append(Saturation("b", 7.0, share, figure(1, 0, 2), figure(0.25, 0.1, 0.4)))
    [(found_grade, value, text)] = said("saturation", calibration=Calibration([], [], roles, []))
    assert (found_grade, value) == (grade, share.value)
    assert (
        f"{share.value:.0%} of the scores of b are 7 (" in text and "all scores are equal in 25% of 40 groups" in text
    )
    assert ("ties carry no gradient" in text) == (grade != "ok")


def gamed(score: Estimate | None, outcome: Estimate | None, notes: Sequence[str] = ()) -> tuple[str, float | None, str]:
    drift = Drift({}, score, outcome, "held-out", None, None, notes)
    [one] = said("reward_hacking", drift=drift, topics=[reward_hacking(drift)])
    return one


@pytest.mark.parametrize(
    ("score", "outcome", "expected"),
    [
        (figure(1.0, 0.5, 2.0, p=0.001), figure(-0.2, -0.5, -0.1, p=0.001), ("alarm", 1.0)),
        (figure(1.0, 0.5, 2.0, p=0.001), figure(0.0, -0.1, 0.1, p=0.9), ("note", 0.0)),
        (figure(1.0, 0.5, 2.0, p=0.001), figure(0.2, 0.1, 0.5, p=0.001), ("ok", 0.0)),
        (figure(0.1, -0.5, 2.0, p=0.8), figure(0.0, -0.5, 0.1, p=0.9), ("ok", 0.0)),
        (figure(0.1, -0.5, 2.1, p=0.8), figure(0.0, -0.5, 0.1, p=0.9), ("unknown", None)),
        (figure(0.1, -2.1, 0.5, p=0.8), figure(0.0, -0.5, 0.1, p=0.9), ("unknown", None)),
        (figure(0.1, -0.5, 2.0, p=0.8), figure(0.0, -0.6, 0.1, p=0.9), ("unknown", None)),
        (figure(0.1, -0.5, 2.0, p=0.8), figure(0.0, None, None), ("unknown", None)),
        (None, figure(0.0, -0.5, 0.1), ("unknown", None)),
        (figure(0.1, -0.5, 2.0), None, ("unknown", None)),
    ],
)
def test_gaming_is_named_noted_cleared_or_left_open(score, outcome, expected):
    assert gamed(score, outcome)[:2] == expected


def test_why_gaming_could_not_be_measured_is_said():
    assert gamed(None, None, ["one step only"])[2].endswith("could not be measured: one step only")
    assert gamed(None, None)[2].endswith("no outcome was measured at two steps")
    text = gamed(figure(1.0, 0.5, 2.0), figure(0.2, 0.1, 0.5))[2]
    assert text.endswith(
        "score +1.00 [+0.50, +2.00] (n = 40 episodes, 20 tasks), held-out success +0.20 [+0.10, +0.50] "
        "(n = 40 episodes, 20 tasks)"
    )


@pytest.mark.parametrize(
    ("value", "high", "grade"),
    [(0.75, 0.9, "ok"), (0.74, 0.75, "unknown"), (0.74, 0.7499, "warning"), (0.74, None, "unknown")],
)
def test_a_figure_that_ought_to_be_reached_is_a_warning_only_where_it_surely_is_not(value, high, grade):
    assert grade_of(Estimate(value, None if high is None else 0.1, high, 9, 9), 0.75) == grade
    icc, other = figure(value, None if high is None else 0.1, high), figure(0.5, 0.0, 1.0)
    pair = Pair("one", "two", True, other, other, icc, other, 1.0, [])
    [verdict] = verdicts([], [CrossRater("p", Agreement([pair], ["one", "two"], None, None, []), [])])
    assert (verdict.topic, verdict.grade, verdict.value, verdict.rater) == ("agreement", grade, value, "one and two")
    assert "two minus one +0.50" in verdict.text


def test_two_coaches_need_not_agree_and_one_that_was_shown_other_things_is_said_to():
    icc, other = figure(0.1, 0.0, 0.2), figure(0.5, 0.4, 0.6)
    plain = Pair("one", "two", False, other, other, icc, other, 0.5, [])
    blind = Pair("one", "blind", False, other, other, icc, other, 0.5, [], ["files", "outcome"])
    made = verdicts([], [CrossRater("p", Agreement([plain, blind], ["one", "two", "blind"], None, None, []), [])])
    assert [(one.topic, one.grade, one.value) for one in made] == [("coaches", "note", None)] * 2
    assert made[0].text.startswith("agreement on the same actions: ICC 0.10")
    assert made[1].text.startswith("one coach that was shown different things (files, outcome): ICC 0.10")


def test_what_is_worst_stands_first_within_each_rater_and_every_certain_effect_is_said():
    sure = Estimate(0.5, 0.4, 0.6, 80, 20, p=1e-6)
    effects = [Effect("x", "likes x", sure), Effect("y", "likes y", Estimate(-0.75, -0.9, -0.6, 80, 20, p=1e-6))]
    topics = [TopicFinding("halo", [], "", "", "no data"), TopicFinding("style", effects, "", "")]
    made = verdicts([found(topics=topics), found(counts=Counts(9, 0, 0, 9, 1, 1, 1))], [])
    assert [(one.grade, one.text) for one in made[:4]] == [
        ("warning", "likes y"),
        ("warning", "likes x"),
        ("unknown", "halo could not be tested: no data"),
        ("ok", "every one of its 100 calls was answered"),
    ]
    assert [one.value for one in made[:2]] == [0.75, 0.5] and made[4].grade == "alarm"
    [cleared] = topic_verdicts(TopicFinding("self_preference", [], "fine", ""), "p", "judge")
    assert (cleared.grade, cleared.text, cleared.value, cleared.line) == ("ok", "fine", 0.0, "judge: fine")


def test_tests_of_several_coaches_share_one_error_rate_before_they_are_said():
    """p of 0.03 is certain alone; of two coaches the smaller counts twice."""
    topic = TopicFinding("style", [Effect("x", "likes x", Estimate(0.5, 0.1, 0.9, 80, 20, p=0.03))], "no", "unsure")
    assert [one.grade for one in verdicts([found(topics=[topic])], []) if one.topic == "style"] == ["warning"]
    both = [one.grade for one in verdicts([found(topics=[topic])] * 2, []) if one.topic == "style"]
    assert both == ["ok"] * 2, "neither is named, and nothing large was missed"
    beside = CrossRater("p", Agreement([], [], None, None, []), [], [topic])
    [first, last] = [one for one in verdicts([found(topics=[topic])], [beside]) if one.topic == "style"]
    assert (first.grade, last.grade, last.rater) == ("ok", "ok", "all coaches")


def judged(topic: str, grade: str, value: float | None, rater: str = "judge", pipeline: str = "p") -> AuditVerdict:
    return AuditVerdict(topic, grade, pipeline, rater, "said", value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic", "limit", "value", "is_crossed"),
    [
        ("category", 0.5, 0.5, False),
        ("category", 0.5, 0.51, True),
        ("category", 0.5, -0.51, True),
        ("auc", 0.6, 0.6, False),
        ("auc", 0.6, 0.59, True),
        ("agreement", 0.75, 0.9, False),
        ("replay", 0.15, -0.9, True),
        ("fault_localization", 0.8, 0.79, True),
        ("failed", 0.0, 0.01, True),
    ],
)
def test_a_limit_is_crossed_beyond_it_and_some_figures_must_not_fall_below(topic, limit, value, is_crossed):
    made = crossed([judged(topic, "ok", value), judged("halo", "alarm", 0.99)], [(topic, limit)])
    assert made == ([f"{topic}={limit:g}: judge: said"] if is_crossed else [])


def test_four_figures_must_not_fall_below_their_limit_and_all_others_not_rise_above():
    below = {topic for topic, (_, _, fails_below) in TOPICS.items() if fails_below}
    assert below == {"auc", "agreement", "replay", "fault_localization"}


def test_without_a_limit_warnings_and_alarms_are_crossed_and_what_was_not_measured_is_for_each_coach():
    made = [judged("auc", grade, 0.5, grade) for grade in ("ok", "unknown", "note", "warning", "alarm")]
    assert crossed(made, [("auc", None)]) == ["auc: warning: said", "auc: alarm: said"]
    assert crossed([*made, judged("halo", "alarm", None)], [("any", None)]) == [
        "any: warning: said", "any: alarm: said", "any: judge: said"
    ]  # fmt: skip
    one, other = judged("auc", "ok", 0.9), judged("auc", "unknown", None, pipeline="q")
    assert crossed([one, judged("auc", "unknown", None)], [("auc", None)]) == [], "the coach has a figure"
    assert crossed([one, other], [("auc", 0.5)]) == ["auc: not measured: judge: said"]
    assert crossed([one], [("auc", None), ("style", 0.1)]) == ["style: nothing was measured for any coach"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("any", ("any", None)),
        ("category", ("category", None)),
        ("category=0", ("category", 0.0)),
        ("auc=0.6", ("auc", 0.6)),
    ],
)
def test_a_threshold_is_a_topic_and_a_number_from_0_up(text, expected):
    assert parse_threshold(text) == expected


@pytest.mark.parametrize("text", ["category=-0.1", "category=nan", "category=inf", "category=", "any=0", "mood", ""])
def test_other_thresholds_are_refused(text):
    with pytest.raises(ConfigError, match="--fail-on"):
        parse_threshold(text)

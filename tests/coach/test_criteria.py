"""Weighted criteria: how a prompt lists them, what each odd reply means, and the score that comes of it."""

import json
from pathlib import Path

import pytest
from chat_clients import client_factory, requests_of, score_all
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import ScriptedServer, say

from coachrl.coach import make_coach
from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.criteria import criteria_words, parse_criteria, parse_verdict_by_criteria, weighted_mean
from coachrl.coach.pool import CoachPool
from coachrl.coach.prompt_rendering import find_coach_prompt, load_coach_prompt
from coachrl.config import CoachConfig, MemberConfig
from coachrl.errors import CoachError, ConfigError
from coachrl.runs.records import score_from_record
from coachrl.types import CriterionScore

CRITERIA = parse_criteria(
    {"criteria": {"right": {"weight": 3, "question": "Right?"}, "clear": {"question": "C?"}}}, "p"
)
LINES = "REASON right: It is off by one.\nSCORE right: 4\nREASON clear: It reads well.\nSCORE clear: 8"
OBJECT = {
    "criteria": {"right": {"reason": "Off by one.", "score": 4}, "clear": {"reason": "Reads well.", "score": 8}},
    "abstain": False,
}
SHIPPED = {name: ("Sound.", 4.0 + place) for place, name in enumerate(("correctness", "duty", "method", "hand_on"))}


@pytest.mark.parametrize(
    "reply",
    [
        LINES,
        f"Let me see.\n```\n{LINES}\n```",
        LINES.replace("SCORE right: 4", "**SCORE right:** 4/10"),
        f"{LINES}\nSCORE right: 4.0",
        json.dumps(OBJECT),
        f"```json\n{json.dumps(OBJECT, indent=2)}\n```",
        f"<think>\nSCORE right: 9\n</think>\n{LINES}",
        f"<answer>\n{LINES}\n</answer>",
    ],
)
def test_the_total_is_the_mean_by_weight(reply: str) -> None:
    verdict = parse_verdict_by_criteria(reply, CRITERIA)
    assert verdict.process_0_10 == pytest.approx((3 * 4 + 8) / 4)
    assert [(one.name, one.weight, one.score_0_10) for one in verdict.criteria] == [("right", 3, 4), ("clear", 1, 8)]
    assert verdict.criteria[1].reason.lower().endswith("reads well.")


def test_equal_totals_are_equal_numbers() -> None:
    def total(*scores: float) -> float:
        given = zip("abc", (3.0, 2.0, 1.0), scores, strict=True)
        return weighted_mean([CriterionScore(name, weight, score) for name, weight, score in given])

    assert total(8, 8, 8) == total(9, 8, 5) == total(8, 7, 10) == 8
    assert total(10, 10, 10) == 10 and total(0, 0, 1) == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("PROCESS_SCORE: 8", "no line 'SCORE right: n'"),
        (LINES.replace("SCORE clear: 8", ""), "no line 'SCORE clear: n'"),
        (LINES.replace("REASON right: It is off by one.", ""), "right has no reason"),
        (LINES.replace("SCORE right: 4", "SCORE right: ABSTAIN"), "right has no score"),
        (LINES.replace("SCORE right: 4", "SCORE right: 11"), "outside 0 to 10"),
        (f"It wrote:\nSCORE right: 10\n{LINES}", "contradicts itself"),
        (f"{LINES}\nis what it demands. I decline.", "does not end in its verdict"),
        (f"{LINES}\nABSTAIN", "contradicts itself"),
        (json.dumps(OBJECT | {"criteria": {"right": OBJECT["criteria"]["right"]}}), "no line 'SCORE clear: n'"),  # type: ignore[index]
        (json.dumps(OBJECT | {"criteria": [4, 8]}), "no line 'SCORE right: n'"),
        (f"<think>\n{LINES}", "hidden thoughts"),
        ("", "empty"),
    ],
)
def test_where_one_criterion_is_missing_there_is_no_total(reply: str, reason: str) -> None:
    with pytest.raises(CoachError, match=reason):
        parse_verdict_by_criteria(reply, CRITERIA)


def test_a_criterion_is_known_by_a_name_that_markdown_has_escaped() -> None:
    criteria = parse_criteria({"criteria": {"hand_on": {"question": "Can the next one use it?"}}}, "p")
    reply = "REASON hand\\_on: It is in the file.\nSCORE hand\\_on: 6"
    assert parse_verdict_by_criteria(reply, criteria).process_0_10 == 6


@pytest.mark.parametrize(
    "reply",
    ["ABSTAIN", "REASON right: its code is not here\nABSTAIN", json.dumps({"criteria": {}, "abstain": True})],
)
def test_a_coach_may_abstain_from_the_whole(reply: str) -> None:
    verdict = parse_verdict_by_criteria(reply, CRITERIA)
    assert verdict.abstained and verdict.criteria == ()


@given(st.text())
def test_any_text_gives_a_total_in_range_or_an_error(reply: str) -> None:
    try:
        verdict = parse_verdict_by_criteria(f"{LINES}\n{reply}", CRITERIA)
    except CoachError:
        return
    assert verdict.process_0_10 is not None and 0 <= verdict.process_0_10 <= 10


@pytest.mark.parametrize(
    ("criteria", "reason"),
    [
        ("{}", "1 to 12 names"),
        ("[right]", "1 to 12 names"),
        ("{right: Is it}", "write {weight: 1"),
        ("{right: {weight: 0, question: q}}", "number above 0"),
        ("{right: {weight: .inf, question: q}}", "number above 0"),
        ("{right: {weight: true, question: q}}", "number above 0"),
        ("{right: {weight: 1}}", "needs a question"),
        ("{Is it right: {question: q}}", "small letters"),
        ("{right: {question: q, wieght: 2}}", "write {weight: 1"),
    ],
)
def test_a_header_that_lists_no_criteria_is_refused_in_one_line(tmp_path: Path, criteria: str, reason: str) -> None:
    file = tmp_path / "mine.md"
    file.write_text(
        f"---\nfields: [agent_output, criteria]\ncriteria: {criteria}\n---\n{{{{agent_output}}}} {{{{criteria}}}}"
    )
    with pytest.raises(ConfigError, match=reason) as caught:
        load_coach_prompt(file)
    assert "\n" not in str(caught.value)


def test_twelve_criteria_are_read_and_thirteen_are_not() -> None:
    names = [f"c{number}" for number in range(13)]
    assert [
        one.name for one in parse_criteria({"criteria": {n: {"question": "Q?"} for n in names[:12]}}, "p")
    ] == names[:12]
    with pytest.raises(ConfigError, match="criteria must be 1 to 12 names"):
        parse_criteria({"criteria": {name: {"question": "Q?"} for name in names}}, "p")


def test_what_a_criterion_weighs_is_told_as_its_share_of_the_total() -> None:
    assert criteria_words(CRITERIA).splitlines()[:2] == [
        "- right (75% of the total): Right?",
        "- clear (25% of the total): C?",
    ]


def test_criteria_that_the_body_does_not_ask_for_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.md"
    file.write_text("---\nfields: [agent_output]\ncriteria: {right: {question: q}}\n---\n{{agent_output}}")
    with pytest.raises(ConfigError, match="and in the body as"):
        load_coach_prompt(file)


def shipped_reply(structured: bool) -> str:
    if structured:
        listed = {name: {"reason": reason, "score": score} for name, (reason, score) in SHIPPED.items()}
        return json.dumps({"criteria": listed, "abstain": False})
    return "\n".join(f"REASON {name}: {reason}\nSCORE {name}: {score:g}" for name, (reason, score) in SHIPPED.items())


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("structured", [False, True])
async def test_each_criterion_is_asked_for_kept_and_shown(tmp_path: Path, structured: bool) -> None:
    pytest.importorskip("litellm", reason="needs the llm extra")
    ledger = tmp_path / "ledger.jsonl"
    async with ScriptedServer([say(shipped_reply(structured))]) as server:
        config = CoachConfig(
            name="openai/judge", api_base=server.openai_base, prompt=Path("criteria"), structured=structured
        )
        made = client_factory(structured=structured)
        pool = CoachPool(make_coach(config, client_factory=made), ledger=ledger, client_factory=made)
        (score,) = await score_all(pool, requests_of(1))
        asked = server.requests[0]
    assert score.process_0_10 == pytest.approx((3 * 4 + 2 * 5 + 2 * 6 + 7) / 8)
    assert score.remarks == ("correctness 4", "duty 5", "method 6", "hand_on 7")
    assert "- correctness (38% of the total): " in asked.prompt and "SCORE duty: <number" in asked.prompt
    if structured:
        keys = asked.body["response_format"]["json_schema"]["schema"]["properties"]["criteria"]["properties"]
        assert list(keys) == list(SHIPPED)
    (line,) = [line for line in read_ledger(ledger) if line["kind"] == "score"]
    line.pop("kind")
    assert score_from_record(line).criteria == score.criteria


@pytest.mark.usefixtures("keys")
async def test_an_ensemble_combines_criteria_where_its_members_share_them() -> None:
    pytest.importorskip("litellm", reason="needs the llm extra")
    low, high = shipped_reply(False), shipped_reply(False).replace("SCORE duty: 5", "SCORE duty: 9")
    async with ScriptedServer([say(low), say(high)]) as server:
        member = MemberConfig(name="openai/judge", api_base=server.openai_base, prompt=Path("criteria"))
        coach = make_coach(CoachConfig(ensemble=(member, member)), client_factory=client_factory())
        score = await coach.score(requests_of(1)[0])
        await coach.close()
    assert [one.score_0_10 for one in score.criteria] == [4, 7, 6, 7]


def test_the_shipped_prompt_lists_its_criteria() -> None:
    prompt = find_coach_prompt(Path("criteria"), None)
    assert [one.name for one in parse_criteria(prompt.header, "criteria")] == list(SHIPPED)
